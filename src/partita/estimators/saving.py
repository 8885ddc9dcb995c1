"""An estimator of several sites in a file: its result, and beside it settings, units, and who contributed."""

import warnings
from typing import TYPE_CHECKING, TypeVar

import jax
import numpy as np

from partita.errors import RunMismatch
from partita.estimators.base import Arrays, Path
from partita.estimators.parts import Part
from partita.estimators.units import Units
from partita.foundation.archives import doubted, read_arrays
from partita.foundation.fields import anything, entries, fields, flag, items, maybe, number, scalar, text, whole
from partita.foundation.moments import Affine, Moments
from partita.foundation.plain import Row, plain
from partita.models.base import prior_shapes
from partita.result import unpacked
from partita.server import schedules
from partita.server.rules import as_damping

if TYPE_CHECKING:
    from partita.estimators.partitioned_base import Partitioned

Kind = TypeVar("Kind", bound="Partitioned")

# What a file says of an estimator. Its other settings are looked at by the model that they make.
SETTINGS = fields(
    {}, {"schedule": anything, **dict.fromkeys(("standardise", "verbose", "quiet"), flag)}, others=anything
)
ESTIMATOR = fields(
    {
        "name": text(),
        "settings": SETTINGS,
        "left_out": items(text()),
        "warned": flag,
        "parts": items(fields({"name": scalar, "rows": whole(), "weight": number(0)})),
        "features": whole(1),
        "names": items(text()),
        "own": entries(anything),
    }
)
# What is written of the moments of each part.
MOMENTS = ("mean", "total")
# Settings that a file can hold.
KEPT = (str, int, float, list, tuple, np.generic, np.ndarray, type(None))


def pack(estimator: "Partitioned") -> tuple[Arrays, Row]:
    """Arrays by name, and plain words about them."""
    arrays, about = estimator.result_.packed()
    settings = estimator.get_params()
    kept: Row = {name: value for name, value in settings.items() if isinstance(value, KEPT)}
    if (schedule := schedules.to_settings(estimator.schedule)) is not None:
        kept["schedule"] = schedule
    row = {
        "name": type(estimator).__name__,
        "settings": kept,
        # An engine changes nothing about what is learnt.
        "left_out": sorted(set(settings) - set(kept) - {"engine"}),
        "parts": [{"name": part.name, "rows": part.rows, "weight": part.weight} for part in estimator._parts],
        "warned": estimator._warned,
        "features": estimator.n_features_in_,
        "names": estimator._column_names,
        "own": {name: np.asarray(getattr(estimator, name)).tolist() for name in estimator._remembered},
    }
    arrays |= {f"inputs.{name}": part for name, part in estimator._units.inputs._asdict().items()}
    arrays |= {f"target.{name}": part for name, part in estimator._units.target._asdict().items()}
    arrays |= {f"parts.{name}": np.stack([getattr(p.moments, name) for p in estimator._parts]) for name in MOMENTS}
    return arrays, {**about, "estimator": plain(row)}


def load(kind: type[Kind], path: Path, settings: Row) -> Kind:
    """What `pack` gave, from a file, with settings that it does not have."""
    arrays, about = read_arrays(path)
    known = about.get("estimator")
    if not isinstance(known, dict) or known.get("name") != kind.__name__:
        held = known.get("name") if isinstance(known, dict) else known or "result"
        raise RunMismatch(f"{path}: holds a {held}, not a {kind.__name__}")
    with doubted(path):
        return _unpack(kind, path, arrays, about, settings)


def _unpack(kind: type[Kind], path: Path, arrays: Arrays, about: Row, settings: Row) -> Kind:
    known = about["estimator"]
    if "parts.mean" not in arrays:
        raise RunMismatch(f"{path}: its units are those of a first batch for ever: written by an earlier version")
    ESTIMATOR(known, "estimator")
    missing = [name for name in known["left_out"] if name not in settings]
    if missing:
        again = ", ".join(f"{name}=..." for name in missing)
        warnings.warn(f"{path}: {', '.join(missing)} not kept: to learn on, load(path, {again})", stacklevel=6)
    kept = known["settings"] | {"schedule": schedules.from_settings(known["settings"].get("schedule"))}
    loaded = kind(**{**kept, **settings})
    loaded.result_ = unpacked(path, arrays, about)
    loaded._parts = _read_parts(arrays, known)
    loaded._units = Units(*(Affine(arrays[f"{n}.mean"], arrays[f"{n}.scale"]) for n in ("inputs", "target")))
    loaded._data, loaded._warned = None, known["warned"]
    loaded._restore_columns(known["features"], known["names"])
    fields(kind._remembered)(known["own"], "estimator.own")
    for name, value in known["own"].items():
        setattr(loaded, name, np.array(value) if isinstance(value, list) else value)
    _check(loaded)
    return loaded


def _read_parts(arrays: Arrays, known: Row) -> list[Part]:
    columns = known["features"] + 1  # the target is the last
    each = zip(known["parts"], *(arrays[f"parts.{name}"] for name in MOMENTS), strict=True)
    return [
        Part(part["name"], part["rows"], Moments.checked(part["weight"], mean, total, columns))
        for part, mean, total in each
    ]


def _check(loaded: "Partitioned") -> None:
    """Check that what a file says of an estimator goes together, and that it could learn on."""
    features, result, units = loaded.n_features_in_, loaded.result_, loaded._units
    for what, own, shape in (("inputs", units.inputs, (features,)), ("target", units.target, ())):
        right = all(array.dtype == np.float64 and array.shape == shape for array in own)
        if not right or not np.all(np.isfinite(own.mean) & (own.scale > 0) & (own.scale < np.inf)):
            raise ValueError(f"{what}: expected a mean and a positive deviation of each column")
    if len(loaded._parts) != len(result.factors):
        raise ValueError("parts: there are more or fewer than factors")
    model, found = loaded._model, jax.tree.leaves(result.posterior)
    shapes = [leaf.shape for leaf in jax.tree.leaves(prior_shapes(model, model.hyper))]
    if type(model) is not type(result.model) or shapes != [leaf.shape for leaf in found]:
        raise ValueError("settings: are those of another model")
    as_damping(loaded.damping)
    maybe(whole())(loaded.random_state, "random_state")
