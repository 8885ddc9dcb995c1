"""What carries tasks and questions to sites, and updates and answers back."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from partita.errors import EngineError
from partita.models import AbstractModel
from partita.wire.answers import AnswerChecks
from partita.wire.job import Job
from partita.wire.messages import Arrival
from partita.wire.naming import SiteNames
from partita.wire.questions import Answer, Question
from partita.wire.tasks import Task


class Engine(Protocol):
    """Carries messages, and decides nothing.

    An engine is connected first, which says who the sites are and where their data come from: from there on they can be
    asked about their data. Then it is opened with a job, which may follow from what they answered. `at` is the run's
    clock when tasks were handed out; real engines ignore it.
    """

    def connect(
        self, shards: Sequence[Any], names: SiteNames | None = None, model: AbstractModel | None = None
    ) -> None:
        """Learn who the sites are. Nothing is read here: where data come from is handed to the sites' side."""
        ...

    def open(self, job: Job, shards: Sequence[Any]) -> None:
        """Get ready for tasks, with every site's data checked where they are; connect first, if nobody has.

        Shards after those of the sites that are connected are of sites that the model adds.
        """
        ...

    def ask(self, question: Question | Mapping[int, Question]) -> dict[int, Answer]:
        """What sites answer to one question, or each to its own, of one kind; those who are away are left out."""
        ...

    def submit(self, tasks: Sequence[Task], at: float) -> None: ...

    def collect(self) -> list[Arrival]:
        """Wait for at least one update, or for news of a site."""
        ...

    def join(self, site: int, name: str) -> None:
        """A site has become part of the run, under this number, because the engine gave notice of it: now, or in the
        journal that is replayed."""
        ...

    def close(self) -> None: ...


def address(question: Question | Mapping[int, Question], sites: int) -> dict[int, Question]:
    """Who is asked what: a question that is asked of all, by site."""
    return dict(question) if isinstance(question, Mapping) else dict.fromkeys(range(sites), question)


def ask_all(
    engine: Engine,
    question: Question | Mapping[int, Question],
    sites: int,
    names: SiteNames,
    checks: AnswerChecks | None = None,
) -> list[Any]:
    """The answers of all who are asked, in their order, checked; an error that names those who gave none.

    With `checks` that have seen earlier answers of the same sites, these have to agree with them.
    """
    asked = address(question, sites)
    answers = (checks or AnswerChecks(names)).check(asked, engine.ask(question))
    silent = [names.of(site) for site in asked if site not in answers]
    if silent:
        kind = next(iter(asked.values())).name
        raise EngineError(f"{', '.join(silent)}: no answer to the question {kind!r}, which all have to answer first")
    return [answers[site] for site in asked]
