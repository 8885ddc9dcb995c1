"""What a NumPyro program is made of, found out by running it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from partita.errors import InputError
from partita.foundation.runtime import Array
from partita.models.integrals import POINTS

# How many draws of the prior are looked at, one by one, because compiling many at once would take longer.
DRAWS = 20
# Real numbers, positive ones, and whatever else a variable's values can be.
SUPPORTS = ("real", "positive", "other")


class Latent(NamedTuple):
    """An unobserved variable's place among unconstrained numbers: all of it, or one group's part.

    A local one has an axis for groups, which is so long in the program.
    """

    name: str
    start: int
    shape: tuple[int, ...]
    axis: int | None = None
    length: int = 1
    # What values it can have: one of SUPPORTS.
    support: str = "real"

    @property
    def stop(self) -> int:
        return self.start + int(np.prod(self.shape, dtype=int))

    def take(self, numbers: Array) -> Array:
        """Its numbers, in the shape that the program takes: all groups have those of the one that is looked at."""
        value = numbers[self.start : self.stop].reshape(self.shape)
        if self.axis is None:
            return value
        value = jnp.expand_dims(value, self.axis)
        return jnp.broadcast_to(value, (*value.shape[: self.axis], self.length, *value.shape[self.axis + 1 :]))


class Layout(NamedTuple):
    """What a program is made of, as a run on a few rows has shown."""

    rows: tuple[tuple[str, tuple[int, ...], str], ...]
    latents: tuple[Latent, ...]
    local: tuple[Latent, ...]
    # Observed variables, and which axis of their log-probabilities has the rows; None: they are part of the prior.
    observed: tuple[tuple[str, int | None], ...]
    # Whether its log-densities have Hessians that tell all of their curvature.
    is_smooth: bool

    @property
    def size(self) -> int:
        return self.latents[-1].stop

    @property
    def local_size(self) -> int:
        return self.local[-1].stop if self.local else 0

    def empty_row(self) -> dict[str, np.ndarray]:
        """A row of zeros, for what does not look at data."""
        return {name: np.zeros((1, *shape), dtype) for name, shape, dtype in self.rows}


def pack_layout(layout: Layout) -> dict[str, Any]:
    """A layout as plain values, which a site can send."""
    return {
        "rows": [[name, list(shape), dtype] for name, shape, dtype in layout.rows],
        "latents": [_pack_latent(latent) for latent in layout.latents],
        "local": [_pack_latent(latent) for latent in layout.local],
        "observed": [list(pair) for pair in layout.observed],
        "is_smooth": layout.is_smooth,
    }


def unpack_layout(row: Mapping[str, Any]) -> Layout:
    """What `pack_layout` gave."""
    return Layout(
        tuple((str(name), tuple(map(int, shape)), np.dtype(dtype).str) for name, shape, dtype in row["rows"]),
        tuple(map(_unpack_latent, row["latents"])),
        tuple(map(_unpack_latent, row["local"])),
        tuple((str(name), axis) for name, axis in row["observed"]),
        bool(row["is_smooth"]),
    )


def _pack_latent(latent: Latent) -> list[Any]:
    return [latent.name, latent.start, list(latent.shape), latent.axis, latent.length, latent.support]


def _unpack_latent(row: Any) -> Latent:
    name, start, shape, axis, length, support = row
    if support not in SUPPORTS:
        raise ValueError(f"variable {name}: expected a support of {', '.join(SUPPORTS)}")
    return Latent(str(name), int(start), tuple(map(int, shape)), axis, int(length), support)


@dataclass(frozen=True)
class Statement:
    """One `sample` statement, as it was run."""

    name: str
    fn: Any
    value: Any
    observed: bool
    plates: Mapping[str, Any]
    log_jacobian: Any = 0.0


def run_program(
    program: Callable[..., Any],
    arrays: Mapping[str, Array],
    unconstrained: Callable[[str], Array | None],
    seed: Any = 0,
    validate: bool = False,
) -> dict[str, Statement]:
    """The sample statements of one run of a program, with given unconstrained values of variables, or drawn ones."""
    from numpyro import handlers
    from numpyro.distributions import distribution
    from numpyro.distributions.transforms import biject_to

    jacobians: dict[str, Array] = {}

    def fill(statement: dict[str, Any]) -> Array | None:
        numbers = (
            None if statement["type"] != "sample" or statement["is_observed"] else unconstrained(statement["name"])
        )
        if numbers is None:
            return None
        transform = biject_to(statement["fn"].support)
        value = transform(numbers)
        log_jacobian = transform.log_abs_det_jacobian(numbers, value)
        extra = log_jacobian.ndim - len(statement["fn"].batch_shape)
        jacobians[statement["name"]] = jnp.sum(log_jacobian, axis=tuple(range(-extra, 0)))
        return value

    run = handlers.trace(handlers.substitute(handlers.seed(program, seed), substitute_fn=fill))
    with distribution.validation_enabled(validate):
        trace = run.get_trace(**arrays)
    _check_statements(trace)
    return {
        name: Statement(
            name,
            statement["fn"],
            statement["value"],
            statement["is_observed"],
            {frame.name: frame for frame in statement["cond_indep_stack"]},
            jacobians.get(name, 0.0),
        )
        for name, statement in trace.items()
        if statement["type"] == "sample"
    }


def _check_statements(trace: Mapping[str, dict[str, Any]]) -> None:
    """Refuse what has no place in a posterior from parts, saying why."""
    for name, statement in trace.items():
        kind = statement["type"]
        if kind == "param":
            raise InputError(f"model: {name} is a param, which has no posterior: give it a prior with numpyro.sample")
        if kind == "plate" and statement["args"][1] is not None and statement["args"][1] != statement["args"][0]:
            raise InputError(
                f"model: plate {name} draws a sub-sample: leave subsample_size out; batches are the solver's"
            )
        if kind in ("control_flow", "mutable"):
            raise InputError(f"model: {name} is a {kind.replace('_', ' ')} statement, which is not supported")
        if kind == "sample" and statement.get("scale") is not None:
            raise InputError(f"model: {name} is scaled: leave the scale out, and weigh rows with pt.models.Weighted")
        if kind == "sample" and not statement["is_observed"] and statement["fn"].support.is_discrete:
            raise InputError(
                f"model: {name} is discrete and not observed: sum it out, say with a MixtureSameFamily distribution"
            )


def find_layout(program: Callable[..., Any], row: Mapping[str, np.ndarray], groups: Mapping[str, str]) -> Layout:
    """Find out what a program is made of, by running it on two and on three copies of a row."""
    two, three = (
        _try_program(program, {name: np.repeat(array, count, axis=0) for name, array in row.items()})
        for count in (2, 3)
    )
    by_row = {
        name for statement in two.values() for name in statement.plates if _length(two, name) != _length(three, name)
    }
    plates = by_row | set(groups)
    missing = set(groups) - {name for statement in two.values() for name in statement.plates}
    if missing:
        raise InputError(f"local: the model has no plate {missing.pop()!r}")
    latents, local, observed = [], [], []
    places = {"latents": 0, "local": 0}
    for name, statement in two.items():
        if statement.observed:
            observed.append((name, _row_axis(statement, three[name])))
            if observed[-1][1] is None and plates & set(statement.plates):
                raise InputError(
                    f"model: {name} is observed for groups, not rows: leave `local` out, so that they are global"
                )
            continue
        shape, transformed = _unconstrained_shape(statement), _unconstrained_shape(three[name])
        mine = [plate for plate in statement.plates if plate in plates]
        if not mine and shape != transformed:
            raise InputError(f"model: {name} has a value for every row: put it into a plate over rows")
        if not mine:
            latents.append(Latent(name, places["latents"], shape, support=_support(statement)))
            places["latents"] = latents[-1].stop
            continue
        if len(mine) > 1:
            raise InputError(f"model: {name} is in the plates {' and '.join(mine)}: only one may be local")
        if groups and mine[0] in by_row:
            raise InputError(f"model: {name} has a value for every row and others for groups: keep one kind local")
        axis = len(statement.fn.batch_shape) + statement.plates[mine[0]].dim
        length = 1 if mine[0] in by_row else shape[axis]
        local.append(Latent(name, places["local"], (*shape[:axis], *shape[axis + 1 :]), axis, length))
        places["local"] = local[-1].stop
    rows = tuple((name, array.shape[1:], array.dtype.str) for name, array in row.items())
    smooth = not any(_has_kink(statement.fn) for statement in two.values())
    layout = Layout(rows, tuple(latents), tuple(local), tuple(observed), smooth)
    _check_layout(layout)
    _check_prior(program, layout, two)
    return layout


def _has_kink(fn: Any) -> bool:
    """Whether a distribution holds Laplace's, whose curvature is all in one point, where a Hessian does not see it."""
    import numpyro.distributions as dist

    if isinstance(fn, dist.Laplace | dist.AsymmetricLaplace | dist.AsymmetricLaplaceQuantile):
        return True
    inner = [getattr(fn, name, None) for name in ("base_dist", "component_distribution")]
    inner += list(getattr(fn, "component_distributions", ()))
    return any(_has_kink(part) for part in inner if part is not None)


def _check_layout(layout: Layout) -> None:
    if not layout.latents:
        raise InputError("model: has no global variable, which sites would learn together: put one outside of plates")
    if all(axis is None for _, axis in layout.observed):
        raise InputError("model: observes no row: take data by the names in `data`, and hand what was seen to obs=…")
    if layout.local_size > max(POINTS):
        names = ", ".join(latent.name for latent in layout.local)
        raise InputError(
            f"model: {names} are {layout.local_size} numbers for each group, and at most {max(POINTS)} are integrated "
            "out: keep groups global, by leaving `local` out"
        )


def _check_prior(program: Callable[..., Any], layout: Layout, seen: Mapping[str, Statement]) -> None:
    """The prior is read without data: it has to be the same with them."""
    from numpyro.distributions.transforms import biject_to

    def same(name: str) -> Array | None:
        return biject_to(seen[name].fn.support).inv(seen[name].value) if name in known else None

    known = {latent.name for latent in layout.latents}
    without = run_program(program, layout.empty_row(), same)
    fixed = [name for name, axis in layout.observed if axis is None]
    for name in (*known, *fixed):
        one, other = (np.asarray(statement.fn.log_prob(seen[name].value)) for statement in (seen[name], without[name]))
        if one.shape == other.shape and np.allclose(one, other, rtol=1e-6):
            continue
        if name in known:
            raise InputError(f"model: the prior of {name} depends on data: give it numbers that all sites know")
        raise InputError(
            f"model: {name} looks at rows, but has one log-probability for all of them: give each row its own"
        )


def check_rows_apart(program: Callable[..., Any], layout: Layout, rows: Mapping[str, np.ndarray], by_row: bool) -> None:
    """What a program says of a row must not depend on which others are at its site: they are spread, and padded.

    `by_row`: local variables are those of rows, not of groups.
    """

    def found(some: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
        params, own = jnp.full(layout.size, 0.1), jnp.full(layout.local_size, 0.1)
        known = {latent.name: latent.take(params) for latent in layout.latents}
        for latent in layout.local:
            known[latent.name] = (latent._replace(length=count) if by_row else latent).take(own)
        statements = run_program(program, some, known.get)
        return {
            name: np.moveaxis(np.asarray(statements[name].fn.log_prob(statements[name].value)), axis, 0)
            for name, axis in layout.observed
            if axis is not None
        }

    count = len(next(iter(rows.values())))
    together = found(rows, count)
    for number in range(count):
        alone = found({name: array[number : number + 1] for name, array in rows.items()}, 1)
        for name, values in alone.items():
            if not np.allclose(values[0], together[name][number], rtol=1e-6, atol=1e-9, equal_nan=True):
                raise InputError(
                    f"model: what it says of a row's {name} depends on other rows: centre and scale data before, by "
                    "numbers that all sites know"
                )


def _try_program(program: Callable[..., Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Statement]:
    try:
        return run_program(program, arrays, lambda name: None, validate=True)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"model: does not run on {len(next(iter(arrays.values())))} rows of data: what it takes from elsewhere may "
            f"not have a fixed number of rows, and priors have to be proper ({type(error).__name__}: {error})"
        ) from error


def _length(statements: Mapping[str, Statement], plate: str) -> int:
    return next(statement.plates[plate].size for statement in statements.values() if plate in statement.plates)


def _row_axis(two: Statement, three: Statement) -> int | None:
    """Which axis of an observation's log-probabilities grows with the rows, counted from the end."""
    shapes = [np.shape(statement.fn.log_prob(statement.value)) for statement in (two, three)]
    grown = [axis for axis in range(-len(shapes[0]), 0) if shapes[0][axis] != shapes[1][axis]]
    if len(grown) > 1 or len(shapes[0]) != len(shapes[1]):
        raise InputError(
            f"model: {two.name} is not one observation per row: its log-probabilities are {shapes[0]} for 2 rows"
        )
    if grown and shapes[0][grown[0]] != 2:
        raise InputError(f"model: {two.name} has {shapes[0][grown[0]]} observations for 2 rows: give every row its own")
    return grown[0] if grown else None


def _support(statement: Any) -> str:
    """Whether values are real numbers or exponentials of such."""
    from numpyro.distributions.transforms import ExpTransform, IdentityTransform, biject_to

    transform = biject_to(statement.fn.support)
    transform = getattr(transform, "base_transform", transform)
    known = {IdentityTransform: "real", ExpTransform: "positive"}
    return known.get(type(transform), "other")


def _unconstrained_shape(statement: Statement) -> tuple[int, ...]:
    from numpyro.distributions.transforms import biject_to

    try:
        return tuple(biject_to(statement.fn.support).inverse_shape(statement.fn.shape()))
    except NotImplementedError:
        raise InputError(f"model: {statement.name} has a support without a transform: {statement.fn.support}") from None


def draw_prior(program: Callable[..., Any], layout: Layout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws of the global variables from their prior, unconstrained; and moments of those that are normal, else nan."""
    from numpyro.distributions.transforms import biject_to

    drawn, locations, scales = [], [], []
    for seed in range(DRAWS):
        statements = run_program(program, layout.empty_row(), lambda name: None, seed)
        mine = [(latent, statements[latent.name]) for latent in layout.latents]
        drawn.append([biject_to(statement.fn.support).inv(statement.value) for _, statement in mine])
        moments = [
            [np.broadcast_to(m, latent.shape) for m in _normal_moments(statement.fn)] for latent, statement in mine
        ]
        locations.append([location for location, _ in moments])
        scales.append([scale for _, scale in moments])
    joined = [
        [np.concatenate([np.ravel(part) for part in draw]) for draw in kind] for kind in (drawn, locations, scales)
    ]
    return np.array(joined[0]), np.array(joined[1]), np.array(joined[2])


def _normal_moments(fn: Any) -> tuple[Any, Any]:
    import numpyro.distributions as dist

    while isinstance(fn, dist.Independent | dist.ExpandedDistribution):
        fn = fn.base_dist
    return (fn.loc, fn.scale) if type(fn) is dist.Normal else (np.nan, np.nan)
