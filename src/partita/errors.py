"""Every error that Partita raises on purpose.

PartitaError
├── SiteError                    whatever is wrong at one site, which is named: ShardError, NotFinite, UpdateRefused
├── InputError (ValueError)      data, arguments or settings that cannot be used
│   ├── ShardError               a site's data
│   ├── ConfigError              a configuration file
│   ├── MissingCapability        a density that cannot do what is asked of it
│   └── MissingData              a data file that is not here
├── MissingExtra (ImportError)   a package that is not installed, of an extra
├── FamilyMismatch (TypeError)   densities that cannot be multiplied
├── ImproperDensity (ValueError) a density that has to be proper and is not
├── NotFinite (ArithmeticError)  a fit that ended where a log likelihood is no number
├── UpdateRefused                an update the ledger did not take; the posterior is as before
│   ├── NotOutstanding           nobody asked for it, or it came before
│   ├── StaleUpdate              it answers a task that is too old
│   └── MalformedUpdate          wrong shape, dtype, model or not finite
├── MalformedMessage             bytes that are no message, or not the expected one
├── PolicyRefusal                what a site's own policy does not allow; its key is told to the server
├── EngineError                  what carries messages does not work as it should
│   └── Stalled                  nobody has answered for longer than was allowed
└── StorageError                 a run directory or a saved result
    ├── CorruptStorage           bytes that are not what was written
    └── RunMismatch              it belongs to another run or another version

QuarantineWarning (RuntimeWarning) is a warning: a run has gone on without a site.
"""

from collections.abc import Callable
from typing import Any

from partita.foundation.text import MOST_OF_ERROR, clean


def reason(error: Exception) -> str:
    """What somebody else's code says is wrong, in a line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {clean(lines[0]) if lines else ''}"


class PartitaError(Exception):
    """Base of all deliberate errors. They quote sites, tables and files, so what they say is cleaned."""

    def __str__(self) -> str:
        return clean(super().__str__(), MOST_OF_ERROR, lines=True)


class SiteError(PartitaError):
    """Something is wrong at one site. A run counts its sites; whoever knows what they are called says so by `call`."""

    site: int | None

    def __init__(self, site: int | None, problem: str, *others: int):
        self.site, self.problem, self._words, self._others = site, problem, problem, others
        super().__init__(self._describe(lambda number: f"site {number}"))

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.site, self.problem, *self._others)

    def call(self, name: Callable[[int], str]) -> None:
        """Call sites as they are called elsewhere: the words are made anew."""
        self.args = (self._describe(name),)

    def _describe(self, name: Callable[[int], str]) -> str:
        also = f" (and {', '.join(map(name, self._others))})" if self._others else ""
        return f"{self._words}{also}" if self.site is None else f"{name(self.site)}: {self._words}{also}"


class InputError(PartitaError, ValueError):
    """Data, arguments or settings that cannot be used."""


class ShardError(SiteError, InputError):
    """One site's data cannot be used; names the site, if they are a site's, and the argument."""

    def __init__(self, site: int | None, argument: str, problem: str, *others: int):
        super().__init__(site, f"{argument}: {problem}", *others)
        self.argument, self.problem = argument, problem

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.site, self.argument, self.problem, *self._others)


class MissingCapability(InputError):
    """A density cannot do what is asked of it; says which families can."""


class ConfigError(InputError):
    """A configuration file cannot be used."""


class MissingData(InputError):
    """A data file is not here; says where to get it."""


class MissingExtra(PartitaError, ImportError):
    """A package that only an extra of Partita installs is not here; says which extra."""


class FamilyMismatch(PartitaError, TypeError):
    """Densities of different families or shapes were combined."""


class ImproperDensity(PartitaError, ValueError):
    """A density that must be proper is not."""


class NotFinite(SiteError, ArithmeticError):
    """A fit has ended where the log likelihood of some site is not finite, so that it says nothing."""


class QuarantineWarning(RuntimeWarning):
    """A run has gone on without a site, which is not asked again before somebody says so."""


class UpdateRefused(SiteError):
    """The ledger did not take an update."""


class NotOutstanding(UpdateRefused):
    """The update answers no outstanding task."""


class StaleUpdate(UpdateRefused):
    """The update answers a task that is too old."""


class MalformedUpdate(UpdateRefused):
    """The update has the wrong shape or dtype, or is not finite."""


class MalformedMessage(PartitaError):
    """Bytes that are no message, or not the expected one."""


class PolicyRefusal(PartitaError):
    """A server has asked what a site does not allow.

    Args:
        key: what of the site's policy forbids it; `approval`, where its person has not approved it.
        told: why, in words that quote no data: all that the server hears.
        advice: what can be done about it, for the site alone.
    """

    def __init__(self, key: str, told: str, advice: str = ""):
        self.key, self.told, self.advice = key, told, advice
        super().__init__(f"{told}: {advice}" if advice else told)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.key, self.told, self.advice)


class EngineError(PartitaError):
    """What carries messages does not work as it should."""


class Stalled(EngineError):
    """Nobody has answered for longer than was allowed."""


class StorageError(PartitaError):
    """A run directory or a saved result cannot be used."""


class CorruptStorage(StorageError):
    """Stored bytes are not what was written."""


class RunMismatch(StorageError):
    """What is stored belongs to another run, or to another version of the format."""
