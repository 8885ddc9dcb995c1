"""The fit of a federation, by the kind of its recipe. What sites have to agree on is asked once, and kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from partita.engines.flower import Flower
from partita.errors import Stalled
from partita.federation.agreements import keep_agreement, keep_program
from partita.federation.folders import ServerFolder
from partita.federation.state import read_barred
from partita.fitting import fit, make_run, run_to_end, size_model
from partita.formulas import Regression
from partita.formulas.agreement import Agreement, agree
from partita.formulas.fitting import give_scales, run_agreed
from partita.formulas.silos import Silos
from partita.models import AbstractModel, NumPyroModel
from partita.report.regression import describe, write_regression
from partita.result import Result
from partita.server.settings import Settings
from partita.summaries.asking import ask_for_summary
from partita.summaries.saving import write_summary
from partita.telemetry import Callback
from partita.wire.agreed import check_plate
from partita.wire.formula_recipe import FormulaRecipe
from partita.wire.naming import SiteNames
from partita.wire.program_recipe import ProgramRecipe
from partita.wire.recipe import Recipe
from partita.wire.summary_recipe import SummaryRecipe


def run_recipe(folder: ServerFolder, engine: Flower, callbacks: Sequence[Callback], warn: Callable[[str], Any]) -> None:
    """Run what a federation's file says to its end, or go on with it, and write its result.

    Args:
        folder: of the server.
        engine: carries questions and tasks to sites.
        callbacks: called with every event.
        warn: is told what looks wrong in the tables of sites.
    """
    settings, recipe = replace(folder.settings, engine=engine), folder.recipe
    if isinstance(recipe, SummaryRecipe):
        _run_summary(folder, recipe, engine)
    elif isinstance(recipe, FormulaRecipe):
        _run_formula(folder, recipe, engine, settings, callbacks, warn)
    elif isinstance(recipe, ProgramRecipe) and recipe.settled is None:
        _save(folder, _run_program(folder, recipe, engine, settings, callbacks))
    else:
        assert recipe.settled is not None
        result = fit(recipe.settled, folder.sites, settings, run_dir=folder.run, resume=True, callbacks=callbacks)
        # Whoever reads it has tables, not what the model makes of them.
        design = recipe.columns.design if isinstance(recipe, Recipe) else None
        _save(folder, replace(result, design=design))


def _save(folder: ServerFolder, result: Result) -> None:
    """Write a result; but not where all sites are quarantined: then nothing moves, and nothing has settled."""
    barred = read_barred(folder)
    out = {name: words for name, words in barred.items() if words.startswith("quarantined")}
    if out and set(folder.sites) <= set(barred):
        told = "; ".join(f"{name} is {words}" for name, words in out.items())
        raise Stalled(f"nobody is left who could be asked, and there is no result. {told}")
    result.save(folder.result)


def _run_summary(folder: ServerFolder, recipe: SummaryRecipe, engine: Flower) -> None:
    """Sum up the tables of all sites; nothing is fitted, and there is no journal."""
    wanted = recipe.wanted
    with Silos({site: site for site in folder.sites}, engine).connected() as connection:
        found = ask_for_summary(
            connection, wanted.columns, wanted.by, wanted.categorical, wanted.pairs, wanted.fewest_per_cell
        )
    write_summary(folder.result, found)


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
        agreement = keep_agreement(folder, recipe, ask)
        result = run_agreed(silos, agreement, settings, folder.run, True, callbacks)
    _save(folder, result)
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
            model = keep_program(folder, program, lambda: _size_program(engine, program, names))
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
