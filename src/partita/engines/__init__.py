"""Engines: what carries tasks to sites and updates back."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from partita.engines.in_process import InProcess
from partita.wire.engine import Engine

if TYPE_CHECKING:
    from partita.engines.flower import Flower
    from partita.engines.ray import Ray

__all__ = ["Engine", "Flower", "InProcess", "Ray"]

_MODULES = {"Flower": "partita.engines.flower", "Ray": "partita.engines.ray"}


def __getattr__(name: str) -> Any:
    """Import engines that leave this process when they are first used."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'partita.engines' has no attribute {name!r}")
