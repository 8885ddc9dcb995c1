"""`python -m partita` is the command line."""

from partita.cli import main

main()
