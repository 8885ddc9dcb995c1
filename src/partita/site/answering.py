"""What is computed for each question, where the data are: in one process, on a cluster, and behind a site's gate."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from partita.designs.calibration import Draws, begin_random, sum_comparisons
from partita.designs.collinearity import multiply_columns
from partita.errors import EngineError
from partita.foundation import moments
from partita.foundation.frames import names_of
from partita.models import AbstractModel
from partita.models.layout import pack_layout
from partita.site.holder import Holder
from partita.site.outlines import check_table, choose_columns, outline_column
from partita.site.reading import count_alike_groups
from partita.site.tables import describe_columns
from partita.site.tallies import tabulate
from partita.site.worker import digest_shard
from partita.wire import questions as q
from partita.wire.questions import Answer, Question

Answers = Callable[[Holder, int, Any], Answer]


def answer_questions(holder: Holder, questions: Mapping[int, Question]) -> dict[int, Answer]:
    """What sites answer; to questions of one kind, one for each site that is asked."""
    if not questions:
        return {}
    kind = type(next(iter(questions.values())))
    if kind is q.Evaluate:
        return _evaluate(holder, questions)
    answer = _ANSWERS[kind]
    return {site: answer(holder, site, question) for site, question in questions.items()}


def _evaluate(holder: Holder, questions: Mapping[int, Any]) -> dict[int, Answer]:
    """All sites at once: what is asked of the same posterior is one compiled call."""
    first = next(iter(questions.values()))
    factors = {site: question.factor for site, question in questions.items()}
    values = holder.worker.evaluate(first.posterior, first.hyper, None if first.factor is None else factors)
    return {site: q.EvaluateAnswer(values[site]) for site in questions}


def _about(holder: Holder, site: int, question: q.About) -> Answer:
    return q.AboutAnswer(float(holder.worker.shards[site].rows))


def _digest(holder: Holder, site: int, question: q.Digest) -> Answer:
    return q.DigestAnswer(digest_shard(holder.worker.shards[site]))


def _column_names(holder: Holder, site: int, question: q.ColumnNames) -> Answer:
    shard = holder.raw(site)
    is_rows = isinstance(shard, tuple | list) and len(shard) > 0
    return q.ColumnNamesAnswer(names_of(shard[0]) if is_rows else None)


def _lay_out(holder: Holder, site: int, question: q.Layout) -> Answer:
    layout, location, scale, is_gaussian = _known_model(holder).lay_out(site, holder.raw(site))
    return q.LayoutAnswer(pack_layout(layout), location, scale, is_gaussian)


def _find_groups(holder: Holder, site: int, question: q.Groups) -> Answer:
    return q.GroupsAnswer(*_known_model(holder).find_groups(site, holder.raw(site)))


def _known_model(holder: Holder) -> AbstractModel:
    if holder.model is None:
        raise EngineError("sites know no model yet: connect the engine with one before asking what it is made of")
    return holder.model


def _describe_levels(holder: Holder, site: int, question: q.Levels) -> Answer:
    frame = holder.table(site, question.weights)
    columns = describe_columns(holder.names.of(site), frame, question.names, question.categorical)
    return q.LevelsAnswer(tuple(columns.values()), len(frame), count_alike_groups(frame, question.group))


def _count_rows(holder: Holder, site: int, question: q.Rows) -> Answer:
    fitted, _ = holder.parts(site, question.reading)
    two_valued = np.all((fitted.X == 0) | (fitted.X == 1), axis=0)
    return q.RowsAnswer(
        rows=len(fitted.y),
        groups=fitted.groups,
        missing=fitted.missing,
        largest_group=fitted.largest_group,
        digest=fitted.digest(holder.names.name(site), holder.secret),
        two_valued=tuple(two_valued.tolist()),
    )


def _sum_moments(holder: Holder, site: int, question: q.Moments) -> Answer:
    X, y, weights = _columns(holder, site, question.reading)
    if question.reading is None:
        together = moments.Moments.of(np.column_stack([X, y]), weights)
        parts = [(together.mean[part], together.total[part]) for part in (slice(None, -1), slice(-1, None))]
    else:
        parts = [(own.mean, own.total) for own in (moments.Moments.of(part, weights) for part in (X, y))]
    (mean, total), (target_mean, target_total) = parts
    size, target_size = (moments.round_up_sizes(np.abs(part).max(axis=0)) for part in (X, y))
    return q.MomentsAnswer(float(weights.sum()), mean, total, size, target_mean, target_total, target_size)


def _multiply(holder: Holder, site: int, question: q.Products) -> Answer:
    X, _, _ = _columns(holder, site, question.reading)
    return q.ProductsAnswer(multiply_columns(X, question.used, question.centre, question.unit))


def _columns(holder: Holder, site: int, reading: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets in one column, and weights: of a table, or of a shard as it is."""
    if reading is not None:
        rows = holder.rows(site, reading)
        return rows.X, rows.y[:, None], np.ones(len(rows.y))
    X, y, *rest = holder.raw(site)
    weights = np.asarray(rest[0]) if rest else np.ones(len(X))
    return np.asarray(X), np.asarray(y).reshape(len(X), -1), weights


def _compare(holder: Holder, site: int, question: q.Predict) -> Answer:
    fitted, held_out = holder.parts(site, question.reading)
    rows = held_out if question.reading.held_out > 0 else fitted
    _, rng = begin_random(question.seed, holder.names.name(site))
    draws = Draws(question.coefficients, question.others)
    return q.PredictAnswer(len(rows.y), sum_comparisons(question.reading.design, draws, rows.X, rows.y, rng))


def _outline(holder: Holder, site: int, question: q.Outline) -> Answer:
    place, frame = holder.names.of(site), holder.table(site)
    check_table(place, frame, question.fewest)
    columns = [
        outline_column(name, frame[name], name in question.categorical, question.fewest)
        for name in choose_columns(place, frame, question.names)
    ]
    return q.OutlineAnswer(tuple(columns), len(frame))


def _tabulate(holder: Holder, site: int, question: q.Tabulate) -> Answer:
    place, frame = holder.names.of(site), holder.table(site)
    check_table(place, frame, question.fewest)
    choose_columns(place, frame, [cut.name for cut in question.columns])
    return tabulate(frame, question)


_ANSWERS: dict[type[Question], Answers] = {
    q.About: _about,
    q.ColumnNames: _column_names,
    q.Layout: _lay_out,
    q.Groups: _find_groups,
    q.Digest: _digest,
    q.Levels: _describe_levels,
    q.Rows: _count_rows,
    q.Moments: _sum_moments,
    q.Products: _multiply,
    q.Predict: _compare,
    q.Outline: _outline,
    q.Tabulate: _tabulate,
}
