"""What was tried for sites that differ, beside what `fit` does: one class per site, digits, on validation data.

Every variant is the same plain loop with another rule: sites solve their local problems for some steps, all at once,
and the server takes a share of what they changed. The table has means ± half the range over seeds; its last line is
what `fit` does by itself. `partita study heterogeneous` says it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from typer import Option

import partita as pt
from partita.datasets import split
from partita.expectations import GaussNewton
from partita.families import MeanField
from partita.fitting import events
from partita.free_energy import LocalProblem
from partita.models import Network, prior_of
from partita.shards import padded
from partita.solvers import NaturalGradient
from partita.studies.images import Images
from partita.studies.options import Say, Seeds
from partita.studies.tables import spread

SITES = 10
# This is the best of 0.002, 0.005 and 0.01 for the first rule.
RATE = 0.01


@dataclass(frozen=True)
class Rule:
    """How sites and server work together. With the defaults, PVI with damping 1/M.

    `steps(round)` are a site's in that round. `shares(sizes)` is how much of each site's change is taken. `blend` is
    the weight of the average of the sites' densities, against prior × factors, in what the server sends, and `penalty`
    the weight of the KL at the sites: the ADMM of Swaroop et al. (2025), which is PVI with 0 and 1. For `shared` rounds
    all sites have one factor, the mean of theirs, as in stochastic EP.
    """

    steps: Callable[[int], int] = lambda number: 7
    shares: Callable[[np.ndarray], np.ndarray] = lambda sizes: np.full(len(sizes), 1 / len(sizes))
    blend: float = 0.0
    penalty: float = 1.0
    shared: int = 0


def growing(number: int) -> int:
    """One step at first, a whole local epoch after twenty rounds, three after sixty."""
    return 1 + number * 7 // 20


RULES = {
    "PVI, 7 local steps, damping 1/M": Rule(),
    "1 local step": Rule(steps=lambda number: 1),
    "35 local steps": Rule(steps=lambda number: 35),
    "growing local steps": Rule(steps=growing),
    "shares N_m / N": Rule(shares=lambda sizes: sizes / sizes.sum()),
    "ADMM: whole changes, blend M / (M + 1)": Rule(shares=np.ones_like, blend=SITES / (SITES + 1)),
    "the same, changes of 0.3": Rule(shares=lambda sizes: np.full(len(sizes), 0.3), blend=SITES / (SITES + 1)),
    "the same, penalty 3": Rule(shares=lambda sizes: np.full(len(sizes), 0.3), blend=SITES / (SITES + 1), penalty=3.0),
    "one shared factor for 20 rounds": Rule(shared=20),
    "one shared factor always": Rule(shared=10**9),
}


@eqx.filter_jit
def refine(model: Network, cavities: MeanField, start: MeanField, shards: Any, steps: Any, key: Any) -> MeanField:
    """What every site's local problem leads to, from one start."""

    def one(cavity: MeanField, shard: Any, key: Any) -> MeanField:
        solver = eqx.tree_at(lambda s: s.steps, NaturalGradient(RATE, steps=1, batch_size=20), steps)
        problem = LocalProblem(model, GaussNewton(), cavity, shard, model.hyper)
        return solver.refine(problem, start, start / cavity, key=key)[0]

    refined: MeanField = jax.vmap(one)(cavities, shards, jax.random.split(key, SITES))
    return refined


def posteriors(model: Network, raw: list[Any], rule: Rule, rounds: int, seed: int) -> Iterator[MeanField]:
    """What the server sends after every round."""
    checked = [padded(shard, max(len(y) for _, y in raw)) for shard in map(model.shard, range(SITES), raw)]
    sizes = np.array([float(shard.rows) for shard in checked])
    shards: Any = jax.tree.map(lambda *leaves: np.stack(leaves), *checked)
    shards = eqx.tree_at(lambda s: s.weights, shards, shards.weights / np.float32(rule.penalty))
    shares = np.asarray(rule.shares(sizes), np.float32)
    prior: Any = prior_of(model, model.hyper)
    sent: Any = model.start
    factors = jax.tree.map(lambda a: np.stack([a / SITES] * SITES), sent / prior)
    for number in range(rounds):
        cavities = jax.tree.map(lambda q, t: q - t / np.float32(rule.penalty), sent, factors)
        key = jax.random.fold_in(jax.random.key(seed), number)
        solved = refine(model, cavities, sent, shards, jnp.asarray(rule.steps(number)), key)
        for halving in range(20):
            taken, blended = apply_rule(rule, prior, factors, sent, solved, shares * 0.5**halving, number < rule.shared)
            if is_safe(blended, taken, rule.penalty):
                factors, sent = taken, blended
                break
        yield sent


def apply_rule(
    rule: Rule, prior: Any, factors: Any, sent: Any, solved: Any, shares: np.ndarray, shared: bool
) -> tuple[MeanField, MeanField]:
    """Factors with those shares of the changes, and what the server would send."""

    def move(t: np.ndarray, q: np.ndarray, s: np.ndarray) -> np.ndarray:
        new = t + rule.penalty * np.reshape(shares, (-1,) + (1,) * (t.ndim - 1)) * (np.asarray(q) - s)
        return np.broadcast_to(np.mean(new, axis=0), new.shape) if shared else new

    def mix(p: np.ndarray, t: np.ndarray, q: np.ndarray) -> np.ndarray:
        mixed = (1 - rule.blend) * (p + np.sum(t, axis=0)) + rule.blend * np.mean(q, axis=0)
        return np.asarray(mixed, np.float32)

    taken = jax.tree.map(move, factors, solved, sent)
    return jax.tree.map(np.float32, taken), jax.tree.map(mix, prior, taken, solved)


def is_safe(sent: MeanField, factors: MeanField, penalty: float) -> bool:
    """Whether the posterior and every cavity are proper, as the ledger has it."""
    pairs = zip(jax.tree.leaves(sent.precision), jax.tree.leaves(factors.precision), strict=True)
    return sent.is_proper() and all(np.min(q - t / penalty) > 0 for q, t in pairs)


def measure(images: Images, rule: Rule | None, seed: int, rounds: int, sizes: bool) -> dict[str, float]:
    model = images.network([50], init_seed=seed)
    raw = list(split(images.train, SITES, "whole-labels", seed=seed))
    if sizes:
        kept = [max(10, len(y) // (1 + site)) for site, (_, y) in enumerate(raw)]
        raw = [(X[:rows], y[:rows]) for rows, (X, y) in zip(kept, raw, strict=True)]
    if rule is None:
        schedule = pt.schedules.Synchronous(rounds)
        *_, last = (event.posterior for event in events(model, raw, schedule=schedule, seed=seed))
    else:
        *_, last = posteriors(model, raw, rule, rounds, seed)
    return images.score(model, last)


def compare_rules(
    say: Say, rounds: Annotated[int, Option(min=1, help="How many rounds.")] = 60, seeds: Seeds = 3
) -> None:
    images = Images.load("digits", validate=True)
    for sizes in (False, True):
        say("\nsites of equal sizes" if not sizes else "\nsites from all rows of a class down to a tenth of them")
        for name, rule in {**RULES, "what fit does: one message, optimiser": None}.items():
            found = [measure(images, rule, seed, rounds, sizes) for seed in range(seeds)]
            error, nll = (spread([row[key] for row in found], scale) for key, scale in (("error", 100), ("nll", 1)))
            say(f"{name:40} error {error} %   NLL {nll}")
