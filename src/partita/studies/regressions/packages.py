"""Packages that only these studies need: found when they are first used, or asked for by name."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from partita.errors import MissingExtra
from partita.foundation.checks import import_extra


def import_statsmodels() -> tuple[Any, Any]:
    """statsmodels, and its formulas."""
    return (
        import_extra("statsmodels.api", "statsmodels", "dev"),
        import_extra("statsmodels.formula.api", "statsmodels", "dev"),
    )


def import_pandas() -> Any:
    return import_extra("pandas", "pandas", "formulas")


def find_package(package: str) -> Path:
    """The folder of a package that no extra of Partita installs."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingExtra(f"{package} is not installed: pip install {package}")
    return Path(spec.origin).parent


def normalise_name(name: str) -> str:
    """A coefficient's name without what patsy and formulaic write differently."""
    return ":".join(sorted(name.replace(" ", "").split(":")))
