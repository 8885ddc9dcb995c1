"""Networks over sites that know few classes, with all defaults: error after how many rounds, and the largest jump.

`partita study one-class` has ten sites of one class each, under either schedule; `partita study two-class` has one
hundred sites of two classes each, as in the experiments of Swaroop, Khan and Doshi-Velez (2025) on MNIST.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Option

from partita.datasets import split
from partita.fitting import events
from partita.foundation.checks import check_one_of
from partita.models import Network
from partita.server.schedules import Asynchronous, Schedule, Synchronous
from partita.studies.images import Images
from partita.studies.options import Folder, Quick, Say, Seeds, Validate

SCHEDULES = ("synchronous", "asynchronous")
# After these rounds the error is told; jumps count from this round on.
TOLD = (1, 2, 3, 5, 10, 20, 30, 50, 75, 100, 125, 150, 200)
SETTLED = 50


@dataclass(frozen=True)
class Course:
    """Test errors in per cent: of the mean of the weights after every round, and of all predictions at the end."""

    errors: np.ndarray
    at_end: float
    nll: float

    def jump(self, after: int = SETTLED) -> float:
        """By how much the error is higher than after some earlier round, at most, from a round on."""
        late = self.errors[after - 1 :]
        return float(np.max(late - np.minimum.accumulate(late))) if len(late) else 0.0


def deal_two_classes(data: Sequence[np.ndarray], sites: int, seed: int) -> list[tuple[np.ndarray, ...]]:
    """Rows sorted by label and cut into twice as many parts as there are sites, of which each is dealt two."""
    order = np.argsort(data[1], kind="stable")
    parts = np.array_split(order, 2 * sites)
    dealt = np.random.default_rng(seed).permutation(2 * sites).reshape(sites, 2)
    return [tuple(array[np.concatenate([parts[one] for one in pair])] for array in data) for pair in dealt]


def follow(
    images: Images, model: Network, shards: Sequence[Any], schedule: Schedule, seed: int, say: Say = lambda words: None
) -> Course:
    """Fit with all defaults, look at the error after every round, and tell of some."""
    errors, last = [], None
    for event in events(model, shards, schedule=schedule, seed=seed):
        if event.version % len(shards) == 0:
            location = event.posterior.as_mean_field("few classes").location
            outputs = np.asarray(model.network(location, images.test[0]))
            errors.append(100 * float(np.mean(np.argmax(outputs, axis=1) != images.test[1])))
            if len(errors) in TOLD:
                say(f"seed {seed}, round {len(errors)}: error of the mean {errors[-1]:.2f} %")
        last = event.posterior
    assert last is not None
    score = images.score(model, last)
    course = Course(np.array(errors), 100 * score["error"], score["nll"])
    say(
        f"seed {seed}, at the end: error {course.at_end:.2f} %, NLL {course.nll:.4f}; largest rise after round "
        f"{SETTLED}: {course.jump():.2f} points"
    )
    return course


def run_one_class(
    say: Say,
    schedule: Annotated[str, Option(help="synchronous or asynchronous.")] = "synchronous",
    rounds: Annotated[int, Option(min=1, help="How many rounds, of ten updates each.")] = 150,
    seeds: Seeds = 3,
    quick: Quick = False,
    validate: Validate = False,
    folder: Folder = None,
    table: Annotated[Path | None, Option(help="Other data: an .npz file with X, y, X_test and y_test.")] = None,
) -> None:
    check_one_of("--", SCHEDULES, schedule=schedule)
    name = "digits" if quick else "mnist"
    images = Images.load(name, folder, validate=validate) if table is None else Images.read(table, validate)
    sites = int(images.train[1].max()) + 1
    plan = Synchronous(rounds) if schedule == "synchronous" else Asynchronous(rounds * sites)
    for seed in range(seeds):
        model = images.network([50] if quick else [200], init_seed=seed)
        follow(images, model, split(images.train, sites, "whole-labels", seed=seed), plan, seed, say)


def run_two_class(
    say: Say,
    rounds: Annotated[int, Option(min=1, help="How many rounds.")] = 100,
    seeds: Seeds = 3,
    quick: Quick = False,
    validate: Validate = False,
    folder: Folder = None,
) -> None:
    images = Images.load("digits" if quick else "mnist", folder, validate=validate)
    sites, hidden = (20, [50]) if quick else (100, [200, 100])
    for seed in range(seeds):
        model = images.network(hidden, init_seed=seed)
        shards = deal_two_classes(images.train, sites, seed)
        follow(images, model, shards, Synchronous(rounds), seed, say)
