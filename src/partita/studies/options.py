"""Options that several studies have on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

# Whoever runs a study is told what it finds by such a function.
Say = Callable[[str], None]

# Of studies that are made of cells.
Quick = Annotated[bool, Option("--quick", help="Small data from a wheel, in under 3 minutes.")]
Seeds = Annotated[int, Option(min=1, help="How many seeds.")]
Methods = Annotated[str | None, Option("--method", help="Only these, separated by commas.")]
Folder = Annotated[Path | None, Option("--data", help="The folder that holds the data files.")]
Paper = Annotated[
    bool, Option("--paper", help="The paper's own schemes in place of Partita's: four forms, all followed by gradient.")
]
Validate = Annotated[bool, Option("--validate", help="Measure on a sixth of the training data, not the test set.")]
Sweep = Annotated[bool, Option("--sweep", help="Other rates and settings, too.")]

# Of studies that write a page, or kill servers.
Some = Annotated[list[str] | None, Argument(metavar="[NAME]...", help="Only these.")]
Page = Annotated[Path | None, Option(help="The page to write; one in docs/, if all are run.")]
Kills = Annotated[int, Argument(min=1, help="How many kills.")]
