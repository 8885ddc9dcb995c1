"""What an expectation is: E_q[log p(y_n | θ)], one number per row."""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx

from partita.errors import InputError
from partita.foundation.runtime import Array
from partita.foundation.shapes import PerRow, Scalar
from partita.models import AbstractModel, Hyper
from partita.shards import Shard

# Keeps the derivative of a square root finite where a predictor does not vary at all.
TINY = 1e-30


class Expectation(eqx.Module):
    """How E_q[log p] is computed."""

    # Whether the value is a function of the mean parameters alone, for any family; whether there is a `message` that
    # replaces its gradient; whether that is a direction for an optimiser at the server rather than a destination.
    of_mean: ClassVar[bool] = False
    has_message: ClassVar[bool] = False
    is_direction: ClassVar[bool] = False

    @property
    def stochastic(self) -> bool:
        """Whether the value depends on random draws."""
        return False

    @abstractmethod
    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        """E_q[log p(y_n | θ, ε)] for each row."""

    def message(self, model: AbstractModel, q: Any, shard: Shard, hyper: Hyper, key: Array) -> tuple[Scalar, Any]:
        """E_q[log p(y | θ, ε)] of a shard, and the factor that stands for it; where `has_message`."""
        raise InputError(f"{type(self).__name__} has no message of its own")
