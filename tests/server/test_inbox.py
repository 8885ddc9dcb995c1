"""What becomes of all that engines deliver: each update counts once, and nothing that nobody asked for counts."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import partita as pt
from partita.engines import InProcess
from partita.errors import EngineError, Stalled
from partita.server.inbox import FRUITLESS, IDLE
from partita.wire.messages import Notice

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 2))
Y = X @ [1.0, -1.0] + 0.3 * GENERATOR.normal(size=60)
SHARDS = [(X[site::3], Y[site::3]) for site in range(3)]
ROUNDS = 3


def run(engine, schedule=None, **settings):
    """All events of a small run."""
    model = pt.models.LinearRegression(features=2, noise=0.5)
    schedule = schedule or pt.schedules.Synchronous(rounds=ROUNDS)
    return list(pt.events(model, SHARDS, schedule=schedule, engine=engine, **settings))


def assert_same(events, others):
    for one, other in zip(events, others, strict=True):
        assert np.array_equal(one.posterior.location, other.posterior.location)
        assert np.array_equal(one.posterior.precision, other.posterior.precision)


@dataclass
class Changed(InProcess):
    """An engine that delivers something else than what sites have sent: what `change` makes of it."""

    change: object = None

    def collect(self):
        return self.change(super().collect())


def test_updates_that_come_twice_count_once():
    twice = run(Changed(change=lambda arrivals: [*arrivals, *arrivals]))
    assert_same(twice, run(InProcess()))
    words = [word for event in twice for word in event.refused]
    assert len(words) == 3 * ROUNDS
    assert all("its update came before, and waits" in word for word in words)


def test_updates_of_earlier_tasks_are_refused_with_the_number_they_were_taken_as(tmp_path):
    kept = []

    def again(arrivals):
        kept.append(arrivals[0])
        return [*(kept[:1] if len(kept) > 1 else []), *arrivals]

    repeated = run(Changed(change=again), run_dir=tmp_path)
    assert_same(repeated, run(InProcess()))
    assert [word for event in repeated for word in event.refused] == ["site 0: it was taken before, as number 1"] * 2


def test_updates_of_other_shapes_quarantine_their_site_and_harm_nobody_else():
    def spoil(arrivals):
        return [
            replace(update, change=type(update.change)(np.zeros(7), np.zeros((7, 7)))) if update.site == 1 else update
            for update in arrivals
        ]

    events = run(Changed(change=spoil), damping=1.0)
    assert any("site 1" in word for event in events for word in event.refused)
    assert events[-1].posterior.is_proper()
    others = pt.fit(
        pt.models.LinearRegression(features=2, noise=0.5),
        [SHARDS[0], SHARDS[2]],
        schedule=pt.schedules.Synchronous(rounds=1),
        damping=1.0,
    )
    np.testing.assert_allclose(events[-1].posterior.location, others.posterior.location, rtol=1e-6)


def test_an_engine_that_has_nothing_to_say_stalls_the_run():
    with pytest.raises(Stalled, match="nobody is working"):
        run(Changed(change=lambda arrivals: []))


def test_sites_that_come_and_go_and_never_answer_do_not_keep_a_run_going_for_ever():
    seen = []

    def away(arrivals):
        seen.extend(arrivals)
        return [notice for update in arrivals for notice in (Notice(update.site, "away"), Notice(update.site, "back"))]

    with pytest.raises(Stalled, match=r"tasks in a row came to nothing, the last one of site \d .away.*can be resumed"):
        run(Changed(change=away), pt.schedules.Asynchronous(updates=30))
    assert len(seen) == FRUITLESS * len(SHARDS) + 1


@pytest.mark.parametrize("kind", ["back", "struck", "readmitted"])
def test_idle_talk_does_not_keep_a_run_going_for_ever(kind):
    talk = Changed(change=lambda arrivals: arrivals)
    talk.collect = lambda: [Notice(1, kind)]
    with pytest.raises(Stalled, match=f"{IDLE * len(SHARDS) + 1} messages in a row brought no update.*site 1.*{kind}"):
        run(talk)


def test_updates_that_nobody_can_take_do_not_keep_a_run_going_for_ever():
    kept = []

    def again(arrivals):
        kept.extend(arrivals)
        return [replace(update, version=7) for update in kept[:1]]

    engine = Changed(change=again)
    engine.collect = lambda collect=engine.collect: again(collect() if not kept else [])
    with pytest.raises(Stalled, match="messages in a row brought no update.*an update that is refused"):
        run(engine)


@pytest.mark.parametrize("site", [-1, 3])
@pytest.mark.parametrize("names", [None, ["a", "b", "c"]])
def test_updates_of_sites_that_are_not_there_are_refused(site, names):
    events = run(Changed(change=lambda arrivals: [replace(arrivals[0], site=site), *arrivals]), names=names)
    assert_same(events, run(InProcess()))
    assert events[0].refused == (f"site {site}: there is no such site: there are 0 to 2",)


@pytest.mark.parametrize("site", ["north", None, [1], 0.5])
def test_updates_of_sites_that_are_no_numbers_are_errors_of_the_engine(site):
    with pytest.raises(EngineError, match="the engine gave an update of site .*: sites are numbers"):
        run(Changed(change=lambda arrivals: [replace(arrivals[0], site=site), *arrivals]))


def test_what_is_neither_an_update_nor_a_notice_is_an_error_of_the_engine():
    with pytest.raises(EngineError, match="the engine gave NoneType where updates and notices"):
        run(Changed(change=lambda arrivals: [None]))


def test_what_was_delivered_before_a_resume_is_not_asked_for_again(tmp_path):
    asked = []

    @dataclass
    class Counting(InProcess):
        def submit(self, tasks, at):
            asked.append(len(tasks))
            super().submit(tasks, at)

    whole = run(Counting(), run_dir=tmp_path)
    assert sum(asked) == 3 * ROUNDS
    asked.clear()
    again = run(Counting(), run_dir=tmp_path, resume=True)
    assert sum(asked) == 0
    assert all(event.replayed for event in again)
    assert_same(again, whole)


@pytest.mark.parametrize("kind", ["retired", "away", "back"])
def test_a_notice_behind_the_last_update_takes_effect_and_the_run_can_be_resumed(tmp_path, kind):
    rounds = []

    def add_notice(arrivals):
        rounds.append(None)
        return [*arrivals, Notice(0, kind)] if len(rounds) == ROUNDS else arrivals

    def fit(engine, resume=False):
        model = pt.models.LinearRegression(features=2, noise=0.5)
        schedule = pt.schedules.Synchronous(rounds=ROUNDS)
        return pt.fit(model, SHARDS, schedule=schedule, engine=engine, run_dir=tmp_path, resume=resume)

    result = fit(Changed(change=add_notice))
    assert (not np.any(result.factors[0].precision)) == (kind == "retired")
    assert fit(InProcess(), resume=True).fingerprint == result.fingerprint


@pytest.mark.parametrize("notice", [Notice(3, "away"), Notice(-1, "away"), Notice(0, "gone")])
def test_a_notice_that_no_journal_could_hold_is_the_engines_mistake(tmp_path, notice):
    with pytest.raises(EngineError, match=f"notice of kind '{notice.kind}' for site {notice.site}"):
        run(Changed(change=lambda arrivals: [notice, *arrivals]), run_dir=tmp_path)
