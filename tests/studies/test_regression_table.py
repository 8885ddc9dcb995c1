"""Regressions against quadrature on two small data sets, and the references against what is known of them.

`partita study regressions` has the same with more sets, NUTS and statsmodels.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from partita.studies.regressions.page import GAP, NATS, RATIO, difference, evidence_error
from partita.studies.regressions.references import exact, exact_grouped, read, standardise
from partita.studies.regressions.sampling import bridge, sample
from partita.studies.regressions.sets import DATA_SETS, SHARES
from partita.studies.regressions.table import compare

SETS = {data.name: data for data in DATA_SETS}


@pytest.mark.parametrize("data", [SETS["longley"], SETS["stackloss"]], ids=lambda data: data.name)
def test_all_ways_to_fit_agree_with_quadrature(data):
    row = compare(data, draws=False)
    assert list(row.faces) == ["regress", "estimator", "partial_fit"]
    for name, face in row.faces.items():
        gap, low, high = difference(face, row.exact)
        assert gap < GAP
        assert low > 1 - RATIO
        assert high < 1 + RATIO
        assert abs(evidence_error(row, name)) < NATS
    assert row.faces["regress"].noise == pytest.approx(row.exact.noise, rel=RATIO)


def small_problem(**settings):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 2)) * [1.0, 30.0] + [5.0, -2.0]
    y = 3 + X @ [0.5, 0.01] + 0.2 * rng.normal(size=12)
    return standardise(X, y, **{"names": ("a", "b", "Intercept"), "family": "gaussian", "group": None} | settings)


def test_quadrature_is_the_integral_of_the_marginal_likelihood():
    problem = small_problem()
    K = (problem.design * problem.scales**2) @ problem.design.T

    def joint(noise):
        likelihood = stats.multivariate_normal(np.zeros(12), K + noise**2 * np.eye(12)).pdf(problem.y)
        return likelihood * 2 * stats.t.pdf(noise, 3)

    whole = sum(integrate.quad(joint, a, b, epsabs=0)[0] for a, b in ((1e-3, 0.3), (0.3, 1.0), (1.0, 30.0)))
    assert exact(problem).log_evidence == pytest.approx(problem.evidence(np.log(whole)), abs=1e-6)


def test_quadrature_is_least_squares_where_rows_are_many():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20_000, 2))
    y = X @ [1.0, -2.0] + 1e-3 * rng.normal(size=20_000)
    found = exact(standardise(X, y, names=("a", "b", "Intercept"), family="gaussian", group=None))
    A = np.column_stack([X, np.ones(len(X))])
    best, rest = np.linalg.lstsq(A, y, rcond=None)[:2]
    sd = np.sqrt(np.diag(np.linalg.inv(A.T @ A)) * rest / (len(y) - 3))
    np.testing.assert_allclose(found.mean, best, atol=0.01 * sd.min())
    np.testing.assert_allclose(found.sd, sd, rtol=1e-3)


def test_draws_agree_with_quadrature():
    problem = small_problem()
    drawn, known = sample(problem, draws=1000, error=0.03), exact(problem)
    gap, low, high = difference(drawn, known)
    assert gap < 0.1
    assert low > 0.9
    assert high < 1.1
    assert drawn.log_evidence == pytest.approx(known.log_evidence, abs=0.05)


def test_quadrature_with_groups_is_the_integral_of_the_marginal_likelihood():
    problem = small_problem(group=np.arange(12) // 4)
    K = (problem.design * problem.scales**2) @ problem.design.T
    same = problem.group[:, None] == problem.group

    def joint(log_noise, log_spread):
        noise, spread = np.exp([log_noise, log_spread])
        covariance = K + spread**2 * same + noise**2 * np.eye(12)
        prior = stats.t.logpdf(noise, 3) + stats.halfnorm.logpdf(spread) + np.log(2) + log_noise + log_spread
        return np.exp(stats.multivariate_normal(np.zeros(12), covariance).logpdf(problem.y) + prior)

    axes = np.linspace(-5, 1.5, 40), np.linspace(-9, 2, 45)
    values = np.array([[joint(a, b) for b in axes[1]] for a in axes[0]])
    whole = integrate.trapezoid(integrate.trapezoid(values, axes[1]), axes[0])
    found = exact_grouped(problem, points=41)
    assert found.log_evidence == pytest.approx(problem.evidence(np.log(whole)), abs=2e-3)


def test_bridge_finds_the_integral_of_a_gaussian():
    rng = np.random.default_rng(0)
    L = np.array([[2.0, 0.0], [0.7, 0.3]])
    draws = rng.normal(size=(4, 2000, 2)) @ L.T + [1.0, -3.0]
    inverse = np.linalg.inv(L @ L.T)

    def log_density(z):
        off = z - jnp.array([1.0, -3.0])
        return 7.5 - 0.5 * jnp.sum((off @ inverse) * off, axis=-1)

    found, error = bridge(log_density, draws)
    assert found == pytest.approx(7.5 + np.log(2 * np.pi * np.linalg.det(L)), abs=0.02)
    assert error < 0.02


def test_sets_are_as_many_and_as_unlike_as_the_page_promises():
    assert len(SETS) == len(DATA_SETS) >= 24
    assert sum(data.family == "gaussian" for data in DATA_SETS) >= 16
    assert {data.family for data in DATA_SETS} == {"gaussian", "bernoulli", "poisson", "negative binomial"}
    for shares in SHARES.values():
        assert sum(shares) == pytest.approx(1)
        assert len(set(shares)) == len(shares)


def test_parts_hold_every_row_once_and_keep_groups_together():
    data = SETS["grunfeld"]
    table = data.load()
    parts = data.parts(table)
    assert sorted(np.concatenate(parts)) == list(range(len(table)))
    firms = [set(table.firm.iloc[part]) for part in parts]
    assert sum(map(len, firms)) == len(set.union(*firms))
    problem, kept = read(data, table)
    assert len(kept) == len(problem.y) == 220


def test_the_closest_gaussian_is_what_a_logistic_regression_finds():
    row = compare(replace(SETS["spector"], formula="GRADE ~ GPA + PSI"), draws=False)
    for name, face in row.faces.items():
        gap, low, high = difference(face, row.gaussians[name])
        assert gap < 1e-3
        assert (low, high) == pytest.approx((1, 1), abs=1e-3)
        assert face.log_evidence == pytest.approx(row.gaussians[name].log_evidence, abs=1e-3)
