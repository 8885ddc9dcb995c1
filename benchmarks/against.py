"""How fast this tree is beside another: the same work in both, in turns, in processes of their own.

    python -m benchmarks.against OLD_TREE [--new TREE] [--turns 15] [--only NAME]

Two processes are kept, one for each tree. In every turn both do the same short piece of work, one after the other, so
that a busy machine slows both down; who begins alternates. Printed are the milliseconds of the old tree's fastest turn,
and new/old ratios: of seconds on the clock and of processor time, the median of the turns with its quartiles, and of
the fastest turn of each. What has to begin in a fresh process (import, first fit) has one in every turn. SLOWER means
that both lower quartiles and the fastest turns are above 1.05; unclear, that only some figure is. A tree beside itself
shows the noise of a machine: with more programs than cores, folds and durable updates were off by a factor of two and
more, compiled steps by two per cent of processor time. Then these turns say nothing, and have to be taken again.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

from benchmarks.workloads import FRESH, WORKLOADS

TURNS, FRESH_TURNS, SLOWER = 15, 7, 1.05

Seconds = tuple[float, float]


class Tree:
    """One tree of the library, and the process that works with it."""

    def __init__(self, path: Path):
        self.environment = {**os.environ, "PYTHONPATH": str(path.resolve() / "src"), "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-m", "benchmarks.workloads"]
        self.process = subprocess.Popen(
            command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def work(self, name: str) -> Seconds:
        """Seconds on the clock and of the processor for one piece of work."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if len(answer) != 2:
            raise RuntimeError(f"{name}: the process of {self.environment['PYTHONPATH']} has ended")
        return float(answer[0]), float(answer[1])

    def begin_afresh(self, name: str) -> Seconds:
        """The same of a program in a new process, without compiled programs of earlier ones."""
        environment = {key: value for key, value in self.environment.items() if key != "JAX_COMPILATION_CACHE_DIR"}
        began, busy = time.perf_counter(), children_seconds()
        subprocess.run([sys.executable, "-c", FRESH[name]], env=environment, check=True)
        return time.perf_counter() - began, children_seconds() - busy

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def children_seconds() -> float:
    """Processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def take_turns(trees: Sequence[Tree], name: str, turns: int) -> list[tuple[Seconds, Seconds]]:
    """Seconds of the old and of the new tree in every turn; the first work of each, which compiles, is not counted."""
    is_fresh = name in FRESH
    for tree in () if is_fresh else trees:
        tree.work(name)
    found = []
    for turn in range(turns):
        order = trees if turn % 2 == 0 else trees[::-1]
        taken = [tree.begin_afresh(name) if is_fresh else tree.work(name) for tree in order]
        old, new = taken if turn % 2 == 0 else taken[::-1]
        found.append((old, new))
    return found


def describe(name: str, found: Sequence[tuple[Seconds, Seconds]]) -> str:
    """A line of the table, marked where it is slower, or where these turns cannot tell."""
    parts, lows, middles = [], [], []
    for place, clock in enumerate(("clock", "processor")):
        low, middle, high = quantiles([new[place] / old[place] for old, new in found], n=4)
        parts.append(f"{clock} {middle:.3f} ({low:.3f} to {high:.3f})")
        lows.append(low)
        middles.append(middle)
    fastest = [min(turn[tree][0] for turn in found) for tree in (0, 1)]
    ratio = fastest[1] / fastest[0]
    is_slower = min(*lows, ratio) > SLOWER
    mark = "  SLOWER" if is_slower else "  unclear" if max(*middles, ratio) > SLOWER else ""
    return f"{name:30} {1e3 * fastest[0]:8.1f} ms  {'  '.join(parts)}  fastest {ratio:.3f}{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="The tree to compare with: a folder with a src/partita.")
    parser.add_argument(
        "--new", type=Path, default=Path(__file__).parents[1], help="The other; this one, if not given."
    )
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--only", default="", help="Only work whose name begins so.")
    asked = parser.parse_args()
    if os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        print(f"this machine is busy (load {os.getloadavg()[0]:.1f}): ratios of short pieces of work mean little")
    trees = [Tree(asked.old), Tree(asked.new)]
    try:
        for name in (*WORKLOADS, *FRESH):
            if name.startswith(asked.only):
                turns = min(asked.turns, FRESH_TURNS) if name in FRESH else asked.turns
                print(describe(name, take_turns(trees, name, turns)), flush=True)
    finally:
        for tree in trees:
            tree.close()


if __name__ == "__main__":
    main()
