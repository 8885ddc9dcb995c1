"""Digits that come two classes at a time, to one network with one head: what is remembered of earlier ones, and how.

`partita study rehearsal` has one pass of PVI, which forgets (Section 7.1 of the paper); the same with memories, which
are sites that are refined again; with generative replay, which is a site whose rows are drawn; and all sites in rounds.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from partita.datasets import hold_out, random_rows
from partita.families import Family
from partita.fitting import events, fit
from partita.models import Network, prior_of
from partita.predictive import Replay
from partita.server.schedules import OnePass, Rehearsal, Synchronous
from partita.solvers import NaturalGradient
from partita.studies.images import Images
from partita.studies.options import Say, Seeds

TASKS, KEPT, REPLAYED = 5, 40, 300
SOLVER = NaturalGradient(precision_rate=0.02, epochs=16, batch_size=20)
WAYS = ("one pass", "memories", "replay", "all sites in rounds")
ROUNDS = 40
Data = tuple[np.ndarray, np.ndarray]


def deal_tasks(images: Images) -> list[Data]:
    """Two classes for each task."""
    X, y = images.train
    return [(X[y // 2 == task], y[y // 2 == task]) for task in range(TASKS)]


def draw_inputs(tasks: Sequence[Data], rows: int, generator: np.random.Generator) -> np.ndarray:
    """Rows of earlier tasks, from one Gaussian for each of their classes: of the data only its moments were kept."""
    parts = []
    for X, y in tasks:
        for label in np.unique(y):
            own = X[y == label]
            spread = np.cov(own.T) + 1e-4 * np.eye(X.shape[1])
            parts.append(generator.multivariate_normal(own.mean(axis=0), spread, rows // (2 * len(tasks))))
    return np.concatenate(parts).astype(np.float32)


def follow(way: str, images: Images, model: Network, seed: int) -> Iterator[Family]:
    """The posterior after each task; of what sees all of them together, the last one alone."""
    tasks = deal_tasks(images)
    generator = np.random.default_rng(seed)
    settings: dict[str, Any] = {"solver": SOLVER, "damping": 1.0, "seed": seed}
    if way == "replay":
        yield from _replay(model, tasks, generator, settings)
        return
    if way == "memories":
        kept = [hold_out(task, random_rows(task[0], KEPT, generator)) for task in tasks]
        sites = [*(rest for _, rest in kept), *(memory for memory, _ in kept)]
        plan = Rehearsal(tasks=TASKS)
        ends = {plan.total(TASKS + TASKS) - sum(2 + one for one in range(task + 1, TASKS)) for task in range(TASKS)}
        yield from (
            event.posterior for event in events(model, sites, schedule=plan, **settings) if event.version in ends
        )
        return
    if way == "one pass":
        yield from (event.posterior for event in events(model, tasks, schedule=OnePass(), **settings))
        return
    yield fit(model, tasks, schedule=Synchronous(ROUNDS), seed=seed).posterior


def _replay(
    model: Network, tasks: Sequence[Data], generator: np.random.Generator, settings: dict[str, Any]
) -> Iterator[Family]:
    """Each task with one more site, whose factor stands for all tasks before and whose rows are drawn."""
    prior = prior_of(model, model.hyper)
    posterior = fit(model, [tasks[0]], schedule=OnePass(), **settings).posterior
    yield posterior
    for number in range(1, len(tasks)):
        drawn = draw_inputs(tasks[:number], REPLAYED, generator)
        replay = Replay(model, posterior, drawn, tasks[0][1][:1], seed=int(generator.integers(2**31)))
        sites, factors = [tasks[number], replay], [prior**0, posterior / prior]
        # In rounds, because whoever is refined last would overrule the other.
        rounds: dict[str, Any] = {"schedule": Synchronous(ROUNDS), "start": posterior, "seed": settings["seed"]}
        posterior = fit(model, sites, factors=factors, **rounds).posterior
        yield posterior


def compare_rehearsals(say: Say, seeds: Seeds = 3) -> None:
    """Say the test error on all classes after the last task, and on those seen so far after each."""
    images = Images.load("digits")
    X, y = images.test
    for way in WAYS:
        courses = []
        for seed in range(seeds):
            model = images.network([50], init_seed=seed)
            posteriors = list(follow(way, images, model, seed))
            seen = [np.flatnonzero(y < 2 * (TASKS - len(posteriors) + number + 1)) for number in range(len(posteriors))]
            scores = [
                Images(images.train, (X[rows], y[rows])).score(model, posterior)["error"]
                for rows, posterior in zip(seen, posteriors, strict=True)
            ]
            courses.append([100 * score for score in scores])
        means, spread = np.mean(courses, axis=0), np.ptp([course[-1] for course in courses]) / 2
        told = ", ".join(f"{value:.1f}" for value in means)
        say(
            f"{way}: error {means[-1]:.1f} ± {spread:.1f} % on all ten classes (after each task, of those seen: {told})"
        )
