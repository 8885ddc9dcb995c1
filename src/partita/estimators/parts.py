"""Who contributed to an estimator: sites that are groups of rows, or batches of a stream; and their weights."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from partita.designs.collinearity import Idle, find_idle
from partita.engines import InProcess
from partita.errors import InputError
from partita.foundation.moments import Moments, join_moments
from partita.wire.engine import ask_all
from partita.wire.naming import SiteNames
from partita.wire.questions import Moments as AskMoments
from partita.wire.questions import MomentsAnswer, Products, Question


class Part(NamedTuple):
    """A site, or a batch of a stream."""

    name: Any
    rows: int
    # Of its columns, the target last; they count the weights of rows.
    moments: Moments

    @property
    def weight(self) -> float:
        return self.moments.count


def ask_parts(names: Iterable[Any], data: Sequence[tuple[np.ndarray, ...]]) -> list[Part]:
    """What sites tell of their columns and targets, each with a weight for every row."""
    answers = zip(names, data, ask_sites(data, AskMoments()), strict=True)
    return [Part(name, len(own[0]), _with_target(answer)) for name, own, answer in answers]


def _with_target(answer: MomentsAnswer) -> Moments:
    mean = np.concatenate([answer.mean, answer.target_mean])
    return Moments(answer.count, mean, np.concatenate([answer.total, answer.target_total]))


def ask_idle_columns(shards: Sequence[Any]) -> Idle:
    """Columns that do not vary or follow from others, from what sites tell of means and products of columns."""
    each = [Moments(one.count, one.mean, one.total) for one in ask_sites(shards, AskMoments())]

    def ask_products(used: np.ndarray, centre: np.ndarray, unit: np.ndarray) -> np.ndarray:
        answers = ask_sites(shards, Products(used, centre, unit))
        products: np.ndarray = np.sum([answer.products for answer in answers], axis=0)
        return products

    return find_idle(join_moments(each), ask_products)


def ask_sites(shards: Sequence[Any], question: Question) -> list[Any]:
    """What sites in this process answer."""
    engine = InProcess()
    engine.connect(shards)
    return ask_all(engine, question, len(shards), SiteNames())


def check_weights(sample_weight: Any, X: np.ndarray) -> np.ndarray:
    """A weight for every row, of which one at least is not zero."""
    weights: np.ndarray = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise InputError("sample_weight: all are zero")
    return weights


def group_rows(groups: Any, weights: np.ndarray) -> dict[Any, np.ndarray]:
    """Which rows each site has, in the order of the sites' names; rows without weight are left out."""
    rows = len(weights)
    entries = np.zeros(rows, int) if groups is None else np.asarray(groups)
    if entries.shape != (rows,):
        raise InputError(f"groups: expected one entry per row, {rows}, got shape {entries.shape}")
    try:
        found, sites = np.unique(entries, return_inverse=True)
        missing = bool(np.any(found != found))
    except TypeError:  # they cannot be sorted
        missing = True
    if missing:
        raise InputError("groups: expected entries of one kind, and none missing")
    names = found.tolist() if found.dtype.kind in "OUSbiuf" else list(found)
    used = {name: np.flatnonzero((sites == number) & (weights > 0)) for number, name in enumerate(names)}
    return {name: part for name, part in used.items() if len(part)}
