"""The kinds of recipes: columns and a model of the registry, a formula, a program, or a summary."""

from pathlib import Path

from partita.errors import MalformedMessage
from partita.foundation.foreign import parse_object
from partita.foundation.settings_files import SettingsFile, Table
from partita.wire.base_recipe import BaseRecipe
from partita.wire.formula_recipe import FormulaRecipe
from partita.wire.program_recipe import ProgramRecipe
from partita.wire.recipe import Recipe
from partita.wire.summary_recipe import SummaryRecipe


def read_recipe(file: SettingsFile, tables: Table, folder: Path, waits: bool = True, once: bool = False) -> BaseRecipe:
    """Read a recipe from sections of a federation's file, which may have more. No code of anybody's is run.

    Args:
        file: where the sections come from.
        tables: the sections.
        folder: where a program's own file would lie.
        waits: whether a round waits for all who were asked.
        once: whether every site is asked only once.
    """
    if "summary" in tables:
        return SummaryRecipe.read(file, tables)
    if "regression" in tables:
        return FormulaRecipe.read(file, tables, waits, once)
    if "program" in tables:
        return ProgramRecipe.read(file, tables, folder, waits, once)
    return Recipe.read(file, tables, waits, once)


def parse_recipe(text: str, folder: Path) -> BaseRecipe:
    """Read a recipe from what a message carries; what else it may hold is not looked at."""
    try:
        tables = parse_object(text)
    except ValueError as error:
        raise MalformedMessage(f"recipe: cannot be read: {error}") from None
    waits, once = tables.get("waits", True), tables.get("once", False)
    if not isinstance(waits, bool) or not isinstance(once, bool):
        raise MalformedMessage("recipe: cannot be read: `waits` and `once` have to be true or false")
    return read_recipe(SettingsFile(Path("the server's settings")), tables, folder, waits, once)
