"""An optimiser at the server, over the changes that sites propose."""

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import solve_triangular

from partita.families import Family, MeanField
from partita.foundation.checks import check_count, check_not_negative, check_positive, check_share
from partita.server.rules.base import FreeEnergy, Proposal, RuleState, Setup
from partita.server.rules.places import Places
from partita.server.rules.preconditioning import Metric, Preconditioner

# After so many reports per site, locations move though some sites have not been heard from where they are.
PATIENCE = 3
# How many moves count as recent.
RECENT = 5
# Moves may grow from this share of the first one, however small they have become.
LEAST = 1e-6
# A step turns back if its cosine with the last move is less than this; how the share that is taken then falls, and
# grows again, and what is the least.
TURN, LESS, MORE, LEAST_GAIN = -0.1, 0.8, 1.1, 0.05


@dataclass(frozen=True)
class Optimiser:
    """Moves a mean-field Gaussian along its natural gradient, with rates of their own for locations and precisions.

    For sites that answer with one message, d/dμ E_q[log p], rather than with a solved local problem. What they propose
    then adds up to the natural gradient of the global free energy, whatever the partition (Property 5 of the paper).
    For a network that is a direction, not a destination: a diagonal precision knows nothing of correlated inputs, and a
    whole step overshoots a hundredfold. So locations move by a quasi-Newton step (L-BFGS), which learns from the moves
    and gradients of earlier rounds what the diagonal leaves out, in a metric that knows which inputs and which units go
    together (`Preconditioner`). Precisions take `precision_rate` of what is proposed.

    Where only some sites report at a time, locations move once all have reported from where they are: sites that take
    turns then send gradients from one place, as in a round, and their changes are pairs that fit. Where nobody waits,
    that takes two rounds; gradients that are a move old would need steps half as long, and now and then send them
    astray. Sites that stay away are waited for as long as it takes the others to report three times each; their latest
    gradients stand for them then.

    Args:
        memory: how many earlier moves the quasi-Newton step knows.
        precision_rate: the share of a proposed change of precisions that is taken.
        floor: added to all precisions before they scale a gradient, relative to their mean.
        ridge: added to the second moments of gradients before they are a metric, relative to the largest.
        first_step: the share of the scaled gradient that is taken while there is no earlier move.
        first_trust: the largest KL divergence of such a move, in nats per parameter.
        trust: the largest KL divergence of one move of the locations, in nats per parameter.
        growth: how many times that of the recent moves it may be, and as many times again if it goes where the last one
            went, but no more at all if it goes back: pairs of gradients that are mostly noise now and then ask for a
            move that is out of all proportion.
        margin: a fall of the estimated free energy by more than this share of it quarters the trust.
    """

    memory: int = 10
    precision_rate: float = 0.02
    floor: float = 0.1
    ridge: float = 0.01
    first_step: float = 1.0
    first_trust: float = 0.003
    trust: float = 0.3
    growth: float = 4.0
    margin: float = 0.01

    def __post_init__(self) -> None:
        check_count("Optimiser: ", memory=self.memory)
        check_share("Optimiser: ", precision_rate=self.precision_rate, first_step=self.first_step)
        check_positive("Optimiser: ", first_trust=self.first_trust, trust=self.trust, ridge=self.ridge)
        check_positive("Optimiser: ", growth=self.growth, margin=self.margin)
        check_not_negative("Optimiser: ", floor=self.floor)

    def init(self, setup: Setup) -> "OptimiserState":
        if setup.prior is not None:
            setup.prior.as_mean_field("damping: Optimiser")
        return OptimiserState(self, Places(setup.sites), Pairs(self.memory), self.trust)


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

    def apply(self, metric: Metric, gradient: np.ndarray) -> np.ndarray:
        """H g, where H would be γ × the metric with no pairs."""
        S, Y = np.stack(self.moves), np.stack(self.changes)
        products = (S @ Y.T).astype(float)
        R, curvatures = np.triu(products), np.diag(products)
        *scaled_changes, scaled_gradient = metric(np.concatenate([Y, gradient[None]]))
        scaled = np.stack(scaled_changes)
        inner = (scaled @ Y.T).astype(float)
        gamma = curvatures[-1] / inner[-1, -1]
        half = solve_triangular(R, (S @ gradient).astype(float))
        by_changes = gamma * (scaled @ gradient).astype(float)
        along = solve_triangular(R, curvatures * half + gamma * inner @ half - by_changes, trans="T")
        kind = gradient.dtype
        product: np.ndarray = kind.type(gamma) * (scaled_gradient - half.astype(kind) @ scaled)
        product = product + along.astype(kind) @ S
        return product


@dataclass
class OptimiserState(RuleState):
    """What every site sent last, and the moves that were learnt from."""

    settings: Optimiser
    places: Places
    pairs: Pairs
    trust: float
    preconditioner: Preconditioner | None = None
    # How many reports there were since the last move of the locations.
    reports: int = 0
    # The latest location where all sites' gradients are known, and their sum with the prior's.
    last: tuple[np.ndarray, np.ndarray] | None = None
    last_free_energy: float | None = None
    # The latest move whose effect on all gradients is known.
    way: np.ndarray | None = None
    # The share of a step that is taken.
    gain: float = 1.0
    # The divergences of the latest moves.
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def join(self, setup: Setup) -> None:
        """Gradients of all sites are those of more sites now: what changes of their sum have taught no longer holds."""
        self.places.sites = setup.sites
        self.pairs.forget()
        self.last = self.way = None

    def observe(self, seen: FreeEnergy) -> None:
        """A fall by more than chance explains: what was learnt no longer holds, and moves have to be smaller.

        The move that led there is still to be learnt from: it shows how curved it was.
        """
        last, self.last_free_energy = self.last_free_energy, seen.value
        if last is None:
            return
        if seen.value >= last - self.settings.margin * abs(last):
            self.trust = min(self.settings.trust, 1.1 * self.trust)
        else:
            self.pairs.forget()
            self.trust = 0.25 * self.trust

    def apply(self, proposal: Proposal) -> Proposal:
        changes = proposal.changes.as_mean_field("damping: Optimiser")
        rows = len(proposal.sites)
        kind = changes.dtype.type
        here = proposal.posterior if proposal.start is None else proposal.start
        # Where sites began elsewhere, each factor first takes its part of the way there.
        base = (here / proposal.prior) ** (1 / self.places.sites if proposal.start is not None else 0)
        first = Naturals.of(base, 1)
        factors = Naturals.of(proposal.factors, rows) + first
        asked = proposal.factors if proposal.asked is None else proposal.asked
        messages = Naturals.of(changes, rows) + Naturals.of(asked, rows)
        now = Naturals.of(here, 1)
        location = (now.shift / now.precision)[0]
        if not self.places.began:
            self.places.begin(location)
        self._remember(proposal, messages)
        change = kind(self.settings.precision_rate) * (messages.precision - factors.precision)
        precision = np.maximum(now.precision[0] + change.sum(axis=0), np.finfo(kind).tiny)
        applied = Naturals(change * location + first.shift, change + first.precision)
        if not self.places.is_complete:
            return replace(proposal, changes=changes.with_naturals(applied.shift, applied.precision))
        residuals = (messages.shift - factors.shift) - (messages.precision - factors.precision) * location
        rest = precision * self._move(proposal, location, precision) - residuals.sum(axis=0)
        return _spread(
            proposal, changes, applied + Naturals(residuals, np.zeros_like(residuals)), rest, self.places.sites
        )

    def _remember(self, proposal: Proposal, messages: "Naturals") -> None:
        """Take in gradients; where all sites' are known, compare with the last place where that was so."""
        locations: dict[int, np.ndarray] = {}
        number = self.places.number_at(proposal.staleness)
        for row, site in enumerate(proposal.sites):
            begin = proposal.begun[site]
            # Sites of one round begin at the same density.
            if id(begin) not in locations:
                naturals = Naturals.of(begin, 1)
                locations[id(begin)] = (naturals.shift / naturals.precision)[0]
            place = locations[id(begin)]
            self.places.hear(site, number, place, messages.shift[row] - messages.precision[row] * place)
        self.places.version += len(proposal.sites)
        self.reports += len(proposal.sites)
        for finished in self.places.finish():
            self._learn(
                finished.location, finished.gradient + _slope(proposal.prior, finished.location), proposal.prior
            )

    def _learn(self, location: np.ndarray, gradient: np.ndarray, prior: Family) -> None:
        """What a gradient says of the curvature, and of what goes together."""
        if self.last is not None:
            self.way = location - self.last[0]
            self.pairs.add(self.way, self.last[1] - gradient)
        self.last = location, gradient
        if self.preconditioner is None:
            self.preconditioner = Preconditioner(
                [np.shape(leaf) for leaf in prior.cone().positive], self.settings.ridge
            )
        self.preconditioner.learn(gradient)

    def _move(self, proposal: Proposal, location: np.ndarray, precision: np.ndarray) -> np.ndarray:
        """Where the locations go: nowhere, as long as sites may still answer from where they are."""
        is_current = self.places.is_current
        enough = self.places.sites if is_current else PATIENCE * self.places.sites
        if self.reports < enough or self.preconditioner is None:
            return np.zeros_like(location)
        self.reports = 0
        kind = precision.dtype.type
        metric = self.preconditioner.metric(1 / (precision + kind(self.settings.floor) * precision.mean()))
        total = self.places.total() + _slope(proposal.prior, location)
        if self.pairs.moves:
            step = self.pairs.apply(metric, total)
        else:
            step = kind(self.settings.first_step) * metric(total[None])[0]
        divergence = 0.5 * _dot(step, step * precision)
        within = np.sqrt(self._reach(step, precision) / max(divergence, np.finfo(kind).tiny))
        # A whole Newton step on gradients that are from elsewhere would oscillate.
        share = min(self.gain if is_current else 0.5 * self.gain, within)
        move: np.ndarray = kind(share) * step
        self.lengths.append(share**2 * divergence)
        self.places.begin(location + move)
        return move

    def _reach(self, step: np.ndarray, precision: np.ndarray) -> float:
        """The largest divergence of a step: beside recent moves, more if it goes where the last known one went."""
        most, first = self.trust * len(step), self.settings.first_trust * len(step)
        if self.way is None:
            return min(most, first)
        weighted = step * precision
        size = np.sqrt(_dot(weighted, step) * _dot(self.way * precision, self.way))
        cosine = _dot(weighted, self.way) / max(float(size), np.finfo(float).tiny)
        # Steps that turn back are steps after noise, or too long: less of them is taken.
        self.gain = max(LEAST_GAIN, LESS * self.gain) if cosine < TURN else min(1.0, MORE * self.gain)
        recent = max(float(np.median(self.lengths)), LEAST * first)
        return float(min(most, self.settings.growth ** (0.5 + 1.5 * cosine) * recent))


def _slope(prior: Family, location: np.ndarray) -> np.ndarray:
    """The gradient of the logarithm of the prior."""
    naturals = Naturals.of(prior, 1)
    slope: np.ndarray = (naturals.shift - naturals.precision * location)[0]
    return slope


def _spread(proposal: Proposal, changes: MeanField, applied: "Naturals", rest: np.ndarray, sites: int) -> Proposal:
    """Each site's factor takes its own message's residual, and all factors alike what is left of the move.

    Were the quasi-Newton step applied to each residual by itself, parts that cancel in the sum would grow without
    bound, because it is longer than a diagonal step.
    """
    if len(proposal.sites) == sites:
        shift = applied.shift + rest / rest.dtype.type(sites)
        return replace(proposal, changes=changes.with_naturals(shift, applied.precision))
    one = changes.take_rows([0]).with_naturals(rest[None], np.zeros_like(rest)[None]).row(0)
    return replace(proposal, changes=changes.with_naturals(applied.shift, applied.precision), rest=one)


@dataclass(frozen=True)
class Naturals:
    """Natural parameters of Gaussians as two arrays, with one row per density."""

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
        rows = chosen.reshape(-1, *[1] * (self.precision.ndim - 1))
        return Naturals(np.where(chosen[:, None], self.shift, 0), np.where(rows, self.precision, 0))


def _dot(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.dot(first, second))
