"""Topics, mixtures and expectation propagation, beside scikit-learn and the textbook; each in one process, in turns.

Topics: articles of the Associated Press, the last 224 held out; the time to the bound per held-out word that
scikit-learn's online inference reaches after ten passes, on one scorer (ours, document terms only), and how much of it
is compiling, which `cache_compilations` keeps. Mixtures: a pass over 100,000 rows. EP: a probit process
on banana. Topics and EP need data files (PARTITA_DATA).

    python -m benchmarks.unification
"""

import time
import warnings
from typing import Any

import jax
import numpy as np

import partita as pt
from partita import datasets
from partita.errors import InputError
from partita.families import Dirichlet
from partita.foundation.runtime import precision
from partita.gp import SparseProcess, kernels, likelihoods
from partita.server.schedules import OnePass, Sequential
from partita.solvers import FixedPoint, MomentMatching
from partita.studies.methods.processes import textbook_propagation

HELD_OUT, PASSES, MOST_PASSES, PARTS = 224, 10, 30, 4
# Seconds in XLA, as JAX reports them; tracing, which a cache does not save, is not counted.
BACKEND = "/jax/core/compile/backend_compile_duration"
COMPILING: list[float] = []


def topics(K: int) -> None:
    from sklearn.decomposition import LatentDirichletAllocation

    counts, words = datasets.load_documents("ap")
    train, test = counts[:-HELD_OUT], counts[-HELD_OUT:]
    prior = {"concentration": 1 / K, "document_concentration": 1 / K}
    scorer = pt.models.LatentDirichletAllocation(K, len(words), **prior)
    shard = scorer.shard(0, test)
    bound = jax.jit(lambda mean, data: scorer.expected_log_prob(mean, data, {}))

    def score(concentration: Any) -> float:
        q = Dirichlet.from_concentration(np.asarray(concentration, float))
        with precision(np.float64):
            return float(np.sum(bound(q.mean(), shard.data)) / test.sum())

    began = time.perf_counter()
    theirs = LatentDirichletAllocation(K, learning_method="online", max_iter=PASSES, random_state=0).fit(train)
    seconds = time.perf_counter() - began
    target = score(theirs.components_)
    print(f"topics, K = {K}: scikit-learn {PASSES} passes in {seconds:.1f} s to {target:.3f} per held-out word")
    model = pt.models.LatentDirichletAllocation(K, len(words), **prior, iterations=20, single_precision=True)
    rows = train.shape[0]
    ways = {
        "batch": (1, FixedPoint(step_size=1.0)),
        f"{PARTS} sites in turns": (PARTS, FixedPoint(step_size=1.0)),
        "mini-batches of 128": (1, FixedPoint(step_size=0.1, batch_size=128, steps=rows // 128)),
    }
    for name, (parts, solver) in ways.items():
        spent, compiled, passes, reached = 0.0, 0.0, 0.0, -np.inf
        schedule = Sequential(MOST_PASSES, together=parts > 1)
        sites = [train[first::parts] for first in range(parts)]
        run = pt.events(model, sites, solver=solver, schedule=schedule, damping=1.0, start=model.begin())
        for posterior, version, (taken, of_them) in timed(run):
            spent, compiled, passes = spent + taken, compiled + of_them, version / parts
            # Looked at once a pass: what is in between is no pass of all documents.
            if version % parts == 0:
                reached = score(posterior.concentration)
                if reached >= target:
                    break
        there = reached >= target
        line = f"{passes:.0f} passes in {spent:.1f} s, {compiled:.1f} s of them compiling, "
        line += f"{'' if there else 'only '}to {reached:.3f}"
        ratios = f": {seconds / spent:.1f} × as fast, {seconds / (spent - compiled):.1f} × once it is compiled"
        print(f"  Partita, {name}: {line}{ratios if there else ''}")


def timed(run: Any) -> Any:
    """Posteriors and versions, with the seconds that each took, and how many of those were for compiling."""
    while True:
        before, began = len(COMPILING), time.perf_counter()
        event = next(run, None)
        if event is None:
            return
        yield event.posterior, event.version, (time.perf_counter() - began, sum(COMPILING[before:]))


def mixture(rows: int = 100_000, features: int = 10, K: int = 20) -> None:
    from sklearn.mixture import BayesianGaussianMixture

    generator = np.random.default_rng(0)
    centres = 4 * generator.normal(size=(K, features))
    X = generator.normal(size=(rows, features)) + centres[generator.integers(K, size=rows)]
    model = pt.models.GaussianMixture(K, features)
    run = pt.events(
        model, [X], solver=FixedPoint(step_size=1.0), schedule=Sequential(8), damping=1.0, start=model.begin(X)
    )
    ours = []
    for _ in range(8):
        began = time.perf_counter()
        next(run)
        ours.append(time.perf_counter() - began)
    times = {}
    for passes in (1, 6):
        reference = BayesianGaussianMixture(
            n_components=K, max_iter=passes, tol=0.0, init_params="random", random_state=0
        )
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference.fit(X)
        times[passes] = time.perf_counter() - began
    theirs, mine = (times[6] - times[1]) / 5, float(np.median(ours[2:]))
    print(f"mixture, {rows} × {features}, K = {K}, full: a pass in {theirs:.2f} s by scikit-learn, {mine:.2f} s here:")
    print(f"  {theirs / mine:.1f} × as fast; the first pass, with compiling, took {ours[0]:.1f} s")


def propagation(sweeps: int = 10) -> None:
    X, y = datasets.load_split("banana")[0]
    y = (y > 0).astype(float)
    model = SparseProcess(X, kernels.SquaredExponential(4.0, 0.7), likelihoods.Probit(), power=1.0)
    K = 4 * np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, axis=-1) / 0.7**2)
    began = time.perf_counter()
    mean, _ = textbook_propagation(K, 2 * y - 1, sweeps)
    theirs = time.perf_counter() - began
    ours = []
    for _ in range(2):
        began = time.perf_counter()
        solver = MomentMatching(steps=2 * sweeps, each_row=True)
        result = pt.fit(model, [(X, y)], solver=solver, schedule=OnePass(), damping=1.0)
        ours.append(time.perf_counter() - began)
    gap = np.abs(model.latent(result.posterior, X)[0] - mean).max()
    print(f"EP of a probit process, {len(X)} rows: {sweeps} sequential sweeps of the textbook in {theirs:.1f} s;")
    times = f"in {ours[1]:.1f} s, {ours[0]:.1f} s with compiling"
    print(f"  {2 * sweeps} parallel ones here {times}; means differ by {gap:.0e}")


def main() -> None:
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: COMPILING.append(seconds) if event == BACKEND else None
    )
    for part in (lambda: topics(20), lambda: topics(100), mixture, propagation):
        try:
            part()
        except InputError as error:
            print(f"left out: {error}")


if __name__ == "__main__":
    main()
