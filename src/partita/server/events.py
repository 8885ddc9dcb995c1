"""What a run tells of each fold."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from partita.families import Family
from partita.foundation.plain import Row
from partita.models import Hyper
from partita.server.accounting import SiteWork

# What goes on from batch to batch of a stream.
COUNTED = ("fold", "version", "round", "seconds", "clock", "messages", "bytes_down", "bytes_up")
# So many problems of a fold are told in its row, which is kept for every fold.
MOST_TOLD = 10


@dataclass(frozen=True)
class Event:
    """One fold: who contributed, how much of it was taken, and what it cost so far."""

    fold: int
    version: int
    round: float
    sites: tuple[int, ...]
    # Of what damping asked for, the share of each site's change that was taken.
    shares: tuple[float, ...]
    wanted: float
    taken_back: bool
    staleness: int
    # Of the posterior that the fold began with, or of a stream, with this batch; and how far off that may be: not at
    # all, if zero.
    free_energy: float | None
    free_energy_error: float | None
    change: float
    # What was wrong with updates of this fold, behind who is quarantined.
    problems: tuple[str, ...]
    seconds: float
    clock: float
    messages: int
    bytes_down: int
    bytes_up: int
    # What each site's part of this fold took.
    work: tuple[SiteWork, ...]
    hyper: Hyper
    posterior: Family
    total: int
    # Whether the schedule ends here because nothing moves any more; and how many nats all that was proposed, damped or
    # not, would have moved the posterior, if the schedule wants to know and that can be told.
    settled: bool = False
    proposed: float | None = None
    replayed: bool = False
    # Names of sites that are not asked again since the last fold, and why.
    quarantined: Mapping[str, str] = field(default_factory=dict)
    # Updates that were refused since the last fold, in words.
    refused: tuple[str, ...] = ()
    metrics: Row = field(default_factory=dict)
    # What `round` counts: rounds of all sites, or batches of a stream.
    step: Literal["round", "batch"] = "round"

    @property
    def bytes(self) -> int:
        return self.bytes_down + self.bytes_up

    @property
    def accepted(self) -> float:
        """The share of their changes that was taken of most sites."""
        return self.wanted * float(np.median(self.shares))

    @property
    def limited_by(self) -> int | None:
        """The site of whose change the smallest share was taken; nobody, if all were taken whole."""
        least = min(self.shares)
        return self.sites[self.shares.index(least)] if least < 1 else None

    @property
    def other_problems(self) -> list[str]:
        """Problems but for quarantines, and what sites are quarantined for."""
        reasons = [f"{name}: {reason}" for name, reason in self.quarantined.items()]
        return [problem for problem in self.problems if problem not in (*self.news, *reasons)]

    @property
    def news(self) -> list[str]:
        """Who is not asked again since the last fold, in words."""
        return [f"{name}: quarantined: {reason}" for name, reason in self.quarantined.items()]

    def after(self, last: Row, sites: int, log_evidence: float) -> "Event":
        """The same fold as one of a stream: counted on from its last row, its sites and its log evidence so far."""
        counted = {name: getattr(self, name) + last[name] for name in COUNTED}
        known = self.free_energy is not None and math.isfinite(log_evidence)
        return replace(
            self,
            sites=tuple(site + sites for site in self.sites),
            work=tuple(replace(one, site=one.site + sites) for one in self.work),
            total=self.total + last["version"],
            free_energy=self.free_energy + log_evidence if known else None,  # type: ignore[operator]
            **counted,
        )

    def row(self) -> Row:
        """A flat row of plain values; a fixed number of them, whatever the number of sites."""
        return {
            "fold": self.fold,
            "version": self.version,
            "total": self.total,
            "round": self.round,
            "site": self.sites[0] if len(self.sites) == 1 else None,
            "sites": len(self.sites),
            "wanted": self.wanted,
            "accepted": self.accepted,
            "damped": self.limited_by is not None,
            "limited_by": self.limited_by,
            "taken_back": self.taken_back,
            "staleness": self.staleness,
            "free_energy": self.free_energy,
            "free_energy_error": self.free_energy_error,
            "change": self.change,
            "proposed": self.proposed,
            "problems": len(self.problems),
            "problem": "; ".join([*self.news, *self.other_problems][:MOST_TOLD]) or None,
            "refused": len(self.refused),
            "seconds": self.seconds,
            "clock": self.clock,
            "messages": self.messages,
            "bytes": self.bytes,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            **{f"hyper.{name}": value for name, value in self.hyper.items()},
            **self.metrics,
        }
