"""Runs with fifty sites that come and go, whose messages are lost and doubled, and a server that stops and is resumed.

It says how many complete; in all, the posterior is the prior times all factors. `partita study soak [RUNS [UPDATES]]`
runs it.
"""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
from typer import Argument

import partita as pt
from partita.fitting import prepare
from partita.server.loop import iterate
from partita.server.run import Run
from partita.server.settings import Settings
from partita.studies.faults.chaos import Chaos
from partita.studies.options import Say

SITES = 50


def live(run: Run, shards: Sequence[Any], folder: Path, folds: int) -> bool:
    """Whether a run, or the rest of one, comes to its end within so many folds."""
    run.engine.open(run.job(), shards)
    try:
        with run.journal(folder, resume=True) as journal:
            for number, event in enumerate(iterate(run, journal)):
                assert event.posterior.is_proper()
                if not event.replayed and number >= folds:
                    return False
        return True
    finally:
        run.engine.close()


def soak(
    say: Say,
    runs: Annotated[int, Argument(min=1, help="How many runs.")] = 100,
    updates: Annotated[int, Argument(min=1, help="How many updates of each.")] = 300,
) -> bool:
    """Whether all runs complete."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(SITES * 20, 3))
    y = (X @ [1.0, -1.0, 0.5] + generator.logistic(size=len(X)) > 0).astype(float)
    shards = [(X[i::SITES], y[i::SITES]) for i in range(SITES)]
    complete = 0
    for number in range(runs):
        chance = random.Random(number)
        with tempfile.TemporaryDirectory() as place:
            for life in range(100):
                faults: dict[str, Any] = {
                    name: chance.uniform(0, 0.2) for name in ("loss", "duplicate", "crash", "leave")
                }
                settings = Settings(
                    schedule=pt.schedules.Asynchronous(updates=updates),
                    engine=Chaos(seed=1000 * number + life, **faults),
                )
                run, arranged = prepare(pt.models.LogisticRegression(features=3), shards, settings)
                if live(run, arranged, Path(place), chance.randrange(updates)):
                    complete += 1
                    break
            again = jax.tree.leaves(run.ledger.recomputed_posterior())
            for a, b in zip(jax.tree.leaves(run.ledger.posterior), again, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
            assert run.ledger.version == updates
    say(f"{complete} of {runs} complete")
    return complete == runs
