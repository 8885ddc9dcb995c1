"""A site's data under the recipe that is approved: read where they are, and checked by the site's policy."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from partita.designs.design import Reading
from partita.errors import EngineError, InputError, MalformedMessage
from partita.families import Family
from partita.models import AbstractModel, NumPyroModel, prior_of
from partita.models.base import count_numbers, count_parameters, prior_shapes
from partita.shards import agree_on_sizes
from partita.site.answering import answer_questions
from partita.site.holder import Holder
from partita.site.policy import Policy
from partita.site.reading import SiteRows, read_rows
from partita.site.reading_checks import check_finite, check_groups, check_kinds, check_products, check_units
from partita.site.settings import SiteSettings
from partita.site.sources import read_source
from partita.site.tables import describe_columns, number_labels
from partita.wire.agreed import Agreed
from partita.wire.base_recipe import BaseRecipe
from partita.wire.naming import SiteNames
from partita.wire.questions import About, AboutAnswer, Answer, Outline, Products, Question, Tabulate
from partita.wire.tasks import Task, Update

# Rows that shards may be padded to beyond their own: so many, or so many times as many.
FEW_ROWS, TIMES = 4096, 64
# The most numbers of a program's groups, padded.
MOST_PADDED = 100_000_000


class Held:
    """The data of one site under one recipe, in one run: what is asked of them, and what their policy says to it.

    Args:
        recipe: that is approved.
        settings: the site's own.
        number: the site's in the run.
        secret: what digests of data are made with, so that they tell nothing to whoever does not know it.
    """

    def __init__(self, recipe: BaseRecipe, settings: SiteSettings, number: int, secret: bytes):
        check_recipe(recipe, settings)
        self._recipe, self._settings, self._number = recipe, settings, number
        self._names = SiteNames((settings.name,), number)
        if recipe.settled is not None:
            check_size(recipe.settled, settings.policy)
        self._holder = Holder({number: self._read}, self._names, recipe.begin(None), secret)
        self._rows = 0
        self._known: tuple[Any, ...] = ()
        # What densities are like; None, before there is a job.
        self.like: Family | None = None

    @property
    def _policy(self) -> Policy:
        return self._settings.policy

    def _read(self) -> Any:
        """The data, if the policy allows that anything is said of them."""
        source = read_source(self._recipe, self._settings, self._number)
        self._policy.check_rows(source.rows)
        self._policy.check_cells(source.cells)
        self._rows = source.rows
        return source.raw

    def open(self, payload: bytes | None, digest: str | None, capacity: int | None) -> None:
        """Get ready for tasks, if it is known by now what the model is.

        Args:
            payload: what sites have agreed on, as the server says it.
            digest: of what the server computes.
            capacity: to how many rows the server wants shards to be padded.
        """
        if payload is None and self._recipe.settled is None:
            return
        if digest is None:
            raise MalformedMessage("digest: is missing: the server does not say what it computes")
        if (payload, digest) != self._known:
            self._known, self.like = (), None
            with self._names.told():
                self._load(None if payload is None else Agreed.decode(payload), digest)
            self._known = payload, digest
        sizes = agree_on_sizes({self._number: self._shard_rows})
        wanted = max(capacity or 0, sizes[self._number])
        is_too_much = wanted > max(FEW_ROWS, TIMES * self._shard_rows)
        self._holder.prepare(sizes if is_too_much else {self._number: wanted})

    def _load(self, agreed: Agreed | None, digest: str) -> None:
        model, reading = self._settle(agreed), None if agreed is None else agreed.reading
        check_size(model, self._policy)
        _check_digest(self._recipe, model, digest)
        if reading is not None:
            self._check_reading(reading)
            self._check_units(reading)
            check_groups(reading, isinstance(model, NumPyroModel))
        elif not self._rows:
            self._holder.raw(self._number)
        like = prior_of(model, model.hyper)
        rows = len(self._holder.parts(self._number, reading)[0].y) if reading is not None else self._rows
        self._policy.check_parameters_per_row(count_parameters(model, like), rows)
        self._check_padding(agreed)
        job = replace(self._recipe.job_of(model, reading), names=self._names)
        self._shard_rows = self._holder.load(job, {})[self._number]
        if agreed is None:
            # Rows without anything, such as documents without words, do not count.
            self._policy.check_rows(self._shard_rows)
            self._policy.check_parameters_per_row(count_parameters(model, like), self._shard_rows)
        self.like = like

    def _check_units(self, reading: Reading) -> None:
        design, rows = reading.design, self._holder.rows(self._number, reading)
        check_units(design.centre, design.unit, rows.X)
        check_units(np.array([design.target_centre]), np.array([design.target_unit]), rows.y[:, None])

    def _settle(self, agreed: Agreed | None) -> AbstractModel:
        model = self._recipe.begin(agreed)
        if model is None:
            raise EngineError("sites have not agreed yet on how tables are read")
        if agreed is None:
            return model
        if model.needs_rows:
            model = model.with_layout(model.lay_out(self._number, self._holder.raw(self._number)))
        return agreed.settle(model)

    def _check_padding(self, agreed: Agreed | None) -> None:
        """Check that groups are not padded beyond all memory: how large the largest is, others say."""
        if agreed is None or agreed.group_rows is None:
            return
        reading = agreed.reading
        rows = None if reading is None else self._holder.parts(self._number, reading)[0]
        groups, columns = (self._rows, 1) if rows is None else (rows.groups or 1, rows.X.shape[1] + 1)
        if groups * agreed.group_rows * columns > MOST_PADDED:
            raise InputError(f"groups would be padded to {agreed.group_rows:,} rows each, which is too much here")

    def answer(self, question: Question) -> Answer:
        """The answer to a question, if neither recipe nor policy forbids it."""
        self._recipe.check_question(question)
        if isinstance(question, Outline | Tabulate):
            self._policy.check_fewest(question.fewest)
        reading = getattr(question, "reading", None)
        with self._names.told():
            if reading is not None:
                return self._answer_of_reading(question, reading)
            if isinstance(question, About) and self.like is None:
                self._holder.raw(self._number)
                return AboutAnswer(float(self._rows))
            return answer_questions(self._holder, {self._number: question})[self._number]

    def _answer_of_reading(self, question: Question, reading: Reading) -> Answer:
        self._check_reading(reading)
        if isinstance(question, Products):
            self._policy.check_parameters(len(question.used) ** 2)
            check_products(question, self._holder.rows(self._number, reading).X)
        answer = answer_questions(self._holder, {self._number: question})[self._number]
        check_finite(answer)
        return answer

    def refine(self, task: Task) -> Update:
        """The answer to a task."""
        (update,) = self._holder.worker.refine([task])
        return update

    def _check_reading(self, reading: Reading) -> None:
        """Check what a server says of how the table is read, and the policy's limits for the rows that are."""
        policy, design = self._policy, reading.design
        coefficients = len(design.names) + design.intercept
        policy.check_parameters(coefficients + coefficients**2)
        frame = self._holder.table(self._number, reading.weights)
        parsed = design.parsed
        check_kinds(design.columns, describe_columns("the table", frame, parsed.names, parsed.categorical))
        fitted, held_out = self._holder.parts(self._number, reading)
        policy.check_rows(len(fitted.y))
        policy.check_held_out(len(held_out.y))
        rows = self._distinct_rows(reading)
        policy.check_parameters_per_row(coefficients, len(rows.y))
        policy.check_terms(np.column_stack([rows.X, rows.y]))
        policy.check_levels(self._count_levels(reading))
        policy.check_groups(fitted.groups)

    def _distinct_rows(self, reading: Reading) -> SiteRows:
        """Complete rows, each once, if it stands for any observation: what a policy counts, whatever weights say."""
        if reading.weights is None:
            return self._holder.parts(self._number, reading)[0]
        frame = self._complete_frame(reading)
        self._policy.check_rows(len(frame))
        weights = frame[reading.weights].to_numpy(float)
        self._policy.check_rows(math.floor(weights.sum() ** 2 / np.sum(weights**2)))
        return read_rows("the table", frame, reading.design)

    def _complete_frame(self, reading: Reading) -> Any:
        """The table's complete rows, each once, without those that stand for no observation."""
        design, frame = reading.design, self._holder.raw(self._number)
        needed = [*design.columns, *([] if design.group is None else [design.group])]
        counted = frame if reading.weights is None else frame[frame[reading.weights] > 0]
        return counted.dropna(subset=needed)

    def _count_levels(self, reading: Reading) -> list[np.ndarray]:
        """How many complete rows have each level, column by column: no term has the level that others stand beside."""
        complete = self._complete_frame(reading)
        names = [name for name, column in reading.design.columns.items() if column.levels is not None]
        return [np.unique(number_labels(complete[name]), return_counts=True)[1] for name in names]


def check_recipe(recipe: BaseRecipe, settings: SiteSettings) -> None:
    """Check a recipe against a site's policy, as far as that is possible without data or code of the site's."""
    settings.policy.check_columns({name: settings.columns.get(name, name) for name in recipe.reads})
    settings.policy.check_model(recipe.name)


def check_size(model: AbstractModel, policy: Policy) -> None:
    """Check a model's size by shapes alone: one that is too large must not be made to find that out."""
    policy.check_parameters(count_numbers(prior_shapes(model, model.hyper)))


def _check_digest(recipe: BaseRecipe, model: AbstractModel, digest: str) -> None:
    if recipe.digest_of(model) != digest:
        raise EngineError(
            "this site builds another model from the server's settings: "
            "compare the versions of Python and Partita on both sides"
        )
