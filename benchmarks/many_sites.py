"""A thousand sites of fifty rows: seconds for twenty synchronous rounds after compilation, and what they consist of."""

import time
import tracemalloc

import numpy as np

import partita as pt

SITES, ROWS, FEATURES, ROUNDS = 1000, 50, 20, 20


def problem() -> tuple:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(SITES * ROWS, FEATURES))
    y = (generator.random(len(X)) < 1 / (1 + np.exp(-X @ generator.normal(size=FEATURES)))).astype(float)
    return X, y


def main() -> None:
    shards = pt.datasets.split(problem(), sites=SITES)
    for posterior in ("full", "mean-field"):
        model = pt.models.LogisticRegression(features=FEATURES, intercept=False, posterior=posterior)
        pt.fit(model, shards, schedule=pt.schedules.Synchronous(rounds=1))
        began = time.perf_counter()
        result = pt.fit(model, shards, schedule=pt.schedules.Synchronous(rounds=ROUNDS))
        total = time.perf_counter() - began
        share = result.history[-1]["seconds"] / total
        print(f"{posterior}: {ROUNDS} rounds of {SITES} sites in {total:.1f} s, {share:.0%} of it at the sites")
    for rounds in (5, 40):
        tracemalloc.start()
        pt.fit(model, shards, schedule=pt.schedules.Synchronous(rounds=rounds))
        print(f"mean-field, {rounds} rounds: at most {tracemalloc.get_traced_memory()[1] / 1e6:.1f} MB on the host")
        tracemalloc.stop()


if __name__ == "__main__":
    main()
