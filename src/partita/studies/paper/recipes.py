"""The paper's own experiments on federated networks (Section 7.1 and its appendix), with its grids of settings.

The paper does not print its grids, its lengths, or how wide posteriors are to begin with: what is said of them here is
ours. Every method visits all rows equally often.
"""

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from partita.datasets import split
from partita.expectations import GaussNewton
from partita.families import Family
from partita.fitting import events
from partita.foundation.plain import Row
from partita.models import Network
from partita.server.schedules import Synchronous
from partita.site.worker import load_shards
from partita.solvers import Gradient
from partita.studies.images import Images
from partita.studies.pages import KEYS, Experiment, Presentation, choose_names
from partita.studies.paper.panels import draw_panels, share_budgets
from partita.studies.paper.workers import Crew, Stage, measure_step
from partita.studies.runner import Cell
from partita.studies.speed import measure_network

SITES = 10
SETTINGS = ("iid", "non-iid")
# The standard deviation of all weights to begin with.
START_SCALE = 0.05
# What a row costs where Adam steps, and where a posterior is looked at, in rows of a pass of messages.
STEP, LOOK = 2.2, 10.0

SCHEMES = {
    "gvi": "global VI: a node that sees all data, batches of one class where the setting is non-iid. gvi-1 has one "
    "core; gvi-10 are the same steps, each shared by ten cores that are sent parameters and return gradients",
    "gvi-shards": "global VI over workers: at every step each of ten sends the gradient of a batch of its own",
    "bcm-same": "committee machine, every worker with the same prior, polled on the way",
    "bcm-split": "committee machine, the prior split between workers, polled on the way",
    "pvi-one-pass": "PVI, each worker once, for some epochs: continual learning",
    "pvi-sync": "PVI synchronous: a local epoch of Adam, damping at the server",
    "pvi-async": "PVI asynchronous: the same, an update whenever a worker has finished",
    "over-fitting": "PVI synchronous for longer, with training rows looked at as well",
    "default": "what fit does by itself: one message per site and round, an optimiser at the server",
    "default-exact": "the same with the gradient of Property 4 in place of the Fisher information in messages",
}
# The expectations of what sites send where they send messages.
MESSAGES = {"default": GaussNewton(), "default-exact": GaussNewton(exact=True)}


@dataclass(frozen=True)
class Plan:
    """Grids, and how long methods run: in passes over all data, which are rounds where workers answer by epochs.

    `slow` are settings, schemes, rates, dampings and passes of runs that are given more time.
    """

    rounds: int
    rates: tuple[float, ...]
    dampings: tuple[float, ...]
    slow: tuple[tuple[str, str, float, float | None, int], ...]
    one_pass: tuple[int, ...]
    too_long: tuple[tuple[float, float, int], ...]
    batch: int = 200
    hidden: int = 200


# What a core does in an hour; what a day is needed for; digits.
SHORT = Plan(
    rounds=30,
    rates=(0.0005, 0.002, 0.005),
    dampings=(0.5, 0.8, 0.9),
    slow=(
        ("iid", "pvi-sync", 0.005, 0.9, 120),
        ("non-iid", "gvi", 0.0002, None, 120),
        ("non-iid", "gvi", 0.0005, None, 120),
        ("non-iid", "pvi-sync", 0.0005, 0.9, 120),
    ),
    one_pass=(1, 3, 10),
    too_long=((0.005, 0.8, 80),),
)
FULL = Plan(
    rounds=500,
    rates=(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01),
    dampings=(0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
    slow=(
        *(("non-iid", "gvi", rate, None, 2000) for rate in (0.00005, 0.0001, 0.0002)),
        *(("non-iid", "pvi-sync", rate, damping, 2000) for rate in (0.0001, 0.0002) for damping in (0.9, 0.95)),
    ),
    one_pass=(1, 2, 5, 10, 20, 50),
    too_long=((0.005, 0.9, 1000), (0.01, 0.9, 1000)),
)
QUICK = Plan(
    rounds=10,
    rates=(0.005,),
    dampings=(0.8, 0.9),
    slow=(("non-iid", "gvi", 0.001, None, 20),),
    one_pass=(1, 3),
    too_long=((0.01, 0.9, 20),),
    batch=20,
    hidden=50,
)


@dataclass(frozen=True)
class Recipe:
    """A scheme with its settings.

    `length` is in passes over all data; in one pass, in epochs of each worker. It is in the name where a run is `slow`.
    """

    scheme: str
    length: int
    rate: float | None = None
    damping: float | None = None
    slow: bool = False

    @property
    def name(self) -> str:
        return self.named(self.scheme)

    def named(self, scheme: str) -> str:
        rate = "" if self.rate is None else f" rate {self.rate:g}"
        damping = "" if self.damping is None else f" damping {self.damping:g}"
        length = f" epochs {self.length}" if self.scheme == "pvi-one-pass" else ""
        return scheme + rate + damping + length + (f" passes {self.length}" if self.slow else "")

    def is_shown(self, passes: float) -> bool:
        """Whether there is a row: after few passes often, then ever more rarely; always at the end."""
        step = 10 if passes <= 100 else 50
        return self.scheme == "pvi-one-pass" or passes in (1, 3, 5, self.length) or passes % step == 0

    @property
    def looks(self) -> int:
        shown = SITES if self.scheme == "pvi-one-pass" else sum(map(self.is_shown, range(1, self.length + 1)))
        return shown * (2 if self.scheme == "over-fitting" else 1)


def recipes(setting: str, plan: Plan) -> list[Recipe]:
    """All that are run in a setting, those first that there are few of."""
    grid = itertools.product(("pvi-sync", "pvi-async"), plan.rates, reversed(plan.dampings))
    slow = [
        Recipe(scheme, length, rate, damping, slow=True)
        for where, scheme, rate, damping, length in plan.slow
        if where == setting
    ]
    return [
        *(Recipe(scheme, plan.rounds) for scheme in MESSAGES),
        *(Recipe(scheme, plan.rounds, rate) for scheme in ("gvi", "gvi-shards") for rate in plan.rates),
        *slow,
        *(Recipe(scheme, plan.rounds, rate) for scheme in ("bcm-same", "bcm-split") for rate in plan.rates),
        *(Recipe("pvi-one-pass", epochs, rate) for rate in plan.rates for epochs in plan.one_pass),
        *(Recipe(scheme, plan.rounds, rate, damping) for scheme, rate, damping in grid),
        *(Recipe("over-fitting", length, rate, damping) for rate, damping, length in plan.too_long),
    ]


def paper_experiment(
    images: Images, settings: Sequence[str], method: str | None, seeds: int, plan: Plan, reach: float
) -> Experiment:
    """All cells of the paper's experiment, and how they are shown.

    `method` names schemes or single cells; without it there are all of them.
    """
    known = {setting: recipes(setting, plan) for setting in settings}
    everything = [recipe for each in known.values() for recipe in each]
    names = choose_names(method, list(dict.fromkeys([*SCHEMES, *(recipe.name for recipe in everything)])))
    cells = [
        _cell(images, recipe, setting, seed, plan)
        for seed in range(seeds)
        for setting in settings
        for recipe in known[setting]
        if names is None or recipe.name in names or recipe.scheme in names
    ]
    shown = Presentation(
        "Federated Bayesian networks, as in the paper",
        charts=(),
        keys=(*KEYS, "scheme", "rate", "damping", "epochs", "held", "train_error", "train_nll"),
        reach=reach,
        pictures=draw_panels,
        chosen=lambda rows: share_budgets(rows, plan.rounds, reach),
    )
    return Experiment(shown, cells, lambda: measure_network(images.network([plan.hidden])))


def _cell(images: Images, recipe: Recipe, setting: str, seed: int, plan: Plan) -> Cell:
    rows = len(images.train[1])
    work = rows * recipe.length * STEP + len(images.test[1]) * LOOK * recipe.looks
    settings = {
        **dataclasses.asdict(recipe),
        "batch": plan.batch,
        "hidden": plan.hidden,
        "start": START_SCALE,
        "rows": rows,
        "digest": float(images.test[0].sum()),
    }
    return Cell(
        recipe.name,
        setting,
        seed,
        work,
        settings,
        lambda: follow(images, recipe, setting, seed, plan),
        SCHEMES[recipe.scheme],
    )


def shards_of(images: Images, setting: str, seed: int, pooled: bool) -> list[tuple[np.ndarray, ...]]:
    """Ten sites, at random or with one class each; pooled data are sorted by class where the setting is non-iid."""
    if pooled:
        X, y = images.train
        order = np.argsort(y, kind="stable") if setting == "non-iid" else np.arange(len(y))
        return [(X[order], y[order])]
    return list(split(images.train, SITES, "iid" if setting == "iid" else "whole-labels", seed=seed))


def deal_rows(shards: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """All rows in one table where rows that follow each other are from all sites, in proportion to their sizes."""
    places = np.concatenate([(np.arange(len(y)) + 0.5) / len(y) for _, y in shards])
    order = np.argsort(places, kind="stable")
    X, y = (np.concatenate(parts)[order] for parts in zip(*shards, strict=True))
    return X, y


def follow(images: Images, recipe: Recipe, setting: str, seed: int, plan: Plan) -> Iterator[Row]:
    """Rows of one cell."""
    if recipe.scheme in MESSAGES:
        yield from _follow_default(images, recipe, setting, seed, plan)
        return
    assert recipe.rate is not None
    model = images.network([plan.hidden], start_scale=START_SCALE, init_seed=seed)
    crew, solver = gather_crew(images, model, recipe, setting, seed, plan)
    # What a step takes with a tenth of a batch, and with a whole one: for clocks of workers that take steps together.
    tenth, whole = (
        measure_step(model, crew.workers[0].problem.shard, dataclasses.replace(solver, batch_size=size, blocks=False))
        if recipe.scheme.startswith("gvi")
        else 0.0
        for size in (max(1, plan.batch // SITES), plan.batch)
    )
    for stage in walk(crew, recipe, seed):
        if not recipe.is_shown(stage.passes):
            continue
        found = look(images, model, stage.posterior, recipe)
        together = dataclasses.replace(stage, messages=SITES * stage.messages)
        if recipe.scheme == "gvi":
            yield count(recipe, stage) | found | {"scheme": "gvi-1", "method": recipe.named("gvi-1")}
            together = dataclasses.replace(together, seconds=tenth * stage.messages / 2)
            yield count(recipe, together) | found | {"scheme": "gvi-10", "method": recipe.named("gvi-10")}
        elif recipe.scheme == "gvi-shards":
            yield count(recipe, dataclasses.replace(together, seconds=whole * stage.messages / 2)) | found
        else:
            yield count(recipe, stage) | found


def gather_crew(
    images: Images, model: Network, recipe: Recipe, setting: str, seed: int, plan: Plan
) -> tuple[Crew, Gradient]:
    """Ten workers, or for global VI one that sees all rows, in batches as the setting has them."""
    assert recipe.rate is not None
    solver = Gradient("adam", recipe.rate, 1, batch_size=plan.batch, tolerance=0.0)
    raw = shards_of(images, setting, seed, recipe.scheme == "gvi")
    if recipe.scheme == "gvi" and setting == "non-iid":
        solver = dataclasses.replace(solver, blocks=True)
    elif recipe.scheme == "gvi-shards":
        raw = [deal_rows(raw)]
        solver = dataclasses.replace(solver, batch_size=SITES * plan.batch, blocks=True)
    return Crew.gather(model, load_shards(model, raw), solver, seed), solver


def walk(crew: Crew, recipe: Recipe, seed: int) -> Iterator[Stage]:
    """The stages of a recipe with these workers."""
    damping = 0.0 if recipe.damping is None else recipe.damping
    sizes = [worker.rows for worker in crew.workers]
    match recipe.scheme:
        case "gvi" | "gvi-shards":
            return crew.alone(recipe.length)
        case "bcm-same":
            return crew.committee(recipe.length, [crew.prior] * len(sizes))
        case "bcm-split":
            return crew.committee(recipe.length, [crew.prior ** (rows / sum(sizes)) for rows in sizes])
        case "pvi-one-pass":
            return crew.one_pass(recipe.length)
        case "pvi-async":
            return crew.asynchronous(recipe.length, damping, seed)
    return crew.synchronous(recipe.length, damping)


def look(images: Images, model: Network, posterior: Family, recipe: Recipe) -> Row:
    trained = images.score_training(model, posterior) if recipe.scheme == "over-fitting" else {}
    return {**images.score(model, posterior), **trained, "free_energy": None}


def count(recipe: Recipe, stage: Stage) -> Row:
    """What a row says beside how good predictions are."""
    return {
        "round": stage.passes,
        "seconds": stage.seconds,
        "messages": stage.messages,
        "bytes": stage.messages * stage.posterior.nbytes,
        "scheme": recipe.scheme,
        "rate": recipe.rate,
        "damping": recipe.damping,
        "epochs": recipe.length,
        "held": stage.held,
    }


def _follow_default(images: Images, recipe: Recipe, setting: str, seed: int, plan: Plan) -> Iterator[Row]:
    """What `fit` does with a network by itself. Its sites share a processor: each of them takes the same time."""
    model = images.network([plan.hidden], init_seed=seed)
    shards = shards_of(images, setting, seed, False)
    # What is compiled in a first round does not count as work.
    expectation = MESSAGES[recipe.scheme]
    next(events(model, shards, schedule=Synchronous(1), expectation=expectation, seed=seed))
    seconds, began = 0.0, (time.perf_counter(), time.process_time())
    for event in events(model, shards, schedule=Synchronous(recipe.length), expectation=expectation, seed=seed):
        elapsed, processor = time.perf_counter() - began[0], time.process_time() - began[1]
        # Sites tell elapsed seconds; of these, the share in which the processor worked for us.
        seconds += max(work.seconds for work in event.work) * min(1.0, processor / elapsed)
        if recipe.is_shown(round(event.round)):
            posterior = event.posterior.as_mean_field("reproduce")
            stage = Stage(event.round, seconds, event.messages, posterior)
            found = look(images, model, event.posterior, recipe)
            yield count(recipe, stage) | {"bytes": event.bytes} | found
        began = (time.perf_counter(), time.process_time())
