"""Poisson factorisation: draws, quadrature with one pattern, scikit-learn's NMF, and partitions."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from sklearn.datasets import load_digits
from sklearn.decomposition import NMF

import partita as pt
from partita.errors import InputError, ShardError
from partita.families import Gamma
from partita.fitting import evidence
from partita.server.schedules import Sequential
from partita.solvers import FixedPoint

COUNTS = load_digits().data[:90]
MODEL = pt.models.PoissonFactorisation(64, 4)


def fitted(parts, passes):
    return pt.fit(
        MODEL,
        parts,
        solver=FixedPoint(step_size=1.0),
        schedule=Sequential(passes, together=True),
        damping=1.0,
        start=MODEL.begin(),
    )


def test_with_one_known_pattern_the_bound_is_the_exact_evidence():
    """One pattern: weights are conjugate, and the bound is tight."""
    model = pt.models.PoissonFactorisation(3, 1, row_shape=1.3, row_rate=0.4)
    pattern, rows = np.array([[0.5, 2.0, 1.0]]), np.array([[1.0, 3.0, 0.0], [0.0, 0.0, 2.0]])
    with pt.foundation.runtime.precision(np.float64):
        bound = np.asarray(model.log_prob(pattern, rows, {}))
    for row, value in zip(rows, bound, strict=True):
        exact, _ = scipy.integrate.quad(
            lambda t, row=row: (
                np.exp(scipy.stats.poisson.logpmf(row, t * pattern[0]).sum())
                * scipy.stats.gamma(1.3, scale=1 / 0.4).pdf(t)
            ),
            0,
            np.inf,
        )
        assert value == pytest.approx(np.log(exact), abs=1e-7)


def test_bounds_never_fall_and_partitions_agree():
    batch = fitted([COUNTS], 25)
    bounds = [row["free_energy"] for row in batch.history if row["free_energy"] is not None]
    assert np.all(np.diff(bounds) > -1e-6)
    apart = fitted([COUNTS[i::3] for i in range(3)], 25)
    assert apart.log_evidence > batch.log_evidence - 20
    assert evidence(MODEL, [COUNTS[:40], COUNTS[40:]], batch.posterior) == pytest.approx(batch.log_evidence, abs=1e-3)


def test_patterns_explain_counts_about_as_well_as_the_best_factorisation():
    q = fitted([COUNTS], 25).posterior
    with pt.foundation.runtime.precision(np.float64):
        shape, rate = MODEL.weights(q.mean(), COUNTS)
    ours = np.asarray(shape / rate) @ np.asarray(q.shape / q.rate)
    best = NMF(4, beta_loss="kullback-leibler", solver="mu", max_iter=2000, init="random", random_state=0).fit(COUNTS)
    theirs = best.transform(COUNTS) @ best.components_
    scores = [scipy.stats.poisson.logpmf(COUNTS, np.maximum(rates, 1e-9)).sum() for rates in (ours, theirs)]
    alone = scipy.stats.poisson.logpmf(COUNTS, np.maximum(COUNTS.mean(axis=0), 1e-9)).sum()
    assert scores[0] > alone + 0.9 * (scores[1] - alone)


def test_the_bound_is_below_what_draws_say():
    q = Gamma.from_shape_rate(np.full((4, 64), 3.0), np.full((4, 64), 2.0))
    generator = np.random.default_rng(0)
    with pt.foundation.runtime.precision(np.float64):
        bound = np.asarray(MODEL.expected_log_prob(q.mean(), COUNTS[:3], {}))
    patterns = generator.gamma(3.0, 0.5, (2000, 4, 64))
    weights = generator.gamma(MODEL.row_shape, 1 / MODEL.row_rate, (2000, 4))
    for row, value in zip(COUNTS[:3], bound, strict=True):
        assert value < 0
        drawn = scipy.stats.poisson.logpmf(row, np.einsum("sk,skw->sw", weights, patterns)).sum(axis=1)
        assert value > drawn.mean()


def test_bad_counts_are_refused():
    with pytest.raises(ShardError, match="64 counts"):
        MODEL.shard(0, COUNTS[:, :3])
    with pytest.raises(ShardError, match="whole numbers"):
        MODEL.shard(0, COUNTS[:2] + 0.5)
    with pytest.raises(InputError, match="patterns"):
        pt.models.PoissonFactorisation(3, 0)
