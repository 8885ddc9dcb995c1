"""What updates may do before they are held back, refused, or their site is not asked again."""

from dataclasses import dataclass

from partita.checks import check_count, check_positive
from partita.errors import StaleUpdate
from partita.ledger import Update

# Of an update that goes too far: where less is taken, it counts as a strike.
STRIKE = 1e-3


@dataclass(frozen=True)
class Limits:
    """Against sites that are broken or mean harm; without them, everything that keeps densities proper is taken.

    Args:
        change: how many nats, KL(new ‖ old), one site's update may move the posterior; of what goes further, the
            largest of ½, ¼, … that does not is taken. First updates of networks go as far as they have weights.
        strikes: a site that went further so many times in a row, and of whose updates less than a thousandth was taken,
            is quarantined.
        staleness: how many other updates may have been folded since a site was asked; what is older is refused, and the
            site asked again.
    """

    change: float | None = None
    strikes: int = 3
    staleness: int | None = None

    def __post_init__(self) -> None:
        check_count("limits: ", strikes=self.strikes)
        if self.change is not None:
            check_positive("limits: ", change=self.change)
        if self.staleness is not None:
            check_count("limits: ", staleness=self.staleness)

    def check_age(self, update: Update, version: int) -> None:
        """Refuse an update that answers too old a task."""
        age = version - update.version
        if self.staleness is not None and age > self.staleness:
            raise StaleUpdate(
                update.site, f"{age} updates were folded since it was asked, at most {self.staleness} may be"
            )
