"""What a site's message means for its factor: done where the server is, which has the factors."""

from collections.abc import Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import MalformedUpdate
from partita.families import Family, inner
from partita.foundation.runtime import Array, on_host, precision
from partita.solvers import Outcome
from partita.wire.messages import Arrival, Notice, decode_update
from partita.wire.tasks import Task, Update


def complete_updates(tasks: Sequence[Task], answers: Sequence[Update]) -> list[Update]:
    """What the ledger takes, from what sites answered: a message becomes the change that it means for the factor.

    Done where the server is, which has the factors; for tasks of one kind that share one posterior.
    """
    if not tasks or not tasks[0].message_only:
        return list(answers)
    with precision(tasks[0].begin.dtype):
        result = _changes(
            tasks[0].begin,
            Family.stack([task.factor for task in tasks]),
            Family.stack([answer.change for answer in answers]),
            np.array([answer.outcome != Outcome.NOT_FINITE for answer in answers]),
        )
        changes, of_factor, of_change = on_host(result)
    return [
        replace(
            answer,
            change=jax.tree.map(lambda a, i=i: a[i, ...], changes),
            expected_log_factor=_unless_said(answer.expected_log_factor, of_factor[i]),
            expected_log_change=_unless_said(answer.expected_log_change, of_change[i]),
        )
        for i, answer in enumerate(answers)
    ]


def _unless_said(said: float, computed: np.ndarray) -> float:
    """A site that sends a message has not seen its factor: if it says something of it, that is refused as no number."""
    return float(computed) if said == 0 else float("nan")


def read_answer(task: Task, payload: bytes, like: Family, at: float) -> Arrival:
    """What came over a wire for a task: an update, or word that its site sends what cannot be read."""
    try:
        (update,) = complete_updates([task], [decode_update(task.site, task.version, payload, like)])
    except MalformedUpdate as error:
        return Notice(task.site, "quarantined", error.problem)
    return replace(update, finished_at=at)


@eqx.filter_jit
def _changes(begin: Family, factors: Family, messages: Family, finite: Array) -> tuple[Family, Array, Array]:
    """The changes that make factors equal to messages; expectations of both where the messages were evaluated."""
    mean = begin.mean()

    def change(args: tuple[Family, Family, Array]) -> tuple[Family, Array, Array]:
        factor, message, good = args
        found = jax.tree.map(lambda a: jnp.where(good, a, 0), message / factor)
        return found, inner(factor, mean), inner(found, mean)

    result: tuple[Family, Array, Array] = jax.lax.map(change, (factors, messages, finite))
    return result
