"""Shapes in types: n rows, d features, c points, o outputs, p hyperparameters, s draws (see `foundation/shapes.py`)."""
# Names of axes are no Python.
# ruff: noqa: F722

from typing import TypeAlias

from jaxtyping import Float, Int

from partita.foundation.runtime import Array

# Pseudo-inputs; which of them are present, 1 or 0; and a number for each pair of them.
Places: TypeAlias = Float[Array, "c d"]
PerPlace: TypeAlias = Float[Array, " c"]
Square: TypeAlias = Float[Array, "c c"]
# Pairs of a row and a point, or of a point and a row; and of two rows.
RowByPlace: TypeAlias = Float[Array, "n c"]
PlaceByRow: TypeAlias = Float[Array, "c n"]
RowByRow: TypeAlias = Float[Array, "n n"]
# The same for each output.
OutputByRow: TypeAlias = Float[Array, "o n"]
OutputByPlace: TypeAlias = Float[Array, "o c"]
Squares: TypeAlias = Float[Array, "o c c"]
Stack: TypeAlias = Float[Array, "*o c c"]
Covariances: TypeAlias = Float[Array, "o n n"]
# Values of rows in any arrangement, of which some may be the same along an axis.
Values: TypeAlias = Float[Array, "*#n"]
# Log hyperparameters side by side, and draws of them; and draws for every step of a search.
Logs: TypeAlias = Float[Array, " p"]
Draws: TypeAlias = Float[Array, "s p"]
StepDraws: TypeAlias = Float[Array, "t s p"]
# Rows that were chosen, and a number for each.
Chosen: TypeAlias = Int[Array, " k"]
PerChosen: TypeAlias = Float[Array, " k"]
