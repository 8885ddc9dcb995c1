"""Cases with a site that is broken or means harm: what is taken of its updates, and what the journal says of it."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

import partita as pt
from benchmarks.bits.fits import binary
from benchmarks.bits.outcomes import Case, Followed, Outcome, find, of_result

BAD = 2
JOURNALS = ("partita.server.journals", "partita.server.storage", "partita.server.journal")


@dataclass
class Lying(pt.engines.InProcess):
    """One site's updates say something else than what it found."""

    lie: Callable[[Any], Any] = lambda update: update

    def collect(self) -> list[Any]:
        return [self.lie(arrival) if arrival.site == BAD else arrival for arrival in super().collect()]


def sunk(update: Any, size: float) -> Any:
    """A change that is that large in one coordinate of its last array: on the diagonal, if it is a matrix."""
    leaves, structure = jax.tree.flatten(jax.tree.map(np.array, update.change))
    last = leaves[-1]
    last.flat[last.shape[-1] + 1 if last.ndim > 1 else 1] += size
    return replace(update, change=jax.tree.unflatten(structure, leaves))


LIES: dict[str, Callable[[Any], Any]] = {
    "sunk": lambda update: sunk(update, -1e8),
    "buried": lambda update: sunk(update, 1e20),
    "nan": lambda update: sunk(update, np.nan),
    "nan-report": lambda update: replace(update, expected_log_prob=np.nan),
    "inflated": lambda update: replace(update, expected_log_prob=1e6 + 1e3 * update.version),
    "contradiction": lambda update: replace(update, expected_log_prob=update.expected_log_prob - 30 * update.version),
    "tenfold": lambda update: replace(update, change=update.change**10.0),
    "negative": lambda update: replace(update, change=update.change**-3.0),
}


def lied(name: str, schedule: Any, posterior: Any = "full", **settings: Any) -> Outcome:
    """A run with a journal; shares, strikes and quarantines are in its events, verdicts in its notices."""
    model, followed, events = pt.models.LogisticRegression(features=3, posterior=posterior), Followed(), []
    with tempfile.TemporaryDirectory() as folder:
        result = pt.fit(
            model,
            binary(5),
            engine=Lying(lie=LIES[name]),
            schedule=schedule,
            run_dir=folder,
            callbacks=[followed, lambda event: events.append(event)],
            **settings,
        )
        notices = find("read_notices", *JOURNALS)(folder)
    outcome = of_result(result, followed.digests)
    for row, event in zip(outcome.rows, events, strict=True):
        row["shares"] = [float(share) for share in event.shares]
        outcome.words += [*event.problems, *event.refused]
    for notice in notices:
        outcome.rows.append({"notice": notice.kind, "site": int(notice.site)})
    return outcome


def cases() -> Iterator[Case]:
    schedules = {
        "synchronous": pt.schedules.Synchronous(rounds=10),
        "sequential": pt.schedules.Sequential(passes=8),
        "asynchronous": pt.schedules.Asynchronous(updates=40),
    }
    for lie in LIES:
        for name, schedule in schedules.items():
            is_quick = name == "synchronous" or (lie, name) in (("sunk", "asynchronous"), ("inflated", "sequential"))
            yield Case(f"lies/{lie}/{name}", lambda given=(lie, schedule): lied(*given), is_quick)  # type: ignore[misc]
    rounds, limits = schedules["synchronous"], pt.Limits(change=2.0, total=20.0)
    yield Case("lies/sunk/mean-field", lambda: lied("sunk", rounds, "mean-field"), True)
    yield Case("lies/tenfold/limits", lambda: lied("tenfold", rounds, limits=limits), True)
    yield Case("lies/sunk/shared", lambda: lied("sunk", rounds, custody="shared"), True)
