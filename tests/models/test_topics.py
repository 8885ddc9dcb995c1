"""Latent Dirichlet allocation: scikit-learn's, on images of digits as documents whose words are pixels."""

import numpy as np
import pytest
import scipy.sparse
import scipy.special
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits
from sklearn.decomposition import LatentDirichletAllocation

import partita as pt
from partita.errors import InputError, ShardError
from partita.families import Dirichlet
from partita.families.gamma import positive_digamma
from partita.fitting import evidence

COUNTS = load_digits().data[:120]
MODEL = pt.models.LatentDirichletAllocation(
    4, 64, concentration=0.3, document_concentration=0.2, iterations=2000, tolerance=1e-9
)


def reference(iterations):
    model = LatentDirichletAllocation(
        4, topic_word_prior=0.3, doc_topic_prior=0.2, max_iter=iterations, mean_change_tol=1e-9,
        max_doc_update_iter=2000, learning_method="batch", random_state=0,
    )  # fmt: skip
    return model.fit(COUNTS)


def settings(passes):
    schedule, solver = pt.schedules.Sequential(passes=passes), pt.solvers.FixedPoint(step_size=1.0)
    return {"schedule": schedule, "solver": solver, "damping": 1.0}


def test_bound_step_and_shares_are_those_of_scikit_learn():
    before, after = reference(4), reference(5)
    q = Dirichlet.from_concentration(before.components_)
    assert_allclose(evidence(MODEL, [COUNTS], q), before.score(COUNTS), rtol=1e-8)
    step = pt.fit(MODEL, [COUNTS], start=q, **settings(1)).posterior
    assert_allclose(step.concentration, after.components_, rtol=1e-6)
    assert_allclose(MODEL.shares(q, COUNTS), before.transform(COUNTS), atol=1e-6)


def test_incremental_inference_never_loses_and_ends_no_worse_than_batch():
    """One site per batch of documents, in turn (Archambeau and Ermis, 2015)."""
    parts = [scipy.sparse.csr_array(COUNTS[i::4]) for i in range(4)]
    run = pt.events(MODEL, parts, start=MODEL.begin(), **settings(12))
    bounds = [evidence(MODEL, parts, event.posterior) for event in run if event.fold % 4 == 0]
    assert np.all(np.diff(bounds) > 0)
    batch = pt.fit(MODEL, [COUNTS], start=MODEL.begin(), **settings(12))
    assert bounds[-1] > batch.log_evidence


def test_digamma_of_positive_numbers():
    x = np.geomspace(1e-6, 1e6, 2001)
    with pt.foundation.runtime.precision(np.float64):
        gap = np.abs(np.asarray(positive_digamma(x)) - scipy.special.digamma(x))
    assert np.all(gap < 1e-12 * np.maximum(1, np.abs(scipy.special.digamma(x))))


def test_shares_come_back_in_the_order_of_documents():
    q = pt.fit(MODEL, [COUNTS], start=MODEL.begin(), **settings(2)).posterior
    backwards = MODEL.shares(q, COUNTS[::-1])
    assert_allclose(backwards[::-1], MODEL.shares(q, COUNTS), atol=5e-3)


def test_layouts_of_counts_agree():
    dense = MODEL.shard(0, COUNTS[:3])
    sparse = MODEL.shard(0, scipy.sparse.coo_array(COUNTS[:3]))
    for a, b in zip(dense.data, sparse.data, strict=True):
        assert np.array_equal(a, b)
    back = np.zeros((3, 64))
    for row, (words, counts) in enumerate(zip(*dense.data, strict=True)):
        np.add.at(back[row], words, counts)
    order = np.argsort((COUNTS[:3] > 0).sum(axis=1), kind="stable")
    assert np.array_equal(back, COUNTS[:3][order])
    without = np.vstack([COUNTS[:1], np.zeros((1, 64)), COUNTS[1:2]])
    assert MODEL.shard(0, without).rows == 2


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        (np.ones((2, 5)), "counts of 64 words, got 5"),
        (-COUNTS[:2], "not negative"),
        (np.zeros((2, 64)), "no words at all"),
        (np.ones(64), "documents by words"),
        (np.full((1, 64), np.nan), "finite"),
    ],
)
def test_bad_documents_are_refused(documents, problem):
    with pytest.raises(ShardError, match=problem):
        MODEL.shard(0, documents)


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="topics"):
        pt.models.LatentDirichletAllocation(0, 5)
    with pytest.raises(InputError, match="concentration"):
        pt.models.LatentDirichletAllocation(2, 5, concentration=0.0)
