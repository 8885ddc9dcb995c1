"""Training steps of a mean-field Bayesian network, 784-200-10, batches of 200, Adam, float32.

Partita, NumPyro and PyTorch take turns in short blocks of one run, and ratios are taken within each turn: a busy
machine slows all three down. NumPyro draws weights; PyTorch is written here to draw what layers give (local
reparameterisation), which takes twice the products and gives less noisy gradients. Partita does both, and is compared
with each at the same estimator. The share of the speed of matrix products says what is left to gain. The data are
random, of MNIST's shape.

    python -m benchmarks.network_steps --torch-python /path/to/python/with/torch
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import partita as pt
from benchmarks.peer import Peer
from partita.free_energy import LocalProblem
from partita.models import prior_of
from partita.site.worker import load_shards

SIZES, ROWS, BATCH = (784, 200, 10), 6000, 200
STEPS, TURNS, LEARNING_RATE, START_SCALE = 60, 9, 0.001, 0.05
LAYERS, WEIGHTS = "Partita, layers", "Partita, weights"

TORCH = """
import math, sys, time
import torch
import torch.nn.functional as F
sizes, rows, batch, rate, scale = (784, 200, 10), 6000, 200, 0.001, 0.05
X, y = torch.rand(rows, sizes[0]), torch.randint(0, sizes[-1], (rows,))
means, logs = [], []
for i, o in zip(sizes, sizes[1:]):
    for value in (torch.randn(i, o) * math.sqrt(2 / (i + o)), torch.zeros(o)):
        means.append(value.requires_grad_())
        logs.append(torch.full(value.shape, math.log(scale)).requires_grad_())
optimiser = torch.optim.Adam([*means, *logs], lr=rate)
def train(steps):
    for step in range(steps):
        within = step % (rows // batch)
        if within == 0:
            order = torch.randperm(rows)
        index = order[within * batch : (within + 1) * batch]
        h, t = X[index], y[index]
        variances = [torch.exp(2 * log) for log in logs]
        for layer in range(len(sizes) - 1):
            if layer:
                h = F.relu(h)
            w, b = 2 * layer, 2 * layer + 1
            mean = torch.addmm(means[b], h, means[w])
            variance = torch.addmm(variances[b], h * h, variances[w])
            h = mean + variance.sqrt() * torch.randn_like(mean)
        kl = sum(0.5 * (v + m * m - 1).sum() - g.sum() for m, v, g in zip(means, variances, logs))
        loss = F.cross_entropy(h, t, reduction="sum") * (rows / batch) + kl
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
train(10)
print("ready", torch.__version__, flush=True)
for line in sys.stdin:
    steps, threads = map(int, line.split())
    torch.set_num_threads(threads)
    began, busy = time.perf_counter(), time.process_time()
    train(steps)
    print(time.perf_counter() - began, time.process_time() - busy, flush=True)
"""


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.random((ROWS, SIZES[0]), np.float32), generator.integers(0, SIZES[-1], ROWS)


def timed(call: Callable) -> tuple[float, float]:
    """Seconds on the clock, and of all threads together."""
    began, busy = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    return time.perf_counter() - began, time.process_time() - busy


def partita(steps: int, expectation: pt.expectations.Expectation) -> Callable:
    """What a site runs in one refinement."""
    model = pt.models.Network(SIZES, start_scale=START_SCALE)
    (shard,) = jax.device_put(load_shards(model, [data()]))
    prior = prior_of(model, model.hyper)
    hyper = {name: jnp.asarray(value, jnp.float32) for name, value in model.hyper.items()}
    problem = LocalProblem(model, expectation, jax.device_put(prior), shard, hyper)
    solver = pt.solvers.Gradient(batch_size=BATCH, steps=steps, learning_rate=LEARNING_RATE, tolerance=0.0)
    begin, factor = jax.device_put((model.start, prior**0))
    refine = eqx.filter_jit(lambda problem, begin, factor, key: solver.refine(problem, begin, factor, key=key))

    def run():
        refined, info = refine(problem, begin, factor, jax.random.key(0))
        assert int(info.steps) == steps
        return refined

    run()
    return run


def numpyro(steps: int) -> Callable:
    """Stochastic variational inference with AutoNormal and analytic divergences; weights are drawn, as always there."""
    import numpyro as npy
    import numpyro.distributions as dist
    from numpyro.infer import SVI, TraceMeanField_ELBO, init_to_value
    from numpyro.infer.autoguide import AutoNormal

    X, y = (jnp.asarray(a) for a in data())
    layers = list(pairwise(SIZES))
    start = pt.models.Network(SIZES).network.start(0)

    def model(X, y):
        for i, (inputs, outputs) in enumerate(layers):
            weights = npy.sample(f"w{i}", dist.Normal(0.0, 1.0).expand([inputs, outputs]).to_event(2))
            bias = npy.sample(f"b{i}", dist.Normal(0.0, 1.0).expand([outputs]).to_event(1))
            X = (jax.nn.relu(X) if i else X) @ weights + bias
        with npy.plate("rows", ROWS, subsample_size=BATCH):
            npy.sample("y", dist.Categorical(logits=X), obs=y)

    values = {
        f"{name}{i}": jnp.asarray(a) for i, layer in enumerate(start) for name, a in zip("wb", layer, strict=True)
    }
    guide = AutoNormal(model, init_scale=START_SCALE, init_loc_fn=init_to_value(values=values))
    svi = SVI(model, guide, npy.optim.Adam(LEARNING_RATE), TraceMeanField_ELBO())
    per_epoch = ROWS // BATCH

    @jax.jit
    def train(state, X, y):
        def step(number, carry):
            state, order = carry
            key = jax.random.fold_in(jax.random.key(1), number)
            order = jax.lax.cond(number % per_epoch == 0, lambda: jax.random.permutation(key, ROWS), lambda: order)
            index = jax.lax.dynamic_slice_in_dim(order, number % per_epoch * BATCH, BATCH)
            return svi.update(state, X[index], y[index])[0], order

        return jax.lax.fori_loop(0, steps, step, (state, jnp.arange(ROWS)))

    state = svi.init(jax.random.key(0), X[:BATCH], y[:BATCH])
    train(state, X, y)
    return lambda: train(state, X, y)


def products() -> dict[str, tuple[float, Callable]]:
    """Matrix products in JAX: their operations and a call; those of the network's first layer, and a large one."""
    key = jax.random.key(0)
    inputs, outputs = SIZES[:2]
    shapes = {"forward": (BATCH, inputs, outputs), "by weights": (inputs, BATCH, outputs), "large": (1536, 1536, 1536)}
    calls = {}
    for name, (m, k, n) in shapes.items():
        # As they occur: the gradient by the weights is Xᵀ @ G.
        a = jax.random.normal(key, (k, m) if name == "by weights" else (m, k))
        b = jax.random.normal(key, (k, n))
        times = 2 if name == "large" else 40

        @jax.jit
        def repeated(a, b, name=name, times=times):
            def once(_, b):
                product = (a.T if name == "by weights" else a) @ b
                return b.at[0, 0].add(1e-9 * product[0, 0])  # the next product waits for this one

            return jax.lax.fori_loop(0, times, once, b)

        repeated(a, b)
        calls[name] = (2.0 * m * k * n * times, lambda repeated=repeated, a=a, b=b: repeated(a, b))
    return calls


def operations() -> float:
    """Of one step: products for means and for variances, forward, by weights and, but in the first layer, by inputs."""
    total = 0.0
    for layer, (inputs, outputs) in enumerate(pairwise(SIZES)):
        one = 2.0 * BATCH * inputs * outputs
        total += (2 + 2 + (2 if layer else 0)) * one
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch-python", default=sys.executable if importlib.util.find_spec("torch") else None)
    given = parser.parse_args()
    layers, weights = pt.expectations.LocalReparameterisation(samples=1, fixed=False), pt.expectations.MonteCarlo(1)
    compiled = {
        LAYERS: partita(STEPS, layers),
        WEIGHTS: partita(STEPS, weights),
        "NumPyro, weights": numpyro(STEPS),
    }
    matrices = products()
    torch = Peer(given.torch_python, TORCH) if given.torch_python else None
    calls: dict[str, Callable] = {name: lambda call=call: timed(call) for name, call in compiled.items()}
    if torch:
        # On a busy machine, two threads may wait for each other longer than one would work.
        calls |= {f"PyTorch, layers, {n} threads": lambda n=n: torch.seconds(STEPS, n) for n in (2, 1)}
    seconds: dict[str, list] = {name: [] for name in calls}
    speeds: dict[str, list[float]] = {name: [] for name in matrices}
    for _ in range(TURNS):
        for name, (count, call) in matrices.items():
            speeds[name].append(count / timed(call)[0] / 1e9)
        for name, call in calls.items():
            seconds[name].append(np.array(call()) / STEPS)
    if torch:
        torch.close()
    clocks = {name: np.array(values).T[0] for name, values in seconds.items()}
    print("                              ms a step    best   Partita at the same estimator is faster by")
    for name, clock in clocks.items():
        same = clocks[WEIGHTS if "weights" in name else LAYERS]
        print(f"{name:28} {1e3 * np.median(clock):10.2f} {1e3 * clock.min():7.2f} {np.median(clock / same):10.2f} ×")
    if not torch:
        print("PyTorch is not installed: skipped")
    for name, values in speeds.items():
        print(f"product, {name:10}: {np.median(values):5.1f} GFLOP/s, at best {max(values):5.1f}")
    reached = operations() / clocks[LAYERS] / 1e9
    share = {name: np.median(reached / values) for name, values in speeds.items()}
    best = {name: reached.max() / max(values) for name, values in speeds.items()}
    print(
        f"a step that draws layers needs {operations() / 1e6:.0f} MFLOP; Partita does {np.median(reached):.1f} GFLOP/s:"
    )
    for name in share:
        print(f"  {share[name]:.0%} of the product {name!r}, {best[name]:.0%} in the best turns of both")


if __name__ == "__main__":
    main()
