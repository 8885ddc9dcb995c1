"""How JAX is used: precision without a global flag, and arrays on the host."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

# Options of XLA for programs that take longer to compile than they run: its older code generator, which is up to 1.5
# times slower on many rows, and fewer passes of LLVM. What the user has set in XLA_FLAGS stays.
QUICK = {
    name: value
    for name, value in {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}.items()
    if name not in os.environ.get("XLA_FLAGS", "")
}
# So many rows are few.
FEW_ROWS = 4096

# NumPy's or JAX's: densities, data and messages can be made of either.
if TYPE_CHECKING:
    Array: TypeAlias = jax.Array | np.ndarray[Any, Any]
else:
    Array = jax.Array | np.ndarray


def same_structure(first: Any, second: Any) -> bool:
    """Whether two trees differ at most in their leaves."""
    structures: list[Any] = [jax.tree.structure(tree) for tree in (first, second)]
    return structures[0] == structures[1]


def precision(dtype: Any) -> AbstractContextManager[Any]:
    """A context in which JAX computes in `dtype`, whatever the global flag says; the flag is not touched."""
    if dtype is not None and np.dtype(dtype) == np.float64 and jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        return jax.enable_x64(True)
    return nullcontext()


def on_host(tree: Any) -> Any:
    """The same tree with NumPy arrays: what is kept, sent and stored."""
    return jax.tree.map(np.asarray, tree)


def stack_trees(trees: Sequence[Any]) -> Any:
    """Several trees of one shape as one tree whose NumPy arrays have a leading axis; of one tree, a view."""
    if len(trees) == 1:
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], trees[0])
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def ravel(tree: Any) -> tuple[jax.Array, Callable[[Array], Any]]:
    """All numbers of a tree in a row, and the way back."""
    flat, unravel = ravel_pytree(tree)
    return flat, lambda numbers: unravel(jnp.asarray(numbers))


def outer(first: Array, second: Array) -> jax.Array:
    """abᵀ."""
    return jnp.outer(first, jnp.asarray(second))


def is_traced(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def dtype_of(tree: Any) -> np.dtype | None:
    """The floating dtype of a tree's arrays; None if it has none."""
    arrays = (np.ndarray, np.generic, jax.Array)
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(tree) if isinstance(leaf, arrays)]
    floating = [dtype for dtype in dtypes if jnp.issubdtype(dtype, np.floating)]
    return np.result_type(*floating) if floating else None


def as_array(value: Any) -> Any:
    """A NumPy array, unless JAX has it already."""
    if isinstance(value, jax.Array):
        return value
    array = np.asarray(value)
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)


def in_own_precision(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method of a pytree compute in the precision of its own arrays; a class method in that of its arguments.

    Called from ordinary Python it is compiled and returns NumPy arrays in that precision; inside a traced
    function it changes nothing.
    """
    compiled = eqx.filter_jit(method)

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced((self, args, kwargs)):
            return method(self, *args, **kwargs)
        with precision(dtype_of(self) or dtype_of(args)):
            result = compiled(self, *args, **kwargs)
        return result if is_traced(result) else on_host(result)

    return wrapped


def compile_quickly(function: Callable[..., Any]) -> Callable[..., Any]:
    """`eqx.filter_jit` for what is small beside its program: a third less to compile, and no slower where rows are few.

    Not inside other compiled functions, which have options of their own.
    """
    return eqx.filter_jit(function, compiler_options=QUICK)  # type: ignore[call-overload]


class Program(NamedTuple):
    """A function compiled in two ways: in little time, and for many rows."""

    quick: Callable[..., Any]
    thorough: Callable[..., Any]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Program":
        """Use as a decorator."""
        return cls(compile_quickly(function), eqx.filter_jit(function))

    def choose(self, rows: int, is_light: bool = True) -> Callable[..., Any]:
        """The way for so many rows. Which one it is decides about the last bits, so it may depend on nothing else.

        Args:
            rows: that are worked on together, padding included.
            is_light: whether there is little work for each row; a network has much.
        """
        return self.quick if is_light and rows <= FEW_ROWS else self.thorough


def on_both_sides(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method of a pytree that is written with `foundation.algebra` compute in NumPy, unless it is traced.

    Called from ordinary Python nothing is compiled, and the arrays' own precision is kept.
    """

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any) -> Any:
        kinds = set(map(type, jax.tree.leaves((self, args))))
        if any(issubclass(kind, jax.core.Tracer) for kind in kinds):
            return method(self, *args)
        if kinds != {np.ndarray}:
            self, args = on_host((self, args))
        with np.errstate(all="ignore"):
            return on_host(method(self, *args))

    return wrapped


def cheap_normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Standard normal draws for gradient noise, several times faster than `jax.random.normal`.

    A counter is mixed by a 32-bit hash (Wellons' lowbias32), twice with words from the key in between.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    x = jax.lax.iota(jnp.uint32, math.prod(shape)) ^ first
    for word in (second, jnp.uint32(0)):
        x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
        x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
        x = (x ^ (x >> 16)) + word
    # 23 bits and a half: strictly between -1 and 1.
    uniform = ((x >> 9).astype(dtype) + 0.5) * (2.0**-22) - 1
    return (math.sqrt(2) * jax.lax.erf_inv(uniform)).reshape(shape)


def cheap_normals(key: Array, tree: Any) -> Any:
    """Such draws for every number of a tree."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure, [cheap_normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    )
