"""Exponential families: immutable pytrees of natural parameters that multiply, divide and take powers."""

from partita.families.base import Family, Substitution, inner
from partita.families.cone import Cone
from partita.families.gamma import Gamma
from partita.families.gaussian import Gaussian, MeanField
from partita.families.independent import Independent
from partita.families.normal_conjugate import NormalGamma, NormalWishart
from partita.families.product import FAMILY_OF, Product
from partita.families.simplex import Beta, Categorical, Dirichlet
from partita.families.weights_and_noise import WeightsAndNoise

REGISTRY: dict[str, type[Family]] = {
    family.__name__: family
    for family in (
        MeanField, Gaussian, Gamma, Beta, Dirichlet, Categorical, NormalGamma, NormalWishart, Product,
        Independent, WeightsAndNoise,
    )
}  # fmt: skip
FAMILY_OF.update({family.Mean: family for family in REGISTRY.values()})

__all__ = ["REGISTRY", "Cone", "Family", "Substitution", "inner", *REGISTRY]
