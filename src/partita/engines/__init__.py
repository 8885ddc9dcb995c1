"""Engines: what carries tasks to sites and updates back."""

from partita.engines.base import Engine, Job, Worker, loaded
from partita.engines.in_process import InProcess

__all__ = ["Engine", "InProcess", "Job", "Worker", "loaded"]
