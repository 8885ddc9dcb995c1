"""What carries tasks to sites and updates back, and the work that is the same wherever it is done."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from partita.expectations import Expectation
from partita.families import Family, inner
from partita.free_energy import LocalProblem
from partita.ledger import Task, Update, stacked
from partita.models import AbstractModel, Hyper
from partita.runtime import Array, on_host, precision
from partita.shards import Shard
from partita.solvers import Solver, SolverInfo

# Keys of evaluations, beside those of versions.
EVALUATION = 2**31 - 1


@dataclass(frozen=True)
class Job:
    """What sites need to know before their first task."""

    model: AbstractModel
    solver: Solver
    expectation: Expectation
    shards: Sequence[Shard]
    seed: int
    learns_hyper: bool
    waits: bool


class Engine(Protocol):
    """Carries messages. `at` is the run's clock when tasks were handed out; real engines ignore it."""

    def open(self, job: Job) -> None: ...

    def submit(self, tasks: Sequence[Task], at: float) -> None: ...

    def collect(self) -> list[Update]:
        """Wait for at least one update."""
        ...

    def evaluate(self, posterior: Family, hyper: Hyper) -> np.ndarray:
        """E_q[log p(y_m | θ)] for every site."""
        ...

    def close(self) -> None: ...


class Worker:
    """Does the work of some sites: all of them in one process, or the one that a remote process holds.

    Sites whose shards have the same padded size are stacked, so that a round is one compiled call.
    """

    def __init__(self, job: Job):
        self.job = job

    @cached_property
    def _groups(self) -> dict[tuple, list[int]]:
        groups: dict[tuple, list[int]] = {}
        for site, shard in enumerate(self.job.shards):
            shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(shard))
            groups.setdefault(shapes, []).append(site)
        return groups

    @cached_property
    def _place(self) -> dict[int, tuple[tuple, int]]:
        return {site: (shape, i) for shape, sites in self._groups.items() for i, site in enumerate(sites)}

    @cached_property
    def _stacks(self) -> dict[tuple, Shard]:
        return {shape: stacked([self.job.shards[s] for s in sites]) for shape, sites in self._groups.items()}

    def _stacked(self, shape: tuple, sites: Sequence[int]) -> Shard:
        stack = self._stacks[shape]
        if list(sites) == self._groups[shape]:
            return stack
        index = [self._place[site][1] for site in sites]
        return jax.tree.map(lambda a: a[index[0] : index[0] + 1] if len(index) == 1 else a[index], stack)

    def refine(self, tasks: Sequence[Task]) -> list[Update]:
        """Answer tasks that share one posterior."""
        by_shape: dict[tuple, list[Task]] = {}
        for task in tasks:
            by_shape.setdefault(self._place[task.site][0], []).append(task)
        answered = {}
        for shape, group in by_shape.items():
            for part in _parts(group, len(self._groups[shape])):
                answered.update({update.site: update for update in self._refine_stack(shape, part)})
        return [answered[task.site] for task in tasks]

    def _refine_stack(self, shape: tuple, tasks: Sequence[Task]) -> list[Update]:
        job, first = self.job, tasks[0]
        began = time.perf_counter()
        with precision(job.model.dtype):
            result = _refine_sites(
                job.model,
                job.solver,
                job.expectation,
                job.learns_hyper,
                first.begin,
                _array_hyper(first.hyper, job.model),
                np.asarray(job.seed, np.uint32),
                np.asarray(first.version, np.uint32),
                stacked([task.cavity for task in tasks]),
                stacked([task.factor for task in tasks]),
                self._stacked(shape, [task.site for task in tasks]),
                np.asarray([task.site for task in tasks], np.uint32),
            )
            changes, info, expected, gradients = on_host(result)
        seconds = (time.perf_counter() - began) / len(tasks)
        return [
            Update(
                task.site,
                task.version,
                jax.tree.map(lambda a, i=i: a[i, ...], changes),
                expected_log_prob=float(info.expected_log_prob[i]),
                expected_log_factor=float(expected[0][i]),
                expected_log_change=float(expected[1][i]),
                steps=int(info.steps[i]),
                outcome=int(info.outcome[i]),
                hyper_gradient={name: float(values[i]) for name, values in gradients.items()},
                seconds=seconds,
            )
            for i, task in enumerate(tasks)
        ]

    def evaluate(self, posterior: Family, hyper: Hyper) -> np.ndarray:
        """E_q[log p(y_m | θ)] for every site here."""
        job, values = self.job, np.zeros(len(self.job.shards))
        with precision(job.model.dtype):
            for shape, sites in self._groups.items():
                values[sites] = _evaluate_sites(
                    job.model,
                    job.expectation,
                    posterior,
                    _array_hyper(hyper, job.model),
                    np.asarray(job.seed, np.uint32),
                    self._stacks[shape],
                    np.asarray(sites, np.uint32),
                )
        return values


def _parts(tasks: list[Task], whole: int) -> list[list[Task]]:
    """Split a group into a few sizes (the whole, or powers of two), so that few programs are compiled."""
    if len(tasks) == whole:
        return [tasks]
    parts, rest = [], tasks
    while rest:
        size = 1 << (len(rest).bit_length() - 1)
        parts.append(rest[:size])
        rest = rest[size:]
    return parts


def _array_hyper(hyper: Hyper, model: AbstractModel) -> Hyper:
    return {name: np.asarray(value, model.dtype) for name, value in hyper.items()}


def site_key(seed: Array, site: Array, version: Array) -> Array:
    """Randomness depends on the seed, the site and the version alone: not on engine or arrival order."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), site), version)


@eqx.filter_jit
def _refine_sites(
    model: AbstractModel,
    solver: Solver,
    expectation: Expectation,
    learns_hyper: bool,
    begin: Family,
    hyper: Hyper,
    seed: Array,
    version: Array,
    cavities: Family,
    factors: Family,
    shards: Shard,
    sites: Array,
) -> tuple[Family, SolverInfo, tuple[Array, Array], Hyper]:
    """The part of the algorithm that a site runs, for a stack of sites."""
    mean = begin.mean()

    def refine(
        args: tuple[Family, Family, Shard, Array],
    ) -> tuple[Family, SolverInfo, tuple[Array, Array], Hyper]:
        cavity, factor, shard, site = args
        key = site_key(seed, site, version)
        problem = LocalProblem(model, expectation, cavity, shard, hyper)
        refined, info = solver.refine(problem, begin, factor, key=key)
        change = refined / cavity / factor
        gradient = problem.hyper_gradient(begin, key) if learns_hyper else {}
        return change, info, (inner(factor, mean), inner(change, mean)), gradient

    # A loop, not vmap: batched factorisations are slow, and can deadlock, on few cores.
    return jax.lax.map(refine, (cavities, factors, shards, sites))


@eqx.filter_jit
def _evaluate_sites(
    model: AbstractModel,
    expectation: Expectation,
    posterior: Family,
    hyper: Hyper,
    seed: Array,
    shards: Shard,
    sites: Array,
) -> Array:
    view = posterior.mean() if expectation.of_mean else posterior

    def evaluate(args: tuple[Shard, Array]) -> Array:
        shard, site = args
        key = site_key(seed, site, jnp.asarray(EVALUATION, jnp.uint32))
        return LocalProblem(model, expectation, posterior, shard, hyper).expected_log_prob(view, key)

    return jax.lax.map(evaluate, (shards, sites))
