"""Federated training of a Bayesian network: Section 7.1 of the paper and its appendix."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Option

from partita.families import Family
from partita.fitting import events, evidence
from partita.foundation.checks import check_one_of
from partita.foundation.plain import Row
from partita.models import Network
from partita.server.events import Event
from partita.server.rules import Optimiser
from partita.server.schedules import Asynchronous, OnePass, Synchronous
from partita.solvers import Gradient, NaturalGradient
from partita.studies.committee import split_prior
from partita.studies.images import Images
from partita.studies.options import Folder, Methods, Quick, Seeds, Sweep, Validate
from partita.studies.pages import Experiment, Presentation, choose_names
from partita.studies.paper import recipes
from partita.studies.paper.recipes import SETTINGS, SITES, shards_of
from partita.studies.runner import Cell
from partita.studies.schemes import Scheme
from partita.studies.speed import measure_network


@dataclass(frozen=True)
class Scale:
    """How large a study is: rounds of synchronous PVI, from which others follow, and rows of a mini-batch.

    `reach` is the test error to which messages are counted.
    """

    rounds: int
    batch: int
    hidden: tuple[int, ...]
    reach: float

    @property
    def local(self) -> int:
        """How many rounds a method has that takes a local epoch in each."""
        return max(2, self.rounds // 6)

    @property
    def alone(self) -> int:
        """How many epochs a method has that communicates once, or not at all."""
        return max(2, self.rounds // 12)

    def adam(self, epochs: int = 1, learning_rate: float = 0.002, **settings: Any) -> Gradient:
        return Gradient("adam", learning_rate, epochs, batch_size=self.batch, tolerance=0.0, **settings)


FULL = Scale(rounds=200, batch=200, hidden=(200,), reach=0.03)
QUICK = Scale(rounds=60, batch=20, hidden=(50,), reach=0.06)


def methods(setting: str, scale: Scale) -> dict[str, Scheme]:
    """All methods of the comparison, by name."""
    local, alone = scale.local, scale.alone
    committee = Scheme("Bayesian committee machine", Synchronous(1), scale.adam(), 1.0, epochs=alone, polls=2)
    paper = Scheme(
        "PVI synchronous as in the paper: a local epoch of Adam, fixed damping 1/M",
        Synchronous(local),
        scale.adam(),
        "1/M",
        start_scale=0.05,
        epochs=local,
    )
    return {
        "global-vi": Scheme(
            "global VI: one node sees all data, in mini-batches of one class at a time where the setting is non-iid",
            Synchronous(alone),
            scale.adam(1, 0.001, blocks=setting == "non-iid"),
            1.0,
            pooled=True,
            start_scale=0.02,
            epochs=alone,
        ),
        "bcm-same": dataclasses.replace(committee, words="Bayesian committee machine, every site with the same prior"),
        "bcm-split": dataclasses.replace(committee, words="the same with the prior split", split_prior=True),
        # Precisions have to follow the data at once: what a site leaves behind holds all later ones back.
        "pvi-one-pass": Scheme(
            "PVI, each site once: continual learning",
            OnePass(),
            NaturalGradient(precision_rate=0.02, epochs=alone, batch_size=scale.batch),
            1.0,
            epochs=alone,
        ),
        "pvi-sync": Scheme(
            "PVI synchronous, one message per site and round", Synchronous(scale.rounds), epochs=scale.rounds
        ),
        "pvi-sync-local": dataclasses.replace(
            paper,
            words="PVI synchronous, a local epoch of Adam per site and round, optimiser at the server",
            damping=Optimiser(first_step=1 / SITES),
        ),
        "pvi-adam": paper,
        "pvi-async": Scheme(
            "PVI asynchronous, one message at a time", Asynchronous(scale.rounds * SITES), epochs=scale.rounds
        ),
    }


def sweeps(scale: Scale) -> dict[str, Scheme]:
    """The paper's PVI with other learning rates, damping factors and numbers of local epochs."""
    base = methods("iid", scale)["pvi-adam"]
    rates = {f"pvi-adam rate {rate:g}": {"solver": scale.adam(1, rate)} for rate in (5e-4, 1e-3, 5e-3)}
    shares = {f"pvi-adam damping {share:g}": {"damping": share} for share in (0.2, 0.4)}
    epochs = {
        f"pvi-adam epochs {n}": {"solver": scale.adam(n), "schedule": Synchronous(max(1, scale.local // n))}
        for n in (2, 5)
    }
    changes: dict[str, dict[str, Any]] = {**rates, **shares, **epochs}
    return {name: dataclasses.replace(base, **change) for name, change in changes.items()}


def experiment(
    setting: Annotated[str, Option(help="iid, non-iid or both.")] = "both",
    method: Methods = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    rounds: Annotated[int | None, Option(min=6, help="Of synchronous PVI; others follow.")] = None,
    sweep: Sweep = False,
    validate: Validate = False,
    folder: Folder = None,
    paper: Annotated[
        bool, Option("--paper", help="The paper's own recipes and grids: local epochs of Adam, damping at the server.")
    ] = False,
    full: Annotated[bool, Option("--full", help="With --paper, finer grids and many more rounds: days.")] = False,
) -> Experiment:
    """The study that its options ask for."""
    if setting != "both":
        check_one_of("--", SETTINGS, setting=setting)
    scale = QUICK if quick else FULL
    if paper:
        plan = recipes.QUICK if quick else recipes.FULL if full else recipes.SHORT
        plan = plan if rounds is None else dataclasses.replace(plan, rounds=rounds)
        images = Images.load("digits" if quick else "mnist", folder, validate=validate)
        chosen = SETTINGS if setting == "both" else (setting,)
        return recipes.paper_experiment(images, chosen, method, seeds, plan, scale.reach)
    scale = scale if rounds is None else dataclasses.replace(scale, rounds=rounds)
    names = choose_names(method, [*methods("iid", scale), *(sweeps(scale) if sweep else {})])
    images = Images.load("digits" if quick else "mnist", folder, validate=validate)
    made = cells(images, SETTINGS if setting == "both" else (setting,), names, seeds, scale, sweep)
    shown = Presentation("Federated Bayesian networks", reach=scale.reach)
    return Experiment(shown, made, lambda: measure_network(images.network(scale.hidden)))


def cells(
    images: Images,
    settings: Sequence[str],
    names: Sequence[str] | None,
    seeds: int,
    scale: Scale = FULL,
    sweep: bool = False,
) -> list[Cell]:
    """Every method in every setting, seed by seed."""
    made = []
    for seed in range(seeds):
        for setting in settings:
            table = {**methods(setting, scale), **(sweeps(scale) if sweep else {})}
            for name, scheme in table.items():
                if names is None or name in names:
                    made.append(_cell(images, name, scheme, setting, seed, scale.hidden))
    return made


def _cell(images: Images, name: str, scheme: Scheme, setting: str, seed: int, hidden: Sequence[int]) -> Cell:
    rows = len(images.train[1])
    settings = {
        "method": _fingerprint(scheme),
        "hidden": list(hidden),
        "rows": rows,
        "test": len(images.test[1]),
        "digest": float(images.test[0].sum()),
    }
    work = rows * scheme.epochs * (1 + scheme.polls) / 2
    return Cell(name, setting, seed, work, settings, lambda: _rows(images, scheme, setting, seed, hidden), scheme.words)


def _fingerprint(scheme: Scheme) -> str:
    """What tells schemes apart; it names them as it always did, so that cells finished earlier are found."""
    return repr(dataclasses.replace(scheme, words="")).replace("Scheme(", "Method(", 1)


def _rows(images: Images, scheme: Scheme, setting: str, seed: int, hidden: Sequence[int]) -> Iterator[Row]:
    model = images.network(hidden, start_scale=scheme.start_scale, init_seed=seed)
    shards = shards_of(images, setting, seed, scheme.pooled)
    for poll in range(1, scheme.polls + 1):
        shown = scheme
        if scheme.polls > 1:
            assert isinstance(scheme.solver, Gradient)
            part = max(1, round(scheme.epochs * poll / scheme.polls))
            shown = dataclasses.replace(scheme, solver=dataclasses.replace(scheme.solver, epochs=part))
        yield from _run(images, shown, model, shards, seed)


def _run(images: Images, scheme: Scheme, model: Network, shards: Sequence[Any], seed: int) -> Iterator[Row]:
    if scheme.split_prior:
        assert scheme.solver is not None
        committee = split_prior(model, shards, scheme.solver, seed)
        yield _row(images, model, committee.history[-1], committee.posterior, None)
        return
    last = None
    for event in events(
        model, shards, solver=scheme.solver, schedule=scheme.schedule, damping=scheme.damping, seed=seed
    ):
        last = event
        if _is_shown(event, scheme):
            yield _row(images, model, _count(event, scheme), event.posterior, event.free_energy)
    if last is not None and not _is_shown(last, scheme):
        yield _row(images, model, _count(last, scheme), last.posterior, last.free_energy)
    if last is not None and scheme.polls == 1:
        # The last event's free energy is that of the posterior before it.
        at_end = evidence(model, shards, last.posterior, seed=seed)
        yield _row(images, model, _count(last, scheme), last.posterior, at_end)


def _is_shown(event: Event, scheme: Scheme) -> bool:
    """Whether an event has a row: often at first, then every tenth round."""
    if isinstance(scheme.schedule, OnePass):
        return True
    whole = event.version % SITES == 0 or scheme.pooled
    return whole and (event.round <= 20 or round(event.round) % 10 == 0)


def _count(event: Event, scheme: Scheme) -> Row:
    if not scheme.pooled:
        return event.row()
    # Were its data at ten sites, each of them would receive parameters and return a gradient at every step.
    messages = 2 * SITES * event.version * event.work[0].steps
    return event.row() | {"messages": messages, "bytes": messages * event.posterior.nbytes}


def _row(images: Images, model: Network, counted: Row, posterior: Family, free_energy: float | None) -> Row:
    return {
        **{name: counted[name] for name in ("round", "seconds", "messages", "bytes")},
        **images.score(model, posterior),
        "free_energy": free_energy,
    }
