"""NumPyro programs as models: global variables are θ, those of rows or groups stay at their site."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError, ShardError, reason
from partita.families import GAUSSIANS, Family, MeanField
from partita.foundation.checks import check_one_of, import_extra
from partita.foundation.runtime import Array, on_host, precision
from partita.foundation.shapes import PerRow
from partita.models.base import AbstractModel, Hyper, Weighted
from partita.models.coefficients import Coefficients, name_place, normal_quantiles
from partita.models.integrals import find_peak, log_integral
from partita.models.layout import Layout, Statement, check_rows_apart, draw_prior, find_layout, run_program
from partita.models.program_rows import (
    Observed,
    PreparedProgram,
    PriorTerms,
    gather_groups,
    read_arrays,
    stand_for_prior,
)
from partita.shards import Shard, check_weights, make_shard, rounded


class NumPyroModel(AbstractModel):
    """What `from_numpyro` gives. θ is a vector: all global variables without constraints, one after the other."""

    program: Callable[..., Any] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    local: tuple[tuple[str, str], ...] = eqx.field(static=True, default=())
    posterior: Literal["full", "mean-field"] = eqx.field(static=True, default="full")
    layout: Layout | None = eqx.field(static=True, default=None)
    location: Array | None = None
    scale: Array | None = None
    # Whether the prior is that Gaussian, or needs a site for the rest of it.
    is_gaussian: bool = eqx.field(static=True, default=True)
    # How many rows groups are padded to, so that sites share one shape; if None, each site pads to its largest.
    group_rows: int | None = eqx.field(static=True, default=None)

    steep: ClassVar[bool] = True

    @property
    def smooth(self) -> bool:
        return self.layout is not None and self.layout.is_smooth

    @property
    def needs_rows(self) -> bool:
        return self.layout is None

    @property
    def needs_groups(self) -> bool:
        return bool(self.local)

    @property
    def own_shards(self) -> tuple[Any, ...]:
        """What a prior is beside a Gaussian, if it is none, becomes the factor of a last site."""
        return () if self.is_gaussian or self.given_prior is not None else (PriorTerms(),)

    def sized(self, like: Any) -> Self:
        """The same model for shards like this one. No data are kept."""
        return self.with_layout(self.lay_out(0, like))

    def lay_out(self, site: int, raw: Any) -> PreparedProgram:
        rows = self._arrays(site, raw)
        row = {name: array[:1] for name, array in rows.items()}
        some = np.unique(np.linspace(0, len(rows[self.names[0]]) - 1, 3).astype(int))
        with precision(np.float64):
            layout = find_layout(self.program, row, dict(self.local))
            check_rows_apart(
                self.program, layout, {name: array[some] for name, array in rows.items()}, by_row=not self.local
            )
            laid = PreparedProgram(layout, *self._base(layout))
            self.with_layout(laid)._check_compiles(row)
        return laid

    def with_layout(self, found: PreparedProgram) -> Self:
        layout, location, scale, is_gaussian = found
        return replace(self, layout=layout, location=location, scale=scale, is_gaussian=is_gaussian)

    def _check_compiles(self, row: Mapping[str, np.ndarray]) -> None:
        numbers = jnp.zeros(self._known_layout().size), jnp.zeros(self._known_layout().local_size)
        try:
            jax.eval_shape(lambda params, own, row: self._rows(self.run(params, own, row)), *numbers, row)
        except Exception as error:
            advice = "use jax.numpy, and jnp.where instead of if"
            raise InputError(f"model: runs, but cannot be compiled: {advice} ({reason(error)})") from error

    def _base(self, layout: Layout) -> tuple[np.ndarray, np.ndarray, bool]:
        """A Gaussian in the place of the prior: its moments, and whether it is the prior."""
        draws, location, scale = draw_prior(self.program, layout)
        fixed = np.all(scale == scale[0], axis=0) & np.all(location == location[0], axis=0)
        mean, deviation = np.median(draws, axis=0), np.clip(draws.std(axis=0), 0.1, 1e3)
        mean, deviation = np.where(fixed, location[0], mean), np.where(fixed, scale[0], deviation)
        if not np.all(np.isfinite([mean, deviation])):
            raise InputError("model: draws of the prior are not finite: give every variable a proper prior")
        return mean, deviation, bool(np.all(fixed)) and all(axis is not None for _, axis in layout.observed)

    def _known_layout(self) -> Layout:
        if self.layout is None:
            raise InputError("model: its size is not known before it has seen a shard: give from_numpyro like=shard")
        return self.layout

    def natural_prior(self, hyper: Hyper) -> Family:
        self._known_layout()
        precision = 1 / jnp.asarray(self.scale) ** 2
        return GAUSSIANS[self.posterior].independent(jnp.asarray(self.location), precision)

    @property
    def start(self) -> Family | None:
        return None if self.layout is None else super().start

    def shard(self, site: int, raw: Any) -> Shard:
        """Check arrays in the order of `data`, a dictionary of them, or `Weighted` ones."""
        layout = self._known_layout()
        if isinstance(raw, PriorTerms):
            return make_shard(stand_for_prior(layout, self.group_rows or 1), np.ones(1))
        arrays = self._arrays(site, raw)
        for name, shape, dtype in layout.rows:
            if arrays[name].shape[1:] != shape:
                raise ShardError(site, name, f"expected rows of shape {shape}, got {arrays[name].shape[1:]}")
            given, arrays[name] = arrays[name], arrays[name].astype(dtype)
            if not np.array_equal(given, arrays[name]):
                raise ShardError(site, name, f"has other numbers than {dtype}, which the first shard's are")
        count = len(arrays[self.names[0]])
        if not layout.local:
            weights = check_weights(site, raw.weights if isinstance(raw, Weighted) else None, count, self.dtype)
            return make_shard(Observed(arrays, None, None, np.zeros(count, bool)), weights)
        if isinstance(raw, Weighted):
            raise ShardError(
                site, "weights", "rows of groups with variables of their own have no weights: leave them out"
            )
        codes = arrays[self.local[0][1]].astype(np.int32) if self.local else np.arange(count, dtype=np.int32)
        length = layout.local[0].length
        if length > 1 and (codes.min() < 0 or codes.max() >= length):
            raise ShardError(
                site, self.local[0][1], f"groups are 0 to {length - 1}, got {codes.min()} to {codes.max()}"
            )
        grouped = gather_groups(arrays, codes, length, self.group_rows)
        return make_shard(grouped, np.ones(len(grouped.is_prior)))

    def _arrays(self, site: int, raw: Any) -> dict[str, np.ndarray]:
        return read_arrays(site, raw, self.names, self.dtype, [argument for _, argument in self.local])

    def find_groups(self, site: int, raw: Any) -> tuple[np.ndarray, int]:
        codes, sizes = np.unique(self._arrays(site, raw)[self.local[0][1]], return_counts=True)
        return codes.astype(np.int64), int(sizes.max())

    def with_groups(self, found: Sequence[tuple[np.ndarray, int]]) -> Self:
        """Padded to the largest group of all. A group's variables are at one site, or they would be counted twice."""
        seen: dict[int, int] = {}
        for site, (codes, _) in enumerate(found):
            for code in codes.tolist():
                if seen.setdefault(code, site) != site:
                    words = f"group {code} is at another site too: keep it whole"
                    raise ShardError(site, self.local[0][1], words, seen[code])
        return replace(self, group_rows=rounded(max(largest for _, largest in found)))

    def log_prob(self, params: Array, data: Observed, hyper: Hyper) -> PerRow:
        """log p(y_n | θ) for each row, or for each group, its own variables integrated out."""
        if self.is_gaussian:
            return self._log_likelihood(params, data)
        return jax.lax.cond(
            data.is_prior[0],
            lambda: self._log_prior_terms(params, data),
            lambda: self._log_likelihood(params, data),
        )

    def _log_likelihood(self, params: Array, data: Observed) -> Array:
        layout = self._known_layout()
        if not layout.local:
            return self._rows(self.run(params, None, data.arrays))

        def of_group(arrays: Mapping[str, Array], is_row: Array, group: Array) -> Array:
            joint = self._joint(arrays, is_row, group)
            return log_integral(joint, params, layout.local_size)

        return jax.vmap(of_group)(data.arrays, data.is_row, data.group)

    def _joint(self, arrays: Mapping[str, Array], is_row: Array, group: Array) -> Callable[[Array, Array], Array]:
        """log p(y, u | θ) of one group, as a function of θ and its own variables u."""

        def joint(params: Array, own: Array) -> Array:
            statements = self.run(params, own, arrays)
            rows = jnp.sum(jnp.where(is_row, self._rows(statements), 0))
            for latent in self._known_layout().local:
                statement = statements[latent.name]
                values = statement.fn.log_prob(statement.value) + statement.log_jacobian
                rows += jnp.sum(jnp.take(values, group, axis=latent.axis))
            return rows

        return joint

    def _rows(self, statements: dict[str, Statement]) -> Array:
        total: Any = 0.0
        for name, axis in self._known_layout().observed:
            if axis is not None:
                values = jnp.moveaxis(statements[name].fn.log_prob(statements[name].value), axis, 0)
                total += jnp.sum(values.reshape(len(values), -1), axis=1)
        return total

    def log_prior(self, params: Array) -> Array:
        """log p(θ) of all global variables, in unconstrained space."""
        layout = self._known_layout()
        own = jnp.zeros(layout.local_size, params.dtype) if layout.local else None
        statements = self.run(params, own, layout.empty_row())
        total = jnp.zeros((), params.dtype)
        for latent in layout.latents:
            statement = statements[latent.name]
            total += jnp.sum(statement.fn.log_prob(statement.value)) + jnp.sum(statement.log_jacobian)
        for name, axis in layout.observed:
            if axis is None:
                total += jnp.sum(statements[name].fn.log_prob(statements[name].value))
        return total

    def _log_prior_terms(self, params: Array, data: Observed) -> Array:
        """What the prior is beside the Gaussian in its place, for each row of a site without data."""
        beside = self.log_prior(params) - MeanField.from_moments(self.location, self.scale).log_prob(params)
        return jnp.broadcast_to(beside, data.is_prior.shape)

    def run(self, params: Array, own: Array | None, arrays: Mapping[str, Array]) -> dict[str, Statement]:
        """Run the program with these values of its variables, unconstrained."""
        layout = self._known_layout()
        known = {latent.name: latent.take(params) for latent in layout.latents}
        if own is not None:
            known |= {latent.name: latent.take(own) for latent in layout.local}
        return run_program(self.program, arrays, known.get)

    def observed(self, data: Observed) -> dict[str, Array]:
        """What was observed of each row; nothing where there are groups, which are padded."""
        layout = self._known_layout()
        if layout.local:
            return {}
        statements = self.run(jnp.zeros(layout.size), None, data.arrays)
        return {
            name: _rows_first(statements[name].fn, statements[name].value, axis)
            for name, axis in self._row_observations(statements)
        }

    def _row_observations(self, statements: Mapping[str, Statement]) -> list[tuple[str, int]]:
        """What was observed of rows; terms that are only added to the log likelihood were not."""
        import numpyro.distributions as dist

        return [
            (name, axis)
            for name, axis in self._known_layout().observed
            if axis is not None and not isinstance(statements[name].fn, dist.Unit)
        ]

    def replicated(self, params: Array, data: Observed, hyper: Hyper, key: Array) -> dict[str, Array]:
        layout = self._known_layout()
        if layout.local:
            return {}
        statements = self.run(params, None, data.arrays)
        drawn = {}
        for number, (name, axis) in enumerate(self._row_observations(statements)):
            fn, value = statements[name].fn, statements[name].value
            # A distribution may be narrower than what was observed of it.
            wide = fn.expand(jnp.shape(fn.log_prob(value)))
            new = wide.sample(jax.random.fold_in(key, number)).astype(jnp.result_type(value))
            drawn[name] = _rows_first(fn, new, axis)
        return drawn

    def named(self, draws: Any) -> dict[str, np.ndarray]:
        """Constrained values of the program's global variables, by name; a row for each draw."""
        with precision(np.float64):
            return on_host(_constrain(self, jnp.asarray(draws)))

    def coefficients(self, posterior: Family) -> Coefficients:
        """Global variables that are real numbers; beside them, single ones that are positive."""
        latents = self._known_layout().latents
        real = [latent for latent in latents if latent.support == "real"]
        positive = {
            latent.name: latent.start for latent in latents if latent.support == "positive" and not latent.shape
        }
        places = [place for latent in real for place in range(latent.start, latent.stop)]

        def split(draws: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
            numbers = np.asarray(draws)
            return numbers[:, places], {name: np.exp(numbers[:, place]) for name, place in positive.items()}

        return Coefficients(
            [name_place({one.name: np.empty(one.shape)}, i) for one in real for i in range(one.stop - one.start)],
            posterior,
            split,
            places,
            latents[-1].stop,
            {name: normal_quantiles(posterior, place) for name, place in positive.items()},
        )

    def sample_local(self, posterior: Family, key: Any, number: int, raw: Any) -> dict[str, np.ndarray]:
        """Draws of a site's own variables, for its groups in order, each with a draw of θ; for the site to look at.

        Given θ they are Gaussian around their mode, in unconstrained space.
        """
        layout = self._known_layout()
        if not layout.local:
            raise InputError("sample_local: the program has no local variables")
        key = jax.random.key(key) if isinstance(key, int | np.integer) else key
        for_params, for_own = jax.random.split(key)
        shard = self.shard(0, raw)
        with precision(np.float64):
            params = jnp.asarray(posterior.sample(for_params, (number,)))
            noise = jax.random.normal(for_own, (number, len(shard.weights), layout.local_size), params.dtype)
            return on_host(_local_draws(self, params, noise, shard.data))


def _rows_first(fn: Any, value: Array, axis: int) -> Array:
    """Observations with the axis of rows, which is one of their log-probabilities, in front."""
    return jnp.moveaxis(value, axis - len(fn.event_shape), 0)


@eqx.filter_jit
def _constrain(model: NumPyroModel, draws: Array) -> dict[str, Array]:
    layout = model._known_layout()

    def one(params: Array) -> dict[str, Array]:
        own = jnp.zeros(layout.local_size, params.dtype) if layout.local else None
        statements = model.run(params, own, layout.empty_row())
        return {latent.name: statements[latent.name].value for latent in layout.latents}

    return jax.vmap(one)(draws)


@eqx.filter_jit
def _local_draws(model: NumPyroModel, draws: Array, noise: Array, data: Observed) -> dict[str, Array]:
    layout = model._known_layout()

    def of_group(params: Array, z: Array, arrays: Mapping[str, Array], is_row: Array, group: Array) -> dict[str, Array]:
        peak = find_peak(model._joint(arrays, is_row, group), params, layout.local_size)
        statements = model.run(params, peak.mode + peak.root @ z, arrays)
        return {
            latent.name: jnp.take(statements[latent.name].value, group, axis=latent.axis) for latent in layout.local
        }

    groups = jax.vmap(of_group, (None, 0, 0, 0, 0))
    return jax.lax.map(lambda two: groups(two[0], two[1], data.arrays, data.is_row, data.group), (draws, noise))


def from_numpyro(
    model: Callable[..., Any],
    data: Sequence[str] = ("X", "y"),
    posterior: Literal["full", "mean-field"] = "full",
    local: Mapping[str, str] | None = None,
    like: Any = None,
) -> NumPyroModel:
    """A NumPyro program as a model: its global variables get one Gaussian posterior in unconstrained space.

    Args:
        model: the program. Rows of data are its keyword arguments; anything else it may take from a closure.
        data: names of the arguments that hold data, with one row per observation. Shards have them in this order.
        posterior: "full" covariances, or "mean-field".
        local: for each plate of groups, which of the arguments says what group a row belongs to. Their variables stay
            at the site of the group, and are integrated out there. Variables in a plate over rows always do. The
            plate has as many groups as there are at all sites; or one, of a program that is written for one group.
        like: a shard to take shapes from; without it, the first of a run.

    Returns:
        A model for `fit`, whose `result.sample(key, n)` gives constrained values by name.

    >>> import numpyro, numpyro.distributions as dist
    >>> import partita as pt
    >>> def program(X, y):
    ...     slope = numpyro.sample("slope", dist.Normal(0, 1))
    ...     noise = numpyro.sample("noise", dist.HalfNormal(1))
    ...     numpyro.sample("y", dist.Normal(slope * X, noise), obs=y)
    >>> X = np.linspace(-1, 1, 40)
    >>> y = 2 * X + 0.3 * np.cos(9 * X)
    >>> shards = [(X[:20], y[:20]), (X[20:], y[20:])]
    >>> result = pt.fit(from_numpyro(program), shards)
    >>> result.sample(0, 100)["slope"].mean().round(1)
    np.float64(2.0)
    """
    import_extra("numpyro", "NumPyro", "numpyro")
    if not callable(model):
        raise InputError(f"model: expected a function with numpyro.sample statements, got {type(model).__name__}")
    check_one_of("", GAUSSIANS, posterior=posterior)
    names = (data,) if isinstance(data, str) else tuple(data)
    takes = inspect.signature(model).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    for name in (*names, *(local or {}).values()):
        if name not in takes and not anything:
            raise InputError(f"data: the model has no argument {name!r}: it takes {', '.join(takes)}")
    if not names or not set((local or {}).values()) <= set(names):
        raise InputError("local: the argument that names groups has to be among `data`")
    if len(local or {}) > 1:
        raise InputError("local: expected one plate of groups; keep the others global")
    found = NumPyroModel(model, names, tuple((local or {}).items()), posterior)
    return found if like is None else found.sized(like)
