"""Engines: what carries tasks to sites and updates back."""

from partita.engines.flower import Flower
from partita.engines.in_process import InProcess
from partita.engines.ray import Ray
from partita.wire.engine import Engine

__all__ = ["Engine", "Flower", "InProcess", "Ray"]
