"""A network's function over many rows, with rows on the last axis and convolutions as products of matrices.

What `jax.vmap` does, with two differences that are measured on processors without accelerators: batches stay on the
last axis, where loops over neighbours are fast, and convolutions and pooling are taken apart (`convolutions`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from partita.errors import InputError
from partita.foundation.runtime import Array
from partita.models.convolutions import can_convolve, convolve, pool

POOLS: dict[str, tuple[Callable[[Array, Array], Array], float]] = {
    "reduce_window_max": (jnp.maximum, -np.inf),
    "reduce_window_min": (jnp.minimum, np.inf),
    "reduce_window_sum": (jnp.add, 0.0),
}
# Of several arrays of one shape: whatever is the same for all rows is given an axis of one.
ELEMENTWISE = {"add", "sub", "mul", "div", "max", "min", "pow", "rem", "atan2", "eq", "ne", "lt", "le", "gt", "ge"}
# These hold a program that is run as it is.
CALLS = ("jit", "pjit", "closed_call")


@dataclass(frozen=True)
class Value:
    """An array, and whether its last axis is that of rows."""

    array: Any
    by_row: bool

    @property
    def axis(self) -> int | None:
        return -1 if self.by_row else None


def map_over_rows(function: Callable[[Any, Array], Array], params: Any, X: Array) -> Array:
    """`jax.vmap(function, (None, 0))(params, X)`."""
    one = jax.ShapeDtypeStruct(X.shape[1:], X.dtype)
    program = jax.make_jaxpr(function)(params, one)
    known = [Value(leaf, False) for leaf in jax.tree.leaves(params)]
    found = _run_for_one(program, [*known, Value(jnp.moveaxis(X, 0, -1), True)])
    if not found.by_row:
        return jnp.broadcast_to(found.array, (len(X), *found.array.shape))
    return jnp.moveaxis(found.array, -1, 0)


def apply_to_rows(function: Callable[[Any, Array], Array], params: Any, X: Array) -> Array:
    """A function of many rows, with its convolutions and its pooling taken apart."""
    program = jax.make_jaxpr(function)(params, X)
    array: Array = _run_for_one(program, [Value(leaf, False) for leaf in (*jax.tree.leaves(params), X)]).array
    return array


def _run_for_one(program: ClosedJaxpr, given: Sequence[Value]) -> Value:
    found = _run(program, given)
    if len(found) != 1:
        raise InputError(f"layers: expected one array of outputs, got {len(found)}")
    return found[0]


def _run(program: ClosedJaxpr, given: Sequence[Value]) -> list[Value]:
    known: dict[Any, Value] = {}
    jaxpr = program.jaxpr
    known.update(zip(jaxpr.constvars, (Value(const, False) for const in program.consts), strict=True))
    known.update(zip(jaxpr.invars, given, strict=True))

    def read(variable: Any) -> Value:
        return Value(variable.val, False) if isinstance(variable, Literal) else known[variable]

    for equation in jaxpr.eqns:
        found = _apply(equation, [read(variable) for variable in equation.invars])
        known.update(zip(equation.outvars, found, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _apply(equation: Any, given: list[Value]) -> list[Value]:
    name, settings = equation.primitive.name, equation.params
    if name in CALLS and "jaxpr" in settings:
        return _run(settings["jaxpr"], given)
    if (
        name == "conv_general_dilated"
        and not given[1].by_row
        and can_convolve(given[0].array, given[1].array, settings)
    ):
        return [_on_rows(given[0], lambda x: convolve(x, given[1].array, settings))]
    if name in POOLS:
        return [Value(pool(given[0].array, settings, *POOLS[name]), given[0].by_row)]
    if not any(value.by_row for value in given):
        return [Value(array, False) for array in _bind(equation, [value.array for value in given])]
    own = _own(equation, given)
    if own is not None:
        return [Value(own, True)]
    arrays = [value.array for value in given]
    if name == "custom_jvp_call":
        # An activation: without this, XLA computes its gradient again for everything that needs it, one by one.
        arrays = list(jax.lax.optimization_barrier(tuple(arrays)))
    bound = jax.vmap(lambda *one: _bind(equation, one), tuple(value.axis for value in given), -1)(*arrays)
    return [Value(array, True) for array in bound]


def _on_rows(value: Value, function: Callable[[Array], Array]) -> Value:
    """What a function of an array with rows makes of one, which may have none."""
    if value.by_row:
        return Value(function(value.array), True)
    return Value(function(value.array[..., None])[..., 0], False)


def _own(equation: Any, given: list[Value]) -> Array | None:
    """Operations for which JAX would move the axis of rows to the front."""
    name, settings, array = equation.primitive.name, equation.params, given[0].array
    shape = equation.outvars[0].aval.shape
    if name in ("reshape", "squeeze", "expand_dims"):
        reshaped: Array = array.reshape(*shape, array.shape[-1])
        return reshaped
    if name == "broadcast_in_dim":
        axes = (*map(int, settings["broadcast_dimensions"]), len(shape))
        return jax.lax.broadcast_in_dim(array, (*shape, array.shape[-1]), axes)
    if name == "transpose":
        return jnp.transpose(array, (*settings["permutation"], array.ndim - 1))
    if name in ELEMENTWISE:
        arrays = [
            value.array if value.by_row or not np.ndim(value.array) else value.array[..., None] for value in given
        ]
        bound: Array = equation.primitive.bind(*arrays, **settings)
        return bound
    return None


def _bind(equation: Any, arrays: Sequence[Any]) -> list[Any]:
    found = equation.primitive.bind(*arrays, **equation.primitive.get_bind_params(equation.params))
    return list(found) if equation.primitive.multiple_results else [found]
