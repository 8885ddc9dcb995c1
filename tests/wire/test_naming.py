"""Sites are called by their names wherever a run speaks of them, and names are never looked for in texts."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from partita.errors import InputError, MalformedUpdate, NotFinite, ShardError, Stalled
from partita.launch import follow_run
from partita.wire.naming import SiteNames

MODEL = pt.models.LinearRegression(features=1, noise=1.0)
# Names that look like numbers of sites, or hold what is looked for in texts.
NAMES = ["site 10", "10", "site 1", "y: site 2", "{site}", *(f"clinic {i}" for i in range(5, 12))]


def make_shards(sites=12):
    return [(np.full((3, 1), 1.0 + site), np.arange(3.0)) for site in range(sites)]


@pytest.mark.parametrize("site", [0, 1, 2, 3, 4, 10, 11])
def test_data_that_cannot_be_used(site):
    shards = make_shards()
    shards[site] = (shards[site][0], np.array([0.0, np.nan, 1.0]))
    for run in (pt.fit, lambda *parts, **names: list(pt.events(*parts, **names))):
        with pytest.raises(ShardError) as caught:
            run(MODEL, shards, names=NAMES)
        assert str(caught.value).startswith(f"site {NAMES[site]}: y: is not finite at [1]")
        assert (caught.value.site, caught.value.argument) == (site, "y")


def test_columns_that_differ_are_named_too():
    import pandas as pd

    shards = [(pd.DataFrame({"a": [1.0]}), [1.0]), (pd.DataFrame({"b": [1.0]}), [1.0])]
    with pytest.raises(ShardError, match="^site south: X: expected the columns a"):
        pt.fit(MODEL, shards, names=["north", "south"])


def test_problems_in_a_history_and_in_warnings():
    shards = [(np.ones((400, 1)), np.full(400, 50.0)), (np.ones((3, 1)), np.zeros(3))]
    with pytest.warns(RuntimeWarning, match="the last round had a problem: site site 1: its update goes too far"):
        result = pt.fit(
            MODEL,
            shards,
            names=["site 1", "site 0"],
            limits=pt.Limits(change=1.0),
            schedule=pt.schedules.Synchronous(rounds=1),
        )
    assert result.history[0]["problem"].startswith("site site 1: its update goes too far")


def test_a_log_likelihood_that_is_not_finite():
    prior = pt.families.Gaussian(np.zeros(1), np.eye(1))
    model = pt.Model(prior, lambda w, y: jnp.log(2.0 - y) * w[0] ** 2)
    shards, once = [np.ones(3), np.array([1.0, 3.0])], pt.schedules.OnePass()
    with pytest.raises(NotFinite, match="^site south: its log likelihood is nan") as caught:
        pt.fit(model, shards, names=["north", "south"], schedule=once)
    assert caught.value.site == 1
    problems = [event.problems for event in pt.events(model, shards, names=["north", "south"], schedule=once)]
    assert problems[1][0].startswith("site south: solver met a value that is not finite")


def test_a_run_that_nobody_answers():
    class Silent(pt.engines.InProcess):
        def submit(self, tasks, at):
            from partita.wire.messages import Notice

            self.said = [Notice(task.site, "dropped", "is closed") for task in tasks]

        def collect(self):
            said, self.said = self.said, []
            return said

    with pytest.raises(Stalled, match=r"in a row came to nothing, the last one of site (north|south) \(is closed\)"):
        pt.fit(MODEL, make_shards(2), names=["north", "south"], engine=Silent())


def test_who_watches_sees_names(tmp_path):
    pt.fit(MODEL, make_shards(2), names=["north", "south"], run_dir=tmp_path / "run")
    follower = follow_run(tmp_path / "run")
    assert follower.read()
    assert [row["site"] for row in follower.site_rows()] == ["north", "south"]


@pytest.mark.parametrize("kind", [pt.PartitionedRegressor, pt.PartitionedClassifier])
def test_estimators_hand_on_the_labels_of_sites(kind, monkeypatch):
    real, given = pt.fit, []

    def watched(*arguments, **settings):
        given.append(settings["names"])
        return real(*arguments, **settings)

    monkeypatch.setattr("partita.estimators.partitioned_base.fit_sites", watched)
    X, y = np.random.default_rng(0).normal(size=(20, 1)), np.arange(20) % 2
    model = kind(schedule=pt.schedules.Synchronous(rounds=1), quiet=True)
    model.fit(X, y, groups=np.repeat(["west", "east"], 10)).forget("west")
    assert given == [["east", "west"], ["east"]]


def test_names_that_are_none():
    for wrong in (["north"], "ab", 3):
        with pytest.raises(InputError, match="names: expected a list of 2, one for each site"):
            pt.fit(MODEL, make_shards(2), names=wrong)


def test_errors_travel_and_are_called_once():
    other = ShardError(1, "group", "group 3 is at another site too: keep it whole", 0)
    for error in (
        ShardError(10, "y", "at site 1"),
        MalformedUpdate(10, "at site 1"),
        NotFinite(10, "at site 1"),
        other,
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.site) == (str(error), error.site)
    with (
        pytest.raises(ShardError, match=r"^site b: group: group 3 .* whole \(and site a\)$"),
        SiteNames(("a", "b")).told(),
    ):
        raise other
    with pytest.raises(ShardError, match="^y: has no rows$"), SiteNames(("a", "b")).told():
        raise ShardError(None, "y", "has no rows")
