"""Kill a run with SIGKILL at random moments, resume it, and compare the hash with that of a run never killed.

`partita study kill-and-resume [KILLS]` has one run per kill, each killed once and resumed to its end.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from partita.errors import PartitaError
from partita.studies.options import Kills, Say

PROGRAM = """
import sys
import partita as pt
from partita.foundation.compilation import cache_compilations
from pathlib import Path
cache_compilations(Path(sys.argv[2]))
X, y = pt.datasets.load("breast-cancer")
shards = pt.datasets.split((pt.datasets.standardised(X), y), sites=5, how="by-label")
result = pt.fit(
    pt.models.LogisticRegression(features=30, intercept=False),
    shards,
    schedule=pt.schedules.Asynchronous(updates=400, max_staleness=20),
    engine=pt.engines.InProcess(speeds=[1, 2, 3, 5, 8]),
    run_dir=sys.argv[1],
    resume=True,
)
print(result.fingerprint)
"""


def start(folder: Path, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(folder: Path, cache: Path) -> str:
    output, errors = start(folder, cache).communicate(timeout=300)
    if not output:
        raise PartitaError(f"a run failed:\n{errors}")
    return output.strip()


def kill_and_resume(say: Say, kills: Kills = 20) -> bool:
    """Whether every run ends as the one that was never killed."""
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        cache = Path(place) / "cache"
        finish(Path(place) / "warm-up", cache)
        began = time.perf_counter()
        reference = finish(Path(place) / "whole", cache)
        length = time.perf_counter() - began
        same = interrupted = 0
        for number in range(kills):
            folder = Path(place) / str(number)
            process = start(folder, cache)
            time.sleep(chance.uniform(0.3, 1.0) * length)
            interrupted += process.poll() is None
            process.kill()
            process.communicate()
            same += finish(folder, cache) == reference
            say(f"kill {number + 1}: {same} of {number + 1} hashes identical")
    say(f"{same} of {kills} identical to {reference[:16]}…; {interrupted} were still running when killed")
    return same == kills
