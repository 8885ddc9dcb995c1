"""Maximum-likelihood hyperparameters from shares of the gradient that sites send (Section 2.2 of the paper).

    dF/dε = Σ_m E_q[d log p(y_m | θ, ε) / dε] + E_q[d log p(θ | ε) / dε]

Hyperparameters are positive, so the server steps on their logarithms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

import equinox as eqx
import jax
import numpy as np
import optax

from partita.errors import InputError
from partita.families import Family, inner
from partita.foundation.checks import check_positive
from partita.foundation.runtime import Array, on_host, precision
from partita.models import AbstractModel, Hyper
from partita.solvers.rates import RobbinsMonro
from partita.wire.tasks import Update


@dataclass(frozen=True)
class LearnHyper:
    """Which hyperparameters to learn (all, if none are named), and the first and largest step on their logarithms.

    Steps follow the sign of the gradient, and grow while it keeps its sign (Rprop; Riedmiller and Braun, 1993): at
    first the posterior lags behind and gradients are off by orders of magnitude, but seldom in their sign.

    Where something is known before, such as from earlier batches of a stream, `prior={"noise": (0.3, 0.1)}` says
    that 0.3 is the median of that hyperparameter, and 0.1 the standard deviation of its logarithm.

    With `local`, a step is taken at every fold, from what the sites say that are in it, as if all were like them: the
    stochastic approximation of the gradient (Section 2.2) that uses only local information. One needs no shares of the
    others then, and steps are Adam's, of `first_step` / (1 + i / `delay`), so that what sites differ by averages out.
    """

    names: str | tuple[str, ...] = ()
    first_step: float = 0.1
    largest_step: float = 0.5
    prior: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    local: bool = False
    delay: float = 20.0

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            object.__setattr__(self, "names", (self.names,))
        check_positive("LearnHyper: ", first_step=self.first_step, largest_step=self.largest_step, delay=self.delay)
        for name, known in self.prior.items():
            if not isinstance(known, Sequence) or len(known) != 2:
                raise InputError(f"LearnHyper: prior of {name}: expected a median and a deviation, got {known!r}")
            check_positive(f"LearnHyper: prior of {name}: ", median=known[0], deviation=known[1])

    def begin(self, model: AbstractModel, sites: int) -> "HyperLearner":
        unknown = [name for name in dict.fromkeys((*self.names, *self.prior)) if name not in model.hyper]
        if unknown:
            known = ", ".join(model.hyper) or "none"
            raise InputError(f"hyper: {type(model).__name__} has no {', '.join(unknown)} (it has: {known})")
        return HyperLearner(self, model, sites)


class HyperLearner:
    """The server's state: every site's latest share, and the optimiser's. Steps once all have reported, or always."""

    def __init__(self, settings: LearnHyper, model: AbstractModel, sites: int):
        self.settings, self.model, self.sites = settings, model, sites
        self.hyper: Hyper = dict(model.hyper)
        self.names = tuple(settings.names) or tuple(self.hyper)
        # How much the free energy is expected to have changed with the last step.
        self.gain = 0.0
        # By the logarithms, where sites were asked. Of a site that is away, the latest share stands for its data, as
        # its factor does in the posterior.
        self._shares: dict[int, Hyper] = {}
        # Who has reported since the latest step.
        self._heard: list[int] = []
        falling = RobbinsMonro(settings.first_step, settings.delay) if settings.local else None
        self._optimiser = (
            optax.rprop(settings.first_step, min_step_size=1e-9, max_step_size=settings.largest_step)
            if falling is None
            else optax.adam(falling)
        )
        with precision(model.dtype):
            self._state = self._optimiser.init(self._logarithms())

    def _arrays(self) -> Hyper:
        return {name: np.asarray(value, self.model.dtype) for name, value in self.hyper.items()}

    def _logarithms(self) -> Hyper:
        return {name: np.log(value) for name, value in self._arrays().items() if name in self.names}

    def add(self, updates: Sequence[Update]) -> dict[int, str]:
        """Keep what sites say. Gives whose gradients cannot be."""
        self._heard = [update.site for update in updates]
        for update in updates:
            self._shares[update.site] = {n: float(g) * self.hyper[n] for n, g in update.hyper_gradient.items()}
        return {
            update.site: f"its gradient by {name}, {update.hyper_gradient[name]:.3g}, is one of which the others have "
            "none, and was left out"
            for update in updates
            for name in self.names
            if self._is_odd(update.site, name)
        }

    def _is_odd(self, site: int, name: str) -> bool:
        """Whether a hyperparameter of the prior alone, of which no log likelihood depends, has a share all the same."""
        others = [share[name] for other, share in self._shares.items() if other != site]
        return len(others) > 1 and not any(others) and self._shares.get(site, {}).get(name, 0.0) != 0

    def is_ready(self, complete: bool) -> bool:
        """Whether there is a step to take after a fold, given whether all sites have reported."""
        return complete or (self.settings.local and any(site in self._shares for site in self._heard))

    def forget(self, site: int) -> None:
        """A site's share does not count any more."""
        self._shares.pop(site, None)

    def gradient(self, posterior: Family) -> Hyper:
        """dF/dε from the sites' shares and the prior's own; with `local`, from those of the latest fold alone."""
        with precision(self.model.dtype):
            prior = _prior_gradient(self.model, self._arrays(), posterior)
        for site in [site for site in self._shares if any(self._is_odd(site, name) for name in self.names)]:
            self.forget(site)
        local = self.settings.local
        shares = [self._shares[site] for site in sorted(self._shares) if not local or site in self._heard]
        # Sites of a fold stand for all of them, as a mini-batch stands for the data.
        weight = self.sites / len(shares) if local and shares else 1.0
        return {n: weight * sum(share[n] for share in shares) / self.hyper[n] + float(prior[n]) for n in self.names}

    def _prior_slope(self, name: str) -> float:
        """d log p(log ε) / d log ε."""
        median, deviation = self.settings.prior.get(name, (1.0, np.inf))
        return log(median / self.hyper[name]) / deviation**2

    def step(self, posterior: Family) -> Hyper:
        """One step uphill on log ε."""
        gradient = self.gradient(posterior)
        slopes = {
            name: np.asarray(gradient[name] * self.hyper[name] + self._prior_slope(name), self.model.dtype)
            for name in self.names
        }
        with precision(self.model.dtype):
            downhill = {name: -slope for name, slope in slopes.items()}
            steps, self._state = on_host(self._optimiser.update(downhill, self._state))
        self.gain = sum(abs(float(slopes[name] * steps[name])) for name in self.names)
        moved = {name: float(self.hyper[name] * np.exp(steps[name])) for name in self.names}
        self.hyper = {**self.hyper, **moved}
        return self.hyper


@eqx.filter_jit
def _prior_gradient(model: AbstractModel, hyper: Hyper, posterior: Family) -> Hyper:
    """E_q[d log p(θ | ε) / dε] = d/dε (⟨η₀(ε), μ_q⟩ - A(η₀(ε)))."""
    mean = posterior.mean()

    def expected_log_prior(hyper: Hyper) -> Array:
        prior = model.prior(hyper)
        return inner(prior, mean) - prior.log_partition()

    gradient: Hyper = jax.grad(expected_log_prior)(hyper)
    return gradient
