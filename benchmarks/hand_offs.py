"""Through how many hands one update goes, from the schedule that asks for it until its event is told.

    python -m benchmarks.hand_offs [TREE]...

Counts distinct calls between different modules of `partita.server`, `engines`, `site`, `wire` and `families` in one
fold of a synchronous run with one site in this process: which function calls which. A function inside another counts as
that one, a call through a library (`jax.tree.map`, `sorted`) as one from whoever called the library. Constructors that
dataclasses write are no hand-offs, nor is what runs compiled. Every tree is looked at in a process of its own.
Algebra of densities and reads of properties are counted apart: whoever follows an update by hand counts the others.
"""

import argparse
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

ROOMS = tuple(f"partita.{name}" for name in ("server", "engines", "site", "wire", "families"))
# Folds that come first: programs are compiled in them.
BEFORE = 3

Edge = tuple[str, str]


def is_inside(module: str) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in ROOMS)


def place_of(frame: FrameType) -> tuple[str, str]:
    """The module of a frame, and the outermost function that it belongs to."""
    return frame.f_globals.get("__name__", ""), frame.f_code.co_qualname.split(".<locals>")[0]


class Watch:
    """A profiler that keeps calls from one module to another."""

    def __init__(self) -> None:
        self.edges: dict[Edge, int] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or frame.f_code.co_filename == "<string>":
            return
        callee, caller = place_of(frame), frame.f_back
        if not is_inside(callee[0]):
            return
        while caller is not None and not place_of(caller)[0].startswith("partita"):
            caller = caller.f_back
        if caller is None:
            return
        module, function = place_of(caller)
        if is_inside(module) and module != callee[0]:
            edge = (f"{module}.{function}", ".".join(callee))
            self.edges[edge] = self.edges.get(edge, 0) + 1


def watch_fold() -> dict[Edge, int]:
    """The hand-offs of one fold, in the order in which they first happen."""
    import numpy as np

    import partita as pt

    generator = np.random.default_rng(0)
    X = generator.normal(size=(20, 2))
    y = (X[:, 0] > 0).astype(float)
    schedule = pt.schedules.Synchronous(rounds=BEFORE + 2)
    run = pt.events(pt.models.LogisticRegression(features=2), [(X, y)], schedule=schedule)
    for _ in range(BEFORE):
        next(run)
    watch = Watch()
    sys.setprofile(watch)
    try:
        next(run)
    finally:
        sys.setprofile(None)
    return watch.edges


def describe(edges: dict[Edge, int]) -> str:
    """All hand-offs, a line each, and how many there are of each kind."""
    modules = {module_of(name) for edge in edges for name in edge}
    kinds = [kind_of(callee) for _, callee in edges]
    lines = [
        f"  {caller.removeprefix('partita.')} → {callee.removeprefix('partita.')}{f' ({kind})' if kind else ''}"
        for (caller, callee), kind in zip(edges, kinds, strict=True)
    ]
    counts = f"{kinds.count('algebra')} of them algebra of densities, {kinds.count('read')} reads of a property"
    total = f"{len(edges)} hand-offs between {len(modules)} modules: {counts}, {kinds.count('')} others"
    others = [edge for edge, kind in zip(edges, kinds, strict=True) if not kind]
    between = [edge for edge in others if folder_of(edge[0]) != folder_of(edge[1])]
    pairs = {(folder_of(caller), folder_of(callee)) for caller, callee in between}
    within = f"of the others, {len(between)} leave their folder or file, along {len(pairs)} ways from one to another"
    return "\n".join([*lines, total, within])


def folder_of(name: str) -> str:
    """The part that a function belongs to: `server.rules` for all files of that folder, `server.ledger` for a file."""
    return ".".join(module_of(name).split(".")[:3])


def kind_of(callee: str) -> str:
    """Whether a call is algebra of densities, reads a property, or is neither."""
    module = module_of(callee)
    if module.startswith("partita.families"):
        return "algebra"
    found: Any = sys.modules[module]
    for part in callee.removeprefix(f"{module}.").split("."):
        found = inspect.getattr_static(found, part, None)
    return "read" if isinstance(found, property) else ""


def module_of(name: str) -> str:
    """The module of a function's whole name: the longest beginning of it that is one."""
    parts = name.split(".")
    while parts and ".".join(parts) not in sys.modules:
        parts.pop()
    return ".".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, help="Trees with a src/partita; this one, if none is named.")
    trees = parser.parse_args().trees
    if not trees:
        print(describe(watch_fold()))
    for tree in trees:
        print(tree, flush=True)
        environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src")}
        subprocess.run([sys.executable, "-m", "benchmarks.hand_offs"], env=environment, check=True)


if __name__ == "__main__":
    main()
