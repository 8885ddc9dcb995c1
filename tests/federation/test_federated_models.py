"""Models by name: the same tables in one process, and through the gates of a federation's sites."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits, load_iris, load_wine

import partita as pt
from gates import run_through_gates, write_folders
from partita.federation.folders import read_server
from partita.server.schedules import Synchronous

GENERATOR = np.random.default_rng(0)
ROUNDS = Synchronous(rounds=12)
# So that no default of a site's policy is in the way.
OPEN = {"most_parameters": 100_000, "most_parameters_per_row": 100.0, "fewest_per_cell": 1, "most_tasks": 100}


def standardised(X):
    return (X - X.mean(axis=0)) / X.std(axis=0)


FLOWERS = standardised(load_iris().data)[GENERATOR.permutation(150)]
WINE = standardised(load_wine().data[:, :6])[GENERATOR.permutation(178)]
COUNTS = load_digits().data[:120, 10:30]
FLOWERS_WITH_CLASS = np.column_stack([load_iris().data, load_iris().target])[GENERATOR.permutation(150)]

# A name and the settings of [model], the table, whether its last column is a target, and what predictions are.
CASES = {
    "mixture": ("gaussian-mixture\ncomponents = 4", FLOWERS, False),
    "diagonal mixture": ('gaussian-mixture\ncomponents = 3\ncovariance = "diagonal"', FLOWERS, False),
    "factors": ("factor-analysis\nfactors = 2", WINE, False),
    "topics": ("latent-dirichlet-allocation\ntopics = 4", COUNTS, False),
    "counts": ("poisson-factorisation\npatterns = 3", COUNTS, False),
    "network": ('network\nhidden = [6]\nactivation = "tanh"', FLOWERS_WITH_CLASS, True),
    "deep network": (
        'network\nhidden = [5, 4]\nlikelihood = "gaussian"\nnoise = 0.3\nprior_scale = 0.7\nstart_scale = 0.05',
        WINE,
        True,
    ),
}


def federated(tmp_path, name, model, table, has_target):
    features = [f"x{number}" for number in range(table.shape[1] - has_target)]
    # Sites of unequal size: they are padded each by itself, and all together. What rounding makes of that is far more
    # than 1e-8 in the float32 of networks, so that those are compared on sites of one size.
    cuts = [50, 100, 150] if "network" in name else [len(table) // 4, len(table) // 2, len(table)]
    tables = np.split(table[: cuts[-1]], cuts[:-1])
    sections = {"classes": "classes = 3"} if name == "network" else {}
    return write_folders(tmp_path, model, features, "y" if has_target else None, tables, sections, OPEN), tables


@pytest.mark.parametrize("name", CASES)
def test_the_same_table_in_one_process_and_through_the_gates(tmp_path, name):
    (server, folders), tables = federated(tmp_path, name, *CASES[name])
    has_target = CASES[name][2]
    across = run_through_gates(server, folders, schedule=ROUNDS)
    given = read_server(server)
    assert given.recipe.model.takes_target == has_target
    shards = [(table[:, :-1], table[:, -1]) if has_target else table for table in tables]
    here = pt.fit(given.recipe.model, shards, given.settings, schedule=ROUNDS)
    for one, other in zip(*(jax.tree.leaves(found.posterior) for found in (across, here)), strict=True):
        assert_allclose(one, other, rtol=1e-8, atol=1e-8 * np.abs(other).max())
    assert across.log_evidence == pytest.approx(here.log_evidence, rel=1e-8)
