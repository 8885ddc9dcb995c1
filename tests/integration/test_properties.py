"""The paper's numbered properties, each by what it claims: a logistic regression with two weights over three sites."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from jax.flatten_util import ravel_pytree

import partita as pt
from partita.expectations import GaussHermite
from partita.families import Gaussian, MeanField, inner
from partita.fitting import evidence, prepare
from partita.free_energy import LocalProblem
from partita.models import LogisticRegression, ProbitRegression, prior_of
from partita.server.loop import iterate
from partita.server.schedules import OnePass, Sequential, Synchronous
from partita.site.worker import load_shards
from partita.solvers import FixedPoint, MomentMatching

KEY = jax.random.key(0)
ROWS = 18


@pytest.fixture(autouse=True)
def in_double_precision():
    with pt.foundation.runtime.precision(np.float64):
        yield


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(1)
    X = generator.normal(size=(ROWS, 2)) + np.array([0.5, 0.0])
    return X, (X @ [1.0, -1.5] + generator.normal(size=ROWS) > 0).astype(float)


MODEL = LogisticRegression(2, intercept=False, prior_scale=2.0)


def shards(data, sites=3):
    X, y = data
    return [(X[i::sites], y[i::sites]) for i in range(sites)]


@pytest.fixture(scope="module")
def fixed(data):
    """A fixed point, with its local problems."""
    result = pt.fit(MODEL, shards(data), solver=FixedPoint(), schedule=Sequential(passes=60), damping=1.0)
    problems = [
        LocalProblem(MODEL, GaussHermite(40), result.posterior / factor, shard, {"prior_scale": 2.0})
        for factor, shard in zip(result.factors, load_shards(MODEL, shards(data)), strict=True)
    ]
    return result, problems


def grid(q):
    """Points that cover a density over two numbers, and the area of each."""
    axes = [m + s * np.linspace(-9, 9, 301) for m, s in zip(q.location, q.scale, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    return points, np.prod([axis[1] - axis[0] for axis in axes])


def log_density(q, points):
    values = -0.5 * np.einsum("na,ab,nb->n", points - q.location, q.precision, points - q.location)
    return values + 0.5 * np.linalg.slogdet(q.precision)[1] - np.log(2 * np.pi)


def test_property_1_a_local_free_energy_is_a_divergence_from_the_tilted_distribution(fixed):
    """F(q) = log Z - KL(q ‖ tilted), on a grid."""
    result, problems = fixed
    first = problems[0]
    problem = LocalProblem(MODEL, GaussHermite(150), first.cavity, first.shard, first.hyper)
    points, area = grid(problem.cavity)
    log_prob = np.asarray(jax.jit(jax.vmap(problem.log_prob))(points))
    log_tilted = log_density(problem.cavity, points) + log_prob
    log_z = np.log(area * np.sum(np.exp(log_tilted)))
    for shift, factor in ((0.0, 1.0), (0.4, 2.0), (-0.6, 0.7)):
        q = Gaussian.from_moments(result.posterior.location + shift, factor * result.posterior.covariance)
        log_q = log_density(q, points)
        divergence = area * np.sum(np.exp(log_q) * (log_q - (log_tilted - log_z)))
        assert float(problem.free_energy(q, KEY)) == pytest.approx(log_z - divergence, abs=1e-6)


@pytest.mark.parametrize("schedule", [Sequential(passes=2), Synchronous(rounds=3), OnePass()])
def test_property_2_the_posterior_is_prior_times_factors_after_every_step(data, schedule):
    parts = shards(data)
    run, arranged = prepare(MODEL, parts, options={"schedule": schedule})
    run.engine.open(run.job(), arranged)
    for event in iterate(run):
        product = run.ledger.prior
        for site in range(len(parts)):
            product = product * run.ledger.factor(site)
        for ours, theirs in zip(jax.tree.leaves(event.posterior), jax.tree.leaves(product), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
        points, area = grid(event.posterior)
        assert area * np.sum(np.exp(log_density(event.posterior, points))) == pytest.approx(1, abs=1e-6)


def local_and_global(fixed):
    """F_m and F of the paper, as functions of the natural parameters."""
    result, problems = fixed
    best, prior = result.posterior, result.prior
    flat, unravel = ravel_pytree(best)
    # A symmetric matrix has one parameter for two entries.
    rows = [0, 1, 2, 3, 5]
    lift = np.zeros((6, 5))
    lift[rows, range(5)] = 1
    lift[4] = lift[3]

    def seen(eta):
        q = unravel(lift @ eta)
        return q, q.mean()

    def log_q(density, mean):
        return inner(density, mean) - density.log_partition()

    def local(site, eta):
        q, mean = seen(eta)
        value = problems[site].expected_log_prob(q, KEY)
        return value + log_q(best, mean) - log_q(q, mean) - inner(result.factors[site], mean)

    def total(eta):
        q, mean = seen(eta)
        return sum(problem.expected_log_prob(q, KEY) for problem in problems) + log_q(prior, mean) - log_q(q, mean)

    def partition(eta):
        return seen(eta)[0].log_partition()

    # log t has no constant here, so that the normaliser of ∏ t is what is left of q*.
    constant = best.log_partition() - prior.log_partition()
    return local, total, partition, jnp.asarray(flat[jnp.asarray(rows)]), constant


def test_property_3_local_free_energies_add_up_and_their_slopes_vanish_together(fixed):
    local, total, _, eta, constant = local_and_global(fixed)
    sites = range(len(fixed[1]))
    assert sum(float(local(site, eta)) for site in sites) + constant == pytest.approx(float(total(eta)), abs=1e-9)
    assert float(total(eta)) == pytest.approx(fixed[0].log_evidence, abs=1e-9)
    slopes = np.array([jax.grad(lambda e, site=site: local(site, e))(eta) for site in sites])
    np.testing.assert_allclose(slopes, 0, atol=1e-7)
    np.testing.assert_allclose(jax.grad(total)(eta), 0, atol=1e-7)


def test_property_3_hessians_add_up_only_with_the_fisher_information(fixed):
    """F = Σ F_m + (M - 1) KL(q ‖ q*), so that the global Hessian is Σ H_m + (M - 1) C, and not Σ H_m."""
    local, total, partition, eta, _ = local_and_global(fixed)
    sites = range(len(fixed[1]))
    whole = jax.jit(jax.hessian(total))(eta)
    summed = jax.jit(jax.hessian(lambda e: sum(local(site, e) for site in sites)))(eta)
    fisher = jax.hessian(partition)(eta)
    np.testing.assert_allclose(whole, summed + (len(sites) - 1) * fisher, rtol=1e-6, atol=1e-7)
    assert np.abs(whole - summed).max() > 0.1


class Bump(ProbitRegression):
    """log p(y | θ) = a exp(-θ² / 2): a likelihood that is high at zero and flat far away."""

    height: float = 1.3416

    def pointwise(self, f, y, hyper):
        return self.height * jnp.exp(-0.5 * f**2)


def test_property_3b_maxima_of_all_local_free_energies_need_not_be_one_of_the_global():
    """Two sites, prior N(0, 100): N(0, 4) is the only maximum of both local free energies; the global one has a
    minimum there, as the variance moves.
    """
    model, variance = Bump(1, intercept=False, prior_scale=10.0), 4.0
    shard = load_shards(model, [(np.ones((1, 1)), np.ones(1))])[0]
    own = 0.5 * (1 / variance - 0.01)  # each of two equal factors
    cavity = Gaussian(np.zeros(1), np.array([[0.01 + own]]))
    problem = LocalProblem(model, GaussHermite(100), cavity, shard, {"prior_scale": 10.0})
    prior = prior_of(model, {"prior_scale": 10.0})

    def density(v):
        return Gaussian(jnp.zeros(1), jnp.reshape(1 / v, (1, 1)))

    @jax.jit
    def local_and_global(v):
        q = density(v)
        return problem.free_energy(q, KEY), 2 * problem.expected_log_prob(q, KEY) - q.kl(prior)

    step = 0.2
    below, at, above = (np.array(local_and_global(variance + move)) for move in (-step, 0.0, step))
    np.testing.assert_allclose((above - below) / (2 * step), 0, atol=1e-3)
    curvature = (above - 2 * at + below) / step**2
    assert curvature[0] < -0.01
    assert curvature[1] > 0.001
    variances = np.geomspace(0.05, 90, 300)
    best = variances[np.argmax([float(local_and_global(v)[0]) for v in variances])]
    assert best == pytest.approx(variance, rel=0.03)


def test_property_4_the_fisher_matrix_cancels(data):
    """C⁻¹ d/dη E[log p] with C made explicit is the gradient in the mean parameters, which needs no matrix."""
    shard = load_shards(MODEL, [data])[0]
    q = Gaussian.from_moments(np.array([0.3, -0.4]), np.array([[0.5, 0.1], [0.1, 0.8]]))
    problem = LocalProblem(MODEL, GaussHermite(40), q, shard, {"prior_scale": 2.0})
    flat, unravel = ravel_pytree(q)
    rows, lift = [0, 1, 2, 3, 5], np.eye(6)[:, [0, 1, 2, 3, 5]]
    lift[4, 3] = 1
    eta = flat[jnp.asarray(rows)]
    slope = jax.grad(lambda e: problem.expected_log_prob(unravel(lift @ e), KEY))(eta)
    fisher = jax.hessian(lambda e: unravel(lift @ e).log_partition())(eta)
    explicit = np.linalg.solve(fisher, slope)
    _, message = problem.message(q, KEY)
    np.testing.assert_allclose(explicit, ravel_pytree(message)[0][jnp.asarray(rows)], rtol=1e-8)


@pytest.mark.parametrize("sites", [1, 3, ROWS])
def test_property_5_parallel_updates_do_not_see_the_partition(data, sites):
    """Two damped rounds over any partition equal those of batch inference."""
    settings = {"solver": FixedPoint(step_size=0.5), "schedule": Synchronous(rounds=2), "damping": 1.0}
    one = pt.fit(MODEL, [data], **settings).posterior
    other = pt.fit(MODEL, shards(data, sites), **settings).posterior
    np.testing.assert_allclose(other.location, one.location, rtol=1e-9)
    np.testing.assert_allclose(other.precision, one.precision, rtol=1e-9)


def minibatch_vi(prior, posterior, problem, sites, rate):
    """A natural-gradient step of global inference from one site's rows, as if they were all: Hoffman et al. (2013)."""
    _, message = problem.message(posterior, KEY)
    return posterior ** (1 - rate) * (prior * message**sites) ** rate


@pytest.mark.parametrize(
    ("solver", "tolerance"),
    [(FixedPoint(step_size=0.3), 1e-9), (MomentMatching(1e-4), 1e-3)],
    ids=["fixed points", "power EP, α → 0"],
)
def test_property_7_one_shared_factor_is_stochastic_global_inference(data, solver, tolerance):
    """Sites that share a factor, one pass: mini-batch steps of rate ρ / M."""
    parts = shards(data, ROWS)[:6]
    share = 0.3
    damping = 1.0 if isinstance(solver, FixedPoint) else share
    result = pt.fit(MODEL, parts, solver=solver, schedule=OnePass(), damping=damping, custody="shared")
    q = prior = prior_of(MODEL, MODEL.hyper)
    for shard in load_shards(MODEL, parts):
        problem = LocalProblem(MODEL, GaussHermite(40), q, shard, {"prior_scale": 2.0})
        q = minibatch_vi(prior, q, problem, len(parts), share / len(parts))
    np.testing.assert_allclose(result.posterior.location, q.location, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(result.posterior.precision, q.precision, rtol=tolerance, atol=tolerance)


def test_property_6_small_powers_are_fixed_points_to_first_order(data):
    """The distance of a step of power EP from one of the fixed-point equation falls as α does."""
    part = shards(data, ROWS)[0]
    settings = {"schedule": OnePass(), "damping": 1.0}
    limit = pt.fit(MODEL, [part], solver=FixedPoint(step_size=1.0), **settings).posterior
    powers = (0.1, 0.01)
    gaps = [
        np.abs(
            pt.fit(MODEL, [part], solver=MomentMatching(power), **settings).posterior.precision - limit.precision
        ).max()
        for power in powers
    ]
    assert np.log10(gaps[0] / gaps[1]) == pytest.approx(1, abs=0.1)


def test_small_steps_of_four_kinds_agree(data):
    """From one q: natural gradient and mirror descent are the same step; a KL-proximal step (on the bound itself, not
    its linearisation) and a trust region's differ from it by the square of its length.
    """
    shard = load_shards(MODEL, [data])[0]
    model = LogisticRegression(2, intercept=False, prior_scale=2.0, posterior="mean-field")
    prior = prior_of(model, model.hyper)
    problem = LocalProblem(model, GaussHermite(40), prior, shard, {"prior_scale": 2.0})
    q = MeanField.from_moments(np.array([0.2, -0.3]), np.array([0.8, 0.7]))
    flat, unravel = ravel_pytree(q)
    bound = jax.jit(lambda eta: problem.free_energy(unravel(eta), KEY))
    slope = jax.jit(jax.grad(bound))
    divergence = jax.jit(lambda eta: unravel(eta).kl(q))
    far = jax.jit(jax.grad(divergence))
    fisher = jax.hessian(lambda eta: unravel(eta).log_partition())(flat)
    direction = np.linalg.solve(fisher, slope(flat))
    _, message = problem.message(q, KEY)
    mirrored = ravel_pytree(prior * message / q)[0]
    np.testing.assert_allclose(direction, mirrored, rtol=1e-9)

    def proximal(rate):
        found = scipy.optimize.minimize(
            lambda eta: float(divergence(eta) / rate - bound(eta)),
            flat + rate * direction,
            jac=lambda eta: np.asarray(far(eta) / rate - slope(eta)),
            method="BFGS",
            options={"gtol": 1e-9},
        )
        return found.x

    def trusted(rate):
        radius = float(divergence(flat + rate * direction))
        found = scipy.optimize.minimize(
            lambda eta: -float(bound(eta)),
            flat + rate * direction,
            jac=lambda eta: -np.asarray(slope(eta)),
            method="SLSQP",
            constraints={
                "type": "ineq",
                "fun": lambda eta: 1e3 * (radius - float(divergence(eta))),
                "jac": lambda eta: -1e3 * np.asarray(far(eta)),
            },
            options={"ftol": 1e-14, "maxiter": 300},
        )
        return found.x

    for other in (proximal, trusted):
        errors = [np.linalg.norm(other(rate) - (flat + rate * direction)) for rate in (0.04, 0.02)]
        assert np.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.3), other.__name__


def test_the_hyperparameter_gradient_from_shares_is_that_of_the_collapsed_bound(data):
    """dF(q*(ε), ε) / dε by refitting, against the sites' shares and the prior's at one q*."""

    def best(scale):
        model = LogisticRegression(2, intercept=False, prior_scale=scale)
        result = pt.fit(model, shards(data), solver=FixedPoint(), schedule=Sequential(passes=40), damping=1.0)
        return result, evidence(model, shards(data), result.posterior)

    step = 1e-3
    slope = (best(2.0 + step)[1] - best(2.0 - step)[1]) / (2 * step)
    q = best(2.0)[0].posterior
    shares = [
        float(
            LocalProblem(MODEL, GaussHermite(40), q, shard, {"prior_scale": 2.0}).hyper_gradient(q, KEY)["prior_scale"]
        )
        for shard in load_shards(MODEL, shards(data))
    ]

    def prior_term(scale):
        prior = MODEL.prior({"prior_scale": scale})
        return inner(prior, q.mean()) - prior.log_partition()

    assert sum(shares) + float(jax.grad(prior_term)(2.0)) == pytest.approx(slope, rel=1e-4)


def test_hyperparameters_can_be_random_variables_in_the_factors():
    """Section 2.2, q(θ, ε): a regression whose weights have an unknown scale, over three sites; against quadrature over
    the scale, given which everything is Gaussian.
    """
    generator = np.random.default_rng(2)
    weights, noise = np.array([1.2, -0.8, 0.5, 1.0, -1.4]), 0.5
    X = generator.normal(size=(60, 5))
    y = X @ weights + noise * generator.normal(size=60)

    def log_prob(params, rows):
        X, y = rows
        return -0.5 * ((y - X @ params[:5]) / noise) ** 2 - jnp.log(noise * jnp.sqrt(2 * jnp.pi))

    def prior_and_rows(params, rows):
        """p(θ | ε) is one more factor: what it has over the Gaussian that the ledger starts from."""
        X, y, is_prior = rows
        theta, log_scale = params[:5], params[5]
        inside = -0.5 * jnp.sum(theta**2) * jnp.exp(-2 * log_scale) - 5 * log_scale
        outside = -0.5 * jnp.sum(theta**2) / 100 - 5 * jnp.log(10.0)
        return jnp.where(is_prior > 0, inside - outside, log_prob(params, (X, y)))

    start = Gaussian.from_moments(np.zeros(6), np.diag([100.0] * 5 + [1.0]))
    model = pt.models.Model(start, prior_and_rows)
    level = (np.zeros((1, 5)), np.zeros(1), np.ones(1))
    sites = [level, *((X[i::3], y[i::3], np.zeros(20)) for i in range(3))]
    near = Gaussian.from_moments(np.zeros(6), np.eye(6) * 0.5)
    result = pt.fit(
        model,
        sites,
        solver=FixedPoint(step_size=0.3),
        schedule=Sequential(passes=40),
        damping=1.0,
        expectation=pt.expectations.MonteCarlo(samples=256),
        start=near,
    )
    logs = np.linspace(-3, 3, 1201)
    values = [
        scipy.stats.multivariate_normal(np.zeros(60), np.exp(2 * s) * X @ X.T + noise**2 * np.eye(60)).logpdf(y)
        for s in logs
    ] - 0.5 * logs**2
    p = np.exp(values - values.max())
    p /= p.sum()
    mean = p @ logs
    deviation = np.sqrt(p @ (logs - mean) ** 2)
    q = result.posterior
    assert q.location[5] == pytest.approx(mean, abs=0.15 * deviation)
    assert q.scale[5] == pytest.approx(deviation, rel=0.15)
    np.testing.assert_allclose(q.location[:5], weights, atol=0.3)
