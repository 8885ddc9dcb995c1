"""The schematic pictures: what they show are runs, which are right; and that they can be drawn."""

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

from partita.server.schedules import OnePass, Sequential, Synchronous
from partita.studies.pictures import collapsed_bound, continual_steps, federated_steps, granularity, stochastic
from partita.studies.pictures.one_weight import MODEL, SOLVED, WEIGHTS, density, find_optimum, follow, likelihood, shape

NODES, MASSES = np.polynomial.hermite_e.hermegauss(80)
MASSES = MASSES / MASSES.sum()


def best_gaussian(prior, rows):
    """argmax of E_q[log p(y | θ)] - KL(q ‖ prior) over one number's means and deviations, by SciPy alone."""
    (m0, s0), (X, y) = prior, rows

    def loss(free):
        m, s = free[0], np.exp(free[1])
        f = X @ (m + s * NODES)[None]
        expected = np.sum((y[:, None] * f - np.logaddexp(0, f)) @ MASSES)
        return np.log(s0 / s) + (s**2 + (m - m0) ** 2) / (2 * s0**2) - 0.5 - expected

    found = scipy.optimize.minimize(loss, [0.0, 0.0], method="BFGS", options={"gtol": 1e-9}).x
    return found[0], np.exp(found[1])


def moments(q):
    return float(q.location[0]), float(q.scale[0])


def quotient(q, factor):
    """Mean and deviation of a cavity."""
    precision = q.precision[0, 0] - factor.precision[0, 0]
    return float((q.precision_times_location - factor.precision_times_location)[0] / precision), precision**-0.5


def test_the_optimum_is_that_of_another_maximiser():
    rows = granularity.ROWS
    np.testing.assert_allclose(moments(find_optimum([rows])), best_gaussian((0, 3), rows), rtol=1e-5)


def test_steps_end_where_a_fit_ends():
    """Each step of the continual picture is the best Gaussian between its cavity and its batch, by SciPy."""
    run = continual_steps.run()
    before, cavities = moments(MODEL.prior(MODEL.hyper)), []
    for moment in run[:3]:
        cavities.append(before)
        before = moments(moment.event.posterior)
    # The first batch's factor is divided out before it is visited again.
    cavities.append(quotient(run[2].event.posterior, run[2].factors[0]))
    for number, (moment, cavity) in enumerate(zip(run, cavities, strict=True)):
        expected = best_gaussian(cavity, continual_steps.BATCHES[number % 3])
        np.testing.assert_allclose(moments(moment.event.posterior), expected, rtol=1e-4)
    gaps = [float(moment.event.posterior.kl(find_optimum(continual_steps.BATCHES))) for moment in run]
    assert gaps == sorted(gaps, reverse=True)


def test_workers_send_when_they_are_ready_and_nothing_is_lost():
    run, prior = federated_steps.run(), MODEL.prior(MODEL.hyper)
    for site, speed in enumerate(federated_steps.SPEEDS):
        times = [moment.event.clock for moment in run if moment.event.sites == (site,)]
        np.testing.assert_allclose(times, np.arange(1, len(times) + 1) / speed)
    for moment in run:
        product = prior
        for factor in moment.factors:
            product = product * factor
        np.testing.assert_allclose(moment.event.posterior.precision, product.precision, rtol=1e-12)
    assert max(moment.event.staleness for moment in run) > 1
    assert float(run[-1].event.posterior.kl(find_optimum(federated_steps.WORKERS))) < 0.01


@pytest.mark.parametrize("number", granularity.SHOWN)
def test_every_granularity_ends_at_the_optimum_of_global_vi(number):
    together = granularity.measure(number, Synchronous(granularity.PASSES))
    # Property 5: all at once, groups do not matter.
    np.testing.assert_allclose(together, granularity.measure(1, Synchronous(granularity.PASSES)), rtol=1e-5, atol=1e-12)
    assert together[-1] < 1e-3
    assert granularity.measure(number, Sequential(granularity.PASSES))[-1] <= together[-1]
    once = granularity.measure(number, OnePass(), SOLVED)
    assert once[-1] == pytest.approx(0, abs=1e-10) if number == 1 else once[-1] > 0.01


def test_mini_batches_are_ahead_until_the_first_pass_is_over():
    inside = stochastic.average(stochastic.step_inside, 4.0, 1, seeds=2)
    turns = stochastic.average(stochastic.step_between, 1.0, 1, seeds=2)
    assert len(inside) == len(turns) == stochastic.BATCHES
    assert inside[23] < turns[23] / 2
    assert turns[-1] < inside[-1] / 2


def test_slopes_of_the_collapsed_bound_are_those_with_q_fixed():
    """And its values are those of an integral by SciPy."""
    landscape = collapsed_bound.Landscape.of_rows()
    scales, step = np.array([0.7, 2.0, 9.0]), 1e-4
    best = landscape.collapse(scales)
    by_scale, by_location = landscape.slopes(scales, best)
    np.testing.assert_allclose(by_location, 0, atol=1e-9)
    ends = [landscape.values(scales + move, landscape.collapse(scales + move)) for move in (step, -step)]
    np.testing.assert_allclose((ends[0] - ends[1]) / (2 * step), by_scale, rtol=1e-5)
    X, y = collapsed_bound.ROWS
    q, prior = scipy.stats.norm(best[0], landscape.variance**0.5), scipy.stats.norm(0, scales[0])

    def inside(theta):
        log_likelihood = np.sum(y * X[:, 0] * theta - np.logaddexp(0, X[:, 0] * theta))
        return q.pdf(theta) * (log_likelihood + prior.logpdf(theta) - q.logpdf(theta))

    exact = scipy.integrate.quad(inside, best[0] - 12, best[0] + 12, points=[best[0]], limit=200)[0]
    assert landscape.values(scales, best)[0] == pytest.approx(exact, rel=1e-8)


def test_curves_are_densities_and_likelihoods():
    rows = granularity.ROWS
    (moment,) = follow([rows], solver=SOLVED, schedule=Sequential(1), damping=1.0)
    q = moment.event.posterior
    np.testing.assert_allclose(density(q), scipy.stats.norm(*moments(q)).pdf(WEIGHTS), rtol=1e-8, atol=1e-12)
    chance = 1 / (1 + np.exp(-rows[0] @ WEIGHTS[None]))
    exact = np.prod(np.where(rows[1][:, None] == 1, chance, 1 - chance), axis=0)
    np.testing.assert_allclose(likelihood(rows), exact / exact.max(), rtol=1e-8, atol=1e-12)
    prior = scipy.stats.norm(0, 3).pdf(WEIGHTS)
    factor = density(q) / prior
    np.testing.assert_allclose(shape(moment.factors[0]), factor / factor.max(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("picture", [continual_steps, federated_steps, granularity, stochastic, collapsed_bound])
def test_they_can_be_drawn(picture, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    # Fewer points and groups than in the documentation.
    monkeypatch.setattr(collapsed_bound, "SCALES", np.geomspace(0.5, 20, 9))
    monkeypatch.setattr(collapsed_bound, "LOCATIONS", np.linspace(0.2, 4.0, 8))
    monkeypatch.setattr(granularity, "MORE", (1, 4))
    monkeypatch.setattr(stochastic, "PASSES", 1)
    monkeypatch.setattr(stochastic, "average", lambda scheme, rate, passes: np.linspace(1, rate, stochastic.BATCHES))
    picture.draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"
