"""What carries tasks and questions to sites, and updates and answers back."""

from collections.abc import Sequence
from typing import Any, Protocol

from partita.families import Family
from partita.models import Hyper
from partita.wire.job import Job
from partita.wire.messages import Arrival
from partita.wire.tasks import Task


class Engine(Protocol):
    """Carries messages. `at` is the run's clock when tasks were handed out; real engines ignore it."""

    def open(self, job: Job, shards: Sequence[Any]) -> None:
        """Get ready, with every site's data checked where they are."""
        ...

    def digests(self) -> list[str]:
        """What every site's data are, to tell them from others."""
        ...

    def submit(self, tasks: Sequence[Task], at: float) -> None: ...

    def collect(self) -> list[Arrival]:
        """Wait for at least one update, or for news of a site."""
        ...

    def evaluate(self, posterior: Family, hyper: Hyper, factors: Sequence[Family] | None = None) -> dict[int, float]:
        """E_q[log p(y_m | θ)] for every site that answers.

        With the factors of all sites, which come where the job's solver `values_factor`: what it puts in that place.
        """
        ...

    def close(self) -> None: ...
