"""Messages of networks, whose precision is a Fisher information."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError
from partita.expectations.base import Expectation
from partita.expectations.predictors import LocalReparameterisation
from partita.foundation.checks import check_count
from partita.foundation.runtime import Array
from partita.foundation.shapes import PerRow, Scalar
from partita.models import AbstractModel, Hyper
from partita.shards import Shard

# At least into how many parts a network's rows are divided, if there are so many: noise averages over parts.
FEWEST_PARTS = 16


class GaussNewton(LocalReparameterisation):
    """Local reparameterisation for dense networks, with a message whose precision is never negative.

    Its mean is that of the gradient. Its precision is the diagonal of the Fisher information, from labels that the
    model draws itself (Martens, 2020), in place of the Hessian's, which is noisy and may be negative (Khan et al.,
    2018, take squared gradients of mini-batches for the same reason). `rows_at_once` fit into the processor's cache.

    With `exact`, its precision is the gradient's of Property 4, -2 dE_q[log p] / dv for a variance v, from the same
    draws: fixed points are then those of global VI. It is noisy, and may be negative.
    """

    samples: int = 1
    fixed: bool = False
    rows_at_once: int = 1000
    exact: bool = False

    has_message: ClassVar[bool] = True
    is_direction: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_count("GaussNewton: ", rows_at_once=self.rows_at_once)
        if self.samples != 1 or self.fixed:
            raise InputError("GaussNewton: each row has one draw, and a new one at every call")

    def message(self, model: AbstractModel, q: Any, shard: Shard, hyper: Hyper, key: Array) -> tuple[Scalar, Any]:
        size = min(self.rows_at_once, shard.capacity)

        def add(total: Any, number: Array) -> tuple[Any, None]:
            part = shard.part(number, size)
            return jax.tree.map(jnp.add, total, one(model, q, part, hyper, jax.random.fold_in(key, number))), None

        one = self._exact_part if self.exact else self._part
        parts = -(-shard.capacity // size)
        if parts == 1:
            value, gradient, precision = one(model, q, shard, hyper, key)
        else:
            start = (jnp.zeros((), q.dtype), *[jax.tree.map(jnp.zeros_like, q.location)] * 2)
            (value, gradient, precision), _ = jax.lax.scan(add, start, jnp.arange(parts))
        return value, type(q)(jax.tree.map(lambda g, p, m: g + p * m, gradient, precision, q.location), precision)

    def _part(self, model: Any, q: Any, shard: Shard, hyper: Hyper, key: Array) -> tuple[Array, Any, Any]:
        """Sums over rows: of log p, its gradient by the location, and the squares of gradients for drawn labels."""
        (X, y), weights = shard.data, shard.weights
        draw_key, label_key = jax.random.split(key)
        network = model.network
        first = network.moments_along(q, X)
        shifts = [jnp.zeros((X.shape[0], outputs), X.dtype) for outputs in network.sizes[1:]]
        f, pull, hidden = jax.vjp(lambda s: network.shifted_draw(q, first, draw_key, s), shifts, has_aux=True)
        rows = jax.vmap(jax.value_and_grad(model.pointwise), (0, 0, None))
        values, slopes = rows(f, y, hyper)
        drawn = model.sample_targets(f, hyper, label_key, y)
        (by_layer,) = pull(slopes * weights[:, None])
        (by_drawn,) = pull(rows(f, drawn, hyper)[1])
        kind = type(q.location[0])
        gradient, precision = [], []
        for inputs, g, e in zip([X, *hidden], by_layer, by_drawn, strict=True):
            square = e**2 * weights[:, None]
            gradient.append(kind(inputs.T @ g, jnp.sum(g, axis=0)))
            precision.append(kind((inputs**2).T @ square, jnp.sum(square, axis=0)))
        return shard.total(values), tuple(gradient), tuple(precision)

    def _exact_part(self, model: Any, q: Any, shard: Shard, hyper: Hyper, key: Array) -> tuple[Array, Any, Any]:
        """Sums over rows: of log p, its gradient by the location, and -2 times that by the variance."""

        def total(free: Any) -> Array:
            return shard.total(self._of_layers(model, q.seen_from_free(free), shard.data, hyper, key))

        value, (gradient, slope) = jax.value_and_grad(total)(q.to_free())
        return value, gradient, jax.tree.map(lambda g, p: -p * g, slope, q.precision)  # dv = 2v d(log scale)


class DrawnFisher(Expectation):
    """Messages of networks of any architecture: gradients at draws of the weights, one draw for each part of the rows.

    A message's mean is that of the gradient. Its precision is the diagonal of the Fisher information: the square of a
    part's gradient for labels that the model draws itself. Their scores have mean zero and are independent, so that the
    square of their sum is, on average, the sum of their squares. For one part its noise is as large as itself; it
    averages over parts, and of very many, up to `fewer` times fewer are asked. Few rows have smaller parts.
    """

    rows_at_once: int = 50
    fewer: int = 4

    has_message: ClassVar[bool] = True
    is_direction: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_count("DrawnFisher: ", rows_at_once=self.rows_at_once, fewer=self.fewer)

    @property
    def stochastic(self) -> bool:
        return True

    def _size(self, rows: int) -> int:
        """How many rows make a part."""
        return min(self.rows_at_once, -(-rows // FEWEST_PARTS))

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        rows = len(jax.tree.leaves(data)[0])
        size = self._size(rows)
        shard = Shard(data, jnp.ones(rows, model.dtype), jnp.asarray(rows))

        def values(number: Array) -> Array:
            theta = q.sample_cheaply(jax.random.fold_in(key, number))
            return model.log_prob(theta, shard.part(number, size).data, hyper)

        parts = jax.lax.map(values, jnp.arange(-(-rows // size)))
        # The last part begins earlier, where rows do not fill it.
        return jnp.concatenate([parts[:-1].ravel(), parts[-1][-1 - (rows - 1) % size :]])

    def message(self, model: AbstractModel, q: Any, shard: Shard, hyper: Hyper, key: Array) -> tuple[Scalar, Any]:
        size = self._size(shard.capacity)
        parts = -(-shard.capacity // size)
        every = int(np.clip(parts // FEWEST_PARTS, 1, self.fewer))
        gradient_key, fisher_key, first_key = jax.random.split(key, 3)
        first = jax.random.randint(first_key, (), 0, every)

        def add(total: Any, number: Array) -> tuple[Any, None]:
            found = self._gradient(model, q, shard.part(number, size), hyper, jax.random.fold_in(gradient_key, number))
            return jax.tree.map(jnp.add, total, found), None

        def add_squares(total: Any, number: Array) -> tuple[Any, None]:
            # A number beyond the last one's is a part whose rows all have weight zero.
            part = shard.part(first + every * number, size)
            score = self._score(model, q, part, hyper, jax.random.fold_in(fisher_key, number))
            return jax.tree.map(lambda t, s: t + every * s**2, total, score), None

        zeros = jax.tree.map(jnp.zeros_like, q.location)
        (value, gradient), _ = jax.lax.scan(add, (jnp.zeros((), q.dtype), zeros), jnp.arange(parts))
        precision, _ = jax.lax.scan(add_squares, zeros, jnp.arange(-(-parts // every)))
        return value, type(q)(jax.tree.map(lambda g, p, m: g + p * m, gradient, precision, q.location), precision)

    def _gradient(self, model: Any, q: Any, part: Shard, hyper: Hyper, key: Array) -> tuple[Array, Any]:
        """log p and its gradient, summed over rows, at one draw."""

        def total(theta: Any) -> Array:
            return part.total(model.log_prob(theta, part.data, hyper))

        found: tuple[Array, Any] = jax.value_and_grad(total)(q.sample_cheaply(key))
        return found

    def _score(self, model: Any, q: Any, part: Shard, hyper: Hyper, key: Array) -> Any:
        """The gradient at one draw for targets that are drawn there, with roots of weights: those are of squares."""
        draw_key, label_key = jax.random.split(key)
        X, y = part.data
        f, pull = jax.vjp(lambda theta: model.predictors(theta, X), q.sample_cheaply(draw_key))
        drawn = model.sample_targets(f, hyper, label_key, y)
        slopes = jax.vmap(jax.grad(model.pointwise), (0, 0, None))(f, drawn, hyper)
        return pull(jnp.where(part.weights[:, None] > 0, jnp.sqrt(part.weights)[:, None] * slopes, 0))[0]
