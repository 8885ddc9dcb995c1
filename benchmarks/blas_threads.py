"""A jitted loop of small factorisations: with SciPy's BLAS as it comes, and with Partita's cap of one thread."""

import os
import subprocess
import sys

PROGRAM = """
import sys, time
{first}
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
generator = np.random.default_rng(0)
A = generator.normal(size=(240, 240)); K = jnp.asarray(A @ A.T + 240 * np.eye(240))
step = lambda i, total: total + jnp.linalg.cholesky(K + i * jnp.eye(240))[0, 0]
loop = jax.jit(lambda K: jax.lax.fori_loop(0, 320, step, 0.0))
loop(K).block_until_ready()
began = time.perf_counter(); loop(K).block_until_ready(); print(time.perf_counter() - began)
"""


def seconds(first: str) -> float:
    environment = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)], capture_output=True, text=True, env=environment
    )
    return float(told.stdout)


def main() -> None:
    plain, ours, late = seconds(""), seconds("import partita"), seconds("import scipy.linalg, partita")
    print(f"320 Cholesky factorisations of 240 × 240: {plain:.2f} s as it comes; {ours:.2f} s after import partita")
    print(f"{late:.2f} s when SciPy was imported before; {plain / ours:.1f} × and {plain / late:.1f} ×")


if __name__ == "__main__":
    main()
