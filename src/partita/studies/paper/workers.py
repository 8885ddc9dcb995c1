"""Workers that keep their optimisers' states, and the paper's ways for them to work together (Sections 6 and 7.1).

What `fit` asks of a site depends on its task alone. A worker of the paper goes on where it was: Adam's moments, its
number of steps and the order of its rows stay with it from round to round. So these are loops of their own.
"""

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from partita.expectations import LocalReparameterisation
from partita.families import MeanField
from partita.foundation.runtime import Array, on_host, precision
from partita.free_energy import LocalProblem
from partita.models import Network, prior_of
from partita.shards import Shard
from partita.solvers import Gradient

# A precision has to stay above this.
FLOOR = 1e-6
# How much workers differ in speed where they do not wait for each other: the standard deviation of its logarithm.
UNEQUAL = 0.1


@dataclass(frozen=True)
class Stage:
    """Where a run has come to.

    Args:
        passes: over all data; of workers that take turns, of each one's own.
        seconds: of processor time by the clock of workers side by side: of the slowest, wherever others wait for it.
        messages: up and down.
        held: how many numbers were left where they were so far, because a precision would not have stayed positive.
    """

    passes: float
    seconds: float
    messages: int
    posterior: MeanField
    held: int = 0


@eqx.filter_jit
def _begin(solver: Gradient, problem: LocalProblem, start: Any) -> Any:
    return solver.begin(problem, start, start / problem.cavity)


@eqx.filter_jit
def _advance(solver: Gradient, problem: LocalProblem, carried: Any, posterior: Any, end: Array, key: Array) -> Any:
    begun = carried._replace(begun=posterior, free=posterior.to_free())
    carried = solver.advance(problem, begun, end, key=key)
    return carried, solver.reached(problem, carried)


class Worker:
    """A worker with its rows and its optimiser, whose state it keeps from task to task."""

    def __init__(self, model: Network, shard: Shard, solver: Gradient, key: Array):
        # Numbers that are arrays are not compiled into the program: one is enough for all rates.
        rate = jnp.asarray(solver.learning_rate, model.dtype)
        self.solver = eqx.tree_at(lambda one: one.learning_rate, solver, rate)
        self.key, self.steps, self.rows = key, 0, int(shard.rows)
        self.dtype = model.dtype
        expectation = LocalReparameterisation(samples=1, fixed=False)
        with precision(self.dtype):
            problem = LocalProblem(model, expectation, prior_of(model, model.hyper), jax.device_put(shard), model.hyper)
            self.problem = problem
            self.carried = _begin(self.solver, problem, model.start)
            self.per_epoch = int(solver.limit(problem)) // solver.epochs
            # What is compiled now does not count as work.
            self._advance(_start(model), 0)

    def work(self, posterior: MeanField, cavity: MeanField, epochs: int = 1) -> tuple[MeanField, float]:
        """Maximise F(q) = E_q[log p(y_m | θ)] - KL(q ‖ cavity) for some epochs from where the posterior is.

        Returns the refined posterior and how many seconds of processor time that took.
        """
        with precision(self.dtype):
            self.problem = eqx.tree_at(lambda one: one.cavity, self.problem, jax.tree.map(jnp.asarray, cavity))
            self.steps += epochs * self.per_epoch
            began = time.process_time()
            self.carried, refined = jax.block_until_ready(self._advance(posterior, self.steps))
            return on_host(refined), time.process_time() - began

    def _advance(self, posterior: MeanField, end: int) -> Any:
        posterior = jax.tree.map(jnp.asarray, posterior)
        return _advance(self.solver, self.problem, self.carried, posterior, jnp.asarray(end), self.key)


class Server:
    """prior × ∏ factors, which are equal shares of what the start has beyond the prior, to begin with."""

    def __init__(self, prior: MeanField, start: MeanField, sites: int):
        self.prior, self.posterior = on_host(prior), on_host(start)
        self.factors = [(self.posterior / self.prior) ** (1 / sites)] * sites
        self.held = 0

    def cavity(self, site: int) -> MeanField:
        return self.posterior / self.factors[site]

    def take(self, changes: dict[int, MeanField], damping: float) -> None:
        """t_m ← t_m × change^(1 - damping) for the factors of these sites.

        A number whose precision would not stay positive, in the posterior or in anybody's cavity, stays where it is in
        all of them. The paper does not say what it does with such numbers.
        """
        changes = {site: change ** (1 - damping) for site, change in changes.items()}
        posterior = reduce(mul, changes.values(), self.posterior)
        factors = [t * changes[site] if site in changes else t for site, t in enumerate(self.factors)]
        moves = jax.tree.map(_stays_positive, posterior.precision, *(t.precision for t in factors))
        self.held += sum(int(np.sum(~move)) for move in jax.tree.leaves(moves))
        self.posterior = _choose(moves, posterior, self.posterior)
        self.factors = [_choose(moves, new, old) for new, old in zip(factors, self.factors, strict=True)]


def _stays_positive(precision: np.ndarray, *factors: np.ndarray) -> np.ndarray:
    largest = reduce(np.maximum, factors, np.zeros_like(precision))
    stays: np.ndarray = precision - largest > FLOOR
    return stays


def _choose(moves: Any, new: MeanField, old: MeanField) -> MeanField:
    def one(a: Any, b: Any) -> Any:
        return jax.tree.map(np.where, moves, a, b)

    return MeanField(one(new.precision_times_location, old.precision_times_location), one(new.precision, old.precision))


@dataclass(frozen=True)
class Crew:
    """Workers with the model that they fit."""

    model: Network
    workers: Sequence[Worker]

    @classmethod
    def gather(cls, model: Network, shards: Sequence[Shard], solver: Gradient, seed: int) -> Self:
        keys = jax.random.split(jax.random.key(seed), len(shards))
        return cls(model, [Worker(model, shard, solver, key) for shard, key in zip(shards, keys, strict=True)])

    @property
    def prior(self) -> MeanField:
        prior: MeanField = on_host(prior_of(self.model, self.model.hyper))
        return prior

    @property
    def start(self) -> MeanField:
        return _start(self.model)

    def alone(self, epochs: int) -> Iterator[Stage]:
        """Global VI: one worker with all rows, looked at after every epoch. Every step is a message down and up."""
        (worker,) = self.workers
        posterior, seconds = self.start, 0.0
        for epoch in range(1, epochs + 1):
            posterior, took = worker.work(posterior, self.prior)
            seconds += took
            yield Stage(epoch, seconds, 2 * worker.steps, posterior)

    def committee(self, epochs: int, priors: Sequence[MeanField]) -> Iterator[Stage]:
        """p(θ) ∏ q_m / p_m, polled after every epoch, where each worker has gone on alone with its own prior p_m.

        A worker needs to be sent a prior and to send a posterior, whenever it is polled at last.
        """
        members, seconds = [self.start] * len(self.workers), 0.0
        for epoch in range(1, epochs + 1):
            done = [worker.work(q, p) for worker, q, p in zip(self.workers, members, priors, strict=True)]
            members = [refined for refined, _ in done]
            seconds += max(took for _, took in done)
            merged = reduce(mul, (q / p for q, p in zip(members, priors, strict=True)), self.prior)
            if merged.is_proper():
                yield Stage(epoch, seconds, 2 * len(members), merged)

    def one_pass(self, epochs: int) -> Iterator[Stage]:
        """Workers in turn, each with the posterior of the one before as its prior: continual learning."""
        posterior, cavity, seconds = self.start, self.prior, 0.0
        for number, worker in enumerate(self.workers, 1):
            posterior, took = worker.work(posterior, cavity, epochs)
            cavity, seconds = posterior, seconds + took
            yield Stage(epochs * number / len(self.workers), seconds, 2 * number, posterior)

    def synchronous(self, rounds: int, damping: float) -> Iterator[Stage]:
        """An epoch of every worker at a time, then a damped update of all factors at once."""
        server, seconds = Server(self.prior, self.start, len(self.workers)), 0.0
        for number in range(1, rounds + 1):
            changes, slowest = {}, 0.0
            for site, worker in enumerate(self.workers):
                refined, took = worker.work(server.posterior, server.cavity(site))
                changes[site], slowest = refined / server.posterior, max(slowest, took)
            server.take(changes, damping)
            seconds += slowest
            yield Stage(number, seconds, 2 * number * len(self.workers), server.posterior, server.held)

    def asynchronous(self, rounds: int, damping: float, seed: int) -> Iterator[Stage]:
        """An update as soon as any worker has finished its epoch, though others have begun before it.

        Workers' speeds differ a little. Who finishes when is counted in steps, so that it is the same in every run;
        seconds are these steps at the speed that was measured.
        """
        server, sites = Server(self.prior, self.start, len(self.workers)), len(self.workers)
        paces = np.exp(UNEQUAL * np.random.default_rng(seed).standard_normal(sites))
        epochs = [pace * worker.per_epoch for pace, worker in zip(paces, self.workers, strict=True)]
        tasks = [(epochs[site], site) for site in range(sites)]
        given = [(server.posterior, server.cavity(site)) for site in range(sites)]
        heapq.heapify(tasks)
        spent = 0.0
        for update in range(1, rounds * sites + 1):
            now, site = heapq.heappop(tasks)
            refined, took = self.workers[site].work(*given[site])
            spent += took
            server.take({site: refined / given[site][0]}, damping)
            given[site] = (server.posterior, server.cavity(site))
            heapq.heappush(tasks, (now + epochs[site], site))
            if update % sites == 0:
                per_step = spent / sum(worker.steps for worker in self.workers)
                yield Stage(update / sites, now * per_step, 2 * update, server.posterior, server.held)


def _start(model: Network) -> MeanField:
    start: MeanField = on_host(model.start)
    return start


def measure_step(model: Network, shard: Shard, solver: Gradient, steps: int = 60) -> float:
    """Seconds of processor time that a step of this solver takes."""
    worker = Worker(model, shard, solver, jax.random.key(0))
    posterior = _start(model)
    best = np.inf
    for _ in range(3):
        before = worker.steps
        epochs = max(1, steps // worker.per_epoch)
        posterior, took = worker.work(posterior, on_host(prior_of(model, model.hyper)), epochs)
        best = min(best, took / (worker.steps - before))
    return float(best)
