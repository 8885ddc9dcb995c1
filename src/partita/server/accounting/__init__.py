"""What a run keeps count of: its cost, and its free energy as sites have reported it."""

from partita.server.accounting.accounts import Accounts, Received, SiteWork

__all__ = ["Accounts", "Received", "SiteWork"]
