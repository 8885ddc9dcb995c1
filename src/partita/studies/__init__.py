"""Studies: the paper's, comparisons with other methods and packages, and what goes wrong on purpose.

`registry.py` has every study by name; `partita study` runs them.
"""
