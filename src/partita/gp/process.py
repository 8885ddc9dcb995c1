"""A sparse Gaussian process as a model of the loop: pseudo-points stay where they are, hyperparameters too."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from partita.errors import InputError, ShardError
from partita.families import Family
from partita.families.gaussian import Gaussian
from partita.foundation.checks import check_not_negative
from partita.foundation.points import hermite
from partita.foundation.runtime import Array, compile_quickly, on_host, precision
from partita.foundation.shapes import Inputs, PerRow, Scalar, Vector
from partita.gp.kernels import Kernel
from partita.gp.likelihoods import Likelihood, find_likelihood
from partita.gp.shapes import Places, RowByPlace
from partita.gp.sparse import SparseGP
from partita.gp.stream import JITTER
from partita.models import AbstractModel, Hyper
from partita.models.base import Rows
from partita.shards import Shard, as_numbers, check_rows, check_weights, make_shard, pad_rows

# Points of the quadrature over what pseudo-points leave open: fewer than for a prior, because that is narrower.
POINTS = 20


class SparseProcess(AbstractModel):
    """y = f(x) through a likelihood, with f seen at pseudo-points: θ = L⁻¹ f(points) ~ N(0, I), L Lᵀ = k(points).

    Given θ a row's f(x) is N(vᵀθ, s), and its likelihood is averaged over that: as E[log p(y | f)] with `power` 0,
    which makes variational sparse processes (Titsias, 2009; Hensman et al., 2013), and as log E[p(y | f)^α] / α with
    `power` α, which makes those of power EP (Bui, Yan and Turner, 2017); α = 1 is FITC. Where the points are all
    inputs, s is zero and nothing is approximated.

    A shard is `(X, y)`. Parameters of the likelihood, such as the noise, are hyperparameters that can be learnt; those
    of the kernel are not: `pt.StreamingGPRegressor` learns them.

    Args:
        points: inputs, one row each.
        kernel, likelihood: of `pt.gp`, with parameters at their starting values; a likelihood also by name.
        power: of the likelihood, from 0 to 1; solvers that match moments need their own power here.
    """

    points: np.ndarray = eqx.field(converter=lambda points: as_numbers(None, "points", points, np.dtype(np.float64)))
    kernel: Kernel = eqx.field(static=True)
    likelihood: Likelihood = eqx.field(static=True, converter=find_likelihood)
    power: float = eqx.field(static=True, default=0.0)

    projected: ClassVar[bool] = True
    prior_on_host: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if self.points.ndim != 2 or not self.points.size or not np.all(np.isfinite(self.points)):
            raise InputError(f"points: expected finite rows of inputs, got shape {self.points.shape}")
        if not isinstance(self.kernel, Kernel):
            raise InputError("kernel: expected one of pt.gp.kernels, such as SquaredExponential()")
        check_not_negative("SparseProcess: ", power=self.power)
        if self.power > 1:
            raise InputError(f"power: expected 0 to 1, got {self.power}")

    @property
    def closed_form(self) -> bool:  # type: ignore[override]
        return self.likelihood.exact

    @property
    def conjugate(self) -> bool:  # type: ignore[override]
        return self.likelihood.exact

    @property
    def hyper(self) -> Hyper:
        return {name: float(value) for name, value in self.likelihood.initial().items()}

    def with_hyper(self, hyper: Hyper) -> "SparseProcess":
        return dataclasses.replace(self, likelihood=dataclasses.replace(self.likelihood, **hyper))

    def natural_prior(self, hyper: Hyper) -> Family:
        size = len(self.points)
        return Gaussian(np.zeros(size, self.dtype), np.eye(size, dtype=self.dtype))

    def shard(self, site: int, raw: Any) -> Shard:
        """Check `(X, y)` or `(X, y, weights)`, and keep rows of v, and y beside s."""
        if not isinstance(raw, tuple | list) or len(raw) not in (2, 3):
            raise ShardError(site, "shard", "expected (X, y) or (X, y, weights)")
        y = as_numbers(site, "y", raw[1], self.dtype)
        if y.ndim != 1:
            raise ShardError(site, "y", f"expected one target per row, got shape {y.shape}")
        V, left = self.project_rows(raw[0], site)
        check_rows(site, {"X": V, "y": y})
        try:
            self.likelihood.check(y)
        except InputError as error:
            raise ShardError(site, "y", str(error).removeprefix("y: ")) from None
        weights = check_weights(site, raw[2] if len(raw) == 3 else None, len(y), self.dtype)
        return make_shard(Rows(V, np.column_stack([y, left])), weights)

    def project_rows(self, X: Any, site: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """v and s of every row: what it sees of θ, and the variance of f(x) that θ leaves."""
        rows = as_numbers(site, "X", X, self.dtype)
        features = self.points.shape[1]
        if rows.ndim != 2 or rows.shape[1] != features:
            raise ShardError(site, "X", f"expected {features} features per row, got shape {rows.shape}")
        check_rows(site, {"X": rows})
        with precision(self.dtype):
            gp = SparseGP(self.kernel, self.likelihood)
            V, left = (part[: len(rows)] for part in on_host(_project_rows(gp, self.points, pad_rows(rows))))
        if not np.all(np.isfinite(V)):
            raise InputError("points: their covariance cannot be factorised: leave out copies of others")
        return V, left

    def latent(self, posterior: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f(x) for every row."""
        V, left = self.project_rows(X)
        m, v = posterior.moments_along(V)
        return m, v + left

    def pointwise(self, f: Scalar, y: Array, hyper: Hyper) -> Scalar:
        target, left = y
        if self.power == 0:
            return self.likelihood.expected(hyper, f, left, target)
        if self.likelihood.exact:
            wider = hyper["noise"] ** 2 + self.power * left
            lost = (1 / self.power - 1) * jnp.log(wider / hyper["noise"] ** 2)
            return self.likelihood.log_prob({"noise": jnp.sqrt(wider)}, f, target) - 0.5 * lost
        nodes, weights = (jnp.asarray(a, f.dtype) for a in hermite(POINTS))
        values = self.likelihood.log_prob(hyper, f + jnp.sqrt(left) * nodes, target)
        averaged: Scalar = jax.nn.logsumexp(self.power * values, b=weights) / self.power
        return averaged

    def log_prob(self, params: Vector, data: Rows, hyper: Hyper) -> PerRow:
        each: PerRow = jax.vmap(lambda f, y: self.pointwise(f, y, hyper))(data.X @ params, data.y)
        return each

    def expected_log_prob(self, mean: Any, data: Rows, hyper: Hyper) -> PerRow:
        m, v = mean.moments_along(data.X)
        wider = hyper["noise"] ** 2 + self.power * data.y[:, 1]
        middle: PerRow = jax.vmap(lambda f, y: self.pointwise(f, y, hyper))(m, data.y)
        return middle - 0.5 * v / wider


@compile_quickly
def _project_rows(gp: SparseGP, points: Places, X: Inputs) -> tuple[RowByPlace, PerRow]:
    params = gp.initial(points.shape[1])
    kernel = gp.split(params)[0]
    L = gp.cholesky(params, points, jnp.ones(len(points), points.dtype), jnp.asarray(JITTER, points.dtype))
    # Rows that are points are the same inputs.
    V = solve_triangular(L, gp.kernel.between(kernel, points, X), lower=True)
    return V.T, jnp.maximum(gp.kernel.diagonal(kernel, X) - jnp.sum(V**2, axis=0), 0)
