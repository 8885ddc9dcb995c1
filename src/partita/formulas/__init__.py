"""Formulas across silos: regressions on tables that stay where they are."""

from partita.formulas.comparison import compare
from partita.formulas.fitting import RESPONSES, regress
from partita.formulas.regression import Regression

__all__ = ["RESPONSES", "Regression", "compare", "regress"]
