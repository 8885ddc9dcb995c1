"""What a run tells of each fold."""

from dataclasses import dataclass, field

import numpy as np

from partita.families import Family
from partita.foundation.plain import Row
from partita.models import Hyper
from partita.server.accounting import SiteWork


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
    # Of the posterior that the fold began with; and how far off that may be: not at all, if zero.
    free_energy: float | None
    free_energy_error: float | None
    change: float
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
    # Whether the schedule ends here because nothing moves any more.
    settled: bool = False
    replayed: bool = False
    # Updates that were refused since the last fold, in words.
    refused: tuple[str, ...] = ()
    metrics: Row = field(default_factory=dict)

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
            "problems": len(self.problems),
            "problem": self.problems[0] if self.problems else None,
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
