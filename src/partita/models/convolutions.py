"""Convolutions and pooling as slices and products of matrices: XLA's own, above all their gradients, are slow on CPUs.

Rows lie side by side on the last axis, so that every loop is over neighbours in memory.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.foundation.runtime import Array

# Patches of more numbers than this are left to XLA, which needs no memory for them.
MOST_PATCHES = 2**27


def can_convolve(images: Array, kernel: Array, settings: dict[str, Any]) -> bool:
    """Whether a convolution is one of networks, and not of a gradient, and its patches fit into memory."""
    sizes = [kernel.shape[axis] for axis in settings["dimension_numbers"].rhs_spec[2:]]
    strides = math.prod(settings["window_strides"])
    plain = settings["batch_group_count"] == 1 and settings["preferred_element_type"] in (None, images.dtype)
    stretched = math.prod(settings["lhs_dilation"])
    return plain and images.size * math.prod(sizes) * stretched // strides <= MOST_PATCHES


def convolve(images: Array, kernel: Array, settings: dict[str, Any]) -> Array:
    """`lax.conv_general_dilated` of images that have one more axis, of rows, at their end."""
    numbers = settings["dimension_numbers"]
    batch, features, *space = numbers.lhs_spec
    rows = images.ndim - 1
    x: Array = jnp.transpose(images, (features, *space, batch, rows))
    x = x.reshape(*x.shape[:-2], -1)
    W = jnp.transpose(kernel, numbers.rhs_spec)
    x = _pad(x, [(0, 0), *settings["padding"]], [1, *settings["lhs_dilation"]])
    for axis in reversed(range(len(space))):
        size, step = W.shape[2 + axis], settings["rhs_dilation"][axis]
        windows = _windows(x, x.ndim - 1 - len(space) + axis, size, settings["window_strides"][axis], step)
        x = jnp.stack(windows, axis=1)
    groups, out_shape = settings["feature_group_count"], x.shape[-1 - len(space) : -1]
    patches = x.reshape(groups, -1, math.prod(x.shape[-1 - len(space) :]))
    flat = W.reshape(groups, W.shape[0] // groups, -1)
    y = flat[0] @ patches[0] if groups == 1 else jnp.einsum("gok,gkp->gop", flat, patches)
    y = y.reshape(W.shape[0], *out_shape, images.shape[batch], images.shape[rows])
    place = np.argsort([*(numbers.out_spec[i] for i in (1, *range(2, 2 + len(space)), 0)), rows])
    return jnp.transpose(y, tuple(int(axis) for axis in place))


def pool(images: Array, settings: dict[str, Any], combine: Callable[[Array, Array], Array], nothing: float) -> Array:
    """`lax.reduce_window` by one operation, of images that may have further axes at their end."""
    x = _pad(images, settings["padding"], settings["base_dilation"], nothing)
    for axis, size in enumerate(settings["window_dimensions"]):
        stride, step = settings["window_strides"][axis], settings["window_dilation"][axis]
        x = reduce(combine, _windows(x, axis, size, stride, step))
    return x


def _windows(x: Array, axis: int, size: int, stride: int, step: int) -> list[Array]:
    """What the first, the second, … place of a window sees along an axis, in all positions of the window."""
    positions = (x.shape[axis] - step * (size - 1) - 1) // stride + 1
    last = (positions - 1) * stride + 1
    if size == stride == 1:
        return [x]
    return [jax.lax.slice_in_dim(x, i * step, i * step + last, stride, axis) for i in range(size)]


def _pad(x: Array, padding: Sequence[tuple[int, int]], dilation: Sequence[int], value: float = 0.0) -> Array:
    """Zeros, or another value, around and between the numbers of the first axes."""
    around = [(low, high, gap - 1) for (low, high), gap in zip(padding, dilation, strict=True)]
    around += [(0, 0, 0)] * (x.ndim - len(around))
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), around) if any(map(any, around)) else x
