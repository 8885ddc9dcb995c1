"""Public data, and ways to spread data over sites."""

from partita.datasets.coresets import hold_out, k_centre_rows, random_rows
from partita.datasets.documents import load_documents
from partita.datasets.registry import NAMES as NAMES
from partita.datasets.registry import REGISTRY, load, load_split
from partita.datasets.registry import WITH_SPLIT as WITH_SPLIT
from partita.datasets.scaling import column_units, standardised
from partita.datasets.splitting import How, split, train_test
from partita.datasets.tables import load_table
from partita.foundation.csv_files import read_columns, read_csv, read_header

__all__ = [
    "REGISTRY",
    "How",
    "column_units",
    "hold_out",
    "k_centre_rows",
    "load",
    "load_documents",
    "load_split",
    "load_table",
    "random_rows",
    "read_columns",
    "read_csv",
    "read_header",
    "split",
    "standardised",
    "train_test",
]
