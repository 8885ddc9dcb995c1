"""Mixtures of Gaussians: scikit-learn's variational mixture, and conjugate formulas, are the references."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_iris

import partita as pt
from partita.errors import InputError, ShardError
from partita.families import NormalWishart
from partita.studies.methods.comparisons import variational_mixture

PRIOR = {"concentration": 0.5, "strength": 0.7, "degrees": 6.0, "scale": 1.5}


@pytest.fixture(scope="module")
def flowers():
    X = load_iris().data[:, [0, 2]]
    return (X - X.mean(axis=0)) / X.std(axis=0)


def fitted(model, shards, start, passes=120):
    schedule = pt.schedules.Sequential(passes=passes)
    return pt.fit(
        model, shards, schedule=schedule, damping=1.0, start=start, solver=pt.solvers.FixedPoint(step_size=1.0)
    )


def test_full_covariances_as_scikit_learn(flowers):
    """The same optimum; scikit-learn's bound leaves out constants, which are the same for every optimum."""
    model = pt.models.GaussianMixture(4, 2, **PRIOR)
    constants, bounds = [], []
    for seed in (0, 5):
        result, other = fitted(model, [flowers], model.begin(flowers, seed)), variational_mixture(model, flowers, seed)
        q = result.posterior.parts
        order, theirs = np.argsort(q["weights"].concentration), np.argsort(other.weight_concentration_)
        assert_allclose(q["weights"].concentration[order], other.weight_concentration_[theirs], rtol=1e-5)
        for ours, k in zip(order, theirs, strict=True):
            one = NormalWishart(*(leaf[ours] for leaf in vars(q["components"].each).values()))
            if other.weight_concentration_[k] > 1:
                assert_allclose(one.location, other.means_[k], rtol=1e-4, atol=1e-6)
                assert_allclose(one.degrees, other.degrees_of_freedom_[k], rtol=1e-5)
                assert_allclose(one.inverse_scale / one.degrees, other.covariances_[k], rtol=1e-4, atol=1e-6)
        constants.append(result.log_evidence - other.lower_bound_)
        bounds.append(result.log_evidence)
    assert_allclose(constants[0], constants[1], atol=1e-6)
    assert np.all(model.responsibilities(result.posterior, flowers).sum(axis=1) == pytest.approx(1.0))


@pytest.mark.parametrize("covariance", ["diagonal", "spherical"])
def test_one_feature_as_scikit_learn(flowers, covariance):
    """Where all covariances are numbers; with more features scikit-learn's are no longer the variational optimum."""
    X = flowers[:, :1]
    model = pt.models.GaussianMixture(2, 1, covariance=covariance, **PRIOR)
    result, other = fitted(model, [X], model.begin(X), 600), variational_mixture(model, X)
    order, theirs = np.argsort(result.posterior.parts["weights"].concentration), np.argsort(other.weight_concentration_)
    assert_allclose(
        result.posterior.parts["weights"].concentration[order], other.weight_concentration_[theirs], rtol=1e-4
    )
    each = result.posterior.parts["components"].each
    assert_allclose(2 * each.shape[order], other.degrees_of_freedom_[theirs], rtol=1e-4)
    location = each.precision_times_location[:, 0] / each.precision[:, 0, 0]
    assert_allclose(location[order], other.means_[theirs, 0], rtol=1e-3)


@pytest.mark.parametrize("covariance", ["diagonal", "spherical"])
def test_one_component_is_conjugate(flowers, covariance):
    """Normal-gamma by the textbook: n/2 more in the shape for each number that a variance is learnt from."""
    n, d = flowers.shape
    model = pt.models.GaussianMixture(1, d, covariance=covariance, **PRIOR)
    each = pt.fit(model, [flowers], start=model.begin(flowers)).posterior.parts["components"].each
    beta = PRIOR["strength"] + n
    centre = flowers.sum(axis=0) / beta
    spread = (flowers**2).sum(axis=0) - beta * centre**2
    if covariance == "spherical":
        assert_allclose(each.shape, [PRIOR["degrees"] / 2 + n * d / 2])
        assert_allclose(each.scatter[0] - beta * centre @ centre, PRIOR["scale"] + spread.sum(), rtol=1e-10)
        assert_allclose(each.precision_times_location[0], beta * centre, atol=1e-10)
    else:
        assert_allclose(each.shape, np.full(d, PRIOR["degrees"] / 2 + n / 2))
        assert_allclose(each.scatter - beta * centre**2, PRIOR["scale"] + spread, rtol=1e-10)
        assert_allclose(each.precision_times_location[:, 0], beta * centre, atol=1e-10)


@pytest.mark.slow
def test_any_partition_has_the_same_optimum_and_no_pass_loses(flowers):
    model = pt.models.GaussianMixture(2, 2, **PRIOR)
    start = model.begin(flowers)
    whole = fitted(model, [flowers], start)
    parted = fitted(model, [flowers[:20], flowers[20:90], flowers[90:]], start)
    assert_allclose(parted.log_evidence, whole.log_evidence, rtol=1e-9)
    assert_allclose(
        parted.posterior.parts["weights"].concentration, whole.posterior.parts["weights"].concentration, rtol=1e-5
    )
    energies = [row["free_energy"] for row in whole.history if row["free_energy"] is not None]
    assert np.all(np.diff(energies) > -1e-9 * np.abs(energies[-1]))


def test_refusals(flowers):
    with pytest.raises(InputError, match="covariance: expected one of full"):
        pt.models.GaussianMixture(2, 2, covariance="tied")
    with pytest.raises(InputError, match="degrees: must be larger than 1"):
        pt.models.GaussianMixture(2, 2, degrees=1.0)
    model = pt.models.GaussianMixture(2, 3)
    with pytest.raises(ShardError, match="rows of 3 numbers"):
        pt.fit(model, [flowers])
    with pytest.raises(InputError, match="needs at least 2 rows"):
        pt.models.GaussianMixture(2, 2).begin(flowers[:1])
