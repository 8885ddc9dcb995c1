"""A site that is quarantined: who is told, what its data count for, and when the run is finished."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.engines import InProcess
from partita.errors import QuarantineWarning
from partita.report.follower import Follower
from partita.server.storage import read_finished, read_history
from partita.studies.faults.chaos import Chaos
from partita.wire.messages import Notice
from partita.wire.questions import EvaluateAnswer

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 2))
Y = X @ [1.0, -1.0] + 0.3 * GENERATOR.normal(size=60)
SHARDS = [(X[site::3], Y[site::3]) for site in range(3)]
MODEL = pt.models.LinearRegression(features=2, noise=0.5)


@dataclass
class Spoilt(InProcess):
    """The second site answers with updates of another shape, from some version on."""

    since: int = 0

    def collect(self):
        return [
            replace(update, change=type(update.change)(np.zeros(7), np.zeros((7, 7))))
            if update.site == 1 and update.version >= self.since
            else update
            for update in super().collect()
        ]


def fit(since=0, shards=SHARDS, engine=None, rounds=3, damping=1.0, **settings):
    engine = Spoilt(since=since) if engine is None else engine
    schedule = pt.schedules.Synchronous(rounds=rounds)
    return pt.fit(MODEL, shards, schedule=schedule, damping=damping, engine=engine, **settings)


def test_whoever_fits_is_told_once_and_the_result_and_its_file_know(tmp_path):
    with pytest.warns(
        QuarantineWarning, match="site b was quarantined, and the run went on without it: .*shape"
    ) as told:
        found = fit(names=["a", "b", "c"])
    assert len(told) == 1
    assert list(found.quarantined) == [1]
    assert found.history[0]["problem"].startswith("site b: quarantined: ")
    found.save(tmp_path / "found.safetensors")
    assert pt.load(tmp_path / "found.safetensors").quarantined == found.quarantined


@pytest.mark.filterwarnings("ignore::partita.errors.QuarantineWarning")
def test_the_evidence_is_that_of_the_data_in_the_posterior():
    """All data, if the site has contributed before; those of the others, if it never has."""
    others = fit(shards=[SHARDS[0], SHARDS[2]], engine=InProcess())
    without, late, plain = fit(), fit(since=3), fit(engine=InProcess())
    assert without.log_evidence == pytest.approx(others.log_evidence, abs=1e-9)
    assert without.expected_log_probs[1] == 0.0
    assert late.log_evidence == pytest.approx(plain.log_evidence, abs=1e-9)


@pytest.mark.filterwarnings("ignore::partita.errors.QuarantineWarning")
def test_a_run_that_has_ended_is_finished_whoever_was_missing(tmp_path):
    fit(run_dir=tmp_path)
    follower = Follower(tmp_path)
    follower.read()
    assert follower.last["version"] < follower.last["total"]
    assert follower.is_finished
    assert follower.state()["words"] == "Finished: round 2."
    assert follower.report().words == "Finished."
    shown = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert shown.exit_code == 0
    assert "Not finished" not in shown.output
    assert read_finished(tmp_path) == 3
    # With more rounds the same run goes on, and ends later: until then it is not finished.
    seen = []

    def look(event):
        follower.read()
        seen.append((event.replayed, follower.is_finished))

    fit(run_dir=tmp_path, resume=True, rounds=5, callbacks=[look])
    assert seen == [(True, False)] * 3 + [(False, False)] * 2
    assert read_finished(tmp_path) == 5
    follower.read()
    assert follower.is_finished


def test_whoever_reads_between_two_folds_waits_for_the_last(tmp_path, monkeypatch):
    """Rows are read first, then whether the run has ended: it may end in between, one fold later."""
    fit(engine=InProcess(), run_dir=tmp_path)
    follower = Follower(tmp_path)
    monkeypatch.setattr(follower, "_new_rows", iter([read_history(tmp_path)[:2], []]).__next__)
    follower.read()
    assert follower.last["fold"] == 2
    assert not follower.is_finished
    monkeypatch.undo()
    follower.read()
    assert follower.is_finished


def test_a_run_that_was_stopped_is_not_finished(tmp_path):
    for _ in pt.events(MODEL, SHARDS, schedule=pt.schedules.Synchronous(rounds=5), run_dir=tmp_path):
        break
    follower = Follower(tmp_path)
    follower.read()
    assert read_finished(tmp_path) is None
    assert not follower.is_finished


# How a site lies: what becomes of its updates.
SUNK = {1: lambda update: replace(update, change=update.change**-1e6)}


class Mute(Spoilt):
    """The second site gives no answer that can be used when it is asked for its share of the evidence."""

    value: object = None

    def ask(self, question):
        answers = super().ask(question)
        if isinstance(next(iter(answers.values())), EvaluateAnswer):
            self.asked = list(answers)
            if 1 in answers:
                answers[1] = self.value
        return answers


@pytest.mark.filterwarnings("ignore::partita.errors.QuarantineWarning")
@pytest.mark.parametrize("damping", [1.0, "auto"])
def test_the_last_free_energy_is_the_log_evidence_though_a_site_was_quarantined(damping):
    """Nothing of it is in the posterior, so neither counts its data."""
    found = fit(engine=Chaos(corrupt=SUNK), rounds=8, damping=damping)
    assert list(found.quarantined) == [1]
    assert found.history[-1]["free_energy"] == pytest.approx(found.log_evidence, abs=1e-6)
    never = fit(rounds=8, damping=damping)
    assert never.history[-1]["free_energy"] == pytest.approx(never.log_evidence, abs=1e-6)


@pytest.mark.filterwarnings("ignore::partita.errors.QuarantineWarning")
def test_a_site_that_is_readmitted_counts_again():
    @dataclass
    class Forgiven(Chaos):
        def collect(self):
            arrivals = super().collect()
            if arrivals[0].version >= 8 and self.corrupt:
                self.corrupt = {}
                return [*arrivals, Notice(1, "readmitted", "as the operator asked")]
            return arrivals

    found, plain = fit(engine=Forgiven(corrupt=SUNK), rounds=12), fit(engine=InProcess())
    assert not found.quarantined
    assert found.history[-1]["free_energy"] == pytest.approx(plain.log_evidence, abs=1e-6)
    assert found.log_evidence == pytest.approx(plain.log_evidence, abs=1e-6)


@pytest.mark.filterwarnings("ignore::partita.errors.QuarantineWarning")
def test_a_quarantined_site_whose_data_do_not_count_is_not_asked_in_the_end():
    found = fit(engine=(engine := Mute()))
    assert engine.asked == [0, 2]
    assert found.log_evidence == pytest.approx(fit().log_evidence, abs=1e-9)


@pytest.mark.parametrize("value", [None, EvaluateAnswer("much"), EvaluateAnswer(math.nan)])
def test_a_quarantined_site_cannot_take_the_fit_away_in_the_end(tmp_path, value):
    """It has contributed before, and says nothing of its data now: the evidence is nan, and the warning says why."""

    def fit_and_resume(resume):
        engine = Mute(since=3)
        engine.value = value
        with pytest.warns(QuarantineWarning, match="site 1 was .*The log evidence is nan, because this site gives no"):
            return fit(engine=engine, run_dir=tmp_path, resume=resume)

    found, again = fit_and_resume(resume=False), fit_and_resume(resume=True)
    assert math.isnan(found.log_evidence)
    assert [math.isnan(value) for value in found.expected_log_probs] == [False, True, False]
    assert again.fingerprint == found.fingerprint


@pytest.mark.parametrize("value", [1e308, -1e308, 1e200, 1e15, -1e15])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_share_of_the_evidence_that_cannot_be_is_not_believed(value, rounds):
    """Whoever would have the evidence say what it likes takes it away, and is named."""
    engine = Mute(since=99)
    engine.value = EvaluateAnswer(value)
    with pytest.warns(RuntimeWarning, match=r"not known \(nan\): site b: its log likelihood, .* is out of all proport"):
        found = fit(engine=engine, rounds=rounds, names=["a", "b", "c"])
    assert math.isnan(found.log_evidence)
    assert [math.isnan(value) for value in found.expected_log_probs] == [False, True, False]


def test_a_share_of_the_evidence_may_be_far_from_what_was_reported_of_the_prior():
    wide = pt.models.LinearRegression(features=2, noise=1e-4, prior_scale=1e4)
    found = pt.fit(wide, SHARDS, schedule=pt.schedules.OnePass())
    assert found.log_evidence == pytest.approx(pt.evidence(wide, SHARDS, found.posterior), rel=1e-9)


def test_problems_of_others_are_told_beside_a_quarantine():
    class Blaming:
        def init(self, setup):
            return Blames()

    class Blames(pt.rules.RuleState):
        def after_fold(self, taken):
            return [pt.rules.Remark(site, words) for site, words in ((0, "was late"), (2, ": quarantined: not I"))]

    heard = []
    with pytest.warns((QuarantineWarning, RuntimeWarning)) as told:
        found = fit(rules=[Blaming()], rounds=1, callbacks=[lambda event: heard.append(event)])
    assert [warning.category for warning in told] == [QuarantineWarning, RuntimeWarning]
    assert str(told[1].message).endswith("site 0: was late; site 2: : quarantined: not I")
    assert heard[0].other_problems == ["site 0: was late", "site 2: : quarantined: not I"]
    ((name, reason),) = heard[0].quarantined.items()
    assert found.history[0]["problem"] == "; ".join((f"{name}: quarantined: {reason}", *heard[0].other_problems))
    assert found.history[0]["problems"] == 3


@pytest.mark.filterwarnings("ignore::partita.errors.QuarantineWarning")
def test_a_stream_knows_which_of_its_batches_was_quarantined():
    class Bar:
        def init(self, setup):
            return Bars()

    class Bars(pt.rules.RuleState):
        def after_fold(self, taken):
            return [pt.rules.Remark(0, "not today", quarantine=True)]

    options = {"schedule": pt.schedules.Synchronous(rounds=1), "damping": 1.0}
    state = pt.partial_fit(MODEL, SHARDS[0], **options)
    state = pt.partial_fit(state, SHARDS[1], rules=[Bar()], **options)
    assert state.quarantined == {1: "not today"}
    state = pt.partial_fit(state, SHARDS[2], **options)
    assert state.quarantined == {1: "not today"}
