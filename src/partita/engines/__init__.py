"""Engines: what carries tasks to sites and updates back."""

from partita.engines.base import Engine, Job, Worker, all_loaded
from partita.engines.flower import Flower
from partita.engines.in_process import InProcess
from partita.engines.ray import Ray

__all__ = ["Engine", "Flower", "InProcess", "Job", "Ray", "Worker", "all_loaded"]
