"""One synchronous round of networks at ten sites, 784-200-10 and a convolutional one, and how much is not training.

Rounds of one run take turns with the same compiled refinements, called directly: a busy machine slows both down. Ratios
are of each round to the mean of the bare ones before and after it, and to what the sites themselves took in it. With
--profile, says where the rest goes.

    python benchmarks/network_round.py --profile
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import partita as pt
from partita.expectations import choose
from partita.free_energy import LocalProblem
from partita.models import prior_of
from partita.site.worker import load_shards
from partita.solvers.choice import choose_solver
from partita.studies.convolution import make_network

SIZES, SITES, ROWS, BATCH = (784, 200, 10), 10, 6000, 200
ROUNDS = 12
# Seconds that a peer in PyTorch takes for a round of one epoch at ten sites on such a machine; quoted, not measured.
PEER = 6.5

ONE_EPOCH = {
    "solver": pt.solvers.Gradient(epochs=1, batch_size=BATCH, learning_rate=0.001),
    "damping": "1/M",
    "expectation": pt.expectations.LocalReparameterisation(samples=1, fixed=False),
}
DEFAULT: dict[str, Any] = {}


def problem() -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    X = generator.random((SITES * ROWS, SIZES[0]), np.float32)
    return pt.datasets.split((X, generator.integers(0, SIZES[-1], len(X))), sites=SITES)


class Bare:
    """The refinements of one round, without ledger, damping or messages; everything stays where it is computed."""

    def __init__(self, model: pt.models.Network, shards: list, settings: dict[str, Any]):
        prior = prior_of(model, model.hyper)
        expectation = choose(model, prior, settings.get("expectation"))
        solver = choose_solver(expectation, settings.get("solver"))
        hyper = {name: jnp.asarray(value, model.dtype) for name, value in model.hyper.items()}
        cavity, self.factor, self.begin = jax.device_put((prior, prior**0, model.start))
        kept = jax.device_put(load_shards(model, shards))
        self.problems = [LocalProblem(model, expectation, cavity, shard, hyper) for shard in kept]
        self.refine = eqx.filter_jit(lambda *given, key: solver.refine(*given, key=key))

    def seconds(self, number: int) -> float:
        began = time.perf_counter()
        for site, given in enumerate(self.problems):
            key = jax.random.fold_in(jax.random.key(number), site)
            jax.block_until_ready(self.refine(given, self.begin, self.factor, key=key))
        return time.perf_counter() - began


def rounds(model: pt.models.Network, shards: list, number: int, settings: dict[str, Any]) -> Iterator[np.ndarray]:
    """Seconds of every round but the first two, which compile: in all, at the sites, and of processors in all."""
    schedule = pt.schedules.Synchronous(rounds=number + 2)
    run = pt.events(model, shards, schedule=schedule, **settings)
    before = 0.0
    for count in range(number + 2):
        began, worked = time.perf_counter(), time.process_time()
        event = next(run)
        taken, busy = time.perf_counter() - began, time.process_time() - worked
        if count >= 2:
            yield np.array([taken, event.seconds - before, busy])
        before = event.seconds


def profile(model: pt.models.Network, shards: list, settings: dict[str, Any]) -> None:
    """Seconds per round of the functions of Partita, with those that they call."""
    profiler = cProfile.Profile()
    profiler.runcall(lambda: list(rounds(model, shards, ROUNDS, settings)))
    stats: dict = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    ours = {place: row for place, row in stats.items() if "partita" in place[0]}
    for (path, line, name), row in sorted(ours.items(), key=lambda item: -item[1][3])[:25]:
        print(
            f"  {row[3] / (ROUNDS + 2):7.3f} s a round in {name}, {path.split('/')[-1]}:{line}, called {row[0]} times"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=["epoch", "defaults", "convolution"])
    wanted = parser.parse_args()
    dense, shards = pt.models.Network(SIZES), problem()
    kinds = {
        "epoch": ("one epoch of Adam in batches of 200", dense, ONE_EPOCH),
        "defaults": ("defaults", dense, DEFAULT),
        "convolution": (
            "two convolutions of 5 × 5, 8 and 16 channels, and a dense layer",
            make_network(False, 0),
            DEFAULT,
        ),
    }
    for name, model, settings in kinds.values() if wanted.only is None else [kinds[wanted.only]]:
        bare = Bare(model, shards, settings)
        bare.seconds(0)
        turns, alone = [], [bare.seconds(0)]
        for number, taken in enumerate(rounds(model, shards, wanted.rounds, settings)):
            turns.append(taken)
            alone.append(bare.seconds(number))
        whole, at_sites, busy = np.array(turns).T
        between = (np.array(alone[1:]) + np.array(alone[:-1])) / 2
        ratio, inside = np.median(whole / between), np.median(whole / at_sites)
        print(f"{name}: {np.median(whole):.2f} s a round, {np.median(busy):.2f} s of processors' time")
        print(f"  {np.median(alone):.2f} s in bare refinements: a round takes {ratio:.2f} × that")
        print(f"  {np.median(at_sites):.2f} s at the sites in the same runs: a round takes {inside:.2f} × that")
        print(f"  {PEER / np.median(whole):.1f} × as fast as the {PEER} s quoted, not measured, for a peer in PyTorch")
        if wanted.profile:
            profile(model, shards, settings)


if __name__ == "__main__":
    main()
