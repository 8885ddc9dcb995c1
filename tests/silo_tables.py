"""What sites agree on, and the rows that each of them reads that way: both sides of the wall, for tests alone."""

from dataclasses import replace

from partita.formulas.agreement import agree
from partita.formulas.silos import Silos
from partita.site.reading import read_rows, weigh_table


def read_design(formula, family, sites):
    """The design that these sites agree on, and their rows by name, with groups counted through."""
    with Silos.of(sites, None).connected() as connection:
        reading = agree(connection, formula, family).reading
    rows = {}
    for (name, table), first in zip(connection.silos.sources.items(), reading.first_groups, strict=True):
        own = read_rows(f"site {name}", weigh_table(name, table, None), reading.design)
        rows[name] = own if own.group is None else replace(own, group=first + own.group)
    return reading.design, rows
