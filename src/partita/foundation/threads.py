"""Threads of the linear algebra libraries; imports nothing heavy, because it has to come first."""

import functools
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def cap_blas_threads() -> None:
    """Keep SciPy's BLAS to one thread, unless the user has set OPENBLAS_NUM_THREADS.

    JAX's linear algebra on the CPU calls SciPy's OpenBLAS from XLA's own threads; two pools on the same cores slow a
    loop of small factorisations down a hundredfold. The variable counts for libraries that are loaded later; one that
    is loaded already is told, and NumPy's own is left alone.
    """
    if "OPENBLAS_NUM_THREADS" in os.environ:
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if "scipy" in sys.modules:
        from threadpoolctl import ThreadpoolController

        controller = ThreadpoolController()
        ours = [library.filepath for library in controller.lib_controllers if "scipy" in library.filepath]
        if ours:
            controller.select(filepath=ours).limit(limits=1)


def one_blas_thread() -> AbstractContextManager[Any]:
    """A context in which NumPy's BLAS has one thread, as it has where Partita was imported before NumPy.

    Sums that are cut in two for two threads are others in their last bits, so that what a run computes would depend on
    the order of imports and on the machine; and a thread that waits for a busy core makes a product of two vectors
    take hundreds of times as long.
    """
    threaded = _find_threaded()
    return nullcontext() if threaded is None else threaded.limit(limits=1)


@functools.cache
def _find_threaded() -> Any:
    """What controls the BLAS libraries that have several threads; None, if there are none."""
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="blas")
    return found if any(library.num_threads > 1 for library in found.lib_controllers) else None
