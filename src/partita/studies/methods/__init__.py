"""Published methods as triples of partition, solver and schedule, with small problems and independent references."""

from partita.studies.methods.checking import check_methods, explain, find_method, run_method, summarise
from partita.studies.methods.table import TABLE, Method

__all__ = ["TABLE", "Method", "check_methods", "explain", "find_method", "run_method", "summarise"]
