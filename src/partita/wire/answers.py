"""Answers of sites, checked when they come in: against the question, and against what the same site answered before.

Whoever asks relies on it: what comes from here has the declared fields, the shapes that the question implies, and
numbers of rows that agree with each other. A site that is broken, or lies, is named; it does not crash the asker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.designs.calibration import Draws, sum_comparisons
from partita.designs.columns import LARGEST_LEVELS
from partita.designs.design import Reading
from partita.errors import EngineError, reason
from partita.models.layout import unpack_layout
from partita.wire import questions as q
from partita.wire.codec import check_fields
from partita.wire.naming import SiteNames
from partita.wire.questions import ANSWERS, Answer, Question
from partita.wire.tallies import check_outline, check_tabulation

ADVICE = "compare Partita versions on both sides, ask whoever keeps that site, or go on without it"
# What sums of one site may contradict each other by.
ROUNDING = 1e-9
# Sums of squares at one site: those of all sites, around a common mean, are finite, too.
LARGEST_SQUARES = 1e300


@dataclass
class AnswerChecks:
    """Checks what sites answer, and remembers how many rows each has told of.

    One value is for one connection, and what it remembers for one formula; `_counts` has numbers of rows by site and by
    what was counted.
    """

    names: SiteNames
    _counts: dict[tuple[int, str], int] = field(default_factory=dict)

    def check(self, asked: Mapping[int, Question], answers: Any) -> dict[int, Any]:
        """The answers, if every one of them belongs to its question; those who are away may be missing."""
        for error in self._find_unusable(asked, answers).values():
            raise error
        return dict(answers)

    def split(self, asked: Mapping[int, Question], answers: Any) -> tuple[dict[int, Any], dict[int, EngineError]]:
        """The answers that belong to their questions; and for every site whose answer does not, why."""
        unusable = self._find_unusable(asked, answers)
        return {site: answer for site, answer in answers.items() if site not in unusable}, unusable

    def _find_unusable(self, asked: Mapping[int, Question], answers: Any) -> dict[int, EngineError]:
        if not isinstance(answers, Mapping):
            raise EngineError(f"the engine gave {type(answers).__name__} where answers by site were expected")
        strangers = [site for site in answers if site not in asked]
        if strangers:
            raise EngineError(f"the engine gave an answer of {strangers[0]!r}, who was not asked")
        unusable = {}
        for site, answer in answers.items():
            try:
                self._check_one(site, asked[site], answer)
            except Exception as error:
                # Fields may be anything, with errors of any kind.
                words = str(error) if isinstance(error, ValueError) else reason(error)
                unusable[site] = EngineError(
                    f"{self.names.of(site)}: its answer to the question {asked[site].name!r} cannot be used: {words}; "
                    f"{ADVICE}"
                )
                unusable[site].__cause__ = error
        return unusable

    def _check_one(self, site: int, question: Question, answer: Answer) -> None:
        kind = ANSWERS[type(question)]
        if not isinstance(answer, kind):
            raise ValueError(f"expected {kind.__name__}, got {type(answer).__name__}")
        check_fields(answer)
        match question, answer:
            case q.About(), q.AboutAnswer():
                _need(answer.rows >= 0 and float(answer.rows).is_integer(), f"rows: {answer.rows} is no number of rows")
            case q.ColumnNames(), q.ColumnNamesAnswer():
                _need(answer.names is None or _is_unique(answer.names), "names: a column is there twice")
            case q.Layout(), q.LayoutAnswer():
                _check_layout(answer)
            case q.Groups(), q.GroupsAnswer():
                _need(_is_unique(answer.codes.tolist()), "codes: a group is there twice")
                _need((answer.largest > 0) == (len(answer.codes) > 0), f"largest: {answer.largest} rows cannot be")
            case q.Levels(), q.LevelsAnswer():
                _check_levels(question, answer)
                # Another formula begins, which may read other rows.
                self._counts = {key: count for key, count in self._counts.items() if key[0] != site}
                self._agree(site, "rows of the table", answer.rows)
            case q.Rows(), q.RowsAnswer():
                self._check_rows(site, question.reading, answer)
            case q.Moments(), q.MomentsAnswer():
                self._check_moments(site, question.reading, answer)
            case q.Products(), q.ProductsAnswer():
                _check_products(question, answer)
            case q.Predict(), q.PredictAnswer():
                self._check_sums(site, question, answer)
            case q.Outline(), q.OutlineAnswer():
                check_outline(question, answer)
                self._counts = {key: count for key, count in self._counts.items() if key[0] != site}
                self._agree(site, "rows of the table", answer.rows)
            case q.Tabulate(), q.TabulateAnswer():
                check_tabulation(question, answer)
                self._agree(site, "rows of the table", answer.rows)

    def _agree(self, site: int, what: str, count: int) -> None:
        """Check that a site tells the same number whenever it is asked."""
        known = self._counts.setdefault((site, what), count)
        _need(known == count, f"{what}: {count} now, and {known} before")

    def _check_rows(self, site: int, reading: Reading, answer: q.RowsAnswer) -> None:
        design = reading.design
        _need(answer.rows > 0, "rows: none is complete")
        _need(len(answer.two_valued) == len(design.names), f"two_valued: expected {len(design.names)} columns")
        _need((answer.groups is None) == (design.group is None), f"groups: {answer.groups} cannot be")
        if answer.groups is not None:
            fits = 0 < answer.groups <= answer.rows <= answer.groups * answer.largest_group
            _need(fits, f"groups: {answer.rows} rows cannot be in {answer.groups} groups of {answer.largest_group}")
        _need(answer.largest_group <= answer.rows, f"largest_group: {answer.largest_group} of {answer.rows} rows")
        self._agree(site, "rows that miss something", answer.missing)
        self._agree(site, _fitted(reading), answer.rows)
        if reading.held_out == 0:
            self._agree(site, "rows of the table", answer.rows + answer.missing)
        else:
            whole = self._counts.get((site, _fitted(None)), answer.rows)
            _need(answer.rows <= whole, f"rows: {answer.rows} are fitted of {whole}")

    def _check_moments(self, site: int, reading: Reading | None, answer: q.MomentsAnswer) -> None:
        _need(answer.count > 0, "count: no row counts")
        _need(answer.mean.shape == answer.total.shape, "mean and total are not of the same columns")
        _need(answer.target_mean.shape == answer.target_total.shape, "target_mean and target_total are not alike")
        if reading is None:
            return
        columns = len(reading.design.names)
        _need(len(answer.mean) == columns, f"mean: expected {columns} columns, got {len(answer.mean)}")
        _need(len(answer.target_mean) == 1, f"target_mean: expected one column, got {len(answer.target_mean)}")
        _check_spread("", answer.count, answer.mean, answer.total, answer.size)
        _check_spread("target_", answer.count, answer.target_mean, answer.target_total, answer.target_size)
        _need(answer.count.is_integer(), f"count: {answer.count} is no number of rows")
        self._agree(site, _fitted(None), int(answer.count))

    def _check_sums(self, site: int, question: q.Predict, answer: q.PredictAnswer) -> None:
        reading, design = question.reading, question.reading.design
        if reading.held_out == 0 and (known := self._counts.get((site, _fitted(None)))) is not None:
            _need(answer.rows == known, f"rows: {answer.rows} now, and {known} before")
        nothing = np.empty((0, len(design.names))), np.empty(0)
        draws = Draws(question.coefficients, question.others)
        wanted = sum_comparisons(design, draws, *nothing, np.random.default_rng(0))
        shapes = {name: array.shape for name, array in wanted.items()}
        found = {name: array.shape for name, array in answer.sums.items()}
        _need(shapes == found, f"sums: expected {_show(shapes)}, got {_show(found)}")
        for name, array in answer.sums.items():
            _need(bool(np.all(array >= 0)), f"sums: {name} is negative")
            if name.startswith("rows "):
                _need(float(array.sum()) == answer.rows, f"sums: {name} are not {answer.rows} rows")


def _need(holds: bool, words: str) -> None:
    """Raise an error with these words unless something holds."""
    if not holds:
        raise ValueError(words)


def _is_unique(items: Sequence[Any]) -> bool:
    return len(set(items)) == len(items)


def _fitted(reading: Reading | None) -> str:
    """What numbers of rows are called that are fitted of a table: all complete ones, if none are held out."""
    return "complete rows" if reading is None or reading.held_out == 0 else f"rows without {reading.held_out:g} of them"


def _show(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) or "nothing"


def _check_layout(answer: q.LayoutAnswer) -> None:
    """Check that a layout can be read, and is of as many numbers as there are moments."""
    layout = unpack_layout(answer.layout)
    _need(len(layout.latents) > 0, "layout: a program without variables")
    shapes = answer.location.shape, answer.scale.shape
    _need(shapes == ((layout.size,),) * 2, f"location and scale: expected {layout.size} numbers, got {shapes}")
    _need(bool(np.all(answer.scale > 0)), "scale: has to be positive")


def _check_levels(question: q.Levels, answer: q.LevelsAnswer) -> None:
    """Check that columns are those that were asked for, each with levels where levels were asked for."""
    names = tuple(column.name for column in answer.columns)
    _need(set(names) == set(question.names) and _is_unique(names), f"columns: expected {question.names}, got {names}")
    for column in answer.columns:
        _need(column.name not in question.categorical or column.levels is not None, f"{column.name}: has no levels")
        _need(column.levels is None or _is_unique(column.levels), f"{column.name}: has a level twice")
        few = column.levels is None or len(column.levels) <= LARGEST_LEVELS
        _need(few, f"{column.name}: has {len(column.levels or ()):,} levels, at most {LARGEST_LEVELS:,} are told apart")


def _check_spread(prefix: str, count: float, mean: np.ndarray, total: np.ndarray, size: np.ndarray) -> None:
    """Check that means are at most the largest value, and squares at most its square for each row, but for rounding."""
    _need(size.shape == mean.shape, f"{prefix}size: expected {len(mean)} columns, got {len(size)}")
    _need(bool(np.all(size >= 0) and np.all(total >= 0)), f"{prefix}size or {prefix}total: is negative")
    most = size * (1 + ROUNDING)
    with np.errstate(over="ignore"):
        squares = count * most**2
        fits = np.all(np.abs(mean) <= most) and np.all(total <= squares)
    _need(bool(np.all(squares <= LARGEST_SQUARES)), f"{prefix}size: numbers are so large that squares have no room")
    _need(bool(fits), f"{prefix}mean, {prefix}total and {prefix}size: contradict each other")


def _check_products(question: q.Products, answer: q.ProductsAnswer) -> None:
    products, columns = answer.products, len(question.used)
    _need(products.shape == (columns, columns), f"products: expected {columns} × {columns}, got {products.shape}")
    _need(bool(np.all(np.diag(products) >= 0)), "products: squares are negative")
    _need(
        np.allclose(products, products.T, rtol=ROUNDING, atol=ROUNDING * max(1.0, np.abs(products).max(initial=0))),
        "products: are not the same both ways",
    )
