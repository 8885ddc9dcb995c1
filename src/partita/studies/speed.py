"""How fast this machine is, for an estimate of how long a study takes."""

import time
from typing import Any

import jax
import numpy as np

from partita.expectations import GaussNewton
from partita.free_energy import LocalProblem
from partita.models import Network


def measure_flops() -> float:
    """Floating-point operations per second of products of matrices of doubles, as large as those of sparse GPs."""
    A = np.ones((500, 500))
    A @ A
    began = time.perf_counter()
    for _ in range(10):
        A @ A
    return 10 * 2 * 500**3 / (time.perf_counter() - began)


def measure_network(model: Network) -> float:
    """Rows per second that passes of one message visit here, from a few passes over random rows."""
    generator = np.random.default_rng(0)
    X = generator.random((2000, model.layers[0]), np.float32)
    shard = model.shard(0, (X, generator.integers(0, model.layers[-1] // model.heads, 2000)))
    q: Any = model.start
    message = jax.jit(lambda q, key: LocalProblem(model, GaussNewton(), q, shard, model.hyper).message(q, key)[0])
    message(q, jax.random.key(0)).block_until_ready()
    began = time.perf_counter()
    for number in range(5):
        message(q, jax.random.key(number)).block_until_ready()
    return 5 * 2000 / (time.perf_counter() - began)
