"""Threads of the linear algebra libraries; imports nothing heavy, because it has to come first."""

import os
import sys


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
