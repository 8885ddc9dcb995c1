"""Who is named for what a fold made of its update, and who is not asked again."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from partita.server.rules.base import Remark
from partita.wire.messages import Notice
from partita.wire.naming import SiteNames


@dataclass
class Strikes:
    """Counts strikes of sites: one more for each fold with a strike; two folds without make up for one."""

    most: int
    names: SiteNames
    counts: dict[int, float] = field(default_factory=dict)

    def judge(
        self, sites: Sequence[int], remarks: Sequence[Remark], held: Sequence[int]
    ) -> tuple[list[str], list[Notice]]:
        """What is said of the sites of a fold, and notices of strikes and quarantines."""
        by_site = defaultdict(list)
        for remark in remarks:
            by_site[remark.site].append(remark)
        problems, notices = [], []
        for site in sites:
            own = by_site[site]
            problems += [f"{self.names.of(site)}: {one.words}" for one in own if not one.quarantine]
            struck = [one.words for one in own if one.strike]
            self._count(site, bool(struck), site in held)
            reasons = [one.words for one in own if one.quarantine]
            if not reasons and self.counts[site] >= self.most:
                reasons = [one.words for one in own]
            if reasons:
                notices.append(Notice(site, "quarantined", reasons[-1]))
            elif struck:
                notices.append(Notice(site, "struck", struck[-1]))
        return problems, notices

    def _count(self, site: int, struck: bool, held: bool) -> None:
        """A site that is held back does not make up for what it did."""
        self.counts[site] = max(0.0, self.counts.get(site, 0.0) + (1.0 if struck else 0.0 if held else -0.5))

    def forgive(self, site: int) -> None:
        self.counts.pop(site, None)
