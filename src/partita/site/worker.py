"""The work of sites, wherever it is done: refining factors, sending messages, evaluating posteriors."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.expectations import Expectation
from partita.families import Family, inner
from partita.foundation.digests import content_digest
from partita.foundation.runtime import Array, Program, on_host, precision, stack_trees
from partita.free_energy import LocalProblem
from partita.models import AbstractModel, Hyper
from partita.shards import Shard, padded_together
from partita.site.rules import SiteRule
from partita.solvers import Solver, SolverInfo
from partita.wire.job import Job
from partita.wire.tasks import Task, Update

# Keys of evaluations, beside those of versions.
EVALUATION = 2**31 - 1
# Sites with more bytes of data than this are worked on one by one: a call costs little beside their
# work, and copies of a stack would cost more.
LARGE = 1_000_000
# Shapes and dtypes of a shard's arrays; sites that share them can be stacked.
Shapes = tuple[tuple[tuple[int, ...], str], ...]
# A change or a message; how it was found; what is expected of factor and change; the gradient of hyperparameters.
Refined = tuple[Family, SolverInfo, tuple[Array, Array], Hyper]


def load_shard(model: AbstractModel, site: int, shard: Any) -> Shard:
    """A site's data, checked; from the data themselves, or from a function that loads them."""
    return model.shard(site, shard() if callable(shard) else shard)


def load_shards(model: AbstractModel, shards: Sequence[Any]) -> list[Shard]:
    """The data of all sites of a run, checked and padded."""
    return padded_together([load_shard(model, site, shard) for site, shard in enumerate(shards)])


def digest_shard(shard: Shard) -> str:
    """What a site's data are, to tell them from others."""
    return content_digest({str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(shard))}, "shard")


class Worker:
    """Does the work of some sites: all of them in one process, or those that a remote process holds.

    Small sites whose shards have the same padded size are stacked, so that a round is one compiled call. Every update
    passes the sites' rules before it leaves.
    """

    def __init__(self, job: Job, shards: Mapping[int, Shard], rules: Sequence[SiteRule] = ()):
        self.job = job
        self.shards = shards
        self._rules = [rule.init(job) for rule in rules]
        self._kept: dict[int, Shard] = {}

    @cached_property
    def _groups(self) -> dict[Shapes, list[int]]:
        groups: dict[Shapes, list[int]] = {}
        for site, shard in self.shards.items():
            shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(shard))
            groups.setdefault(shapes, []).append(site)
        return groups

    @cached_property
    def _place(self) -> dict[int, tuple[Shapes, int]]:
        return {site: (shape, i) for shape, sites in self._groups.items() for i, site in enumerate(sites)}

    @cached_property
    def _stacks(self) -> dict[Shapes, Shard]:
        """The shards of small sites, stacked by shape."""
        groups = {shape: sites for shape, sites in self._groups.items() if not self._is_large(sites[0])}
        return {shape: stack_trees([self.shards[s] for s in sites]) for shape, sites in groups.items()}

    def _is_large(self, site: int) -> bool:
        return sum(int(leaf.nbytes) for leaf in jax.tree.leaves(self.shards[site])) > LARGE

    def _alone(self, site: int) -> Shard:
        """A large site's shard as a stack of one, kept where computations take it without a copy."""
        if site not in self._kept:
            self._kept[site] = jax.device_put(jax.tree.map(lambda a: a[None], self.shards[site]))
        return self._kept[site]

    def _stack_sites(self, shape: Shapes, sites: Sequence[int]) -> Shard:
        if shape not in self._stacks:
            return self._alone(sites[0])
        stack = self._stacks[shape]
        if list(sites) == self._groups[shape]:
            return stack
        index = [self._place[site][1] for site in sites]
        part: Shard = jax.tree.map(lambda a: a[index[0] : index[0] + 1] if len(index) == 1 else a[index], stack)
        return part

    def _parts(self, shape: Shapes, sites: list[int]) -> list[list[int]]:
        """What is computed in one call: the whole group, or a few sizes of it, so that few programs are compiled."""
        if shape not in self._stacks:
            return [[site] for site in sites]
        return [sites] if len(sites) == len(self._groups[shape]) else _powers_of_two(sites)

    def refine(self, tasks: Sequence[Task]) -> list[Update]:
        """Answer tasks that share one posterior, as sites do: with changes, or with messages."""
        by_site = {task.site: task for task in tasks}
        by_shape: dict[Shapes, list[int]] = {}
        for site in by_site:
            by_shape.setdefault(self._place[site][0], []).append(site)
        answered = {}
        for shape, sites in by_shape.items():
            for part in self._parts(shape, sites):
                updates = self._refine_stack(shape, [by_site[site] for site in part])
                answered.update({update.site: update for update in updates})
        return [self._let_out(task, answered[site]) for site, task in by_site.items()]

    def _let_out(self, task: Task, update: Update) -> Update:
        for rule in self._rules:
            update = rule.apply(task, update)
        return update

    def _choose(self, program: Program, shards: Shard) -> Callable[..., Any]:
        return program.choose(shards.weights.shape[1], is_light=not self.job.model.drawn)

    def _refine_stack(self, shape: Shapes, tasks: Sequence[Task]) -> list[Update]:
        job, first = self.job, tasks[0]
        began = time.perf_counter()
        given = (job.model, job.solver, job.expectation, job.learns_hyper)
        with precision(job.model.dtype):
            shared = (
                _array_hyper(first.hyper, job.model),
                np.asarray(job.seed, np.uint32),
                np.asarray(first.version, np.uint32),
            )
            mine = (
                self._stack_sites(shape, [task.site for task in tasks]),
                np.asarray([task.site for task in tasks], np.uint32),
            )
            if first.message_only:
                result = self._choose(_message_sites, mine[0])(*given, first.begin, *shared, *mine)
            else:
                result = self._choose(_refine_sites, mine[0])(
                    *given,
                    np.asarray(first.start is not None),
                    first.cavity if first.start is None else first.start,
                    first.anchor,
                    *shared,
                    Family.stack([task.cavity for task in tasks]),
                    Family.stack([task.factor for task in tasks]),
                    *mine,
                )
            answers, info, expected, gradients = on_host(result)
        seconds = (time.perf_counter() - began) / len(tasks)
        return [
            _make_update(task, seconds, jax.tree.map(lambda a, i=i: a[i, ...], (answers, info, expected, gradients)))
            for i, task in enumerate(tasks)
        ]

    def evaluate(
        self, posterior: Family, hyper: Hyper, factors: Mapping[int, Family] | None = None
    ) -> dict[int, float]:
        """E_q[log p(y_m | θ)] for every site here, or what the solver puts in its place, given these factors."""
        job = self.job
        values: dict[int, float] = {}
        with precision(job.model.dtype):
            # Sites that nobody asks for are evaluated with the others, in the same call.
            flat = posterior.flat()
            for shape, group in self._groups.items():
                for sites in self._parts(shape, group):
                    shards = self._stack_sites(shape, sites)
                    found = self._choose(_evaluate_sites, shards)(
                        job.model,
                        job.solver,
                        job.expectation,
                        posterior,
                        None if factors is None else Family.stack([factors.get(site, flat) for site in sites]),
                        _array_hyper(hyper, job.model),
                        np.asarray(job.seed, np.uint32),
                        shards,
                        np.asarray(sites, np.uint32),
                    )
                    values.update(zip(sites, np.asarray(found, np.float64).tolist(), strict=True))
        return values


def _make_update(task: Task, seconds: float, refined: Any) -> Update:
    """What a site answers a task with, from what was computed for it."""
    answer, info, (expected_log_factor, expected_log_change), gradient = refined
    return Update(
        task.site,
        task.version,
        answer,
        expected_log_prob=float(info.expected_log_prob),
        expected_log_factor=float(expected_log_factor),
        expected_log_change=float(expected_log_change),
        steps=int(info.steps),
        outcome=int(info.outcome),
        hyper_gradient={name: float(value) for name, value in gradient.items()},
        seconds=seconds,
    )


def _powers_of_two(sites: list[int]) -> list[list[int]]:
    parts, rest = [], sites
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


@Program.of
def _refine_sites(
    model: AbstractModel,
    solver: Solver,
    expectation: Expectation,
    learns_hyper: bool,
    has_start: Array,
    start: Family,
    anchor: Family | None,
    hyper: Hyper,
    seed: Array,
    version: Array,
    cavities: Family,
    factors: Family,
    shards: Shard,
    sites: Array,
) -> Refined:
    """The part of the algorithm that a site runs, for a stack of sites.

    What a site computes does not depend on who else is in the stack, to the last bit.
    """

    def refine(
        args: tuple[Family, Family, Shard, Array],
    ) -> Refined:
        cavity, factor, shard, site = args
        key = site_key(seed, site, version)
        problem = LocalProblem(model, expectation, cavity, shard, hyper, anchor)
        # Solvers take it that they begin at cavity × factor; where the model knows a better start, the factor follows.
        begin, first_factor = jax.tree.map(
            lambda a, b: jnp.where(has_start, a, b), (start, start / cavity), (cavity * factor, factor)
        )
        refined, info = solver.refine(problem, begin, first_factor, key=key)
        # A start that led nowhere is no answer.
        same = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.all(a == b), refined, begin))
        stayed = has_start & jnp.all(jnp.stack(same))
        refined = jax.tree.map(lambda a, b: jnp.where(stayed, a, b), cavity * factor, refined)
        change = refined / cavity / factor
        gradient = problem.hyper_gradient(begin, key) if learns_hyper else {}
        mean = begin.mean()
        return change, info, (inner(factor, mean), inner(change, mean)), gradient

    # A loop, not vmap: batched factorisations are slow, and can deadlock, on few cores.
    refined: Refined = jax.lax.map(refine, (cavities, factors, shards, sites))
    return refined


@Program.of
def _message_sites(
    model: AbstractModel,
    solver: Solver,
    expectation: Expectation,
    learns_hyper: bool,
    begin: Family,
    hyper: Hyper,
    seed: Array,
    version: Array,
    shards: Shard,
    sites: Array,
) -> Refined:
    """The same where a site is asked for no more than its message; what concerns factors is left to the server."""

    def message(args: tuple[Shard, Array]) -> Refined:
        shard, site = args
        key = site_key(seed, site, version)
        problem = LocalProblem(model, expectation, begin, shard, hyper)
        found, info = solver.message(problem, begin, key=key)
        gradient = problem.hyper_gradient(begin, key) if learns_hyper else {}
        nothing = jnp.zeros((), begin.dtype)
        return found, info, (nothing, nothing), gradient

    found: Refined = jax.lax.map(message, (shards, sites))
    return found


@Program.of
def _evaluate_sites(
    model: AbstractModel,
    solver: Solver,
    expectation: Expectation,
    posterior: Family,
    factors: Family | None,
    hyper: Hyper,
    seed: Array,
    shards: Shard,
    sites: Array,
) -> Array:
    def evaluate(args: tuple[Family | None, Shard, Array]) -> Array:
        factor, shard, site = args
        key = site_key(seed, site, jnp.asarray(EVALUATION, jnp.uint32))
        return solver.value(LocalProblem(model, expectation, posterior, shard, hyper), posterior, factor, key)

    values: Array = jax.lax.map(evaluate, (factors, shards, sites))
    return values
