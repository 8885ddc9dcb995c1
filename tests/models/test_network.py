"""Networks: likelihoods against SciPy, layers and messages against NumPy and autodiff, predictions against draws."""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import special, stats

import partita as pt
from partita.errors import InputError, ShardError
from partita.expectations import DrawnFisher, GaussNewton, LocalReparameterisation, MonteCarlo, choose
from partita.families import MeanField
from partita.models import Network, prior_of
from partita.models.network import Layer
from partita.predictive import expected_response
from partita.server.schedules import Synchronous
from partita.shards import padded
from partita.solvers import Gradient

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(7, 3)).astype(np.float32)
REAL = GENERATOR.normal(size=(7, 2)).astype(np.float32)
ACTIVATIONS = {"relu": lambda a: np.maximum(a, 0), "tanh": np.tanh, "silu": lambda a: a * special.expit(a)}


def weights_of(*sizes: int, seed: int = 1, scale: float = 0.8) -> tuple[Layer, ...]:
    generator = np.random.default_rng(seed)
    return tuple(
        Layer(
            generator.normal(0, scale, (inputs, outputs)).astype(np.float32),
            generator.normal(0, scale, outputs).astype(np.float32),
        )
        for inputs, outputs in pairwise(sizes)
    )


def density(*sizes: int, scales: tuple[float, float] = (0.1, 0.6)) -> MeanField:
    location, generator = weights_of(*sizes), np.random.default_rng(2)
    scale = jax.tree.map(lambda a: generator.uniform(*scales, a.shape).astype(np.float32), location)
    return MeanField.from_moments(location, scale)


def forward(params, A: np.ndarray, activation: str = "relu") -> np.ndarray:
    """The network in NumPy; weights may have a leading axis of draws."""
    for number, (weights, bias) in enumerate(params):
        A = np.matmul(A if number == 0 else ACTIVATIONS[activation](A), weights) + bias[..., None, :]
    return A


def drawn_outputs(q: MeanField, A: np.ndarray, draws: int) -> np.ndarray:
    """Outputs of networks whose weights are drawn, by NumPy."""
    generator = np.random.default_rng(3)
    location, scale = q.location, q.scale
    params = [
        [m + s * generator.standard_normal((draws, *m.shape)) for m, s in zip(layer, scales, strict=True)]
        for layer, scales in zip(location, scale, strict=True)
    ]
    return forward(params, A)


def of_labels(f: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.take_along_axis(special.log_softmax(f, axis=-1), y[..., None], -1)[..., 0]


def of_heads(f: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Two heads with two classes each."""
    return np.array(
        [special.log_softmax(row[2 * (k // 2) : 2 * (k // 2) + 2])[k % 2] for row, k in zip(f, y, strict=True)]
    )


LABELS = np.array([0, 2, 1, 1, 3, 0, 3])
LIKELIHOODS = {
    "softmax": (Network([3, 5, 4]), LABELS, of_labels),
    "softmax, tanh": (Network([3, 5, 5, 4], activation="tanh"), LABELS, of_labels),
    "softmax, silu": (Network([3, 4], activation="silu"), LABELS, of_labels),
    "two heads": (Network([3, 5, 4], heads=2), LABELS, of_heads),
    "gaussian": (
        Network([3, 5, 1], likelihood="gaussian", noise=0.7),
        REAL[:, 0],
        lambda f, y: stats.norm.logpdf(y, f[:, 0], 0.7),
    ),
    "gaussian, two outputs": (
        Network([3, 5, 2], likelihood="gaussian", noise=0.7),
        REAL,
        lambda f, y: stats.multivariate_normal.logpdf(y - f, cov=0.49 * np.eye(2)),
    ),
    "bernoulli": (
        Network([3, 5, 1], likelihood="bernoulli"),
        LABELS % 2,
        lambda f, y: stats.bernoulli.logpmf(y, special.expit(f[:, 0])),
    ),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_log_prob_matches_scipy(name):
    model, y, log_prob = LIKELIHOODS[name]
    params = weights_of(*model.layers)
    actual = model.log_prob(params, model.shard(0, (X, y)).data, model.hyper)
    assert_allclose(actual, log_prob(forward(params, X, model.activation), y), rtol=1e-4, atol=1e-5)


def test_classes_of_other_heads_do_not_matter():
    model, params = Network([3, 4], heads=2), weights_of(3, 4)
    data = model.shard(0, (X, LABELS % 2)).data
    moved = (Layer(params[0].weights, params[0].bias + np.array([0, 0, 50, -3], np.float32)),)
    assert_allclose(*(model.log_prob(p, data, {}) for p in (params, moved)), rtol=1e-6)
    assert np.all(np.isfinite(jax.grad(lambda p: model.log_prob(p, data, {}).sum())(moved)[0].weights))


@pytest.mark.parametrize(
    ("layers", "settings", "message"),
    [
        ([3], {}, "layers: expected at least two sizes"),
        ([], {}, "layers: expected at least two sizes"),
        ([3, 0, 2], {}, "layers: expected at least two sizes"),
        ([3, 2.0], {}, "layers: expected at least two sizes"),
        ([3, True], {}, "layers: expected at least two sizes"),
        ("3, 2", {}, "layers: expected sizes, an Equinox module or a function"),
        (None, {}, "layers: expected sizes, an Equinox module or a function"),
        ([3, 2], {"activation": "softplus"}, "activation: expected one of relu, tanh, gelu, silu, got 'softplus'"),
        ([3, 2], {"likelihood": "poisson"}, "likelihood: expected one of softmax, gaussian, bernoulli, got 'poisson'"),
        ([3, 2], {"activation": ["relu"]}, r"activation: expected .* got \['relu'\]"),
        ([3, 2], {"likelihood": ["softmax"]}, r"likelihood: expected .* got \['softmax'\]"),
        ([3, 2], {"prior_scale": 0.0}, "prior_scale"),
        ([3, 2], {"noise": -1.0}, "noise"),
        ([3, 2], {"start_scale": np.nan}, "start_scale"),
        ([3, 2], {"heads": 0}, "heads"),
        ([3, 4], {"heads": 3}, "heads: 4 outputs cannot be shared by 3 heads"),
        (lambda params, X: X, {}, r"params: a function apply\(params, X\) needs parameters"),
    ],
)
def test_bad_settings_are_refused(layers, settings, message):
    with pytest.raises(InputError, match=f"^{message}"):
        Network(layers, **settings)


def test_a_likelihood_that_is_no_name_is_refused_for_data():
    with pytest.raises(InputError, match=r"^likelihood: expected .* got \['softmax'\]"):
        Network.for_data(X, LABELS, likelihood=["softmax"])


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (Network([3, 2]), (X, LABELS), "^site 0: y: labels must be 0 or 1, got 2"),
        (Network([3, 3]), (X, LABELS), "^site 0: y: labels must be whole numbers from 0 to 2, got 3"),
        (Network([3, 4]), (X, LABELS - 0.5), "^site 0: y: labels must be whole"),
        (Network([3, 4]), (X, -LABELS), "^site 0: y: labels must be whole"),
        (Network([3, 1], likelihood="bernoulli"), (X, LABELS), "^site 0: y: labels must be 0 or 1, got 2"),
        (
            Network([3, 4]),
            (X, np.stack([LABELS] * 2, 1)),
            r"^site 0: y: expected one label per row, got shape \(7, 2\)",
        ),
        (Network([2, 4]), (X, LABELS), r"^site 0: X: expected 2 features per row, got shape \(7, 3\)"),
        (Network([3, 4]), (X[:, 0], LABELS), r"^site 0: X: expected 3 features per row, got shape \(7,\)"),
        (Network([3, 4]), (X, LABELS[1:]), "^site 0: y: has 6 rows where X has 7"),
        (
            Network([3, 1], likelihood="gaussian"),
            (X, REAL),
            r"^site 0: y: expected 1 targets per row, got shape \(7, 2\)",
        ),
        (Network([3, 2], likelihood="gaussian"), (X, REAL[:, 0]), "^site 0: y: expected 2 targets per row"),
        (Network(lambda p, X: X @ p, params=np.ones((3, 4))), (X[:, 0], LABELS), "^site 0: X: expected rows"),
    ],
)
def test_bad_data_are_refused(model, data, message):
    with pytest.raises(ShardError, match=message):
        model.shard(0, data)


def test_outputs_that_do_not_fit_the_likelihood_are_refused():
    with pytest.raises(InputError, match="a Bernoulli likelihood needs one output, got 2"):
        Network([3, 2], likelihood="bernoulli").shard(0, (X, LABELS % 2))
    with pytest.raises(InputError, match=r"expected outputs of shape \[rows, outputs\], got \(1,\)"):
        Network(lambda p, X: X @ p, params=np.ones(3)).shard(0, (X, LABELS % 2))


def test_expectations_that_need_layers_are_refused_for_functions():
    model = Network(lambda p, X: X @ p, params=np.ones((3, 4)))
    prior = MeanField.from_moments(np.zeros((3, 4), np.float32), np.float32(1))
    assert isinstance(choose(model, prior), DrawnFisher)
    for wanted in (GaussNewton(), LocalReparameterisation()):
        with pytest.raises(InputError, match=f"{type(wanted).__name__} does not fit Network"):
            choose(model, prior, wanted)


def test_the_start_is_glorot_s_and_the_prior_is_isotropic():
    model = Network([300, 500, 2], start_scale=0.03, prior_scale=2.0)
    first, last = model.start.location
    assert_allclose(first.weights.std(), np.sqrt(2 / 800), rtol=0.01)
    assert_allclose(last.weights.std(), np.sqrt(2 / 502), rtol=0.1)
    assert_allclose(first.weights.mean(), 0, atol=5 * np.sqrt(2 / 800 / first.weights.size))
    assert not np.any(first.bias)
    prior = prior_of(model, model.hyper)
    for leaf in jax.tree.leaves(model.start.scale):
        assert_allclose(leaf, 0.03, rtol=1e-6)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(prior.location))
    assert all(np.all(leaf == 2) and leaf.dtype == np.float32 for leaf in jax.tree.leaves(prior.scale))
    other = Network([300, 500, 2], init_seed=1).start.location[0].weights
    assert abs(np.corrcoef(other.ravel(), first.weights.ravel())[0, 1]) < 0.02
    assert model.with_prior(model.start).start is None


def test_a_projected_layer_has_the_moments_of_its_weights():
    model, q = Network([3, 4]), density(3, 4)
    mean, variance = model.network.moments_along(q, X)
    (location,), (scale,) = q.location, q.scale
    assert_allclose(mean, X @ location.weights + location.bias, rtol=1e-5, atol=1e-6)
    assert_allclose(variance, X**2 @ scale.weights**2 + scale.bias**2, rtol=1e-5)
    draws = np.asarray(jax.vmap(lambda key: model.network.draw(q, (mean, variance), key))(keys(4000)))
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * np.sqrt(variance / 4000))
    # The variance of a Gaussian sample variance is 2 σ⁴ / (n - 1).
    assert np.all(np.abs(draws.var(axis=0, ddof=1) / variance - 1) < 5 * np.sqrt(2 / 3999))


def keys(number: int) -> jax.Array:
    return jax.random.split(jax.random.key(7), number)


@pytest.mark.parametrize("sizes", [(3, 4), (3, 5, 4)])
def test_drawing_layers_has_the_expectation_of_drawing_weights(sizes):
    model, q = Network(sizes), density(*sizes)
    data = model.shard(0, (X, LABELS)).data
    values = of_labels(drawn_outputs(q, X, 20_000), np.broadcast_to(LABELS, (20_000, 7)))
    for expectation in (LocalReparameterisation(500, fixed=False), MonteCarlo(500)):
        compute = jax.jit(lambda all_keys, e=expectation: jax.lax.map(lambda k: e(model, q, data, {}, k), all_keys))
        runs = np.asarray(compute(keys(16)))
        error = np.sqrt(values.var(axis=0) / len(values) + runs.var(axis=0, ddof=1) / 16)
        assert np.all(error < 0.05)
        assert np.all(np.abs(runs.mean(axis=0) - values.mean(axis=0)) < 5 * error)


def plain_draw(location, q: MeanField, A, key):
    """Outputs drawn layer by layer, as a function of the locations, in plain JAX."""
    noise = jax.random.split(key, len(location))
    for number, (mean, variance) in enumerate(zip(location, q.variance, strict=True)):
        A = jax.nn.relu(A) if number else A
        spread = jnp.sqrt(A**2 @ variance.weights + variance.bias)
        m = A @ mean.weights + mean.bias
        A = m + spread * jax.random.normal(noise[number], m.shape, m.dtype)
    return A


WEIGHTS = np.array([1.0, 0.0, 2.0, 1.0, 0.5, 1.0, 3.0], np.float32)


def test_a_message_is_the_gradient_and_the_squared_gradients_of_each_row():
    """By autodiff of every row of the same draw, with the same drawn labels."""
    model, q, key = Network([3, 5, 4]), density(3, 5, 4), jax.random.key(11)
    shard = model.shard(0, (X, LABELS, WEIGHTS))
    value, message = jax.jit(lambda key: GaussNewton().message(model, q, shard, {}, key))(key)
    draw_key, label_key = jax.random.split(key)
    drawn = jax.random.categorical(label_key, plain_draw(q.location, q, X, draw_key))

    def rows(location, labels):
        return jax.nn.log_softmax(plain_draw(location, q, X, draw_key))[jnp.arange(7), labels]

    assert_allclose(value, WEIGHTS @ rows(q.location, LABELS), rtol=1e-5)
    by_row, by_drawn = (jax.jit(jax.jacrev(rows))(q.location, labels) for labels in (LABELS, drawn))
    gradient = jax.tree.map(lambda h, p, m: h - p * m, message.precision_times_location, message.precision, q.location)
    for actual, each in zip(jax.tree.leaves(gradient), jax.tree.leaves(by_row), strict=True):
        assert_allclose(actual, np.tensordot(WEIGHTS, each, 1), rtol=1e-3, atol=1e-4)
    for actual, each in zip(jax.tree.leaves(message.precision), jax.tree.leaves(by_drawn), strict=True):
        assert_allclose(actual, np.tensordot(WEIGHTS, np.asarray(each) ** 2, 1), rtol=1e-3, atol=1e-5)


def check_fisher(shard, q, expectation) -> None:
    """The mean of many messages against Σ w x (δ - p) and Σ w x² p (1 - p), for a linear softmax that hardly varies."""
    model, (layer,) = Network([3, 4]), q.location
    compute = jax.jit(
        lambda shard, all_keys: jax.lax.map(lambda k: expectation.message(model, q, shard, {}, k), all_keys)
    )
    value, message = compute(shard, keys(2000))
    (A, y), w = shard.data, np.asarray(shard.weights)
    used = w > 0
    A, y, w = A[used], y[used], w[used]
    A = np.column_stack([A, np.ones(len(A))])
    p = special.softmax(A @ np.vstack([layer.weights, layer.bias]), axis=1)
    assert_allclose(value, np.full(2000, w @ np.log(p[np.arange(len(y)), y])), rtol=1e-3)
    rest = jax.tree.map(lambda h, s, m: h - s * m, message.precision_times_location, message.precision, q.location)
    slopes = A.T @ (w[:, None] * (np.eye(4)[y] - p))
    assert_allclose(np.concatenate([rest[0].weights, rest[0].bias[:, None]], 1)[0], slopes, rtol=0.02, atol=0.02)
    draws = np.concatenate([message.precision[0].weights, message.precision[0].bias[:, None]], 1)
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    fisher = (A**2).T @ (w[:, None] * p * (1 - p))
    assert np.all(np.abs(draws.mean(axis=0) - fisher) < 5 * error)
    assert np.all(error < 0.05 * fisher + 0.01)
    assert np.all(draws >= 0)


def weighted(wild: bool = False):
    A = X.copy()
    A[1] = 30.0 if wild else A[1]  # weight zero
    return Network([3, 4]).shard(0, (A, LABELS, WEIGHTS))


SHARDS = {
    "as it is": lambda: Network([3, 4]).shard(0, (X, LABELS)),
    "padded": lambda: padded(Network([3, 4]).shard(0, (X, LABELS)), 12),
    "weighted": weighted,
    "a wild row with weight zero": lambda: weighted(wild=True),
    "repeated": lambda: Network([3, 4]).shard(0, (X[[0, 0, 0, 2]], LABELS[[0, 0, 0, 2]])),
}


@pytest.mark.parametrize("rows_at_once", [2, 5, 1000])
@pytest.mark.parametrize("name", ["weighted", "padded"])
def test_messages_have_the_exact_expectation_however_rows_are_taken(name, rows_at_once):
    """Seven rows two at a time: the last part overlaps the one before it."""
    check_fisher(SHARDS[name](), density(3, 4, scales=(1e-4, 2e-4)), GaussNewton(rows_at_once=rows_at_once))


@pytest.mark.parametrize("name", ["as it is", "a wild row with weight zero", "repeated"])
def test_messages_have_the_exact_expectation_whatever_the_weights(name):
    check_fisher(SHARDS[name](), density(3, 4, scales=(1e-4, 2e-4)), GaussNewton())


def test_exact_messages_have_the_gradient_of_the_expectation_by_mean_and_variance():
    """Bonnet and Price for two layers, against quadrature over all four numbers and differences of it."""
    model = Network([1, 1, 1], likelihood="gaussian", activation="tanh")
    q, hyper = density(1, 1, 1, scales=(0.3, 0.6)), {"noise": np.float32(0.7)}
    A, y = np.array([[-1.0], [0.4], [1.5]]), np.array([[0.3], [-0.5], [1.2]])
    shard = model.shard(0, (A, y))
    m, v = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(part)]) for part in (q.location, q.variance))
    nodes, weights = np.polynomial.hermite_e.hermegauss(16)
    grid = np.stack(np.meshgrid(*[nodes] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    shares = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * 4, indexing="ij")), axis=0).ravel()

    def expected(m, v):
        w1, b1, w2, b2 = (m + np.sqrt(v) * grid).T[:, :, None]
        means = w2 * np.tanh(w1 * A[:, 0] + b1) + b2
        return shares @ stats.norm.logpdf(y[:, 0], means, 0.7).sum(axis=1)

    steps = 1e-4 * np.eye(4)
    slopes = np.array([expected(m + step, v) - expected(m - step, v) for step in steps]) / 2e-4
    curvatures = -2 * np.array([expected(m, v + step) - expected(m, v - step) for step in steps]) / 2e-4
    exact, fisher = (one_by_one(expectation, model, q, shard, hyper) for expectation in EXACT_OR_NOT)
    for drawn, reference in zip(exact, (slopes, curvatures), strict=True):
        error = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
        assert np.all(error < 0.05 * np.abs(reference).max())
        assert np.all(np.abs(drawn.mean(axis=0) - reference) < 5 * error)
    # The Fisher information is something else, with the same gradient by the means.
    error = np.sqrt(sum(each[1].var(axis=0) / len(each[1]) for each in (exact, fisher)))
    assert np.max(np.abs(fisher[1].mean(axis=0) - curvatures) / error) > 10


EXACT_OR_NOT = (GaussNewton(exact=True), GaussNewton())


def one_by_one(expectation, model, q, shard, hyper) -> tuple[np.ndarray, np.ndarray]:
    """Gradients by means, and precisions, of many messages."""
    compute = jax.jit(
        lambda all_keys: jax.lax.map(lambda k: expectation.message(model, q, shard, hyper, k)[1], all_keys)
    )
    message = compute(keys(40_000))
    shift, precision = (
        np.concatenate([np.asarray(leaf).reshape(40_000, -1) for leaf in jax.tree.leaves(part)], axis=1)
        for part in (message.precision_times_location, message.precision)
    )
    location = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(q.location)])
    return shift - precision * location, precision


def test_drawn_targets_of_heads_stay_in_the_head_of_the_row():
    model = Network([3, 4], heads=2)
    f = np.tile(np.array([0.0, 1.0, 9.0, 8.0], np.float32), (4000, 1))
    like = np.repeat([0, 3], 2000).astype(np.int32)
    drawn = np.asarray(model.sample_targets(f, {}, jax.random.key(0), like))
    assert np.array_equal(drawn // 2, like // 2)
    share = special.expit(1.0)
    assert abs(np.mean(drawn[:2000] == 1) - share) < 5 * np.sqrt(share * (1 - share) / 2000)
    assert abs(np.mean(drawn[2000:] == 2) - share) < 5 * np.sqrt(share * (1 - share) / 2000)


@pytest.mark.parametrize("heads", [1, 2])
def test_predictions_average_over_weights(heads):
    model, q = Network([3, 5, 4], heads=heads), density(3, 5, 4)
    actual = expected_response(model, q, X, samples=4000)
    f = drawn_outputs(q, X, 20_000).reshape(20_000, 7, heads, -1)
    draws = special.softmax(f, axis=-1).reshape(20_000, 7, 4)
    error = np.sqrt(draws.var(axis=0) * (1 / 20_000 + 1 / 4000))
    assert np.all(np.abs(actual - draws.mean(axis=0)) < 5 * error)
    assert np.all(error < 0.02)
    assert_allclose(actual.reshape(7, heads, -1).sum(axis=-1), 1, rtol=1e-5)


def test_predictions_of_other_likelihoods():
    q = density(3, 1)
    m = forward(q.location, X)[:, 0]
    v = (X**2 @ q.scale[0].weights ** 2 + q.scale[0].bias ** 2)[:, 0]
    mean = expected_response(Network([3, 1], likelihood="gaussian"), q, X, samples=4000)
    assert mean.shape == (7,)
    assert np.all(np.abs(mean - m) < 5 * np.sqrt(v / 4000))
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    exact = special.expit(m[:, None] + np.sqrt(v)[:, None] * nodes) @ weights / weights.sum()
    both = expected_response(Network([3, 1], likelihood="bernoulli"), q, X, samples=4000)
    assert_allclose(both.sum(axis=1), 1, rtol=1e-5)
    assert np.all(np.abs(both[:, 1] - exact) < 5 * np.sqrt(v) / 4 / np.sqrt(4000))


def blobs(rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(4)
    y = np.arange(rows) % 3
    centres = np.array([[2.0, 0, 0], [0, 2, 0], [0, 0, 2]])
    return centres[y] + 0.5 * generator.normal(size=(rows, 3)), y


def test_results_and_events_predict_at_any_time():
    A, y = blobs()
    model, shards = Network([3, 8, 3]), [(A[::2], y[::2]), (A[1::2], y[1::2])]
    schedule = Synchronous(rounds=20)
    events = list(pt.events(model, shards, schedule=schedule))
    result = pt.fit(model, shards, schedule=schedule)
    errors = []
    for event in events[::5] + events[-1:]:
        probabilities = expected_response(model, event.posterior, A, samples=64)
        assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
        errors.append(np.mean(probabilities.argmax(axis=1) != y))
    assert errors[-1] < 0.1
    few, many = result.predict_proba(A, samples=2), result.predict_proba(A, samples=64)
    assert few.shape == many.shape == (60, 3)
    assert 0 < np.abs(few - many).max() < 0.5
    assert np.array_equal(result.predict(A, samples=64), many.argmax(axis=1))
    # The last event's posterior is the result's.
    assert_allclose(expected_response(model, events[-1].posterior, A, 64), many, rtol=1e-6)


def apply(params, A):
    return jnp.tanh(A @ params["in"]) @ params["out"]


def test_a_function_of_params_and_rows():
    generator = np.random.default_rng(5)
    params = {"in": generator.normal(size=(3, 6)), "out": generator.normal(size=(6, 3))}
    model = Network(apply, params=params, start_scale=0.02)
    A, y = blobs()
    actual = model.log_prob(params, model.shard(0, (A, y)).data, {})
    assert_allclose(actual, of_labels(np.tanh(A @ params["in"]) @ params["out"], y), rtol=1e-4, atol=1e-5)
    for name, start in params.items():
        assert_allclose(model.start.location[name], start, rtol=1e-6)
    solver = Gradient("adam", learning_rate=0.05, steps=60)
    result = pt.fit(model, [(A, y)], solver=solver, schedule=Synchronous(1), damping=1.0, expectation=MonteCarlo(1))
    assert result.posterior.location["in"].shape == (3, 6)
    assert np.mean(result.predict(A) != y) < 0.1
    assert_allclose(result.predict_proba(A).sum(axis=1), 1, rtol=1e-5)


def test_an_equinox_module_is_applied_to_every_row():
    mlp = eqx.nn.MLP(3, 4, 5, 1, key=jax.random.key(1))
    model = Network(mlp)
    params = eqx.filter(mlp, eqx.is_inexact_array)
    first, last = (Layer(np.asarray(layer.weight).T, np.asarray(layer.bias)) for layer in mlp.layers)
    actual = model.log_prob(params, model.shard(0, (X, LABELS)).data, {})
    assert_allclose(actual, of_labels(forward([first, last], X), LABELS), rtol=1e-4, atol=1e-5)
    prior = prior_of(model, model.hyper)
    assert {leaf.shape for leaf in jax.tree.leaves(prior.precision)} == {(5, 3), (5,), (4, 5), (4,)}


@pytest.mark.slow
def test_a_convolutional_network_learns_digits():
    first, second = jax.random.split(jax.random.key(0))
    network = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 6, 3, stride=2, key=first),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(6 * 3 * 3, 10, key=second),
        ]
    )
    A, y = pt.datasets.load("digits")
    A = (A / 16).reshape(-1, 1, 8, 8)
    model = Network(network)
    shards = [(A[:300], y[:300])]
    solver = Gradient("adam", learning_rate=0.02, epochs=10, batch_size=50)
    expectation = MonteCarlo(1)
    result = pt.fit(model, shards, solver=solver, schedule=Synchronous(1), damping=1.0, expectation=expectation)
    before = pt.evidence(model, shards, model.start, expectation=expectation)
    assert result.log_evidence > before + 200
    assert np.mean(result.predict(A[300:600], samples=8) == y[300:600]) > 0.5
