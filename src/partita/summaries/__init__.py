"""Summaries of tables that stay where they are: table 1 across sites, of which no cell is of a few people."""

from partita.summaries.asking import summary
from partita.summaries.table_one import Summary

__all__ = ["Summary", "summary"]
