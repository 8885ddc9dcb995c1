"""Shapes in types: what arrays of signatures look like. `make shapes` runs tests that check them at every call.

In one call, an axis of one name has one length: n rows, d coordinates, and whatever axes come before or after.
"""
# Names of axes are no Python.
# ruff: noqa: F722, F821

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from jaxtyping import Float

from partita.foundation.runtime import Array

if TYPE_CHECKING:
    Scalar: TypeAlias = Float[Array, ""]
else:
    # What NumPy adds up is no array.
    Scalar = Float[Array | np.generic, ""]
# A number for each coordinate, or for each pair of them.
Vector: TypeAlias = Float[Array, " d"]
Matrix: TypeAlias = Float[Array, "d d"]
# Rows of a design matrix, or points; and with any leading axes.
Inputs: TypeAlias = Float[Array, "n d"]
Points: TypeAlias = Float[Array, "*n d"]
# One number for each row; and as many as there are outputs.
PerRow: TypeAlias = Float[Array, " n"]
Predictors: TypeAlias = Float[Array, "n *outputs"]
# A mean and a variance.
Moments: TypeAlias = tuple[Scalar, Scalar]
