"""What a posterior predicts: the likelihood's response, averaged over the parameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError
from partita.families import Family
from partita.foundation.plain import Row
from partita.foundation.points import hermite, normal_points
from partita.foundation.runtime import Array, Program, on_host, precision
from partita.models import AbstractModel, Hyper, Predictor
from partita.models.base import Rows
from partita.shards import as_numbers, check_rows, pad_rows

QUADRATURE_POINTS = 40
# So many numbers at once, where intervals are drawn.
MOST_DRAWN = 5_000_000


def expected_response(model: AbstractModel, posterior: Family, X: Any, samples: int = 256) -> np.ndarray:
    """E_q[response(f)] for each row: by quadrature for one linear predictor, else with `samples` draws."""
    predictor = _predictor(model)
    rows = _rows(predictor, X)
    X = pad_rows(rows)
    with precision(model.dtype):
        response: np.ndarray = on_host(_choose(_expected_response, model, X)(predictor, posterior, X, samples))
    return response[: len(rows)]


def predictive_std(model: AbstractModel, posterior: Family, hyper: Hyper, X: Any) -> np.ndarray:
    """The standard deviation of a new observation, noise included, where the model has one."""
    predictor = _predictor(model)
    rows = _rows(predictor, X)
    X = pad_rows(rows)
    with precision(model.dtype):
        numbers = {name: np.asarray(value, model.dtype) for name, value in hyper.items()}
        variance: np.ndarray = on_host(_choose(_predictive_variance, model, X)(predictor, posterior, X, numbers))
    return np.sqrt(variance[: len(rows)])


def score_rows(model: AbstractModel, posterior: Family, test: Sequence[Any]) -> dict[str, float]:
    """How well rows that were held out are predicted; of a model that predicts nothing, what it expects of them.

    That is `nll`, what is expected of the log likelihood of a row, with another sign.
    """
    if model.takes_target:
        predictor: Any = model
        return dict(predictor.score(expected_response(model, posterior, test[0]), test[1]))
    shard = model.shard(0, test[0])
    with precision(model.dtype):
        hyper = {name: np.asarray(value, model.dtype) for name, value in model.hyper.items()}
        values = on_host(_expected_log_prob(model, posterior, shard.data, hyper))
    return {"nll": float(-np.average(values, weights=shard.weights))}


def predict_interval(
    model: AbstractModel, posterior: Family, hyper: Hyper, X: Any, level: float, draws: int, seed: int
) -> np.ndarray:
    """Between which values each row's observation is believed to be, [rows, 2]; or each of its probabilities, [rows,
    classes, 2].

    Where a row's one predictor is Gaussian, from points that stand for it, so that a probability's interval is exact;
    else from draws of the posterior. Observations have the noise of the model.
    """
    predictor = _predictor(model)
    rows = _rows(predictor, X)
    tails = [0.5 - level / 2, 0.5 + level / 2]
    classifies = predictor.classifies(expected_response(model, posterior, X[:1]))
    at_once = max(1, MOST_DRAWN // draws)
    with precision(model.dtype):
        numbers = {name: np.asarray(value, model.dtype) for name, value in hyper.items()}
        keys = jax.random.split(jax.random.key(seed), draws)
        found = []
        for start in range(0, len(rows), at_once):
            piece = rows[start : start + at_once]
            padded = pad_rows(piece)
            if classifies:
                drawn = on_host(_choose(_draw_responses, model, padded)(predictor, posterior, padded, keys))
            else:
                data = Rows(padded, np.zeros(len(padded), model.dtype))
                drawn = on_host(_choose(_draw_observations, model, padded)(predictor, posterior, data, numbers, keys))
            found.append(np.moveaxis(np.quantile(drawn[:, : len(piece)], tails, axis=0, method="hazen"), 0, -1))
    return np.concatenate(found)


@dataclass(frozen=True)
class Replay:
    """A shard that is drawn from a model: generative replay of data that are gone (Section 7.1; Shin et al., 2017).

    Given in place of a shard, with the factor that stands for those data, it is a site like any other, whose rows are
    drawn where it loads them: `fit(model, [Replay(…), new], factors=[old.posterior / old.prior, flat])`.

    Args:
        model: what draws targets, given inputs and one draw of θ.
        posterior: what is known of θ.
        inputs: rows of inputs, which a model of targets does not draw.
        like: some observed targets, which say of what kind they are.
        seed: with the same seed, the same targets.
    """

    model: Predictor
    posterior: Family
    inputs: Any
    like: Any
    seed: int = 0

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs with targets that were drawn for them."""
        model = self.model
        X = np.asarray(self.inputs)
        rows = model.shard(0, (X, np.resize(np.asarray(self.like), len(X)))).data
        draw_key, target_key = jax.random.split(jax.random.key(self.seed))
        with precision(model.dtype):
            hyper = {name: np.asarray(value, model.dtype) for name, value in model.hyper.items()}
            drawn = on_host(model.replicated(self.posterior.sample(draw_key), rows, hyper, target_key))
        return X, drawn["y"]


def scaled_columns(design: Row, X: Any) -> np.ndarray:
    """Rows of a table as a run saw them: its columns, by name where the table has names, centred and in their units.

    Args:
        design: `columns`, and for each its `centre` and `unit`.
        X: a table with those columns among others, or an array of them in that order.
    """
    names = design["columns"]
    if hasattr(X, "columns"):
        missing = [name for name in names if name not in set(X.columns)]
        if missing:
            raise InputError(f"X: has no column {missing[0]!r}; expected {', '.join(names)}")
        X = X[list(names)]
    rows = as_numbers(None, "X", X, np.float64)
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise InputError(f"X: expected the columns {', '.join(names)}, got an array of shape {rows.shape}")
    return (rows - np.asarray(design["centre"])) / np.asarray(design["unit"])


def _rows(model: Predictor, X: Any) -> np.ndarray:
    rows = model.design(None, X)
    check_rows(None, {"X": rows})
    return rows


def _choose(program: Program, model: AbstractModel, X: np.ndarray) -> Callable[..., Any]:
    return program.choose(len(X), is_light=not model.drawn)


def _predictor(model: AbstractModel) -> Predictor:
    if not isinstance(model, Predictor):
        raise InputError(f"{type(model).__name__} does not say how it predicts: use `sample` and your own function")
    return model


@Program.of
def _expected_response(model: Predictor, posterior: Family, X: Array, samples: int) -> Array:
    known = model.expected_response(posterior, X)
    if known is not None:
        return known
    moments = model.predictor_moments(posterior, X)
    if moments is not None:
        m, v = moments
        if m.ndim == 1:
            nodes, weights = (jnp.asarray(a, m.dtype) for a in hermite(QUADRATURE_POINTS))
        else:
            nodes = jnp.asarray(normal_points(samples, m.shape[-1]), m.dtype)[:, None, :]
            weights = jnp.full(len(nodes), 1 / len(nodes), m.dtype)
        f = m + jnp.sqrt(v) * (nodes[:, None] if m.ndim == 1 else nodes)
        return jnp.tensordot(weights, model.response(f), axes=1)
    draw = model.draws(posterior, X)
    return _mean_over(jax.random.split(jax.random.key(0), samples), lambda key: model.response(draw(key)))


@eqx.filter_jit
def _expected_log_prob(model: AbstractModel, posterior: Family, data: Any, hyper: Hyper) -> Array:
    return model.expected_log_prob(posterior.mean(), data, hyper)


@Program.of
def _predictive_variance(model: Predictor, posterior: Family, X: Array, hyper: Hyper) -> Array:
    return model.predictive_variance(posterior, X, hyper)


@Program.of
def _draw_responses(model: Predictor, posterior: Family, X: Array, keys: Array) -> Array:
    """response(f) for each row, [draws, rows, …]: at points, or with θ drawn from q."""
    moments = model.predictor_moments(posterior, X)
    if moments is not None:
        m, v = moments
        if m.ndim == 1:
            # In the middle of as many parts of equal probability.
            nodes = jax.scipy.stats.norm.ppf((jnp.arange(len(keys), dtype=m.dtype) + 0.5) / len(keys))
            return model.response(m + jnp.sqrt(v) * nodes[:, None])
    draw = model.draws(posterior, X)
    return jax.lax.map(lambda key: model.response(draw(key)), keys)


@Program.of
def _draw_observations(model: Predictor, posterior: Family, data: Rows, hyper: Hyper, keys: Array) -> Array:
    """New targets for each row, [draws, rows]."""

    def draw(key: Any) -> Array:
        for_params, for_targets = jax.random.split(key)
        return model.replicated(posterior.sample(for_params), data, hyper, for_targets)["y"]

    return jax.lax.map(draw, keys)


def _mean_over(keys: Array, function: Callable[[Array], Array]) -> Array:
    """One at a time, so that no more than one is in memory."""

    def add(total: jax.Array, key: Any) -> tuple[jax.Array, None]:
        return total + function(key), None

    like = jax.eval_shape(function, keys[0])
    total, _ = jax.lax.scan(add, jnp.zeros(like.shape, like.dtype), keys)
    return total / len(keys)
