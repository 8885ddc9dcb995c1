"""Matplotlib, which draws into files here; and all pictures by name."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from partita.foundation.checks import check_one_of, import_extra
from partita.studies.documents import check_place
from partita.studies.options import Say, Some

# Each has a module here whose `draw` writes the picture to a file.
PICTURES = (
    "demo", "streaming", "methods", "banana", "robot_arm", "federated", "continual_steps", "federated_steps",
    "granularity", "stochastic", "collapsed_bound",
)  # fmt: skip


def import_pyplot() -> Any:
    """Matplotlib without a window."""
    import_extra("matplotlib", "Matplotlib", "dev").use("agg")
    return import_extra("matplotlib.pyplot", "Matplotlib", "dev")


def draw_pictures(
    say: Say,
    names: Some = None,
    folder: Annotated[Path, Option("--out", help="The folder for pictures.")] = Path("docs/images"),
) -> None:
    """Draw all pictures, or those named, into a folder; without names, of kept rows only those that are there."""
    for name in names or ():
        check_one_of("", PICTURES, name=name)
    for name in names or PICTURES:
        path = folder / f"{name}.png"
        check_place(path)
        module = import_module(f"partita.studies.pictures.{name}")
        kept = getattr(module, "ROWS", None)
        if not names and kept is not None and not kept.exists():
            say(f"{name}: left out, {kept} is not there")
            continue
        module.draw(path)
        say(str(path))
