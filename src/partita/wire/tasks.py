"""What a server asks of a site, and what a site answers: tasks and updates."""

from dataclasses import dataclass, field

from partita.families import Family
from partita.models import Hyper


@dataclass(frozen=True)
class Task:
    """Server → site: refine your factor, given what all the others believe.

    `start` is where to begin, if not at the posterior; `anchor` an earlier posterior, for solvers of double loops.

    With `message_only`, a site is asked for no more than its message at that place, which needs neither cavity nor
    factor: then they are not sent.
    """

    site: int
    version: int
    cavity: Family
    factor: Family
    hyper: Hyper
    start: Family | None = None
    anchor: Family | None = None
    message_only: bool = False

    @property
    def begin(self) -> Family:
        """Where a refinement begins."""
        return self.cavity * self.factor if self.start is None else self.start

    @property
    def sent(self) -> dict[str, Family]:
        """The densities that a site has to be sent."""
        if self.message_only:
            return {"start": self.begin}
        named = {"cavity": self.cavity, "factor": self.factor, "start": self.start, "anchor": self.anchor}
        return {name: density for name, density in named.items() if density is not None}

    @property
    def nbytes(self) -> int:
        return sum(density.nbytes for density in self.sent.values()) + 8 * len(self.hyper)


@dataclass(frozen=True)
class Update:
    """Site → server: how the factor should change (proposal / factor), and what was seen on the way.

    The three expectations are under the density that the refinement started from.
    """

    site: int
    version: int
    change: Family
    expected_log_prob: float
    expected_log_factor: float = 0.0
    expected_log_change: float = 0.0
    steps: int = 0
    outcome: int = 0
    hyper_gradient: Hyper = field(default_factory=dict)
    seconds: float = 0.0
    finished_at: float = 0.0

    @property
    def nbytes(self) -> int:
        return self.change.nbytes + 8 * (4 + len(self.hyper_gradient))
