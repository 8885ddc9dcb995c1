"""Models: prior × likelihood."""

from partita.models.base import AbstractModel, Hyper, Predictor, Weighted, check_like, prior_of
from partita.models.classifiers import LogisticRegression, ProbitRegression, SoftmaxRegression
from partita.models.counts import PoissonFactorisation
from partita.models.factors import FactorAnalysis
from partita.models.heteroscedastic import HeteroscedasticRegression
from partita.models.linear import (
    LinearRegression,
    PoissonRegression,
    RobustRegression,
)
from partita.models.mixture import GaussianMixture
from partita.models.network import Network
from partita.models.own_likelihood import Model
from partita.models.programs import NumPyroModel, from_numpyro
from partita.models.sparse_process import SparseProcess
from partita.models.topics import LatentDirichletAllocation

REGISTRY: dict[str, type[AbstractModel]] = {
    "linear-regression": LinearRegression,
    "logistic-regression": LogisticRegression,
    "probit-regression": ProbitRegression,
    "poisson-regression": PoissonRegression,
    "robust-regression": RobustRegression,
    "softmax-regression": SoftmaxRegression,
    "heteroscedastic-regression": HeteroscedasticRegression,
    "network": Network,
    "sparse-process": SparseProcess,
    "gaussian-mixture": GaussianMixture,
    "factor-analysis": FactorAnalysis,
    "latent-dirichlet-allocation": LatentDirichletAllocation,
    "poisson-factorisation": PoissonFactorisation,
}

__all__ = [
    "REGISTRY",
    "AbstractModel",
    "FactorAnalysis",
    "GaussianMixture",
    "HeteroscedasticRegression",
    "Hyper",
    "LatentDirichletAllocation",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "Network",
    "NumPyroModel",
    "PoissonFactorisation",
    "PoissonRegression",
    "Predictor",
    "ProbitRegression",
    "RobustRegression",
    "SoftmaxRegression",
    "SparseProcess",
    "Weighted",
    "check_like",
    "from_numpyro",
    "prior_of",
]
