"""A metric for gradients of networks, learnt from the gradients: what a diagonal precision leaves out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import eigh

# Of a matrix with more rows or columns than this, only the diagonal of their second moments is kept.
LARGEST = 1024
# Roots are taken anew when there are so many times as many gradients as at the last time.
ANEW = 1.2

Metric = Callable[[np.ndarray], np.ndarray]


@dataclass
class Side:
    """Second moments of the gradients along the rows of one matrix, or along its columns."""

    moments: np.ndarray
    root: np.ndarray

    @classmethod
    def of(cls, size: int) -> "Side":
        zeros = np.zeros(size if size > LARGEST else (size, size), np.float32)
        return cls(zeros, zeros)

    def learn(self, matrix: np.ndarray) -> None:
        """Add the products of the rows of a matrix."""
        diagonal = self.moments.ndim == 1
        self.moments = self.moments + (np.sum(matrix**2, axis=1) if diagonal else matrix @ matrix.T)

    @property
    def is_known(self) -> bool:
        """Whether any gradient was not zero."""
        return bool(self.root.any())

    def refresh(self, ridge: float) -> None:
        """(moments + ridge × the largest)^(-1/2), with a mean of one on the diagonal."""
        if not self.moments.any():
            return
        if self.moments.ndim == 1:
            root = 1 / np.sqrt(self.moments + ridge * self.moments.max())
            self.root = root / root.mean()
            return
        # SciPy's own BLAS has one thread here, which other threads cannot hold up.
        values, vectors = eigh(self.moments, driver="evd", check_finite=False)
        root = (vectors / np.sqrt(np.maximum(values, 0) + ridge * values[-1])) @ vectors.T
        self.root = root * (len(root) / np.trace(root))

    def apply(self, stack: np.ndarray) -> np.ndarray:
        """The root times every matrix of a stack."""
        product: np.ndarray = self.root[:, None] * stack if self.root.ndim == 1 else self.root @ stack
        return product


@dataclass
class Preconditioner:
    """Roots of the second moments of gradients, along rows and columns of each matrix (Gupta et al., 2018).

    A dense layer's gradient is inputsᵀ × slopes, so that its rows go together as inputs do, and its columns as what
    units are to blame for. Gradients of all rounds count alike, whatever their size. The sum over sites is all that is
    looked at: the metric does not depend on the partition.

    Args:
        shapes: of the arrays that parameters are made of, in order. Of more than two axes, the longer one of the first
            and the last is one side of a matrix, and all others are the other side; of fewer, there is no metric.
        ridge: added to second moments before their root is taken, relative to the largest.
    """

    shapes: Sequence[tuple[int, ...]]
    ridge: float
    count: int = 0
    refreshed: int = 0
    sides: list[tuple[Side, Side] | None] = field(init=False)

    def __post_init__(self) -> None:
        matrices = [_as_matrix(shape) for shape in self.shapes]
        self.sides = [None if shape is None else (Side.of(shape[0]), Side.of(shape[1])) for shape in matrices]

    def learn(self, gradient: np.ndarray) -> None:
        """Take in a gradient of all parameters."""
        self.count += 1
        for part, sides in zip(self._split(gradient[None]), self.sides, strict=True):
            size = np.linalg.norm(part)
            if sides is not None and size > 0:
                matrix = part[0] / size
                sides[0].learn(matrix)
                sides[1].learn(matrix.T)

    def metric(self, scaling: np.ndarray) -> Metric:
        """The metric for stacks of gradients: diag(scaling) but for matrices, and there as large on average."""
        if self.count >= ANEW * self.refreshed:
            self.refreshed = self.count
            for side in (side for sides in self.sides if sides is not None for side in sides):
                side.refresh(self.ridge)
        mean = scaling.mean()

        def apply(gradients: np.ndarray) -> np.ndarray:
            parts = []
            pairs = zip(self._split(gradients), self._split(scaling[None]), self.sides, strict=True)
            for part, scales, sides in pairs:
                if sides is None or not sides[0].is_known:
                    scaled = part * scales
                else:
                    half = sides[0].apply(mean * part)
                    scaled = np.swapaxes(sides[1].apply(np.swapaxes(half, 1, 2)), 1, 2)
                parts.append(scaled.reshape(len(gradients), -1))
            return np.concatenate(parts, axis=1)

        return apply

    def _split(self, stack: np.ndarray) -> list[np.ndarray]:
        """Stacked parameters as stacks of matrices, and of whatever else they are made of."""
        parts, end = [], 0
        for shape in self.shapes:
            begin, end = end, end + math.prod(shape)
            parts.append(stack[:, begin:end].reshape(len(stack), *(_as_matrix(shape) or (-1,))))
        return parts


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The rows and columns that an array has as a matrix; None, if it is none."""
    if len(shape) < 2 or math.prod(shape) == 0:
        return None
    return (shape[0], math.prod(shape[1:])) if shape[0] > shape[-1] else (math.prod(shape[:-1]), shape[-1])
