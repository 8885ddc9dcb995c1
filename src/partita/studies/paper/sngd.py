"""Global VI for networks: the paper's appendix on stochastic natural gradients (E.6), and other solvers beside.

Every solver goes on from epoch to epoch without a break, and its posterior is looked at on the way.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from typer import Option

from partita.expectations import GaussNewton, LocalReparameterisation
from partita.families import Family
from partita.fitting import evidence
from partita.foundation.plain import Row
from partita.foundation.runtime import Array, on_host
from partita.free_energy import LocalProblem
from partita.models import Network, prior_of
from partita.shards import Shard
from partita.site.worker import load_shards, site_key
from partita.solvers import Gradient, NaturalGradient, StochasticNaturalGradient
from partita.solvers.base import SteppedSolver
from partita.studies.checkpoints import keep, recall
from partita.studies.images import Images, decaying_adam
from partita.studies.options import Folder, Methods, Quick, Seeds, Sweep, Validate
from partita.studies.pages import KEYS, Experiment, Presentation, choose_names
from partita.studies.runner import Cell
from partita.studies.speed import measure_network

BATCH = 200
# Passes over the data: a look, and the paper's, by width.
SHORT = 20
PAPER = {200: 1000, 500: 800}
# Posteriors are looked at after each of the first epochs; then after one in so many up to a number; and then of others.
FIRST, SOON, UNTIL, LATER = 5, 5, 50, 10


@dataclass(frozen=True)
class Method:
    """A solver of the comparison.

    Args:
        words: what it is.
        rates: those of a sweep.
        best: by numbers of epochs, the rate of those with the least NLL on validation data after so many, with 200
            units.
    """

    words: str
    rates: tuple[float, ...]
    best: Mapping[int, float]

    def rate(self, epochs: int) -> float:
        """The rate that did best at the length that is nearest to this one."""
        return self.best[min(self.best, key=lambda length: abs(math.log(length / epochs)))]


METHODS: dict[str, Method] = {
    "adam": Method("Adam at a fixed rate, as in the paper", (0.001, 0.002, 0.005, 0.01), {20: 0.005}),
    "adam-decaying": Method("Adam, its rate falling to zero", (0.001, 0.003, 0.01), {20: 0.01}),
    "sngd": Method(
        "SNGD: natural parameters move at one fixed rate, as in the paper", (0.0003, 0.001, 0.002, 0.003), {20: 0.001}
    ),
    "sngd-fisher": Method(
        "the same with curvature from labels that the model draws, which is never negative",
        (0.0003, 0.001, 0.002, 0.003),
        {20: 0.001},
    ),
    "natural-gradient": Method(
        "natural gradients with momentum, rates falling to zero", (0.001, 0.002, 0.004), {20: 0.002}
    ),
}
# What a row costs where a solver steps, and where a posterior is looked at, in rows of a pass of messages: measured in
# processor time, and alike for all solvers.
STEP, LOOK = 2.2, 10.0


def solver(name: str, rate: float, epochs: int, rows: int) -> tuple[SteppedSolver, Any]:
    """A solver with the expectation that goes with it."""
    plain = LocalReparameterisation(samples=1, fixed=False)
    if name == "adam":
        return Gradient("adam", rate, epochs, batch_size=BATCH, tolerance=0.0), plain
    if name == "adam-decaying":
        optimiser = decaying_adam(rate, epochs * -(-rows // BATCH))
        return Gradient(optimiser, epochs=epochs, batch_size=BATCH, tolerance=0.0), plain
    if name.startswith("sngd"):
        return StochasticNaturalGradient(rate, epochs, batch_size=BATCH), plain if name == "sngd" else GaussNewton()
    return NaturalGradient(rate, epochs=epochs, batch_size=BATCH), GaussNewton()


def experiment(
    method: Methods = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    sweep: Sweep = False,
    validate: Validate = False,
    folder: Folder = None,
    epochs: Annotated[int | None, Option(min=1, help="Passes over the data; 20 if not given.")] = None,
    full: Annotated[
        bool, Option("--full", help="The paper's lengths: 1,000 epochs with 200 units, 800 with 500.")
    ] = False,
    width: Annotated[int | None, Option(min=1, help="Only with so many hidden units.")] = None,
) -> Experiment:
    """The study that its options ask for."""
    names = choose_names(method, list(METHODS))
    images = Images.load("digits" if quick else "mnist", folder, validate=validate)
    widths = [50] if quick else [200, 500]
    lengths = {one: PAPER.get(one, SHORT) if full else epochs or (5 if quick else SHORT) for one in widths}
    if width is not None:
        lengths = {width: lengths.get(width, epochs or SHORT)}
    made = cells(images, names, seeds, lengths, sweep)
    shown = Presentation(
        "Solvers for global VI",
        names=("error", "nll", "train_error", "train_nll"),
        charts=("error", "nll", "train_error", "train_nll"),
        keys=(*KEYS, "train_error", "train_nll", "rate", "held"),
    )
    return Experiment(shown, made, lambda: measure_network(images.network([50 if quick else 200])))


def cells(
    images: Images, names: Sequence[str] | None, seeds: int, lengths: Mapping[int, int], sweep: bool = False
) -> list[Cell]:
    """Every solver for every width, for its number of epochs; with `sweep`, at several rates."""
    made = []
    for seed in range(seeds):
        for width, epochs in lengths.items():
            for name, method in METHODS.items():
                if names is None or name in names:
                    for rate in method.rates if sweep else [method.rate(epochs)]:
                        made.append(_cell(images, Trace(name, rate, width, epochs, seed), sweep))
    return made


@dataclass(frozen=True)
class Trace:
    """One solver at one rate, followed over so many epochs."""

    name: str
    rate: float
    width: int
    epochs: int
    seed: int

    def is_shown(self, epoch: int) -> bool:
        return epoch <= FIRST or epoch % (SOON if epoch <= UNTIL else LATER) == 0 or epoch == self.epochs

    @property
    def looks(self) -> int:
        return sum(self.is_shown(epoch) for epoch in range(1, self.epochs + 1))


def _cell(images: Images, trace: Trace, sweep: bool) -> Cell:
    rows = len(images.train[1])
    # A look passes all rows of both parts through the network 32 times, forwards only.
    looked_at = 2 * len(images.test[1]) * LOOK * trace.looks
    work = (rows * trace.epochs * STEP + looked_at) * trace.width / widths_unit(images)
    settings = {"rate": trace.rate, "epochs": trace.epochs, "rows": rows, "digest": float(images.test[0].sum())}
    return Cell(
        f"{trace.name} {trace.rate:g}" if sweep else trace.name,
        f"{trace.width} units",
        trace.seed,
        work,
        settings,
        lambda: follow(images, trace),
        f"{METHODS[trace.name].words}; rate {trace.rate:g}",
        lambda path: follow(images, trace, path),
    )


def widths_unit(images: Images) -> int:
    """The width of the network that speed is measured with."""
    return 200 if images.train[0].shape[1] > 100 else 50


@eqx.filter_jit
def _begin(solver: SteppedSolver, problem: LocalProblem, start: Any) -> Any:
    return solver.begin(problem, start, start / problem.cavity)


@eqx.filter_jit
def _advance(solver: SteppedSolver, problem: LocalProblem, carried: Any, epoch: Array, key: Array) -> Any:
    end = epoch * -(-problem.shard.rows // BATCH)
    return solver.advance(problem, carried, end, key=key)


def follow(images: Images, trace: Trace, path: Path | None = None) -> Iterator[Row]:
    """Rows of a trace, those that are kept in `path` first."""
    model = images.network([trace.width], start_scale=0.03, init_seed=trace.seed)
    chosen, expectation = solver(trace.name, trace.rate, trace.epochs, len(images.train[1]))
    shard: Shard = jax.device_put(load_shards(model, [images.train])[0])
    problem = LocalProblem(model, expectation, prior_of(model, model.hyper), shard, model.hyper)
    # The key of the first task of the first site, so that a fit with this solver ends at the same posterior.
    key = site_key(*(np.asarray(number, np.uint32) for number in (trace.seed, 0, 0)))
    rows, carried = recall(path, on_host(_begin(chosen, problem, model.start))) if path else ([], None)
    carried = _begin(chosen, problem, model.start) if carried is None else carried
    yield from rows
    seconds, first = (rows[-1]["seconds"], rows[-1]["round"] + 1) if rows else (0.0, 1)
    for epoch in range(first, trace.epochs + 1):
        began = time.perf_counter()
        carried = jax.block_until_ready(_advance(chosen, problem, carried, jnp.asarray(epoch), key))
        seconds += time.perf_counter() - began
        if trace.is_shown(epoch):
            counted = {"round": epoch, "seconds": seconds, "rate": trace.rate, "held": int(chosen.held(carried))}
            posterior = on_host(chosen.reached(problem, carried))
            rows.append({**counted, **_look(images, model, posterior, trace, epoch == trace.epochs)})
            yield rows[-1]
            if path is not None:
                keep(path, rows, carried)


def _look(images: Images, model: Network, posterior: Family, trace: Trace, is_last: bool) -> Row:
    """What is known of a posterior on the way; of the last one its free energy, too, which takes a pass."""
    return {
        "messages": 0,
        "bytes": 0,
        **images.score(model, posterior),
        **images.score_training(model, posterior),
        "free_energy": evidence(model, [images.train], posterior, seed=trace.seed) if is_last else None,
    }
