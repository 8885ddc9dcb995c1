"""E_q[log p(y_n | θ)], one number per row: nine ways, and which one fits a model.

Each takes the density as it is differentiated: a family, or a Gaussian's mean parameters, which know their
location, covariance and draws just as well.
"""

from partita.expectations.base import Expectation
from partita.expectations.choice import choose
from partita.expectations.networks import DrawnFisher, GaussNewton
from partita.expectations.parameters import Enumeration, ExpectedHessian, ExpectedSlope, MonteCarlo
from partita.expectations.predictors import ClosedForm, GaussHermite, LocalReparameterisation

__all__ = [
    "ClosedForm", "DrawnFisher", "Enumeration", "Expectation", "ExpectedHessian", "ExpectedSlope",
    "GaussHermite", "GaussNewton", "LocalReparameterisation", "MonteCarlo", "choose",
]  # fmt: skip
