"""Global VI for networks: the paper's appendix on stochastic natural gradients, and two solvers more."""

from collections.abc import Iterator, Sequence
from typing import Any

from partita.expectations import LocalReparameterisation
from partita.fitting import events
from partita.foundation.plain import Row
from partita.server.schedules import Synchronous
from partita.solvers import FixedPoint, Gradient, NaturalGradient, Solver
from partita.studies.images import Images, decaying_adam
from partita.studies.options import Folder, Methods, Quick, Seeds, Sweep, Validate
from partita.studies.pages import Experiment, Presentation, choose_names
from partita.studies.runner import Cell
from partita.studies.speed import measure_network

BATCH = 200
# The rates of each solver; the first did best after five epochs on validation data, with 200 units.
RATES: dict[str, tuple[float, ...]] = {
    "adam": (0.001, 0.0005, 0.002),
    "adam-decaying": (0.003, 0.001, 0.01),
    "sngd": (0.003, 0.001, 0.01),
    "natural-gradient": (0.002, 0.001, 0.004),
}


def solver(name: str, rate: float, epochs: int, rows: int) -> tuple[Solver, Any]:
    """A solver with the expectation that goes with it."""
    plain = LocalReparameterisation(samples=1, fixed=False)
    if name == "adam":
        return Gradient("adam", rate, epochs, batch_size=BATCH, tolerance=0.0), plain
    if name == "adam-decaying":
        optimiser = decaying_adam(rate, epochs * -(-rows // BATCH))
        return Gradient(optimiser, epochs=epochs, batch_size=BATCH, tolerance=0.0), plain
    if name == "sngd":
        return FixedPoint(epochs * -(-rows // BATCH), rate, BATCH), plain
    return NaturalGradient(rate, epochs=epochs, batch_size=BATCH), None


def experiment(
    method: Methods = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    sweep: Sweep = False,
    validate: Validate = False,
    folder: Folder = None,
) -> Experiment:
    """The study that its options ask for."""
    names = choose_names(method, list(RATES))
    images = Images.load("digits" if quick else "mnist", folder, validate=validate)
    made = cells(images, names, seeds, (50,) if quick else (200, 500), (5, 20), sweep)
    hidden = (50,) if quick else (200,)
    return Experiment(Presentation("Solvers for global VI"), made, lambda: measure_network(images.network(hidden)))


def cells(
    images: Images,
    names: Sequence[str] | None,
    seeds: int,
    widths: Sequence[int] = (200, 500),
    epochs: Sequence[int] = (5, 20),
    sweep: bool = False,
) -> list[Cell]:
    """Every solver for every width; with `sweep`, at several rates."""
    made = []
    for seed in range(seeds):
        for width in widths:
            for name, rates in RATES.items():
                if names is None or name in names:
                    for rate in rates if sweep else rates[:1]:
                        made.append(_cell(images, name, rate, width, seed, epochs, sweep))
    return made


def _cell(images: Images, name: str, rate: float, width: int, seed: int, epochs: Sequence[int], sweep: bool) -> Cell:
    rows = len(images.train[1])
    work = rows * sum(epochs) * width / widths_unit(images)
    settings = {"rate": rate, "epochs": list(epochs), "rows": rows, "digest": float(images.test[0].sum())}
    method = f"{name} {rate:g}" if sweep else name
    return Cell(method, f"{width} units", seed, work, settings, lambda: _rows(images, name, rate, width, seed, epochs))


def widths_unit(images: Images) -> int:
    """The width of the network that speed is measured with."""
    return 200 if images.train[0].shape[1] > 100 else 50


def _rows(images: Images, name: str, rate: float, width: int, seed: int, epochs: Sequence[int]) -> Iterator[Row]:
    model = images.network([width], start_scale=0.03, init_seed=seed)
    for number in epochs:
        chosen, expectation = solver(name, rate, number, len(images.train[1]))
        settings: Any = {"expectation": expectation, "schedule": Synchronous(1), "damping": 1.0, "seed": seed}
        run = events(model, [images.train], solver=chosen, **settings)
        for event in run:
            yield {
                "round": number,
                "seconds": event.seconds,
                "messages": 0,
                "bytes": 0,
                **images.score(model, event.posterior),
                "free_energy": event.free_energy,
            }
