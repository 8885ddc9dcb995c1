"""Power expectation propagation: a factor is refined by matching moments of a tilted distribution."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from partita.errors import InputError
from partita.expectations.base import TINY
from partita.expectations.choice import is_enumerable
from partita.families import AbstractGaussian, Family, inner
from partita.foundation.checks import check_count, check_share
from partita.foundation.points import hermite
from partita.foundation.runtime import Array
from partita.foundation.shapes import Moments, Scalar, Vector
from partita.free_energy import LocalProblem
from partita.solvers.base import Outcome, Solver, SolverInfo, all_finite
from partita.solvers.chains import Chains

# How often the nodes of a quadrature are put where its integrand is.
PLACINGS = 3


class _State(NamedTuple):
    posterior: Family
    factor: Family
    first_value: Array
    outcome: Array


class MomentMatching(Solver):
    """t_m ← t_m (proj[q (p(y_m | θ) / t_m)^α] / q)^(1/α), `steps` times: power EP (Minka, 2004).

    `power` α = 1 is expectation propagation; as α falls to zero a step becomes that of `FixedPoint` (the paper's
    Property on power EP). proj keeps the moments. They are found by quadrature over the predictor xᵀθ where a site has
    one row of a model with one, or over θ itself where that is one number, and exact where θ can take few values: then
    this is belief propagation on a graph whose factors are sites. Elsewhere they come from `draws` of the posterior,
    weighted by importance, which is good only while the posterior covers what one site's data say; or from `chains`,
    Markov chains that every site runs in its own tilted distribution, with any number of rows. What stands in the
    history is the variational free energy then.

    With `each_row`, for a model with one linear predictor and a full Gaussian, every row of a shard has a factor of its
    own while a refinement lasts, all are moved at once by `share` of the way, and the site's factor is their product:
    `steps` sweeps of parallel EP, each as dear as one factorisation, that begin anew in every refinement; the free
    energy is then the variational one.

    With a schedule that holds (`Synchronous(hold=5)`) it is an earlier posterior that is tilted, not the latest: the
    double loop of Heskes and Zoeter (2002) and Hasenclever et al. (2017). While it is held, the factors descend a
    convex function, if `damping` is at most about two over the number of sites. Fixed points are those of power EP,
    also where that oscillates.

    The free energy in a run's history, and the log evidence of its result, are power EP's estimate, which is no bound,
    and which damping should not rely on: give a number (`damping=0.5`), or 1 where sites take turns. The estimate means
    something where the factors stand: at a fixed point. `evidence` gives the variational bound of any posterior.
    """

    power: float = 1.0
    steps: int = 1
    points: int = 64
    draws: int = 1000
    each_row: bool = False
    share: float = 0.8
    chains: Chains | None = None

    anchored: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_share("MomentMatching: ", power=self.power, share=self.share)
        check_count("MomentMatching: ", steps=self.steps, points=self.points, draws=self.draws)
        if self.chains is not None and not isinstance(self.chains, Chains):
            raise InputError(f"MomentMatching: chains: expected pt.solvers.Chains(…), got {self.chains!r}")
        if self.each_row and self.steps < 2:
            raise InputError("MomentMatching: steps: each_row begins from nothing: give some 20 sweeps")

    @property
    def stochastic(self) -> bool:
        return True

    @property
    def values_factor(self) -> bool:
        return not self.each_row and self.chains is None

    def value(self, problem: LocalProblem, posterior: Family, factor: Family | None, key: Array) -> Array:
        if factor is None or not self.values_factor:
            return super().value(problem, posterior, None, key)
        return self._match(problem, posterior, factor, key)[0]

    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        if self.each_row:
            return self._sweep_rows(problem, posterior, key)

        def step(number: Array, state: _State) -> _State:
            base = state.posterior if problem.anchor is None else problem.anchor
            value, matched = self._match(problem, base, state.factor, jax.random.fold_in(key, number))
            change = (matched / state.posterior) ** (1 / self.power)
            candidate = problem.cavity * state.factor * change
            finite = all_finite((value, change))
            good = finite & candidate.is_proper() & (base / state.factor**self.power).is_proper()
            taken = jax.tree.map(lambda a: jnp.where(good, a, 0), change)
            outcome = jnp.where(good, Outcome.STEPS_DONE, jnp.where(finite, Outcome.HELD_BACK, Outcome.NOT_FINITE))
            return _State(
                state.posterior * taken,
                state.factor * taken,
                jnp.where(number == 0, value, state.first_value),
                outcome,
            )

        start = _State(posterior, factor, jnp.zeros((), posterior.dtype), jnp.asarray(Outcome.STEPS_DONE))
        end = jax.lax.fori_loop(0, self.steps, step, start)
        return end.posterior, SolverInfo(end.first_value, jnp.asarray(self.steps), end.outcome)

    def _match(self, problem: LocalProblem, q: Family, factor: Family, key: Array) -> tuple[Array, Family]:
        """log E_q[(p / t)^α] / α + E_q[log t], which stands for E_q[log p]; and the density with the tilted moments."""
        if is_enumerable(q):
            return self._match_values(problem, q, factor)
        if not q.is_gaussian:
            return self._match_draws(problem, q, factor, key)
        if self.chains is not None:
            return self._match_chains(self.chains, problem, q, factor, key)
        gaussian = q.as_gaussian("MomentMatching")
        if problem.has_one_predictor:
            return self._match_along(gaussian, factor, problem.shard.data.X[0], problem.row_log_prob(0))
        if gaussian.is_vector and gaussian.size == 1:
            log_prob = jax.vmap(lambda theta: problem.log_prob(theta[None]))
            return self._match_along(gaussian, factor, jnp.ones(1, q.dtype), log_prob)
        return self._match_draws(problem, q, factor, key)

    def _match_along(
        self, q: AbstractGaussian, factor: Family, x: Vector, log_prob: Callable[[Array], Array]
    ) -> tuple[Scalar, Family]:
        """Over f = xᵀθ, at nodes where the posterior is, then twice where the tilted distribution was found to be."""
        cavity = q / factor.as_gaussian("MomentMatching") ** self.power
        m, v = _find_moments(cavity, x)
        log_z, centre, spread = self._tilt((m, v), _find_moments(q, x), log_prob)
        ratio = log_z + cavity.log_partition() - q.log_partition()
        value = ratio / self.power + inner(factor, q.mean())
        return value, cavity.matched_along(x, (m, v), (centre, spread))

    def _tilt(
        self, cavity: Moments, near: Moments, log_prob: Callable[[Array], Array]
    ) -> tuple[Scalar, Scalar, Scalar]:
        """log Z, mean and variance of N(f; cavity) p(f)^α, with nodes placed near something else first."""
        (m, v), (centre, spread) = cavity, near
        nodes, weights = (jnp.asarray(a, jnp.result_type(m)) for a in hermite(self.points))
        log_z = jnp.zeros_like(m)
        for _ in range(PLACINGS):
            f = centre + jnp.sqrt(spread) * nodes
            logs = jnp.log(weights) + self.power * log_prob(f)
            logs += 0.5 * ((f - centre) ** 2 / spread + jnp.log(spread) - (f - m) ** 2 / v - jnp.log(v))
            log_z = jax.nn.logsumexp(logs)
            share = jnp.exp(logs - log_z)
            centre = share @ f
            spread = jnp.maximum(share @ (f - centre) ** 2, TINY)
        return log_z, centre, spread

    def _sweep_rows(self, problem: LocalProblem, posterior: Family, key: Array) -> tuple[Family, SolverInfo]:
        """Parallel EP over the rows of a shard: terms exp(g f - h f² / 2) over their predictors."""
        model, X, weights = problem.model, problem.shard.data.X, problem.shard.weights
        if not (model.projected and model.outputs == 1 and posterior.is_full):
            raise InputError("MomentMatching: each_row needs one linear predictor and a full Gaussian")

        cavity = problem.cavity.as_gaussian("MomentMatching")

        def multiply_terms(g: Array, h: Array) -> AbstractGaussian:
            return cavity * cavity.quadratic_along(X, g, h)

        def match(row: Array, m: Array, v: Array, g: Array, h: Array) -> tuple[Array, Array]:
            precision = 1 / v - self.power * h
            cavity = ((m / v - self.power * g) / precision, 1 / precision)
            _, centre, spread = self._tilt(cavity, (m, v), problem.row_log_prob(row))
            change = (centre / spread - m / v) / self.power, (1 / spread - 1 / v) / self.power
            good = all_finite(change) & (precision > 0) & (weights[row] > 0)
            return jax.tree.map(lambda a: jnp.where(good, self.share * a, 0), change)

        def sweep(_: Array, terms: tuple[Array, Array]) -> tuple[Array, Array]:
            g, h = terms
            m, v = multiply_terms(g, h).moments_along(X)
            by_g, by_h = jax.vmap(match)(jnp.arange(len(m)), m, jnp.maximum(v, TINY), g, h)
            return g + by_g, h + by_h

        nothing = jnp.zeros(len(weights), posterior.dtype)
        g, h = jax.lax.fori_loop(0, self.steps, sweep, (nothing, nothing))
        refined = multiply_terms(g, h)
        finite = all_finite(refined)
        good = refined.is_proper() & finite
        kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), refined, posterior)
        value = super().value(problem, posterior, None, key)
        outcome = jnp.where(good, Outcome.STEPS_DONE, jnp.where(finite, Outcome.HELD_BACK, Outcome.NOT_FINITE))
        return kept, SolverInfo(value, jnp.asarray(self.steps), outcome)

    def _match_draws(self, problem: LocalProblem, q: Family, factor: Family, key: Array) -> tuple[Array, Family]:
        params = q.sample(key, (self.draws,))
        return self._match_weighted(problem, q, factor, params, jnp.full(self.draws, -jnp.log(self.draws), q.dtype))

    def _match_chains(
        self, chains: Chains, problem: LocalProblem, q: Family, factor: Family, key: Array
    ) -> tuple[Array, Family]:
        def log_tilted(theta: Any) -> Array:
            statistics = q.statistics(theta)
            return inner(q, statistics) + self.power * (problem.log_prob(theta) - inner(factor, statistics))

        draw_key, value_key = jax.random.split(key)
        statistics = jax.vmap(q.statistics)(chains.draw(log_tilted, q, draw_key))
        mean = jax.tree.map(lambda values: jnp.mean(values, axis=0), statistics)
        return super().value(problem, q, None, value_key), type(q).from_mean(mean)

    def _match_values(self, problem: LocalProblem, q: Family, factor: Family) -> tuple[Array, Family]:
        """Exact: every value that the parameters can take, with its probability."""
        values = q.support()
        log_shares = jax.vmap(lambda one: inner(q, q.statistics(one)))(values) - q.log_partition()
        return self._match_weighted(problem, q, factor, values, log_shares)

    def _match_weighted(
        self, problem: LocalProblem, q: Family, factor: Family, params: Any, log_shares: Vector
    ) -> tuple[Array, Family]:
        statistics = jax.vmap(q.statistics)(params)
        log_factor = jax.vmap(lambda one: inner(factor, one))(statistics)
        logs = log_shares + self.power * (jax.lax.map(problem.log_prob, params) - log_factor)
        mean = q.mean()
        # The difference between weighted and plain averages: as α falls, so does the noise.
        tilt = jax.nn.softmax(logs) - jnp.exp(log_shares)
        moved = jax.tree.map(lambda mu, values: mu + jnp.tensordot(tilt, values, axes=1), mean, statistics)
        value = jax.nn.logsumexp(logs) / self.power + inner(factor, mean)
        return value, type(q).from_mean(moved)


def _find_moments(q: AbstractGaussian, x: Vector) -> Moments:
    """Mean and variance of xᵀθ."""
    m, v = q.moments_along(x[None])
    return m[0], jnp.maximum(v[0], TINY)
