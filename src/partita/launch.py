"""Runs that a file describes, and the folders that they leave: what `partita run`, `report` and `watch` do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partita.config import Config, build_model, feature_names, load_data, read_config
from partita.datasets import split
from partita.errors import StorageError
from partita.federation.folders import read_server
from partita.federation.greeting import FEDERATION
from partita.federation.state import read_run_names
from partita.fitting import fit
from partita.formulas import regress
from partita.formulas.fitting import check_comparable
from partita.foundation.checks import check_level
from partita.foundation.plain import Row
from partita.models import AbstractModel
from partita.predictive import score_rows
from partita.report import saved_report, write_report
from partita.report.follower import Follower
from partita.report.measures import write_measures
from partita.report.regression import describe, write_regression
from partita.server.storage import read_names
from partita.telemetry import Callback, Every
from partita.wire.naming import name_sources
from partita.wire.recipe import Recipe

# A watch is called with the name of a fit and labels for its events, and gives those who listen.
Watch = Callable[[str, Row], Sequence[Callback]]


@dataclass(frozen=True)
class ModelRun:
    """A model and its data, ready to be fitted into a folder."""

    name: str
    config: Config
    folder: Path
    model: AbstractModel
    shards: Sequence[Any]
    test: tuple[Any, ...]
    design: Row | None
    features: Sequence[str]

    def fit(self, resume: bool, watch: Watch) -> Row | None:
        """Fit, and keep result and measures; there is nothing more to show than the run itself."""
        model = self.model
        schedule = self.config.schedule
        assert schedule is not None

        def metrics(posterior: Any) -> dict[str, float]:
            return score_rows(model, posterior, self.test)

        every = Every(metrics, folds=1 if schedule.waits and schedule.parallel else self.config.partition.sites)
        result = fit(
            model,
            self.shards,
            self.config.settings,
            run_dir=self.folder,
            resume=resume,
            callbacks=(every, *watch(self.name, {})),
        )
        # Measures come first, because whoever watches looks for them when there is a result.
        write_measures(self.folder, result, self.test, self.features)
        replace(result, design=self.design).save(self.folder / "result.safetensors")
        return None


@dataclass(frozen=True)
class RegressionRun:
    """A formula on one table per site, and the formulas that it is compared with, ready to be fitted into a folder.

    With `quiet`, nobody is told what looks wrong in the tables.
    """

    config: Config
    folder: Path
    sites: dict[str, Any]
    formulas: Sequence[str]
    quiet: bool

    def fit(self, resume: bool, watch: Watch) -> Row | None:
        """Fit all formulas and keep what they say, which is what is shown."""
        wanted = self.config.regression
        assert wanted is not None
        found = []
        for number, formula in enumerate(self.formulas):
            place = self.folder / f"compare-{number}" if number else self.folder
            fitted = regress(
                formula,
                self.sites,
                family=wanted.family,
                prior_scale=wanted.prior_scale,
                held_out=wanted.held_out,
                weights=wanted.weights,
                schedule=self.config.schedule,
                damping=self.config.damping,
                seed=self.config.seed,
                run_dir=place,
                resume=resume,
                callbacks=watch(formula, {"formula": formula}),
                quiet=self.quiet or number > 0,
            )
            fitted.save(place / "result.safetensors")
            found.append(fitted)
        row = describe(found, wanted.level)
        write_regression(self.folder, row)
        return row


def prepare_run(path: Path, settings: Sequence[str], folder: Path, quiet: bool = False) -> ModelRun | RegressionRun:
    """Read a configuration file and the data that it names, and check both."""
    config = read_config(path, settings)
    if config.regression is not None:
        return _prepare_regression(config, path, folder, quiet)
    train, test, design = load_data(config, path.parent)
    model = build_model(config, *train)
    parts = config.partition
    shards: list[Any] = split(train, parts.sites, parts.how, concentration=parts.concentration, seed=config.seed)  # type: ignore[arg-type]
    if not model.takes_target:
        shards = [shard[0] for shard in shards]
    return ModelRun(path.stem, config, folder, model, shards, test, design, feature_names(config, path.parent))


def _prepare_regression(config: Config, path: Path, folder: Path, quiet: bool) -> RegressionRun:
    wanted = config.regression
    assert wanted is not None
    sites = name_sources(config.data.sites, path.parent)
    check_level(wanted.level)
    formulas = (wanted.formula, *wanted.compare)
    check_comparable(
        formulas, sites, family=wanted.family, held_out=wanted.held_out, weights=wanted.weights, seed=config.seed
    )
    return RegressionRun(config, folder, sites, formulas, quiet)


def follow_run(folder: Path) -> Follower:
    """The run of a folder, with the names of its sites if they have some."""
    if not (folder / FEDERATION).is_file():
        return Follower(folder, read_names(folder))
    server = read_server(folder)
    features = server.recipe.columns.features if isinstance(server.recipe, Recipe) else ()
    return Follower(server.run, read_run_names(server), f"Federation {server.path.name}", features)


def write_run_report(folder: Path) -> tuple[str, Row, Path]:
    """Write the page of a run, or of a saved file beside it; return its words, its summary, and where the page is."""
    if folder.is_file():
        saved = saved_report(folder)
        return saved.words, saved.table[0], write_report(folder.with_suffix(".html"), saved)
    if not folder.exists() and folder.suffix:
        raise StorageError(f"{folder}: there is no such file or folder")
    follower = follow_run(folder)
    if not follower.read():
        raise StorageError(f"{follower.folder / 'journal.sqlite'}: no such run, or nothing in it yet")
    shown, row = follower.report(), follower.summary()
    return shown.words, row, write_report(folder / "report.html", shown)
