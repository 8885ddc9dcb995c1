"""How JAX is used: precision without a global flag, arrays on the host, the compilation cache."""

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np


def precision(dtype: Any) -> AbstractContextManager:
    """A context in which JAX computes in `dtype`, whatever the global flag says; the flag is not touched."""
    if np.dtype(dtype) == np.float64 and not jax.config.jax_enable_x64:
        return jax.enable_x64(True)
    return nullcontext()


def on_host(tree: Any) -> Any:
    """The same tree with NumPy arrays: what is kept, sent and stored."""
    return jax.tree.map(np.asarray, tree)


def is_traced(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def as_array(value: Any) -> Any:
    """A NumPy array, unless JAX has it already."""
    if isinstance(value, jax.Array):
        return value
    array = np.asarray(value)
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)


def in_own_precision(method: Callable) -> Callable:
    """Let a method of a pytree compute in the precision of its own arrays.

    Called from ordinary Python it is compiled and returns NumPy arrays in that precision; inside a traced
    function it changes nothing.
    """
    compiled = eqx.filter_jit(method)

    @functools.wraps(method)
    def wrapped(self, *args, **kwargs):
        if is_traced((self, args, kwargs)):
            return method(self, *args, **kwargs)
        with precision(np.result_type(*jax.tree.leaves(self))):
            return on_host(compiled(self, *args, **kwargs))

    return wrapped


def cache_compilation(folder: Path | None = None) -> None:
    """Keep compiled programs between processes, in `folder` or the user's cache directory."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "partita" / "jax"
    jax.config.update("jax_compilation_cache_dir", str(folder or default))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
