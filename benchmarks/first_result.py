"""The first result of a process: seconds from its start, without and with kept programs, and how many are compiled.

A fresh process imports Partita, fits the README's first example (breast cancer, 30 features, five sites) for a few
rounds, and predicts. It is run with an empty folder of kept programs ("cold") and again with what it left there
("warm"), turns about. Clock time is what a user waits for on a quiet machine; processor time says the same on a busy
one. With --other-tree, a second checkout takes its turns.

    python -m benchmarks.first_result --turns 3
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import partita

# Seconds: what is aimed for, without and with kept programs.
AIMS = {"cold": 3.0, "warm": 1.0}

WORK = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import jax
found = {"compiled": 0, "from the cache": 0}
BACKEND, HIT = "/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/cache_hits"
def count(event, *_, **__):
    found["compiled"] += event == BACKEND
    found["from the cache"] += event == HIT
jax.monitoring.register_event_duration_secs_listener(count)
jax.monitoring.register_event_listener(count)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import partita as pt
generator = np.random.default_rng(0)
X = generator.normal(size=(569, 30))
y = (X @ generator.normal(size=30) + generator.logistic(size=569) > 0).astype(float)
model = pt.models.LogisticRegression(features=30)
hospitals = [(X[site::5], y[site::5]) for site in range(5)]
result = pt.fit(model, hospitals, schedule=pt.schedules.Synchronous(rounds=5))
result.predict_proba(X[:100])
found["compiled"] -= found["from the cache"]
found["log evidence"] = result.log_evidence
print(json.dumps(found))
"""


def first_result(source: Path, cache: str) -> dict[str, float]:
    """One process from its start to its end: clock and processor seconds, and what it counted."""
    before, began = os.times(), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", WORK, cache], env=environment, capture_output=True, text=True, check=True
    )
    seconds, after = time.perf_counter() - began, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return {"clock": seconds, "processor": spent, **json.loads(done.stdout)}


def measure(sources: dict[str, Path], turns: int) -> dict[tuple[str, str], list[dict[str, float]]]:
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(turns):
        for name, source in sources.items():
            with tempfile.TemporaryDirectory() as cache:
                for state in AIMS:
                    found.setdefault((name, state), []).append(first_result(source, cache))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--other-tree", type=Path, help="Another checkout, which takes its turns.")
    given = parser.parse_args()
    sources = {"this tree": Path(partita.__file__).parents[1]}
    if given.other_tree is not None:
        sources["the other"] = given.other_tree / "src"
    for (name, state), runs in measure(sources, given.turns).items():
        clock, processor = (np.array([run[kind] for run in runs]) for kind in ("clock", "processor"))
        print(
            f"{name}, {state}: {np.median(clock):.2f} s (best {clock.min():.2f}; aimed for: {AIMS[state]:.0f}), "
            f"{np.median(processor):.2f} s of processor time (best {processor.min():.2f}), "
            f"{runs[-1]['compiled']:.0f} programs compiled, {runs[-1]['from the cache']:.0f} from the cache"
        )


if __name__ == "__main__":
    main()
