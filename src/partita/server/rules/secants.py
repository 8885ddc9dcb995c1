"""Where sites' quadratic models lead together, with curvature that is learnt from how their messages change.

A message at a density says what a site's expected log likelihood is there, its slope, and a diagonal curvature. That is
a quadratic model, and prior × ∏ messages is where all models together are highest. Where parameters are correlated, a
diagonal is a poor curvature. What it leaves out shows in how a site's slope has changed between two messages (a
secant), so every site's model learns from its own secants (L-BFGS in compact form; Byrd, Nocedal and Schnabel, 1994),
and the posterior moves to where the sum of all models leads (partitioned quasi-Newton updates, Griewank and Toint,
1982; incremental ones, Mokhtari, Eisen and Ribeiro, 2018). Where all sites answer at one density, one model of them all
is enough, and the free energy there is known exactly: a step that makes it fall is shortened. Where they do not, how
far a model may be followed is learnt from how well models have predicted what their sites said next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from partita.families import Family
from partita.foundation.checks import check_count, check_positive
from partita.server.rules.base import Proposal, RuleState, Setup
from partita.server.rules.optimiser import Naturals
from partita.server.rules.quadratics import TINY, Model, highest

# How many times as certain as the prior is the density at which sites are asked first.
SHARPER = 1e6
# A fall of fewer nats says nothing.
NEGLIGIBLE = 1e-6
# So many shorter steps are tried before the place that was better is given up.
MOST_RETURNS = 8
# A shortened step is at least and at most this share of the one before.
SHORTEST, LONGEST = 0.1, 0.5
# A precision changes at most by this factor in one fold, as a logarithm.
LARGEST_CHANGE = 1.5
# A model has held where a site's value is short of it by at most this part of what was promised, and has not where by
# more than that. A shortfall of `SLIGHT` nats does not matter.
HELD, FAILED, SLIGHT = 0.1, 0.25, 1e-3
# How much further, or less far, models are followed after as many answers as there are sites; and no further than so
# many times the ways that were gone.
FURTHER, LESS, AHEAD = 2.0, 0.25, 8.0
# A site that is heard so many times no longer waits for those that were never heard.
PATIENCE = 3
# How many times as far as the last step the next may go, in nats.
LEAP = 16.0


@dataclass(frozen=True)
class Secants:
    """Moves a mean-field Gaussian to where all sites' models lead, with curvature learnt from their messages.

    Args:
        memory: how many secants one model knows.
        numbers: how many secants all models together know at most: a fold costs their number squared times parameters.
        first: how far models are followed at first where sites do not answer together, in nats per parameter.
    """

    memory: int = 100
    numbers: int = 400
    first: float = 0.05

    def __post_init__(self) -> None:
        check_count("Secants: ", memory=self.memory, numbers=self.numbers)
        check_positive("Secants: ", first=self.first)

    def start(self, prior: Family) -> Family:
        """Where sites are asked first: so narrowly around the prior's mean that only the curvature there counts.

        Under a wide prior little can be seen of where the data lead, and exponentials overflow.
        """
        return prior**SHARPER

    def init(self, setup: Setup) -> "SecantsState":
        if setup.prior is None:
            return SecantsState(self, setup.sites, np.inf, np.inf)
        parameters = Naturals.of(setup.prior, 1).precision.size
        return SecantsState(self, setup.sites, self.first * parameters, parameters / LEAP)


@dataclass(frozen=True)
class Said:
    """What a site said last: its message, its value, and where that was."""

    place: np.ndarray
    value: float
    shift: np.ndarray
    precision: np.ndarray

    @property
    def slope(self) -> np.ndarray:
        """By locations and logarithms of precisions."""
        half = len(self.shift)
        location, variance = self.place[:half], np.exp(-self.place[half:])
        return np.concatenate([self.shift - self.precision * location, 0.5 * self.precision * variance])

    @property
    def curvature(self) -> np.ndarray:
        variance = np.exp(-self.place[len(self.shift) :])
        return np.concatenate([self.precision, 0.5 * self.precision * variance])


@dataclass(frozen=True)
class Step:
    """A step from a place whose free energy is known: which way, how much of it, and how steep it is there."""

    place: np.ndarray
    free_energy: float
    said: Mapping[int, Said]
    way: np.ndarray
    gain: float
    share: float = 1.0

    def shortened(self, free_energy: float) -> "Step":
        """A shorter one, to where a parabola through both free energies is highest."""
        expected = self.free_energy + self.gain * self.share - free_energy
        wanted = self.gain * self.share**2 / (2 * expected) if np.isfinite(expected) and expected > 0 else 0.0
        return replace(self, share=float(np.clip(wanted, SHORTEST * self.share, LONGEST * self.share)))


@dataclass
class SecantsState(RuleState):
    """What every site said last, the models that were learnt from it, and the latest step."""

    settings: Secants
    sites: int
    # How far models are followed where sites do not answer together, in nats.
    reach: float
    # How far the latest step went that was not taken back, where they do.
    gone: float
    said: dict[int, Said] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    # A model for each site, or one of all together.
    models: dict[int | None, Model] = field(default_factory=dict)
    # How many nats models have promised in all, and had when each site was heard last.
    promised: float = 0.0
    promised_by: dict[int, float] = field(default_factory=dict)
    step: Step | None = None
    returns: int = 0

    def forget(self, site: int) -> None:
        self.said.pop(site, None)
        self.models, self.step = {}, None

    def forgive(self, site: int) -> None:
        self.forget(site)

    def apply(self, proposal: Proposal) -> Proposal:
        rows = len(proposal.sites)
        factors = Naturals.of(proposal.factors, rows)
        asked = factors if proposal.asked is None else Naturals.of(proposal.asked, rows)
        messages = Naturals.of(proposal.changes, rows) + asked
        heard = self._hear(proposal, messages)
        is_first = len(self.said) < self.sites and max(self.times.values(), default=0) < PATIENCE
        self.said.update(heard)
        here = _coordinates(proposal.posterior if proposal.start is None else proposal.start)
        if is_first or not heard:
            return self._spread(proposal, factors, messages, here[: len(here) // 2], None, 1.0)
        prior = Naturals.of(proposal.prior, 1)
        places = {id(proposal.begun[site]) for site in heard}
        if len(heard) == len(self.said) and len(places) == 1:
            place, wanted = self._move_together(prior)
        else:
            place, wanted = self._move(prior, heard, here), 1.0
        location, precision = np.split(place, 2)
        return self._spread(proposal, factors, messages, location, np.exp(precision), wanted)

    def _hear(self, proposal: Proposal, messages: Naturals) -> dict[int, Said]:
        """What sites say, of those who found numbers."""
        places: dict[int, np.ndarray] = {}
        heard = {}
        for row, site in enumerate(proposal.sites):
            begin, value = proposal.begun[site], proposal.values.get(site, np.nan)
            place = places.setdefault(id(begin), _coordinates(begin))
            said = Said(place, value, messages.shift[row].astype(float), messages.precision[row].astype(float))
            if np.isfinite(value) and np.all(np.isfinite(said.slope)):
                heard[site] = said
                self.times[site] = self.times.get(site, 0) + 1
        return heard

    def _move_together(self, prior: Naturals) -> tuple[np.ndarray, float]:
        """All sites have answered at one place: go on from there, or if it is worse, less far from where it was better.

        Gives the next place, and the share of the way there; zero, if an earlier step is taken back.
        """
        everybody, last = list(self.said.values()), self.step
        place, curvature = everybody[0].place, self._total_curvature()
        own_value, own_slope, own_curvature = _of_prior(prior, place, curvature)
        free_energy = own_value + sum(said.value for said in everybody)
        slope, curvature = np.sum([own_slope, *(said.slope for said in everybody)], axis=0), curvature + own_curvature
        tolerated = NEGLIGIBLE + 1e-10 * abs(free_energy)
        if last is not None and self.returns < MOST_RETURNS and not free_energy >= last.free_energy - tolerated:
            self.returns += 1
            self.step = last.shortened(free_energy)
            self.said = dict(last.said)
            return self.step.place + self.step.share * self.step.way, 0.0
        self.returns = 0
        known = self.models.get(None)
        if known is None:
            model = Model(self.settings.memory, place, free_energy, slope, curvature, scaled=True)
        else:
            model = known.moved(place, free_energy, slope, curvature)
        self.models = {None: model}
        way = highest([model], place, 0 * place, 0 * place)
        share = min(_share_of_changes(way), _share_within(LEAP * self.gone, way, place))
        self.gone = max(SLIGHT, share**2 * _nats(way, place))
        self.step = Step(place, free_energy, dict(self.said), way, float(slope @ way), share)
        return place + share * way, share

    def _move(self, prior: Naturals, heard: Mapping[int, Said], here: np.ndarray) -> np.ndarray:
        """Some sites have answered: where all models together lead, as far as they may be followed."""
        self.models.pop(None, None)
        self.step = None
        memory = min(self.settings.memory, self.settings.numbers // self.sites)
        for site, said in self.said.items():
            known = self.models.get(site)
            if known is None:
                self.models[site] = Model(memory, said.place, said.value, said.slope, said.curvature)
            elif site in heard:
                self._judge(known, said, self.promised - self.promised_by.get(site, 0.0))
                self.models[site] = known.moved(said.place, said.value, said.slope, said.curvature)
            if known is None or site in heard:
                self.promised_by[site] = self.promised
        models = list(self.models.values())
        _, own_slope, own_curvature = _of_prior(prior, here, self._total_curvature())
        way = highest(models, here, own_slope, own_curvature)
        # As many folds as it takes to hear of everybody may go as far as models may be followed.
        most = len(heard) / len(self.said) * _share_within(self.reach, way, here)
        share = min(_share_of_changes(way), most)
        slopes = [model.slope - model.curved(here - model.place) for model in models]
        # Along a way to the highest place of a parabola.
        self.promised += share * (1 - 0.5 * share) * float(np.sum([own_slope, *slopes], axis=0) @ way)
        return here + share * way

    def _total_curvature(self) -> np.ndarray:
        total: np.ndarray = np.sum([said.curvature for said in self.said.values()], axis=0)
        return total

    def _judge(self, model: Model, said: Said, promised: float) -> None:
        """Follow models further, or less far, by how well this one has predicted its site's value.

        What counts is how much of what all models promised on the way, a site's own part of it, was lost.
        """
        short, quadratic = model.shortfall(said.place, said.value)
        length = _nats(said.place - model.place, said.place)
        most, part = max(quadratic, promised / len(self.said)), 1 / len(self.said)
        if short <= HELD * most + SLIGHT:
            self.reach = min(self.reach * FURTHER**part, max(self.reach, AHEAD * length))
        elif short > FAILED * most:
            self.reach = min(self.reach * LESS**part, max(length, self.reach * LESS))

    def _spread(
        self,
        proposal: Proposal,
        factors: Naturals,
        messages: Naturals,
        location: np.ndarray,
        precision: np.ndarray | None,
        wanted: float,
    ) -> Proposal:
        """The changes that lead the posterior there: factors go towards messages, and all share what is left alike.

        Precisions go no further than messages say, so that every cavity stays proper; None goes all the way.
        """
        now = Naturals.of(proposal.posterior, 1)
        said = [self.said.get(site) for site in proposal.sites]
        targets = Naturals(
            np.stack([row if one is None else one.shift for one, row in zip(said, messages.shift, strict=True)]),
            np.stack(
                [row if one is None else one.precision for one, row in zip(said, messages.precision, strict=True)]
            ),
        )
        change = targets - factors
        if precision is not None:
            shares = _shares_of(precision - now.precision[0], change.precision.sum(axis=0), now.precision[0])
            change = Naturals(shares * change.shift, shares * change.precision)
        end = now.precision[0] + change.precision.sum(axis=0)
        rest = end * location - now.shift[0] - change.shift.sum(axis=0)
        changes = proposal.changes.as_mean_field("damping: Secants")
        kind = changes.dtype
        spread = None
        if len(proposal.sites) == self.sites:
            change = Naturals(change.shift + rest / self.sites, change.precision)
        else:
            one = changes.take_rows([0])
            spread = one.with_naturals(rest[None].astype(kind), np.zeros((1, len(rest)), kind)).row(0)
        changes = changes.with_naturals(change.shift.astype(kind), change.precision.astype(kind))
        return replace(proposal, changes=changes, wanted=wanted, rest=spread)


def _shares_of(asked: np.ndarray, offered: np.ndarray, size: np.ndarray) -> np.ndarray:
    """For every coordinate the share, from 0 to 1, of what is offered that comes nearest to what is asked for."""
    nothing = np.abs(offered) <= 1e-9 * size
    shares: np.ndarray = np.where(nothing, 1.0, np.clip(asked / np.where(nothing, 1.0, offered), 0.0, 1.0))
    return shares


def _coordinates(density: Family) -> np.ndarray:
    """Locations, and logarithms of precisions."""
    naturals = Naturals.of(density, 1)
    shift, precision = naturals.shift[0].astype(float), naturals.precision[0].astype(float)
    return np.concatenate([shift / precision, np.log(precision)])


def _nats(way: np.ndarray, place: np.ndarray) -> float:
    """How far a way leads from a place, by the Fisher information there."""
    locations, log_precisions = np.split(way, 2)
    precision = np.exp(place[len(locations) :])
    return 0.5 * float(precision @ locations**2) + 0.25 * float(log_precisions @ log_precisions)


def _share_of_changes(way: np.ndarray) -> float:
    """The share of a way on which no precision changes too much."""
    largest = float(np.max(np.abs(way[len(way) // 2 :])))
    return min(1.0, LARGEST_CHANGE / max(TINY, largest))


def _share_within(most: float, way: np.ndarray, place: np.ndarray) -> float:
    """The share of a way that is so many nats long."""
    return float(np.sqrt(most / max(_nats(way, place), TINY)))


def _of_prior(prior: Naturals, place: np.ndarray, curvature: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """-KL(q ‖ prior) up to a constant, with its slope and a curvature that leaves no direction flat.

    `curvature` is the models': precisions have at least the curvature that a Gaussian's own entropy gives them.
    """
    location, log_precision = np.split(place, 2)
    variance, known = np.exp(-log_precision), prior.precision[0].astype(float)
    off = location - prior.shift[0] / known
    value = -0.5 * float(np.sum(known * variance + known * off**2 + log_precision))
    slope = np.concatenate([-known * off, 0.5 * known * variance - 0.5])
    of_precisions = np.maximum(0.5 * known * variance, 0.5 - curvature[len(location) :])
    return value, slope, np.concatenate([known, of_precisions])
