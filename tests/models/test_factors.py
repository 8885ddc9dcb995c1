"""Factor analysis: scikit-learn's maximum likelihood, the exact density of rows, and partitions that do not matter."""

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose
from sklearn.datasets import load_wine
from sklearn.decomposition import FactorAnalysis as Reference

import partita as pt
from partita.errors import InputError, ShardError
from partita.fitting import evidence
from partita.server.schedules import Sequential
from partita.solvers import FixedPoint

ROWS = load_wine().data[:, :6]
ROWS = (ROWS - ROWS.mean(axis=0)) / ROWS.std(axis=0)
MODEL = pt.models.FactorAnalysis(features=6, factors=2)


def fitted(parts, passes):
    return pt.fit(
        MODEL,
        parts,
        solver=FixedPoint(step_size=1.0),
        schedule=Sequential(passes, together=True),
        damping=1.0,
        start=MODEL.begin(ROWS),
    )


@pytest.fixture(scope="module")
def batch():
    return fitted([ROWS], 300)


def test_it_is_near_maximum_likelihood_with_178_rows(batch):
    reference = Reference(2, tol=1e-8, max_iter=5000).fit(ROWS)
    ours = scipy.stats.multivariate_normal(np.zeros(6), MODEL.covariance(batch.posterior)).logpdf(ROWS).mean()
    best = reference.score(ROWS)
    assert best - 0.05 < ours <= best + 1e-6


def test_sites_in_turn_end_where_all_rows_together_do(batch):
    parts = [ROWS[i::3] for i in range(3)]
    bounds = [row["free_energy"] for row in batch.history if row["free_energy"] is not None]
    assert np.all(np.diff(bounds) > -1e-8)
    apart = fitted(parts, 150)
    assert apart.log_evidence == pytest.approx(batch.log_evidence, abs=1e-3)
    assert evidence(MODEL, parts, batch.posterior) == pytest.approx(batch.log_evidence, abs=1e-9)


def test_the_bound_is_below_the_exact_density_and_codes_are_its_best():
    with pt.foundation.runtime.precision(np.float64):
        generator = np.random.default_rng(0)
        W, precision = generator.normal(size=(6, 3)), generator.gamma(5.0, 0.2, 6)
        certain = [
            pt.families.NormalGamma.from_parameters(w, 1e8 * np.eye(3), 1e8 * p, 1e8)
            for w, p in zip(W, precision, strict=True)
        ]
        mean = pt.families.Independent.of(certain).mean()
        bound = np.asarray(MODEL.expected_log_prob(mean, ROWS[:20], {}))
        exact = np.asarray(MODEL.log_prob((W, precision), ROWS[:20], {}))
    covariance = W[:, :2] @ W[:, :2].T + np.diag(1 / precision)
    assert_allclose(exact, scipy.stats.multivariate_normal(W[:, 2], covariance).logpdf(ROWS[:20]), rtol=1e-9)
    assert_allclose(bound, exact, atol=1e-4)


def test_bad_rows_are_refused():
    with pytest.raises(ShardError, match="rows of 6"):
        MODEL.shard(0, ROWS[:, :3])
    with pytest.raises(InputError, match="begin"):
        MODEL.begin(ROWS[:2])
    with pytest.raises(InputError, match="factors"):
        pt.models.FactorAnalysis(features=3, factors=0)
