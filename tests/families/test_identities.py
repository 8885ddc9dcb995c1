"""Every family goes through the same identities; SciPy and Monte Carlo are the references."""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, linalg, stats

from partita.errors import FamilyMismatch, MissingCapability, PartitaError
from partita.families import (
    REGISTRY,
    AbstractGaussian,
    Beta,
    BlockGaussian,
    Categorical,
    Dirichlet,
    Family,
    Gamma,
    Gaussian,
    Independent,
    MeanField,
    NormalGamma,
    NormalWishart,
    Product,
    Substitution,
    WeightsAndNoise,
    inner,
)
from partita.foundation.points import white_points
from partita.foundation.runtime import on_host, precision

DRAWS = (2, 10_000)
# Monte Carlo averages of fixed seeds have to be within this many standard errors.
ERRORS = 4.5


class Example(NamedTuple):
    """How to build a family, two sets of parameters, and the normalised log density that SciPy gives them."""

    build: Callable[..., Family]
    first: tuple
    second: tuple
    log_density: Callable[..., float]


def mean_field_log_density(x, location, scale):
    return sum(stats.norm.logpdf(x[name], location[name], scale[name]).sum() for name in x)


def normal_gamma_log_density(x, location, precision, shape, rate):
    normal = stats.multivariate_normal(location, np.linalg.inv(x.precision * precision))
    return normal.logpdf(x.location) + stats.gamma.logpdf(x.precision, shape, scale=1 / rate)


def normal_wishart_log_density(x, location, strength, inverse_scale, degrees):
    normal = stats.multivariate_normal(location, np.linalg.inv(strength * x.precision))
    return normal.logpdf(x.location) + stats.wishart.logpdf(x.precision, float(degrees), np.linalg.inv(inverse_scale))


def gamma_log_density(x, shape, rate):
    return stats.gamma.logpdf(x, shape, scale=1 / rate).sum()


def product_log_density(x, weights, rate):
    return mean_field_log_density({"w": x["weights"]}, {"w": weights[0]}, {"w": weights[1]}) + gamma_log_density(
        x["rate"], *rate
    )


def independent_log_density(x, *each):
    rows = (jax.tree.map(lambda leaf, k=k: leaf[k], x) for k in range(len(each)))
    return sum(normal_gamma_log_density(row, *parameters) for row, parameters in zip(rows, each, strict=True))


def weights_and_noise_log_density(x, own_precision, log_coefficient, scatter, h, P):
    """Unnormalised, minus the logarithm of an integral over log σ with the weights integrated out by SciPy's normal."""

    def gaussian(tau):
        V = np.linalg.inv(np.diag(own_precision) + tau * P)
        m = V @ (tau * h)
        return m, V, 0.5 * tau * h @ m + 0.5 * np.linalg.slogdet(2 * np.pi * V)[1]

    def log_density(log_sigma):
        tau = np.exp(-2 * log_sigma)
        prior = np.log(2) + stats.t.logpdf(np.exp(log_sigma), 3) + log_sigma
        return prior + log_coefficient * np.log(tau) - 0.5 * scatter * tau + gaussian(tau)[2]

    total = integrate.quad(lambda s: np.exp(log_density(s)), -12, 20, points=[-3, -1, 0, 1, 3], limit=500)[0]
    log_sigma = -0.5 * np.log(x.precision)
    m, V, _ = gaussian(x.precision)
    # dσ = ½ σ³ dτ.
    jacobian = -log_sigma + np.log(0.5) + 3 * log_sigma
    return stats.multivariate_normal.logpdf(x.location, m, V) + log_density(log_sigma) - np.log(total) + jacobian


def weights_and_noise(own_precision, log_coefficient, scatter, h, P):
    before = WeightsAndNoise.before_data(own_precision, 1.0)
    return dataclasses.replace(
        before, log_coefficient=log_coefficient, scatter=scatter, precision_times_location=h, precision=P
    )


EXAMPLES = {
    "MeanField": Example(
        MeanField.from_moments,
        (
            {"w": np.array([[0.5, -1.0]]), "b": np.array(2.0)},
            {"w": np.array([[0.3, 2.0]]), "b": np.array(0.7)},
        ),
        (
            {"w": np.array([[0.1, 1.0]]), "b": np.array(1.0)},
            {"w": np.array([[0.5, 1.0]]), "b": np.array(1.2)},
        ),
        mean_field_log_density,
    ),
    "Gaussian": Example(
        Gaussian.from_moments,
        (np.array([1.0, -2.0]), np.array([[2.0, 0.6], [0.6, 0.5]])),
        (np.array([0.5, 0.0]), np.array([[1.0, -0.3], [-0.3, 0.8]])),
        lambda x, location, covariance: stats.multivariate_normal.logpdf(x, location, covariance),
    ),
    "BlockGaussian": Example(
        BlockGaussian.from_moments,
        (np.array([1.0, -2.0, 0.5]), [np.array([[2.0, 0.6], [0.6, 0.5]]), np.array([[0.3]])]),
        (np.array([0.5, 0.0, 0.0]), [np.array([[1.0, -0.3], [-0.3, 0.8]]), np.array([[1.2]])]),
        lambda x, location, blocks: stats.multivariate_normal.logpdf(x, location, linalg.block_diag(*blocks)),
    ),
    "Gamma": Example(
        Gamma.from_shape_rate,
        (np.array([0.7, 3.0]), np.array([2.0, 0.5])),
        (np.array([2.0, 1.5]), np.array([1.0, 1.5])),
        gamma_log_density,
    ),
    "Beta": Example(
        Beta.from_concentrations,
        (np.array(2.5), np.array(0.8)),
        (np.array(1.5), np.array(3.0)),
        stats.beta.logpdf,
    ),
    "Dirichlet": Example(
        Dirichlet.from_concentration,
        (np.array([0.6, 2.0, 5.0]),),
        (np.array([1.5, 1.2, 2.0]),),
        lambda x, concentration: stats.dirichlet.logpdf(x / x.sum(), concentration),
    ),
    "Categorical": Example(
        Categorical.from_probabilities,
        (np.array([0.1, 0.6, 0.3]),),
        (np.array([0.5, 0.2, 0.3]),),
        lambda x, p: stats.rv_discrete(values=(np.arange(3), p)).logpmf(x),
    ),
    "NormalGamma": Example(
        NormalGamma.from_parameters,
        (np.array([1.0, -0.5]), np.array([[2.0, 0.4], [0.4, 1.0]]), np.array(5.0), np.array(2.0)),
        (np.array([0.0, 0.5]), np.array([[1.0, -0.2], [-0.2, 3.0]]), np.array(4.0), np.array(3.0)),
        normal_gamma_log_density,
    ),
    "NormalWishart": Example(
        NormalWishart.from_parameters,
        (np.array([1.0, -0.5]), np.array(2.0), np.array([[2.0, 0.4], [0.4, 1.0]]), np.array(6.0)),
        (np.array([0.0, 0.5]), np.array(0.7), np.array([[1.0, -0.2], [-0.2, 3.0]]), np.array(4.5)),
        normal_wishart_log_density,
    ),
    "Product": Example(
        lambda weights, rate: Product(
            {"weights": MeanField.from_moments(*weights), "rate": Gamma.from_shape_rate(*rate)}
        ),
        ((np.array([1.0, 2.0]), np.array([0.5, 2.0])), (np.array(3.0), np.array(2.0))),
        ((np.array([0.0, 1.0]), np.array([1.0, 1.0])), (np.array(2.0), np.array(1.0))),
        product_log_density,
    ),
    "Independent": Example(
        lambda *each: Independent.of([NormalGamma.from_parameters(*parameters) for parameters in each]),
        (
            (np.array([1.0]), np.array([[2.0]]), np.array(5.0), np.array(2.0)),
            (np.array([-1.0]), np.array([[1.0]]), np.array(3.0), np.array(1.0)),
        ),
        (
            (np.array([0.0]), np.array([[1.0]]), np.array(4.0), np.array(3.0)),
            (np.array([0.5]), np.array([[0.5]]), np.array(4.0), np.array(0.5)),
        ),
        independent_log_density,
    ),
}
EXAMPLES["WeightsAndNoise"] = Example(
    weights_and_noise,
    (np.array([0.5, 2.0]), np.array(4.0), np.array(9.0), np.array([2.0, 1.0]), np.array([[4.0, 0.8], [0.8, 3.0]])),
    (np.array([1.0, 1.5]), np.array(3.0), np.array(6.0), np.array([0.5, 1.0]), np.array([[3.0, -0.2], [-0.2, 2.0]])),
    weights_and_noise_log_density,
)
# Its factors are exact: nobody matches its moments.
WITHOUT_INVERSE = ("WeightsAndNoise",)
# The Fisher matrix of these is singular, because a symmetric matrix holds its off-diagonal entries twice.
WITHOUT_FISHER = ("NormalGamma", "NormalWishart", "Independent", "WeightsAndNoise")


@pytest.fixture(params=EXAMPLES)
def name(request) -> str:
    return request.param


@pytest.fixture
def q(name) -> Family:
    return EXAMPLES[name].build(*EXAMPLES[name].first)


@pytest.fixture
def draws(name) -> Any:
    """Of q, along one leading axis."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), draws_of(name))


@pytest.fixture
def p(name) -> Family:
    return EXAMPLES[name].build(*EXAMPLES[name].second)


def leaves_close(actual: Any, expected: Any, **tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert_allclose(a, b, **tolerance)


def average_matches(values: np.ndarray, expected: np.ndarray) -> None:
    """The average of independent values, within Monte Carlo error."""
    error = values.std(axis=0) / np.sqrt(len(values))
    assert np.all(np.abs(values.mean(axis=0) - expected) <= ERRORS * error)


def cast(family: Family, dtype: type) -> Family:
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype), family)


def dtypes(tree: Any) -> set[np.dtype]:
    return {leaf.dtype for leaf in jax.tree.leaves(tree)}


@jax.jit
def traced_log_probs(family: Family, draws: Any) -> jax.Array:
    return jax.vmap(family.log_prob)(draws)


@jax.jit
def traced_round_trip(family: Family) -> Family:
    return type(family).from_mean(family.mean())


def log_probs(family: Family, draws: Any) -> np.ndarray:
    with precision(np.float64):
        return np.asarray(traced_log_probs(family, draws))


def round_trip(family: Family) -> Family:
    with precision(np.float64):
        return on_host(traced_round_trip(family))


@cache
def draws_of(name: str) -> Any:
    return EXAMPLES[name].build(*EXAMPLES[name].first).sample(jax.random.key(1), DRAWS)


def test_every_family_has_an_example():
    assert set(EXAMPLES) == set(REGISTRY)


def test_gradient_of_log_partition_is_the_mean(q):
    with precision(np.float64):
        leaves_close(jax.grad(lambda family: family.log_partition())(q), q.mean(), rtol=1e-10, atol=1e-12)


def test_slope_of_log_partition_by_differences_is_the_mean(q, p):
    change, h = p / q, 1e-5
    slope = ((q * change**h).log_partition() - (q * change**-h).log_partition()) / (2 * h)
    assert_allclose(slope, q.expected_log(change), rtol=1e-7)


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - set(WITHOUT_INVERSE)), indirect=True)
def test_from_mean_inverts_mean(q):
    leaves_close(round_trip(q), q, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - set(WITHOUT_INVERSE)), indirect=True)
def test_from_mean_inverts_mean_of_a_far_density(q, p):
    """A factor of 300 more data than the example, away from where Newton's iterations start."""
    far = q * p**300
    assert_allclose(far.kl(round_trip(far)), 0, atol=1e-8)


def test_from_free_inverts_to_free(q):
    with precision(np.float64):
        leaves_close(q.from_free(q.to_free()), q, rtol=1e-12, atol=1e-12)


def test_any_free_coordinates_are_proper(q):
    with precision(np.float64):
        free = jax.tree.map(lambda leaf: -1.5 * leaf, q.to_free())
        moved = on_host(q.from_free(free))
        assert moved.is_proper()
        leaves_close(moved.to_free(), free, rtol=1e-9, atol=1e-9)


def test_kl_is_positive_and_zero_at_equality(q, p):
    assert q.kl(p) > 1e-3
    assert p.kl(q) > 1e-3
    assert_allclose(q.kl(q), 0, atol=1e-12)


def test_kl_is_the_expected_log_ratio(q, p, draws):
    average_matches(log_probs(q, draws) - log_probs(p, draws), q.kl(p))


def test_entropy_is_the_expected_minus_log_density(q, draws):
    average_matches(-log_probs(q, draws), q.entropy())


def test_log_prob_matches_scipy(name, q, draws):
    example = EXAMPLES[name]
    for i in range(6):
        x = jax.tree.map(lambda leaf, i=i: leaf[i], draws)
        assert_allclose(q.log_prob(x), example.log_density(x, *example.first), rtol=1e-9, atol=1e-9)


def test_sample_moments_match_the_mean(q, draws):
    with precision(np.float64):
        statistics = on_host(jax.vmap(q.statistics)(draws))
    for values, expected in zip(jax.tree.leaves(statistics), jax.tree.leaves(q.mean()), strict=True):
        average_matches(values, expected)


def test_draws_differ_along_all_leading_axes(name):
    for leaf in jax.tree.leaves(draws_of(name)):
        assert leaf.shape[:2] == DRAWS
        assert not np.array_equal(leaf[0], leaf[1])


def test_division_undoes_multiplication(q, p):
    leaves_close((q * p) / p, q, rtol=1e-12, atol=1e-12)


def test_powers(q):
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(q**0))
    leaves_close(q**2, q * q, rtol=1e-15)
    leaves_close(q**0.5 * q**0.5, q, rtol=1e-14)


def test_a_quotient_may_be_improper_and_still_multiplies(name, q, p):
    quotient = q / p**30
    assert q.is_proper()
    assert bool(quotient.is_proper()) is (name == "Categorical")
    leaves_close(quotient * p**30, q, rtol=1e-11, atol=1e-11)


def test_probabilities_of_all_values_add_up(name, q):
    finite = name == "Categorical"
    assert (q.values is not None) is finite
    if not finite:
        with pytest.raises(MissingCapability, match="finitely many values, not a"):
            q.support()
        return
    values = q.support()
    assert len(values) == q.values
    assert_allclose(sum(np.exp(q.log_prob(value)) for value in values), 1, rtol=1e-12)


def test_values_of_several_variables_are_all_their_combinations():
    coin = Categorical.from_probabilities(np.array([0.3, 0.7]))
    die = Categorical.from_probabilities(np.array([0.2, 0.5, 0.3]))
    q = Product({"coins": Independent.of([coin, coin, coin]), "die": die})
    values = q.support()
    rows = {(*coins.tolist(), int(die)) for coins, die in zip(values["coins"], values["die"], strict=True)}
    assert q.values == len(rows) == 2**3 * 3
    every = [jax.tree.map(lambda leaf, i=i: leaf[i], values) for i in range(q.values)]
    assert_allclose(sum(np.exp(q.log_prob(value)) for value in every), 1, rtol=1e-12)
    assert Product({"coin": coin, "rate": Gamma.from_shape_rate(1.0, 1.0)}).values is None


def test_natural_gradients_of_locations_are_solved_with_their_fisher_information(name, q):
    """The Hessian of KL(q ‖ q') by the locations of q', where both are the same."""
    with precision(np.float64):
        free = jax.tree.map(jnp.asarray, q.to_free())
        leaves, structure = jax.tree.flatten(free)
        ones = jax.tree.unflatten(structure, [jnp.ones_like(leaf) for leaf in leaves])
        found = jax.tree.leaves(q.natural_locations(ones))
        moved = [i for i, leaf in enumerate(found) if not np.array_equal(leaf, np.ones_like(leaf))]
        for i in moved:

            def divergence(place, i=i):
                return q.kl(q.from_free(jax.tree.unflatten(structure, [*leaves[:i], place, *leaves[i + 1 :]])))

            F = jax.hessian(divergence)(leaves[i]).reshape(leaves[i].size, leaves[i].size)
            assert_allclose(F @ found[i].ravel(), np.ones(leaves[i].size), rtol=1e-7)
    gaussian = q.is_gaussian or name in ("NormalGamma", "NormalWishart", "Product", "Independent")
    assert bool(moved) is gaussian


def test_a_parameter_that_is_not_finite_is_improper(q):
    leaves, structure = jax.tree.flatten(q)
    for i, leaf in enumerate(leaves):
        broken = jax.tree.unflatten(structure, [*leaves[:i], np.full_like(leaf, np.nan), *leaves[i + 1 :]])
        assert not broken.is_proper()


@pytest.mark.parametrize("other", EXAMPLES)
def test_families_do_not_mix(name, q, other):
    stranger = EXAMPLES[other].build(*EXAMPLES[other].first)
    if other == name:
        stranger = 2.0
    for operation in (lambda: q * stranger, lambda: q / stranger):
        with pytest.raises(FamilyMismatch, match=f"cannot (multiply|divide) {name} and") as caught:
            operation()
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, PartitaError)


def test_shapes_do_not_mix(q):
    stack = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), q)
    with pytest.raises(FamilyMismatch, match="shape"):
        q * stack
    with pytest.raises(FamilyMismatch, match="shape"):
        stack / q


@pytest.mark.parametrize("family", [MeanField, Product])
def test_structures_do_not_mix(family):
    part = Gamma.from_shape_rate(np.ones(2), np.ones(2)) if family is Product else np.ones(2)
    arguments = (1,) if family is Product else (1, 1)
    first, second = (family(*({key: part} for _ in arguments)) for key in "ab")
    with pytest.raises(FamilyMismatch, match="structure"):
        first * second


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_keep_the_precision_of_the_family(name, q, p, dtype):
    assert not jax.config.jax_enable_x64
    a, b = cast(q, dtype), cast(p, dtype)
    # Tracing says what a float32 family draws; compiling every sampler again would be slow.
    drawn = draws_of(name) if dtype == np.float64 else jax.eval_shape(lambda a: a.sample(jax.random.key(0)), a)
    floats = [leaf for leaf in jax.tree.leaves(drawn) if leaf.dtype.kind == "f"]
    assert dtypes((a * b, a / b, a**0.3, a.mean(), a.kl(b), floats)) == {np.dtype(dtype)}
    assert a.dtype == dtype
    assert_allclose(a.kl(b), q.kl(p), rtol=1e-4 if dtype == np.float32 else 1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_coordinates_keep_the_precision_of_the_family(q, dtype):
    a = cast(q, dtype)
    free = a.to_free()
    assert dtypes((free, a.from_free(free))) == {np.dtype(dtype)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - set(WITHOUT_INVERSE)), indirect=True)
def test_inverses_keep_the_precision_of_the_family(q, dtype):
    a = cast(q, dtype)
    assert dtypes(type(a).from_mean(a.mean())) == {np.dtype(dtype)}


def mean_of(view: Any) -> Any:
    """The mean parameters of a density, or of one that is given by them already, part by part."""
    if isinstance(view, Product):
        return {name: mean_of(part) for name, part in view.parts.items()}
    return view.mean() if isinstance(view, Family) else view


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - set(WITHOUT_FISHER)), indirect=True)
def test_mean_gradient_of_a_linear_function_is_its_coefficients(name, q, p):
    coefficients = p / q
    with precision(np.float64):
        value, gradient = jax.jit(lambda q: q.mean_gradient(lambda view: inner(coefficients, mean_of(view))))(q)
        difference = on_host(gradient / coefficients)
    assert_allclose(value, q.expected_log(coefficients), rtol=1e-12)
    if name == "Categorical":
        difference = Categorical(difference.logits - difference.logits.mean())
    leaves_close(difference, q**0, atol=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.floats(-2, 4), st.floats(-2, 4))
def test_numeric_inverses_converge_over_many_magnitudes(first, second):
    a, b = 10.0 ** np.array([first, second])
    for density in (
        Gamma.from_shape_rate(np.array([a, b]), np.array([b, 1.0])),
        Beta.from_concentrations(a, b),
        Dirichlet.from_concentration(np.array([a, b, 1.0])),
        NormalGamma.from_parameters(np.zeros(2), np.eye(2), a, b),
        NormalWishart.from_parameters(np.zeros(2), b, np.eye(2), 1 + a),
    ):
        assert_allclose(density.kl(round_trip(density)), 0, atol=1e-7)


def test_a_density_can_be_used_inside_a_traced_function_of_something_else():
    """As in a likelihood that closes over a family."""
    q, x = Gaussian.from_moments(np.zeros(2), np.eye(2)), np.array([1.0, 2.0])
    with precision(np.float64):
        value = jax.jit(lambda x: q.log_prob(x))(x)
    assert_allclose(value, stats.multivariate_normal.logpdf(x, np.zeros(2), np.eye(2)), rtol=1e-12)


def test_a_density_of_jax_arrays_is_as_good_as_one_of_numpy_arrays():
    density = Gaussian(jnp.zeros(2), jnp.eye(2))
    assert density.is_proper()
    assert_allclose(density.entropy(), stats.multivariate_normal(np.zeros(2), np.eye(2)).entropy(), rtol=1e-6)


def test_gaussian_moments_are_those_given():
    location, covariance = EXAMPLES["Gaussian"].first
    full, diagonal = (
        Gaussian.from_moments(location, covariance),
        MeanField.from_moments(location, np.array([0.5, 2])),
    )
    assert_allclose(full.location, location)
    assert_allclose(full.covariance, covariance)
    assert_allclose(full.scale, np.sqrt(np.diag(covariance)))
    assert_allclose(diagonal.location, location)
    assert_allclose(diagonal.scale, [0.5, 2])
    assert_allclose(diagonal.covariance, np.diag([0.25, 4]))


GAUSSIANS = {
    "Gaussian": Gaussian.from_moments(np.array([1.0, -2.0]), np.array([[2.0, 0.6], [0.6, 0.5]])),
    "MeanField": MeanField.from_moments(np.array([1.0, -2.0]), np.array([0.5, 2.0])),
    "BlockGaussian": EXAMPLES["BlockGaussian"].build(*EXAMPLES["BlockGaussian"].first),
}


def test_every_gaussian_is_tested():
    assert set(GAUSSIANS) == {name for name, family in REGISTRY.items() if family.is_gaussian}


@pytest.fixture(params=GAUSSIANS)
def gaussian(request) -> AbstractGaussian:
    return GAUSSIANS[request.param]


def test_moments_along_are_those_of_a_linear_predictor(gaussian):
    X = np.array([[1.0, 2.0, -0.3], [0.0, 0.0, 0.0], [-3.0, 0.5, 2.0]])[:, : gaussian.size]
    with precision(np.float64):
        for view in (gaussian, gaussian.mean()):
            mean, variance = view.moments_along(X)
            assert_allclose(mean, X @ gaussian.location, rtol=1e-12)
            assert_allclose(variance, np.diag(X @ gaussian.covariance @ X.T), rtol=1e-12, atol=1e-14)


def test_variances_and_scales_are_the_diagonal_of_the_covariance(gaussian):
    assert_allclose(gaussian.variance, np.diag(gaussian.covariance), rtol=1e-12)
    assert_allclose(gaussian.scale, np.sqrt(np.diag(gaussian.covariance)), rtol=1e-12)


def test_a_gaussian_around_means_has_independent_coordinates(gaussian):
    location, scale = np.linspace(-1, 2, gaussian.size), np.linspace(0.5, 2, gaussian.size)
    around = gaussian.around(location, scale)
    assert type(around) is type(gaussian)
    assert_allclose(around.location, location, rtol=1e-12)
    assert_allclose(around.covariance, np.diag(scale**2), rtol=1e-12)


def test_placed_points_have_the_moments_of_the_density(gaussian):
    white = white_points(50, gaussian.size)
    with precision(np.float64):
        for view in (gaussian, gaussian.mean()):
            placed = np.asarray(view.place(jnp.asarray(white)))
            assert_allclose(placed.mean(axis=0), gaussian.location, atol=1e-12)
            assert_allclose(np.cov(placed.T, bias=True), gaussian.covariance, atol=1e-12)


def test_a_quadratic_log_likelihood_is_the_gradient_in_the_mean_parameters(gaussian):
    """By automatic differentiation, and from gradients at points, by Stein's identity."""
    d = gaussian.size
    A = np.random.default_rng(0).normal(size=(d, d))
    H, g = -A @ A.T, np.linspace(-1, 1, d)
    with precision(np.float64):

        def expected(view):
            """E[gᵀθ + ½ θᵀHθ], by points that are exact for quadratics."""
            placed = view.place(jnp.asarray(white_points(50, d)))
            return jnp.mean(placed @ g + 0.5 * jnp.sum((placed @ H) * placed, axis=1))

        _, wanted = gaussian.mean_gradient(expected)
        found = gaussian.quadratic(jnp.asarray(g + H @ gaussian.location), jnp.asarray(H))
        placed = gaussian.place(jnp.asarray(white_points(50, d)))
        by_slopes = gaussian.quadratic_of_slopes(placed, placed @ H + g)
    leaves_close(found, wanted, rtol=1e-9, atol=1e-9)
    leaves_close(by_slopes, wanted, rtol=1e-9, atol=1e-9)


def test_matching_along_a_direction_keeps_the_moments_of_the_tilted_density(gaussian):
    """Against importance weights of many draws."""
    x = np.linspace(1.0, -0.5, gaussian.size)
    with precision(np.float64):
        m, v = (jnp.asarray(one)[0] for one in gaussian.moments_along(x[None]))
        slope, curvature = 0.7, 0.4
        tilted_v = 1 / (1 / v + curvature)
        after = tilted_v * (m / v + slope), tilted_v
        matched = on_host(gaussian.matched_along(x, (m, v), after))
    draws = gaussian.sample(jax.random.key(5), (400_000,))
    weights = np.exp(slope * draws @ x - 0.5 * curvature * (draws @ x) ** 2)
    weights /= weights.sum()
    location = weights @ draws
    assert type(matched) is type(gaussian)
    assert_allclose(matched.location, location, atol=0.02)
    assert_allclose(matched.variance, weights @ (draws - location) ** 2, rtol=0.03)


def test_what_a_family_lacks_is_said_with_those_that_have_it(q):
    gaussians = "MeanField, Gaussian, BlockGaussian"
    asks = {
        "somebody: needs a Gaussian, not a {}; that is: " + gaussians: (q.is_gaussian, q.as_gaussian),
        "somebody: needs a mean-field Gaussian, not a {}; that is: MeanField": (q.is_mean_field, q.as_mean_field),
    }
    for words, (has, ask) in asks.items():
        if has:
            assert ask("somebody") is q
            continue
        with pytest.raises(MissingCapability, match=words.format(type(q).__name__)):
            ask("somebody")
    if type(q).marginals is Family.marginals:
        with pytest.raises(MissingCapability, match=f"{gaussians}, WeightsAndNoise"):
            q.marginals(np.eye(2))
        with pytest.raises(MissingCapability, match=f"{gaussians}, WeightsAndNoise"):
            q.substituted(Substitution(np.eye(2), np.zeros(2)))


@pytest.mark.parametrize("name", ["MeanField", "BlockGaussian"])
def test_only_a_full_gaussian_holds_every_quadratic(name):
    with pytest.raises(MissingCapability, match="needs a Gaussian with a full covariance, .* that is: Gaussian$"):
        GAUSSIANS[name].quadratic_along(np.eye(2), np.zeros(2), np.ones(2))


def test_flat_naturals_of_a_stack_and_back():
    q = EXAMPLES["MeanField"].build(*EXAMPLES["MeanField"].first)
    stack = Family.stack([q, q**2, q**3])
    shift, rates = stack.naturals(3)
    assert shift.shape == rates.shape == (3, q.size)
    leaves_close(stack.with_naturals(shift, rates), stack, rtol=0)
    assert_array_equal(shift[:1], q.naturals(1)[0])


def test_normal_gamma_marginal_is_students_t():
    location, precision_matrix, shape, rate = EXAMPLES["NormalGamma"].first
    density = NormalGamma.from_parameters(location, precision_matrix, shape, rate)
    student = stats.multivariate_t(location, rate / shape * np.linalg.inv(precision_matrix), df=2 * shape)
    assert_allclose(density.location, student.loc)
    assert_allclose(density.covariance, student.shape * student.df / (student.df - 2))


def test_parameters_of_conjugate_families_are_those_given():
    for name in ("NormalGamma", "NormalWishart"):
        names = ("location", "precision", "shape", "rate")
        if name == "NormalWishart":
            names = ("location", "strength", "inverse_scale", "degrees")
        density = EXAMPLES[name].build(*EXAMPLES[name].first)
        for attribute, given_value in zip(names, EXAMPLES[name].first, strict=True):
            assert_allclose(getattr(density, attribute), given_value, rtol=1e-12)


@pytest.mark.parametrize(
    ("mixed", "alike"),
    [
        ((Gamma.from_shape_rate, 2.0, np.array([1.0, 3.0])), (np.array([2.0, 2.0]), np.array([1.0, 3.0]))),
        ((MeanField.from_moments, np.array([1.0, 2.0]), 0.5), (np.array([1.0, 2.0]), np.array([0.5, 0.5]))),
        ((MeanField.from_moments, 1.0, 0.5), (np.array(1.0), np.array(0.5))),
    ],
    ids=["Gamma", "MeanField", "MeanField of numbers"],
)
def test_numbers_stand_for_arrays_of_them(mixed, alike):
    build, *arguments = mixed
    density, expected = build(*arguments), build(*alike)
    assert_array_equal(density.sample(jax.random.key(0)), expected.sample(jax.random.key(0)))
    assert density.entropy() == expected.entropy()


def test_gradients_in_the_mean_of_independent_densities():
    """Of a function that is linear in the mean parameters: its coefficients."""
    q = Independent.of([Gamma.from_shape_rate(2.0, 1.0), Gamma.from_shape_rate(3.0, 0.5)])
    wanted = Independent(Gamma(np.array([0.3, -1.0]), np.array([2.0, 0.7])))
    with precision(np.float64):
        value, found = q.mean_gradient(lambda view: inner(wanted, view.mean()))
        assert_allclose(value, q.expected_log(wanted))
    leaves_close(found, wanted, rtol=1e-9)


def test_quantiles_of_the_noise_are_those_of_its_distribution():
    before = WeightsAndNoise.before_data(np.ones(1), 2.0)
    assert_allclose(before.noise_quantile([0.05, 0.5, 0.99]), stats.t(3, 0, 2).ppf([0.525, 0.75, 0.995]), rtol=1e-3)
    after = weights_and_noise(*EXAMPLES["WeightsAndNoise"].first)
    tau = after.sample(jax.random.key(2), (200_000,)).precision
    assert_allclose(after.noise_quantile([0.1, 0.5, 0.9]), np.quantile(tau**-0.5, [0.1, 0.5, 0.9]), rtol=0.01)


@pytest.mark.parametrize("name", ["Gaussian", "MeanField", "BlockGaussian", "WeightsAndNoise"], indirect=True)
def test_marginals_are_those_of_draws(name, q):
    q = GAUSSIANS.get(name, q)
    T = np.array([[1.0, 0.0, 0.0], [2.0, -1.0, 1.0]])[:, : q.size if q.is_gaussian else 2]
    drawn = q.sample(jax.random.key(3), (200_000,))
    values = (drawn.location if name == "WeightsAndNoise" else drawn) @ T.T
    found = q.marginals(T)
    assert_allclose(found.mean, values.mean(axis=0), atol=0.02)
    assert_allclose(found.deviation, values.std(axis=0), rtol=0.01)
    assert_allclose(found.interval(0.8), np.quantile(values, [0.1, 0.9], axis=0), atol=0.03)
