"""Scores of predictions, beside scikit-learn's, SciPy's and counting by hand."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error

from partita import metrics

GENERATOR = np.random.default_rng(0)


def drawn(rows=500, classes=4):
    probabilities = GENERATOR.dirichlet(np.full(classes, 0.5), rows)
    return probabilities, np.array([GENERATOR.choice(classes, p=row) for row in probabilities])


def test_errors_and_likelihoods_are_those_of_scikit_learn():
    probabilities, labels = drawn()
    found = metrics.classification(probabilities, labels)
    assert found["error"] == pytest.approx(1 - accuracy_score(labels, probabilities.argmax(axis=1)))
    assert found["nll"] == pytest.approx(log_loss(labels, probabilities))


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_the_calibration_error_counted_row_by_row(bins):
    probabilities, labels = drawn()
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    total = 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        inside = (confidence >= low) & ((confidence < high) | (number == bins - 1))
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert metrics.classification(probabilities, labels, bins)["ece"] == pytest.approx(total)


def test_probabilities_that_are_true_are_calibrated_and_others_are_not():
    probabilities, labels = drawn(rows=20_000)
    assert metrics.classification(probabilities, labels)["ece"] < 0.02
    sure = np.eye(4)[probabilities.argmax(axis=1)]
    assert metrics.classification(sure, labels)["ece"] > 0.2


def test_what_was_thought_impossible_costs_much_but_not_everything():
    found = metrics.classification(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    assert found["error"] == 0.5
    assert 100 < found["nll"] < np.inf


def test_reliability_leaves_out_empty_bins_and_has_every_row_once():
    middle, confidence, accuracy, share = metrics.reliability(
        np.array([[0.95, 0.05], [0.9, 0.1], [0.45, 0.55]]), np.array([0, 1, 1]), bins=10
    )
    assert middle.tolist() == pytest.approx([0.55, 0.95])
    assert confidence.tolist() == pytest.approx([0.55, 0.925])
    assert accuracy.tolist() == pytest.approx([1.0, 0.5])
    assert share.tolist() == pytest.approx([1 / 3, 2 / 3])


def test_intervals_beside_scipy():
    mean, std = GENERATOR.normal(size=300), GENERATOR.uniform(0.5, 2.0, 300)
    targets = mean + std * GENERATOR.normal(size=300)
    found = metrics.intervals(mean, std, targets)
    assert found["nlpd"] == pytest.approx(-norm.logpdf(targets, mean, std).mean())
    low, high = norm.interval(0.95, mean, std)
    assert found["coverage"] == pytest.approx(np.mean((low <= targets) & (targets <= high)))


def test_regression_beside_scikit_learn():
    targets = GENERATOR.normal(size=200)
    prediction = targets + 0.3 * GENERATOR.normal(size=200)
    found = metrics.regression(prediction, targets)
    assert found["rmse"] == pytest.approx(mean_squared_error(targets, prediction) ** 0.5)
    assert found["smse"] == pytest.approx(mean_squared_error(targets, prediction) / targets.var())
    assert metrics.regression(np.full(200, targets.mean()), targets)["smse"] == pytest.approx(1)


def test_targets_that_do_not_vary_have_an_error_that_is_a_number():
    found = metrics.regression(np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    assert found["rmse"] == pytest.approx(0.5**0.5)
    assert np.isfinite(found["smse"])
