"""Where a batch's pseudo-points go: among its rows where least is known, and of too many the ones that say most."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from partita.foundation.runtime import Array, compile_quickly, on_host
from partita.foundation.shapes import Inputs, PerRow, Scalar
from partita.gaussian_processes.kernels import Params
from partita.gaussian_processes.shapes import Chosen, PerChosen, PerPlace, Places
from partita.gp.learning import Learning
from partita.gp.padding import capacity_for, enlarge
from partita.gp.sparse import Batch, Factor, SparseGP, Step

# The largest jitter, relative to the mean of the diagonal, before giving up.
MOST_JITTER = 1e-3
# The share of the prior variance below which a row says nothing that points do not say: a copy of them, for one. It
# would only make matrices singular.
NOTHING_NEW = 1e-8


class Placement(NamedTuple):
    """What is known before a batch, as far as its points depend on it."""

    gp: SparseGP
    learning: Learning
    params: dict[str, np.ndarray]
    factor: Factor
    jitter: float
    seed: int
    is_first: bool

    def place(self, batch: Batch) -> tuple[Step, np.ndarray]:
        """Points for a new batch, and which of them may move."""
        learning, old = self.learning, self.factor
        have = int(old.present.sum())
        wanted = min(learning.points_per_batch, int(batch.weights.astype(bool).sum()))
        points = np.concatenate([old.points[old.present > 0], self._choose(batch, wanted)])
        limit = learning.max_points
        full = limit is not None and len(points) > limit
        if limit is not None and full:
            points = self._thin(points, limit)
        capacity = capacity_for(len(points), limit)
        shared = learning.pseudo_points == "shared"
        movable = np.zeros(capacity)
        if shared:
            movable[: len(points)] = 1
        elif learning.moves and not full:
            movable[have : len(points)] = 1
        present = np.zeros(capacity)
        present[: len(points)] = 1
        places = np.pad(points, ((0, capacity - len(points)), (0, 0)))
        keeps = not (full or shared)
        room = enlarge(old, capacity) if keeps else old
        return Step(room, batch, places, present, np.asarray(self.jitter), keeps), movable

    def _choose(self, batch: Batch, count: int) -> np.ndarray:
        if self.learning.selection == "k-means":
            from sklearn.cluster import KMeans

            rows = batch.X[batch.weights > 0]
            count = min(count, len(np.unique(rows, axis=0)))
            centres: np.ndarray = KMeans(count, n_init=1, random_state=self.seed).fit(rows).cluster_centers_
            return centres.astype(float)
        chosen, values = self._pick(self.factor.points, self.factor.present, batch.X, batch.weights, count)
        scale = float(np.mean(on_host(self.gp.kernel.diagonal(self.gp.split(self.params)[0], batch.X[:1]))))
        enough = values > max(self.learning.variance_threshold, NOTHING_NEW) * scale
        if self.is_first:
            enough[0] = True
        taken: np.ndarray = np.asarray(batch.X)[chosen[enough]]
        return taken

    def _thin(self, candidates: np.ndarray, limit: int) -> np.ndarray:
        capacity = capacity_for(len(candidates), None)
        padded_points = np.pad(candidates, ((0, capacity - len(candidates)), (0, 0)))
        allowed = (np.arange(capacity) < len(candidates)).astype(float)
        nothing = np.zeros_like(self.factor.points[:1])
        chosen, values = self._pick(nothing, np.zeros(1), padded_points, allowed, limit)
        taken: np.ndarray = padded_points[np.sort(chosen[np.isfinite(values)])]
        return taken

    def _pick(self, points: Any, present: Any, X: Any, allowed: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
        jitter = self.jitter
        while True:
            given = (self.params, points, present, X, allowed, np.asarray(jitter), int(count))
            chosen, values = on_host(pick_rows(self.gp, *given))
            if not np.any(np.isnan(values)) or jitter > MOST_JITTER:
                return chosen, values
            jitter *= 10


@compile_quickly
def pick_rows(
    gp: SparseGP,
    params: Params,
    points: Places,
    present: PerPlace,
    X: Inputs,
    allowed: PerRow,
    jitter: Scalar,
    count: int,
) -> tuple[Chosen, PerChosen]:
    """Rows of X, each the one that all points so far determine least; and how little they did, as a variance.

    The pivots of a Cholesky factorisation (Fine and Scheinberg, 2001).
    """
    kernel = gp.split(params)[0]
    L = gp.cholesky(params, points, present, jitter)
    V, left = gp.project(params, L, points, present, X)
    left = jnp.where(allowed > 0, left, -jnp.inf)

    def pick(carry: Any, number: Any) -> tuple[Any, tuple[Array, Array]]:
        left, rows = carry
        best = jnp.argmax(left)
        value = left[best]
        known = V.T @ V[:, best] + rows.T @ rows[:, best]
        row = (gp.kernel.cross(kernel, X, X[best][None])[:, 0] - known) / jnp.sqrt(jnp.maximum(value, 1e-12))
        left = jnp.where(jnp.arange(len(left)) == best, -jnp.inf, left - row**2)
        return (left, rows.at[number].set(row)), (best, value)

    rows = jnp.zeros((count, len(X)), X.dtype)
    _, (chosen, values) = jax.lax.scan(pick, (left, rows), jnp.arange(count))
    return chosen, values
