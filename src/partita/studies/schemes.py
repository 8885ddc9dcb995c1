"""Ways to fit the same data, which studies compare."""

from dataclasses import dataclass

from partita.server.rules import Rule
from partita.server.schedules import Schedule
from partita.solvers import Solver


@dataclass(frozen=True)
class Scheme:
    """A triple (partition, solver, schedule). None stands for what `fit` chooses by itself.

    `epochs` is how often all data are visited; `polls`, how many times a method that communicates once is looked at,
    each time with an equal share of its epochs more.
    """

    words: str
    schedule: Schedule
    solver: Solver | None = None
    damping: float | str | Rule = "auto"
    pooled: bool = False
    split_prior: bool = False
    start_scale: float = 0.03
    epochs: float = 1
    polls: int = 1
