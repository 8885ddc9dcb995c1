"""Every solver reaches the optimum of one site's free energy, which SciPy finds independently."""

from functools import cache

import equinox as eqx
import jax
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, special

import partita as pt
from partita.errors import InputError
from partita.expectations import GaussHermite
from partita.fitting import evidence
from partita.foundation.runtime import on_host, precision
from partita.free_energy import LocalProblem
from partita.models import prior_of
from partita.server.schedules import OnePass, Sequential
from partita.solvers import (
    REGISTRY,
    BayesianGradient,
    ConjugateGradient,
    FixedPoint,
    Gradient,
    Message,
    MomentMatching,
    NaturalGradient,
    Outcome,
    SolverInfo,
    StochasticNaturalGradient,
    TrustRegion,
    natural_means,
)

GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(40, 2))
Y = (GENERATOR.uniform(size=40) < special.expit(X @ [1.5, -1.0])).astype(float)
POSTERIORS = ["full", "mean-field"]


@cache
def optimum(posterior: str) -> pt.families.Family:
    """argmax of E_q[log p] - KL(q ‖ N(0, I)) over the mean and Cholesky factor, by BFGS and NumPy alone."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    def unpacked(free):
        L = np.diag(np.exp(free[2:4]))
        L[1, 0] = free[4] if posterior == "full" else 0
        return free[:2], L

    def loss(free):
        m, L = unpacked(free)
        f = (X @ m)[:, None] + np.linalg.norm(X @ L, axis=1)[:, None] * nodes
        expected = (Y[:, None] * f - np.logaddexp(0, f)) @ weights / weights.sum()
        return 0.5 * (np.sum(L**2) + m @ m - 2) - np.sum(free[2:4]) - expected.sum()

    m, L = unpacked(optimize.minimize(loss, np.zeros(5), method="BFGS", options={"gtol": 1e-7}).x)
    if posterior == "full":
        return pt.families.Gaussian.from_moments(m, L @ L.T)
    return pt.families.MeanField.from_moments(m, np.diag(L))


def refined(solver, posterior: str = "full") -> tuple[pt.families.Family, SolverInfo]:
    model = pt.models.LogisticRegression(features=2, intercept=False, posterior=posterior)
    prior = prior_of(model, model.hyper)
    with precision(np.float64):
        problem = LocalProblem(model, GaussHermite(), prior, model.shard(0, (X, Y)), model.hyper)
        return on_host(eqx.filter_jit(solver.refine)(problem, prior, prior**0, key=jax.random.key(0)))


# Solver, and the divergence from the optimum that fits it: fixed rates and small batches leave noise.
EXACT = {
    "fixed point": (FixedPoint(steps=60, step_size=0.5), 1e-9),
    "undamped fixed point": (FixedPoint(steps=60), 1e-9),
    "trust region": (TrustRegion(0.05, steps=60), 1e-9),
    "symmetric trust region": (TrustRegion(0.05, steps=60, divergence="symmetric"), 1e-9),
    "conjugate gradient": (ConjugateGradient(steps=30), 1e-9),
    "lbfgs": (Gradient("lbfgs", steps=100), 1e-9),
    "adam": (Gradient("adam", learning_rate=0.05, epochs=1000), 1e-7),
    "rmsprop": (Gradient("rmsprop", learning_rate=0.002, epochs=2000), 1e-3),
    "sgd": (Gradient("sgd", learning_rate=0.02, epochs=1000), 1e-7),
    "natural gradient of means": (Gradient(natural_means(optax.sgd(0.2)), steps=1000), 1e-7),
    "an Optax object": (Gradient(optax.chain(optax.clip(5.0), optax.nadam(0.05)), steps=1000), 1e-7),
}
MEAN_FIELD = {
    "natural gradient": (
        NaturalGradient(0.5, precision_rate=0.2, adaptive=False, steps=300, batch_size=None),
        1e-9,
    ),
    "stochastic natural gradient": (StochasticNaturalGradient(0.5, steps=60, batch_size=None), 1e-9),
    "natural gradient of the means": (Gradient(natural_means(optax.sgd(0.2)), steps=300), 1e-9),
    "adaptive natural gradient": (NaturalGradient(0.02, precision_rate=0.2, steps=1500, batch_size=None), 1e-7),
}
NOISY = {
    "fixed point": (FixedPoint(steps=2000, step_size=0.01, batch_size=8), 0.02),
    "adam": (Gradient("adam", learning_rate=0.005, epochs=400, batch_size=8), 0.02),
    "sgd, batch larger than the shard": (
        Gradient("sgd", learning_rate=0.01, epochs=1000, batch_size=64),
        0.02,
    ),
}


def test_every_solver_is_tried():
    """Those with another optimum, for small batches, and without a local problem have tests of their own."""
    tried = {type(solver) for solver, _ in [*EXACT.values(), *MEAN_FIELD.values()]}
    assert tried | {MomentMatching, BayesianGradient, Message} == set(REGISTRY.values())


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("name", EXACT)
def test_the_optimum_is_reached(name, posterior):
    solver, tolerance = EXACT[name]
    q, info = refined(solver, posterior)
    assert q.kl(optimum(posterior)) < tolerance
    assert Outcome(int(info.outcome)).is_good


@pytest.mark.parametrize("name", MEAN_FIELD)
def test_the_mean_field_optimum_is_reached(name):
    solver, tolerance = MEAN_FIELD[name]
    q, info = refined(solver, "mean-field")
    assert q.kl(optimum("mean-field")) < tolerance
    assert Outcome(int(info.outcome)).is_good


@pytest.mark.parametrize("name", NOISY)
def test_mini_batches_come_near_the_optimum(name):
    solver, tolerance = NOISY[name]
    q, info = refined(solver)
    assert 1e-10 < q.kl(optimum("full")) < tolerance
    assert Outcome(int(info.outcome)) is Outcome.STEPS_DONE


def test_a_start_far_off_is_far_from_the_optimum():
    """So that the tolerances above mean something."""
    assert refined(FixedPoint(steps=1, step_size=0.5))[0].kl(optimum("full")) > 0.05


@pytest.mark.parametrize(
    "solver",
    [
        FixedPoint(steps=500, step_size=0.5, tolerance=1e-8),
        Gradient("sgd", learning_rate=0.05, steps=2000, tolerance=1e-5),
    ],
)
def test_it_stops_when_converged(solver):
    q, info = refined(solver)
    assert Outcome(int(info.outcome)) is Outcome.CONVERGED
    assert 1 < info.steps < solver.steps
    assert q.kl(optimum("full")) < 1e-8


def test_it_reports_what_was_expected_where_it_started():
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    f = np.linalg.norm(X, axis=1)[:, None] * nodes
    expected = np.sum((Y[:, None] * f - np.logaddexp(0, f)) @ weights / weights.sum())
    for solver in (FixedPoint(steps=3), Gradient("sgd", steps=3)):
        assert_allclose(refined(solver)[1].expected_log_prob, expected, rtol=1e-7)


def test_a_step_that_overflows_is_reported_and_not_taken():
    """exp(½ 400²) is not finite: the site is named, and what the other one said stands; but it is no fit."""
    model = pt.models.PoissonRegression(features=1, intercept=False)
    good, bad = (np.ones((3, 1)), np.array([1.0, 0, 2])), (np.full((1, 1), 400.0), np.ones(1))
    for solver in (FixedPoint(steps=4), Gradient("adam", steps=4)):
        first, second = pt.events(model, [good, bad], solver=solver, schedule=OnePass())
        assert first.problems == ()
        assert first.posterior.precision > 1
        assert second.problems[0].startswith("site 1: solver met a value that is not finite")
        assert_allclose(second.posterior.precision, first.posterior.precision, rtol=1e-12)
        with pytest.raises(pt.errors.NotFinite, match="site 1: its log likelihood is -inf"):
            pt.fit(model, [good, bad], solver=solver, schedule=OnePass())


def test_a_step_that_no_halving_makes_proper_is_reported_and_not_taken():
    prior = pt.families.Gaussian.from_moments(np.zeros(1), np.eye(1))
    model = pt.Model(prior, lambda theta, y: 1e60 * y * theta[0] ** 2)
    with pytest.warns(RuntimeWarning, match="site 0: solver found no step"):
        result = pt.fit(model, [np.ones(1)], schedule=OnePass())
    assert result.history[0]["problem"].startswith("site 0: solver found no step, however small")
    assert result.posterior.precision == prior.precision


@pytest.mark.parametrize(
    ("solver", "settings"),
    [
        (FixedPoint, {"steps": 0}),
        (FixedPoint, {"steps": 1.5}),
        (FixedPoint, {"step_size": 0.0}),
        (FixedPoint, {"step_size": 1.1}),
        (FixedPoint, {"step_size": np.nan}),
        (TrustRegion, {"radius": 0.0}),
        (TrustRegion, {"divergence": "euclidean"}),
        (StochasticNaturalGradient, {"rate": 1.5}),
        (FixedPoint, {"batch_size": 0}),
        (FixedPoint, {"tolerance": -1.0}),
        (Gradient, {"optimiser": "newton"}),
        (Gradient, {"optimiser": 3}),
        (Gradient, {"optimiser": "lbfgs", "batch_size": 8}),
        (Gradient, {"steps": 0}),
        (Gradient, {"epochs": 0}),
        (Gradient, {"batch_size": 0}),
        (Gradient, {"learning_rate": 0.0}),
        (Gradient, {"learning_rate": -0.1}),
        (Gradient, {"learning_rate": np.nan}),
        (Gradient, {"tolerance": -1.0}),
        (Gradient, {"power": 1.0}),
        (Gradient, {"power": -0.5}),
        (Gradient, {"draws": 0}),
        (Gradient, {"power": 0.5, "batch_size": 8}),
        (MomentMatching, {"each_row": True, "steps": 1}),
        (ConjugateGradient, {"steps": 0}),
        (ConjugateGradient, {"tolerance": -1.0}),
        (BayesianGradient, {"steps": 0}),
    ],
)
def test_settings_out_of_range_are_refused(solver, settings):
    with pytest.raises(InputError, match=f"{solver.__name__}.*{list(settings)[-1]}"):
        solver(**settings)


def test_local_optimisation_and_fixed_points_agree_over_three_sites():
    model = pt.models.LogisticRegression(features=2, intercept=False)
    shards = [(X[i::3], Y[i::3]) for i in range(3)]
    for solver in (Gradient("lbfgs", steps=100), FixedPoint(steps=10, step_size=0.5)):
        q = pt.fit(model, shards, solver=solver, schedule=Sequential(passes=15)).posterior
        assert_allclose(q.location, optimum("full").location, atol=1e-5)
        assert_allclose(q.covariance, optimum("full").covariance, atol=1e-5)


def test_conjugate_directions_stay_proper():
    """Log gamma functions are finite where a Dirichlet is not a density: a search by the bound alone would go there."""
    counts = np.random.default_rng(0).poisson(1.0, (6, 8)).astype(float)
    model = pt.models.LatentDirichletAllocation(2, 8, concentration=0.1)
    result = pt.fit(
        model, [counts], solver=ConjugateGradient(steps=10), schedule=OnePass(), damping=1.0, start=model.begin()
    )
    assert np.all(result.posterior.concentration > 0)
    assert result.log_evidence > evidence(model, [counts], model.begin())


def test_bayesian_gradient_descent_solves_a_small_batch():
    """Repeated on one row, it ends at the optimum of the local free energy, as fixed points do."""
    model = pt.models.LogisticRegression(features=2, intercept=False, posterior="mean-field")
    ends = [
        pt.fit(model, [(X[:1], Y[:1])], solver=solver, schedule=OnePass(), damping=1.0).posterior
        for solver in (BayesianGradient(steps=60), FixedPoint(steps=60))
    ]
    assert_allclose(ends[0].location, ends[1].location, atol=1e-7)
    assert_allclose(ends[0].scale, ends[1].scale, atol=1e-7)


def test_bayesian_gradient_descent_is_for_diagonal_gaussians():
    with pytest.raises(InputError, match="mean-field"):
        refined(BayesianGradient(), "full")
