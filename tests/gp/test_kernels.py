"""Kernels against scikit-learn's, and what a kernel has to hold."""

import jax
import numpy as np
import pytest
from sklearn.gaussian_process import kernels as reference

from partita.errors import InputError
from partita.foundation.runtime import precision
from partita.gp import kernels

LENGTHS = np.array([0.7, 1.9, 0.3])
PAIRS = {
    "SquaredExponential": reference.RBF(LENGTHS),
    "Matern12": reference.Matern(LENGTHS, nu=0.5),
    "Matern32": reference.Matern(LENGTHS, nu=1.5),
    "Matern52": reference.Matern(LENGTHS, nu=2.5),
}


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    return generator.normal(size=(7, 3)), generator.normal(size=(5, 3))


def values(kernel, X, Z):
    params = kernel.initial(3)
    with precision(np.float64):
        return tuple(map(np.asarray, (kernel.cross(params, X, Z), kernel.gram(params, X), kernel.diagonal(params, X))))


@pytest.mark.parametrize("name", PAIRS)
def test_stationary_kernels(rows, name):
    X, Z = rows
    cross, gram, diagonal = values(kernels.KERNELS[name](variance=1.7, lengthscale=tuple(LENGTHS)), X, Z)
    np.testing.assert_allclose(cross, 1.7 * PAIRS[name](X, Z), rtol=1e-10)
    np.testing.assert_allclose(gram, 1.7 * PAIRS[name](X), rtol=1e-7)
    np.testing.assert_allclose(diagonal, 1.7)


def test_sums_products_and_white_noise(rows):
    X, Z = rows
    first, second = kernels.SquaredExponential(0.5, 1.3), kernels.Matern32(2.0, 0.8)
    ours = first * second + kernels.White(0.2)
    theirs = 0.5 * reference.RBF(1.3) * 2.0 * reference.Matern(0.8, nu=1.5) + reference.WhiteKernel(0.2)
    cross, gram, diagonal = values(ours, X, Z)
    np.testing.assert_allclose(cross, theirs(X, Z), rtol=1e-10)
    np.testing.assert_allclose(gram, theirs(X), rtol=1e-7)
    np.testing.assert_allclose(diagonal, theirs.diag(X))
    # The same place twice is two inputs to `cross`, and one to `gram`.
    assert values(ours, X, X)[0].trace() < gram.trace()


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Matern32(0.7, tuple(LENGTHS)),
        kernels.SquaredExponential(0.5, 1.3) * kernels.Matern12(2.0, 0.8) + kernels.White(0.2),
    ],
)
def test_parameters_in_other_units_make_the_same_kernel(rows, kernel):
    X, Z = rows
    inputs, targets = np.array([3.0, 0.01, 40.0]), 7.0
    params = kernel.initial(3)
    grown = {name: params[name] * factor for name, factor in kernel.in_units(inputs, targets).items()}
    assert grown.keys() == params.keys()
    with precision(np.float64):
        np.testing.assert_allclose(
            kernel.cross(grown, X * inputs, Z * inputs), targets**2 * kernel.cross(params, X, Z), rtol=1e-9
        )
        np.testing.assert_allclose(kernel.diagonal(grown, X), targets**2 * kernel.diagonal(params, X))


@pytest.mark.parametrize("name", PAIRS)
def test_gradients_are_finite_where_rows_are_equal(name):
    kernel, X = kernels.KERNELS[name](), np.zeros((2, 3))
    with precision(np.float64):
        gradient = jax.grad(lambda X: kernel.gram(kernel.initial(3), X).sum())(X)
    assert np.all(np.isfinite(gradient))


def test_one_lengthscale_or_one_per_feature():
    assert kernels.Matern52().initial(4)["lengthscale"] == pytest.approx(np.full(4, 2.0))
    assert kernels.Matern52(ard=False, lengthscale=3.0).initial(4)["lengthscale"].shape == ()
    with pytest.raises(InputError, match="expected 4 of them"):
        kernels.Matern52(lengthscale=(1.0, 2.0)).initial(4)
    with pytest.raises(InputError, match="lengthscale: expected a positive"):
        kernels.Matern52(lengthscale=-1.0)
    with pytest.raises(InputError, match="expected a kernel"):
        kernels.Matern52() + 3


def test_kernels_are_stored_as_plain_values():
    kernel = kernels.SquaredExponential(0.5, (1.0, 2.0)) * kernels.Matern12() + kernels.White(0.01)
    assert kernels.from_settings(kernels.to_settings(kernel)) == kernel
    with pytest.raises(InputError, match="is not known"):
        kernels.from_settings({"kernel": "eval"})
