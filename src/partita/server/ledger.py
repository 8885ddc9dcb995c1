"""The server's state: the prior and one factor per site. The posterior is derived from them.

    posterior = prior × ∏ factors

An update replaces a site's factor. `fold` takes the changes of one or several sites at once and accepts the
largest share of them that keeps the posterior, and every site's cavity, proper. Where next to nothing could be taken of
all together, each site has its own share, so that one cannot hold back the others. Nothing changes when it refuses.

`SharedLedger` keeps one factor for all sites instead, so that its size does not depend on how many there are.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from partita.errors import ImproperDensity, InputError, MalformedUpdate, NotOutstanding
from partita.families import Cone, Family
from partita.families.cone import (
    ROUNDING,
    admissible_share,
    is_surely_inside,
    larger,
    lower_bound,
    lowered,
    rounding_floor,
    shifted,
)
from partita.families.stacks import product, repeat, rows_of, scaled, stacked, sums_of_others
from partita.foundation.runtime import same_structure
from partita.models import Hyper
from partita.wire.tasks import Task, Update

# Where a smaller share of all changes would be left than this, each site has a share of its own.
TOGETHER = 0.05
# Where all but a few of a fold's sites could take so many times what they propose, only those few are asked for less;
# and how closely it is found out, for how much less.
RELIEF, FEW, HALVINGS = 2.0, 1 / 3, 10
# How many these may be: so many are tried, the fewest first, so that a fold of many sites takes few looks at all.
ONE_BY_ONE = 4
NUMBERS = (*range(1, ONE_BY_ONE), *(ONE_BY_ONE * 2**power for power in range(40)))
# A site may say so many times as much of a coordinate as any other does, before it matters what that buries; and of
# what is known no more than this may be lost in rounding.
PROPORTION, LOST = 1e6, 1e-3
# Nats: a location that is further away is known to less than a thousandth of its deviation, by rounding alone.
FARTHEST = 0.5 * (LOST / float(np.finfo(np.float64).eps)) ** 2


def unchanged(changes: Family, factors: Family) -> Family:
    return changes


def anywhere(posterior: Family) -> bool:
    return True


class Ledger:
    """prior × ∏ factors, with who is working on what. Factors are kept stacked, one row per site."""

    def __init__(self, prior: Family, sites: int):
        if sites < 1:
            raise InputError("shards: expected at least one site")
        _check_prior(prior)
        self.prior = prior
        self.posterior = prior
        self.sites = sites
        self.version = 0
        self.outstanding: dict[int, int] = {}
        # Whose factors are to be divided out, and of whom some is left.
        self.retired: set[int] = set()
        self.leaving: set[int] = set()
        self._factors = self._nothing(prior)
        # A lower bound of all cavities, or None where it has to be computed afresh.
        self._weakest: Cone | None = prior.cone()
        # What cannot be told from zero, beside the largest numbers that were ever added up here.
        self._floor = rounding_floor(prior.cone())

    def _nothing(self, prior: Family) -> Family:
        """Factors of sites that have said nothing."""
        return jax.tree.map(lambda a: np.zeros((self.sites, *np.shape(a)), a.dtype), prior)

    def adopt(self, factors: Sequence[Family]) -> None:
        """Begin with these factors, rather than with flat ones."""
        if len(factors) != self.sites:
            raise InputError(f"factors: expected {self.sites}, one per site, got {len(factors)}")
        self._store(list(range(self.sites)), stacked(factors))
        self.posterior = self.recomputed_posterior()
        self._weakest = None
        cavities = self._cavities(range(self.sites), self.posterior, self._own(range(self.sites)))
        if not (is_surely_inside(self.posterior.cone()) and is_surely_inside(cavities.cone())):
            raise ImproperDensity("factors: with them, the posterior or a cavity is not proper")
        self._floor = larger(self._floor, rounding_floor(self.posterior.cone()))

    def factor(self, site: int) -> Family:
        """t_m."""
        return jax.tree.map(lambda a: a[0].copy(), self._own([site]))

    def factors(self) -> tuple[Family, ...]:
        """All t_m."""
        return tuple(self.factor(site) for site in range(self.sites))

    def cavity(self, site: int) -> Family:
        """q / t_m: what all the others believe."""
        return jax.tree.map(lambda a: a[0], self._cavities([site], self.posterior, self._own([site])))

    def recomputed_posterior(self) -> Family:
        """prior × ∏ factors from scratch."""
        return self.prior * product(self._factors)

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
        if message_only:
            flat = jax.tree.map(np.zeros_like, self.prior)
            cavities = [flat] * len(sites)
        else:
            cavities = rows_of(self._cavities(sites, self.posterior, self._own(sites)))
        # Views: a site's factor stays as it is while its task is outstanding.
        factors = rows_of(self._own(sites))
        self.outstanding.update(dict.fromkeys(sites, self.version))
        rows = zip(sites, cavities, factors, strict=True)
        return [
            Task(site, self.version, cavity, factor, hyper, start, anchor, message_only)
            for site, cavity, factor in rows
        ]

    def fold(
        self,
        updates: Sequence[Update],
        temper: Callable[[Family, Family], Family] = unchanged,
        checked: bool = False,
        allowed: Callable[[Family], bool] = anywhere,
        least: float = 0.0,
    ) -> np.ndarray:
        """Apply updates together, after a damping policy has tempered their changes, given those sites' factors.

        With `checked`, their values have been looked at before. `allowed` says whether the posterior may become what
        it would; if not, less is taken. Of a change of which less than `least` can be taken, nothing is.

        Returns the share of each site's tempered change that was accepted.
        """
        sites = [update.site for update in updates]
        if len(set(sites)) < len(sites):
            twice = next(site for i, site in enumerate(sites) if site in sites[:i])
            raise NotOutstanding(twice, "several updates of one site in one fold")
        proposed = self.check(updates, values=not checked)
        with np.errstate(over="ignore", invalid="ignore"):
            shares = self._apply(sites, temper(proposed, self._own(sites)), allowed, least)
        for site in sites:
            del self.outstanding[site]
        self.version += len(updates)
        for site in sorted(self.leaving):
            self.retire(site)
        return shares

    def check(self, updates: Sequence[Update], values: bool = True) -> Family:
        """Refuse updates that answer nothing or are malformed; their changes, stacked."""
        for update in updates:
            self._check(update)
        proposed = stacked([update.change for update in updates])
        if values:
            self._check_values([update.site for update in updates], proposed)
        return proposed

    def takes(self, site: int, change: Family, least: float) -> bool:
        """Whether the posterior stays proper with that share of a site's change, and what others know is not buried."""
        if least == 0:
            return True
        with np.errstate(over="ignore", invalid="ignore"):
            start, end = self.posterior.cone(), (self.posterior * change).cone()
            if admissible_share(start, end, self._floor_with(end)) < least:
                return False
            return bool(self._unburied_shares([site], stacked([change]), least)[0] > 0)

    def release(self, site: int) -> None:
        """Nothing is expected of a site any more; what it had been asked for comes to nothing."""
        self.outstanding.pop(site, None)

    def retire(self, site: int) -> float:
        """Divide a site's factor out; the share of it that could go.

        The posterior without it is its cavity, which is proper. Less can go where another site's cavity would not be;
        then the rest goes after later folds.
        """
        self.release(site)
        self.retired.add(site)
        own = jax.tree.map(np.copy, self._own([site]))
        (share,) = self._apply([site], own**-1.0)
        if share == 1:
            self._store([site], jax.tree.map(np.zeros_like, own))
            self.leaving.discard(site)
        else:
            self.leaving.add(site)
        return float(share)

    def replace_prior(self, prior: Family, allowed: Callable[[Family], bool] = anywhere) -> bool:
        """Put another prior in place, if the posterior and every cavity stay proper; says whether it did.

        `allowed` says whether the posterior may become what it would.
        """
        _check_prior(prior)
        posterior = self.posterior * (prior / self.prior)
        start, end = self.posterior.cone(), posterior.cone()
        share = min(admissible_share(start, end, self._floor), self._others_share([], start, end))
        if share < 1 or not allowed(posterior):
            return False
        self.prior, self.posterior = prior, posterior
        self._weakest = None
        return True

    def _check(self, update: Update) -> None:
        if update.site not in self.outstanding or self.outstanding[update.site] != update.version:
            raise NotOutstanding(update.site, f"no task of version {update.version} is outstanding")
        expected, got = self.prior, update.change
        if type(got) is not type(expected) or not same_structure(got, expected):
            raise MalformedUpdate(update.site, f"expected a change of family {type(expected).__name__}")
        for i, (a, b) in enumerate(zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True)):
            kind = getattr(b, "dtype", type(b).__name__)
            if np.shape(a) != np.shape(b) or a.dtype != kind:
                problem = f"expected {a.dtype} of shape {np.shape(a)}, got {kind} of shape {np.shape(b)}"
                raise MalformedUpdate(update.site, f"change{self._name(i)}: {problem}")

    def _check_values(self, sites: list[int], changes: Family) -> None:
        for i, leaf in enumerate(jax.tree.leaves(changes)):
            if _is_finite(leaf):
                continue
            good = np.isfinite(leaf).reshape(len(sites), -1).all(axis=1)
            if not good.all():
                raise MalformedUpdate(sites[int(np.argmin(good))], f"change{self._name(i)}: is not finite")
        for matrices, rounding in zip(changes.cone().definite, self._floor.definite, strict=True):
            size = np.abs(matrices).max(axis=(1, 2))
            gap = np.abs(matrices - np.swapaxes(matrices, 1, 2)).max(axis=(1, 2))
            good = gap <= 1e-6 * size + rounding
            if not good.all():
                raise MalformedUpdate(sites[int(np.argmin(good))], "change: a matrix is not symmetric")

    def _name(self, leaf: int) -> str:
        return jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(self.prior)[leaf][0])

    def _apply(
        self,
        sites: list[int],
        changes: Family,
        allowed: Callable[[Family], bool] = anywhere,
        least: float = 0.0,
    ) -> np.ndarray:
        """t_m ← t_m × change_m^ρ_m and q ← q × their product, with shares that keep everything proper."""
        heard = self._unburied_shares(sites, changes, least)
        changes = scaled(changes, heard)
        shares, total = np.ones(len(sites)), product(changes)
        share = self._share(sites, changes, total)
        # The same share of all changes goes uphill; shares of their own need not, but nobody is held back for another.
        if share < 1 and len(sites) > 1:
            shares = (
                self._own_shares(sites, changes, least) if share < TOGETHER else self._relieved(sites, changes, least)
            )
            if np.any(shares < 1):
                changes = scaled(changes, shares)
                total = product(changes)
                share = self._share(sites, changes, total)
        return heard * shares * self._take(sites, changes, total, 0.0 if share < least else share, allowed)

    def _unburied_shares(self, sites: list[int], changes: Family, least: float) -> np.ndarray:
        """The largest of 1, ½, ¼, … of each change beside which what all others know is still to be seen.

        Numbers are added up: beside a very large one, smaller ones are lost. Who alone says so much more than others is
        held back for it, as long as others are there. A fold in which nobody does costs no more than a look at it.
        """
        shares = np.ones(len(sites))
        if least == 0 or self.sites == 1:
            return shares
        ends = _sizes_of_rows(_times_rows(self.posterior, changes))
        if not np.any(_exceeding(ends, _sizes_of_rows(stacked([self.prior])))):
            return shares
        others = [_largest_of_others(rows) for rows in _sizes_of_rows(changes)]
        cavities = _times_rows(self.posterior, self._own(sites) ** -1.0)
        usual = [np.maximum(*pair) for pair in zip(_sizes_of_rows(cavities), others, strict=True)]
        for i in np.flatnonzero(_exceeding(ends, usual)).tolist():
            change, beside = jax.tree.map(lambda leaf, i=i: leaf[i], changes), [one[i : i + 1] for one in usual]
            shares[i] = self._unburied_share(change, self.cavity(sites[i]), beside, len(sites) == 1, least)
        return shares

    def _unburied_share(
        self, change: Family, cavity: Family, usual: Sequence[np.ndarray], single: bool, least: float
    ) -> float:
        """The same for one site, beside what is usual of the others; of a `single` one, nobody else is in the fold."""
        # Of the first who says anything, nobody knows what is out of proportion: only what is lost of its own.
        alone = single and all(map(np.array_equal, jax.tree.leaves(cavity), jax.tree.leaves(self.prior)))
        times, share = 1 / ROUNDING if alone else 1 / LOST, 1.0
        while share >= least:
            end = self.posterior * change**share
            lost = jax.tree.map(lambda floor: times * floor, rounding_floor(end.cone()))
            if not np.any(_exceeding(_sizes_of_rows(stacked([end])), usual)):
                return share
            seen = is_surely_inside(lowered(end.cone() if alone else cavity.cone(), lost))
            if seen and is_surely_inside(end.cone()) and end.kl(self.posterior) <= FARTHEST:
                return share
            share /= 2
        return 0.0

    def _share(self, sites: list[int], changes: Family, total: Family) -> float:
        """The largest share of all changes that keeps the posterior and every cavity proper."""
        start, end = self.posterior.cone(), (self.posterior * total).cone()
        floor = self._floor_with(end)
        share = admissible_share(start, end, floor)
        if len(sites) > 1:
            cavities = self._cavities(sites, self.posterior, self._own(sites))
            moved = jax.tree.map(lambda c, everyone, own: c + (everyone - own), cavities, total, changes)
            share = min(share, admissible_share(cavities.cone(), moved.cone(), floor))
        if len(sites) < self.sites:
            share = min(share, self._others_share(sites, start, end))
        return share

    def _floor_with(self, end: Cone) -> Cone:
        return larger(self._floor, rounding_floor(end))

    def _relieved(self, sites: list[int], changes: Family, least: float) -> np.ndarray:
        """Ones; or less for a few sites, if without them the others could take even more than all of their changes.

        Where nobody alone is in the way, all are to blame, and all are asked for less.
        """
        order = self._most_in_the_way(changes)
        for number in (n for n in NUMBERS if n <= FEW * len(sites)):
            rest = sorted(order[number:])
            more = jax.tree.map(lambda leaf, rest=rest: RELIEF * leaf[rest], changes)
            if self._share([sites[i] for i in rest], more, product(more)) == 1:
                return self._without_few(sites, changes, order[:number], least)
        return np.ones(len(sites))

    def _most_in_the_way(self, changes: Family) -> list[int]:
        """Rows of changes, first those of which the least could be taken as often as there are changes."""
        start = self.posterior.cone()
        bound = self._bound() or start
        ends = [(self.posterior * row ** float(len(rows))).cone() for rows in (rows_of(changes),) for row in rows]
        found = [admissible_share(bound, shifted(bound, start, end), self._floor_with(end)) for end in ends]
        return sorted(range(len(found)), key=found.__getitem__)

    def _without_few(self, sites: list[int], changes: Family, few: Sequence[int], least: float) -> np.ndarray:
        """All for everybody but a few; for these as much as there is room for beside the others.

        One after the other, the worst first, or where there are more of them, the same for all.
        """
        shares = np.ones(len(sites))
        shares[list(few)] = 0.0
        for group in [[i] for i in few] if len(few) <= ONE_BY_ONE else [list(few)]:
            low, high = 0.0, 1.0
            for _ in range(HALVINGS):
                middle = 0.5 * (low + high)
                shares[group] = middle
                taken = scaled(changes, shares)
                fits = self._share(sites, taken, product(taken)) == 1
                low, high = (middle, high) if fits else (low, middle)
            shares[group] = 0.0 if low < least else low
        return shares

    def _own_shares(self, sites: list[int], changes: Family, least: float) -> np.ndarray:
        """For each site the share of its own change that could be taken as often as there are changes.

        Their average is then proper, because where densities are proper is convex; so is what all of them make
        together, and nobody is held back for what another proposes.
        """
        everybody = list(range(self.sites))
        cavities = self._cavities(everybody, self.posterior, self._own(everybody))
        shares = [
            self._own_share(site, change ** len(sites), cavities)
            for site, change in zip(sites, rows_of(changes), strict=True)
        ]
        return np.array([0.0 if share < least else share for share in shares])

    def _own_share(self, site: int, change: Family, cavities: Family) -> float:
        start, end = self.posterior.cone(), (self.posterior * change).cone()
        floor = self._floor_with(end)
        share = admissible_share(start, end, floor)
        if self.sites > 1:
            # A site's own cavity does not move with it.
            others = jax.tree.map(lambda a: np.delete(a, site, axis=0), cavities)
            moved = jax.tree.map(lambda a, b: a + b, others, change)
            share = min(share, admissible_share(others.cone(), moved.cone(), floor))
        return share

    def _take(
        self, sites: list[int], changes: Family, total: Family, share: float, allowed: Callable[[Family], bool]
    ) -> float:
        """Take this share of all changes, or less if need be; keep the bound of all cavities up to date."""
        start = self.posterior.cone()
        weakest = self._bound() if len(sites) < self.sites else None
        share, self.posterior, cavities = self._verified(sites, changes, total, share, allowed)
        self._floor = self._floor_with(self.posterior.cone())
        if weakest is not None:
            weakest = shifted(weakest, start, self.posterior.cone())
            own = (cavity.cone() for cavity in rows_of(cavities))
            weakest = lower_bound((weakest, *own)) if is_surely_inside(weakest) else None
        self._weakest = weakest
        return share

    def _verified(
        self, sites: list[int], changes: Family, total: Family, share: float, allowed: Callable[[Family], bool]
    ) -> tuple[float, Family, Family]:
        """Write the factors as they come out after rounding; less is taken until what changed is proper and allowed.

        Gives the share, the posterior, and these sites' cavities.
        """
        old = self._own(sites)
        while share > np.finfo(float).eps:
            posterior = self.posterior * (total if share == 1 else total**share)
            new = old * (changes if share == 1 else changes**share)
            cavities = self._cavities(sites, posterior, new)
            finite = all(map(_is_finite, jax.tree.leaves((posterior, cavities))))
            proper = finite and is_surely_inside(posterior.cone()) and is_surely_inside(cavities.cone())
            if proper and allowed(posterior):
                self._store(sites, new)
                return share, posterior, cavities
            share /= 2
        return 0.0, self.posterior, self._cavities(sites, self.posterior, old)

    def _own(self, sites: Sequence[int]) -> Family:
        """Stacked factors, which may be views of what is kept."""
        first, number = sites[0], len(sites)
        if list(sites) == list(range(first, first + number)):
            return jax.tree.map(lambda a: a[first : first + number], self._factors)
        return jax.tree.map(lambda a: a[list(sites)], self._factors)

    def _store(self, sites: list[int], factors: Family) -> None:
        for kept, new in zip(jax.tree.leaves(self._factors), jax.tree.leaves(factors), strict=True):
            kept[sites] = new

    def _cavities(self, sites: Sequence[int], posterior: Family, own: Family) -> Family:
        """Stacked cavities of sites with these factors: by division, or where that cancels all digits, as products."""
        divided = jax.tree.map(lambda q, t: q - t, posterior, own)
        if is_surely_inside(lowered(divided.cone(), rounding_floor(posterior.cone()))):
            return divided

        def others(prior: np.ndarray, kept: np.ndarray, mine: np.ndarray) -> np.ndarray:
            factors = kept.copy()
            factors[list(sites)] = mine
            return prior + sums_of_others(factors)[list(sites)]

        return jax.tree.map(others, self.prior, self._factors, own)

    def _others_share(self, sites: list[int], start: Cone, end: Cone) -> float:
        """For the cavities of all other sites: by the bound, and exactly only where the bound does not do."""
        bound = self._bound()
        floor = self._floor_with(end)
        share = 0.0 if bound is None else admissible_share(bound, shifted(bound, start, end), floor)
        if share < 1:
            mine = set(sites)
            cones = [self.cavity(site).cone() for site in range(self.sites) if site not in mine]
            share = min(admissible_share(cone, shifted(cone, start, end), floor) for cone in cones)
            self._weakest = lower_bound(cones)
        return share

    def _bound(self) -> Cone | None:
        if self._weakest is None:
            self._weakest = lower_bound(self.cavity(site).cone() for site in range(self.sites))
        return self._weakest


class SharedLedger(Ledger):
    """prior × factor^M: all M sites share one factor, the geometric mean of what they say (Li et al., 2015).

    A site refines its share of the whole as if that were its own. Cavities lie between prior and posterior, so they are
    proper wherever those are.
    """

    def recomputed_posterior(self) -> Family:
        """The posterior itself: nothing else is kept."""
        return self.posterior

    def replace_prior(self, prior: Family, allowed: Callable[[Family], bool] = anywhere) -> bool:
        """Put another prior in place, if the posterior stays proper; says whether it did."""
        _check_prior(prior)
        posterior = self.posterior * (prior / self.prior)
        if not (is_surely_inside(posterior.cone()) and allowed(posterior)):
            return False
        self.prior, self.posterior = prior, posterior
        return True

    def _nothing(self, prior: Family) -> Family:
        return jax.tree.map(lambda a: np.zeros((0, *np.shape(a)), a.dtype), prior)

    def factors(self) -> tuple[Family, ...]:
        """The same one for every site."""
        return (self.factor(0),) * self.sites

    def _own(self, sites: Sequence[int]) -> Family:
        return repeat((self.posterior / self.prior) ** (1 / self.sites), len(sites))

    def _cavities(self, sites: Sequence[int], posterior: Family, own: Family) -> Family:
        share = 1 / self.sites
        return repeat(self.prior**share * posterior ** (1 - share), len(sites))

    def _share(self, sites: list[int], changes: Family, total: Family) -> float:
        end = (self.posterior * total).cone()
        return admissible_share(self.posterior.cone(), end, self._floor_with(end))

    def _own_share(self, site: int, change: Family, cavities: Family) -> float:
        return self._share([site], change, change)

    def _take(
        self, sites: list[int], changes: Family, total: Family, share: float, allowed: Callable[[Family], bool]
    ) -> float:
        share, self.posterior, _ = self._verified(sites, changes, total, share, allowed)
        self._floor = self._floor_with(self.posterior.cone())
        return share

    def _store(self, sites: list[int], factors: Family) -> None:
        """Nothing: the posterior says it all."""


def _times_rows(density: Family, stack: Family) -> Family:
    """A stack: a density times each row of another."""
    return jax.tree.map(lambda a, rows: a + rows, density, stack)


def _sizes_of_rows(stack: Family) -> list[np.ndarray]:
    """How large each row of a stack is: what has to be positive number by number, all else by its largest one."""
    cone, leaves = stack.cone(), jax.tree.leaves(stack)
    matrices = [np.max(np.abs(matrix), axis=(-2, -1)) for matrix in cone.definite]
    others = [np.max(np.abs(leaf).reshape(len(leaf), -1), axis=1, initial=0.0) for leaf in leaves]
    return [*map(np.abs, cone.positive), *matrices, *others]


def _exceeding(sizes: Sequence[np.ndarray], usual: Sequence[np.ndarray]) -> np.ndarray:
    """Of which rows anything is out of all proportion to what is usual."""
    pairs = zip(sizes, usual, strict=True)
    found = [(size > PROPORTION * known).reshape(len(size), -1).any(axis=1) for size, known in pairs]
    return np.any(found, axis=0)


def _largest_of_others(rows: np.ndarray) -> np.ndarray:
    """For every row, elementwise the largest of all others; nothing, where there are none."""
    if len(rows) == 1:
        return np.zeros_like(rows)
    second, first = np.partition(rows, -2, axis=0)[-2:]
    return np.where(rows == first, second, first)


def _check_prior(prior: Family) -> None:
    if not is_surely_inside(prior.cone()):
        raise ImproperDensity("prior: must be proper")


def _is_finite(array: np.ndarray) -> bool:
    """A sum is quicker than a look at every number, and finite only if they all are."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.sum(array)) or np.all(np.isfinite(array)))
