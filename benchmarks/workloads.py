"""Short pieces of work that `benchmarks.against` times in two trees: only with names that all versions have.

As a program, it does the work whose name it reads, again and again, and answers with its seconds.
"""

import atexit
import contextlib
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

ENDLESS = 1_000_000


def binary(sites: int, rows: int, features: int) -> list[Any]:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(sites * rows, features))
    y = (generator.random(len(X)) < 1 / (1 + np.exp(-X @ generator.normal(size=features)))).astype(float)
    return [(X[m * rows : (m + 1) * rows], y[m * rows : (m + 1) * rows]) for m in range(sites)]


def following(number: int, *run: Any, **settings: Any) -> Callable[[], Any]:
    """The next so many events of a run that does not end."""
    import partita as pt

    events = pt.events(*run, **settings)
    return lambda: list(islice(events, number))


def rounds(sites: int, posterior: Any, number: int) -> Callable[[], Any]:
    import partita as pt

    model = pt.models.LogisticRegression(features=20, intercept=False, posterior=posterior)
    schedule = pt.schedules.Synchronous(rounds=ENDLESS)
    return following(number, model, binary(sites, 50, 20), schedule=schedule)


def folds(posterior: Any, number: int) -> Callable[[], Any]:
    import partita as pt

    model = pt.models.LogisticRegression(features=5, posterior=posterior)
    schedule = pt.schedules.Asynchronous(updates=ENDLESS)
    return following(number, model, binary(10, 20, 5), schedule=schedule)


def many_sites(number: int) -> Callable[[], Any]:
    """Folds of one site each, where there are ten thousand."""
    import partita as pt

    model = pt.models.LogisticRegression(features=5, posterior="mean-field")
    schedule = pt.schedules.Sequential(passes=ENDLESS)
    return following(number, model, binary(10_000, 1, 5), schedule=schedule)


def durable(number: int) -> Callable[[], Any]:
    """Updates that are on disk before they are folded."""
    import partita as pt

    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model = pt.models.LogisticRegression(features=50, posterior="mean-field")
    schedule = pt.schedules.Asynchronous(updates=ENDLESS)
    return following(number, model, binary(10, 5, 50), schedule=schedule, run_dir=folder)


def network(number: int) -> Callable[[], Any]:
    import partita as pt

    generator = np.random.default_rng(0)
    X, y = generator.random((2000, 784), np.float32), generator.integers(0, 10, 2000)
    model, schedule = pt.models.Network([784, 100, 10]), pt.schedules.Synchronous(rounds=ENDLESS)
    return following(number, model, pt.datasets.split((X, y), sites=10), schedule=schedule)


def solver(name: str, **settings: Any) -> Callable[[], Any]:
    """One refinement of many steps at one site."""
    import partita as pt

    is_network = name == "NaturalGradient"
    if is_network:
        generator = np.random.default_rng(0)
        shard: Any = generator.random((2000, 100), np.float32), generator.integers(0, 5, 2000)
        model: Any = pt.models.Network([100, 50, 5])
    else:
        (shard,) = binary(1, 1000, 20)
        model = pt.models.LogisticRegression(features=20, intercept=False)
    chosen = getattr(pt.solvers, name)(**settings)
    return lambda: pt.fit(model, [shard], solver=chosen, schedule=pt.schedules.Synchronous(rounds=1), damping=1.0)


def stream(number: int) -> Callable[[], Any]:
    """Batches of a Gaussian process whose points are as many as there may be."""
    import partita as pt

    generator = np.random.default_rng(0)
    model = pt.StreamingGPRegressor(points_per_batch=5, max_points=50, steps=20, quiet=True)

    def work() -> None:
        for _ in range(number):
            X = generator.normal(size=(50, 3))
            model.partial_fit(X, np.sin(2 * X[:, 0]) + 0.1 * generator.normal(size=50))

    for _ in range(12):
        work()
    return work


def regression() -> Callable[[], Any]:
    import pandas as pd

    import partita as pt

    generator = np.random.default_rng(0)
    table = pd.DataFrame({"x": generator.normal(size=300), "arm": generator.choice(["a", "b"], 300)})
    table["y"] = 2 * table.x + (table.arm == "a") + generator.normal(size=300)
    sites = {str(place): table[place::3] for place in range(3)}
    return lambda: pt.regress("y ~ x + arm", sites, quiet=True)


WORKLOADS: dict[str, Callable[[], Callable[[], Any]]] = {
    "solver steps, fixed point": partial(solver, "FixedPoint", steps=150),
    "solver steps, Adam": partial(solver, "Gradient", steps=400, tolerance=0.0),
    "solver steps, network": partial(solver, "NaturalGradient", epochs=10, batch_size=100),
    "rounds, 10 sites, full": partial(rounds, 10, "full", 15),
    "rounds, 10 sites, mean-field": partial(rounds, 10, "mean-field", 15),
    "rounds, 1000 sites, full": partial(rounds, 1000, "full", 1),
    "rounds, 1000 sites, mean-field": partial(rounds, 1000, "mean-field", 2),
    "folds, full": partial(folds, "full", 100),
    "folds, mean-field": partial(folds, "mean-field", 100),
    "folds, 10,000 sites": partial(many_sites, 100),
    "durable updates": partial(durable, 40),
    "network rounds": partial(network, 4),
    "stream batches": partial(stream, 3),
    "regression": regression,
}
FIRST_FIT = """
import numpy as np, partita as pt
X = np.linspace(-1, 1, 40)[:, None]
shards = [(X[i::2], (X[i::2, 0] > 0).astype(float)) for i in range(2)]
pt.fit(pt.models.LogisticRegression(features=1), shards, schedule=pt.schedules.Synchronous(rounds=5))
"""
FRESH = {
    "import": "import partita",
    "import, all parts": "import partita; partita.fit, partita.models, partita.solvers, partita.gp",
    "first fit": FIRST_FIT,
}


def main() -> None:
    """Do what is asked on standard input; answer with seconds on the clock and of all threads together."""
    answers, ready = sys.stdout, {}
    for line in sys.stdin:
        name = line.strip()
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name not in ready:
                ready[name] = WORKLOADS[name]()
                ready[name]()
            began, busy = time.perf_counter(), time.process_time()
            ready[name]()
            taken = time.perf_counter() - began, time.process_time() - busy
        print(*taken, file=answers, flush=True)


if __name__ == "__main__":
    main()
