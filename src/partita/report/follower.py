"""What a run's folder says, read again and again while the run goes on, which notices nothing of it."""

import heapq
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import CorruptStorage, InputError
from partita.foundation.plain import Row
from partita.report.charts import Curve, Findings, Picture, draw_pictures
from partita.report.charts.base import Intervals
from partita.report.measures import read_measures
from partita.report.page import Report
from partita.report.posterior import find_intervals
from partita.report.regression import read_findings, read_regression, turn_into_regression
from partita.result import load
from partita.server.storage import read_arrays, read_finished, read_history, read_updates

BOUNDS = ("free_energy", "log_evidence")
SCORES = ("error", "nll", "ece", "rmse", "smse")
# Seconds without a fold after which a run is called still.
STILL = 15.0
# The most rows of a history that are kept, and the most sites of a table.
MOST_KEPT, MOST_SITES = 3000, 200
# How many rows are read at a time.
PART = 5000


class Sample:
    """Some of what was added, evenly apart, and always the last: never more than so many."""

    def __init__(self, most: int = MOST_KEPT):
        self._most, self._step, self._added = most, 1, 0
        self._kept: list[Any] = []
        self._last: list[Any] = []

    def add(self, item: Any) -> None:
        regular = self._added % self._step == 0
        self._added += 1
        if regular:
            self._kept.append(item)
        self._last = [] if regular else [item]
        if len(self._kept) > self._most:
            self._kept, self._last = self._kept[::2], self._kept[-1:] if len(self._kept) % 2 == 0 else []
            self._step *= 2

    def __iter__(self) -> Any:
        return iter([*self._kept, *self._last])


@dataclass
class SiteSoFar:
    """What a site did."""

    updates: int = 0
    round: float = 0.0
    accepted: float = 0.0
    staleness: float = 0.0

    def add(self, row: Row) -> None:
        self.updates += 1
        self.round = row["round"]
        self.accepted += row["accepted"]
        self.staleness += row["staleness"]

    def row(self) -> Row:
        return {
            "updates": self.updates,
            "last round": self.round,
            "accepted": self.accepted / self.updates,
            "staleness": self.staleness / self.updates,
        }


@dataclass
class Follower:
    """A run's folder, as far as it has been read: `read` goes on from there.

    Args:
        folder: of the run, which need not have begun.
        names: of sites, if they have any.
        title: of the report.
        features: names of inputs, if they are known here.
    """

    folder: Path
    names: Sequence[str] = ()
    title: str = ""
    features: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.title = self.title or f"Run {self.folder.resolve().name}"
        self._begin()

    def _begin(self) -> None:
        """Nothing is known yet."""
        self.last: Row = {}
        self.sites: dict[int, SiteSoFar] = {}
        self._measured, self._others = Sample(), Sample()
        # The last update that was read, and who answered the tasks of a version, in folds of several sites.
        self._number = 0
        self._answers: dict[int, set[int]] = {}
        # The same versions, the smallest first.
        self._versions: list[int] = []
        # The result that was read, the last fold that it knows of, and what it says.
        self._result: tuple[int, int] | None = None
        self._finished, self.log_evidence = -1, np.nan
        # The last fold of a run that has come to its end, as the journal has it; zero, while it goes on after a resume.
        self._end: int | None = None
        self._contributions: Sequence[float] = ()
        self._intervals: Intervals | None = None
        self._moved = time.monotonic()

    def read(self) -> bool:
        """Whether there is something new."""
        if not self.has_begun:
            return False
        written, before = self._last_written(), self.last
        # In parts, because there may be very many; what is written meanwhile is for the next time.
        while rows := self._new_rows():
            self._add(rows)
        is_new = self.last != before
        if is_new:
            # Whoever looks for the first time sees by the file how long ago that was.
            self._moved = time.monotonic() - (0.0 if before else written)
        before_end, self._end = self._end, read_finished(self.folder)
        return self._read_result() or is_new or self._end != before_end

    def _new_rows(self) -> list[Row]:
        """Some rows after the last; of another run that has taken this one's place, from its first."""
        if not self.last:
            return read_history(self.folder, most=PART)
        same, *rows = read_history(self.folder, self.last["fold"] - 1, PART + 1) or [{}]
        if same == self.last:
            return rows
        self._begin()
        return self._new_rows()

    def _last_written(self) -> float:
        """How many seconds ago something was written, at least."""
        paths = [self.folder / name for name in ("journal.sqlite", "journal.sqlite-wal")]
        return max(0.0, time.time() - max(path.stat().st_mtime for path in paths if path.exists()))

    def _read_answers(self) -> None:
        for number, site, version in read_updates(self.folder, self._number):
            self._number = number
            if version not in self._answers:
                self._answers[version] = set()
                heapq.heappush(self._versions, version)
            self._answers[version].add(site)

    def _add(self, rows: Sequence[Row]) -> None:
        if any(row["site"] is None for row in rows):
            self._read_answers()
        for row in rows:
            self._add_row(row)

    def _add_row(self, row: Row) -> None:
        if row["site"] is None:
            task = row["version"] - row["sites"] - row["staleness"]
            workers: Iterable[int] = self._answers.get(task, ())
            while self._versions and self._versions[0] <= task:
                del self._answers[heapq.heappop(self._versions)]
        else:
            workers = (row["site"],)
        for site in workers:
            self.sites.setdefault(site, SiteSoFar()).add(row)
        self.last = row
        # What callbacks measured may be anything; numbers are drawn.
        drawn = {name: value for name, value in row.items() if isinstance(value, int | float | None)}
        (self._measured if any(name in row for name in SCORES) else self._others).add(drawn)

    def _read_result(self) -> bool:
        path = self.folder / "result.safetensors"
        if not path.exists():
            return False
        stamp = (path.stat().st_mtime_ns, path.stat().st_size)
        if stamp == self._result:
            return False
        self._result = stamp
        about = read_arrays(path)[1]
        try:
            self._finished, known = int(about["history"][-1]["fold"]), about["log_evidence"]
            self.log_evidence = np.nan if known is None else float(known)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise CorruptStorage(
                f"{path}: is not the result of a run ({error!r}): delete it, and save the result again"
            ) from None
        try:
            result = load(path)
        except InputError:
            # The code of the model is not stored, so nobody knows what its parameters are.
            self._contributions, self._intervals = (), None
        else:
            self._contributions = result.contributions().tolist()
            features = self.features or read_measures(self.folder, self._finished).features
            self._intervals = find_intervals(result, features)
        return True

    @property
    def has_begun(self) -> bool:
        return (self.folder / "journal.sqlite").exists()

    @property
    def is_finished(self) -> bool:
        if not self.last:
            return False
        if self._end is not None:
            return self._end == self.last["fold"]
        total = self.last.get("total")
        return self.has_result or (total is not None and self.last["version"] >= total)

    @property
    def has_result(self) -> bool:
        return bool(self.last) and self._finished == self.last["fold"]

    def state(self) -> Row:
        """Whether the run goes on, in a word and in a sentence; and for how many seconds it has been still."""
        if not self.last:
            on_the_way = "The run has begun; its first update is on the way."
            words = on_the_way if self.has_begun else "The run has not begun yet."
            return {"state": "waiting", "words": words, "still": 0.0}
        still = time.monotonic() - self._moved
        state = "finished" if self.is_finished else "still" if still > STILL else "running"
        word = {"finished": "Finished", "still": "Nothing new for a while", "running": "Running"}[state]
        return {"state": state, "words": f"{word}: {self.progress}.", "still": still}

    @property
    def progress(self) -> str:
        """Round 12 of 40; of a run that has ended before its last round, or without all sites, how far it came."""
        rounds, total = self.last["round"], self.last.get("total")
        is_short = total is not None and self.is_finished and self.last["version"] < total
        of = "" if total is None or is_short else f" of {total * rounds / self.last['version']:.0f}"
        return f"round {math.floor(rounds)}{of}"

    def rows(self) -> list[Row]:
        """The history; of a long one, rows evenly apart. The last has the log evidence, if there is a result."""
        return self._rows(self._find_offset(self._read_regression()))

    def _rows(self, offset: float) -> list[Row]:
        rows = sorted([*self._measured, *self._others], key=lambda row: row["fold"])
        if rows and self.has_result:
            rows[-1] = {**rows[-1], "log_evidence": self.log_evidence}
        return [
            {**row, **{name: row[name] + offset for name in BOUNDS if row.get(name) is not None}} if offset else row
            for row in rows
        ]

    def _read_regression(self) -> Row | None:
        return read_regression(self.folder, self._finished) if self.has_result else None

    def _find_offset(self, regression: Row | None) -> float:
        """What is added to free energies: a regression scales targets, and its evidence is of targets as given."""
        known = None if regression is None else regression["log evidence"]
        return 0.0 if known is None else known - self.log_evidence

    def summary(self) -> Row:
        """One line about the run so far."""
        return self._summary(self._find_offset(self._read_regression()))

    def _summary(self, offset: float) -> Row:
        scored: Row = max(self._measured, key=lambda row: row["fold"], default={})
        scores = {name: scored[name] for name in SCORES if name in scored}
        if self.has_result:
            scores |= read_measures(self.folder, self._finished).scores
        free_energy = self.last.get("free_energy")
        return {
            "run": self.folder.resolve().name,
            **scores,
            "rounds": self.last.get("round"),
            "messages": self.last.get("messages"),
            "bytes": self.last.get("bytes"),
            "seconds": self.last.get("seconds"),
            "free energy": None if free_energy is None else free_energy + offset,
            "log evidence": self.log_evidence + offset if self.has_result else None,
        }

    def name_site(self, site: int) -> str:
        return self.names[site] if site < len(self.names) else f"site {site}"

    def site_rows(self, most: int | None = MOST_SITES) -> list[Row]:
        """One row per site; where there are very many, of the first ones."""
        nats = self._contributions if self.has_result else ()
        return [
            {"site": self.name_site(site), **so_far.row(), **({"nats": nats[site]} if site < len(nats) else {})}
            for site, so_far in sorted(self.sites.items())[:most]
        ]

    def report(self) -> Report:
        """The page about the run so far."""
        words = "" if self.last else "Charts appear here as soon as the run has made its first update."
        if self.last and not self.is_finished:
            words = "Not finished: the table shows the latest update."
        regression = self._read_regression()
        offset = self._find_offset(regression)
        report = Report(
            title=self.title,
            words=words or "Finished.",
            table=[self._summary(offset)] if self.last else [],
            curves=[Curve(self.folder.resolve().name, self._rows(offset))],
            pictures=self._pictures(regression),
            sites=self.site_rows(),
        )
        return report if regression is None else turn_into_regression(report, regression)

    def pictures(self) -> list[Picture]:
        """Pictures of sites, as far as they differ; of a finished run, also of what its result says."""
        return self._pictures(self._read_regression())

    def _pictures(self, regression: Row | None) -> list[Picture]:
        return draw_pictures(self.findings() if regression is None else read_findings(regression))

    def findings(self) -> Findings:
        """What is known of the run so far."""
        name, sites = self.folder.resolve().name, self.site_rows(most=None)
        if not self.has_result:
            return Findings(name, sites)
        nats = [(self.name_site(site), value) for site, value in enumerate(self._contributions)]
        calibration = read_measures(self.folder, self._finished).calibration
        # The contribution of a single site says nothing.
        return Findings(name, sites, nats if len(nats) > 1 else (), calibration, self._intervals)
