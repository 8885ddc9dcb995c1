"""What the sites of a federation have agreed on, as it is kept in the folder of the run."""

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, TypeVar

from partita.designs.design import Counts
from partita.designs.regressions import rebuild_model
from partita.designs.saving import pack_reading, unpack_reading
from partita.errors import CorruptStorage, InputError, PolicyRefusal, RunMismatch
from partita.federation.folders import ServerFolder
from partita.formulas.agreement import Agreement
from partita.foundation.fields import anything, fields, flag, items, text, whole
from partita.foundation.files import read_json, replace_file
from partita.foundation.plain import Row, to_json
from partita.foundation.text import clean
from partita.models import AbstractModel, NumPyroModel
from partita.wire.agreed import MOST, Agreed
from partita.wire.formula_recipe import FormulaRecipe
from partita.wire.program_recipe import ProgramRecipe

Kept = TypeVar("Kept")
AGREED = "agreed.json"
AGREEMENT = fields(
    {
        "reading": anything,
        "sites": items(items(anything, 4)),
        "digest": text(),
        "largest_group": whole(),
        "two_valued": items(flag),
    }
)


def keep_agreement(folder: ServerFolder, recipe: FormulaRecipe, ask: Callable[[], Agreement]) -> Agreement:
    """How sites read their tables by a formula: as it is kept, where the run has begun; else as they say now."""
    agreement = _keep(folder, ask, _pack_agreement, _unpack_agreement)
    try:
        recipe.check_reading(agreement.reading)
    except PolicyRefusal as error:
        raise RunMismatch(f"{folder.run / AGREED}: sites have agreed on something else: {error.told}") from None
    return agreement


def keep_program(folder: ServerFolder, program: AbstractModel, ask: Callable[[], AbstractModel]) -> AbstractModel:
    """A program with what sites have said that it is made of; in the same way."""
    return _keep(folder, ask, _pack_program, lambda row: _unpack_program(row, program))


def find_model(folder: ServerFolder) -> AbstractModel:
    """The model of a federation's run."""
    recipe = folder.recipe
    if recipe.settled is not None:
        return recipe.settled
    if isinstance(recipe, FormulaRecipe):
        return rebuild_model(keep_agreement(folder, recipe, _complain).design)
    if not isinstance(recipe, ProgramRecipe):
        raise InputError("a summary fits nothing: there is no model")
    return keep_program(folder, recipe.model, _complain)


def _complain() -> NoReturn:
    raise InputError("there is no run yet: sites have not agreed on anything")


def _keep(
    folder: ServerFolder, ask: Callable[[], Kept], pack: Callable[[Kept], Row], unpack: Callable[[Row], Kept]
) -> Kept:
    path = folder.run / AGREED
    if not (folder.has_run and path.exists()):
        replace_file(path, to_json(pack(ask())).encode(), durable=True)
    try:
        return unpack(read_json(path, MOST))
    except Exception as error:
        # Designs go through formulaic too, whose errors are of many kinds.
        raise CorruptStorage(f"{path}: does not say what sites have agreed on: {clean(error)}") from error


def _pack_agreement(agreement: Agreement) -> Row:
    return {
        "reading": pack_reading(agreement.reading),
        "sites": [[name, one.rows, one.groups, one.missing] for name, one in agreement.counts.items()],
        "digest": agreement.digest,
        "largest_group": agreement.largest_group,
        "two_valued": list(agreement.two_valued),
    }


def _unpack_agreement(row: Row) -> Agreement:
    AGREEMENT(row, "agreement")
    return Agreement(
        unpack_reading(row["reading"]),
        {str(name): Counts(*rest) for name, *rest in row["sites"]},
        row["digest"],
        row["largest_group"],
        tuple(row["two_valued"]),
    )


def _pack_program(model: AbstractModel) -> Row:
    found = Agreed.of(model)
    assert found is not None
    return found.pack()


def _unpack_program(row: Row, program: AbstractModel) -> AbstractModel:
    agreed = Agreed.unpack(row)
    if not isinstance(program, NumPyroModel) or agreed.program is None:
        raise ValueError("sites have agreed on something else than this program")
    return replace(program.with_layout(agreed.program), group_rows=agreed.group_rows)
