"""What a run keeps count of: its cost, and its free energy as sites have reported it."""

from partita.server.accounting.accounts import Accounts, Received
from partita.server.accounting.tally import SiteWork

__all__ = ["Accounts", "Received", "SiteWork"]
