"""An optimiser at the server, over the changes that sites propose."""

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import solve_triangular

from partita.families import Family
from partita.foundation.checks import check_count, check_not_negative, check_positive, check_share
from partita.server.rules.base import FreeEnergy, Proposal, RuleState, Setup

# How many moves count as recent.
RECENT = 5


@dataclass(frozen=True)
class Optimiser:
    """Moves a mean-field Gaussian along its natural gradient, with rates of their own for locations and precisions.

    For sites that answer with one message, d/dμ E_q[log p], rather than with a solved local problem. What they propose
    then adds up to the natural gradient of the global free energy, whatever the partition (Property 5 of the paper).
    For a network that is a direction, not a destination: a diagonal precision knows nothing of correlated inputs, and a
    whole step overshoots a hundredfold. So locations move by a quasi-Newton step (L-BFGS), which learns from the moves
    and gradients of earlier rounds what the diagonal leaves out. Precisions take `precision_rate` of what is proposed.
    Where only some sites report, the others' latest gradients stand for them.

    Args:
        memory: how many earlier moves the quasi-Newton step knows.
        precision_rate: the share of a proposed change of precisions that is taken.
        floor: added to all precisions before they scale a gradient, relative to their mean.
        first_step: the share of the scaled gradient that is taken while there is no earlier move.
        trust: the largest KL divergence of one move of the locations, in nats per parameter.
        growth: how many times that of the recent moves it may be: pairs of gradients that are mostly noise now and then
            ask for a move that is out of all proportion.
        margin: a fall of the estimated free energy by more than this share of it quarters the trust.
    """

    memory: int = 10
    precision_rate: float = 0.02
    floor: float = 0.1
    first_step: float = 0.0025
    trust: float = 0.05
    growth: float = 4.0
    margin: float = 0.01

    def __post_init__(self) -> None:
        check_count("Optimiser: ", memory=self.memory)
        check_share("Optimiser: ", precision_rate=self.precision_rate, first_step=self.first_step)
        check_positive("Optimiser: ", trust=self.trust, growth=self.growth, margin=self.margin)
        check_not_negative("Optimiser: ", floor=self.floor)

    def init(self, setup: Setup) -> "OptimiserState":
        if setup.prior is not None:
            setup.prior.as_mean_field("damping: Optimiser")
        return OptimiserState(self, setup.sites, Pairs(self.memory), self.trust)


@dataclass
class Pairs:
    """Moves s of the locations with changes y of the gradient, newest last, and the inverse Hessian they imply.

    In the compact form of Byrd, Nocedal and Schnabel (1994): a few products of tall matrices.
    """

    memory: int
    moves: list[np.ndarray] = field(default_factory=list)
    changes: list[np.ndarray] = field(default_factory=list)

    def add(self, move: np.ndarray, change: np.ndarray) -> None:
        """Keep a pair if it shows positive curvature."""
        curvature = _dot(move, change)
        if curvature > 1e-8 * np.sqrt(_dot(move, move) * _dot(change, change)):
            self.moves, self.changes = [*self.moves, move][-self.memory :], [*self.changes, change][-self.memory :]

    def forget(self) -> None:
        self.moves, self.changes = [], []

    def apply(self, scaling: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """H g, where H would be γ × diag(scaling) with no pairs."""
        S, Y = np.stack(self.moves), np.stack(self.changes)
        products = (S @ Y.T).astype(float)
        R, curvatures = np.triu(products), np.diag(products)
        scaled = Y * scaling
        inner = (scaled @ Y.T).astype(float)
        gamma = curvatures[-1] / inner[-1, -1]
        half = solve_triangular(R, (S @ gradient).astype(float))
        by_changes = gamma * (scaled @ gradient).astype(float)
        along = solve_triangular(R, curvatures * half + gamma * inner @ half - by_changes, trans="T")
        kind = gradient.dtype
        product: np.ndarray = kind.type(gamma) * (scaling * gradient - half.astype(kind) @ scaled)
        product = product + along.astype(kind) @ S
        return product


# Where each site was, and its gradient there.
Seen = dict[int, tuple[np.ndarray, np.ndarray]]


@dataclass
class OptimiserState(RuleState):
    """What every site sent last, and the moves that were learnt from."""

    settings: Optimiser
    sites: int
    pairs: Pairs
    trust: float
    # What each site sent last: a gradient, and the location where it was taken; who has sent one since the last pair.
    gradients: dict[int, np.ndarray] = field(default_factory=dict)
    places: dict[int, np.ndarray] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)
    last: Seen | None = None
    last_free_energy: float | None = None
    # The divergences of the latest moves.
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def observe(self, seen: FreeEnergy) -> None:
        """A fall by more than chance explains: what was learnt no longer holds, and moves have to be smaller."""
        last, self.last_free_energy = self.last_free_energy, seen.value
        if last is None:
            return
        if seen.value >= last - self.settings.margin * abs(last):
            self.trust = min(self.settings.trust, 1.1 * self.trust)
        else:
            self.pairs.forget()
            self.last = None
            self.trust = 0.25 * self.trust

    def apply(self, proposal: Proposal) -> Proposal:
        changes = proposal.changes.as_mean_field("damping: Optimiser")
        rows = len(proposal.sites)
        kind = changes.dtype.type
        here = proposal.posterior if proposal.start is None else proposal.start
        # Where sites began elsewhere, each factor first takes its part of the way there.
        base = (here / proposal.prior) ** (1 / self.sites if proposal.start is not None else 0)
        first = Naturals.of(base, 1)
        factors = Naturals.of(proposal.factors, rows) + first
        messages = Naturals.of(changes, rows) + factors - first
        now = Naturals.of(here, 1)
        location = (now.shift / now.precision)[0]
        self._remember(proposal, messages)
        change = kind(self.settings.precision_rate) * (messages.precision - factors.precision)
        precision = np.maximum(now.precision[0] + change.sum(axis=0), np.finfo(kind).tiny)
        residuals = (messages.shift - factors.shift) - (messages.precision - factors.precision) * location
        moves = self._moves(proposal, residuals, location, precision)
        applied = Naturals(precision * moves + change * location + first.shift, change + first.precision)
        return replace(proposal, changes=changes.with_naturals(applied.shift, applied.precision))

    def _remember(self, proposal: Proposal, messages: "Naturals") -> None:
        """Once every site has sent a gradient, compare with the last time that was so."""
        locations: dict[int, np.ndarray] = {}
        for row, site in enumerate(proposal.sites):
            begin = proposal.begun[site]
            # Sites of one round begin at the same density.
            if id(begin) not in locations:
                naturals = Naturals.of(begin, 1)
                locations[id(begin)] = (naturals.shift / naturals.precision)[0]
            place = locations[id(begin)]
            self.gradients[site] = messages.shift[row] - messages.precision[row] * place
            self.places[site] = place
        self.heard.update(proposal.sites)
        if len(self.heard) < self.sites:
            return
        self.heard.clear()
        now = {site: (self.places[site], self.gradients[site]) for site in self.places}
        if self.last is not None:
            self._pair(self.last, now, proposal)
        self.last = now

    def _pair(self, before: Seen, now: Seen, proposal: Proposal) -> None:
        """How the gradient changed along the way that sites went on average.

        Sites that took turns went ways of different lengths; each one's change is scaled to the average way. Where they
        differ as well, as with one class each, a plain sum would mix up whose curvature it is.
        """
        ways = {site: now[site][0] - before[site][0] for site in now}
        way = np.mean(list(ways.values()), axis=0)
        change = Naturals.of(proposal.prior, 1).precision[0] * way
        for site, own in ways.items():
            length = _dot(own, own)
            share = _dot(way, own) / length if length > 0 else 0.0
            change = change + way.dtype.type(share) * (before[site][1] - now[site][1])
        self.pairs.add(way, change)

    def _total(self, proposal: Proposal, location: np.ndarray) -> np.ndarray:
        """The gradient of the global free energy by the locations, from what every site sent last."""
        prior = Naturals.of(proposal.prior, 1)
        of_prior: np.ndarray = (prior.shift - prior.precision * location)[0]
        total: np.ndarray = np.sum(list(self.gradients.values()), axis=0) + of_prior
        return total

    def _moves(
        self, proposal: Proposal, residuals: np.ndarray, location: np.ndarray, precision: np.ndarray
    ) -> np.ndarray:
        """Each site's part of the move of the locations: its own residual, and an equal share of all the rest.

        The rest is what the quasi-Newton step adds to the residuals. Were it applied to each residual by itself, parts
        that cancel in the sum would grow without bound, because it is longer than a diagonal step.
        """
        if len(self.gradients) < self.sites:
            return np.zeros_like(residuals)
        share = len(proposal.sites) / self.sites
        kind = precision.dtype.type
        scaling = 1 / (precision + kind(self.settings.floor) * precision.mean())
        total = self._total(proposal, location)
        if self.pairs.moves:
            step = self.pairs.apply(scaling, total)
        else:
            step = kind(self.settings.first_step) * scaling * total
        divergence = 0.5 * _dot(step, step * precision)
        largest = self.trust * len(step)
        if len(self.lengths) == RECENT:
            largest = min(largest, self.settings.growth * float(np.median(self.lengths)))
        self.lengths.append(min(divergence, largest))
        # A whole Newton step on gradients that are a round old would oscillate.
        share /= 1 + proposal.staleness / self.sites
        step *= kind(share * min(1.0, np.sqrt(largest / max(divergence, np.finfo(kind).tiny))))
        # Residuals of all sites add up to the gradient; those of some would move the posterior a whole diagonal step.
        everybody = len(proposal.sites) == self.sites
        own = residuals / precision * kind(1 if everybody else self.settings.first_step)
        moves: np.ndarray = own + (step - own.sum(axis=0)) / kind(len(proposal.sites))
        return moves


@dataclass(frozen=True)
class Naturals:
    """Natural parameters of mean-field Gaussians as two matrices, with one row per density."""

    shift: np.ndarray
    precision: np.ndarray

    @classmethod
    def of(cls, density: Family, rows: int) -> "Naturals":
        return cls(*density.as_mean_field("damping: Optimiser").naturals(rows))

    def __add__(self, other: "Naturals") -> "Naturals":
        return Naturals(self.shift + other.shift, self.precision + other.precision)

    def __sub__(self, other: "Naturals") -> "Naturals":
        return Naturals(self.shift - other.shift, self.precision - other.precision)

    def where(self, chosen: np.ndarray) -> "Naturals":
        """The same rows where they are chosen, and flat ones elsewhere."""
        return Naturals(np.where(chosen[:, None], self.shift, 0), np.where(chosen[:, None], self.precision, 0))


def _dot(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.dot(first, second))
