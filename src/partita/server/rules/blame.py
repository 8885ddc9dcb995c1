"""Which site alone made the free energy fall, if one did."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from partita.server.rules.base import Remark

# After so few steps back in a row, one site may be the reason.
FEW_RETURNS = 2
# A site is to blame for a fall if nobody else's part in it is a quarter of it, and if its values fall short of what it
# proposed half as steeply again as when that happened first: honest values do not, where steps are shorter. If it has
# moved by less than `NEAREST`, nothing has moved, and nobody is to blame.
PART, STEEPER, NEAREST = 0.25, 1.5, 1e-12


@dataclass
class Blame:
    """Which site alone made the free energy fall, if one did, and what sites are held back for it."""

    shrink: float
    regrow: float
    # The site that is to blame for the latest fall, and the one that may be.
    blamed: int | None = None
    suspect: int | None = None
    # The share of everybody's share that sites have which were to blame.
    held: dict[int, float] = field(default_factory=dict)
    # For suspects, how steeply their values fell short at first, and how much less all were asked for since.
    steepness: dict[int, float] = field(default_factory=dict)
    forgone: dict[int, float] = field(default_factory=dict)

    def find(self, fall: float, shortfalls: Mapping[int, tuple[float, float]], returns: int) -> None:
        """Look for the one site without whose shortfall nothing would have fallen.

        What an honest site proposes falls short by what a first order leaves out: by a quarter as much for half the
        step, and in proportion to the nats that it moves. Such a site is not blamed, and all are asked for less; unless
        that does not help twice.
        """
        self.blamed = None
        if returns == 0:
            self.suspect = _find_suspect(fall, shortfalls)
        if self.suspect is None:
            return
        short, later = shortfalls.get(self.suspect, (0.0, 0.0))
        steepness = short / max(later, NEAREST)
        known = self.steepness.setdefault(self.suspect, steepness)
        if returns >= FEW_RETURNS or (returns == 0 and steepness >= STEEPER * known):
            self.blamed = self.suspect
            self.held[self.blamed] = self.held.get(self.blamed, 1.0) * self.shrink
        else:
            self.forgone[self.suspect] = self.forgone.get(self.suspect, 1.0) * self.shrink

    def remark(self, site: int) -> Remark:
        """What is said of a site that is to blame."""
        return Remark(site, "its updates alone made the free energy fall, and it is held back", strike=True)

    def relax(self) -> None:
        """The free energy has not fallen: sites that are held back get some of their share again."""
        self.held = {site: min(1.0, share * self.regrow) for site, share in self.held.items()}


def _find_suspect(fall: float, shortfalls: Mapping[int, tuple[float, float]]) -> int | None:
    """The site whose shortfall is all of a fall, if nobody else has much of a part in it."""
    parts = sorted(shortfalls, key=lambda site: shortfalls[site][0], reverse=True)
    if len(parts) < 3 or not math.isfinite(fall):
        return None
    first, second = (shortfalls[site][0] for site in parts[:2])
    alone = first >= fall and second < PART * fall
    return parts[0] if alone and shortfalls[parts[0]][1] > NEAREST else None
