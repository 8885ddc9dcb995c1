"""Power EP: textbook EP in a few lines of NumPy, exact posteriors on grids, and the limit of small powers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal, norm

import partita as pt
from partita.engines.ray import Actor
from partita.errors import InputError
from partita.expectations import GaussHermite
from partita.families import Gaussian, MeanField
from partita.fitting import prepare
from partita.foundation.runtime import precision
from partita.free_energy import LocalProblem
from partita.server.settings import Settings
from partita.solvers import Chains, FixedPoint, Gradient, MomentMatching
from partita.studies.methods import comparisons, problems
from partita.wire.codec import decode_answer, encode_question
from partita.wire.questions import Evaluate

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(12, 2))
Y = (X @ [1.5, -1.0] + GENERATOR.normal(size=12) > 0).astype(float)
PROBIT = pt.models.ProbitRegression(2, intercept=False, prior_scale=2.0)
ROWS = [(X[i : i + 1], Y[i : i + 1]) for i in range(len(Y))]
# The clutter problem (Minka, 2001): half of the observations are noise of standard deviation 10^½.
CLUTTER = GENERATOR.permutation(np.concatenate([GENERATOR.normal(2, 1, 8), GENERATOR.normal(0, np.sqrt(10), 6)]))


def run(model, shards, solver, passes=30, **settings):
    return pt.fit(
        model, shards, solver=solver, schedule=pt.schedules.Sequential(passes=passes), damping=1.0, **settings
    )


def energy(result) -> float:
    """What the last pass says of the log evidence."""
    return [row["free_energy"] for row in result.history if row["free_energy"] is not None][-1]


def log_partition(shift, precision):
    return 0.5 * shift @ np.linalg.solve(precision, shift) - 0.5 * np.linalg.slogdet(precision)[1] + np.log(2 * np.pi)


def textbook_probit_ep(passes=60):
    """Sites in f = xᵀθ, with the closed-form moments of Gaussian × Φ (Rasmussen and Williams, 2006, Section 3.6)."""
    nu, tau = np.zeros(len(Y)), np.zeros(len(Y))
    prior = np.eye(2) / 4
    for _ in range(passes):
        evidence = -log_partition(np.zeros(2), prior)
        for i, (x, s) in enumerate(zip(X, 2 * Y - 1, strict=True)):
            others = np.arange(len(Y)) != i
            cavity = X[others].T @ nu[others], prior + (X[others].T * tau[others]) @ X[others]
            m, v = x @ np.linalg.solve(cavity[1], cavity[0]), x @ np.linalg.solve(cavity[1], x)
            z = s * m / np.sqrt(1 + v)
            ratio = np.exp(norm.logpdf(z) - norm.logcdf(z))
            new_m = m + s * v * ratio / np.sqrt(1 + v)
            new_v = v - v**2 * ratio / (1 + v) * (z + ratio)
            nu[i], tau[i] = new_m / new_v - m / v, 1 / new_v - 1 / v
            q = X.T @ nu, prior + (X.T * tau) @ X
            evidence += norm.logcdf(z) + log_partition(*cavity) - log_partition(*q)
    return np.linalg.solve(q[1], q[0]), np.linalg.inv(q[1]), evidence + log_partition(*q)


def exact_probit():
    grid = np.linspace(-10, 10, 801)
    A, B = np.meshgrid(grid, grid, indexing="ij")
    theta = np.stack([A.ravel(), B.ravel()], axis=1)
    logs = norm.logcdf((theta @ X.T) * (2 * Y - 1)).sum(axis=1) + norm.logpdf(theta, scale=2.0).sum(axis=1)
    evidence = np.log(np.exp(logs - logs.max()).sum()) + logs.max() + 2 * np.log(grid[1] - grid[0])
    p = np.exp(logs - logs.max())
    p /= p.sum()
    mean = p @ theta
    return mean, (theta - mean).T * p @ (theta - mean), evidence


def test_ep_is_that_of_the_textbook_and_close_to_exact():
    result = run(PROBIT, ROWS, MomentMatching())
    location, covariance, estimate = textbook_probit_ep()
    assert_allclose(result.posterior.location, location, rtol=1e-6)
    assert_allclose(result.posterior.covariance, covariance, rtol=1e-6, atol=1e-7)
    assert_allclose(energy(result), estimate, atol=1e-5)
    assert_allclose(result.log_evidence, estimate, atol=1e-7)
    mean, spread, evidence = exact_probit()
    assert_allclose(location, mean, atol=0.02)
    assert_allclose(covariance, spread, atol=0.1)
    assert_allclose(estimate, evidence, atol=0.05)
    # The bound of variational inference is below, and its covariance smaller.
    variational = run(PROBIT, ROWS, FixedPoint())
    assert variational.log_evidence < evidence - 0.02
    assert np.all(np.diag(variational.posterior.covariance) < np.diag(covariance))


def test_sites_across_a_wire_are_asked_with_their_factors():
    result = run(PROBIT, ROWS, MomentMatching(), passes=2)
    job = prepare(PROBIT, ROWS, Settings(solver=MomentMatching()))[0].job()
    actor = Actor(dict(enumerate(ROWS)), (None, None), None)
    actor.prepare(dict.fromkeys(actor.load(job, {}), 1))

    def ask(questions):
        answers = actor.answer("evaluate", {m: encode_question(one) for m, one in questions.items()})
        return {m: decode_answer(Evaluate, payload).value for m, payload in answers.items()}

    question = Evaluate(result.posterior, result.hyper)
    said = ask({m: replace(question, factor=t) for m, t in enumerate(result.factors)})
    assert_allclose([said[m] for m in range(len(ROWS))], result.expected_log_probs, rtol=1e-12)
    assert_allclose(sum(said.values()) - result.posterior.kl(result.prior), result.log_evidence, rtol=1e-12)
    # Without factors, they are asked for what a bound is made of.
    plain = ask(dict.fromkeys(range(len(ROWS)), question))
    bound = pt.evidence(PROBIT, ROWS, result.posterior)
    assert_allclose(sum(plain.values()) - result.posterior.kl(result.prior), bound, rtol=1e-12)


def textbook_clutter_ep(passes=60):
    """A tilted distribution is a mixture of two Gaussians (Minka, 2001)."""
    nu, tau = np.zeros(len(CLUTTER)), np.zeros(len(CLUTTER))
    for _ in range(passes):
        for i, x in enumerate(CLUTTER):
            v = 1 / (0.01 + tau.sum() - tau[i])
            m = v * (nu.sum() - nu[i])
            signal, noise = norm.pdf(x, m, np.sqrt(v + 1)), norm.pdf(x, 0, np.sqrt(10))
            r = signal / (signal + noise)
            gain = v / (v + 1)
            new_m = m + r * gain * (x - m)
            new_v = v - r * gain * v + r * (1 - r) * (gain * (x - m)) ** 2
            nu[i], tau[i] = new_m / new_v - m / v, 1 / new_v - 1 / v
    return nu.sum() / (0.01 + tau.sum()), 1 / np.sqrt(0.01 + tau.sum()), tau


def test_the_clutter_problem():
    """θ is one number, likelihoods are not log-concave, and factors may have negative precisions."""

    def log_prob(theta, x):
        signal = jax.scipy.stats.norm.logpdf(x, theta[0], 1.0)
        return jnp.logaddexp(signal, jax.scipy.stats.norm.logpdf(x, 0.0, jnp.sqrt(10.0))) - jnp.log(2.0)

    model = pt.Model(Gaussian.from_moments(np.zeros(1), 100 * np.eye(1)), log_prob)
    result = run(model, [CLUTTER[i : i + 1] for i in range(len(CLUTTER))], MomentMatching(points=200), passes=60)
    location, scale, precisions = textbook_clutter_ep()
    assert precisions.min() < 0
    assert_allclose(result.posterior.location, [location], rtol=1e-5)
    assert_allclose(result.posterior.scale, [scale], rtol=1e-5)
    grid = np.linspace(-30, 30, 20_001)
    either = np.logaddexp(norm.logpdf(CLUTTER[:, None], grid), norm.logpdf(CLUTTER[:, None], scale=np.sqrt(10)))
    logs = norm.logpdf(grid, scale=10.0) + either.sum(axis=0) - len(CLUTTER) * np.log(2)
    p = np.exp(logs - logs.max())
    evidence = np.log(p.sum() * (grid[1] - grid[0])) + logs.max()
    mean = p @ grid / p.sum()
    assert_allclose(location, mean, atol=0.1)
    assert_allclose(energy(result), evidence, atol=0.1)
    assert_allclose(result.log_evidence, evidence, atol=0.1)


@pytest.mark.parametrize("power", [1.0, 0.5, 0.1])
def test_the_evidence_of_a_gaussian_model_is_exact_for_every_power(power):
    """After one pass already: its factors are those of the fixed point."""
    model = pt.models.LinearRegression(2, noise=0.7, prior_scale=2.0, intercept=False)
    y = X @ [1.5, -1.0] + GENERATOR.normal(size=12)
    rows = [(X[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    result = run(model, rows, MomentMatching(power), passes=1)
    exact = multivariate_normal(np.zeros(12), 4 * X @ X.T + 0.49 * np.eye(12)).logpdf(y)
    assert_allclose(result.log_evidence, exact, atol=1e-8)


@pytest.mark.parametrize("features", [1, 3])
def test_the_evidence_of_ep_beside_numeric_integration(features):
    """Of logistic regression, which the bound misses by more; small powers tend to the bound."""
    generator = np.random.default_rng(features)
    A = generator.normal(size=(12, features))
    y = (A.sum(axis=1) + generator.logistic(size=12) > 0).astype(float)
    model = pt.models.LogisticRegression(features, prior_scale=2.0, intercept=False)
    rows = [(A[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    whole, small = (run(model, rows, MomentMatching(power), passes=15) for power in (1.0, 0.001))
    axis = np.linspace(-16, 16, 4001 if features == 1 else 121)
    theta = np.stack(np.meshgrid(*[axis] * features, indexing="ij"), axis=-1).reshape(-1, features)
    logs = -np.logaddexp(0, -(theta @ A.T) * (2 * y - 1)).sum(axis=1) + norm.logpdf(theta, scale=2.0).sum(axis=1)
    exact = np.log(np.exp(logs - logs.max()).sum()) + logs.max() + features * np.log(axis[1] - axis[0])
    bound = run(model, rows, FixedPoint(), passes=15).log_evidence
    assert abs(whole.log_evidence - exact) < 0.75 * (exact - bound)
    assert_allclose(small.log_evidence, bound, atol=1e-3)
    # The bound of the same posterior is there for whoever wants it.
    assert pt.evidence(model, rows, whole.posterior) < bound


def test_weighted_draws_agree_with_quadrature():
    """Where a site has several rows, or a family no quadrature."""
    halves = [(X[:6], Y[:6]), (X[6:], Y[6:])]
    drawn = run(PROBIT, halves, MomentMatching(draws=100_000), passes=6).posterior
    mean, spread, _ = exact_probit()
    assert_allclose(drawn.location, mean, atol=0.05)
    assert_allclose(drawn.covariance, spread, atol=0.1)


def test_chains_draw_from_what_they_are_given():
    """A skewed density of two correlated numbers, from a Gaussian that is off: moments by a grid."""

    def log_density(theta):
        return -jnp.sum(jnp.exp(-theta)) - 1.5 * jnp.sum(theta) - 0.5 * (theta[0] - theta[1]) ** 2

    grid = np.linspace(-6, 14, 801)
    theta = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    logs = -np.exp(-theta).sum(axis=1) - 1.5 * theta.sum(axis=1) - 0.5 * (theta[:, 0] - theta[:, 1]) ** 2
    p = np.exp(logs - logs.max())
    p /= p.sum()
    q = MeanField.from_moments(np.array([1.5, -1.5]), np.array([0.5, 1.0]))
    with precision(np.float64):
        drawn = np.asarray(Chains(1000, 60, 10, 0.3).draw(log_density, q, jax.random.key(0)))
    mean = p @ theta
    assert_allclose(drawn.mean(axis=0), mean, atol=0.03)
    assert_allclose(np.cov(drawn.T), (theta - mean).T * p @ (theta - mean), atol=0.06)


def test_moments_from_chains_agree_with_quadrature():
    halves = [(X[:6], Y[:6]), (X[6:], Y[6:])]
    chains = Chains(500, 40, 5, 0.5)
    drawn = run(PROBIT, halves, MomentMatching(chains=chains), passes=6).posterior
    mean, spread, _ = exact_probit()
    assert_allclose(drawn.location, mean, atol=0.06)
    assert_allclose(drawn.covariance, spread, atol=0.15)


def test_chains_out_of_range_are_refused():
    with pytest.raises(InputError, match="Chains: leaps"):
        Chains(leaps=0)
    with pytest.raises(InputError, match="Chains: step_size"):
        Chains(step_size=0.0)
    with pytest.raises(InputError, match="MomentMatching: chains: expected"):
        MomentMatching(chains={"number": 5})


def test_mean_field_moments_are_those_of_the_marginals():
    """One step from a correlated-free cavity, against a grid over both coordinates."""
    model = pt.models.ProbitRegression(2, intercept=False, posterior="mean-field", prior_scale=2.0)
    q = run(model, ROWS[:1], MomentMatching(), passes=1).posterior
    grid = np.linspace(-12, 12, 601)
    theta = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    p = norm.cdf((2 * Y[0] - 1) * theta @ X[0]) * norm.pdf(theta, scale=2.0).prod(axis=1)
    p /= p.sum()
    assert isinstance(q, MeanField)
    assert_allclose(q.location, p @ theta, rtol=1e-4)
    assert_allclose(q.scale**2, p @ theta**2 - (p @ theta) ** 2, rtol=1e-4)


def test_what_cannot_be_is_refused_or_held_back():
    with pytest.raises(InputError, match="power"):
        MomentMatching(0.0)
    with pytest.raises(InputError, match="draws"):
        MomentMatching(draws=0)
    # Three draws in five dimensions give no covariance: the factor stays, and the run says so.
    model = pt.models.ProbitRegression(5, intercept=False)
    data = GENERATOR.normal(size=(30, 5)), GENERATOR.integers(0, 2, 30).astype(float)
    with pytest.warns(RuntimeWarning, match="not finite"):
        result = pt.fit(model, [data], solver=MomentMatching(draws=3), schedule=pt.schedules.OnePass(), damping=1.0)
    assert_allclose(result.posterior.precision, np.eye(5))


def test_a_double_loop_converges_where_plain_ep_oscillates():
    """Rows that disagree, with tails of a Cauchy distribution: moments of tilted distributions are SciPy's."""
    problem = problems.outliers()
    rows = problems.each_row(problem.data)

    def fitted(schedule, damping):
        return pt.fit(problem.model, rows, solver=MomentMatching(points=100), schedule=schedule, damping=damping)

    held = fitted(pt.schedules.Synchronous(rounds=300, hold=5), 0.1)
    plain = fitted(pt.schedules.Sequential(passes=30), 0.5)
    assert comparisons.tilted_moments(problem, held).difference < 0.02
    assert held.history[-1]["change"] < 1e-4
    assert max(row["change"] for row in plain.history[-len(rows) :]) > 1e-3


def test_only_solvers_with_a_double_loop_hold():
    with pytest.raises(InputError, match="hold is for double loops"):
        pt.fit(PROBIT, ROWS, solver=FixedPoint(), schedule=pt.schedules.Synchronous(hold=2))
    with pytest.raises(InputError, match="hold"):
        pt.schedules.Synchronous(hold=0)


def test_gradients_of_divergences_have_the_same_fixed_points():
    """ADEP and power EP with α = ½ (Minka, 2004)."""
    matched = run(PROBIT, ROWS, MomentMatching(0.5)).posterior
    followed = run(PROBIT, ROWS, Gradient("lbfgs", steps=15, power=0.5), passes=8).posterior
    assert_allclose(followed.location, matched.location, atol=1e-5)
    assert_allclose(followed.scale, matched.scale, rtol=1e-5)


def test_the_renyi_bound_from_draws_and_by_quadrature():
    """Of one row, both ways; and against a grid."""
    power = 0.7
    with pt.foundation.runtime.precision(np.float64):
        shard = PROBIT.shard(0, ROWS[0])
        cavity = Gaussian.from_moments(np.array([0.3, 0.1]), np.array([[1.0, 0.3], [0.3, 0.6]]))
        q = Gaussian.from_moments(np.array([0.5, 0.0]), np.array([[0.9, 0.2], [0.2, 0.7]]))
        problem = LocalProblem(PROBIT, GaussHermite(), cavity, shard, PROBIT.hyper)
        exact = float(problem.renyi_bound(q, power, 1, jax.random.key(0)))
        plain = pt.models.Model(PROBIT.prior(PROBIT.hyper), lambda theta, rows: norm_logcdf(rows[0] @ theta, rows[1]))
        drawn = LocalProblem(plain, GaussHermite(), cavity, plain.shard(0, ROWS[0]), {})
        estimate = float(drawn.renyi_bound(q, power, 50_000, jax.random.key(1)))
    axis = np.linspace(-7, 8, 601)
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_q, log_c = (multivariate_normal(np.asarray(g.location), g.covariance).logpdf(theta) for g in (q, cavity))
    (x,), (label,) = ROWS[0]
    logs = (1 - power) * log_q + power * (log_c + norm.logcdf((2 * label - 1) * (theta @ x)))
    assert exact == pytest.approx(np.log(np.sum(np.exp(logs)) * (axis[1] - axis[0]) ** 2) / power, abs=1e-6)
    assert estimate == pytest.approx(exact, abs=0.01)


def norm_logcdf(f, y):
    return jax.scipy.special.log_ndtr((2 * y - 1) * f)
