"""Who works next, and how much of it is taken: by hand on a board, and through `fit`."""

from collections import Counter

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import partita as pt
from partita.errors import InputError
from partita.families import MeanField
from partita.server.flights import Flight
from partita.server.rules import Auto, Fixed, FreeEnergy, Proposal, Setup, as_damping
from partita.server.schedules import (
    REGISTRY,
    Asynchronous,
    Board,
    OnePass,
    Priority,
    RandomOrder,
    Rehearsal,
    Sequential,
    Synchronous,
    from_settings,
    to_settings,
)
from partita.wire.tasks import Task

SITES = 4
PRIOR = MeanField(np.zeros(2), np.ones(2))
MODEL = pt.models.LogisticRegression(features=2)


def make_shards(sites=SITES, rows=8):
    generator = np.random.default_rng(0)
    weights = np.array([2.0, -1.0])
    shards = []
    for _ in range(sites):
        X = generator.normal(size=(rows, 2))
        shards.append((X, (X @ weights + generator.logistic(size=rows) > 0).astype(float)))
    return shards


def fit(schedule, seed=0, **settings):
    return pt.fit(MODEL, make_shards(), schedule=schedule, seed=seed, **settings)


def send(board, sites):
    """Hand out tasks, as the loop does."""
    board.flights.update({site: Flight(Task(site, board.version, PRIOR, PRIOR, {})) for site in sites})
    board.sent(sites)


def take_back(board, site, change):
    del board.flights[site]
    board.returned([site], board.version + 1, change)


def played(schedule, sites=SITES, seed=0, change=lambda site, visits: 1.0):
    """What a schedule asks for when everybody answers at once."""
    board, visits, asked = Board(sites, seed), Counter(), []
    for chosen in schedule.plan(board):
        send(board, chosen)
        visits.update(chosen)
        asked.append(chosen)
        for site in chosen:
            take_back(board, site, change(site, visits[site]))
    return asked


def flat(asked):
    return [site for chosen in asked for site in chosen]


def without_timings(history):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


def test_sequential_can_begin_with_all_at_once():
    asked = played(Sequential(passes=3, together=True))
    assert asked == [[0, 1, 2, 3], [0], [1], [2], [3], [0], [1], [2], [3]]
    assert Sequential(passes=3, together=True).total(SITES) == len(flat(asked))


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("sites", [1, 2, 7])
def test_the_plan_asks_as_often_as_it_says(name, sites):
    schedule = REGISTRY[name]()
    assert len(flat(played(schedule, sites))) == schedule.total(sites)


def test_sequential_goes_round_in_order():
    assert played(Sequential(passes=3)) == [[0], [1], [2], [3]] * 3


def test_one_pass_asks_each_site_once():
    assert played(OnePass()) == [[0], [1], [2], [3]]
    # Two tasks, then their memories; and two tasks of which only the first has one.
    assert played(Rehearsal(tasks=2)) == [[0], [2], [1], [2], [3]]
    assert played(Rehearsal(tasks=2, passes=2)) == [[0], [2], [2], [1], [2], [3], [2], [3]]
    assert played(Rehearsal(tasks=3)) == [[0], [3], [1], [3], [2], [3]]


def test_random_order_asks_each_site_once_a_pass():
    order = flat(played(RandomOrder(passes=20), sites=7))
    passes = [tuple(order[i : i + 7]) for i in range(0, 140, 7)]
    assert all(sorted(one) == list(range(7)) for one in passes)
    assert len(set(passes)) > 10


@pytest.mark.parametrize("schedule", [RandomOrder(passes=5), Synchronous(rounds=9, participation=0.5)])
def test_random_choices_depend_on_the_seed_alone(schedule):
    assert played(schedule, 8, seed=3) == played(schedule, 8, seed=3)
    assert played(schedule, 8, seed=3) != played(schedule, 8, seed=4)


def test_priority_goes_back_to_the_site_that_changes_most():
    order = flat(played(Priority(updates=200), change=lambda site, _: 10.0 if site == 2 else 1.0))
    counts = Counter(order)
    assert order[:SITES] == [0, 1, 2, 3]
    assert counts[2] > 1.5 * max(counts[site] for site in (0, 1, 3))


@pytest.mark.parametrize("small", [1e-2, 0.0, -1e-17])
def test_priority_starves_nobody(small):
    """Not even a site whose first visit changed nothing: it may have been held back."""
    order = flat(played(Priority(updates=2000), change=lambda site, _: small if site == 1 else 1e-1))
    assert set(order[SITES:]) == {0, 1, 2, 3}


def test_priority_goes_round_when_nothing_changes_any_more():
    order = flat(played(Priority(updates=40), change=lambda *_: 0.0))
    assert min(Counter(order)[site] for site in range(SITES)) > 1


@pytest.mark.parametrize(
    ("share", "sites", "number"), [(1.0, 7, 7), (0.5, 8, 4), (0.3, 10, 3), (0.01, 10, 1), (0.99, 4, 4)]
)
def test_synchronous_asks_that_share_each_round(share, sites, number):
    asked = played(Synchronous(rounds=30, participation=share), sites)
    assert [len(set(chosen)) for chosen in asked] == [number] * 30
    assert all(chosen == sorted(chosen) for chosen in asked)
    assert set(flat(asked)) == set(range(sites))


def test_asynchronous_asks_whoever_is_idle_and_waits_otherwise():
    board = Board(3)
    plan = Asynchronous(updates=5).plan(board)
    send(board, first := next(plan))
    assert first == [0, 1, 2]
    assert next(plan) == []
    take_back(board, 1, 0.5)
    assert next(plan) == [1]


@pytest.mark.parametrize("bound", [1, 2, 3, 10])
@pytest.mark.parametrize("seed", range(5))
def test_asynchronous_keeps_its_bound_whoever_comes_back_first(bound, seed):
    """The adversary returns any outstanding site, mostly the newest."""
    generator, board, stale, asked = np.random.default_rng(seed), Board(6), [], 0
    plan, planned = Asynchronous(updates=200, max_staleness=bound).plan(board), True
    while planned or board.flights:
        chosen = next(plan, None) if planned else []
        planned = chosen is not None
        send(board, chosen or [])
        asked += len(chosen or [])
        if not board.flights:
            continue
        site = list(board.flights.versions)[-1 if generator.random() < 0.8 else 0]
        stale.append(board.version - board.flights.versions[site])
        take_back(board, site, 1.0)
    assert asked == len(stale) == 200
    assert max(stale) <= bound


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3", np.nan])
@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        (Sequential, "passes"),
        (RandomOrder, "passes"),
        (Priority, "updates"),
        (Synchronous, "rounds"),
        (Asynchronous, "updates"),
        (Asynchronous, "max_staleness"),
    ],
)
def test_budgets_are_whole_numbers_of_at_least_one(schedule, name, wrong):
    with pytest.raises(InputError, match=name):
        schedule(**{name: wrong})


@pytest.mark.parametrize("wrong", [0, -0.5, 1.5, np.nan, "half", None])
def test_participation_is_a_share(wrong):
    with pytest.raises(InputError, match="participation"):
        Synchronous(participation=wrong)


@pytest.mark.parametrize(
    ("schedule", "sites"),
    [
        (Sequential(passes=2), [0, 1, 2, 3] * 2),
        (OnePass(), [0, 1, 2, 3]),
        (Rehearsal(tasks=2), [0, 2, 1, 2, 3]),
        (RandomOrder(passes=3), flat(played(RandomOrder(passes=3), seed=5))),
    ],
)
def test_fit_follows_the_plan(schedule, sites):
    history = fit(schedule, seed=5).history
    assert [row["site"] for row in history] == sites
    assert [row["version"] for row in history] == list(range(1, len(sites) + 1))
    assert {row["staleness"] for row in history} == {0}


def test_fit_folds_a_round_at_once():
    history = fit(Synchronous(rounds=6, participation=0.5)).history
    assert [(row["sites"], row["version"]) for row in history] == [(2, 2 * i) for i in range(1, 7)]


def test_fit_visits_by_priority():
    counts = Counter(row["site"] for row in fit(Priority(updates=30)).history)
    assert sum(counts.values()) == 30
    assert set(counts) == {0, 1, 2, 3}


def async_history(max_staleness=None, speeds=(100.0, 7.0, 3.0, 1.0), updates=60, seed=0):
    engine = pt.engines.InProcess(speeds=list(speeds))
    return fit(Asynchronous(updates, max_staleness), seed, engine=engine).history


@pytest.mark.parametrize("bound", [1, 3, 8])
def test_staleness_stays_within_its_bound_however_unequal_the_speeds(bound):
    history = async_history(bound)
    assert len(history) == history[-1]["version"] == 60
    assert max(row["staleness"] for row in history) == bound


def test_staleness_grows_without_a_bound():
    history = async_history()
    assert len(history) == history[-1]["version"] == 60
    assert max(row["staleness"] for row in history) > 20


def test_faster_sites_contribute_more_often():
    counts = Counter(row["site"] for row in async_history(speeds=(8, 4, 2, 1)))
    assert counts[0] > counts[1] > counts[2] > counts[3] > 0
    assert counts[0] / counts[3] == pytest.approx(8, rel=0.25)


def test_the_clock_tells_when_each_update_was_done():
    history = async_history(speeds=(4, 2, 1, 0.5), updates=10)
    clocks = [row["clock"] for row in history]
    assert clocks == sorted(clocks)
    assert clocks[0] == 0.25


@pytest.mark.parametrize("speeds", [[1.0], [1, 1, 1, 0], [1, 1, 1, -1], [1, 1, 1, np.inf], [1, 1, 1, np.nan]])
def test_speeds_are_positive_one_per_site(speeds):
    with pytest.raises(InputError, match="speeds"):
        async_history(speeds=speeds)


@pytest.mark.parametrize(
    "schedule",
    [
        Sequential(passes=2),
        RandomOrder(passes=2),
        Priority(updates=9),
        Synchronous(rounds=4, participation=0.5),
        Asynchronous(updates=15, max_staleness=3),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_same_seed_same_history(schedule):
    engine = {"engine": pt.engines.InProcess(speeds=[9.0, 1.0, 3.0, 2.0])}
    first, second = fit(schedule, seed=7, **engine), fit(schedule, seed=7, **engine)
    assert without_timings(first.history) == without_timings(second.history)
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("wrong", [0, 1.5, -0.1, np.nan, np.inf, "foo", "0.5", True, None])
def test_damping_is_a_share(wrong):
    with pytest.raises(InputError, match="damping"):
        fit(Sequential(passes=1), damping=wrong)


CHANGE = MeanField(np.array([[1.0, 2.0]]), np.array([[4.0, 8.0]]))
PROPOSAL = Proposal([0], CHANGE, CHANGE**0, PRIOR, PRIOR)


def share_of(policy):
    """What a policy takes of a change, which is also what it says that it took."""
    taken = policy.apply(PROPOSAL).changes
    assert taken.precision == pytest.approx(policy.share * CHANGE.precision)
    policy.after_fold(1.0)
    return policy.share


@pytest.mark.parametrize(
    ("damping", "parallel", "share"),
    [
        (0.3, True, 0.3),
        (1, False, 1.0),
        ("1/M", True, 0.2),
        ("1/M", False, 0.2),
        ("auto", True, 0.2),
        ("auto", False, 1),
    ],
)
def test_what_a_policy_asks_for_at_the_start(damping, parallel, share):
    assert share_of(as_damping(damping).init(Setup(5, parallel))) == share


def test_a_policy_is_taken_as_it_is():
    assert as_damping(policy := Fixed(0.5)) is policy


def test_automatic_damping_grows_and_shrinks_with_the_free_energy():
    """Slower again after the first fall, and slower all along where falls are noticed late."""
    policy, shares = Auto().init(Setup(10, True)), []
    for free_energy in (-100.0, -50.0, -40.0, -60.0, -55.0, -57.0):
        policy.observe(FreeEnergy(free_energy, 0.5))
        shares.append(share_of(policy))
    grow, regrow = 1.5**0.5, 1.1**0.5
    factors = np.cumprod([0.1, grow, grow, 0.5, regrow, 0.5])
    assert shares == pytest.approx(factors)


def test_automatic_damping_forgives_a_fall_within_the_uncertainty():
    policy = Auto().init(Setup(10, True))
    policy.observe(FreeEnergy(-10.0, 0.0))
    policy.observe(FreeEnergy(-11.0, 4.0))
    assert share_of(policy) == pytest.approx(0.1 * 1.5**0.5)


@pytest.mark.parametrize("falls", [1, 2, 3])
def test_a_step_that_certainly_did_harm_is_taken_back_to_the_new_share(falls):
    policy = Auto().init(Setup(4, True))
    policy.observe(FreeEnergy(-10.0, 0.0))
    kept = policy.apply(PROPOSAL).changes
    policy.after_fold(0.8)
    kept = kept**0.8
    for _ in range(falls):
        policy.observe(FreeEnergy(-20.0, 0.0))
        kept = kept * policy.apply(PROPOSAL).changes
        policy.after_fold(1.0)
    assert kept.precision == pytest.approx(0.8 * 0.25 * 0.5**falls * CHANGE.precision)
    policy.observe(FreeEnergy(-9.0, 0.0))
    assert share_of(policy) == pytest.approx(0.25 * 0.5**falls * 1.1)


@pytest.mark.parametrize(("step", "limit"), [(1.0, 1.0), (-1.0, 1e-3)])
def test_automatic_damping_has_limits(step, limit):
    policy = Auto().init(Setup(10, True))
    for number in range(50):
        policy.observe(FreeEnergy(step * number, 0.1))
    assert share_of(policy) == limit


def test_beginning_a_run_forgets_the_last_one():
    policy = Auto()
    first = policy.init(Setup(2, True))
    for number in range(9):
        first.observe(FreeEnergy(float(number), 0.0))
    again = policy.init(Setup(4, True))
    again.observe(FreeEnergy(-100.0, 0.0))
    assert (share_of(first), share_of(again)) == (1.0, 0.25)


@pytest.mark.parametrize(("damping", "share"), [(0.3, 0.3), ("1/M", 1 / SITES), (Fixed(0.6), 0.6)])
def test_the_history_says_what_was_wanted_and_taken(damping, share):
    history = fit(Synchronous(rounds=3), damping=damping).history
    assert [row["wanted"] for row in history] == pytest.approx([share] * 3)
    assert [row["accepted"] for row in history] == pytest.approx([share] * 3)
    assert not any(row["damped"] for row in history)


def test_automatic_damping_in_a_run():
    wanted = [row["wanted"] for row in fit(Synchronous(rounds=5)).history]
    assert wanted == pytest.approx([0.25, 0.375, 0.5625, 0.84375, 1.0])
    assert {row["wanted"] for row in fit(Sequential(passes=2)).history} == {1.0}


def test_the_history_says_what_the_ledger_held_back():
    """Undamped rounds over sites that disagree would make cavities improper."""
    model = pt.Model(
        pt.families.MeanField(np.zeros(1), np.ones(1)),
        lambda theta, y: 3.0 * y * theta[0] ** 2 - theta[0] ** 4,
    )
    rows = [np.ones(1), np.ones(1), -np.ones(1), -np.ones(1)]
    expectation = pt.expectations.MonteCarlo(64)
    history = pt.fit(model, rows, schedule=Synchronous(rounds=4), damping=1.0, expectation=expectation).history
    damped = [row for row in history if row["damped"]]
    assert damped
    assert all(0 <= row["accepted"] < row["wanted"] == 1 for row in damped)


@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_one_pass_solves_each_local_problem(posterior):
    """One row, then a hundred: what many rounds over each batch find, and so does scikit-learn over all rows."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(401, 3))
    y = (X @ [2.0, -1.0, 0.5] + 0.5 * generator.normal(size=401) > 0).astype(int)
    settings = {"standardise": False, "posterior": posterior}
    once = pt.PartitionedClassifier(schedule=OnePass(), **settings)
    often = pt.PartitionedClassifier(schedule=Synchronous(rounds=100), **settings)
    for model in (once, often):
        model.partial_fit(X[:1], y[:1], classes=[0, 1])
        model.partial_fit(X[1:101], y[1:101])
    np.testing.assert_allclose(once.coef_, often.coef_, rtol=1e-3)
    assert once.log_evidence_ == pytest.approx(often.log_evidence_, abs=1e-3)
    reference = LogisticRegression().fit(X[:101], y[:101]).score(X[101:], y[101:])
    assert once.score(X[101:], y[101:]) == pytest.approx(reference, abs=0.02)


def test_one_pass_of_a_network_solves_too():
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    model = pt.PartitionedClassifier([5], schedule=OnePass())
    model.partial_fit(X[order[:60]], y[order[:60]]).partial_fit(X[order[60:120]], y[order[60:120]])
    assert model.score(X[order[120:]], y[order[120:]]) > 0.9


def test_a_stream_is_solved_batch_by_batch_without_rounds():
    shards = make_shards(2)
    linear = pt.models.LinearRegression(features=2, noise=1.0)
    state = linear
    for shard in shards:
        state = pt.partial_fit(state, shard)
    assert len(state.history) == 2
    rounds = pt.fit(linear, shards, schedule=Synchronous(rounds=20), damping=1.0)
    np.testing.assert_allclose(state.posterior.location, rounds.posterior.location, rtol=1e-8)
    assert state.log_evidence == pytest.approx(rounds.log_evidence, rel=1e-8)
    assert len(pt.PartitionedClassifier().partial_fit(*shards[0]).history_) <= 4


@pytest.mark.parametrize("name", REGISTRY)
def test_schedules_are_stored_as_plain_values(name):
    schedule = REGISTRY[name]()
    assert from_settings(to_settings(schedule)) == schedule
    assert to_settings(None) is None
