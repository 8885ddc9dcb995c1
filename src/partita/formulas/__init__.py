"""Formulas across silos: regressions on tables that stay where they are."""

from partita.designs.responses import RESPONSES
from partita.formulas.comparison import compare
from partita.formulas.fitting import regress
from partita.formulas.regression import Regression

__all__ = ["RESPONSES", "Regression", "compare", "regress"]
