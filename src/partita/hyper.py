"""Maximum-likelihood hyperparameters from shares of the gradient that sites send (Section 2.2 of the paper).

    dF/dε = Σ_m E_q[d log p(y_m | θ, ε) / dε] + E_q[d log p(θ | ε) / dε]

Hyperparameters are positive, so the server steps on their logarithms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from partita.errors import InputError
from partita.families import Family, inner
from partita.ledger import Update
from partita.models import AbstractModel, Hyper
from partita.runtime import precision


@dataclass(frozen=True)
class LearnHyper:
    """Which hyperparameters to learn (all, if none are named), and Adam's steps on their logarithms."""

    names: tuple[str, ...] = ()
    rate: float = 0.1
    decay: float = 0.98

    def begin(self, model: AbstractModel, sites: int) -> "HyperLearner":
        unknown = sorted(set(self.names) - set(model.hyper))
        if unknown:
            known = ", ".join(model.hyper) or "none"
            raise InputError(f"hyper: {type(model).__name__} has no {', '.join(unknown)} (it has: {known})")
        return HyperLearner(self, model, sites)


class HyperLearner:
    """The server's state: the latest share of every site, and Adam's moments. Steps when all have reported."""

    def __init__(self, settings: LearnHyper, model: AbstractModel, sites: int):
        self.settings, self.model, self.sites = settings, model, sites
        self.hyper: Hyper = dict(model.hyper)
        self.names = settings.names or tuple(self.hyper)
        self._shares: dict[int, Hyper] = {}
        self._adam = optax.adam(optax.exponential_decay(settings.rate, 1, settings.decay))
        with precision(model.dtype):
            self._state = self._adam.init(self._logarithms())

    def _logarithms(self) -> Hyper:
        return {name: jnp.log(jnp.asarray(self.hyper[name], self.model.dtype)) for name in self.names}

    def add(self, updates: Sequence[Update]) -> None:
        for update in updates:
            self._shares[update.site] = update.hyper_gradient

    def gradient(self, posterior: Family) -> Hyper:
        """dF/dε from the sites' shares and the prior's own."""
        with precision(self.model.dtype):
            prior = _prior_gradient(self.model, self.hyper, posterior)
        return {n: sum(float(s[n]) for s in self._shares.values()) + float(prior[n]) for n in self.names}

    def step(self, posterior: Family) -> Hyper:
        """Adam on log ε, uphill, with a decaying rate."""
        gradient = self.gradient(posterior)
        self._shares.clear()
        downhill = {name: jnp.asarray(-gradient[name] * self.hyper[name]) for name in self.names}
        with precision(self.model.dtype):
            updates, self._state = self._adam.update(downhill, self._state)
            moved = optax.apply_updates(self._logarithms(), updates)
        self.hyper = {**self.hyper, **{name: float(np.exp(value)) for name, value in moved.items()}}
        return self.hyper


@eqx.filter_jit
def _prior_gradient(model: AbstractModel, hyper: Hyper, posterior: Family) -> Hyper:
    """E_q[d log p(θ | ε) / dε] = d/dε (⟨η₀(ε), μ_q⟩ - A(η₀(ε)))."""
    mean = posterior.mean()

    def expected_log_prior(hyper: Hyper) -> jax.Array:
        prior = model.prior(hyper)
        return inner(prior, mean) - prior.log_partition()

    return jax.grad(expected_log_prior)({name: jnp.asarray(value, model.dtype) for name, value in hyper.items()})
