"""A ledger with one factor for all sites, so that its size does not depend on how many there are."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from partita.families import Family
from partita.families.cone import admissible_share, is_surely_inside
from partita.server.ledger import Ledger, anywhere, check_prior


class SharedLedger(Ledger):
    """prior × factor^M: all M sites share one factor, the geometric mean of what they say (Li et al., 2015).

    A site refines its share of the whole as if that were its own. Cavities lie between prior and posterior, so they are
    proper wherever those are.
    """

    divides: ClassVar[bool] = False

    def recomputed_posterior(self) -> Family:
        """The posterior itself: nothing else is kept."""
        return self.posterior

    def replace_prior(self, prior: Family, allowed: Callable[[Family], bool] = anywhere) -> bool:
        """Put another prior in place, if the posterior stays proper; says whether it did."""
        check_prior(prior)
        posterior = self.posterior * (prior / self.prior)
        if not (is_surely_inside(posterior.cone()) and allowed(posterior)):
            return False
        self.prior, self.posterior = prior, posterior
        return True

    def _no_factors(self) -> Family:
        return self.prior.flat(0)

    def join(self) -> None:
        """One more site shares the factor: the posterior stays as it is, and everybody's share of it is smaller."""
        self.sites += 1

    def holds_nothing_of(self, site: int) -> bool:
        """Never known: what one site has said cannot be told from what the others have."""
        return False

    def factors(self) -> tuple[Family, ...]:
        """The same one for every site."""
        return (self.factor(0),) * self.sites

    def factors_of(self, sites: Sequence[int]) -> Family:
        return ((self.posterior / self.prior) ** (1 / self.sites)).repeat(len(sites))

    def _cavities(self, sites: Sequence[int], posterior: Family, own: Family) -> Family:
        share = 1 / self.sites
        return (self.prior**share * posterior ** (1 - share)).repeat(len(sites))

    def share(self, sites: Sequence[int], changes: Family, total: Family) -> float:
        """The largest share of all changes that keeps the posterior proper, and with it every cavity."""
        return admissible_share(*self._ends_and_floor(total))

    def own_share(self, site: int, change: Family, cavities: Family) -> float:
        return self.share([site], change, change)

    def _take(
        self,
        sites: Sequence[int],
        changes: Family,
        share: float,
        allowed: Callable[[Family], bool],
        rest: Family | None = None,
    ) -> float:
        share, self.posterior, _ = self._verify(sites, changes, share, allowed, rest)
        self._floor = self.floor_with(self.posterior.cone())
        return share

    def _share_out(self, rest: Family | None, share: float) -> None:
        """Nothing, either."""

    def _store(self, sites: Sequence[int], factors: Family) -> None:
        """Nothing: the posterior says it all."""
