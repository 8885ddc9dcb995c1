"""What a run keeps count of: its cost, and its free energy as sites have reported it."""

from partita.server.accounting.credibility import Credibility
from partita.server.accounting.evidence import Evidence
from partita.server.accounting.tally import SiteWork, Tally

__all__ = ["Credibility", "Evidence", "SiteWork", "Tally"]
