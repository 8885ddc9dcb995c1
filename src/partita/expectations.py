"""E_q[log p(y_n | θ)], one number per row: eight ways, and which one fits a model.

Each takes the density as it is differentiated: a family, or a Gaussian's mean parameters, which know their
location, covariance and draws just as well.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError
from partita.families import Family, GaussianView
from partita.foundation.checks import check_count
from partita.foundation.points import hermite, normal_points, white_points
from partita.foundation.runtime import Array, ravel
from partita.foundation.shapes import PerRow, Points, Scalar
from partita.models import AbstractModel, Hyper
from partita.shards import Shard

# Keeps the derivative of a square root finite where a predictor does not vary at all.
TINY = 1e-30
# Up to how many parameters Hessians, and gradients at many points, are worth their price; and how many copies of the
# data are looked at together, in numbers.
MOST_CURVED = 300
NUMBERS_AT_ONCE = 200_000
# At least into how many parts a network's rows are divided, if there are so many: noise averages over parts.
FEWEST_PARTS = 16


class Expectation(eqx.Module):
    """How E_q[log p] is computed."""

    # Whether the value is a function of the mean parameters alone, for any family; whether there is a `message` that
    # replaces its gradient; whether that is a direction for an optimiser at the server rather than a destination.
    of_mean: ClassVar[bool] = False
    has_message: ClassVar[bool] = False
    is_direction: ClassVar[bool] = False

    @property
    def stochastic(self) -> bool:
        """Whether the value depends on random draws."""
        return False

    @abstractmethod
    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        """E_q[log p(y_n | θ, ε)] for each row."""

    def message(self, model: AbstractModel, q: Any, shard: Shard, hyper: Hyper, key: Array) -> tuple[Scalar, Any]:
        """E_q[log p(y | θ, ε)] of a shard, and the factor that stands for it; where `has_message`."""
        raise InputError(f"{type(self).__name__} has no message of its own")


class ClosedForm(Expectation):
    """The model's own formula."""

    of_mean: ClassVar[bool] = True

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        return model.expected_log_prob(q, data, hyper)


class GaussHermite(Expectation):
    """Quadrature over the one predictor f = xᵀθ ~ N(m, v) of each row."""

    points: int = 40

    def __check_init__(self) -> None:
        check_count("GaussHermite: ", points=self.points)

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        m, v = q.moments_along(data.X)
        nodes, weights = (jnp.asarray(a, m.dtype) for a in hermite(self.points))
        f = m[:, None] + jnp.sqrt(jnp.maximum(v, TINY))[:, None] * nodes
        values = jax.vmap(jax.vmap(model.pointwise, (0, None, None)), (0, 0, None))(f, data.y, hyper)
        return values @ weights


class LocalReparameterisation(Expectation):
    """Draws of the predictors f = Xθ, rather than of θ; of every layer's, for a network (Kingma et al., 2015).

    With `fixed=True` the draws are one low-discrepancy set, the same at every call: the free energy is then a
    deterministic function, and every schedule has the same optimum. Networks always draw afresh.
    """

    samples: int = 32
    fixed: bool = True

    def __check_init__(self) -> None:
        check_count("LocalReparameterisation: ", samples=self.samples)

    @property
    def stochastic(self) -> bool:
        return not self.fixed

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        if model.layered:
            return self._of_layers(model, q, data, hyper, key)
        m, v = q.moments_along(data.X)
        if self.fixed:
            noise = jnp.asarray(normal_points(self.samples, m.shape[-1]), m.dtype)[:, None, :]
        else:
            noise = jax.random.normal(key, (self.samples, *m.shape), m.dtype)
        f = m + jnp.sqrt(jnp.maximum(v, TINY)) * noise
        values = jax.vmap(jax.vmap(model.pointwise, (0, 0, None)), (0, None, None))(f, data.y, hyper)
        return jnp.mean(values, axis=0)

    def _of_layers(self, model: Any, q: Any, data: Any, hyper: Hyper, key: Array) -> Array:
        draw = model.draws(q, data.X)

        def one(key: Array) -> Array:
            return jax.vmap(model.pointwise, (0, 0, None))(draw(key), data.y, hyper)

        if self.samples == 1:
            return one(key)
        return jnp.mean(jax.lax.map(one, jax.random.split(key, self.samples)), axis=0)


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


class MonteCarlo(Expectation):
    """Draws of the parameters, differentiated through (Rezende et al., 2014); for any model."""

    samples: int = 32

    def __check_init__(self) -> None:
        check_count("MonteCarlo: ", samples=self.samples)

    @property
    def stochastic(self) -> bool:
        return True

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        if self.samples == 1:
            return model.log_prob(q.sample(key), data, hyper)
        params = q.sample(key, (self.samples,))
        return jnp.mean(jax.vmap(lambda theta: model.log_prob(theta, data, hyper))(params), axis=0)


class ExpectedHessian(Expectation):
    """Gradients and Hessians of log p at fixed points around the mean, for any smooth model of a few hundred numbers.

    Under a Gaussian, the message is made of E_q[∇ log p] and E_q[∇∇ᵀ log p] (Bonnet, 1964; Price, 1958). Where the
    likelihood does not look at a parameter, both are zero to the last digit, so that a site says nothing about it; and
    where log p is quadratic they are exact. There are at least as many points as keep them so.
    """

    points: int = 64

    has_message: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_count("ExpectedHessian: ", points=self.points)

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        values = _mapped(lambda theta: model.log_prob(theta, data, hyper), _placed(q, self.points), data)
        return jnp.mean(values, axis=0)

    def message(self, model: AbstractModel, q: Any, shard: Shard, hyper: Hyper, key: Array) -> tuple[Scalar, Any]:
        def value(theta: Array) -> Array:
            return shard.total(model.log_prob(theta, shard.data, hyper))

        def slope(theta: Array) -> tuple[Array, tuple[Array, Array]]:
            found, gradient = jax.value_and_grad(value)(theta)
            return gradient, (found, gradient)

        everywhere = _mapped(jax.jacfwd(slope, has_aux=True), _placed(q, self.points), shard.data)
        H, (found, gradient) = jax.tree.map(lambda a: jnp.mean(a, axis=0), everywhere)
        return found, q.quadratic(gradient, H)


class ExpectedSlope(Expectation):
    """Gradients of log p at fixed points around the mean, for any model of a few hundred numbers, with kinks or not.

    As `ExpectedHessian`, but with E_q[∇∇ᵀ log p] = E_q[∇ log p (θ - m)ᵀ] V⁻¹ (Stein, 1981), which holds where log p has
    kinks too: |x|, a hinge, rectified units. It takes more points. Where log p is quadratic, both are exact.
    """

    points: int = 512

    has_message: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_count("ExpectedSlope: ", points=self.points)

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        whole = ravel(q.location)[1]
        values = _mapped(lambda theta: model.log_prob(whole(theta), data, hyper), _placed(q, self.points), data)
        return jnp.mean(values, axis=0)

    def message(self, model: AbstractModel, q: Any, shard: Shard, hyper: Hyper, key: Array) -> tuple[Scalar, Any]:
        whole = ravel(q.location)[1]

        def value(theta: Array) -> Array:
            return shard.total(model.log_prob(whole(theta), shard.data, hyper))

        placed = _placed(q, self.points)
        values, slopes = _mapped(jax.value_and_grad(value), placed, shard.data)
        return jnp.mean(values), q.quadratic_of_slopes(placed, slopes)


def _placed(q: GaussianView, number: int) -> Points:
    """Points with the mean and the covariance of q, each as one vector."""
    m = ravel(q.location)[0]
    return q.place(jnp.asarray(white_points(number, m.shape[0]), m.dtype))


def _mapped(function: Callable[[Array], Any], points: Array, data: Any) -> Any:
    """At all points: many at once where data are small, and few where they are large."""
    size = max(1, sum(leaf.size for leaf in jax.tree.leaves(data)))
    return jax.lax.map(function, points, batch_size=int(np.clip(NUMBERS_AT_ONCE // size, 1, len(points))))


def choose(model: AbstractModel, prior: Family, wanted: Expectation | None = None) -> Expectation:
    """The best expectation that a model allows, or the wanted one if it is possible."""
    gaussian = prior.is_gaussian
    few = gaussian and prior.as_gaussian("expectation").size <= MOST_CURVED
    vector = few and prior.as_gaussian("expectation").is_vector
    if wanted is None:
        if model.closed_form:
            return ClosedForm()
        if model.layered and prior.is_mean_field:
            return GaussNewton()
        if model.drawn and prior.is_mean_field:
            return DrawnFisher()
        if model.projected and gaussian:
            return GaussHermite() if model.outputs == 1 else LocalReparameterisation()
        if model.drawn or not few:
            return MonteCarlo()
        return ExpectedHessian() if model.smooth and vector else ExpectedSlope()
    linear = model.projected and gaussian
    dense = "it needs dense layers, or several linear predictors per row, and a mean-field posterior"
    draws_afresh = not (model.layered and isinstance(wanted, LocalReparameterisation) and wanted.fixed)
    needs: tuple[tuple[type[Expectation], bool, str], ...] = (
        (ClosedForm, model.closed_form, "the model has no closed form"),
        (GaussHermite, linear and model.outputs == 1, "it needs one linear predictor per row and a Gaussian posterior"),
        (LocalReparameterisation, draws_afresh, "networks draw afresh: say fixed=False"),
        (GaussNewton, model.layered, "it needs a network of dense layers"),
        (DrawnFisher, model.drawn and prior.is_mean_field, "it needs a network and a mean-field posterior"),
        (ExpectedHessian, vector, f"it needs a Gaussian posterior over a vector of at most {MOST_CURVED} numbers"),
        (ExpectedSlope, few, f"it needs a Gaussian posterior over at most {MOST_CURVED} numbers"),
        (LocalReparameterisation, model.layered or (linear and model.outputs > 1), dense),
    )
    for kind, possible, words in needs:
        if isinstance(wanted, kind) and not possible:
            raise InputError(f"expectation: {type(wanted).__name__} does not fit {type(model).__name__}: {words}")
    return wanted
