"""What a recipe reads of a site's table: its columns under the federation's names, in the federation's units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import InputError
from partita.foundation.csv_files import read_columns
from partita.site.policy import Cells
from partita.site.settings import SITE, SiteSettings
from partita.site.tables import keep_complete, number_labels
from partita.site.tables import read_table as read_frame
from partita.wire.base_recipe import BaseRecipe
from partita.wire.formula_recipe import FormulaRecipe
from partita.wire.program_recipe import ProgramRecipe
from partita.wire.recipe import Columns, Recipe
from partita.wire.summary_recipe import SummaryRecipe

# Groups of all sites are counted through: so many at each at most, so that nobody has to know those of others.
MOST_GROUPS, MOST_SITES = 2**20, 2**11


@dataclass(frozen=True)
class Source:
    """A site's data as the model or the formula takes them.

    `cells` are columns of which a policy counts how many rows have the same value.
    """

    raw: Any
    rows: int
    cells: Sequence[Cells]


def read_source(recipe: BaseRecipe, settings: SiteSettings, number: int) -> Source:
    """Read what a recipe needs of a site's table; `number` is the site's in the run."""
    _check_names(recipe, settings)
    match recipe:
        case Recipe():
            return _read_numbers(recipe, settings)
        case FormulaRecipe():
            return _read_by_formula(recipe, settings)
        case ProgramRecipe():
            return _read_arguments(recipe, settings, number)
        case SummaryRecipe():
            # Cells are seen to where they are counted.
            frame = read_named(settings, recipe.reads)
            return Source(frame, len(frame), [])
    raise InputError(f"{type(recipe).__name__}: is no recipe that is known here")


def _check_names(recipe: BaseRecipe, settings: SiteSettings) -> None:
    """Check that what the site says of columns is about columns of the recipe."""
    for section, names in (("columns", settings.columns), ("units", settings.units)):
        unknown = sorted(set(names) - set(recipe.reads))
        if unknown:
            raise InputError(f"{settings.path / SITE}: [{section}] {unknown[0]}: the federation has no such column")


def _read_numbers(recipe: Recipe, settings: SiteSettings) -> Source:
    columns = recipe.columns
    table = read_table(settings, columns)
    has_classes = columns.classes > 2
    named = zip(columns.names, np.column_stack(table).T, strict=True)
    cells = [Cells(name, column, has_classes and name == columns.target) for name, column in named]
    return Source(table if recipe.model.takes_target else table[0], len(table[0]), cells)


def read_table(settings: SiteSettings, columns: Columns) -> tuple[np.ndarray, ...]:
    """This site's features, scaled as everybody's are; and the target, if there is one."""
    _, table = read_columns(settings.data, [settings.columns.get(name, name) for name in columns.names])
    table = table * np.array([settings.units.get(name, 1.0) for name in columns.names])
    X, *target = np.split(table, [len(columns.features)], axis=1)
    return columns.scale_rows(X), *(column[:, 0] for column in target if column.size)


def read_named(settings: SiteSettings, names: Sequence[str]) -> Any:
    """A frame of these columns of the site's table, under the federation's names, in its units."""
    import pandas
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    frame, found = read_frame(settings.data), {}
    for name in names:
        own = settings.columns.get(name, name)
        if list(frame.columns).count(own) != 1:
            problem = "two columns are called" if own in frame.columns else "no column"
            raise InputError(f"{settings.data}: {problem} {own!r}; it has {', '.join(map(str, frame.columns))}")
        column = frame[own]
        if name in settings.units:
            if not is_numeric_dtype(column) or is_bool_dtype(column):
                raise InputError(f"{settings.data}: [units] {name}: the column {own!r} does not hold numbers")
            column = column * settings.units[name]
        found[name] = column
    return pandas.DataFrame(found)


def _read_by_formula(recipe: FormulaRecipe, settings: SiteSettings) -> Source:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    frame, weights = read_named(settings, recipe.reads), recipe.wanted.weights
    # A row that stands for no observation is in no cell.
    counted = frame if weights is None or not is_numeric_dtype(frame[weights]) else frame[frame[weights] > 0]
    cells, complete = [], counted.dropna()
    # Of all rows, whose levels are told, and of the complete ones, which are fitted.
    for part in (counted, complete):
        for name in recipe.parsed.names:
            column = part[name].dropna()
            has_levels = is_bool_dtype(column) or not is_numeric_dtype(column) or name in recipe.parsed.categorical
            cells.append(Cells(name, number_labels(column) if has_levels else column.to_numpy(float), has_levels))
    # A site with too few rows to be fitted says so at once, and not in the middle of what sites agree on.
    return Source(frame, len(complete), cells)


def _read_arguments(recipe: ProgramRecipe, settings: SiteSettings, number: int) -> Source:
    from pandas.api.types import is_numeric_dtype

    kept = keep_complete(str(settings.data), read_named(settings, recipe.reads), recipe.reads)
    columns, group = recipe.wanted.columns, recipe.group
    of_groups = None if group is None else columns[group]
    for name in recipe.reads:
        if name != of_groups and not is_numeric_dtype(kept[name]):
            raise InputError(f"{settings.data}: column {name!r} has to hold numbers: programs take no levels")
    arrays = {}
    for argument in recipe.arguments:
        named: Any = columns[argument]
        arrays[argument] = (
            _number_groups(kept[named], number) if argument == group else kept[named].to_numpy(float, copy=True)
        )
    raw = arrays if recipe.wanted.arguments is None else tuple(arrays.values())
    cells = [Cells(name, kept[name].to_numpy(float), False) for name in recipe.reads if name != of_groups]
    return Source(raw, len(kept), cells)


def _number_groups(column: Any, number: int) -> np.ndarray:
    """Groups by numbers that no other site has; what they are called stays here."""
    labels = number_labels(column)
    if labels.max() >= MOST_GROUPS or not 0 <= number < MOST_SITES:
        raise InputError(f"there may be no more than {MOST_GROUPS:,} groups at a site, and {MOST_SITES:,} sites")
    found: np.ndarray = labels.astype(np.int64) + number * MOST_GROUPS
    return found
