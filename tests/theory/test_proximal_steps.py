"""Appendix A.7: four penalised maximisations of the linearised bound, and the fixed-point step that they lead to.

Each is solved by SciPy, for a logistic regression with a diagonal Gaussian of two weights. What is linearised is the
local free energy at q_old; penalties are the divergences themselves, not their expansions.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.flatten_util import ravel_pytree

import partita as pt
from partita.expectations import GaussHermite
from partita.families import MeanField, inner
from partita.free_energy import LocalProblem
from partita.models import LogisticRegression, prior_of
from partita.site.worker import load_shards
from partita.solvers import FixedPoint, TrustRegion

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def in_double_precision():
    with pt.foundation.runtime.precision(np.float64):
        yield


@dataclass
class Place:
    """A local problem at q_old: slopes of its free energy, and divergences, as functions of natural parameters."""

    problem: LocalProblem
    q: MeanField
    eta: np.ndarray
    # ∇_η F and ∇_μ F at q_old; the latter is the natural gradient.
    slope: np.ndarray
    natural: np.ndarray
    kl: Any
    kl_back: Any

    def symmetric(self, eta):
        return 0.5 * (self.kl(eta) + self.kl_back(eta))


@pytest.fixture(scope="module")
def place():
    with pt.foundation.runtime.precision(np.float64):
        generator = np.random.default_rng(1)
        X = generator.normal(size=(18, 2)) + np.array([0.5, 0.0])
        y = (X @ [1.0, -1.5] + generator.normal(size=18) > 0).astype(float)
        model = LogisticRegression(2, intercept=False, prior_scale=2.0, posterior="mean-field")
        problem = LocalProblem(
            model, GaussHermite(), prior_of(model, model.hyper), load_shards(model, [(X, y)])[0], model.hyper
        )
        q = MeanField.from_moments(np.array([0.2, -0.3]), np.array([0.8, 0.7]))
        eta, unravel = ravel_pytree(q)
        slope = jax.jit(jax.grad(lambda eta: problem.free_energy(unravel(eta), KEY)))(eta)
        _, message = problem.message(q, KEY)
        natural = ravel_pytree(problem.cavity * message / q)[0]
        kl = jax.jit(lambda eta: unravel(eta).kl(q))
        back = jax.jit(lambda eta: q.kl(unravel(eta)))
        yield Place(problem, q, np.asarray(eta), np.asarray(slope), np.asarray(natural), kl, back)


def proximal(place, divergence, rate):
    """The stationary point of ∇_η F · η - D(q ‖ q_old) / ρ next to q_old."""
    gradient, curvature = jax.jit(jax.grad(divergence)), jax.jit(jax.hessian(divergence))
    found = scipy.optimize.root(
        lambda eta: np.asarray(gradient(eta)) - rate * place.slope,
        place.eta + 0.9 * rate * place.natural,
        jac=lambda eta: np.asarray(curvature(eta)),
        tol=1e-13,
    )
    assert found.success
    assert np.linalg.eigvalsh(np.asarray(curvature(found.x))).min() > 0  # a maximum of what is maximised
    return found.x


def trusted(place, divergence, radius, start):
    """argmax ∇_η F · η subject to D(q ‖ q_old) ≤ γ."""
    gradient = jax.jit(jax.grad(divergence))
    found = scipy.optimize.minimize(
        lambda eta: -place.slope @ (eta - place.eta),
        start,
        jac=lambda eta: -place.slope,
        method="SLSQP",
        constraints={
            "type": "ineq",
            "fun": lambda eta: (radius - float(divergence(eta))) / radius,
            "jac": lambda eta: -np.asarray(gradient(eta)) / radius,
        },
        options={"ftol": 1e-16, "maxiter": 500},
    )
    assert float(divergence(found.x)) == pytest.approx(radius, rel=1e-6)
    return found.x


def closed_form(place, rate):
    """The damped fixed-point step, as the solver takes it."""
    refined, _ = FixedPoint(step_size=rate).refine(place.problem, place.q, place.q / place.problem.cavity, key=KEY)
    return np.asarray(ravel_pytree(refined)[0])


def order(errors):
    return np.log2(errors[0] / errors[1])


def test_the_step_is_the_natural_gradient_of_the_linearised_bound(place):
    """ρ C⁻¹ ∇_η F, which needs no C in the mean parameters."""
    C = jax.hessian(lambda eta: ravel_pytree(place.q)[1](eta).log_partition())(jnp.asarray(place.eta))
    np.testing.assert_allclose(np.linalg.solve(C, place.slope), place.natural, rtol=1e-9)
    np.testing.assert_allclose(closed_form(place, 0.3), place.eta + 0.3 * place.natural, rtol=1e-9)


def mirrored(place, rate, divergence):
    """argmax over μ of ∇_μ F · μ - D(q) / ρ."""
    slopes = jax.tree.unflatten(jax.tree.structure(place.q), [place.natural[:2], place.natural[2:]])

    def loss(free):
        q = place.q.from_free((free[:2], free[2:]))
        return divergence(q) - rate * inner(slopes, q.mean())

    gradient = jax.jit(jax.grad(loss))
    start = np.concatenate(place.q.to_free())
    found = scipy.optimize.minimize(jax.jit(loss), start, jac=gradient, method="BFGS", options={"gtol": 1e-12})
    assert np.abs(gradient(found.x)).max() < 1e-7
    return np.asarray(ravel_pytree(place.q.from_free((jnp.asarray(found.x[:2]), jnp.asarray(found.x[2:]))))[0])


@pytest.mark.parametrize("rate", [0.02, 0.3, 1.0])
def test_mirror_descent_is_the_fixed_point_step_whatever_its_length(place, rate):
    """With KL(q ‖ q_old), whose slope by μ is η - η_old."""
    best = mirrored(place, rate, lambda q: q.kl(place.q))
    np.testing.assert_allclose(best, closed_form(place, rate), rtol=1e-7)


def test_mirror_descent_with_the_other_divergence_is_so_only_for_short_steps(place):
    """The appendix writes KL(q_old ‖ q), whose slope by μ is C⁻¹ (μ - μ_old), and not η - η_old as it says."""
    errors = [
        np.linalg.norm(mirrored(place, rate, lambda q: place.q.kl(q)) - closed_form(place, rate))
        for rate in (0.02, 0.01)
    ]
    assert order(errors) == pytest.approx(2, abs=0.1)
    q = MeanField.from_moments(np.array([0.5, 0.1]), np.array([0.6, 0.9]))
    unravel = ravel_pytree(place.q.mean())[1]
    mu, change = ravel_pytree(q.mean())[0], ravel_pytree(q / place.q)[0]
    forth = jax.grad(lambda mu: place.q.from_mean(unravel(mu)).kl(place.q))(mu)
    back = jax.grad(lambda mu: place.q.kl(place.q.from_mean(unravel(mu))))(mu)
    np.testing.assert_allclose(forth, change, rtol=1e-9)
    assert np.abs(back / change - 1).max() > 0.1


@pytest.mark.parametrize("name", ["kl", "symmetric"])
def test_proximal_steps_are_fixed_point_steps_up_to_the_square_of_their_length(place, name):
    divergence = getattr(place, name)
    errors = [np.linalg.norm(proximal(place, divergence, rate) - closed_form(place, rate)) for rate in (0.02, 0.01)]
    assert order(errors) == pytest.approx(2, abs=0.1)
    # They are not the same.
    assert errors[0] > 0.01 * np.linalg.norm(0.02 * place.natural)


@pytest.mark.parametrize("name", ["kl", "symmetric"])
def test_trust_region_steps_are_the_solvers_up_to_the_square_of_their_length(place, name):
    divergence, errors, lengths = getattr(place, name), [], []
    for radius in (4e-4, 1e-4):
        solver = TrustRegion(radius, divergence=name)
        refined, _ = solver.refine(place.problem, place.q, place.q / place.problem.cavity, key=KEY)
        ours = np.asarray(ravel_pytree(refined)[0])
        # On the ray of the natural gradient, and at the edge.
        step = ours - place.eta
        rates = step / place.natural
        np.testing.assert_allclose(rates, rates[0], rtol=1e-8)
        assert float(divergence(ours)) == pytest.approx(radius, rel=1e-8)
        # The rate is the multiplier's inverse: γ ≈ ½ ρ² ∇_μ F · ∇_η F for a short step.
        assert rates[0] == pytest.approx(np.sqrt(2 * radius / (place.natural @ place.slope)), rel=0.05)
        errors.append(np.linalg.norm(trusted(place, divergence, radius, ours) - ours))
        lengths.append(np.linalg.norm(step))
    # A quarter of the radius is half the length.
    assert np.log2(lengths[0] / lengths[1]) == pytest.approx(1, abs=0.02)
    assert order(errors) == pytest.approx(2, abs=0.1)


def test_a_trust_region_that_is_wide_takes_the_whole_step(place):
    refined, _ = TrustRegion(100.0).refine(place.problem, place.q, place.q / place.problem.cavity, key=KEY)
    np.testing.assert_allclose(ravel_pytree(refined)[0], closed_form(place, 1.0), rtol=1e-12)


def test_a_kl_proximal_step_has_only_a_local_maximum():
    """The appendix's argmax is no global one where a precision is to grow: KL(q ‖ q_old) grows with its logarithm, and
    the linearised bound with itself. The symmetrised divergence grows as fast as the bound, and has one.
    """
    old = MeanField.from_moments(np.zeros(1), np.ones(1))
    slope, rate = 0.05, 0.1

    def penalised(precision, symmetric):
        q = MeanField(np.zeros(1), np.array([precision]))
        forth = float(q.kl(old))
        penalty = 0.5 * (forth + float(old.kl(q))) if symmetric else forth
        return slope * (precision - 1) - penalty / rate

    near = np.linspace(0.9, 1.2, 301)
    best = max(near, key=lambda p: penalised(p, False))
    # Next to q_old there is a maximum where the small-step formula says: 1 + ρ C⁻¹ slope, with C = ½.
    assert best == pytest.approx(1 + rate * slope / 0.5, rel=0.01)
    assert penalised(best, False) > penalised(0.9, False)
    assert penalised(best, False) > penalised(1.2, False)
    # Far away everything is better than that, without end.
    far = [penalised(p, False) for p in (1e4, 1e5, 1e6)]
    assert penalised(best, False) < far[0] < far[1] < far[2]
    bounded = [penalised(p, True) for p in (1e4, 1e5, 1e6)]
    assert bounded[0] > bounded[1] > bounded[2]


def test_a_kl_proximal_step_that_wants_a_quarter_more_precision_does_not_exist():
    """(Λ - Λ_old) / 2Λ² = ρ ∇F has a solution only where 2 Λ_old² ρ ∇F, the natural gradient, is below Λ_old / 4."""
    old = MeanField(np.zeros(1), np.full(1, 3.0))
    precisions = np.linspace(2.0, 60.0, 2001)
    divergences = np.array([float(MeanField(np.zeros(1), np.full(1, p)).kl(old)) for p in precisions])
    for share, exists in ((0.2, True), (0.3, False)):
        slope = share * 3.0 / (2 * 3.0**2)
        values = slope * precisions - divergences
        inner = (values[1:-1] > values[:-2]) & (values[1:-1] > values[2:])
        assert inner.any() == exists
        if exists:
            Λ = precisions[1:-1][inner][0]  # the smaller root of slope = (Λ - 3) / 2Λ²
            root = (1 - np.sqrt(1 - 8 * slope * 3.0)) / (4 * slope)
            assert root == pytest.approx(Λ, abs=0.03)
