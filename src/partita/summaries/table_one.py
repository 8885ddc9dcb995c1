"""Table 1 across sites: what their counts come to, over all rows, for each site, and for each level of one column."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from partita.designs.tallies import Cut
from partita.errors import InputError
from partita.foundation.moments import Moments, join_moments
from partita.summaries.distributions import Distribution, Quantile
from partita.wire.questions import Tabulate, TabulateAnswer

QUARTILES = (0.25, 0.5, 0.75)
# What rows of a column of levels are called that are not told apart, and those that miss it.
OTHERS, MISSING = "other or too few", "missing"


@dataclass(frozen=True)
class Group:
    """Whose rows are looked at: those of all sites, of one, or with one level of the column that breaks them down."""

    kind: Literal["all", "site", "level"]
    name: str = ""

    @property
    def label(self) -> str:
        return {"all": "All", "site": self.name, "level": self.name}[self.kind]


ALL = Group("all")


@dataclass(frozen=True)
class Size:
    """How many rows a group has; `at_least`, if some site does not tell more of them apart."""

    rows: int
    at_least: bool = False


@dataclass(frozen=True)
class Numbers:
    """A column of numbers in one group.

    Args:
        rows: that have the column, about which something is told.
        missing: rows that are known to miss it.
        mean, sd: of the rows; the deviation has one degree of freedom less than rows.
        distribution: what quantiles and histograms come from.
        at_least: whether some site tells nothing of some of the group's rows.
        hides_missing: whether some site counts a few rows that miss the column among the others.
    """

    rows: int
    missing: int
    mean: float
    sd: float
    distribution: Distribution
    at_least: bool = False
    hides_missing: bool = False

    def quantiles(self) -> dict[float, Quantile]:
        """The three quartiles."""
        return {share: self.distribution.quantile(share) for share in QUARTILES}


@dataclass(frozen=True)
class Levels:
    """A column of levels in one group.

    Args:
        rows: in the group, about which something is told.
        counts: rows of each level.
        others: rows with levels that are not told apart, at some sites with those that miss it.
        missing: rows that are known to miss it.
        hidden: levels of which some site has a few rows that it does not tell apart: there may be more.
        at_least: whether some site tells nothing of some of the group's rows.
    """

    rows: int
    counts: Mapping[str, int]
    others: int
    missing: int
    hidden: frozenset[str] = frozenset()
    at_least: bool = False

    def share(self, count: int) -> float:
        """Of the rows that do not miss the column."""
        return count / max(1, self.rows - self.missing)


@dataclass(frozen=True)
class Cross:
    """Rows by two columns: `counts` has a row for each level of the first, and a column for each of the second.

    `told` says which counts are all of them; in others some site does not tell a few rows apart. `others` are rows that
    are in none of the counts.
    """

    first: str
    second: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    counts: np.ndarray
    told: np.ndarray
    others: int


@dataclass(frozen=True)
class Summary:
    """What tables at several sites hold, as far as their answers tell.

    Args:
        question: what sites were asked.
        answers: what each has answered, by its name.
        notes: what has to be said of columns.
    """

    question: Tabulate
    answers: Mapping[str, TabulateAnswer] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.answers)

    @property
    def by(self) -> str | None:
        """The column that breaks all others down."""
        return self.question.by

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are summed up, without the one that breaks them down."""
        return tuple(cut.name for cut in self.question.columns if cut.name != self.by)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {cut.name: number for number, cut in enumerate(self.question.columns)}

    def cut(self, name: str) -> Cut:
        """How a column is cut."""
        if name not in self._places:
            raise InputError(f"column {name!r}: is not in this summary; it has {', '.join(self.columns)}")
        return self.question.columns[self._places[name]]

    def groups(self) -> list[Group]:
        """All rows; those of each site, if there are several; those with each level of `by`."""
        sites = [Group("site", name) for name in self.sites] if len(self.sites) > 1 else []
        levels = self.cut(self.by).levels or () if self.by is not None else ()
        return [ALL, *sites, *(Group("level", level) for level in levels)]

    def size(self, group: Group = ALL) -> Size:
        """How many rows a group has."""
        if group.kind != "level":
            return Size(sum(answer.rows for answer in self._answers_of(group)))
        parts = [self._own_part(answer, group.name) for answer in self.answers.values()]
        known = zip(self.answers.values(), parts, strict=True)
        rows = sum(int(answer.sizes[part]) for answer, part in known if part is not None)
        return Size(rows, any(part is None for part in parts))

    def _answers_of(self, group: Group) -> Sequence[TabulateAnswer]:
        if group.kind == "site":
            return [self.answers[group.name]]
        return list(self.answers.values())

    def _own_part(self, answer: TabulateAnswer, level: str) -> int | None:
        """The part of a site's rows that are those with a level of `by`; None, where it is not told apart."""
        assert self.by is not None
        cell = (self.cut(self.by).levels or ()).index(level)
        part = int(answer.parts[cell])
        return part if np.sum(answer.parts == part) == 1 else None

    def _pieces(self, name: str, group: Group) -> Iterator[tuple[Mapping[str, np.ndarray], list[int] | None]]:
        """The tally of a column at each site of a group, and which groups of parts are in it; None, if not told."""
        place = self._places[name]
        for answer in self._answers_of(group):
            tally = answer.tallies[place]
            if group.kind != "level":
                yield tally, list(range(len(tally["counts"])))
                continue
            part = self._own_part(answer, group.name)
            pool = None if part is None else int(tally["parts"][part])
            yield tally, None if pool is None or np.sum(tally["parts"] == pool) > 1 else [pool]

    def numbers(self, name: str, group: Group = ALL) -> Numbers:
        """A column of numbers in a group."""
        cut = self.cut(name)
        if cut.levels is not None:
            raise InputError(f"column {name!r}: has levels: ask for levels({name!r})")
        parts, counts, missing, at_least, hides = [], [], 0, False, False
        for tally, chosen in self._pieces(name, group):
            at_least |= chosen is None
            for place in chosen or ():
                if not tally["told"][place]:
                    at_least = True
                    continue
                lacking = int(tally["missing"][place])
                hides |= lacking < 0
                missing += max(0, lacking)
                own = tally["counts"][place]
                rows = int(np.maximum(own, 0).sum())
                counts.append(own)
                if rows:
                    parts.append(Moments(rows, tally["mean"][place], tally["total"][place]))
        distribution = Distribution.of_counts(cut.edges, counts, cut.whole)
        mean, sd = np.nan, np.nan
        if parts:
            joined = join_moments(parts)
            mean = float(joined.mean)
            sd = float(np.sqrt(joined.total / (joined.count - 1))) if joined.count > 1 else np.nan
        return Numbers(distribution.rows, missing, mean, sd, distribution, at_least, hides)

    def levels(self, name: str, group: Group = ALL) -> Levels:
        """A column of levels in a group."""
        levels = self.cut(name).levels
        if levels is None:
            raise InputError(f"column {name!r}: holds numbers: ask for numbers({name!r})")
        if name == self.by:
            raise InputError(f"column {name!r}: breaks all others down: ask for size(group)")
        counts, hidden = dict.fromkeys(levels, 0), set()
        rows, others, missing, at_least = 0, 0, 0, False
        for tally, chosen in self._pieces(name, group):
            if chosen is None:
                at_least = True
                continue
            own = tally["counts"][chosen].sum(axis=0)
            cells = tally["cells"].astype(int)
            shared = np.bincount(cells, minlength=len(own)) > 1
            rows += int(own.sum())
            others += int(own[shared].sum())
            for level, cell in zip([*levels, OTHERS, MISSING], cells, strict=True):
                if shared[cell]:
                    hidden |= {level} & set(levels)
                elif level == MISSING:
                    missing += int(own[cell])
                elif level == OTHERS:
                    others += int(own[cell])
                else:
                    counts[level] += int(own[cell])
        return Levels(rows, counts, others, missing, frozenset(hidden), at_least)

    def cross(self, first: str, second: str) -> Cross:
        """Rows of all sites by two columns, which were asked for as a pair."""
        if (first, second) not in self.question.crosses:
            raise InputError(f"cross: {first!r} and {second!r} were not asked for together")
        place = len(self.question.columns) + self.question.crosses.index((first, second))
        rows, columns = (self.cut(name).levels or () for name in (first, second))
        counts, told = np.zeros((len(rows), len(columns)), int), np.ones((len(rows), len(columns)), bool)
        total = 0
        for answer in self.answers.values():
            tally = answer.tallies[place]
            total += answer.rows
            own_row, own_column = (_alone(tally[side]) for side in ("rows", "columns"))
            for i, j in np.ndindex(counts.shape):
                if own_row[i] and own_column[j]:
                    counts[i, j] += int(tally["counts"][int(tally["rows"][i]), int(tally["columns"][j])])
                else:
                    told[i, j] = False
        return Cross(first, second, rows, columns, counts, told, total - int(counts.sum()))


def _alone(groups: np.ndarray) -> np.ndarray:
    """Which cells are a group by themselves."""
    return np.array([np.sum(groups == group) == 1 for group in groups])
