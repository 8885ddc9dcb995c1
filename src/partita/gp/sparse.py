"""One step of a stream of sparse Gaussian processes: an old factor, a new batch, new points → free energy, new factor.

The approximate likelihood of all that was seen is a Gaussian factor t over function values at pseudo-inputs, so that
the posterior is p(f | ε) t(f(Z)), for any hyperparameters ε. A new batch is absorbed at points Z' (Bui, Nguyen and
Turner, 2017): both the old factor and the new likelihood are averaged over p(f | f(Z'), ε), which makes them Gaussian
factors over f(Z') and costs the traces of what Z' does not determine. Where Z' holds all old points, the old factor
costs nothing.

Everything is whitened: f(Z') = L v with L Lᵀ = K and v ~ N(0, I). Points are padded to a capacity, with a mask; absent
ones are independent of everything.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from partita.foundation.runtime import Array
from partita.foundation.shapes import Inputs, PerRow, Scalar
from partita.gaussian_processes.kernels import Kernel, Params, join_params, select_params
from partita.gaussian_processes.likelihoods import Likelihood
from partita.gaussian_processes.shapes import (
    Covariances,
    OutputByPlace,
    OutputByRow,
    PerPlace,
    PlaceByRow,
    Places,
    Square,
    Squares,
)
from partita.gp.collapsed import Seen, integrate_out
from partita.gp.whitened import cholesky, for_each, log_partition, moments, solve_half, weigh


class Factor(NamedTuple):
    """exp(shiftᵀ u - uᵀ precision u / 2), u = f(points), for each output."""

    points: Places
    present: PerPlace  # 1 or 0
    shift: OutputByPlace
    precision: Squares


class Batch(NamedTuple):
    """Rows; those of weight zero are padding."""

    X: Inputs
    y: OutputByRow
    weights: PerRow


class Step(NamedTuple):
    """A batch to absorb: beside the old factor, at points for the new one.

    With `keeps`, the old points are the first of the new ones, in the same places; the old factor has room for all.
    """

    old: Factor
    batch: Batch
    points: Places
    present: PerPlace  # 1 or 0
    jitter: Scalar
    keeps: bool


class Terms(NamedTuple):
    """exp(g f - h f² / 2) for every row: what stands for its likelihood."""

    shift: OutputByRow
    precision: OutputByRow


class Whitened(NamedTuple):
    """A posterior over v, for each output: precision B = L_B L_Bᵀ, and L_B⁻¹ of its shift."""

    L: Square
    L_B: Squares
    half: OutputByPlace


@dataclasses.dataclass(frozen=True)
class SparseGP:
    """A kernel and a likelihood, with functions of their parameters."""

    kernel: Kernel
    likelihood: Likelihood

    def split(self, params: Params) -> tuple[Params, Params]:
        """Parameters of the kernel, and of the likelihood."""
        return select_params(params, "kernel"), select_params(params, "likelihood")

    def initial(self, features: int, outputs: int = 1) -> dict[str, Any]:
        """Starting values; of what is in units of the targets, one for each output where there are several."""
        likelihood = self.likelihood.initial()
        if outputs > 1:
            likelihood |= {name: np.full(outputs, likelihood[name]) for name in self.likelihood.in_units(1.0)}
        return join_params(kernel=self.kernel.initial(features), likelihood=likelihood)

    def in_units(self, inputs: Array, targets: Array) -> dict[str, Any]:
        """The factor by which each parameter grows where inputs, by feature, and targets, by output, grow by these."""
        return join_params(
            kernel=self.kernel.in_units(np.asarray(inputs), np.exp(np.mean(np.log(targets)))),
            likelihood=self.likelihood.in_units(targets),
        )

    def covariance(self, params: Params, points: Places, present: PerPlace, jitter: Scalar) -> Square:
        """K, with the identity where points are absent."""
        kernel = self.split(params)[0]
        scale = jnp.sum(self.kernel.diagonal(kernel, points) * present) / jnp.maximum(jnp.sum(present), 1)
        K = self.kernel.gram(kernel, points) * together(present)
        return K + jnp.eye(len(K), dtype=K.dtype) * (1 - present + jitter * scale * present)

    def cholesky(self, params: Params, points: Places, present: PerPlace, jitter: Scalar) -> Square:
        """L Lᵀ = K."""
        return cholesky(self.covariance(params, points, present, jitter))

    def project(
        self, params: Params, L: Square, points: Places, present: PerPlace, X: Inputs
    ) -> tuple[PlaceByRow, PerRow]:
        """V with E[f(X) | v] = Vᵀ v, and the variance of f(X) that is left."""
        kernel = self.split(params)[0]
        V = solve_triangular(L, present[:, None] * self.kernel.cross(kernel, points, X), lower=True)
        return V, jnp.maximum(self.kernel.diagonal(kernel, X) - jnp.sum(V**2, axis=0), 0)

    def carry(self, params: Params, L: Square, step: Step) -> tuple[Squares, OutputByPlace, Scalar]:
        """The old factor over v, as precision and shift, and what it costs that the points may not determine it."""
        old = step.old
        if step.keeps:
            V = L.T * old.present
            lost = jnp.zeros((), L.dtype)
        else:
            kernel = self.split(params)[0]
            V = solve_triangular(L, self.cross_points(params, step.points, step.present, old), lower=True)
            left = self.kernel.gram(kernel, old.points) * together(old.present) - V.T @ V
            lost = -0.5 * jnp.sum(old.precision * left)
        return V @ old.precision @ V.T, old.shift @ V.T, lost

    def old_evidence(self, params: Params, old: Factor, jitter: Scalar) -> Scalar:
        """log ∫ p(u | ε) t(u) du of the old factor alone."""
        L = self.cholesky(params, old.points, old.present, jitter)
        return log_partition(*solve_half(L.T @ old.precision @ L, old.shift @ L))

    def free_energy(self, params: Params, step: Step, terms: Terms) -> tuple[Scalar, Terms]:
        """A lower bound of log ∫ p(f | ε) t(f) p(y | f, ε) df, and the terms to go to.

        Terms are what the bound is evaluated with. Where the likelihood is Gaussian the best are known at once.
        """
        if self.likelihood.exact:
            return self._integrate_out(params, step)
        batch = step.batch
        L = self.cholesky(params, step.points, step.present, step.jitter)
        V, left = self.project(params, L, step.points, step.present, batch.X)
        precision, shift, lost = self.carry(params, L, step)
        L_B, half = solve_half(precision + weigh(V, terms.precision), shift + terms.shift @ V.T)
        m, explained = moments(L_B, half, V)
        v = jnp.broadcast_to(explained + left, m.shape)
        likelihood = self.split(params)[1]
        expected = by_output(self.likelihood.expected, likelihood, m, v, batch.y)
        total = log_partition(L_B, half) + lost + weigh_rows(batch, expected)
        total -= jnp.sum(terms.shift * m - 0.5 * terms.precision * (m**2 + explained))
        g, h = by_output(self.likelihood.gaussian_terms, likelihood, m, v, batch.y)
        return total, jax.lax.stop_gradient(Terms(g * batch.weights, h * batch.weights))

    def _integrate_out(self, params: Params, step: Step) -> tuple[Scalar, Terms]:
        """The free energy at the best terms."""
        (kernel, likelihood), batch, old = self.split(params), step.batch, step.old
        nothing = jnp.zeros_like(batch.y)
        prior = jnp.broadcast_to(self.kernel.diagonal(kernel, batch.X), nothing.shape)
        g, h = by_output(self.likelihood.gaussian_terms, likelihood, nothing, prior, batch.y)
        terms = Terms(g * batch.weights, h * batch.weights)
        K = self.covariance(params, step.points, step.present, step.jitter)
        crossed = None if step.keeps else self.cross_points(params, step.points, step.present, old)
        rows = step.present[:, None] * self.kernel.cross(kernel, step.points, batch.X)

        def one(own: Any) -> Scalar:
            precision, shift, h, g = own
            return integrate_out(Seen(K, crossed, precision, shift, rows, h, g))

        each = for_each(one, (old.precision, old.shift, terms.precision, terms.shift))
        expected = by_output(self.likelihood.expected, likelihood, nothing, prior, batch.y)
        total = jnp.sum(each) + weigh_rows(batch, expected)
        if not step.keeps:
            total -= 0.5 * jnp.sum(old.precision * self.kernel.gram(kernel, old.points) * together(old.present))
        return total, terms

    def cross_points(self, params: Params, points: Places, present: PerPlace, old: Factor) -> PlaceByRow:
        """Covariances of points with those of an old factor; where they are equal, they are the same inputs."""
        kernel = self.split(params)[0]
        return present[:, None] * self.kernel.between(kernel, points, old.points) * old.present

    def first_terms(self, batch: Batch) -> Terms:
        """The terms that refinements start from: as if no row had been seen."""
        return Terms(jnp.zeros_like(batch.y), jnp.zeros_like(batch.y))

    def improve_terms(self, terms: Terms, share: Scalar, bound: Callable[[Terms], tuple[Array, Terms]]) -> Any:
        """Terms moved by a share of the way that natural gradients point, if the bound is no lower there.

        The share of the next move is twice this one's, or half of it where this one did not help.
        """
        before, target = bound(terms)
        moved = jax.tree.map(lambda s, t: s + share * (t - s), terms, target)
        after = bound(moved)[0]
        better = after >= before - 1e-9 * jnp.abs(before)
        kept = jax.tree.map(lambda a, b: jnp.where(better, a, b), moved, terms)
        return jax.lax.stop_gradient((kept, jnp.where(better, jnp.minimum(1.0, 2 * share), share / 2)))

    def absorb(self, params: Params, step: Step, terms: Terms) -> tuple[Factor, Factor]:
        """The new factor over f(points), and the part of it that is the batch's own."""
        points, present, old = step.points, step.present, step.old
        L = self.cholesky(params, points, present, step.jitter)
        V, _ = self.project(params, L, points, present, step.batch.X)
        A = solve_triangular(L, V, lower=True, trans="T")
        own = Factor(points, present, terms.shift @ A.T, weigh(A, terms.precision))
        if step.keeps:
            precision, shift = old.precision, old.shift
        else:
            precision, shift, _ = self.carry(params, L, step)
            back = solve_triangular(L, jnp.eye(len(L), dtype=L.dtype), lower=True)
            precision, shift = back.T @ precision @ back, shift @ back
        return Factor(points, present, shift + own.shift, precision + own.precision), own

    def posterior(self, params: Params, factor: Factor, jitter: Scalar) -> Whitened:
        """p(u | ε) t(u), normalised."""
        L = self.cholesky(params, factor.points, factor.present, jitter)
        return Whitened(L, *solve_half(L.T @ factor.precision @ L, factor.shift @ L))

    def predict(self, params: Params, factor: Factor, X: Inputs, jitter: Scalar) -> tuple[OutputByRow, OutputByRow]:
        """Mean and variance of f(X), for each output and row."""
        q = self.posterior(params, factor, jitter)
        V, left = self.project(params, q.L, factor.points, factor.present, X)
        m, v = moments(q.L_B, q.half, V)
        return m, v + left

    def predict_jointly(
        self, params: Params, factor: Factor, X: Inputs, jitter: Scalar
    ) -> tuple[OutputByRow, Covariances]:
        """Mean of f(X) for each output and row, and covariances of all rows."""
        q = self.posterior(params, factor, jitter)
        V, _ = self.project(params, q.L, factor.points, factor.present, X)
        whole = for_each(lambda part: solve_triangular(part, V, lower=True), q.L_B)
        m, _ = moments(q.L_B, q.half, V)
        left = self.kernel.gram(self.split(params)[0], X) - V.T @ V
        return m, for_each(lambda W: W.T @ W, whole) + left


def together(present: PerPlace) -> Square:
    """1 where both of a pair of points are present."""
    return present[:, None] * present


def by_output(function: Callable[..., Any], params: Params, *parts: OutputByRow) -> Any:
    """A likelihood's function of outputs and rows; parameters that have an axis hold one value for each output."""
    axes = {name: 0 if jnp.ndim(value) else None for name, value in params.items()}
    return jax.vmap(function, in_axes=(axes, *(0 for _ in parts)))(params, *parts)


def weigh_rows(batch: Batch, each: OutputByRow) -> Scalar:
    """The weighted sum over outputs and rows, of which padding may be anything."""
    return jnp.sum(jnp.where(batch.weights > 0, batch.weights * each, 0))
