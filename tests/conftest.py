"""Compiled programs are kept for the test session and shared by its processes: most of the time goes into compiling."""

import os
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".pytest_cache" / "jax"

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Programs are run once or a few times here: what optimising them costs is not won back. Without the emitters that go
# through MLIR, and without splitting programs up for threads, compiling takes less than half the time.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

# Compiled programs are mapped into memory, and a process may only have so many maps (65,530 on most machines): one that
# runs out of them crashes. So many maps are fine; it is looked up after so many tests.
MOST_MAPS, TESTS = 25_000, 20
_run = 0


def pytest_runtest_teardown():
    """Forget compiled programs before there are too many; most come back from the cache."""
    global _run
    _run += 1
    maps = Path("/proc/self/maps")
    if _run % TESTS == 0 and maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        import gc

        import jax

        jax.clear_caches()
        gc.collect()
