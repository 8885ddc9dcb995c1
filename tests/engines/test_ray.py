"""Ray on two nodes of one machine: equal to in-process to the last bit, also when actors and a node are killed."""

import os
import pickle
import signal
import time

import jax
import numpy as np
import pytest
from sklearn.base import clone

import partita as pt
from partita.errors import InputError, ShardError, Stalled
from partita.server.schedules import Asynchronous, Sequential, Synchronous

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.engines,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:os.fork", "ignore::ResourceWarning"),
]

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(50, 2))
Y = (X[:, 0] + 0.5 * GENERATOR.normal(size=50) > 0).astype(float)
SHARDS = [(X[i::5], Y[i::5]) for i in range(5)]
MODEL = pt.models.LogisticRegression(features=2)


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(cluster.address, log_to_driver=False)
    cluster.second = cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def engine(cluster, tmp_path_factory):
    cache = str(tmp_path_factory.getbasetemp() / "jax")
    return lambda **settings: pt.engines.Ray(**{"cpus": 0.5, "timeout": 60.0, "cache": cache, **settings})


def fit(engine=None, schedule=None, shards=SHARDS, **others):
    return pt.fit(MODEL, shards, schedule=schedule or Synchronous(rounds=4), engine=engine, **others)


@pytest.mark.parametrize("schedule", [Synchronous(rounds=4), Sequential(passes=2)])
def test_equal_to_in_process_bit_for_bit(engine, schedule):
    result = fit(engine(), schedule)
    assert result.fingerprint == fit(None, schedule).fingerprint
    assert result.log_evidence == fit(None, schedule).log_evidence


def test_a_network_is_equal_too_with_messages_of_one_density(engine):
    """And with half of it, it ends nearby."""
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(60, 6)).astype(np.float32)
    shards = [(inputs[i::3], (inputs[i::3, 0] > 0).astype(int)) for i in range(3)]
    model, schedule = pt.models.Network([6, 5, 2]), Synchronous(rounds=5)
    here = pt.fit(model, shards, schedule=schedule)
    there = pt.fit(model, shards, schedule=schedule, engine=engine())
    assert there.fingerprint == here.fingerprint
    half = pt.fit(model, shards, schedule=schedule, engine=engine(compression="float16"))
    assert half.fingerprint != here.fingerprint
    for a, b in zip(jax.tree.leaves(half.posterior), jax.tree.leaves(here.posterior), strict=True):
        np.testing.assert_allclose(a, b, rtol=0.02, atol=0.02 * np.max(np.abs(b)))


def test_an_estimator_with_sites_on_a_cluster_is_that_of_one_process(engine):
    groups = np.arange(50) % 5
    here = pt.PartitionedClassifier(schedule=Synchronous(rounds=4)).fit(X, Y, groups=groups)
    there = pt.PartitionedClassifier(schedule=Synchronous(rounds=4), engine=engine()).fit(X, Y, groups=groups)
    assert there.result_.fingerprint == here.result_.fingerprint
    # Nothing of the cluster is left in it.
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(there)).predict(X), here.predict(X))
    assert clone(there).engine == there.engine


def test_asynchronous_updates_end_near_the_synchronous_fixed_point(engine):
    there = fit(None, Synchronous(rounds=60)).posterior
    # Unbounded, one site could have come to the end before the others have compiled their first refinement.
    result = fit(engine(), Asynchronous(updates=150, max_staleness=10))
    assert len(result.history) == 150
    assert 0 < max(row["staleness"] for row in result.history) <= 10
    assert np.max(np.abs(result.posterior.location - there.location) / there.scale) < 0.02


def process_of(engine, group):
    return ray.get(engine._handles[group].process.remote())


def test_an_actor_that_is_killed_is_made_anew_and_nothing_is_counted_twice(engine):
    ours = engine(actors=3)

    def kill(event):
        if event.fold == 2:
            os.kill(process_of(ours, 1), signal.SIGKILL)

    assert fit(ours, callbacks=[kill]).fingerprint == fit().fingerprint


def test_a_node_that_dies_takes_nothing_with_it(cluster, engine):
    """Its actors are made anew on the other node, from functions that load their data there."""
    ours = engine(actors=2, cpus=0.5)

    def kill(event):
        if event.fold == 2:
            cluster.remove_node(cluster.second)
            cluster.second = None

    loaders = [lambda shard=shard: shard for shard in SHARDS]
    try:
        assert fit(ours, shards=loaders, callbacks=[kill]).fingerprint == fit().fingerprint
    finally:
        cluster.second = cluster.add_node(num_cpus=1)


def test_sites_whose_actor_dies_too_often_are_left_behind(engine):
    ours = engine(actors=5, cpus=0.2, restarts=0)

    def kill(event):
        if event.fold == 2:
            os.kill(process_of(ours, 4), signal.SIGKILL)

    result = fit(ours, callbacks=[kill])
    assert [row["sites"] for row in result.history] == [5, 5, 4, 4]
    assert np.isnan(result.log_evidence)


def test_when_all_are_dead_it_says_so(engine):
    ours = engine(actors=1, restarts=0)

    def kill(event):
        os.kill(process_of(ours, 0), signal.SIGKILL)

    began = time.monotonic()
    with pytest.raises(Stalled, match="died too often"):
        fit(ours, callbacks=[kill])
    assert time.monotonic() - began < 60


def test_shares_of_the_evidence_that_cannot_be_decoded_are_gaps(engine, monkeypatch):
    """The fit is done by then, and is not lost."""
    answers_of = pt.engines.Ray._call_those_alive

    def garble(self, calls):
        answers = answers_of(self, calls)
        return {**answers, 1: answers[1][:-1]}

    monkeypatch.setattr(pt.engines.Ray, "_call_those_alive", garble)
    found, plain = fit(engine()), fit()
    assert found.fingerprint == plain.fingerprint
    assert [site for site, value in enumerate(found.expected_log_probs) if np.isnan(value)] == [1]
    assert np.isnan(found.log_evidence)


def test_a_site_with_bad_data_says_which_and_why(engine):
    with pytest.raises(ShardError, match=r"site 1: X: expected 2 features"):
        fit(engine(), shards=[SHARDS[0], (X[:, :1], Y)])
    with pytest.raises(InputError, match="Ray: timeout"):
        pt.engines.Ray(timeout=0.0)


def test_a_regression_reads_tables_where_actors_are(engine, tmp_path):
    """From functions that refuse to be called here, and from files: no table is in this process."""
    pytest.importorskip("formulaic")
    import pandas as pd

    driver, sites = os.getpid(), {}
    table = pd.DataFrame({"age": X[:, 0], "arm": np.where(X[:, 1] > 0, "drug", "none"), "ill": Y})
    for m in range(3):
        path = tmp_path / f"site{m}.csv"
        table[m::3].to_csv(path, index=False)

        def load(path=path):
            assert os.getpid() != driver
            return pd.read_csv(path)

        sites[path.stem] = load
    settings = {"family": "bernoulli", "quiet": True, "schedule": Synchronous(rounds=3), "held_out": 0.1}
    here = pt.regress("ill ~ age + arm", str(tmp_path / "*.csv"), **settings)
    with pytest.raises(ShardError, match="site site0: data: the function that loads them failed with AssertionError"):
        pt.regress("ill ~ age + arm", sites, **settings)
    for given in (sites, str(tmp_path / "*.csv")):
        there = pt.regress("ill ~ age + arm", given, engine=engine(actors=2), **settings)
        assert there.result.fingerprint == here.result.fingerprint
        assert there.log_evidence == here.log_evidence
        assert there.coefficients() == here.coefficients()
        assert there.calibration() == here.calibration()
    with pytest.raises(InputError, match="site site0: has no column 'weight'"):
        pt.regress("ill ~ weight", sites, engine=engine(actors=1), **settings)
