"""Memory that arrays have left is kept for those that come."""

import os
import subprocess
import sys

import pytest

# Page faults of a hundred arrays of two megabytes that are dropped together, after the first of them, for each array.
FAULTS = """
import resource, sys
import numpy as np
from partita.foundation.memory import keep_freed_memory

if "keep" in sys.argv:
    assert keep_freed_memory()

def work():
    arrays = [np.ones(2**18) for _ in range(10)]

work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 100)
"""


def run(script: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    found = subprocess.run(command, env={**outside, **environment}, capture_output=True, text=True, check=True)
    return found.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_arrays_are_not_given_back_and_got_again():
    assert int(run(FAULTS, "keep")) < 5
    assert int(run(FAULTS)) > 50


def test_what_a_user_has_set_stays():
    script = "from partita.foundation.memory import keep_freed_memory; print(keep_freed_memory())"
    assert run(script, MALLOC_TRIM_THRESHOLD_="100000") == "False"
