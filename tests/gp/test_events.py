"""Streams speak the language of runs: events in order, callbacks, a history, files that go on where they ended."""

import io
from copy import deepcopy

import numpy as np
import pytest

import partita as pt
from partita.errors import RunMismatch
from partita.foundation.archives import read_arrays, write_arrays
from partita.gp import Learning, SparseGP, Stream, kernels, likelihoods
from partita.gp.events import look_back, name_numbers
from partita.server.divergences import divergence

GENERATOR = np.random.default_rng(0)
X = np.sort(GENERATOR.uniform(0, 6, (60, 1)), axis=0)
Y = np.sin(2 * X[:, 0]) + 0.2 * GENERATOR.normal(size=60)
PARTS = np.array_split(GENERATOR.permutation(60), 3)
GP = SparseGP(kernels.Matern32(variance=1.3, lengthscale=0.8), likelihoods.Normal(0.2))
CHEAP = {"hyperparameters": "fixed", "move_points": False, "quiet": True}


def follow(learning, callbacks=(), outputs=1, **settings):
    stream = Stream.begin(GP, learning, 1, outputs, **settings)
    for part in PARTS:
        stream = stream.absorb(X[part], np.tile(Y[part], (outputs, 1)), callbacks)
    return stream


def same_bits(first, second):
    for one, other in zip((*first.factor, *first.hyper), (*second.factor, *second.hyper), strict=True):
        np.testing.assert_equal(one, other)
    assert (first.log_evidence, first.jitter, first.batches) == (second.log_evidence, second.jitter, second.batches)


def without_seconds(history):
    return [{name: value for name, value in row.items() if name not in ("seconds", "clock")} for row in history]


def test_a_stream_tells_of_every_batch_in_order():
    events = []
    stream = follow(Learning("fixed", points_per_batch=8), [events.append])
    assert [event.fold for event in events] == [event.version for event in events] == [1, 2, 3]
    assert [event.sites for event in events] == [(0,), (1,), (2,)]
    assert [event.round for event in events] == [1.0, 2.0, 3.0]
    assert {event.step for event in events} == {"batch"}
    assert np.all(np.diff([0.0, *(event.seconds for event in events)]) > 0)
    assert events[-1].free_energy == stream.log_evidence
    assert events[-1].hyper == {"kernel.variance": 1.3, "kernel.lengthscale": 0.8, "likelihood.noise": 0.2}
    assert [event.metrics["rows"] for event in events] == [20, 20, 20]
    # What does not exist for a stream is empty, and says so.
    assert all(event.work == event.problems == event.refused == () for event in events)
    assert {(event.messages, event.bytes, event.accepted, event.limited_by) for event in events} == {(0, 0, 1.0, None)}
    assert stream.history == tuple(event.row() for event in events)


def test_a_change_is_a_divergence_of_the_posteriors_of_a_ledger():
    events = []
    stream = follow(Learning("fixed", points_per_batch=30), [events.append], keep_parts=True)
    ledger = stream.ledger()
    assert events[-1].change == pytest.approx(divergence(ledger.posterior, ledger.cavity(2)), rel=1e-6)
    size = len(stream.points)
    np.testing.assert_allclose(
        events[-1].posterior.precision, ledger.posterior.precision[:size, :size], rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(events[-1].posterior.location, ledger.posterior.location[:size], atol=1e-6)


def test_a_change_is_the_same_however_old_points_are_seen():
    """Where they stay, by the shorter formula; where they move, through the covariance of old points and new ones."""
    streams = [follow(Learning("fixed", points_per_batch=8))]
    before, after = streams[0], streams[0].absorb(X[:20] + 0.01, Y[None, :20])
    with pt.foundation.runtime.precision(np.float64):
        m, S = look_back(GP, after.params, before.factor, after.factor, np.asarray(after.jitter))
    q = after.whiten(after.factor)
    size = len(after.points)
    covariance, mean = np.asarray(S[0])[:size, :size], np.asarray(m[0])[:size]
    own = pt.families.Gaussian(
        *(np.asarray(a) for a in ((q.L_B[0] @ q.half[0])[:size], (q.L_B[0] @ q.L_B[0].T)[:size, :size]))
    )
    old = pt.families.Gaussian(np.linalg.solve(covariance, mean), np.linalg.inv(covariance))
    assert after.history[-1]["change"] == pytest.approx(divergence(own, old), rel=1e-4)


SHARED = Learning("fixed", "shared", points_per_batch=8, max_points=10, steps=5)
THINNED = Learning(points_per_batch=4, max_points=6, steps=5)


@pytest.mark.parametrize("learning", [SHARED, THINNED], ids=["shared", "thinned"])
def test_changes_are_positive_where_points_move_or_go(learning):
    changes = [row["change"] for row in follow(learning).history]
    assert all(change > 0 for change in changes)
    assert changes[0] > changes[-1]


def test_the_posterior_of_several_outputs_has_one_for_each():
    events = []
    follow(Learning("fixed", points_per_batch=5), [events.append], outputs=2)
    assert len(events[-1].posterior) == 2
    assert name_numbers({"a": np.array([1.0, 2.0]), "b": np.array(3.0)}) == {"a.0": 1.0, "a.1": 2.0, "b": 3.0}


def test_a_stream_that_was_saved_goes_on_to_the_last_bit(tmp_path):
    stream = follow(Learning(points_per_batch=5, steps=5))
    stream.save(tmp_path / "stream")
    loaded = Stream.load(tmp_path / "stream")
    same_bits(stream, loaded)
    assert loaded.history == stream.history
    first, second = (one.absorb(X[:20], Y[None, :20]) for one in (stream, loaded))
    same_bits(first, second)
    assert without_seconds(first.history) == without_seconds(second.history)
    assert first.history[-1]["fold"] == 4
    pt.StreamingGPRegressor(**CHEAP).fit(X, Y).save(tmp_path / "estimator")
    with pytest.raises(RunMismatch, match="holds a StreamingGPRegressor, not a stream"):
        Stream.load(tmp_path / "estimator")


def test_metrics_are_measured_with_the_batch_and_kept_in_the_history(tmp_path):
    model = pt.StreamingGPRegressor(**CHEAP)

    def score(event):
        return {"score": model.score(X, Y), "spread": float(np.mean(event.posterior.scale))}

    for part in PARTS:
        model.partial_fit(X[part], Y[part], callbacks=[score])
        assert model.history_[-1]["score"] == model.score(X, Y)
    assert [row["fold"] for row in model.history_] == [1, 2, 3]
    assert model.history_[-1]["free_energy"] == model.log_evidence_
    model.save(tmp_path / "model")
    loaded = pt.StreamingGPRegressor.load(tmp_path / "model")
    assert loaded.history_ == model.history_
    first, second = (one.partial_fit(X[:20], Y[:20]) for one in (deepcopy(model), loaded))
    same_bits(first.stream_, second.stream_)
    assert without_seconds(first.history_) == without_seconds(second.history_)


def test_a_callback_that_fails_leaves_the_stream_as_it_was():
    model = pt.StreamingGPRegressor(**CHEAP).partial_fit(X[:20], Y[:20])
    before, history = model.predict(X), model.history_

    def fail(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X[20:], Y[20:], callbacks=[fail])
    np.testing.assert_array_equal(model.predict(X), before)
    assert model.history_ == history


def test_files_of_earlier_versions_have_no_history_and_go_on(tmp_path):
    model = pt.StreamingGPRegressor(**CHEAP).partial_fit(X[:20], Y[:20])
    model.save(tmp_path / "model")
    arrays, about = read_arrays(tmp_path / "model")
    write_arrays(tmp_path / "old", arrays, {name: value for name, value in about.items() if name != "history"})
    loaded = pt.StreamingGPRegressor.load(tmp_path / "old")
    assert loaded.history_ == []
    assert [row["fold"] for row in loaded.partial_fit(X[20:], Y[20:]).history_] == [2]


def test_whoever_shows_progress_is_told_of_batches_and_nobody_else(monkeypatch, capsys):
    from rich.console import Console

    monkeypatch.setattr("partita.telemetry.FIRST_LINE", 0.0)
    written = io.StringIO()
    shown = pt.telemetry.Progress("stream", Console(file=written))
    pt.StreamingGPClassifier(batch_size=20, **{**CHEAP, "quiet": False}).fit(X, Y > 0, callbacks=[shown])
    assert "stream: batch 3 of 3, free energy -" in written.getvalue()
    assert capsys.readouterr().err == ""


def test_a_stream_that_learns_another_way_goes_on_counting():
    """What a batch brings is told in its row, whatever was forgotten before it."""
    model = pt.StreamingGPRegressor(**CHEAP, keep_factors=True)
    for part in PARTS:
        model.partial_fit(X[part], Y[part])
    model.forget(0).partial_fit(X[PARTS[0]], Y[PARTS[0]])
    assert [row["fold"] for row in model.history_] == [1, 2, 3, 4]
    # The log evidence is not known after a batch was forgotten, so neither is the free energy.
    assert [row["free_energy"] is None for row in model.history_] == [False, False, False, True]
