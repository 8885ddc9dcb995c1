"""What is known of the latest prior and posterior: means, log-partitions, and how far they are from each other."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from partita.families import Family, inner
from partita.foundation.runtime import Array, on_host, precision


def inner_product(natural: Any, mean: Any) -> float:
    """⟨η, μ⟩ on the host, in double precision: differences of such numbers are small beside them."""
    pairs = zip(jax.tree.leaves(natural), jax.tree.leaves(mean), strict=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return sum(float(np.vdot(np.asarray(a, np.float64), np.asarray(b, np.float64))) for a, b in pairs)


class Landmarks:
    """Means and log-partitions of the latest prior and posterior, each computed once."""

    def __init__(self) -> None:
        self._log_partitions: dict[str, tuple[Family, float]] = {}
        self._mean: tuple[Family, Any] | None = None

    def mean(self, density: Family) -> Any:
        """μ of a posterior."""
        if self._mean is None or self._mean[0] is not density:
            self._mean = (density, on_host(density.mean()))
        return self._mean[1]

    def movement(self, now: Family, before: Family) -> float:
        """KL(now ‖ before) of two posteriors, one after the other."""
        of_before = self._log_partition(before)
        with precision(before.dtype):
            expected, of_now, mean = _movement(now, before)
        self._log_partitions["posterior"] = (now, float(of_now))
        self._mean = (now, on_host(mean))
        return float(expected) - float(of_now) + of_before

    def gain(self, posterior: Family, prior: Family) -> float:
        """KL(posterior ‖ prior)."""
        difference = self._log_partition(posterior) - self._log_partition(prior, "prior")
        return inner_product(posterior / prior, self.mean(posterior)) - difference

    def _log_partition(self, density: Family, name: str = "posterior") -> float:
        if name not in self._log_partitions or self._log_partitions[name][0] is not density:
            self._log_partitions[name] = (density, float(density.log_partition()))
        return self._log_partitions[name][1]


@eqx.filter_jit
def _movement(new: Family, old: Family) -> tuple[Array, Array, Any]:
    """E_new[log new / old], up to both scales; A(new); and the mean of new."""
    mean = new.mean()
    return inner(new / old, mean), new.log_partition(), mean
