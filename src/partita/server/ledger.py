"""The server's state: the prior and one factor per site. The posterior is derived from them.

    posterior = prior × ∏ factors

An update replaces a site's factor. A fold takes the changes of one or several sites at once, and of them the largest
share that keeps the posterior, and every site's cavity, proper (`room.py`). Nothing changes when it refuses.

A ledger whose sites share one factor is in `shared_ledger.py`.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import jax
import numpy as np

from partita.errors import ImproperDensity, InputError, NotOutstanding
from partita.families import Cone, Family
from partita.families.cone import (
    admissible_share,
    exceeds_rounding,
    is_clear_of,
    is_surely_inside,
    larger_floor,
    lower_bound,
    rounding_floor,
    shift_cone,
)
from partita.models import Hyper
from partita.server.checking import check_structure, check_values
from partita.server.flights import Flight, Flights
from partita.server.groups import find_quotients, find_share, raise_to, slice_groups
from partita.server.room import Usual, find_unburied_shares, fit_changes
from partita.wire.tasks import Task, Update


def unchanged(changes: Family, factors: Family) -> Family:
    """Take changes as they are."""
    return changes


def anywhere(posterior: Family) -> bool:
    """A fold may move the posterior anywhere."""
    return True


class Ledger:
    """prior × ∏ factors, with who is working on what. Factors are kept stacked, one row per site."""

    # Whether cavities are quotients of the posterior, where that leaves digits of them.
    divides: ClassVar[bool] = True

    def __init__(self, prior: Family, sites: int):
        if sites < 1:
            raise InputError("shards: expected at least one site")
        check_prior(prior)
        self.prior = prior
        self.posterior = prior
        self.sites = sites
        self.version = 0
        self.flights = Flights()
        # Sites that were divided out for good; and those whose factors are to go, of which some is left.
        self.retired: set[int] = set()
        self.leaving: set[int] = set()
        self._factors = self._no_factors()
        # What some factors share alike beside what is kept for each: changes of locations, after which all that was
        # proper still is; and whose factors these are.
        self._shared: Family | None = None
        self._sharing: frozenset[int] = frozenset()
        # A lower bound of all cavities, or None where it has to be computed afresh.
        self._weakest: Cone | None = prior.cone()
        # What cannot be told from zero, beside the largest numbers that were ever added up here; and beside the numbers
        # of a posterior alone.
        self._floor = rounding_floor(prior.cone())
        self._lost = (prior, self._floor)
        self.usual = Usual()

    def _no_factors(self) -> Family:
        """Factors of sites that have said nothing."""
        return self.prior.flat(self.sites)

    def adopt(self, factors: Sequence[Family]) -> None:
        """Begin with these factors, rather than with flat ones."""
        if len(factors) != self.sites:
            raise InputError(f"factors: expected {self.sites}, one per site, got {len(factors)}")
        everybody = range(self.sites)
        self._store(everybody, Family.stack(factors))
        self.posterior = self.recomputed_posterior()
        self._weakest = None
        if not (is_surely_inside(self.posterior.cone()) and is_surely_inside(self.cavities(everybody).cone())):
            raise ImproperDensity("factors: with them, the posterior or a cavity is not proper")
        self._floor = self.floor_with(self.posterior.cone())

    @property
    def outstanding(self) -> dict[int, int]:
        """For every site that has a task, the version of the posterior that the task was made from."""
        return self.flights.versions

    def factor(self, site: int) -> Family:
        """t_m."""
        return self.factors_of([site]).row(0).copy()

    def holds_nothing_of(self, site: int) -> bool:
        """Whether a site's factor is flat, so that the posterior is that of the other sites' data."""
        return not any(map(np.any, jax.tree.leaves(self.factors_of([site]))))

    def factors(self) -> tuple[Family, ...]:
        """All t_m."""
        return tuple(self.factor(site) for site in range(self.sites))

    def factors_of(self, sites: Sequence[int]) -> Family:
        """Stacked factors of some sites, which may be views of what is kept."""
        kept = self._factors.take_rows(sites)
        return kept if self._shared is None else kept * self._parts_of(self._shared, sites)

    def _parts_of(self, change: Family, sites: Sequence[int]) -> Family:
        """Stacked parts of a change that several factors share alike."""
        part = 1 / max(1, len(self._sharing))
        return change.repeat(len(sites)).scale_rows([part if site in self._sharing else 0.0 for site in sites])

    def _hand_out(self) -> None:
        """Keep with every factor its part of what all share."""
        if self._shared is not None:
            self._factors, self._shared = self.factors_of(range(self.sites)), None

    def cavity(self, site: int) -> Family:
        """q / t_m: what all the others believe."""
        return self.cavities([site]).row(0)

    def cavities(self, sites: Sequence[int]) -> Family:
        """Stacked cavities of some sites."""
        return self._cavities(sites, self.posterior, self.factors_of(sites))

    def recomputed_posterior(self) -> Family:
        """prior × ∏ factors from scratch."""
        self._hand_out()
        return self.prior * self._factors.product_of_rows()

    def dispatch(
        self,
        sites: Sequence[int],
        hyper: Hyper,
        start: Family | None = None,
        anchor: Family | None = None,
        message_only: bool = False,
    ) -> list[Task]:
        """Hand sites their next tasks; each is outstanding until its update is folded."""
        if message_only and start is None:
            start = self.posterior
        for site in sites:
            if not 0 <= site < self.sites:
                raise InputError(f"site {site}: there are sites 0 to {self.sites - 1}")
        cavities = [self.prior.flat()] * len(sites) if message_only else self.cavities(sites).rows()
        # These are views: a site's factor stays as it is while its task is outstanding.
        factors = self.factors_of(sites).rows()
        tasks = [
            Task(site, self.version, cavity, factor, hyper, start, anchor, message_only)
            for site, cavity, factor in zip(sites, cavities, factors, strict=True)
        ]
        self.flights.update({task.site: Flight(task) for task in tasks})
        return tasks

    def check(self, updates: Sequence[Update], values: bool = True) -> Family:
        """Refuse updates that answer nothing or are malformed; gives their changes, stacked."""
        for update in updates:
            flight = self.flights.get(update.site)
            if flight is None or flight.task.version != update.version:
                raise NotOutstanding(update.site, f"no task of version {update.version} is outstanding")
            check_structure(update, self.prior)
        changes = Family.stack([update.change for update in updates])
        if values:
            check_values([update.site for update in updates], changes, self._floor)
        return changes

    def propose(self, updates: Sequence[Update]) -> tuple[Family, Family]:
        """The changes that updates propose, whose values have been looked at before, and the factors; both stacked."""
        return self.check(updates, values=False), self.factors_of([update.site for update in updates])

    def asked(self, sites: Sequence[int]) -> Family | None:
        """Stacked factors as they were when sites were asked; None, where no factor has changed while it was away."""
        return Family.stack([self.flights[site].task.factor for site in sites]) if self._sharing else None

    def takes(self, site: int, change: Family, least: float) -> bool:
        """Whether the posterior stays proper with that share of a site's change, and what others know is not buried."""
        if least == 0:
            return True
        with np.errstate(over="ignore", invalid="ignore"):
            if not self._surely_takes(change) and admissible_share(*self._ends_and_floor(change)) < least:
                return False
            return bool(find_unburied_shares(self, [site], Family.stack([change]), least)[0] > 0)

    def _surely_takes(self, change: Family) -> bool:
        """Whether nearly all of a change keeps the posterior proper, by its smallest and its largest numbers.

        Where start and end are both clear of what cannot be told from zero, so is all between them.
        """
        start, end = self.posterior.cone(), (self.posterior.cone_part() * change.cone_part()).cone()
        numbers = zip(start.positive, end.positive, self._floor.positive, strict=True)
        return not end.definite and all(exceeds_rounding((a, b), least) for a, b, least in numbers)

    def take(
        self,
        sites: Sequence[int],
        changes: Family,
        share: float,
        allowed: Callable[[Family], bool] = anywhere,
        rest: Family | None = None,
        sharing: frozenset[int] | None = None,
        leaving: frozenset[int] = frozenset(),
    ) -> float:
        """t_m ← t_m × change_m^ρ and q ← q × their product; these sites' tasks are done.

        ρ is the given share, or less, until what comes out after rounding is proper and allowed. Gives ρ. `rest` is a
        change that the factors of the `sharing` sites, or of all, share alike, which costs no more than that of one, as
        long as these stay the same. It must not touch what has to be positive. Factors of the `leaving` sites go then,
        at once or after later folds, unless these sites are in one of them.
        """
        sharing = frozenset(range(self.sites) if sharing is None else sharing) - self.retired
        if rest is not None and sharing != self._sharing:
            self._hand_out()
            self._sharing = sharing
        if len(set(sites)) < len(sites):
            twice = next(site for i, site in enumerate(sites) if site in sites[:i])
            raise NotOutstanding(twice, "several updates of one site in one fold")
        with np.errstate(over="ignore", invalid="ignore"):
            taken = self._take(sites, changes, share, allowed, rest)
        for site in sites:
            del self.flights[site]
        self.version += len(sites)
        self.leaving -= set(sites) - self.retired
        for site in sorted(self.leaving | leaving):
            self.divide_out(site)
        return taken

    def fold(
        self,
        updates: Sequence[Update],
        temper: Callable[[Family, Family], Family] = unchanged,
        allowed: Callable[[Family], bool] = anywhere,
        least: float = 0.0,
    ) -> np.ndarray:
        """Apply updates together, without rules: for streams and for who has no run, whose folds are in `folding.py`.

        Updates are checked, `temper` damps their changes, and these are cut to what there is room for.

        `temper` is given the changes and those sites' factors. `allowed` says whether the posterior may become what it
        would; if not, less is taken. Gives the share of each site's tempered change that was accepted.
        """
        sites = [update.site for update in updates]
        proposed = self.check(updates)
        with np.errstate(over="ignore", invalid="ignore"):
            fitted = fit_changes(self, sites, temper(proposed, self.factors_of(sites)), least)
        return fitted.shares * self.take(sites, fitted.changes, fitted.share, allowed)

    def join(self) -> None:
        """One more site, whose factor is flat: the posterior stays as it is."""
        factors = self.prior.flat(self.sites + 1)
        factors.put_rows(range(self.sites), self._factors)
        self._factors = factors
        self.sites += 1
        # The new site's cavity is the posterior itself.
        self._weakest = None

    def retire(self, site: int) -> float:
        """Divide a site's factor out; gives the share of it that could go.

        The posterior without it is its cavity, which is proper. Less can go where another site's cavity would not be;
        then the rest goes after later folds.
        """
        self.flights.pop(site, None)
        self.retired.add(site)
        return self.divide_out(site)

    def divide_out(self, site: int) -> float:
        """Make a site's factor flat; gives the share of it that could go, the rest of which goes after later folds."""
        self._hand_out()
        own = self.factors_of([site]).copy()
        change = own**-1.0
        share = self._take([site], change, self.share([site], change, change.product_of_rows()), anywhere)
        if share == 1:
            self._store([site], own.flat())
            self.leaving.discard(site)
        else:
            self.leaving.add(site)
        return float(share)

    def replace_prior(self, prior: Family, allowed: Callable[[Family], bool] = anywhere) -> bool:
        """Put another prior in place, if the posterior and every cavity stay proper; says whether it did.

        `allowed` says whether the posterior may become what it would.
        """
        check_prior(prior)
        posterior = self.posterior * (prior / self.prior)
        start, end = self.posterior.cone(), posterior.cone()
        share = min(admissible_share(start, end, self._floor), self._others_share([], start, end, self.floor_with(end)))
        if share < 1 or not allowed(posterior):
            return False
        self.prior, self.posterior = prior, posterior
        self._weakest = None
        return True

    def share(self, sites: Sequence[int], changes: Family, total: Family) -> float:
        """The largest share of all changes that keeps the posterior and every cavity proper."""
        start, end, floor = self._ends_and_floor(total)
        share = admissible_share(start, end, floor)
        if len(sites) > 1:
            share = min(share, self._own_cavities_share(sites, changes.cone_part(), total.cone_part(), floor))
        if len(sites) < self.sites:
            share = min(share, self._others_share(sites, start, end, floor))
        return share

    def _own_cavities_share(self, sites: Sequence[int], changes: Family, total: Family, floor: Cone) -> float:
        """The same for these sites' cavities: a site's own moves with what all the others change."""
        lost, factors = self._lost_beside(self.posterior), self.factors_of(sites).cone_part()
        share = find_share(self.posterior.cone_part(), lost, factors, changes, total, floor)
        if share is not None:
            return share
        cavities = self.cavities(sites).cone_part()
        return admissible_share(cavities.cone(), (cavities * total.divide_rows(changes)).cone(), floor)

    def own_share(self, site: int, change: Family, cavities: Family) -> float:
        """The largest share of one site's change that keeps the posterior and these cavities of all sites proper."""
        start, end, floor = self._ends_and_floor(change)
        share = admissible_share(start, end, floor)
        if self.sites > 1:
            # A site's own cavity does not move with it.
            others = cavities.take_rows([other for other in range(self.sites) if other != site])
            share = min(share, admissible_share(others.cone(), change.times_rows(others).cone(), floor))
        return share

    def floor_with(self, end: Cone) -> Cone:
        """What cannot be told from zero beside the largest numbers that were added up, these among them."""
        return larger_floor(self._floor, rounding_floor(end))

    def _lost_beside(self, posterior: Family) -> Cone:
        """What cannot be told from zero beside a posterior's numbers, computed once for each posterior."""
        if self._lost[0] is not posterior:
            self._lost = (posterior, rounding_floor(posterior.cone()))
        return self._lost[1]

    def _ends_and_floor(self, change: Family) -> tuple[Cone, Cone, Cone]:
        """Where the posterior is, where a change would lead it, and what cannot be told from zero there."""
        end = (self.posterior.cone_part() * change.cone_part()).cone()
        return self.posterior.cone(), end, self.floor_with(end)

    def bound(self) -> Cone | None:
        """A lower bound of all cavities, if there is one."""
        if self._weakest is None:
            self._weakest = lower_bound(self.cavity(site).cone() for site in range(self.sites))
        return self._weakest

    def _take(
        self,
        sites: Sequence[int],
        changes: Family,
        share: float,
        allowed: Callable[[Family], bool],
        rest: Family | None = None,
    ) -> float:
        """Take this share of all changes, or less if need be; keep the bound of all cavities up to date."""
        start = self.posterior.cone()
        weakest = self.bound() if len(sites) < self.sites else None
        share, self.posterior, cavities = self._verify(sites, changes, share, allowed, rest)
        self._floor = larger_floor(self._floor, self._lost_beside(self.posterior))
        if weakest is not None:
            weakest = shift_cone(weakest, start, self.posterior.cone())
            own = (cavity.cone() for group in cavities for cavity in group.rows())
            weakest = lower_bound((weakest, *own)) if is_surely_inside(weakest) else None
        self._weakest = weakest
        return share

    def _verify(
        self,
        sites: Sequence[int],
        changes: Family,
        share: float,
        allowed: Callable[[Family], bool],
        rest: Family | None = None,
    ) -> tuple[float, Family, list[Family]]:
        """Write the factors as they come out after rounding; less is taken until what changed is proper and allowed.

        Gives the share, the posterior, and these sites' cavities in groups, as far as they have to be positive.
        """
        old, own, total = self.factors_of(sites), changes, changes.product_of_rows()
        if rest is not None:
            own, total = changes * self._parts_of(rest, sites), total * rest
        while share > np.finfo(float).eps:
            posterior = self.posterior * raise_to(total, share)
            cavities = self._find_proper(sites, posterior, old, own, share)
            if cavities is not None and allowed(posterior):
                self._share_out(rest, share)
                for rows, some in slice_groups(own):
                    self._store(sites[rows], old.slice_rows(rows) * raise_to(some, share))
                return share, posterior, cavities
            share /= 2
        return 0.0, self.posterior, [self._cavities(sites, self.posterior, old)]

    def _find_proper(
        self, sites: Sequence[int], posterior: Family, old: Family, changes: Family, share: float
    ) -> list[Family] | None:
        """Cavities with a share of changes, what has to be positive of them; None, unless all is proper."""
        if not (posterior.is_finite() and is_surely_inside(posterior.cone())):
            return None
        lost = self._lost_beside(posterior)
        quotients = find_quotients(posterior, lost, old, changes, share) if self.divides else None
        if quotients is not None:
            return quotients
        cavities = self._cavities(sites, posterior, old * raise_to(changes, share))
        return [cavities] if cavities.is_finite() and is_surely_inside(cavities.cone()) else None

    def _share_out(self, rest: Family | None, share: float) -> None:
        if rest is not None:
            self._shared = rest**share if self._shared is None else self._shared * rest**share

    def _store(self, sites: Sequence[int], factors: Family) -> None:
        if self._shared is not None:
            factors = factors / self._parts_of(self._shared, sites)
        self._factors.put_rows(sites, factors)

    def _cavities(self, sites: Sequence[int], posterior: Family, own: Family) -> Family:
        """Stacked cavities of sites with these factors: by division, or where that cancels all digits, as products."""
        divided = posterior.divide_rows(own)
        if is_clear_of(divided.cone(), self._lost_beside(posterior)):
            return divided
        factors = self.factors_of(range(self.sites)).copy()
        factors.put_rows(sites, own)
        return self.prior.times_rows(factors.products_of_others().take_rows(sites))

    def _others_share(self, sites: Sequence[int], start: Cone, end: Cone, floor: Cone) -> float:
        """What the cavities of all other sites allow: by the bound, and exactly only where the bound does not do."""
        bound = self.bound()
        share = 0.0 if bound is None else admissible_share(bound, shift_cone(bound, start, end), floor)
        if share < 1:
            mine = set(sites)
            cones = [self.cavity(site).cone() for site in range(self.sites) if site not in mine]
            share = min(admissible_share(cone, shift_cone(cone, start, end), floor) for cone in cones)
            self._weakest = lower_bound(cones)
        return share


def check_prior(prior: Family) -> None:
    if not is_surely_inside(prior.cone()):
        raise ImproperDensity("prior: must be proper")
