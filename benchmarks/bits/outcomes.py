"""What a case leads to, as plain values that can be stored, and how two of them differ."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

import jax
import numpy as np

# Columns of a history that hold wall-clock seconds, and one that holds words for people, which may be rephrased.
TIMES, WORDS = ("seconds",), ("problem",)


@dataclass
class Outcome:
    """Arrays and numbers by name, one row per fold, and words for people, which no fingerprint covers."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def add(self, name: str, value: Any) -> "Outcome":
        """Add a tree of arrays, or a number."""
        leaves = jax.tree.leaves(value)
        if len(leaves) == 1 and np.ndim(leaves[0]) == 0:
            self.numbers[name] = repr(np.asarray(leaves[0]).item())
        else:
            self.arrays |= {f"{name}.{place}": np.array(leaf) for place, leaf in enumerate(leaves)}
        return self

    def add_rows(self, rows: Sequence[Mapping[str, Any]]) -> "Outcome":
        """Add rows of a history, without their seconds."""
        for row in rows:
            self.words += [str(row[name]) for name in WORDS if row.get(name) is not None]
            kept = {name: value for name, value in row.items() if name not in (*TIMES, *WORDS)}
            self.rows.append(json.loads(json.dumps(kept, default=_as_plain)))
        return self

    def packed(self) -> dict[str, Any]:
        """Everything as JSON takes it, with the fingerprint of all but the words."""
        arrays = {name: _pack(array) for name, array in self.arrays.items()}
        content = asdict(self) | {"arrays": arrays}
        covered = {name: part for name, part in content.items() if name != "words"}
        digest = hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()
        return {"fingerprint": digest, **content}


def of_result(result: Any, digests: Sequence[str] = ()) -> Outcome:
    """The outcome of a run: posterior, factors, evidence, hyperparameters and history."""
    outcome = Outcome().add("posterior", result.posterior).add("factors", list(result.factors))
    outcome.add("log_evidence", result.log_evidence).add("expected_log_probs", np.array(result.expected_log_probs))
    for name, value in result.hyper.items():
        outcome.add(f"hyper.{name}", value)
    rows = result.history
    if digests:
        rows = [{**row, "posterior": digest} for row, digest in zip(rows, digests, strict=True)]
    return outcome.add_rows(rows)


def digest(tree: Any) -> str:
    """SHA-256 of the leaves of a tree, shortened."""
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        total.update(np.ascontiguousarray(leaf).tobytes())
    return total.hexdigest()[:16]


class Followed:
    """A callback that keeps a digest of the posterior of every fold, so that the first fold that differs is found."""

    def __init__(self) -> None:
        self.digests: list[str] = []

    def __call__(self, event: Any) -> None:
        self.digests.append(digest(event.posterior))


def find(name: str, *modules: str) -> Any:
    """A name of the library that may have moved: from the first of these modules that has it."""
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"{name} is in none of {', '.join(modules)}: say in benchmarks/bits where it is now")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """In what two packed outcomes differ, in words; nothing, where they are the same to the last bit."""
    if old["fingerprint"] == new["fingerprint"]:
        return
    yield from _array_differences(old["arrays"], new["arrays"])
    yield from _number_differences(old["numbers"], new["numbers"])
    yield from _row_differences(old["rows"], new["rows"])


def _array_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """One line for all arrays of a kind: the leaves of the posterior, of the factors, …"""
    gaps: dict[str, list[float]] = {}
    for name in _names(old, new):
        first, second = (None if name not in arrays else _unpack(arrays[name]) for arrays in (old, new))
        if first is None or second is None:
            yield f"{name}: only in the {'new' if first is None else 'old'} tree"
        elif first.shape != second.shape or first.dtype != second.dtype:
            yield f"{name}: {first.dtype}{first.shape} has become {second.dtype}{second.shape}"
        else:
            gaps.setdefault(name.rpartition(".")[0], []).append(_gap(first, second))
    for kind, found in gaps.items():
        if any(found):
            share = f"{np.count_nonzero(found)} of {len(found)} arrays"
            yield f"{kind}: {share} differ, by {max(found):.1e} of their largest entry at most"


def _number_differences(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in _names(old, new):
        if old.get(name) != new.get(name):
            yield f"{name}: {old.get(name)} has become {new.get(name)}"


def _row_differences(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len(old) != len(new):
        yield f"history: {len(old)} rows have become {len(new)}"
    for place, (first, second) in enumerate(zip(old, new, strict=False)):
        # Values that are not numbers compare as they are printed, so that nan equals nan.
        changed = [name for name in _names(first, second) if repr(first.get(name)) != repr(second.get(name))]
        if changed:
            shown = ", ".join(f"{name} {first.get(name)!r} → {second.get(name)!r}" for name in changed[:6])
            yield f"history: first at row {place} (fold {first.get('fold', '-')}): {shown}"
            return


def _names(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys([*old, *new]))


def _gap(first: np.ndarray, second: np.ndarray) -> float:
    """The largest difference, relative to the largest entry; zero only where all bits are the same."""
    if first.tobytes() == second.tobytes():
        return 0.0
    if not np.issubdtype(first.dtype, np.number):
        return 1.0
    with np.errstate(all="ignore"):
        gap = np.nanmax(np.abs(second - first), initial=0.0) / max(np.nanmax(np.abs(first), initial=0.0), 1e-300)
    # What differs in the sign of a zero, or in being a number at all, differs.
    return max(float(gap), 1e-300)


def _pack(array: np.ndarray) -> dict[str, Any]:
    if array.dtype == object or array.dtype.kind in "US":
        return {"dtype": "text", "shape": list(array.shape), "data": [str(value) for value in array.ravel()]}
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _unpack(packed: Mapping[str, Any]) -> np.ndarray:
    if packed["dtype"] == "text":
        return np.array(packed["data"], str).reshape(packed["shape"])
    return np.frombuffer(base64.b64decode(packed["data"]), packed["dtype"]).reshape(packed["shape"])


def _as_plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else np.asarray(value).tolist()


@dataclass(frozen=True)
class Case:
    """A small run with a fixed seed; `quick` ones are in the short set too."""

    name: str
    run: Callable[[], Outcome]
    quick: bool
