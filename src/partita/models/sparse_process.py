"""A sparse Gaussian process as a model of the loop: pseudo-points stay where they are, hyperparameters too."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from partita.errors import InputError, ShardError
from partita.families import Family
from partita.families.gaussian import Gaussian
from partita.foundation.checks import check_count, check_not_negative, check_one_of
from partita.foundation.points import even_points, hermite
from partita.foundation.runtime import Array, compile_quickly, on_host, precision
from partita.foundation.shapes import Inputs, PerRow, Scalar, Vector
from partita.gaussian_processes import kernels, likelihoods
from partita.gaussian_processes.kernels import Kernel
from partita.gaussian_processes.likelihoods import Likelihood, find_likelihood
from partita.gaussian_processes.shapes import Places, RowByPlace
from partita.models.base import Hyper, Predictor, Rows, check_numbers
from partita.shards import Shard, as_numbers, check_rows, check_weights, make_shard, pad_rows

# Points of the quadrature over what pseudo-points leave open: fewer than for a prior, because that is narrower.
POINTS = 20
# What is added to the covariance of points, relative to its diagonal, so that it can be factorised.
JITTER = 1e-9
# Kernels that a file can name.
KERNELS: dict[str, type[kernels.Stationary]] = {
    "squared-exponential": kernels.SquaredExponential,
    "matern-12": kernels.Matern12,
    "matern-32": kernels.Matern32,
    "matern-52": kernels.Matern52,
}


class SparseProcess(Predictor):
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
    suggested: ClassVar = {
        "points": (20, "pseudo-inputs: how many, spread evenly over a box, or a list of them, each a list of numbers"),
        "low": (-2.0, "where the box begins, after `centre` and `scale`: one number for all features, or one for each"),
        "high": (2.0, "where it ends: far from all points, nothing is learnt"),
    }

    def __check_init__(self) -> None:
        if self.points.ndim != 2 or not self.points.size or not np.all(np.isfinite(self.points)):
            raise InputError(f"points: expected finite rows of inputs, got shape {self.points.shape}")
        if not isinstance(self.kernel, Kernel):
            raise InputError("kernel: expected one of pt.gp.kernels, such as SquaredExponential()")
        check_not_negative("SparseProcess: ", power=self.power)
        if self.power > 1:
            raise InputError(f"power: expected 0 to 1, got {self.power}")

    @classmethod
    def for_data(  # type: ignore[override]
        cls,
        X: np.ndarray,
        y: Any,
        *,
        points: int | tuple[tuple[float, ...], ...],
        low: float | tuple[float, ...] | None = None,
        high: float | tuple[float, ...] | None = None,
        kernel: str = "squared-exponential",
        variance: float = 1.0,
        lengthscale: float | tuple[float, ...] | None = None,
        likelihood: str = "gaussian",
        noise: float | None = None,
        freedom: float | None = None,
        power: float = 0.0,
    ) -> Self:
        """A process whose points follow from numbers that everybody knows, never from rows: a box, or a list of them.

        Args:
            X, y: rows like those that it is for; how many features they have is all that is looked at.
            points: how many, spread evenly over a box; or all of them.
            low, high: the corners of the box; one number stands for all features.
            kernel: one of "squared-exponential", "matern-12", "matern-32" and "matern-52".
            variance, lengthscale: of the kernel.
            likelihood: by name; with `noise` and `freedom`, where it has them.
            power: of the likelihood.
        """
        features = X.shape[1]
        if isinstance(points, int):
            check_count(points=points)
            check_numbers(points * max(points, features), "points")
            places: Any = _spread_points(points, low, high, features)
        else:
            check_numbers(len(points) * max(len(points), features), "points")
            places = points
        check_one_of("", KERNELS, kernel=kernel)
        check_one_of("", likelihoods.LIKELIHOODS, likelihood=likelihood)
        given = {name: value for name, value in {"noise": noise, "freedom": freedom}.items() if value is not None}
        known = [field.name for field in dataclasses.fields(likelihoods.LIKELIHOODS[likelihood])]
        for name in given:
            if name not in known:
                raise InputError(f"{name}: the likelihood {likelihood} has none: leave it out")
        own = likelihoods.from_settings({"likelihood": likelihood, **given})
        model = cls(places, KERNELS[kernel](variance, lengthscale), own, power)
        if model.features != features:
            raise InputError(f"points: expected {features} numbers each, one per feature, got {model.features}")
        model.kernel.initial(features)
        return model

    def to_settings(self) -> dict[str, Any] | None:
        try:
            parts = kernels.to_settings(self.kernel), likelihoods.to_settings(self.likelihood)
        except InputError:
            return None
        return {"points": self.points.tolist(), "kernel": parts[0], "likelihood": parts[1], "power": float(self.power)}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        kernel, likelihood = settings["kernel"], settings["likelihood"]
        return cls(
            settings["points"],
            kernels.from_settings(kernel),
            likelihoods.from_settings(likelihood),
            settings["power"],
        )

    @property
    def features(self) -> int:
        """How many columns its inputs have."""
        return int(self.points.shape[1])

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
        V, left = self.project_rows(raw[0], site)
        check_rows(site, {"X": V, "y": y})
        y = self.targets(site, y)
        weights = check_weights(site, raw[2] if len(raw) == 3 else None, len(y), self.dtype)
        return make_shard(Rows(V, np.column_stack([y, left])), weights)

    def targets(self, site: int, y: np.ndarray) -> np.ndarray:
        if y.ndim != 1:
            raise ShardError(site, "y", f"expected one target per row, got shape {y.shape}")
        try:
            self.likelihood.check(y)
        except InputError as error:
            raise ShardError(site, "y", str(error).removeprefix("y: ")) from None
        return y

    def design(self, site: int | None, X: Any) -> np.ndarray:
        """Rows of v, and s beside them."""
        return np.column_stack(self.project_rows(X, site))

    def project_rows(self, X: Any, site: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """v and s of every row: what it sees of θ, and the variance of f(x) that θ leaves."""
        rows = as_numbers(site, "X", X, self.dtype)
        features = self.points.shape[1]
        if rows.ndim != 2 or rows.shape[1] != features:
            raise ShardError(site, "X", f"expected {features} features per row, got shape {rows.shape}")
        check_rows(site, {"X": rows})
        with precision(self.dtype):
            V, left = (part[: len(rows)] for part in on_host(_project_rows(self.kernel, self.points, pad_rows(rows))))
        if not np.all(np.isfinite(V)):
            raise InputError("points: their covariance cannot be factorised: leave out copies of others")
        return V, left

    def latent(self, posterior: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f(x) for every row."""
        V, left = self.project_rows(X)
        m, v = posterior.moments_along(V)
        return m, v + left

    def predictor_moments(self, q: Any, X: Array) -> tuple[Array, Array]:
        m, v = q.as_gaussian("predict").moments_along(X[:, :-1])
        return m, v + X[:, -1]

    def predictors(self, params: Vector, X: Array) -> PerRow:
        """E[f(x) | θ] of every row; `replicated` and `predictor_moments` know what θ leaves open."""
        mean: PerRow = X[:, : len(self.points)] @ params
        return mean

    def response(self, f: Array) -> Array:
        # What is expected of targets depends on f alone.
        mean, _ = self.likelihood.moments(self.likelihood.initial(), f)
        return jnp.stack([1 - mean, mean], axis=-1) if self.likelihood.classifies else jnp.asarray(mean)

    def predict(self, response: np.ndarray) -> np.ndarray:
        return (response[:, 1] > 0.5).astype(int) if self.likelihood.classifies else response

    def predictive_variance(self, q: Any, X: Array, hyper: Hyper) -> PerRow:
        if self.likelihood.classifies:
            return super().predictive_variance(q, X, hyper)
        variance: PerRow = self.likelihood.response(hyper, *self.predictor_moments(q, X))[1]
        return variance

    def observed(self, data: Rows) -> dict[str, Array]:
        return {"y": data.y[:, 0]}

    def replicated(self, params: Vector, data: Rows, hyper: Hyper, key: Array) -> dict[str, Array]:
        """New targets: of rows of a shard, whose s is beside the targets, or of rows as `design` has them."""
        left = data.X[:, -1] if data.X.shape[1] > len(self.points) else data.y[:, 1]
        of_function, of_target = jax.random.split(key)
        noise = jax.random.normal(of_function, left.shape, left.dtype)
        f = self.predictors(params, data.X) + jnp.sqrt(left) * noise
        return {"y": self.likelihood.sample(hyper, f, of_target)}

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


def _spread_points(number: int, low: Any, high: Any, features: int) -> np.ndarray:
    if low is None or high is None:
        raise InputError("low, high: with a number of points, say over which box they are spread, such as -2.0 and 2.0")
    corners = []
    for name, corner in (("low", low), ("high", high)):
        array = as_numbers(None, name, corner, np.float64)
        if array.shape not in ((), (features,)) or not np.all(np.isfinite(array)):
            raise InputError(f"{name}: expected a number, or {features} of them, one per feature")
        corners.append(np.broadcast_to(array, (features,)))
    if not np.all(corners[0] < corners[1]):
        raise InputError("low, high: expected a box: each `low` below its `high`")
    return even_points(number, *corners)


@compile_quickly
def _project_rows(kernel: Kernel, points: Places, X: Inputs) -> tuple[RowByPlace, PerRow]:
    params = kernel.initial(points.shape[1])
    size = JITTER * jnp.sum(kernel.diagonal(params, points)) / len(points)
    K = kernel.gram(params, points) + jnp.eye(len(points), dtype=points.dtype) * size
    L = jax.lax.linalg.cholesky(jnp.asarray(K), symmetrize_input=False)
    # Rows that are points are the same inputs.
    V = solve_triangular(L, kernel.between(params, points, X), lower=True)
    return V.T, jnp.maximum(kernel.diagonal(params, X) - jnp.sum(V**2, axis=0), 0)
