"""Memory that is used again and again stays with the process; imports nothing heavy."""

import ctypes
import functools
import os
import sys

# Numbers that glibc's `mallopt` knows, and how many bytes: arrays up to `OWN` are cut from the heap (it allows no
# more), and up to `KEPT` that are free at its end are not given back.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
OWN, KEPT = 2**25, 2**27


@functools.cache
def keep_freed_memory() -> bool:
    """Keep some memory that arrays have left for those that come, in this process from now on; says whether it does.

    A fold of large densities makes and drops a dozen arrays of a megabyte. The C library gives each back to the system
    and gets it again, cleared page by page: a tenth of a fold's time. What users have set (MALLOC_…, or another
    library in its place) stays.
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, OWN)) and bool(mallopt(TRIM_THRESHOLD, KEPT))
