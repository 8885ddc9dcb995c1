"""Any likelihood, as a function of JAX operations."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self

import equinox as eqx
import jax
import numpy as np

from partita.errors import ImproperDensity, InputError, ShardError, reason
from partita.families import Family
from partita.foundation.checks import check_positive
from partita.foundation.runtime import Array, precision
from partita.foundation.shapes import PerRow
from partita.models.base import AbstractModel, Hyper, Weighted, narrow
from partita.shards import Shard, as_numbers, check_rows, check_weights, make_shard


class Model(AbstractModel):
    """Any likelihood, as a function `log_prob(params, data) -> [n]` of JAX operations.

    With hyperparameters, `log_prob(params, data, hyper)`. A shard is an array, or a tuple or dictionary of
    arrays with equally many rows, or `pt.models.Weighted(data, weights)`. Refinements begin at `init`; if not given, at
    a narrow density around the mean of a Gaussian prior, and at any other prior itself.

    Under a Gaussian of up to 300 numbers it is integrated by gradients at 512 fixed points (`ExpectedSlope`): they find
    the deviations of the best Gaussian within 3 %, whether the function has two derivatives or kinks. More numbers, and
    other families, take 32 draws at a time (`MonteCarlo`), which leave ten per cent of noise in deviations and more:
    give `fit(expectation=MonteCarlo(500))`. Of categorical parameters all values are looked at (`Enumeration`).

    >>> import jax.numpy as jnp
    >>> from partita.families import Gaussian
    >>> model = Model(Gaussian.from_moments(np.zeros(1), np.eye(1)), lambda theta, y: -0.5 * (y - theta[0]) ** 2)
    >>> model.prior({}).location
    array([0.])
    """

    function: Callable[..., Array] = eqx.field(static=True)
    initial_hyper: tuple[tuple[str, float], ...] = eqx.field(static=True, default=())
    init: Family | None = None

    def __init__(
        self,
        prior: Family,
        log_prob: Callable[..., Array],
        hyper: Hyper | None = None,
        init: Family | None = None,
    ):
        if not isinstance(prior, Family):
            raise InputError(f"prior: expected a family such as pt.families.Gaussian, got {type(prior).__name__}")
        if not prior.is_proper():
            raise ImproperDensity("prior: must be proper")
        self.given_prior = prior
        self.function = log_prob
        check_positive("hyper: ", **(hyper or {}))
        self.initial_hyper = tuple(sorted((name, float(value)) for name, value in (hyper or {}).items()))
        self.init = init

    @property
    def hyper(self) -> Hyper:
        return dict(self.initial_hyper)

    def with_hyper(self, hyper: Hyper) -> Self:
        return type(self)(self.natural_prior({}), self.function, hyper, self.init)

    def natural_prior(self, hyper: Hyper) -> Family:
        assert self.given_prior is not None
        return self.given_prior

    def log_prob(self, params: Any, data: Any, hyper: Hyper) -> PerRow:
        return self.function(params, data, hyper) if self.initial_hyper else self.function(params, data)

    @property
    def start(self) -> Family | None:
        return narrow(self.natural_prior({})) if self.init is None else self.init

    def shard(self, site: int, raw: Any) -> Shard:
        data, weights = (raw.data, raw.weights) if isinstance(raw, Weighted) else (raw, None)
        data = jax.tree.map(lambda a: as_numbers(site, "data", a, _kept_dtype(a, self.dtype)), data)
        leaves = jax.tree.leaves(data)
        if not leaves or any(leaf.ndim == 0 for leaf in leaves):
            raise ShardError(site, "data", "expected arrays with one row per observation")
        check_rows(site, {f"data[{i}]": leaf for i, leaf in enumerate(leaves)})
        self._check_log_prob(site, data, len(leaves[0]))
        return make_shard(data, check_weights(site, weights, len(leaves[0]), self.dtype))

    def _check_log_prob(self, site: int, data: Any, rows: int) -> None:
        """Check that the function takes a site's data, before anything is compiled."""
        try:
            with precision(self.dtype):
                shape = _shape_of(self.function, self.initial_hyper, _like(self.natural_prior({})), _like(data))
        except Exception as error:
            advice = "it has to be made of JAX operations, for parameters and data of these shapes"
            raise ShardError(site, "log_prob", f"does not run: {advice} ({reason(error)})") from error
        if shape != (rows,):
            raise ShardError(site, "log_prob", f"expected one number per row, {(rows,)}, got {shape}")

    @property
    def dtype(self) -> np.dtype:
        return self.natural_prior({}).dtype


def _like(tree: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a tree of arrays looks like, without their numbers."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), np.asarray(leaf).dtype.str) for leaf in leaves)


@lru_cache(maxsize=256)
def _shape_of(
    function: Callable[..., Any],
    hyper: tuple[Any, ...],
    prior: tuple[Any, tuple[Any, ...]],
    data: tuple[Any, tuple[Any, ...]],
) -> Any:
    """The shape of what a log likelihood gives. Many sites look alike."""
    q, rows = (
        jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
        for structure, leaves in (prior, data)
    )
    more = (dict(hyper),) if hyper else ()
    found = jax.eval_shape(lambda q, rows: function(q.sample(jax.random.key(0)), rows, *more), q, rows)
    return getattr(found, "shape", None)


def _kept_dtype(array: Any, dtype: np.dtype) -> np.dtype:
    """Integers and booleans stay as they are; anything else takes the model's precision."""
    own = np.asarray(array).dtype
    return own if np.issubdtype(own, np.integer) or own == np.bool_ else dtype
