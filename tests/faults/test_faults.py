"""What the server promises when things go wrong, by number: duplicates, lost answers, kills, bad disks, bad sites."""

import dataclasses
import os
import queue
import re
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

import partita as pt
from partita.errors import CorruptStorage, InputError, MalformedMessage, MalformedUpdate, Stalled, StorageError
from partita.families import Gaussian, MeanField
from partita.fitting import events
from partita.models import prior_of
from partita.server.ledger import Ledger
from partita.server.rules.limits import Limits
from partita.server.schedules import Asynchronous, Sequential, Synchronous
from partita.studies.faults.chaos import Chaos
from partita.wire.messages import HEADER, Notice, decode_task, decode_update, encode_task, encode_update
from partita.wire.tasks import Task, Update

# For tests in which a site is quarantined, which they look for in results, events and journals.
EXPECTS_QUARANTINE = pytest.mark.filterwarnings("ignore::partita.errors.QuarantineWarning")

ROOT = Path(__file__).parents[2]
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 2))
Y = (X[:, 0] + 0.5 * GENERATOR.normal(size=40) > 0).astype(float)
SHARDS = [(X[i::4], Y[i::4]) for i in range(4)]
MODEL = pt.models.LogisticRegression(features=2)
ROUNDS = Synchronous(rounds=6)


def fit(engine=None, schedule=ROUNDS, shards=SHARDS, **others):
    return pt.fit(MODEL, shards, schedule=schedule, engine=engine or pt.engines.InProcess(), **others)


CLEAN = fit().fingerprint


class Piped(pt.engines.InProcess):
    """Arrivals are whatever somebody puts into a queue."""

    def open(self, job, shards):
        super().open(job, shards)
        self.tasks, self.arrivals, self.waiting = {}, queue.Queue(), threading.Event()

    def submit(self, tasks, at):
        self.tasks.update({task.site: task for task in tasks})

    def collect(self):
        self.waiting.set()
        arrival = self.arrivals.get(timeout=60)
        if arrival is None:
            raise KeyboardInterrupt
        return [arrival]

    def answer(self, site):
        return self._worker.refine([self.tasks[site]])[0]


class Deliveries(RuleBasedStateMachine):
    """A run whose messages arrive in any order, twice or more, while its server is stopped and resumed."""

    def __init__(self):
        super().__init__()
        self.folder = Path(f"{os.environ['FAULTS_DIR']}/{next(NUMBERS)}")
        self.answers, self.seen = {}, []
        self.start()

    def start(self):
        self.engine, self.result = Piped(), None
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        self.settle()

    def serve(self):
        with suppress(KeyboardInterrupt):
            self.result = fit(self.engine, run_dir=self.folder, resume=True)

    def settle(self):
        """Wait until the server waits for more."""
        while self.thread.is_alive():
            if hasattr(self.engine, "waiting") and self.engine.waiting.wait(0.01) and self.engine.arrivals.empty():
                break

    def put(self, arrival):
        self.engine.waiting.clear()
        self.engine.arrivals.put(arrival)
        self.settle()

    def alive(self):
        return self.thread.is_alive()

    @precondition(alive)
    @rule(site=st.integers(0, 3))
    def deliver(self, site):
        if site in self.engine.tasks:
            key = (site, self.engine.tasks[site].version)
            if key not in self.answers:
                self.answers[key] = self.engine.answer(site)
            self.seen.append(self.answers[key])
            self.put(self.answers[key])

    @precondition(lambda self: self.alive() and self.seen)
    @rule(data=st.data())
    def deliver_again(self, data):
        self.put(data.draw(st.sampled_from(self.seen[-10:])))

    @precondition(lambda self: not self.alive())
    @rule()
    def rest(self):
        assert self.result.fingerprint == CLEAN

    @precondition(alive)
    @rule()
    def restart(self):
        self.put(None)
        self.thread.join()
        self.start()

    def teardown(self):
        for turn in range(200):
            if not self.alive():
                break
            self.deliver(turn % 4)
        assert self.result.fingerprint == CLEAN


NUMBERS = iter(range(10**9))


def test_01_duplicates_and_any_order_are_applied_once(tmp_path, monkeypatch):
    """The long form takes 10,000 steps: FAULTS_STEPS=10000."""
    monkeypatch.setenv("FAULTS_DIR", str(tmp_path))
    examples = max(1, int(os.environ.get("FAULTS_STEPS", "500")) // 50)
    run_state_machine_as_test(
        Deliveries,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        ),
    )


@pytest.mark.parametrize("seed", range(3))
def test_02_lost_answers_and_retries_change_nothing(seed, tmp_path):
    engine = Chaos(seed=seed, loss=0.3, duplicate=0.3, crash=0.2)
    result = fit(engine, run_dir=tmp_path / "run")
    assert result.fingerprint == CLEAN
    assert sum(row["refused"] for row in result.history) > 0


def test_02_a_retry_gets_the_first_receipt(tmp_path):
    """Also while the first waits for the rest of its round."""
    engine, said = Piped(), []
    thread = threading.Thread(
        target=fit,
        args=(engine, Synchronous(rounds=2)),
        kwargs={"run_dir": tmp_path / "run", "callbacks": [lambda event: said.extend(event.refused)]},
    )
    thread.start()
    while not hasattr(engine, "waiting"):
        pass
    engine.waiting.wait()
    first = [engine.answer(site) for site in range(4)]
    for update in (first[0], first[0], *first[1:]):
        engine.arrivals.put(update)
    while engine.tasks[0].version == 0:
        pass
    engine.arrivals.put(first[2])
    for site in range(4):
        engine.arrivals.put(engine.answer(site))
    thread.join()
    assert said == [
        "site 0: its update came before, and waits",
        "site 2: it was taken before, as number 3",
    ]


def test_03_04_a_server_killed_anywhere_ends_as_if_it_had_not_been():
    """At named places around write, commit and fold; bit-identical. `make soak` has 200 kills."""
    command = [sys.executable, "-m", "partita", "study", "failpoints", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 kills")


def test_04_every_posterior_is_replayed_to_the_last_bit(tmp_path):
    def hashes(resume):
        found = []
        fit(run_dir=tmp_path / "run", resume=resume, callbacks=[lambda e: found.append(_bytes(e.posterior))])
        return found

    assert hashes(False) == hashes(True)


def _bytes(density):
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(density))


def test_05_an_acknowledged_update_that_is_missing_is_named(tmp_path):
    fit(run_dir=tmp_path)
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database, database:
        database.execute("DELETE FROM arrivals WHERE number > 20")
    with pytest.raises(CorruptStorage, match=r"journal\.sqlite: update 24 was acknowledged, and only 20 are there"):
        fit(run_dir=tmp_path, resume=True)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_05_a_torn_log_is_found(tmp_path, share):
    """What was not acknowledged may be missing; the log of a server that was killed, cut short, may not."""
    script = (
        "import os, sys; from tests.faults.test_faults import fit\n"
        "fit(run_dir=sys.argv[1], callbacks=[lambda e: e.fold == 4 and os._exit(0)])"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True)
    log = tmp_path / "journal.sqlite-wal"
    os.truncate(log, int(share * log.stat().st_size))
    with pytest.raises(CorruptStorage, match=r"journal\.sqlite"):
        fit(run_dir=tmp_path, resume=True)


def test_06_a_full_disk_refuses_without_acknowledgement_and_reads_go_on(tmp_path, monkeypatch):
    seen = []

    def full(place):
        if place == "before commit" and len(seen) == 3:
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(pt.server.storage, "failpoint", full)
    with pytest.raises(StorageError, match="full; it was not acknowledged"):
        fit(run_dir=tmp_path, callbacks=[lambda event: seen.append(event.fold)])
    assert len(pt.server.storage.read_history(tmp_path)) == 3
    monkeypatch.undo()
    assert fit(run_dir=tmp_path, resume=True).fingerprint == CLEAN


def test_07_08_sites_that_lose_everything_are_told_their_factors_again():
    assert fit(Chaos(crash=1.0)).fingerprint == CLEAN


@pytest.mark.parametrize("most", [1, 2, 5])
def test_09_stale_updates_are_taken_up_to_a_limit(most):
    engine, said = pt.engines.InProcess(speeds=[1, 3, 10, 30]), []
    schedule = Asynchronous(updates=60)
    result = fit(engine, schedule, limits=Limits(staleness=most), callbacks=[lambda e: said.extend(e.refused)])
    ages = [row["staleness"] for row in result.history]
    assert 0 < max(ages) <= most
    assert said
    assert all(re.match(r"site \d: \d+ updates were folded since it was asked", words) for words in said)
    assert len(result.history) == 60


@pytest.mark.parametrize("size", [-1e3, -1e8, 1e8])
def test_10_no_update_makes_anything_improper(size):
    """One site sends its changes many times too large, or the other way round."""
    engine = Chaos(corrupt={1: lambda update: dataclasses.replace(update, change=update.change**size)})
    run = list(events(MODEL, SHARDS, schedule=Sequential(passes=5), engine=engine, damping=1.0))
    # Where next to nothing of them can be taken, the site is not asked a fourth time.
    assert len(run) >= 18
    assert all(event.posterior.is_proper() for event in run)


WRONG = {
    "nan": lambda change: jax.tree.map(lambda a: a * np.nan, change),
    "infinity": lambda change: jax.tree.map(lambda a: a + np.inf, change),
    "shape": lambda change: jax.tree.map(lambda a: a[:1], change),
    "dtype": lambda change: jax.tree.map(lambda a: a.astype(np.float32), change),
    "family": lambda change: MeanField(change.precision_times_location, np.diag(change.precision)),
    "skew": lambda change: Gaussian(change.precision_times_location, np.triu(change.precision + 1.0)),
}


@EXPECTS_QUARANTINE
@pytest.mark.parametrize("wrong", WRONG)
def test_11_malformed_updates_are_refused_and_the_others_go_on(wrong):
    said = []
    engine = Chaos(corrupt={2: lambda update: dataclasses.replace(update, change=WRONG[wrong](update.change))})
    result = fit(engine, callbacks=[lambda event: said.extend(event.refused)])
    assert len(said) == 1
    assert said[0].startswith("site 2: ")
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(result.factors[2]))
    assert len(result.history) == 6


@EXPECTS_QUARANTINE
def test_12_huge_updates_move_little_and_their_site_is_quarantined():
    engine = Chaos(corrupt={0: lambda update: dataclasses.replace(update, change=update.change**1e9)})
    schedule = Sequential(passes=8)
    result = fit(engine, schedule, limits=Limits(change=5.0), damping=1.0)
    assert max(row["change"] for row in result.history) <= 5.0
    assert [row["site"] for row in result.history].count(0) == 3
    assert result.history[0]["problem"].startswith("site 0: its update goes too far")


def test_12_a_site_can_be_removed():
    """Its factor is divided out, the others refine: as if it had never been there."""
    engine, many = Chaos(), Synchronous(rounds=60)

    def retire(event):
        if event.fold == 20:
            engine.notices.append(Notice(3, "retired"))

    result = fit(engine, many, callbacks=[retire])
    without = fit(schedule=many, shards=SHARDS[:3])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(result.factors[3]))
    np.testing.assert_allclose(result.posterior.location, without.posterior.location, atol=1e-6)
    np.testing.assert_allclose(result.posterior.precision, without.posterior.precision, rtol=1e-6)
    assert result.log_evidence == pytest.approx(without.log_evidence, abs=1e-6)


LIKE = Gaussian.from_moments(np.zeros(3), np.eye(3))
UPDATE = Update(1, 5, LIKE, 1.0, hyper_gradient={"noise": 2.0})
TASK = Task(1, 5, LIKE, LIKE, {"noise": 2.0}, start=LIKE)


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_13_random_bytes_are_refused(payload):
    with pytest.raises(MalformedUpdate, match="site 1"):
        decode_update(1, 5, payload, LIKE)
    with pytest.raises(MalformedMessage):
        decode_task(payload, LIKE)


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(max_examples=200)
def test_13_flipped_bytes_are_refused_or_change_numbers_only(place, mask):
    """A task carries its own digest; an update is checked by the journal's, and by the ledger."""
    payload = bytearray(encode_task(TASK))
    payload[place % len(payload)] ^= mask
    with suppress(MalformedMessage):
        task = decode_task(bytes(payload), LIKE)
        assert _bytes(task.cavity) == _bytes(LIKE)
    payload = bytearray(encode_update(UPDATE))
    payload[place % len(payload)] ^= mask
    with suppress(MalformedUpdate):
        update = decode_update(1, 5, bytes(payload), LIKE)
        assert [np.shape(leaf) for leaf in jax.tree.leaves(update.change)] == [(3,), (3, 3)]


def test_13_oversized_payloads_are_refused_before_they_are_read():
    large = encode_update(dataclasses.replace(UPDATE, change=Gaussian.from_moments(np.zeros(60), np.eye(60))))
    assert len(large) > HEADER
    with pytest.raises(MalformedUpdate, match="at most"):
        decode_update(1, 5, large, LIKE)
    with pytest.raises(MalformedUpdate, match="header"):
        decode_update(1, 5, (2**40).to_bytes(8, "little") + b"{}", LIKE)


def test_13_what_is_written_is_read():
    update = decode_update(1, 5, encode_update(UPDATE), LIKE)
    assert _bytes(update.change) == _bytes(LIKE)
    assert dataclasses.replace(update, change=LIKE) == UPDATE
    task = decode_task(encode_task(TASK), LIKE)
    assert _bytes((task.cavity, task.factor, task.start)) == _bytes((LIKE, LIKE, LIKE))
    assert (task.site, task.version, task.hyper, task.anchor) == (1, 5, {"noise": 2.0}, None)


NETWORK = pt.models.Network([30, 40, 2])


def test_13_a_network_costs_one_density_each_way():
    prior = prior_of(NETWORK, NETWORK.hyper)
    (task,) = Ledger(prior, 2).dispatch([1], NETWORK.hyper, NETWORK.start, message_only=True)
    sizes = [len(encode_task(task)), len(encode_update(Update(1, 0, prior, 0.0)))]
    assert max(sizes) <= prior.nbytes + 4096
    assert task.nbytes <= prior.nbytes + 8 * len(NETWORK.hyper)
    there = decode_task(encode_task(task), prior)
    assert there.message_only
    assert _bytes(there.start) == _bytes(task.start)
    halves = [len(encode_task(task, "float16")), len(encode_update(Update(1, 0, prior, 0.0), "float16"))]
    assert max(halves) <= prior.nbytes / 2 + 4096


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=3, max_size=3))
def test_13_compression_keeps_three_digits(numbers):
    change = MeanField(np.array(numbers, np.float32), np.abs(np.array(numbers, np.float32)))
    payload = encode_update(Update(0, 0, change, 0.0), "float16")
    for a, b in zip(jax.tree.leaves(decode_update(0, 0, payload, change).change), jax.tree.leaves(change), strict=True):
        np.testing.assert_allclose(a, b, rtol=5e-4, atol=1e-8 * np.max(np.abs(b), initial=0))


def test_01_messages_only_survive_the_same_faults():
    """Networks answer with messages; the server makes changes of them, whatever happened on the way."""
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(60, 30)).astype(np.float32)
    shards = [(inputs[i::3], (inputs[i::3, 0] > 0).astype(int)) for i in range(3)]
    runs = [
        pt.fit(NETWORK, shards, schedule=ROUNDS, engine=engine).fingerprint
        for engine in (pt.engines.InProcess(), Chaos(seed=1, loss=0.3, duplicate=0.3, crash=0.3))
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("schedule", [Synchronous(rounds=8), Sequential(passes=8), Asynchronous(updates=32)])
def test_15_the_rest_go_on_without_a_site_that_never_returns(schedule):
    engine = Chaos(leave=0.2, never_back=frozenset({1}))
    result = fit(engine, schedule)
    assert np.isfinite(result.posterior.location).all()
    assert result.posterior.is_proper()
    assert {row["site"] for row in result.history[-4:]} & {0, 2, 3, None}


def test_15_when_all_sites_die_it_says_so(tmp_path):
    with pytest.raises(Stalled, match="nobody"):
        fit(Chaos(leave=1.0, never_back=frozenset(range(4))), run_dir=tmp_path)
    assert fit(run_dir=tmp_path, resume=True).posterior.is_proper()


@pytest.mark.slow
@dataclasses.dataclass
class Telling(pt.engines.InProcess):
    """Everything that is to be told comes at once, in the second round."""

    told: tuple[Notice, ...] = ()

    def open(self, job, shards):
        super().open(job, shards)
        self.looks = 0

    def collect(self):
        self.looks += 1
        return list(self.told) if self.looks == 2 else super().collect()


def test_15_notices_that_come_together_are_all_heard(tmp_path):
    away = Telling(told=(Notice(0, "away"), Notice(0, "back")))
    there = fit(None, Synchronous(rounds=30)).posterior.location
    np.testing.assert_allclose(fit(away, Synchronous(rounds=30)).posterior.location, there, rtol=1e-6)
    retired = Telling(told=(Notice(3, "retired"), Notice(3, "away"), Notice(3, "readmitted")))
    settings = {"schedule": Synchronous(rounds=30), "run_dir": tmp_path}
    three = fit(None, Synchronous(rounds=30), shards=SHARDS[:3]).posterior.location
    result = fit(retired, **settings)
    np.testing.assert_allclose(result.posterior.location, three, rtol=1e-6)
    assert fit(resume=True, **settings).fingerprint == result.fingerprint


def test_15_what_needs_no_answer_changes_nothing(tmp_path):
    """A site that works is readmitted, or said to be back: the run goes on as if nobody had said so, also on resume."""
    for number, kind in enumerate(("readmitted", "back")):
        settings = {"run_dir": tmp_path / str(number)}
        assert fit(Telling(told=(Notice(1, kind),)), **settings).fingerprint == CLEAN
        assert fit(resume=True, **settings).fingerprint == CLEAN


@EXPECTS_QUARANTINE
def test_11_numbers_that_nobody_can_have_meant_are_refused():
    for wrong in ({"outcome": 99}, {"outcome": -1}, {"steps": -3}):
        with pytest.raises(MalformedUpdate, match="cannot be read"):
            decode_update(1, 5, encode_update(dataclasses.replace(UPDATE, **wrong)), LIKE)
    corrupt = {1: lambda update: dataclasses.replace(update, hyper_gradient={})}
    result = fit(Chaos(corrupt=corrupt), hyper=pt.LearnHyper())
    assert all(np.isfinite(value) for value in result.hyper.values())
    assert sum(row["refused"] for row in result.history) == 1


def test_15_automatic_damping_grows_although_somebody_never_came():
    """And does not take the first report of a site that joins for a fall."""
    away = Chaos(notices=[Notice(3, "away")], never_back=frozenset([3]))
    result = fit(away, Synchronous(rounds=30), damping="auto")
    three = fit(None, Synchronous(rounds=30), shards=SHARDS[:3], damping="auto")
    np.testing.assert_allclose(result.posterior.location, three.posterior.location, rtol=1e-6)
    late = Chaos(notices=[Notice(3, "away"), *[Notice(3, "dropped")] * 12, Notice(3, "back")])
    joined = fit(late, Synchronous(rounds=30), damping="auto")
    assert not any(row["taken_back"] for row in joined.history)
    np.testing.assert_allclose(
        joined.posterior.location, fit(None, Synchronous(rounds=30)).posterior.location, rtol=1e-6
    )


def test_16_many_sites_that_come_and_go_and_a_server_that_stops(tmp_path):
    """One run of 150 updates; `make soak` has a hundred of 300."""
    command = [sys.executable, "-m", "partita", "study", "soak", "1", "150"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 complete" in done.stdout


def test_limits_are_checked():
    with pytest.raises(InputError, match="limits: change"):
        Limits(change=0.0)
    with pytest.raises(InputError, match="limits: expected"):
        fit(limits=3)


def test_retiring_takes_what_leaves_every_cavity_proper():
    """Where another cavity would become improper, the rest goes after later folds."""
    ledger = Ledger(Gaussian.from_moments(np.zeros(1), np.eye(1)), 2)
    for site, precision in ((0, 5.0), (1, -4.0)):
        task = ledger.dispatch([site], {})[0]
        ledger.fold([Update(site, task.version, Gaussian(np.ones(1), np.full((1, 1), precision)), 0.0)])
    share = ledger.retire(0)
    assert 0 < share < 1
    assert ledger.leaving == {0}
    assert ledger.cavity(1).is_proper()
    task = ledger.dispatch([1], {})[0]
    ledger.fold([Update(1, task.version, Gaussian(np.ones(1), np.full((1, 1), 6.0)), 0.0)])
    assert not ledger.leaving
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(ledger.factor(0)))
