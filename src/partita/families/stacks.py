"""Functions over stacks of densities, under the names that they had before they became methods of `Family`."""

from typing import Any

from partita.families.base import Family, _sums_of_others
from partita.foundation.runtime import stack_trees

stacked = stack_trees
rows_of = Family.rows
product = Family.product_of_rows
scaled = Family.scale_rows
repeat = Family.repeat
sums_of_others: Any = _sums_of_others
