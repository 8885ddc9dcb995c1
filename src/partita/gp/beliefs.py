"""What is believed of a stream's hyperparameters: before there are data, in other units, and as draws."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from partita.foundation.runtime import Array, compile_quickly, precision
from partita.gaussian_processes.shapes import Draws
from partita.gp.sparse import SparseGP

# Standard deviation of the prior of every log hyperparameter.
PRIOR_SCALE = 1.0
# Spread of log hyperparameters that the first batch begins with. As wide as their prior it would see the worst of them,
# and run from a small noise and a large variance before it has seen what they explain.
NARROW = 0.1
# What names of the likelihood's hyperparameters begin with.
LIKELIHOOD = "likelihood."


class Beliefs(NamedTuple):
    """Log hyperparameters by name: a Gaussian for each, or points, where scales are zero."""

    location: Mapping[str, Array]
    scale: Mapping[str, Array]

    @classmethod
    def begin(cls, gp: SparseGP, spread: bool, features: int, outputs: int) -> "Beliefs":
        """Before there are any data: around starting values, or, without `spread`, at them."""
        logs = {name: np.log(np.asarray(value, float)) for name, value in gp.initial(features, outputs).items()}
        return cls(logs, {name: np.full_like(at, PRIOR_SCALE if spread else 0.0) for name, at in logs.items()})

    @property
    def params(self) -> dict[str, np.ndarray]:
        """Hyperparameters at the middle of what is believed of them."""
        return {name: np.exp(value) for name, value in self.location.items()}

    @property
    def size(self) -> int:
        """How many hyperparameters there are."""
        return sum(np.size(value) for value in self.location.values())

    @property
    def narrowed(self) -> "Beliefs":
        """The same, so sure of themselves that a search may begin there."""
        return self._replace(scale={name: np.minimum(value, NARROW) for name, value in self.scale.items()})

    def with_likelihood_of(self, other: "Beliefs") -> "Beliefs":
        """These of the kernel, and another's of the likelihood."""
        names = [name for name in self.location if name.startswith(LIKELIHOOD)]
        return Beliefs(
            {**self.location} | {name: other.location[name] for name in names},
            {**self.scale} | {name: other.scale[name] for name in names},
        )

    def distance(self, other: "Beliefs") -> float:
        """How far locations are from each other, at most."""
        return max(float(np.max(np.abs(at - other.location[name]))) for name, at in self.location.items())

    def kl(self, other: "Beliefs") -> float:
        """KL(q ‖ p) in nats; 0 of points, which have no density."""
        terms = []
        for name, scale in self.scale.items():
            ratio, apart = scale / other.scale[name], (self.location[name] - other.location[name]) / other.scale[name]
            terms.append(np.sum(0.5 * (ratio**2 + apart**2 - 1) - np.log(ratio)))
        return float(np.sum(terms))

    def convert(self, growth: Mapping[str, Any]) -> "Beliefs":
        """Beliefs about hyperparameters whose values grow by so much in other units.

        q(log ε) is their prior, which is relative to the units, times what batches have said, which is about the data
        and has to be converted. Both are Gaussian: a location moves by the batches' share of the precision.
        """

        def move(name: str, location: Array) -> Array:
            learnt = 1 - (self.scale[name] / PRIOR_SCALE) ** 2
            if name not in growth:
                return location
            return location + np.clip(learnt, 0, 1) * np.reshape(np.log(growth[name]), np.shape(location))

        return self._replace(location={name: move(name, at) for name, at in self.location.items()})

    def share_among_outputs(self, noise: Draws) -> Draws:
        """Draws [number, hyperparameters] where what each output has of its own is drawn once for all of them.

        No term of the free energy knows those of two outputs, so expectations stay; equal columns learn equal things.
        """
        begin, index = 0, []
        for name in sorted(self.location):  # the order in which trees are flattened
            size = np.size(self.location[name])
            index.append(begin + (np.zeros(size, int) if name.startswith(LIKELIHOOD) else np.arange(size)))
            begin += size
        return noise[:, np.concatenate(index)]

    def draw(self, seed: int, samples: int, by_output: bool) -> dict[str, np.ndarray]:
        """Hyperparameters with a leading axis.

        Where outputs are looked at one by one, what each has of its own need not be drawn apart.
        """
        noise = draw_noise(seed, None, samples, self.size)
        noise = self.share_among_outputs(noise) if by_output else noise
        begin, drawn = 0, {}
        for name in sorted(self.location):  # the order in which trees are flattened
            middle, spread = np.asarray(self.location[name]), np.asarray(self.scale[name])
            part = noise[:, begin : begin + middle.size].reshape(-1, *middle.shape)
            drawn[name] = np.exp(middle + spread * part)
            begin += middle.size
        return drawn


def exponentials(logs: Any) -> Any:
    return jax.tree.map(jnp.exp, logs)


def mirrored_normals(key: Array, samples: int, size: int) -> Draws:
    """Standard normal draws, each followed by its negative."""
    half = jax.random.normal(key, ((samples + 1) // 2, size), jnp.float64)
    return jnp.stack([half, -half], axis=1).reshape(-1, size)[:samples]


def draw_noise(seed: int, number: int | None, samples: int, size: int) -> Draws:
    """The same on the host, of a seed, or of its `number`: in one program, where single steps would be ten."""
    with precision(np.float64):
        fold = None if number is None else np.asarray(number)
        return np.asarray(_mirrored_normals(np.asarray(seed), fold, samples, size))


@compile_quickly
def _mirrored_normals(seed: Array, number: Array | None, samples: int, size: int) -> Draws:
    key = jax.random.key(seed)
    return mirrored_normals(key if number is None else jax.random.fold_in(key, number), samples, size)
