"""Factors of sites that were not seen yet, estimated from those that were (end of Appendix A.6 of the paper).

A site that was never asked has a flat factor. The paper suggests others for the first pass: the last one that was
found, the geometric average of all so far, or what an inference network says of the site's data. `partita study
unseen-sites` tries them on logistic regressions whose sites are alike, or differ in size and scale, and says how far
the posterior is from the global optimum, in nats.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from partita.families import Family, MeanField
from partita.fitting import fit
from partita.foundation.runtime import Array, on_host, precision
from partita.models import LogisticRegression, prior_of
from partita.server.schedules import Sequential
from partita.solvers import FixedPoint
from partita.studies.options import Say, Seeds

WEIGHTS, SEEN, UNSEEN = 4, 40, 20
MODEL = LogisticRegression(WEIGHTS, intercept=False, prior_scale=3.0, posterior="mean-field")
SOLVER = FixedPoint(steps=20, step_size=0.5)
HIDDEN, STEPS, RATE = 16, 2000, 0.01
Data = tuple[np.ndarray, np.ndarray]
# A factor for a site that was not seen, from those of sites that were, and the numbers of their rows; and its data.
Guess = Callable[[Sequence[Family], Sequence[int], Data], Family]


def make_sites(number: int, seed: int, alike: bool = False) -> list[Data]:
    """Sites of 4 to 60 rows, whose inputs differ in how wide they are; or of 32 rows, all alike."""
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=WEIGHTS)
    sites = []
    for _ in range(number):
        rows = 32 if alike else int(generator.integers(4, 61))
        width = np.ones(WEIGHTS) if alike else generator.uniform(0.3, 1.5, size=WEIGHTS)
        X = generator.normal(size=(rows, WEIGHTS)) * width
        sites.append((X, (X @ weights + generator.logistic(size=rows) > 0).astype(float)))
    return sites


def product(densities: Sequence[Family]) -> Family:
    return reduce(mul, densities)


def guess_nothing(factors: Sequence[Family], rows: Sequence[int], data: Data) -> Family:
    return factors[0] ** 0


def guess_last(factors: Sequence[Family], rows: Sequence[int], data: Data) -> Family:
    return factors[-1]


def guess_average(factors: Sequence[Family], rows: Sequence[int], data: Data) -> Family:
    """The geometric average."""
    return product(factors) ** (1 / len(factors))


def guess_by_rows(factors: Sequence[Family], rows: Sequence[int], data: Data) -> Family:
    """The geometric average per row, as often as the site has rows: all that has to be known of it is their number."""
    return product(factors) ** (len(data[1]) / sum(rows))


GUESSES: dict[str, Guess] = {
    "flat factors": guess_nothing,
    "the last factor": guess_last,
    "the geometric average": guess_average,
    "the average per row": guess_by_rows,
}


class Perceptron(NamedTuple):
    """Two layers of numbers."""

    inner: Array
    bias: Array
    outer: Array

    @classmethod
    def start(cls, inputs: int, outputs: int, seed: int) -> "Perceptron":
        first, second = jax.random.split(jax.random.key(seed))
        return cls(
            jax.random.normal(first, (inputs, HIDDEN)) / inputs**0.5,
            jnp.zeros(HIDDEN),
            0.1 * jax.random.normal(second, (HIDDEN + 1, outputs)),
        )

    def __call__(self, rows: Array) -> Array:
        hidden = jnp.tanh(rows @ self.inner + self.bias)
        return jnp.concatenate([hidden, jnp.ones((*hidden.shape[:-1], 1))], axis=-1) @ self.outer


def describe(data: Data) -> np.ndarray:
    """What a site's data are, weight by weight: sums that a site computes by itself, as a row of numbers for each."""
    X, y = data
    information, score = np.sum(X**2, axis=0) / 4, X.T @ (y - 0.5)
    pull = score / np.sqrt(information)
    others = np.full(WEIGHTS, np.mean(X**2))
    return np.stack([np.log(information), pull, np.full(WEIGHTS, np.log(len(y))), np.log(others)], axis=1)


class InferenceNetwork:
    """From a site's sums to its factor: one perceptron for every weight alike, learnt from factors of other sites."""

    def __init__(self, sites: Sequence[Data], factors: Sequence[Any], seed: int = 0):
        rows = np.stack([describe(data) for data in sites])
        self.centre, self.width = rows.mean(axis=(0, 1)), rows.std(axis=(0, 1))
        # Beside what a flat likelihood would say: how much less curvature there is, and where the pull goes.
        information = np.exp(rows[..., 0])
        found = [
            np.stack([np.asarray(getattr(t, name)) for t in factors])
            for name in ("precision", "precision_times_location")
        ]
        targets = np.stack([np.log(np.maximum(found[0], 1e-3) / information), found[1] / np.sqrt(information)], axis=-1)
        with precision(np.float64):
            self.net = on_host(_train(Perceptron.start(rows.shape[-1], 2, seed), self._scale(rows), targets))

    def _scale(self, rows: np.ndarray) -> np.ndarray:
        return (rows - self.centre) / self.width

    def __call__(self, data: Data) -> MeanField:
        rows = describe(data)
        out = np.asarray(self.net(self._scale(rows)))
        information = np.exp(rows[:, 0])
        return MeanField(out[:, 1] * np.sqrt(information), information * np.exp(out[:, 0]))


@jax.jit
def _train(net: Perceptron, rows: Array, targets: Array) -> Perceptron:
    """Least squares, with rates that fall to zero."""
    optimiser = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))

    def step(carried: Any, _: None) -> tuple[Any, None]:
        net, state = carried
        slope = jax.grad(lambda net: jnp.mean((net(rows) - targets) ** 2) + 1e-4 * jnp.mean(net.outer**2))(net)
        updates, state = optimiser.update(slope, state)
        return (optax.apply_updates(net, updates), state), None

    (net, _), _ = jax.lax.scan(step, (net, optimiser.init(net)), None, length=STEPS)
    return net


def visit(sites: Sequence[Data], factors: Sequence[Family], site: int) -> Family:
    """A site's factor refined, given the factors of all others, guessed or not."""
    others = product([prior_of(MODEL, MODEL.hyper), *(t for m, t in enumerate(factors) if m != site)])
    alone = fit(MODEL.with_prior(others), [sites[site]], solver=SOLVER, schedule=Sequential(1), damping=1.0)
    return alone.factors[0]


def first_pass(sites: Sequence[Data], guess: Guess) -> list[Family]:
    """Factors after every site was visited once, in order; until then a site has the factor that is guessed."""
    rows = [len(y) for _, y in sites]
    factors = [prior_of(MODEL, MODEL.hyper) ** 0] * len(sites)
    for site in range(len(sites)):
        factors[site] = visit(sites, factors, site)
        for later in range(site + 1, len(sites)):
            factors[later] = guess(factors[: site + 1], rows[: site + 1], sites[later])
    return factors


def settle(sites: Sequence[Data], passes: int = 30) -> Any:
    """Where all sites in turns lead to."""
    return fit(MODEL, sites, solver=SOLVER, schedule=Sequential(passes), damping=1.0)


def compare_guesses(say: Say, seeds: Seeds = 3) -> None:
    """Say how far posteriors are from the global optimum, with each guess: the mean over seeds."""
    say(f"{UNSEEN} sites join {SEEN}: KL from the optimum of all before they are asked, and after each was asked once;")
    say(f"and of those {UNSEEN} alone, after a first pass in which those to come had guessed factors.")
    for alike in (True, False):
        say("Sites that are alike:" if alike else "Sites that differ:")
        found = [measure(seed, alike) for seed in range(seeds)]
        for name in found[0]:
            values = np.mean([one[name] for one in found], axis=0)
            say(f"  {name}: " + ", ".join(f"{value:.3g}" for value in values))


def measure(seed: int, alike: bool = False) -> dict[str, list[float]]:
    """For each guess the three divergences that `compare_guesses` tells, of one seed."""
    sites = make_sites(SEEN + UNSEEN, seed, alike)
    seen, unseen = sites[:SEEN], sites[SEEN:]
    rows = [len(y) for _, y in seen]
    before, best, best_of_unseen = settle(seen), settle(sites).posterior, settle(unseen).posterior
    network = InferenceNetwork(seen, before.factors, seed)

    def guess_from_data(factors: Sequence[Family], rows: Sequence[int], data: Data) -> Family:
        return network(data)

    found = {}
    for name, guess in {**GUESSES, "the inference network": guess_from_data}.items():
        factors = [*before.factors, *(guess(before.factors, rows, data) for data in unseen)]
        values = [_distance(factors, best)]
        for site in range(SEEN, SEEN + UNSEEN):
            factors[site] = visit(sites, factors, site)
        values += [_distance(factors, best), _distance(first_pass(unseen, guess), best_of_unseen)]
        found[name] = values
    return found


def _distance(factors: Sequence[Family], best: Family) -> float:
    return float(product([prior_of(MODEL, MODEL.hyper), *factors]).kl(best))
