"""Bayesian networks of a few variables, whose factors are sites that send messages to their variables.

References are exact sums over all states, and algorithms that pass messages along edges.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np

from partita.families import Categorical, Independent
from partita.models import Model
from partita.result import Result
from partita.studies.methods.comparisons import Comparison
from partita.studies.methods.problems import Problem

# The power of the row that has one in between, and how often references send all their messages.
POWER = 0.5
SWEEPS = 300
# At most so many variables share a factor.
MOST_SHARED = 3

# Pearl's (1988) burglary, given that John and Mary call: a tree over burglary, earthquake and alarm.
ALARM = (
    ((0,), np.array([0.999, 0.001])),
    ((1,), np.array([0.998, 0.002])),
    ((0, 1, 2), np.array([[[0.999, 0.001], [0.71, 0.29]], [[0.06, 0.94], [0.05, 0.95]]])),
    ((2,), np.array([0.05, 0.9])),
    ((2,), np.array([0.01, 0.7])),
)

# Cooper's (1984) metastatic cancer, given a severe headache and that the patient is not in a coma: a loop over cancer,
# serum calcium and brain tumour.
CANCER = (
    ((0,), np.array([0.8, 0.2])),
    ((0, 1), np.array([[0.8, 0.2], [0.2, 0.8]])),
    ((0, 2), np.array([[0.95, 0.05], [0.8, 0.2]])),
    ((1, 2), np.array([[0.95, 0.2], [0.2, 0.2]])),
    ((2,), np.array([0.6, 0.8])),
)


class Table(NamedTuple):
    """A factor as a row: which variables it is of, and its logarithm at their values; repeated to the same size."""

    scope: np.ndarray
    logs: np.ndarray


def tree() -> Problem:
    return _problem(ALARM)


def loop() -> Problem:
    return _problem(CANCER)


def _problem(factors: Sequence[tuple[tuple[int, ...], np.ndarray]]) -> Problem:
    """Each row is a factor, over variables that are believed to be anything before."""
    scopes, tables = [], []
    for variables, table in factors:
        more = MOST_SHARED - len(variables)
        scopes.append(variables + variables[:1] * more)
        tables.append(np.broadcast_to(np.log(table).reshape(table.shape + (1,) * more), (2,) * MOST_SHARED))
    size = 1 + max(max(scope) for scope in scopes)
    prior = Independent.of([Categorical.from_probabilities(np.full(2, 0.5))] * size)
    return Problem(Model(prior, _log_factors), Table(np.array(scopes), np.array(tables)))


def _log_factors(states: Any, rows: Any) -> Any:
    return jax.vmap(lambda scope, logs: logs[tuple(states[scope])])(rows.scope, rows.logs)


def _log_joint(data: Table) -> np.ndarray:
    """The logarithm of the product of all factors and of the prior at all states, an axis for each variable."""
    size = 1 + int(data.scope.max())
    logs = np.full((2,) * size, -size * np.log(2))
    for state in product((0, 1), repeat=size):
        logs[state] += sum(table[tuple(state[i] for i in scope)] for scope, table in zip(*data, strict=True))
    return logs


def enumerate_states(data: Table) -> tuple[np.ndarray, float]:
    """Exact probabilities and log evidence."""
    logs = _log_joint(data)
    total = np.logaddexp.reduce(logs, axis=None)
    axes = range(logs.ndim)
    shares = np.exp(logs - total)
    return np.array([shares.sum(axis=tuple(j for j in axes if j != i)) for i in axes]), float(total)


def exact_marginals(problem: Problem, result: Result) -> Comparison:
    marginals, log_evidence = enumerate_states(problem.data)
    words = f"largest difference to exact probabilities, {_show(marginals)}, and to the exact log evidence"
    return _compare(result, marginals, log_evidence, words)


def message_passing(power: float) -> Callable[[Problem, Result], Comparison]:
    """A comparison with loopy belief propagation (power 1), or with the fractional one."""

    def check(problem: Problem, result: Result) -> Comparison:
        marginals, log_evidence = propagate_beliefs(problem.data, power)
        words = f"largest difference to messages along edges, {_show(marginals)}, with evidence {log_evidence:.4f}"
        return _compare(result, marginals, log_evidence, f"{words}; {_exact(problem)}")

    return check


def mean_field(problem: Problem, result: Result) -> Comparison:
    """The best of independent variables: coordinate ascent of the bound, on the table of all states."""
    logs = _log_joint(problem.data)
    axes = range(logs.ndim)
    q = np.full((logs.ndim, 2), 0.5)

    def average(others: Sequence[int]) -> np.ndarray:
        """E[log p] over these variables, the last first, so that other axes keep their numbers."""
        left = logs
        for j in sorted(others, reverse=True):
            left = np.tensordot(left, q[j], axes=(j, 0))
        return left

    for _ in range(SWEEPS):
        for i in axes:
            free = average([j for j in axes if j != i])
            q[i] = np.exp(free - np.logaddexp.reduce(free))
    bound = float(average(axes)) - float(np.sum(q * np.log(q)))
    words = f"largest difference to coordinate ascent, {_show(q)}, and to its bound, {bound:.4f}; {_exact(problem)}"
    return _compare(result, q, bound, words)


def propagate_beliefs(data: Table, power: float) -> tuple[np.ndarray, float]:
    """Probabilities and log evidence by messages along edges: m(x_i) ← (Σ ψ^α ∏ n(x_j))^(1/α), where a variable sends
    n = (1 - α)-th power of what it heard from there, times all that it heard from elsewhere.

    With α = 1 this is belief propagation (Pearl, 1988); else the fractional one (Wiegerinck and Heskes, 2003).
    """
    scopes, tables = data
    size = 1 + int(scopes.max())
    edges = [(a, i) for a, scope in enumerate(scopes) for i in dict.fromkeys(scope.tolist())]
    heard = {edge: np.ones(2) for edge in edges}

    def belief(i: int) -> np.ndarray:
        return 0.5 * np.prod([heard[edge] for edge in edges if edge[1] == i], axis=0)

    def weigh(a: int, left_out: int | None) -> tuple[list[int], np.ndarray]:
        """ψ^α with what all its variables send, but for one."""
        variables = list(dict.fromkeys(scopes[a].tolist()))
        table = tables[a][(...,) + (0,) * (MOST_SHARED - len(variables))]
        weighed = np.exp(power * table)
        for axis, j in enumerate(variables):
            if j != left_out:
                sent = belief(j) / heard[a, j] ** power
                weighed = weighed * sent.reshape([2 if k == axis else 1 for k in range(len(variables))])
        return variables, weighed

    for _ in range(SWEEPS):
        for a, i in edges:
            variables, weighed = weigh(a, i)
            others = tuple(axis for axis, j in enumerate(variables) if j != i)
            heard[a, i] = weighed.sum(axis=others) ** (1 / power)
            heard[a, i] /= heard[a, i].sum()
    totals = np.array([belief(i).sum() for i in range(size)])
    log_evidence = np.sum(np.log(totals))
    for a in range(len(scopes)):
        variables, weighed = weigh(a, None)
        log_evidence += (np.log(weighed.sum()) - np.sum(np.log(totals[variables]))) / power
    return np.array([belief(i) for i in range(size)]) / totals[:, None], float(log_evidence)


def _compare(result: Result, marginals: np.ndarray, log_evidence: float, words: str) -> Comparison:
    q: Any = result.posterior
    gap = np.abs(np.asarray(q.mean().each.probabilities) - marginals).max()
    return Comparison(float(max(gap, abs(result.log_evidence - log_evidence))), words)


def _exact(problem: Problem) -> str:
    """What the exact answer is, beside an approximation's."""
    marginals, log_evidence = enumerate_states(problem.data)
    return f"exact are {_show(marginals)} and {log_evidence:.4f}"


def _show(marginals: np.ndarray) -> str:
    return "/".join(f"{p:.3f}" for p in marginals[:, 1])
