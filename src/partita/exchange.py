"""Posteriors as ArviZ knows them."""

import warnings
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from partita.families import Family
from partita.foundation.checks import import_extra
from partita.foundation.plain import Row
from partita.foundation.runtime import Array, on_host, precision
from partita.models import AbstractModel, Hyper
from partita.shards import Shard

CHAINS = 4

# Values by name, in three groups.
Groups = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def inference_data(
    model: AbstractModel,
    posterior: Family,
    hyper: Hyper,
    history: Sequence[Row],
    shards: Sequence[Shard],
    draws: int,
    key: Array,
) -> Any:
    """Draws of the posterior, and what they say about these shards: log likelihoods and new observations."""
    for_params, for_data = jax.random.split(key)
    params = posterior.sample(for_params, (-(-draws // CHAINS) * CHAINS,))
    groups: dict[str, Any] = {"posterior": model.variables(params)}
    numbers = {name: [row.get(name) for row in history] for name in (history[0] if history else ())}
    numeric = {name: column for name, column in numbers.items() if _is_numeric(column)}
    groups["sample_stats"] = {
        name: np.array([np.nan if value is None else float(value) for value in column])
        for name, column in numeric.items()
    }
    if shards:
        looked_at = [
            _look_at(model, params, shard, hyper, jax.random.fold_in(for_data, m)) for m, shard in enumerate(shards)
        ]
        for number, name in enumerate(("log_likelihood", "posterior_predictive", "observed_data")):
            parts = [part[number] for part in looked_at]
            axis = 0 if name == "observed_data" else 1
            groups[name] = {key: np.concatenate([part[key] for part in parts], axis=axis) for key in parts[0]}
    chained = {
        name: group if name == "observed_data" else {key: _split_chains(name, value) for key, value in group.items()}
        for name, group in groups.items()
        if group
    }
    return import_arviz().from_dict(**chained)


def _split_chains(name: str, values: Any) -> np.ndarray:
    """Draws are independent: any parting into chains will do, and with several, ArviZ can compare them."""
    array = np.asarray(values)
    return array[None] if name == "sample_stats" else array.reshape(CHAINS, -1, *array.shape[1:])


def import_arviz() -> Any:
    """ArviZ, without its announcement of things to come."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return import_extra("arviz", "ArviZ", "arviz")


def _is_numeric(column: Sequence[Any]) -> bool:
    present = [value for value in column if value is not None]
    return bool(present) and all(isinstance(value, int | float) for value in present)


def _look_at(model: AbstractModel, params: Any, shard: Shard, hyper: Hyper, key: Array) -> Groups:
    with precision(model.dtype):
        numbers = {name: np.asarray(value, model.dtype) for name, value in hyper.items()}
        return on_host(_evaluate(model, params, shard, numbers, key))


@eqx.filter_jit
def _evaluate(model: AbstractModel, params: Any, shard: Shard, hyper: Hyper, key: Array) -> Groups:
    observed = model.observed(shard.data)
    keys = jax.random.split(key, len(jax.tree.leaves(params)[0]))
    likely = jax.lax.map(lambda theta: model.log_prob(theta, shard.data, hyper), params)
    drawn = jax.lax.map(lambda pair: model.replicated(pair[0], shard.data, hyper, pair[1]), (params, keys))
    return {next(iter(observed), "y"): likely}, drawn, observed
