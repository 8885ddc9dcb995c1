"""Natural-gradient steps as long as a divergence allows, rather than at a rate."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from partita.families import Family
from partita.foundation.checks import check_count, check_one_of, check_positive
from partita.foundation.runtime import Array
from partita.free_energy import LocalProblem
from partita.solvers.base import Outcome, Solver, SolverInfo, all_finite

# Halvings of an interval of rates: as many as a double has digits.
BISECTIONS = 50
DIVERGENCES = ("kl", "symmetric")


class _State(NamedTuple):
    number: Array
    posterior: Family
    first_value: Array
    good: Array


class TrustRegion(Solver):
    """argmax of the linearised local free energy subject to KL(q ‖ q_old) ≤ γ (Appendix A.7 of the paper).

    For small γ that is a step along the natural gradient, η + ρ (η_cavity + d/dμ E_q[log p(y_m | θ)] - η), where ρ
    belongs to the constraint's Lagrange multiplier, 1/ρ: here the largest ρ ≤ 1 that keeps the constraint, found by
    bisection on the divergence itself. ρ = 1 is the fixed-point step. The KL-proximal method and mirror descent, which
    fix ρ rather than γ, are `FixedPoint(step_size=ρ)`.

    Args:
        radius: γ, in nats.
        steps: how many steps a refinement has.
        divergence: "kl", or "symmetric" for the mean of both directions.
    """

    radius: float = 0.1
    steps: int = 1
    divergence: Literal["kl", "symmetric"] = "kl"

    def __check_init__(self) -> None:
        check_positive("TrustRegion: ", radius=self.radius)
        check_count("TrustRegion: ", steps=self.steps)
        check_one_of("TrustRegion: ", DIVERGENCES, divergence=self.divergence)

    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        start = _State(jnp.asarray(0), posterior, jnp.zeros((), posterior.dtype), jnp.asarray(True))
        end = jax.lax.while_loop(
            lambda state: (state.number < self.steps) & state.good,
            lambda state: self._step(problem, state, key),
            start,
        )
        outcome = jnp.where(end.good, Outcome.STEPS_DONE, Outcome.NOT_FINITE)
        return end.posterior, SolverInfo(end.first_value, end.number, outcome)

    def _step(self, problem: LocalProblem, state: _State, key: Array) -> _State:
        q = state.posterior
        value, message = problem.message(q, jax.random.fold_in(key, state.number))
        direction = problem.cavity * message / q
        good = all_finite((value, message))
        rate = self.rate(q, direction)
        moved = jax.tree.map(lambda a, b: jnp.where(good, a, b), q * direction**rate, q)
        return _State(state.number + 1, moved, jnp.where(state.number == 0, value, state.first_value), good)

    def rate(self, q: Family, direction: Family) -> Array:
        """The largest ρ ≤ 1 for which q · direction^ρ is proper and no further from q than the radius."""

        def is_inside(rate: Array) -> Array:
            # A divergence from what is not proper is not a number, which is not inside either.
            moved = q * direction**rate
            return moved.is_proper() & (self._distance(moved, q) <= self.radius)

        def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            inside = is_inside(middle)
            return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

        one = jnp.ones((), q.dtype)
        low, _ = jax.lax.fori_loop(0, BISECTIONS, halve, (0 * one, one))
        return jnp.where(is_inside(one), one, low)

    def _distance(self, new: Family, old: Family) -> Array:
        forth = new.kl(old)
        return forth if self.divergence == "kl" else 0.5 * (forth + old.kl(new))
