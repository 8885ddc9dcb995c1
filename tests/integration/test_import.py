"""What importing does, in processes of its own."""

import subprocess
import sys

import pytest


def printed(program):
    command = [sys.executable, "-c", program]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, timeout=120
    ).stdout.strip()


def test_importing_loads_nothing_heavy():
    heavy = ("jax", "scipy", "sklearn", "optax", "equinox", "plotly", "rich", "typer")
    assert printed(f"import sys, partita; print([m for m in {heavy!r} if m in sys.modules])") == "[]"


def test_a_fit_loads_no_plots_and_no_command_line():
    unwanted = ("plotly", "rich", "typer", "sklearn")
    assert printed(f"import sys, partita as pt; pt.fit; print([m for m in {unwanted!r} if m in sys.modules])") == "[]"


@pytest.mark.parametrize("first", ["", "import scipy.linalg; "], ids=["alone", "after scipy"])
def test_scipys_blas_has_one_thread(first):
    """JAX's factorisations run there, from threads of its own."""
    program = f"""
{first}
import partita, scipy.linalg
from threadpoolctl import threadpool_info
print({{library["num_threads"] for library in threadpool_info() if "scipy" in library["filepath"]}})
"""
    assert printed(program) == "{1}"


def test_a_users_own_setting_is_respected():
    program = """
import os; os.environ["OPENBLAS_NUM_THREADS"] = "2"
import partita; print(os.environ["OPENBLAS_NUM_THREADS"])
"""
    assert printed(program) == "2"


def test_jaxs_precision_flag_is_left_alone():
    program = """
import numpy as np, jax, jax.numpy as jnp, partita as pt
model = pt.models.LinearRegression(features=1, noise=1.0)
result = pt.fit(model, [(np.ones((3, 1)), np.ones(3))])
print(result.posterior.location.dtype, jnp.ones(1).dtype, jax.config.jax_enable_x64)
"""
    assert printed(program) == "float64 float32 False"


def test_gradients_through_several_factorisations_in_a_loop_do_not_hang():
    """Some versions of jaxlib dead-lock on such graphs with two cores; the time-out is the test."""
    program = """
import jax, jax.numpy as jnp
def loss(A):
    K = jnp.einsum("bij,bkj->bik", A, A) + 10 * jnp.eye(40)
    L = jax.lax.map(jnp.linalg.cholesky, K)
    M = jax.lax.map(jnp.linalg.cholesky, L @ jnp.swapaxes(L, 1, 2) + jnp.eye(40))
    return jnp.sum(jnp.log(jnp.diagonal(M, axis1=1, axis2=2)))
step = jax.jit(lambda A: jax.lax.scan(lambda a, _: (a - 1e-3 * jax.grad(loss)(a), None), A, None, length=20)[0])
print(bool(jnp.all(jnp.isfinite(step(jax.random.normal(jax.random.key(0), (8, 40, 40)))))))
"""
    assert printed(program) == "True"


def test_folds_have_one_blas_thread_whatever_was_imported_first():
    """Sums of two threads would have other last bits."""
    program = """
import os; os.environ.pop("OPENBLAS_NUM_THREADS", None)
import numpy, partita
from partita.foundation.threads import one_blas_thread
from threadpoolctl import threadpool_info
count = lambda: sorted(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
before = count()
with one_blas_thread():
    print(set(count()))
assert count() == before
"""
    assert printed(program) == "{1}"
