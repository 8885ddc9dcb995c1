"""Expectations of likelihoods against SciPy's quadrature."""

import numpy as np
import pytest
from scipy import integrate, stats

from partita.errors import InputError
from partita.foundation.runtime import precision
from partita.gp import likelihoods

CASES = [
    (likelihoods.Normal(0.4), 0.7, lambda y, f: stats.norm.logpdf(y, f, 0.4)),
    (likelihoods.Probit(), 1.0, lambda y, f: stats.norm.logcdf((2 * y - 1) * f)),
    (likelihoods.Logit(), 0.0, lambda y, f: -np.logaddexp(0, -(2 * y - 1) * f)),
    (likelihoods.Poisson(), 3.0, lambda y, f: stats.poisson.logpmf(y, np.exp(f))),
    (likelihoods.Volatility(0.6), 0.9, lambda y, f: stats.norm.logpdf(y, 0, 0.6 * np.exp(f / 2))),
    (likelihoods.StudentT(0.5, 5.0), 0.7, lambda y, f: stats.t.logpdf(y, 5.0, f, 0.5)),
]
NAMES = [type(case[0]).__name__ for case in CASES]


def expected(function, m, v):
    density = stats.norm(m, np.sqrt(v)).pdf
    edge = 10 * np.sqrt(v)
    return integrate.quad(lambda f: density(f) * function(f), m - edge, m + edge, limit=200)[0]


@pytest.mark.parametrize(("likelihood", "y", "log_prob"), CASES, ids=NAMES)
def test_expectations_terms_and_responses(likelihood, y, log_prob):
    m, v = 0.3, 0.5
    params = likelihood.initial()
    with precision(np.float64):
        given = (params, np.array([m]), np.array([v]), np.array([y]))
        value = float(likelihood.expected(*given)[0])
        g, h = (float(part[0]) for part in likelihood.gaussian_terms(*given))
        mean, variance = (float(part[0]) for part in likelihood.response(*given[:3]))
    assert value == pytest.approx(expected(lambda f: log_prob(y, f), m, v), abs=2e-5)
    step = 1e-4
    by_mean = (expected(lambda f: log_prob(y, f), m + step, v) - expected(lambda f: log_prob(y, f), m - step, v)) / (
        2 * step
    )
    by_variance = (
        expected(lambda f: log_prob(y, f), m, v + step) - expected(lambda f: log_prob(y, f), m, v - step)
    ) / (2 * step)
    assert h == pytest.approx(-2 * by_variance, rel=5e-3)
    assert g == pytest.approx(by_mean + h * m, rel=5e-3)
    with precision(np.float64):
        first, second = likelihood.moments(params, np.array([m]))
    if isinstance(likelihood, likelihoods.Bernoulli):
        assert mean == pytest.approx(expected(lambda f: np.exp(log_prob(1.0, f)), m, v), abs=1e-6)
    assert variance >= float(second[0]) - 1e-9 or isinstance(likelihood, likelihoods.Bernoulli)
    assert np.isfinite(float(first[0]))


def test_an_outlier_counts_less():
    likelihood = likelihoods.StudentT(0.5, 5.0)
    with precision(np.float64):
        m, v = np.array([0.3, 0.3]), np.array([0.5, 0.5])
        g, h = (
            np.asarray(part) for part in likelihood.gaussian_terms(likelihood.initial(), m, v, np.array([0.7, 9.0]))
        )
    assert 0 < h[1] < 0.1 * h[0]
    # It pulls, but not as its distance would.
    assert 0 < g[1] - h[1] * 0.3 < 2
    with pytest.raises(InputError, match="more than 2"):
        likelihoods.StudentT(freedom=1.5)


def test_draws_have_the_moments_that_are_claimed():
    generator = np.random.default_rng(0)
    for likelihood, _, _ in CASES:
        f = np.full(40_000, 0.4)
        with precision(np.float64):
            draws = likelihood.draw(likelihood.initial(), f, generator)
            mean, variance = (float(part[0]) for part in likelihood.moments(likelihood.initial(), f[:1]))
        assert draws.mean() == pytest.approx(mean, abs=5 * np.sqrt(variance / len(f)))


def test_targets_that_cannot_be():
    with pytest.raises(InputError, match="labels 0 and 1"):
        likelihoods.Probit().check(np.array([0.0, 2.0]))
    with pytest.raises(InputError, match="counts"):
        likelihoods.Poisson().check(np.array([0.5]))
    with pytest.raises(InputError, match="noise: expected a positive"):
        likelihoods.Normal(0.0)
    with pytest.raises(InputError, match="expected one of gaussian"):
        likelihoods.find_likelihood("cauchy")
    with pytest.raises(InputError, match=r"expected one of gaussian, .* got \['logit'\]"):
        likelihoods.find_likelihood(["logit"])


def test_likelihoods_are_stored_as_plain_values():
    for likelihood, _, _ in CASES:
        assert likelihoods.from_settings(likelihoods.to_settings(likelihood)) == likelihood
