"""Bayesian gradient descent: a step in closed form from what is believed to what a batch says."""

import jax
import jax.numpy as jnp

from partita.families import Family, MeanField
from partita.foundation.checks import check_count
from partita.foundation.runtime import Array
from partita.free_energy import LocalProblem
from partita.solvers.base import Outcome, Solver, SolverInfo, all_finite


class BayesianGradient(Solver):
    """m ← m_c - σ_c² E[∇L] and σ ← σ_c √(1 + (σ_c g / 2)²) - σ_c² g / 2, g = E[∇L ε] = σ E[∇²L], L = - log p(y_m | θ).

    Of Zeno et al. (2018), for diagonal Gaussians: m_c and σ_c are the cavity's, which in a stream is the posterior of
    yesterday, and expectations are under the posterior of now. This solves the conditions of an optimum of the local
    free energy as if expectations did not move with the solution; `steps` more than one repeat it where they did.
    Scales stay positive whatever the curvature is; means overshoot where the cavity is much wider than what the data
    allow, so priors should be narrow, and batches small.
    """

    steps: int = 1

    def __check_init__(self) -> None:
        check_count("BayesianGradient: ", steps=self.steps)

    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        begin = posterior.as_mean_field("BayesianGradient")
        cavity = problem.cavity.as_mean_field("BayesianGradient")

        def step(number: Array, carry: tuple[MeanField, Array, Array]) -> tuple[MeanField, Array, Array]:
            q, first_value, good = carry
            value, found = problem.message(q, jax.random.fold_in(key, number))
            message = found.as_mean_field("BayesianGradient")
            location = jax.tree.map(
                lambda m_c, p_c, shift, curvature, m: m_c + (shift - curvature * m) / p_c,
                *(cavity.location, cavity.precision, message.precision_times_location, message.precision, q.location),
            )
            moved = MeanField.from_moments(
                location, jax.tree.map(_scale, cavity.precision, message.precision, q.precision)
            )
            fine = all_finite((value, moved))
            kept = jax.tree.map(lambda a, b: jnp.where(fine, a, b), moved, q)
            return kept, jnp.where(number == 0, value, first_value), good & fine

        start = (begin, jnp.zeros((), posterior.dtype), jnp.asarray(True))
        refined, first_value, good = jax.lax.fori_loop(0, self.steps, step, start)
        outcome = jnp.where(good, Outcome.STEPS_DONE, Outcome.NOT_FINITE)
        return refined, SolverInfo(first_value, jnp.asarray(self.steps), outcome)


def _scale(cavity_precision: Array, curvature: Array, precision: Array) -> Array:
    half = 0.5 * curvature / jnp.sqrt(precision) / cavity_precision
    root = jnp.sqrt(1 / cavity_precision + half**2)
    # The same number, without a difference of two large ones.
    return jnp.where(half > 0, 1 / cavity_precision / (root + half), root - half)
