"""Streams of Gaussian processes: 24 batches of 500 rows with 21 features, beside GPflow; and a thousand small batches.

Partita learns from a stream with ten more points per batch, hyperparameters with a distribution. GPflow trains, for
each batch, a sparse GP (SGPR, collapsed as ours) with as many points on the same 500 rows, with as many steps of Adam,
which is less: it carries nothing over. Both times include compilation; how much of Partita's that is, is shown too,
because `cache_compilations` keeps it for the next process. Processes take turns batch by batch. The data
are random, of the robot arm's shape.

    python -m benchmarks.streaming_gp --gpflow-python /path/to/python/with/gpflow
"""

import argparse
import os
import resource
import time

import jax
import numpy as np

from benchmarks.peer import Peer
from partita.estimators import StreamingGPRegressor

BATCHES, ROWS, FEATURES, POINTS, STEPS = 24, 500, 21, 10, 60
MANY, FEW, BOUND = 1000, 50, 50
# What JAX reports of XLA; tracing, which a cache does not save, is not counted.
BACKEND = "/jax/core/compile/backend_compile_duration"

GPFLOW = """
import os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf, gpflow
def train(X, y, points, steps):
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.full(X.shape[1], X.shape[1] ** 0.5))
    model = gpflow.models.SGPR((X, y), kernel, X[:points].copy(), noise_variance=0.1)
    optimiser = tf.optimizers.Adam(0.05)
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = model.training_loss()
        variables = model.trainable_variables
        optimiser.apply_gradients(zip(tape.gradient(loss, variables), variables))
    for _ in range(steps):
        step()
print("ready", gpflow.__version__, flush=True)
for line in sys.stdin:
    path, points, steps = line.split()
    with np.load(path) as arrays:
        X, y = arrays["X"], arrays["y"][:, None]
    began = time.perf_counter()
    train(X, y, int(points), int(steps))
    print(time.perf_counter() - began, flush=True)
"""


def data(rows: int, features: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(rows, features))
    X = X[np.argsort(X[:, 0])]
    return X, np.sin(2 * X[:, 0]) + np.tanh(X[:, 1] * X[:, 2]) + 0.1 * generator.normal(size=rows)


def robot_arm_sized(python: str | None) -> None:
    import tempfile

    X, y = data(BATCHES * ROWS, FEATURES)
    model = StreamingGPRegressor(points_per_batch=POINTS, steps=STEPS)
    peer = None if python is None else Peer(python, GPFLOW)
    ours, theirs, compiling = [], [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiling.append(seconds) if event == BACKEND else None
    )
    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate(np.split(np.arange(len(y)), BATCHES)):
            began = time.perf_counter()
            model.partial_fit(X[part], y[part])
            ours.append(time.perf_counter() - began)
            if peer is not None:
                path = os.path.join(folder, "batch.npz")
                np.savez(path, X=X[part], y=y[part])
                theirs += peer.seconds(path, POINTS * (number + 1), STEPS)
    print(f"Partita: {shown(ours)}; {sum(compiling):.1f} s of them compiling")
    if peer is not None:
        peer.close()
        print(f"GPflow {peer.version}: {shown(theirs)}")
        kept = sum(ours) - sum(compiling)
        print(f"Partita is {sum(theirs) / sum(ours):.1f} × as fast, {sum(theirs) / kept:.1f} × once it is compiled")


def shown(seconds: list[float]) -> str:
    slowest, last = max(seconds), seconds[-1]
    return f"{sum(seconds):.1f} s for {BATCHES} batches, {slowest:.1f} s for the slowest, {last:.1f} s for the last"


def long_stream() -> None:
    X, y = data(MANY * FEW, 3)
    order = np.random.default_rng(1).permutation(len(y))
    model = StreamingGPRegressor(points_per_batch=5, max_points=BOUND, steps=20)
    seconds, memory = [], []
    for number, part in enumerate(np.split(order, MANY)):
        began = time.perf_counter()
        model.partial_fit(X[part], y[part])
        seconds.append(time.perf_counter() - began)
        if number in (99, MANY - 1):
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    first, last = np.median(seconds[50:150]), np.median(seconds[-100:])
    print(f"{MANY} batches of {FEW} rows, at most {BOUND} points: {1e3 * first:.0f} ms a batch around the 100th,")
    print(f"  {1e3 * last:.0f} ms at the end ({last / first:.2f} ×); memory {memory[0]:.0f} MB and {memory[1]:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpflow-python", help="A Python that has GPflow.")
    arguments = parser.parse_args()
    robot_arm_sized(arguments.gpflow_python)
    long_stream()


if __name__ == "__main__":
    main()
