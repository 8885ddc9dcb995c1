"""Sites with a table each, as a regression knows them: by name, and by what they answer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from partita.engines import InProcess
from partita.wire.answers import AnswerChecks
from partita.wire.engine import Engine, ask_all
from partita.wire.naming import SiteNames, name_sources
from partita.wire.questions import Question


@dataclass(frozen=True)
class Silos:
    """Where the tables of sites come from, and what carries questions there. No table is looked at on this side."""

    sources: Mapping[str, Any] = field(repr=False)
    engine: Engine

    @classmethod
    def of(cls, sites: Any, engine: Engine | None) -> "Silos":
        """From frames, files or functions that load them, as `name_sources` takes them."""
        return cls(name_sources(sites), InProcess() if engine is None else engine)

    @property
    def names(self) -> SiteNames:
        return SiteNames(tuple(self.sources))

    @contextmanager
    def connected(self) -> Iterator["Connection"]:
        """From here to the end, sites can be asked."""
        self.engine.connect(list(self.sources.values()), self.names)
        try:
            with self.names.told():
                yield Connection(self, AnswerChecks(self.names))
        finally:
            self.engine.close()


@dataclass(frozen=True)
class Connection:
    """Sites that can be asked. What each has answered since they were connected has to agree with itself."""

    silos: Silos
    checks: AnswerChecks

    @property
    def sites(self) -> list[str]:
        """The names of the sites, in the order of their answers."""
        return list(self.silos.sources)

    def ask(self, question: Question | Mapping[int, Question]) -> list[Any]:
        """What all sites answer, in their order."""
        silos = self.silos
        return ask_all(silos.engine, question, len(silos.sources), silos.names, self.checks)
