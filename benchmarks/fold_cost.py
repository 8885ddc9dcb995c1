"""What a fold and a dispatch of one site cost, for ten and for ten thousand sites."""

import time

import numpy as np

from partita.families import Gaussian, MeanField
from partita.server.ledger import Ledger
from partita.wire.tasks import Update

FOLDS = 300


def microseconds(prior, sites: int) -> tuple[float, float]:
    ledger, generator = Ledger(prior, sites), np.random.default_rng(0)
    change = prior**0.01
    spent = np.zeros(2)
    for _ in range(FOLDS):
        site = int(generator.integers(sites))
        began = time.perf_counter()
        task = ledger.dispatch([site], {})[0]
        middle = time.perf_counter()
        ledger.fold([Update(site, task.version, change, 0.0)])
        spent += middle - began, time.perf_counter() - middle
    return tuple(spent / FOLDS * 1e6)


def main() -> None:
    priors = {
        "MeanField(50)": MeanField(np.zeros(50), np.ones(50)),
        "Gaussian(20)": Gaussian(np.zeros(20), np.eye(20)),
    }
    for name, prior in priors.items():
        few, many = microseconds(prior, 10), microseconds(prior, 10_000)
        print(
            f"{name}: dispatch {few[0]:.0f} µs with 10 sites, {many[0]:.0f} µs with 10,000 ({many[0] / few[0]:.2f} ×)"
        )
        print(f"{name}: fold {few[1]:.0f} µs with 10 sites, {many[1]:.0f} µs with 10,000 ({many[1] / few[1]:.2f} ×)")


if __name__ == "__main__":
    main()
