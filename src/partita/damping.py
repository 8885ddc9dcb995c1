"""How much of a proposed change is taken: ρ in (0, 1], where 1 takes it whole.

(The paper's appendix calls a higher damping factor a slower update; here it is the other way round.)
Whatever a policy asks for, the ledger accepts less where the posterior or a cavity would become improper.
"""

from abc import abstractmethod
from dataclasses import dataclass

from partita.errors import InputError
from partita.families import Family


class Damping:
    """A policy: `begin` a run, `observe` its free energy, `temper` what sites propose."""

    @abstractmethod
    def begin(self, sites: int, parallel: bool) -> "Damping":
        """A fresh policy for a run with that many sites, several of them working at once or not."""

    def observe(self, free_energy: float, uncertainty: float) -> None:
        """An estimate of the free energy, whenever every site has reported again, and how far off it may be."""

    @property
    @abstractmethod
    def share(self) -> float:
        """The share that is asked for now."""

    def temper(self, changes: Family) -> Family:
        """What is to be applied of proposed changes, stacked with one row per site."""
        return changes**self.share


@dataclass
class Fixed(Damping):
    """Always the same share; None stands for one over the number of sites."""

    value: float | None = None

    def __post_init__(self) -> None:
        if self.value is not None and not 0 < self.value <= 1:
            raise InputError(f"damping: expected a number in (0, 1], got {self.value}")

    def begin(self, sites: int, parallel: bool) -> "Fixed":
        return Fixed(1 / sites if self.value is None else self.value)

    @property
    def share(self) -> float:
        return 1.0 if self.value is None else self.value


@dataclass
class Auto(Damping):
    """Starts at 1/M where sites work at once and at 1 where they take turns.

    Grows while the estimated free energy improves and shrinks when it falls.
    """

    grow: float = 1.5
    shrink: float = 0.5
    smallest: float = 1e-3
    current: float = 1.0
    last: float | None = None

    def begin(self, sites: int, parallel: bool) -> "Auto":
        floor = min(self.smallest, 1 / sites)
        return Auto(self.grow, self.shrink, floor, 1 / sites if parallel else 1.0)

    def observe(self, free_energy: float, uncertainty: float) -> None:
        if self.last is not None:
            fell = free_energy < self.last - uncertainty - 1e-10 * abs(self.last)
            factor = self.shrink if fell else self.grow
            self.current = min(1.0, max(self.smallest, self.current * factor))
        self.last = free_energy

    @property
    def share(self) -> float:
        return self.current


def as_damping(value: "float | str | Damping") -> Damping:
    """From a number, "1/M", "auto", or a policy."""
    if isinstance(value, Damping):
        return value
    if value == "auto":
        return Auto()
    if value == "1/M":
        return Fixed(None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Fixed(float(value))
    raise InputError(f'damping: expected a number in (0, 1], "1/M" or "auto", got {value!r}')
