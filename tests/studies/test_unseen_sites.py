"""Factors that are guessed before their sites are asked."""

import numpy as np
import pytest

import partita as pt
from partita.studies import unseen_sites
from partita.studies.unseen_sites import InferenceNetwork, first_pass, guess_average, guess_by_rows, guess_last


@pytest.fixture(autouse=True)
def in_double_precision():
    with pt.foundation.runtime.precision(np.float64):
        yield


def test_guesses_from_factors_are_what_the_paper_says():
    first, second = (pt.families.MeanField(np.array([a, 1.0]), np.array([b, 4.0])) for a, b in ((2.0, 3.0), (4.0, 9.0)))
    data = (np.zeros((6, 2)), np.zeros(6))
    assert guess_last([first, second], [2, 1], data) is second
    average = guess_average([first, second], [2, 1], data)
    np.testing.assert_allclose(average.precision, [6.0, 4.0])
    np.testing.assert_allclose(average.precision_times_location, [3.0, 1.0])
    np.testing.assert_allclose(guess_by_rows([first, second], [2, 1], data).precision, [24.0, 16.0])


def test_a_site_with_the_same_rows_twice_is_guessed_exactly():
    """At a fixed point messages add up over rows, so that the average per row of one site is that of its double."""
    ((X, y),) = unseen_sites.make_sites(1, seed=3)
    double = (np.concatenate([X, X]), np.concatenate([y, y]))
    one, two = unseen_sites.settle([(X, y), double], passes=80).factors
    np.testing.assert_allclose(guess_by_rows([one], [len(y)], double).precision, two.precision, rtol=1e-6)


def test_an_inference_network_knows_unseen_sites_better_than_averages_do():
    """Of factors that it was not trained on: what they say, site by site."""
    sites = unseen_sites.make_sites(40, seed=1)
    factors = unseen_sites.settle(sites, passes=10).factors
    network = InferenceNetwork(sites[:30], factors[:30])
    rows = [len(y) for _, y in sites[:30]]

    def off(guess):
        gaps = [
            np.log(guess(data).precision / factor.precision)
            for data, factor in zip(sites[30:], factors[30:], strict=True)
        ]
        return np.abs(gaps).mean()

    assert off(network) < 0.4 * off(lambda data: guess_by_rows(factors[:30], rows, data))
    assert off(network) < 0.25


def test_every_guess_is_measured(monkeypatch):
    monkeypatch.setattr(unseen_sites, "SEEN", 5)
    monkeypatch.setattr(unseen_sites, "UNSEEN", 2)
    found = unseen_sites.measure(seed=1)
    assert list(found) == [*unseen_sites.GUESSES, "the inference network"]
    assert all(len(values) == 3 and np.isfinite(values).all() and min(values) > 0 for values in found.values())


def test_a_first_pass_with_flat_guesses_is_one_pass():
    sites = unseen_sites.make_sites(3, seed=5)
    ours = unseen_sites.product(first_pass(sites, unseen_sites.guess_nothing))
    settings = {"solver": unseen_sites.SOLVER, "damping": 1.0}
    theirs = pt.fit(unseen_sites.MODEL, sites, schedule=pt.schedules.OnePass(), **settings)
    np.testing.assert_allclose(ours.precision, unseen_sites.product(theirs.factors).precision, rtol=1e-6)


def test_networks_are_the_same_with_the_same_seed():
    sites = unseen_sites.make_sites(8, seed=2)
    factors = unseen_sites.settle(sites, passes=3).factors
    one, two = (InferenceNetwork(sites, factors, seed=4)(sites[0]) for _ in range(2))
    np.testing.assert_array_equal(one.precision, two.precision)
