"""Exponential families: immutable pytrees of natural parameters that multiply, divide and take powers."""

from partita.families.abstract_gaussian import AbstractGaussian, GaussianView
from partita.families.base import REGISTRY, Family, Substitution, inner
from partita.families.block_gaussian import BlockGaussian
from partita.families.cone import Cone
from partita.families.gamma import Gamma
from partita.families.gaussian import Gaussian
from partita.families.independent import Independent
from partita.families.mean_field import MeanField
from partita.families.normal_conjugate import NormalGamma, NormalWishart
from partita.families.product import FAMILY_OF, Product
from partita.families.simplex import Beta, Categorical, Dirichlet
from partita.families.weights_and_noise import WeightsAndNoise

REGISTRY |= {
    family.__name__: family
    for family in (
        MeanField, Gaussian, BlockGaussian, Gamma, Beta, Dirichlet, Categorical, NormalGamma, NormalWishart, Product,
        Independent, WeightsAndNoise,
    )
}  # fmt: skip
FAMILY_OF.update({family.Mean: family for family in REGISTRY.values()})
# The structures that a model's Gaussian posterior may have by name.
GAUSSIANS: dict[str, type[Gaussian] | type[MeanField]] = {"full": Gaussian, "mean-field": MeanField}

__all__ = [
    "REGISTRY", "AbstractGaussian", "Beta", "BlockGaussian", "Categorical", "Cone", "Dirichlet", "Family",
    "Gamma", "Gaussian", "GaussianView", "Independent", "MeanField", "NormalGamma", "NormalWishart", "Product",
    "Substitution", "WeightsAndNoise", "inner",
]  # fmt: skip
