"""Wide priors and unlike units: where the prior's expectations overflow, or say little of where the data lead."""

import numpy as np
import pytest

import partita as pt

ROWS, FEATURES, SITES = 300, 3, 4
SCHEDULES = [pt.schedules.Synchronous(rounds=40), pt.schedules.Sequential(passes=20)]


def table(likelihood, units):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(ROWS, FEATURES))
    f = X @ [0.6, -0.5, 0.3] + 0.3
    y = generator.poisson(np.exp(f)) if likelihood == "counts" else generator.random(ROWS) < 1 / (1 + np.exp(-f))
    return X * [units, 1 / units, 1.0], y.astype(int)


def model_of(likelihood, scale):
    kind = pt.models.PoissonRegression if likelihood == "counts" else pt.models.LogisticRegression
    return kind(FEATURES, prior_scale=scale)


def residues(likelihood, X, y, prior, posterior):
    """What is left of the gradients of the pooled bound, in standard deviations of the posterior.

    They vanish at its only maximum: of locations, and of precisions.
    """
    X = np.column_stack([X, np.ones(len(X))])
    mean, cov = np.asarray(posterior.location), np.asarray(posterior.covariance)
    m, v = X @ mean, np.einsum("nd,de,ne->n", X, cov, X)
    if likelihood == "counts":
        rate = np.exp(m + v / 2)
        slope, bend = y - rate, rate
    else:
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        p = 1 / (1 + np.exp(-(m[:, None] + np.sqrt(v)[:, None] * nodes)))
        weights = weights / weights.sum()
        slope, bend = y - p @ weights, (p * (1 - p)) @ weights
    before = np.asarray(prior.covariance)
    sds = np.sqrt(np.diag(cov))
    location = (X.T @ slope - np.linalg.solve(before, mean - np.asarray(prior.location))) * sds
    precision = (np.linalg.inv(before) + X.T @ (bend[:, None] * X)) @ cov - np.eye(len(mean))
    return np.abs(location).max(), np.abs(precision * sds[:, None] / sds).max()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["synchronous", "sequential"])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("units", [1000.0, 0.001])
@pytest.mark.parametrize("likelihood", ["counts", "labels"])
def test_the_pooled_optimum_is_reached(likelihood, units, scale, schedule):
    X, y = table(likelihood, units)
    shards = pt.datasets.split((X, y), sites=SITES, how="by-label" if likelihood == "labels" else "iid", seed=0)
    result = pt.fit(model_of(likelihood, scale), shards, schedule=schedule)
    location, precision = residues(likelihood, X, y, result.prior, result.posterior)
    assert location < 1e-2
    assert precision < 1e-2
