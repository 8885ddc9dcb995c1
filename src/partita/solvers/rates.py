"""Rates that fall, so that what is drawn at random averages out (Robbins and Monro, 1951)."""

from typing import Any

import equinox as eqx

from partita.errors import InputError
from partita.foundation.checks import check_positive, check_share
from partita.foundation.runtime import Array


class RobbinsMonro(eqx.Module):
    """ρ_i = first · (1 + i / delay)^(-power): Σ ρ_i is infinite and Σ ρ_i² is not, as Section 3.4.2 of the paper asks.

    Args:
        first: the rate of the first step.
        delay: after how many steps it has fallen by 2^power.
        power: above ½ and at most 1.

    >>> RobbinsMonro(0.5, delay=10)(10)
    0.25
    """

    first: float = 0.5
    delay: float = 10.0
    power: float = 1.0

    def __check_init__(self) -> None:
        check_share("RobbinsMonro: ", first=self.first)
        check_positive("RobbinsMonro: ", delay=self.delay)
        if not 0.5 < self.power <= 1:
            raise InputError(f"RobbinsMonro: power: expected more than 0.5 and at most 1, got {self.power}")

    def __call__(self, number: int | Array) -> Any:
        """The rate of the step after so many, a number or an array."""
        return self.first * (1 + number / self.delay) ** (-self.power)
