"""What crosses a wire or goes to disk: arrays of declared shape and dtype in safetensors, checked before they are used.

A message is one safetensors file. Its metadata say what it is; a SHA-256 of all of it is among them. Nothing is
pickled, and nothing is read beyond the size that arrays of the declared shapes need.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from partita.errors import MalformedMessage, MalformedUpdate
from partita.families import Family
from partita.foundation import fields
from partita.foundation.digests import content_digest
from partita.foundation.foreign import parse_json
from partita.foundation.text import MOST_REASON, clean
from partita.models import Hyper
from partita.solvers import Outcome
from partita.wire.tasks import Task, Update

# How arrays may be made smaller on the wire, at the price of digits.
Compression = Literal["none", "float16"]
# The most bytes of what is not arrays: names, shapes, hyperparameters. A header is never longer.
HEADER = 16_384
# What safetensors call the kinds of arrays that updates are made of.
FLOATS = {"float16": "F16", "float32": "F32", "float64": "F64"}
LARGEST, TINY = 2.0**15, 1e-300
NUMBERS = (
    "expected_log_prob", "expected_log_factor", "expected_log_change", "steps", "outcome", "seconds", "finished_at",
)  # fmt: skip

NoticeKind = Literal["away", "back", "dropped", "struck", "quarantined", "retired", "readmitted", "joined"]


@dataclass(frozen=True)
class Notice:
    """Something about a site that a run has to know, beside updates.

    `away`: it does not answer, what it was asked for comes to nothing; `back`: it can be asked again; `dropped`: what
    it was asked for comes to nothing, nothing else; `struck`: the run could take next to nothing of its update, or did
    not believe its report, which is said and has no effect by itself; `quarantined`: it is not asked again before
    somebody says so (`readmitted`); `retired`: its factor is to be divided out, and it is not asked again; `joined`: it
    is new, and becomes part of the run as its next site, with a factor of one; the reason is its name.
    """

    site: int
    kind: NoticeKind
    reason: str = ""

    def __post_init__(self) -> None:
        # Often a site's own words; they are kept, and shown in many places.
        object.__setattr__(self, "reason", clean(self.reason, MOST_REASON))

    @property
    def ends_task(self) -> bool:
        """Whether what the site was asked for comes to nothing."""
        return self.kind not in ("back", "readmitted", "struck", "joined")


Arrival = Update | Notice


def encode_update(update: Update, compression: Compression = "none") -> bytes:
    """An update as bytes, without site and version."""
    return b"".join(update_parts(update, compression))


def update_parts(update: Update, compression: Compression = "none") -> list[bytes | memoryview]:
    """The same in parts that follow each other, which are no copies of the update's arrays."""
    numbers = [getattr(update, name) for name in NUMBERS]
    arrays = name_leaves("change", update.change, compression)
    arrays["numbers"] = np.asarray(numbers, np.float64)
    arrays.update({f"hyper.{name}": np.asarray(v, np.float64) for name, v in update.hyper_gradient.items()})
    # The order and the header are those that safetensors itself would write.
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header = _make_header(tuple((name, array.dtype.name, array.shape) for name, array in ordered))
    flat = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for _, array in ordered)
    return [header, *(array.data for array in flat)]


@functools.lru_cache(maxsize=64)
def _make_header(arrays: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    """What safetensors begin with: names, kinds, shapes and places of the arrays that follow."""
    entries, end = {}, 0
    for name, kind, shape in arrays:
        begin, end = end, end + np.dtype(kind).itemsize * math.prod(shape)
        entries[name] = {"dtype": FLOATS[kind], "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def decode_update(site: int, version: int, payload: bytes, like: Family) -> Update:
    """The inverse, for a family of the shapes of `like`."""
    try:
        arrays = _read_arrays(payload, largest(like))
        change = read_density("change", arrays, like)
        numbers = dict(zip(NUMBERS, _read_numbers(arrays), strict=True))
        # In one order, whatever the reader's: sums over them are the same to the last bit then.
        names = sorted(name for name in arrays if name.startswith("hyper."))
        hyper = {name[6:]: float(arrays[name].item()) for name in names}
        steps, outcome = (_read_whole(name, numbers.pop(name)) for name in ("steps", "outcome"))
        Outcome(outcome)
    except (SafetensorError, KeyError, ValueError, OverflowError, TypeError) as error:
        raise MalformedUpdate(site, f"cannot be read: {clean(error)}") from error
    return Update(site, version, change, steps=steps, outcome=outcome, hyper_gradient=hyper, **numbers)


def encode_task(task: Task, compression: Compression = "none") -> bytes:
    """A task as bytes, all of it that a site needs."""
    arrays: dict[str, np.ndarray] = {}
    for name, density in task.sent.items():
        arrays.update(name_leaves(name, density, compression))
    about = {
        "site": task.site,
        "version": task.version,
        "message_only": task.message_only,
        "hyper": {name: float(value) for name, value in task.hyper.items()},
    }
    return pack("task", about, arrays)


def decode_task(payload: bytes, like: Family) -> Task:
    """The inverse; what was not sent is flat."""
    about, arrays = unpack("task", payload, largest(like, densities=4))
    flat = jax.tree.map(np.zeros_like, like)
    message_only = about.get("message_only") is True
    try:
        return Task(
            site=_read_whole("site", about["site"]),
            version=_read_whole("version", about["version"]),
            cavity=flat if message_only else _read_finite("cavity", arrays, like),
            factor=flat if message_only else _read_finite("factor", arrays, like),
            hyper=_read_hyper(about),
            start=_read_finite("start", arrays, like) if message_only or "start.0" in arrays else None,
            anchor=_read_finite("anchor", arrays, like) if "anchor.0" in arrays else None,
            message_only=message_only,
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise MalformedMessage(f"task: cannot be read: {clean(error)}") from error


def read_density(name: str, arrays: Mapping[str, np.ndarray], like: Family) -> Family:
    """A density of the shapes of `like`."""
    density: Family = jax.tree.unflatten(jax.tree.structure(like), _read_leaves(name, arrays, like))
    return density


def _read_finite(name: str, arrays: Mapping[str, np.ndarray], like: Family) -> Family:
    """A density of which something can be computed."""
    density = read_density(name, arrays, like)
    if not density.is_finite():
        raise ValueError(f"{name}: is not finite")
    return density


def _read_hyper(about: Mapping[str, Any]) -> Hyper:
    fields.entries(fields.number())(about["hyper"], "hyper")
    return {name: float(value) for name, value in about["hyper"].items()}


def _read_whole(name: str, value: Any) -> int:
    """A whole number, which travels as one or as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise ValueError(f"{name}: expected a whole number of at least 0, got {value!r}")
    return int(value)


def pack(kind: str, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """A message: what it is, plain values, and arrays."""
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps({"kind": kind, **about}, sort_keys=True, allow_nan=False)
    return safetensors.save(contiguous, {"about": text, "sha256": content_digest(contiguous, text)})


def unpack(kind: str, payload: bytes, most: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The inverse, for a message of at most so many bytes."""
    try:
        arrays = _read_arrays(payload, most)
        header = parse_json(payload[8 : 8 + int.from_bytes(payload[:8], "little")])["__metadata__"]
        text, digest = str(header["about"]), header["sha256"]
        about = parse_json(text)
        wrong = about.pop("kind") != kind or digest != content_digest(arrays, text)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise MalformedMessage(f"{kind}: cannot be read: {clean(error)}") from error
    if wrong:
        raise MalformedMessage(f"{kind}: is another kind of message, or not what was sent")
    return about, arrays


def largest(like: Family, densities: int = 1) -> int:
    """How many bytes a message with so many densities may have."""
    return densities * like.nbytes + 8 + HEADER


def _read_arrays(payload: bytes, most: int) -> dict[str, np.ndarray]:
    """What a payload holds; its size is looked at before its contents."""
    if len(payload) > most:
        raise ValueError(f"{len(payload)} bytes where at most {most} are expected")
    if len(payload) < 8 or int.from_bytes(payload[:8], "little") > HEADER:
        raise ValueError("its header is too long, or missing")
    return safetensors.load(bytes(payload))


def name_leaves(name: str, density: Family, compression: Compression = "none") -> dict[str, np.ndarray]:
    arrays = {f"{name}.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(density))}
    if compression == "none":
        return arrays
    # Each array's largest number is near float16's own, so that what is lost at the other end is a billionth of it.
    for key, array in list(arrays.items()):
        scale = max(float(np.max(np.abs(array), initial=0.0)), TINY) / LARGEST
        arrays[key] = (array.astype(np.float64) / scale).astype(np.float16)
        arrays[f"{key}.scale"] = np.array(scale)
    return arrays


def _read_leaves(name: str, arrays: Mapping[str, np.ndarray], like: Family) -> list[np.ndarray]:
    leaves = []
    for i, expected in enumerate(jax.tree.leaves(like)):
        array = arrays[f"{name}.{i}"]
        if f"{name}.{i}.scale" in arrays and array.dtype == np.float16:
            array = (array.astype(np.float64) * float(arrays[f"{name}.{i}.scale"].item())).astype(expected.dtype)
        # Numbers without dimensions come back with one.
        if array.dtype != expected.dtype or array.size != expected.size:
            wanted = f"{expected.dtype} of shape {expected.shape}"
            raise ValueError(f"{name}.{i}: expected {wanted}, got {array.dtype} of shape {array.shape}")
        leaves.append(array.reshape(np.shape(expected)))
    return leaves


def _read_numbers(arrays: Mapping[str, np.ndarray]) -> Sequence[float]:
    numbers = arrays["numbers"]
    if numbers.dtype != np.float64 or numbers.shape != (len(NUMBERS),):
        raise ValueError(f"numbers: expected {len(NUMBERS)}, got {numbers.dtype} of shape {numbers.shape}")
    return [float(number) for number in numbers]
