"""Partita: partitioned variational inference.

One Bayesian posterior, `prior × ∏ factors`, from data that stay where they are or that arrive over time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from partita._version import __version__
from partita.foundation.threads import cap_blas_threads

cap_blas_threads()

if TYPE_CHECKING:
    from partita import (
        datasets,
        engines,
        errors,
        expectations,
        families,
        gp,
        metrics,
        models,
        predictive,
        report,
        solvers,
        telemetry,
    )
    from partita.errors import PartitaError
    from partita.estimators import (
        PartitionedClassifier,
        PartitionedRegressor,
        StreamingGPClassifier,
        StreamingGPRegressor,
    )
    from partita.fitting import events, evidence, fit, partial_fit
    from partita.formulas import Regression, compare, regress
    from partita.foundation.compilation import cache_compilations
    from partita.models import Model, from_numpyro
    from partita.result import Result, load
    from partita.server import hyper, rules, schedules
    from partita.server import rules as damping
    from partita.server.hyper import LearnHyper
    from partita.server.rules.limits import Limits
    from partita.server.settings import Settings
    from partita.summaries import Summary, summary

_MODULES = {
    "damping": "partita.server.rules",
    "datasets": "partita.datasets",
    "engines": "partita.engines",
    "errors": "partita.errors",
    "expectations": "partita.expectations",
    "families": "partita.families",
    "gp": "partita.gp",
    "hyper": "partita.server.hyper",
    "metrics": "partita.metrics",
    "models": "partita.models",
    "predictive": "partita.predictive",
    "report": "partita.report",
    "rules": "partita.server.rules",
    "schedules": "partita.server.schedules",
    "solvers": "partita.solvers",
    "telemetry": "partita.telemetry",
}
_NAMES = {
    "LearnHyper": "partita.server.hyper",
    "Limits": "partita.server.rules.limits",
    "Model": "partita.models",
    "PartitaError": "partita.errors",
    "PartitionedClassifier": "partita.estimators",
    "PartitionedRegressor": "partita.estimators",
    "Regression": "partita.formulas",
    "Result": "partita.result",
    "Settings": "partita.server.settings",
    "Summary": "partita.summaries",
    "StreamingGPClassifier": "partita.estimators",
    "StreamingGPRegressor": "partita.estimators",
    "cache_compilations": "partita.foundation.compilation",
    "compare": "partita.formulas",
    "events": "partita.fitting",
    "evidence": "partita.fitting",
    "fit": "partita.fitting",
    "from_numpyro": "partita.models",
    "load": "partita.result",
    "partial_fit": "partita.fitting",
    "regress": "partita.formulas",
    "summary": "partita.summaries",
}

__all__ = [
    "LearnHyper",
    "Limits",
    "Model",
    "PartitaError",
    "PartitionedClassifier",
    "PartitionedRegressor",
    "Regression",
    "Result",
    "Settings",
    "StreamingGPClassifier",
    "StreamingGPRegressor",
    "Summary",
    "__version__",
    "cache_compilations",
    "compare",
    "damping",
    "datasets",
    "engines",
    "errors",
    "events",
    "evidence",
    "expectations",
    "families",
    "fit",
    "from_numpyro",
    "gp",
    "hyper",
    "load",
    "metrics",
    "models",
    "partial_fit",
    "predictive",
    "regress",
    "report",
    "rules",
    "schedules",
    "solvers",
    "summary",
    "telemetry",
]


def __getattr__(name: str) -> Any:
    """Import the heavy parts when they are first used."""
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'partita' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
