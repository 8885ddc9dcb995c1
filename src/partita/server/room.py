"""Which share of each site's change a ledger has room for, so that one site cannot hold back or bury the others.

The same share of all changes goes uphill, so that is what is taken; unless a few sites are in the way of all others,
who are then cut alone, or next to nothing could be taken of all together, and then each site has a share of its own.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax
import numpy as np

from partita.families import Cone, Family
from partita.families.cone import (
    ROUNDING,
    admissible_share,
    is_surely_inside,
    rounding_floor,
    shift_cone,
    subtract_floor,
)
from partita.server.groups import slice_groups

# Where a smaller share of all changes would be left than this, each site has a share of its own.
TOGETHER = 0.05
# Where all but a few of a fold's sites could take `RELIEF` times what they propose, only those few are asked for less.
# How much less is found by so many halvings.
RELIEF, FEW, HALVINGS = 2.0, 1 / 3, 10
# How many these few may be. The fewest are tried first, and only some numbers, so that a fold of many sites is quick.
ONE_BY_ONE = 4
NUMBERS = (*range(1, ONE_BY_ONE), *(ONE_BY_ONE * 2**power for power in range(40)))
# A site may say so many times as much of a coordinate as any other does, before it matters what that buries; and no
# more than `LOST` of what is known may be lost in rounding.
PROPORTION, LOST = 1e6, 1e-3
# Nats: a location that is further away is known to less than a thousandth of its deviation, by rounding alone.
FARTHEST = 0.5 * (LOST / float(np.finfo(np.float64).eps)) ** 2


class HasRoom(Protocol):
    """What has to be known of a ledger."""

    prior: Family
    posterior: Family
    sites: int

    def share(self, sites: Sequence[int], changes: Family, total: Family) -> float:
        """The largest share of all changes that keeps the posterior and every cavity proper."""
        ...

    def own_share(self, site: int, change: Family, cavities: Family) -> float:
        """The same for one site's change, given all cavities."""
        ...

    def factors_of(self, sites: Sequence[int]) -> Family:
        """Stacked factors."""
        ...

    def cavity(self, site: int) -> Family: ...

    def cavities(self, sites: Sequence[int]) -> Family: ...

    def floor_with(self, end: Cone) -> Cone:
        """What cannot be told from zero beside the largest numbers that were added up, these among them."""
        ...

    def bound(self) -> Cone | None:
        """A lower bound of all cavities, if there is one."""
        ...

    usual: "Usual"


class Usual:
    """What is usual of sites' cavities, by a few numbers of each, kept as long as the posterior is the same.

    Every fold asks twice: whether what a site proposes can be followed, and how much there is room for.
    """

    def __init__(self) -> None:
        self._posterior: Family | None = None
        self._known: dict[int, np.ndarray] = {}

    def of(self, ledger: HasRoom, sites: Sequence[int]) -> np.ndarray:
        """A row for each site: the smallest of what has to be positive number by number, the largest of all else."""
        if self._posterior is not ledger.posterior:
            self._posterior, self._known = ledger.posterior, {}
        new = [site for site in sites if site not in self._known]
        for rows, factors in slice_groups(ledger.factors_of(new)) if new else ():
            positive, others = _split_leaves(ledger.posterior.divide_rows(factors))
            least = [np.maximum(_as_rows(array).min(axis=1, initial=np.inf), 0) for array in positive]
            found = np.array([*least, *map(_largest_of_rows, others)], np.float64)
            self._known.update(zip(new[rows], found.T, strict=True))
        return np.array([self._known[site] for site in sites])


class Fitted(NamedTuple):
    """Changes of which a ledger has room for `share`, all alike; `shares` is what was left of each before that."""

    changes: Family
    shares: np.ndarray
    share: float


def fit_changes(ledger: HasRoom, sites: Sequence[int], changes: Family, least: float) -> Fitted:
    """Cut changes to what there is room for. Of a change of which less than `least` is left, nothing is."""
    heard = find_unburied_shares(ledger, sites, changes, least)
    changes = changes.scale_rows(heard)
    shares, total = np.ones(len(sites)), changes.product_of_rows()
    share = ledger.share(sites, changes, total)
    # The same share of all changes goes uphill; shares of their own need not, but nobody is held back for another.
    if share < 1 and len(sites) > 1:
        shares = (
            _own_shares(ledger, sites, changes, least) if share < TOGETHER else _relieve(ledger, sites, changes, least)
        )
        if np.any(shares < 1):
            changes = changes.scale_rows(shares)
            total = changes.product_of_rows()
            share = ledger.share(sites, changes, total)
    return Fitted(changes, heard * shares, 0.0 if share < least else share)


def find_unburied_shares(ledger: HasRoom, sites: Sequence[int], changes: Family, least: float) -> np.ndarray:
    """The largest of 1, ½, ¼, … of each change beside which what all others know is still to be seen.

    Numbers are added up: beside a very large one, smaller ones are lost. A site that alone says so much more than
    others is held back for it, as long as others are there. A fold without such a site costs no more than one look.
    """
    shares = np.ones(len(sites))
    if least == 0 or ledger.sites == 1 or _is_in_proportion(ledger, sites, changes):
        return shares
    ends = _sizes_of_rows(ledger.posterior.times_rows(changes))
    if not np.any(_exceeding(ends, _sizes_of_rows(Family.stack([ledger.prior])))):
        return shares
    others = [_largest_of_others(rows) for rows in _sizes_of_rows(changes)]
    cavities = ledger.posterior.times_rows(ledger.factors_of(sites) ** -1.0)
    usual = [np.maximum(*pair) for pair in zip(_sizes_of_rows(cavities), others, strict=True)]
    for i in np.flatnonzero(_exceeding(ends, usual)).tolist():
        beside = [one[i : i + 1] for one in usual]
        shares[i] = _unburied_share(ledger, changes.row(i), sites[i], beside, len(sites) == 1, least)
    return shares


def _is_in_proportion(ledger: HasRoom, sites: Sequence[int], changes: Family) -> bool:
    """Whether no end is out of proportion to a site's own cavity, by a few numbers of each: then none is buried."""
    usual = PROPORTION * ledger.usual.of(ledger, sites)
    for rows, some in slice_groups(changes):
        positive, others = _split_leaves(ledger.posterior.times_rows(some))
        ends = np.array([_largest_of_rows(array) for array in (*positive, *others)]).T
        if not np.all(ends <= usual[rows]):
            return False
    return True


def _split_leaves(stack: Family) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What of a stack has to be positive number by number; and its matrices, and all of its arrays but for those."""
    cone = stack.cone()
    known = {id(array) for array in cone.positive}
    return list(cone.positive), [*cone.definite, *(leaf for leaf in jax.tree.leaves(stack) if id(leaf) not in known)]


def _as_rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)


def _largest_of_rows(array: np.ndarray) -> np.ndarray:
    """The size of the largest number of each row, without an array of sizes."""
    rows = _as_rows(array)
    largest: np.ndarray = np.maximum(rows.max(axis=1, initial=0.0), -rows.min(axis=1, initial=0.0))
    return largest


def _unburied_share(
    ledger: HasRoom, change: Family, site: int, usual: Sequence[np.ndarray], single: bool, least: float
) -> float:
    """The same for one site, beside what is usual among the others; a `single` site has the fold for itself."""
    cavity = ledger.cavity(site)
    # Nobody knows what is out of proportion for the first site that says anything: only what is lost of its own counts.
    alone = single and all(map(np.array_equal, jax.tree.leaves(cavity), jax.tree.leaves(ledger.prior)))
    times, share = 1 / ROUNDING if alone else 1 / LOST, 1.0
    while share >= least:
        end = ledger.posterior * change**share
        lost = jax.tree.map(lambda floor: times * floor, rounding_floor(end.cone()))
        if not np.any(_exceeding(_sizes_of_rows(Family.stack([end])), usual)):
            return share
        seen = is_surely_inside(subtract_floor(end.cone() if alone else cavity.cone(), lost))
        if seen and is_surely_inside(end.cone()) and end.kl(ledger.posterior) <= FARTHEST:
            return share
        share /= 2
    return 0.0


def _relieve(ledger: HasRoom, sites: Sequence[int], changes: Family, least: float) -> np.ndarray:
    """Ones; or less for a few sites, if without them the others could take even more than all of their changes.

    Where nobody alone is in the way, all are to blame, and all are asked for less.
    """
    order = _most_in_the_way(ledger, changes)
    for number in (n for n in NUMBERS if n <= FEW * len(sites)):
        rest = sorted(order[number:])
        more = changes.take_rows(rest) ** RELIEF
        if ledger.share([sites[i] for i in rest], more, more.product_of_rows()) == 1:
            return _cut_few(ledger, sites, changes, order[:number], least)
    return np.ones(len(sites))


def _most_in_the_way(ledger: HasRoom, changes: Family) -> list[int]:
    """Rows of changes, first those of which the least could be taken as often as there are changes."""
    start = ledger.posterior.cone()
    bound = ledger.bound() or start
    rows = changes.rows()
    ends = [(ledger.posterior * row ** float(len(rows))).cone() for row in rows]
    found = [admissible_share(bound, shift_cone(bound, start, end), ledger.floor_with(end)) for end in ends]
    return sorted(range(len(found)), key=found.__getitem__)


def _cut_few(ledger: HasRoom, sites: Sequence[int], changes: Family, few: Sequence[int], least: float) -> np.ndarray:
    """All for everybody but a few; for these as much as there is room for beside the others.

    They are cut one after the other, the worst first, or where there are more of them, all alike.
    """
    shares = np.ones(len(sites))
    shares[list(few)] = 0.0
    for group in [[i] for i in few] if len(few) <= ONE_BY_ONE else [list(few)]:
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            shares[group] = middle
            taken = changes.scale_rows(shares)
            fits = ledger.share(sites, taken, taken.product_of_rows()) == 1
            low, high = (middle, high) if fits else (low, middle)
        shares[group] = 0.0 if low < least else low
    return shares


def _own_shares(ledger: HasRoom, sites: Sequence[int], changes: Family, least: float) -> np.ndarray:
    """For each site the share of its own change that could be taken as often as there are changes.

    Their average is then proper, because where densities are proper is convex; so is what all of them make together,
    and nobody is held back for what another proposes.
    """
    cavities = ledger.cavities(range(ledger.sites))
    shares = [
        ledger.own_share(site, change ** len(sites), cavities)
        for site, change in zip(sites, changes.rows(), strict=True)
    ]
    return np.array([0.0 if share < least else share for share in shares])


def _sizes_of_rows(stack: Family) -> list[np.ndarray]:
    """How large each row of a stack is: what has to be positive number by number, all else by its largest one."""
    cone, leaves = stack.cone(), jax.tree.leaves(stack)
    matrices = [np.max(np.abs(matrix), axis=(-2, -1)) for matrix in cone.definite]
    others = [np.max(np.abs(leaf).reshape(len(leaf), -1), axis=1, initial=0.0) for leaf in leaves]
    return [*map(np.abs, cone.positive), *matrices, *others]


def _exceeding(sizes: Sequence[np.ndarray], usual: Sequence[np.ndarray]) -> np.ndarray:
    """Which rows have anything that is out of all proportion to what is usual."""
    pairs = zip(sizes, usual, strict=True)
    found = [(size > PROPORTION * known).reshape(len(size), -1).any(axis=1) for size, known in pairs]
    exceeding: np.ndarray = np.any(found, axis=0)
    return exceeding


def _largest_of_others(rows: np.ndarray) -> np.ndarray:
    """For every row, elementwise the largest of all others; zero, where there are none."""
    if len(rows) == 1:
        return np.zeros_like(rows)
    second, first = np.partition(rows, -2, axis=0)[-2:]
    largest: np.ndarray = np.where(rows == first, second, first)
    return largest
