"""Models: prior × likelihood."""

from partita.models.base import AbstractModel, Hyper, Model, Weighted, prior_of
from partita.models.linear import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    ProbitRegression,
    SoftmaxRegression,
)

REGISTRY: dict[str, type[AbstractModel]] = {
    "linear-regression": LinearRegression,
    "logistic-regression": LogisticRegression,
    "probit-regression": ProbitRegression,
    "poisson-regression": PoissonRegression,
    "softmax-regression": SoftmaxRegression,
}

__all__ = [
    "REGISTRY",
    "AbstractModel",
    "Hyper",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "PoissonRegression",
    "ProbitRegression",
    "SoftmaxRegression",
    "Weighted",
    "prior_of",
]
