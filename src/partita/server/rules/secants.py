"""Where sites' quadratic models lead together, with curvature that is learnt from how their messages change.

A message at a density says what a site's expected log likelihood is there, its slope, and a curvature. That is a
quadratic model, and prior × ∏ messages is where all models together are highest. With a full covariance the curvature
is whole; with a mean-field one it is a diagonal, and a poor one where parameters are correlated. What it leaves out
shows in how a site's slope has changed between two messages (a secant), so every site's model learns from its own
secants (L-BFGS in compact form; Byrd, Nocedal and Schnabel, 1994), and the posterior moves to where the sum of all
models leads (partitioned quasi-Newton updates, Griewank and Toint, 1982; incremental ones, Mokhtari, Eisen and Ribeiro,
2018). Where all sites answer at one density, one model of them all is enough, and the free energy there is known
exactly: a step that makes it fall is shortened. Where they do not, how far a model may be followed is learnt from how
well models have predicted what their sites said next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from partita.families import Family
from partita.foundation.checks import check_count, check_positive
from partita.server.rules.base import FreeEnergy, Proposal, Remark, RuleState, Setup
from partita.server.rules.blame import Blame
from partita.server.rules.charts import Around, Chart, Diagonal, Said, SiteModel, Step, chart_of
from partita.server.rules.judging import Bend, Losses, reach_of
from partita.server.rules.optimiser import Naturals
from partita.server.rules.quadratics import TINY

# How many times as certain as the prior is the density at which sites are asked first.
SHARPER = 1e6
# A fall of fewer nats says nothing.
NEGLIGIBLE = 1e-6
# So many shorter steps are tried before the place that was better is given up.
MOST_RETURNS = 8
# A model has held where a site's value is short of it by at most this part of what was promised, and has not where by
# more than that. A shortfall of `SLIGHT` nats does not matter, and nothing is learnt from a way that is no longer.
HELD, FAILED, SLIGHT = 0.1, 0.25, 1e-3
# How much further, or less far, models are followed after as many answers as there are sites, whatever they leave out.
# `AHEAD`: so many times the ways that were gone is never too far.
FURTHER, LESS, AHEAD = 1.5, 0.25, 4.0
# A site that is heard so many times no longer waits for those that were never heard.
PATIENCE = 3
# How many times as far as the last step the next may go, in nats.
LEAP = 16.0
# By this part of itself a precision may miss what models ask for where sites do not answer together, so that factors
# become what their sites say even where the product of all is as it should be.
LEEWAY = 0.01
# How a share of a site grows and shrinks that was to blame for a fall.
SHRINK, REGROW = 0.5, 1.1


@dataclass(frozen=True)
class Secants:
    """Moves a Gaussian to where all sites' models lead, with curvature learnt from their messages.

    Args:
        memory: how many secants one model knows.
        numbers: how many secants all models together know at most: a fold costs their number squared times parameters.
        first: how far models are followed at first where sites do not answer together, in nats per parameter; None
            stands for 0.05 where their curvature is a diagonal, and 1 where it is whole.
    """

    memory: int = 100
    numbers: int = 400
    first: float | None = None

    def __post_init__(self) -> None:
        check_count("Secants: ", memory=self.memory, numbers=self.numbers)
        if self.first is not None:
            check_positive("Secants: ", first=self.first)

    def start(self, prior: Family) -> Family:
        """Where sites are asked first: so narrowly around the prior's mean that only the curvature there counts.

        Under a wide prior little can be seen of where the data lead, and exponentials overflow.
        """
        return prior**SHARPER

    def init(self, setup: Setup) -> "SecantsState":
        if setup.prior is None:
            return SecantsState(self, setup.sites, Diagonal(), np.inf, np.inf, np.inf, 0.0)
        chart = chart_of(setup.prior)
        parameters = chart.naturals(setup.prior, 1).shift.size
        first = chart.first if self.first is None else self.first
        at_first, by_leeway = parameters / LEAP, 0.25 * LEEWAY**2 * parameters
        return SecantsState(self, setup.sites, chart, first * parameters, at_first, at_first, by_leeway)


@dataclass
class SecantsState(RuleState):
    """What every site said last, the models that were learnt from it, and the latest step."""

    settings: Secants
    sites: int
    chart: Chart
    # How far models are followed where sites do not answer together, in nats.
    reach: float
    # How far the latest step went that was not taken back, where they do; and what stands for that before the first.
    gone: float
    gone_at_first: float
    # How far precisions may move in a fold although nothing asks for it, in nats.
    by_leeway: float
    said: dict[int, Said] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    # A model for each site, or one of all together.
    models: dict[int | None, SiteModel] = field(default_factory=dict)
    # How many nats models have promised in all, and had when each site was heard last.
    promised: float = 0.0
    promised_by: dict[int, float] = field(default_factory=dict)
    # By how much each site's value was short of its model's, last.
    short: dict[int, float] = field(default_factory=dict)
    # What each site's model left out on its latest way that says something of it.
    bends: dict[int, Bend] = field(default_factory=dict)
    step: Step | None = None
    returns: int = 0
    # How many have answered since locations moved last.
    waiting: int = 0
    # Who was heard in the latest fold.
    heard: set[int] = field(default_factory=set)
    # Who alone made the free energy fall, and is held back; and the free energy, if all have reported again.
    blame: Blame = field(default_factory=lambda: Blame(SHRINK, REGROW))
    seen: FreeEnergy | None = None
    # Sites that have lost much of what all models promised, each time since the first.
    losses: dict[int, Losses] = field(default_factory=dict)
    # Sites whose factors are to become flat when they answer next; and those of them that are named in this fold.
    outcast: set[int] = field(default_factory=set)
    named: list[int] = field(default_factory=list)

    def observe(self, seen: FreeEnergy) -> None:
        self.seen = seen

    def join(self, setup: Setup) -> None:
        self.sites = setup.sites

    def forget(self, site: int) -> None:
        self._drop(site)
        self.blame.held.pop(site, None)
        self.outcast.discard(site)

    def forgive(self, site: int) -> None:
        self.forget(site)

    def holds(self, site: int) -> bool:
        return site in self.outcast or self.blame.held.get(site, 1.0) < 1

    def after_fold(self, taken: np.ndarray) -> list[Remark]:
        return [self.blame.remark(site) for site in self.named]

    def _drop(self, site: int) -> None:
        """Nothing that a site has said counts any more, nor what was learnt with it."""
        for known in (self.said, self.models, self.bends):
            known.pop(site, None)
        self.models.pop(None, None)
        self.step = None
        self.gone = max(self.gone, self.gone_at_first)

    def apply(self, proposal: Proposal) -> Proposal:
        rows, chart = len(proposal.sites), self.chart
        factors = chart.naturals(proposal.factors, rows)
        asked = factors if proposal.asked is None else chart.naturals(proposal.asked, rows)
        messages = chart.naturals(proposal.changes, rows) + asked
        self.named = [site for site in proposal.sites if site in self.outcast]
        heard = self._hear(proposal, messages)
        self.outcast.difference_update(proposal.sites)
        is_first = len(self.said) < self.sites and max(self.times.values(), default=0) < PATIENCE
        self.said.update(heard)
        here = chart.place(proposal.posterior if proposal.start is None else proposal.start)
        places = {id(proposal.begun[site]) for site in heard}
        # Most of them, twice in a row: the others are away.
        same = set(heard) == self.heard and 2 * len(heard) > len(self.said)
        together = len(places) == 1 and (same or len(heard) == len(self.said))
        self.heard, seen, self.seen = set(heard), self.seen, None
        if not self.said:
            return proposal
        self.waiting += len(heard)
        if not heard or (is_first and (together or len(self.said) < self.sites)):
            return self._spread(proposal, factors, here, None, 1.0)
        if is_first:
            here = chart.place(proposal.posterior)
        if together:
            place, wanted = self._move_together(proposal, heard, seen)
            return self._spread(proposal, factors, place, chart.precision(place), wanted)
        place = self._move(proposal, heard, here, seen)
        return self._spread(proposal, factors, place, chart.precision(place), 1.0, LEEWAY)

    def _hear(self, proposal: Proposal, messages: Naturals) -> dict[int, Said]:
        """What sites say, of those whose word can be taken."""
        places: dict[int, np.ndarray] = {}
        heard = {}
        for row, site in enumerate(proposal.sites):
            begin, value = proposal.begun[site], proposal.values.get(site, np.nan)
            place = places.setdefault(id(begin), self.chart.place(begin))
            said = self.chart.hear(
                place, value, messages.shift[row].astype(float), messages.precision[row].astype(float)
            )
            if site not in self.outcast and np.isfinite(value) and np.all(np.isfinite(said.slope)):
                heard[site] = said
                self.times[site] = self.times.get(site, 0) + 1
            elif site in self.said:
                self._drop(site)
        return heard

    def _others(self, proposal: Proposal, heard: Mapping[int, Said]) -> Naturals:
        """The prior, with the factors of all sites that have no say, and the last messages of those that had one."""
        prior = self.chart.naturals(proposal.prior, 1)
        silent = [site for site in range(self.sites) if site not in self.said and not self._is_dropped(proposal, site)]
        if silent and proposal.held is not None:
            prior = prior + self.chart.naturals(proposal.held(silent).product_of_rows(), 1)
        for site, said in self.said.items():
            if site not in heard:
                prior = prior + Naturals(said.shift[None], said.precision[None])
        return prior

    def _move_together(
        self, proposal: Proposal, heard: Mapping[int, Said], seen: FreeEnergy | None
    ) -> tuple[np.ndarray, float]:
        """All sites have answered at one place: go on from there, or if it is worse, less far from where it was better.

        Gives the next place, and the share of the way there; zero, if an earlier step is taken back.
        """
        last = self.step
        if last is not None and set(last.said) != set(heard):
            self.models, self.step, last = {}, None, None
        around = self._sum(proposal, heard)
        place, free_energy, slope, curvature = around
        if last is not None and _has_fallen(free_energy, last.free_energy):
            blamed = None if seen is None else self._find_blamed(last.free_energy - free_energy, seen, self.returns)
            if blamed is None and self.returns < MOST_RETURNS:
                self.returns += 1
                self.step = last.shorten(free_energy)
                self.said.update(last.said)
                return self.step.place + self.step.share * self.step.way, 0.0
            if blamed is not None:
                self.named.append(blamed)
                heard = {site: said for site, said in heard.items() if site != blamed}
                around = self._sum(proposal, heard)
                place, free_energy, slope, curvature = around
        else:
            self.blame.relax()
        self.returns = 0
        known = self.models.get(None)
        model = self.chart.model(self.settings.memory, around, scaled=True) if known is None else known.moved(*around)
        self.models = {None: model}
        way = self.chart.highest([model], place, 0 * slope, 0 * curvature)
        # One secant says how curved one way is: the next is gone half.
        share = min(0.5 if len(model.ways) == 1 else 1.0, self.chart.share_of_changes(way, place))
        share = min(share, self.chart.share_within(LEAP * self.gone, way, place))
        self.gone = max(SLIGHT, share**2 * self.chart.nats(way, place))
        self.step = Step(place, free_energy, dict(heard), way, float(slope @ way), share)
        return place + share * way, share

    def _sum(self, proposal: Proposal, heard: Mapping[int, Said]) -> Around:
        """Where sites have answered together, with the free energy there, its slope and a curvature."""
        everybody = list(heard.values())
        place, curvature = everybody[0].place, np.sum([said.curvature for said in everybody], axis=0)
        own_value, own_slope, own_curvature = self.chart.of_prior(self._others(proposal, heard), place, curvature)
        slope = np.sum([own_slope, *(said.slope for said in everybody)], axis=0)
        return Around(place, own_value + sum(said.value for said in everybody), slope, curvature + own_curvature)

    def _find_blamed(self, fall: float, seen: FreeEnergy, returns: int) -> int | None:
        """The site that alone made the free energy fall, which has no say until it answers again."""
        self.blame.find(fall, seen.shortfalls, returns)
        blamed = self.blame.blamed
        if blamed is None or blamed not in self.said or len(self.said) == 1:
            return None
        self._drop(blamed)
        return blamed

    def _cast_out(self, proposal: Proposal, site: int) -> None:
        """A site has no say until it answers again; its factor goes when it is in a fold, which may be this one."""
        self._drop(site)
        self.blame.held[site] = SHRINK * self.blame.held.get(site, 1.0)
        (self.named.append if site in proposal.sites else self.outcast.add)(site)

    def _move(
        self, proposal: Proposal, heard: Mapping[int, Said], here: np.ndarray, seen: FreeEnergy | None
    ) -> np.ndarray:
        """Some sites have answered: where all models together lead, as far as they may be followed."""
        self.models.pop(None, None)
        self.step = None
        if seen is not None:
            self.blame.relax()
        memory = min(self.settings.memory, self.settings.numbers // self.sites)
        for site, said in self.said.items():
            known = self.models.get(site)
            if known is None:
                self.models[site] = self.chart.model(memory, said.around)
            elif site in heard:
                self._judge(site, known, said, self.promised - self.promised_by.get(site, 0.0))
                self.models[site] = known.moved(*said.around)
            if known is None or site in heard:
                self.promised_by[site] = self.promised
        for site in [site for site in heard if site in self.losses and self.losses[site].is_lie(self.holds(site))]:
            if len(self.said) > 1:
                self._cast_out(proposal, site)
        models = list(self.models.values())
        total: np.ndarray = np.sum([said.curvature for said in self.said.values()], axis=0)
        _, own_slope, own_curvature = self.chart.of_prior(self._others(proposal, self.said), here, total)
        way = self.chart.highest(models, here, own_slope, own_curvature)
        # As many answers as it takes to hear of everybody may lead as far as models may be followed.
        most = min(1.0, self.waiting / len(self.said)) * self.chart.share_within(self.reach, way, here)
        share = min(self.chart.share_of_changes(way, here), most)
        slopes = [model.slope_at(here) for model in models]
        # Along a way to the highest place of a parabola.
        self.promised += share * (1 - 0.5 * share) * float(np.sum([own_slope, *slopes], axis=0) @ way)
        self.waiting = 0
        return here + share * way

    def _judge(self, site: int, model: SiteModel, said: Said, promised: float) -> None:
        """Follow models further, or less far, by how well this one has predicted its site's value.

        What counts is how much of what all models promised on the way, a site's own part of it, was lost. Where one
        site alone loses much of what all have promised, again and again, it is not the steps that are too long.
        """
        judged = model.judge(said.place, said.value)
        # Precisions move by leeway however far models are followed, and models are linear in them: then a loss says
        # neither that ways are too long nor that a site lies.
        blind = judged.length < judged.of_precisions <= self.by_leeway
        short, length = judged.short, max(judged.length + judged.of_precisions, TINY)
        most, part = max(judged.quadratic, promised / len(self.said)), 1 / len(self.said)
        if short <= FAILED * max(promised, judged.quadratic) + SLIGHT:
            self.losses.pop(site, None)
        elif not blind:
            before = self.losses.get(site)
            self.losses[site] = Losses(length, short / length) if before is None else before.add(length, short / length)
            self.reach *= LESS if before is not None else 1.0
        if judged.length > max(SLIGHT, judged.of_precisions):
            self.bends[site] = Bend.of(judged)
        self.short[site] = short
        everybody = sum(self.short.get(other, 0.0) for other in self.said)
        if (short <= HELD * most + SLIGHT or everybody <= HELD * promised) and self.losses.keys().isdisjoint(self.said):
            self._follow_further(min(self.reach * FURTHER**part, max(self.reach, AHEAD * length)))
        elif not blind and short > FAILED * most and everybody > FAILED * promised:
            self.reach = min(self.reach * LESS**part, max(length, self.reach * LESS))

    def _follow_further(self, reach: float) -> None:
        """As far as promises that were kept allow, or as what most models leave out, which may be much further."""
        bends = [self.bends[site] for site in self.said if site in self.bends]
        if 2 * len(bends) > len(self.said):
            self.reach = max(reach, reach_of(bends))

    def _spread(
        self,
        proposal: Proposal,
        factors: Naturals,
        place: np.ndarray,
        precision: np.ndarray | None,
        wanted: float,
        leeway: float = 0.0,
    ) -> Proposal:
        """The changes that lead the posterior there: factors go towards messages, and all share what is left alike.

        Precisions go no further than messages say, so that every cavity stays proper; None goes all the way. Factors of
        sites that have no say become flat; but what could not be taken of them is left for later rules to judge.
        """
        chart, sites = self.chart, proposal.sites
        now = chart.naturals(proposal.posterior, 1)
        dropped = np.array([self._is_dropped(proposal, site) for site in sites])
        heard = np.array([site in self.said for site in sites])
        said = [self.said.get(site) for site in sites]
        targets = Naturals(
            np.stack([0 * now.shift[0] if one is None else one.shift for one in said]),
            np.stack([0 * now.precision[0] if one is None else one.precision for one in said]),
        )
        change = (targets - factors).where(heard)
        gone = factors.where(dropped)
        if precision is not None:
            kept = now.precision[0] - gone.precision.sum(axis=0)
            shares = chart.shares_of(precision - kept, change.precision.sum(axis=0), now.precision[0], leeway)
            change = Naturals(shares * change.shift, shares * change.precision)
        change = change - gone
        end = now.precision[0] + change.precision.sum(axis=0)
        rest = chart.times(end, place[: len(now.shift[0])]) - now.shift[0] - change.shift.sum(axis=0)
        change = change + chart.naturals(proposal.changes, len(sites)).where(~(heard | dropped))
        spread = None
        if set(self.said) <= set(sites):
            change = Naturals(change.shift + heard[:, None] * rest / len(self.said), change.precision)
        else:
            one = proposal.changes.take_rows([0])
            spread = chart.with_naturals(one, Naturals(rest[None], 0 * now.precision)).row(0)
        changes = chart.with_naturals(proposal.changes, change)
        everybody, leaving = frozenset(self.said), frozenset(sites) - frozenset(self.said)
        return replace(proposal, changes=changes, wanted=wanted, rest=spread, sharing=everybody, leaving=leaving)

    def _is_dropped(self, proposal: Proposal, site: int) -> bool:
        """Whether a site has no say because of what it said, rather than because its update cannot be taken at all."""
        return site not in self.said and (site in self.named or site in proposal.doubted)


def _has_fallen(now: float, before: float) -> bool:
    return not now >= before - NEGLIGIBLE - 1e-10 * abs(before)
