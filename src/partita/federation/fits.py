"""The fit of a federation, by the kind of its recipe. What sites have to agree on is asked once, and kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from partita.designs.design import Counts
from partita.designs.saving import pack_reading, unpack_reading
from partita.engines.flower import Flower
from partita.errors import CorruptStorage, PolicyRefusal, RunMismatch
from partita.federation.folders import ServerFolder
from partita.fitting import fit, make_run, run_to_end, size_model
from partita.formulas import Regression
from partita.formulas.agreement import Agreement, agree
from partita.formulas.fitting import give_scales, run_agreed
from partita.formulas.silos import Silos
from partita.foundation.fields import anything, fields, flag, items, text, whole
from partita.foundation.files import read_json, replace_file
from partita.foundation.plain import Row, to_json
from partita.foundation.text import clean
from partita.models import AbstractModel, NumPyroModel
from partita.report.regression import describe, write_regression
from partita.result import Result
from partita.server.settings import Settings
from partita.telemetry import Callback
from partita.wire.agreed import MOST, Agreed, check_plate
from partita.wire.formula_recipe import FormulaRecipe
from partita.wire.naming import SiteNames
from partita.wire.program_recipe import ProgramRecipe
from partita.wire.recipe import Recipe

Kept = TypeVar("Kept")
# Where in a run's folder it is kept what sites have agreed on.
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


def run_recipe(folder: ServerFolder, engine: Flower, callbacks: Sequence[Callback], warn: Callable[[str], Any]) -> None:
    """Run what a federation's file says to its end, or go on with it, and write its result.

    Args:
        folder: of the server.
        engine: carries questions and tasks to sites.
        callbacks: called with every event.
        warn: is told what looks wrong in the tables of sites.
    """
    settings, recipe = replace(folder.settings, engine=engine), folder.recipe
    if isinstance(recipe, FormulaRecipe):
        _run_formula(folder, recipe, engine, settings, callbacks, warn)
    elif isinstance(recipe, ProgramRecipe) and recipe.settled is None:
        _run_program(folder, recipe, engine, settings, callbacks).save(folder.result)
    else:
        assert recipe.settled is not None
        result = fit(recipe.settled, folder.sites, settings, run_dir=folder.run, resume=True, callbacks=callbacks)
        # Whoever reads it has tables, not what the model makes of them.
        design = recipe.columns.design if isinstance(recipe, Recipe) else None
        replace(result, design=design).save(folder.result)


def _run_formula(
    folder: ServerFolder,
    recipe: FormulaRecipe,
    engine: Flower,
    settings: Settings,
    callbacks: Sequence[Callback],
    warn: Callable[[str], Any],
) -> None:
    wanted, silos = recipe.wanted, Silos({site: site for site in folder.sites}, engine)

    def ask() -> Agreement:
        found = agree(connection, wanted.formula, recipe.family, wanted.weights, float(wanted.held_out), recipe.seed)
        for words in found.design.advice:
            warn(words)
        return give_scales(found, float(wanted.prior_scale), float(wanted.noise_scale))

    with silos.connected() as connection:
        agreement = _keep(folder, ask, _pack_agreement, _unpack_agreement)
        try:
            recipe.check_reading(agreement.reading)
        except PolicyRefusal as error:
            raise RunMismatch(f"{folder.run / AGREED}: sites have agreed on something else: {error.told}") from None
        result = run_agreed(silos, agreement, settings, folder.run, True, callbacks)
    result.save(folder.result)
    found = Regression(agreement.reading, result, None, agreement.counts, agreement.digest, agreement.two_valued)
    write_regression(folder.run, describe([found]))


def _run_program(
    folder: ServerFolder,
    recipe: ProgramRecipe,
    engine: Flower,
    settings: Settings,
    callbacks: Sequence[Callback],
) -> Result:
    names, program = SiteNames(folder.sites), recipe.model
    engine.connect(folder.sites, names)
    try:
        with names.told():
            model = _keep(
                folder,
                lambda: _size_program(engine, program, names),
                lambda model: _agreed(model).pack(),
                lambda row: _read_program(Agreed.unpack(row), program),
            )
    except BaseException:
        engine.close()
        raise
    run = make_run(model, len(folder.sites), settings, engine, names)
    return run_to_end(run, [*folder.sites, *model.own_shards], folder.run, True, callbacks)


def _size_program(engine: Flower, model: AbstractModel, names: SiteNames) -> AbstractModel:
    found = size_model(engine, model, len(names.names), names)
    if isinstance(found, NumPyroModel):
        check_plate(found)
    return found


def _agreed(model: AbstractModel) -> Agreed:
    found = Agreed.of(model)
    assert found is not None
    return found


def _read_program(agreed: Agreed, model: AbstractModel) -> AbstractModel:
    if not isinstance(model, NumPyroModel) or agreed.program is None:
        raise ValueError("sites have agreed on something else than this program")
    return replace(model.with_layout(agreed.program), group_rows=agreed.group_rows)


def _keep(
    folder: ServerFolder, ask: Callable[[], Kept], pack: Callable[[Kept], Row], unpack: Callable[[Row], Kept]
) -> Kept:
    """What sites have agreed on in this run: what is kept, where it has begun; else what they answer now, kept."""
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
