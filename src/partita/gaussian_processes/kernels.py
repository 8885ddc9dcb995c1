"""Covariance functions. A kernel is a description; its parameters are positive arrays by name, given at every call."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError
from partita.foundation.checks import check_positive
from partita.foundation.runtime import Array
from partita.foundation.shapes import Inputs, PerRow
from partita.gaussian_processes.shapes import Places, RowByPlace, RowByRow, Values

Params = Mapping[str, Array]

# Keeps the derivative of a distance finite where it is zero.
TINY = 1e-36
# The most parts of a kernel that is read from a file.
MOST_PARTS = 100


@dataclasses.dataclass(frozen=True)
class Kernel:
    """k(x, x'). Kernels add and multiply: `Matern32() + White(0.01)`."""

    @abstractmethod
    def initial(self, features: int) -> dict[str, np.ndarray]:
        """Starting values of all parameters, for inputs with so many features."""

    @abstractmethod
    def cross(self, params: Params, X: Inputs, Z: Places) -> RowByPlace:
        """k between every row of X and every row of Z, as different inputs, even where they are equal."""

    @abstractmethod
    def diagonal(self, params: Params, X: Inputs) -> PerRow:
        """k(x, x) of each row."""

    def in_units(self, inputs: np.ndarray, targets: float) -> dict[str, Any]:
        """The factor by which each parameter grows where inputs, one number per feature, and targets grow by these.

        Parameters that are not named here have no units.
        """
        return {}

    def gram(self, params: Params, Z: Inputs) -> RowByRow:
        """k between all rows, each of which is itself."""
        return jnp.where(jnp.eye(len(Z), dtype=bool), self.diagonal(params, Z), self.cross(params, Z, Z))

    def between(self, params: Params, X: Inputs, Z: Places) -> RowByPlace:
        """k between every row of X and every row of Z, where rows that are equal are the same input."""
        own = self.diagonal(params, Z) - jax.vmap(lambda z: self.cross(params, z[None], z[None])[0, 0])(Z)
        return self.cross(params, X, Z) + own * jnp.all(X[:, None] == Z, axis=-1)

    def __add__(self, other: "Kernel") -> "Kernel":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Kernel":
        return Product(self, other)


@dataclasses.dataclass(frozen=True)
class Stationary(Kernel):
    """variance × shape(|x - x'| / lengthscale), with a lengthscale for every feature if `ard`.

    `lengthscale=None` is the square root of the number of features: with standardised inputs, about the distance of
    two rows.
    """

    variance: float = 1.0
    lengthscale: float | tuple[float, ...] | None = None
    ard: bool = True

    def __post_init__(self) -> None:
        check_positive(f"{type(self).__name__}: ", variance=self.variance)
        if not isinstance(self.ard, bool | np.bool_):
            raise InputError(f"{type(self).__name__}: ard: expected true or false, got {self.ard!r}")
        if np.ndim(self.lengthscale):  # type: ignore[arg-type]
            object.__setattr__(self, "lengthscale", tuple(np.asarray(self.lengthscale, float).tolist()))
        for value in np.atleast_1d([] if self.lengthscale is None else self.lengthscale).tolist():
            check_positive(f"{type(self).__name__}: ", lengthscale=value)

    def initial(self, features: int) -> dict[str, np.ndarray]:
        given = math.sqrt(features) if self.lengthscale is None else self.lengthscale
        if np.ndim(given) and len(np.atleast_1d(given)) != features:
            raise InputError(f"lengthscale: expected {features} of them, one per feature, got {np.size(given)}")
        lengthscale = np.broadcast_to(np.asarray(given, float), (features,)) if self.ard or np.ndim(given) else given
        return {"variance": np.asarray(self.variance, float), "lengthscale": np.array(lengthscale, float)}

    def in_units(self, inputs: np.ndarray, targets: float) -> dict[str, Any]:
        many = self.ard or np.ndim(self.lengthscale)  # type: ignore[arg-type]
        return {"variance": targets**2, "lengthscale": inputs if many else np.exp(np.mean(np.log(inputs)))}

    def cross(self, params: Params, X: Inputs, Z: Places) -> RowByPlace:
        # Differences do not depend on the origin, but rounding does.
        origin = jax.lax.stop_gradient(jnp.mean(Z, axis=0))
        X, Z = (X - origin) / params["lengthscale"], (Z - origin) / params["lengthscale"]
        square = jnp.sum(X**2, axis=1)[:, None] + jnp.sum(Z**2, axis=1) - 2 * X @ Z.T
        return params["variance"] * self.shape(jnp.maximum(square, 0))

    def diagonal(self, params: Params, X: Inputs) -> PerRow:
        return jnp.broadcast_to(params["variance"], X.shape[:1])

    @abstractmethod
    def shape(self, square: RowByPlace) -> RowByPlace:
        """The correlation at a squared distance; 1 at 0."""


class SquaredExponential(Stationary):
    """exp(-r² / 2): infinitely smooth."""

    def shape(self, square: RowByPlace) -> RowByPlace:
        return jnp.exp(-0.5 * square)


class Matern12(Stationary):
    """exp(-r): continuous, nowhere smooth."""

    def shape(self, square: RowByPlace) -> RowByPlace:
        return jnp.exp(-jnp.sqrt(square + TINY))


class Matern32(Stationary):
    """Once differentiable."""

    def shape(self, square: RowByPlace) -> RowByPlace:
        r = jnp.sqrt(3 * square + TINY)
        return (1 + r) * jnp.exp(-r)


class Matern52(Stationary):
    """Twice differentiable."""

    def shape(self, square: RowByPlace) -> RowByPlace:
        r = jnp.sqrt(5 * square + TINY)
        return (1 + r + r**2 / 3) * jnp.exp(-r)


@dataclasses.dataclass(frozen=True)
class White(Kernel):
    """Noise that is part of the function: independent at every input."""

    variance: float = 0.1

    def __post_init__(self) -> None:
        check_positive("White: ", variance=self.variance)

    def initial(self, features: int) -> dict[str, np.ndarray]:
        return {"variance": np.asarray(self.variance, float)}

    def in_units(self, inputs: np.ndarray, targets: float) -> dict[str, Any]:
        return {"variance": targets**2}

    def cross(self, params: Params, X: Inputs, Z: Places) -> RowByPlace:
        return jnp.zeros((len(X), len(Z)), X.dtype)

    def diagonal(self, params: Params, X: Inputs) -> PerRow:
        return jnp.broadcast_to(params["variance"], X.shape[:1])


@dataclasses.dataclass(frozen=True)
class Pair(Kernel):
    """Two kernels, whose parameters are told apart by "first." and "second."."""

    first: Kernel
    second: Kernel

    def __post_init__(self) -> None:
        for part in (self.first, self.second):
            if not isinstance(part, Kernel):
                raise InputError(f"kernel: expected a kernel, got {part!r}")

    def initial(self, features: int) -> dict[str, np.ndarray]:
        return join_params(first=self.first.initial(features), second=self.second.initial(features))

    def cross(self, params: Params, X: Inputs, Z: Places) -> RowByPlace:
        first, second = select_params(params, "first"), select_params(params, "second")
        return self.combine(self.first.cross(first, X, Z), self.second.cross(second, X, Z))

    def diagonal(self, params: Params, X: Inputs) -> PerRow:
        first, second = select_params(params, "first"), select_params(params, "second")
        return self.combine(self.first.diagonal(first, X), self.second.diagonal(second, X))

    @abstractmethod
    def combine(self, first: Values, second: Values) -> Values: ...


class Sum(Pair):
    def in_units(self, inputs: np.ndarray, targets: float) -> dict[str, Any]:
        return join_params(first=self.first.in_units(inputs, targets), second=self.second.in_units(inputs, targets))

    def combine(self, first: Values, second: Values) -> Values:
        return first + second


class Product(Pair):
    def in_units(self, inputs: np.ndarray, targets: float) -> dict[str, Any]:
        half = math.sqrt(targets)
        return join_params(first=self.first.in_units(inputs, half), second=self.second.in_units(inputs, half))

    def combine(self, first: Values, second: Values) -> Values:
        return first * second


def join_params(**parts: dict[str, Any]) -> dict[str, Any]:
    """Parameters of several parts in one dictionary, told apart by "part." before their names."""
    return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}


def select_params(params: Params, part: str) -> dict[str, Any]:
    """The parameters of one part, by their own names."""
    return {name.removeprefix(f"{part}."): value for name, value in params.items() if name.startswith(f"{part}.")}


KERNELS: dict[str, type[Kernel]] = {
    kind.__name__: kind for kind in (SquaredExponential, Matern12, Matern32, Matern52, White, Sum, Product)
}


def to_settings(kernel: Kernel) -> dict[str, Any]:
    """A kernel as plain values, to store."""
    if KERNELS.get(type(kernel).__name__) is not type(kernel):
        raise InputError(f"kernel: {type(kernel).__name__} is not one of Partita's: its code cannot be stored")
    values = {field.name: getattr(kernel, field.name) for field in dataclasses.fields(kernel)}
    plain = {name: to_settings(value) if isinstance(value, Kernel) else value for name, value in values.items()}
    return {"kernel": type(kernel).__name__, **plain}


def from_settings(settings: dict[str, Any]) -> Kernel:
    """The inverse of `to_settings`; a kernel of very many parts, which nobody could compile, is refused."""
    if _count(settings) > MOST_PARTS:
        raise InputError(f"kernel: the file describes one of more than {MOST_PARTS} parts, which could not be compiled")
    return _build(settings)


def _count(settings: Any) -> int:
    return 1 + sum(map(_count, settings.values())) if isinstance(settings, dict) else 0


def _build(settings: dict[str, Any]) -> Kernel:
    name = settings.get("kernel")
    if not isinstance(name, str) or name not in KERNELS:
        raise InputError(f"kernel: {name!r} is not known: use one of {', '.join(KERNELS)}")
    values = {key: value for key, value in settings.items() if key != "kernel"}
    parts = {key: _build(value) if isinstance(value, dict) else value for key, value in values.items()}
    return KERNELS[name](**{key: tuple(value) if isinstance(value, list) else value for key, value in parts.items()})
