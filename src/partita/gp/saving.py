"""A stream in a file, as results are: arrays by name and plain words about them; and what a file's stream has to be."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from partita._version import __version__
from partita.errors import ImproperDensity
from partita.foundation.fields import anything, entries, fields, items, maybe, number, whole
from partita.foundation.plain import Row, plain
from partita.gaussian_processes import kernels, likelihoods
from partita.gp.beliefs import Beliefs
from partita.gp.learning import Learning
from partita.gp.placement import MOST_JITTER
from partita.gp.sparse import Factor, SparseGP

if TYPE_CHECKING:
    from partita.gp.stream import Stream

Arrays = dict[str, np.ndarray]

# What a file says of a stream beside arrays; one of an earlier version has no history.
ABOUT = fields(
    {
        "batches": whole(),
        "jitter": number(above=0, most=MOST_JITTER),
        "log_evidence": maybe(number()),
    },
    {"history": items(fields({"fold": whole(1), "seconds": number(0)}, others=anything))},
    anything,
)
# What a file of a stream by itself says of its parts.
PARTS = fields(
    {"kernel": entries(anything), "likelihood": entries(anything), "learning": entries(anything), "seed": whole()}
)
# How far below zero rounding may take an eigenvalue, relative to the largest.
ROUNDING = 1e-3
# Logarithms of hyperparameters are nearer to zero, so that their exponentials are numbers.
FAR = 100.0


def pack(stream: "Stream") -> tuple[Arrays, Row]:
    """What is kept of a stream, but for its parts and the factors of single batches."""
    arrays = {f"factor.{name}": np.asarray(array) for name, array in stream.factor._asdict().items()}
    for name, part in stream.hyper._asdict().items():
        arrays |= {f"hyper.{name}.{key}": np.asarray(value) for key, value in part.items()}
    about = {
        "version": __version__,
        "batches": stream.batches,
        "jitter": stream.jitter,
        "log_evidence": stream.log_evidence,
        "history": stream.history,
    }
    return arrays, plain(about)


def pack_parts(stream: "Stream") -> Row:
    """The kernel, the likelihood and the way of learning of a stream, as plain values."""
    row: Row = plain(
        {
            "kernel": kernels.to_settings(stream.gp.kernel),
            "likelihood": likelihoods.to_settings(stream.gp.likelihood),
            "learning": dataclasses.asdict(stream.learning),
            "seed": stream.seed,
        }
    )
    return row


def unpack_parts(about: Any) -> tuple[SparseGP, Learning, int]:
    """The inverse of `pack_parts`, of which nothing is taken on trust."""
    PARTS(about, "stream")
    kernel, likelihood = kernels.from_settings(about["kernel"]), likelihoods.from_settings(about["likelihood"])
    return SparseGP(kernel, likelihood), Learning(**about["learning"]), about["seed"]


def read_factor(arrays: Arrays) -> Factor:
    """The factor of a file, if it is one."""
    factor = Factor(**{name: arrays[f"factor.{name}"] for name in Factor._fields})
    _check_factor(factor)
    return factor


def unpack(begun: "Stream", factor: Factor, arrays: Arrays, about: Row) -> "Stream":
    """A stream that has just begun, after everything that a file says of it."""
    ABOUT(about, "stream")
    parts = {
        name: {key.split(".", 2)[2]: value for key, value in arrays.items() if key.startswith(f"hyper.{name}.")}
        for name in Beliefs._fields
    }
    _check_beliefs(begun.hyper, parts)
    return dataclasses.replace(
        begun,
        hyper=Beliefs(**parts),
        factor=factor,
        log_evidence=np.nan if about["log_evidence"] is None else about["log_evidence"],
        jitter=about["jitter"],
        batches=about["batches"],
        history=tuple(about.get("history", ())),
    )


def _check_factor(factor: Factor) -> None:
    """Check a factor from a file: its shapes go together, and no precision is negative."""
    if factor.points.ndim != 2 or factor.shift.ndim != 2:
        raise ValueError("factor: points and shifts have to be tables with two axes")
    (capacity, _), outputs = factor.points.shape, len(factor.shift)
    shapes = ((capacity,), (outputs, capacity), (outputs, capacity, capacity))
    if tuple(part.shape for part in factor[1:]) != shapes or 0 in factor.precision.shape + factor.points.shape:
        raise ValueError(f"factor: the shapes of its parts, {[part.shape for part in factor]}, do not go together")
    if any(part.dtype != np.float64 for part in factor) or not np.isin(factor.present, (0, 1)).all():
        raise ValueError("factor: expected float64, and 0 or 1 for whether a point is present")
    for one in factor.precision:
        values = np.linalg.eigvalsh(0.5 * (one + one.T))
        symmetric = np.allclose(one, one.T, 1e-6, 1e-6 * max(values[-1], 0))
        if values[0] < -ROUNDING * max(values[-1], 0) or not symmetric:
            raise ImproperDensity("factor: its precision is not symmetric, or has negative eigenvalues")


def _check_beliefs(own: Beliefs, found: dict[str, Arrays]) -> None:
    """Check that a file has beliefs about exactly the hyperparameters of this kernel and likelihood."""
    for name, wanted in own._asdict().items():
        shapes = {key: np.shape(value) for key, value in wanted.items()}
        if shapes != {key: value.shape for key, value in found[name].items()}:
            raise ValueError(f"hyper: the {name} is of other hyperparameters than the kernel's and the likelihood's")
        if any(value.dtype != np.float64 or np.any(np.abs(value) > FAR) for value in found[name].values()):
            raise ValueError(f"hyper: the {name} of a log hyperparameter is beyond ±{FAR:g}, or not float64")
    if any(np.any(value < 0) for value in found["scale"].values()):
        raise ValueError("hyper: a scale is negative")
