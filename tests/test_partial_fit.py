"""`partial_fit` as one stream: events, counters, free energies and histories go on from batch to batch."""

import numpy as np
import pytest

import partita as pt

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(90, 2))
LABELS = (X @ [1.0, -2.0] + GENERATOR.normal(size=90) > 0).astype(float)
PARTS = np.array_split(np.arange(90), 3)
MODEL = pt.models.LogisticRegression(features=2)


def learn(callbacks=(), **settings):
    state = MODEL
    for part in PARTS:
        state = pt.partial_fit(state, (X[part], LABELS[part]), callbacks=callbacks, **settings)
    return state


def test_events_of_all_batches_are_counted_through():
    events = []
    state = learn([events.append], schedule=pt.schedules.Synchronous(rounds=4))
    assert [event.fold for event in events] == list(range(1, 13))
    assert [event.version for event in events] == list(range(1, 13))
    assert [event.total for event in events] == [4] * 4 + [8] * 4 + [12] * 4
    assert [event.round for event in events] == list(range(1, 13))
    assert [event.sites for event in events] == [(0,)] * 4 + [(1,)] * 4 + [(2,)] * 4
    assert [event.work[0].site for event in events] == [0] * 4 + [1] * 4 + [2] * 4
    assert [event.messages for event in events] == [2 * number for number in range(1, 13)]
    for name in ("seconds", "clock", "bytes_up", "bytes_down"):
        assert np.all(np.diff([getattr(event, name) for event in events]) > 0)
    assert state.history == [event.row() for event in events]


def test_the_free_energy_is_that_of_all_batches_so_far():
    state = learn(schedule=pt.schedules.Synchronous(rounds=15))
    first = pt.partial_fit(MODEL, (X[PARTS[0]], LABELS[PARTS[0]]), schedule=pt.schedules.Synchronous(rounds=15))
    energies = [row["free_energy"] for row in state.history]
    assert energies[14] == first.history[14]["free_energy"]
    assert energies[14] == pytest.approx(first.log_evidence, abs=1e-6)
    assert energies[-1] == pytest.approx(state.log_evidence, abs=1e-6)


def test_a_stream_goes_on_from_a_file_as_if_it_had_not_been_away(tmp_path):
    """With the same rows in its history, but for the time that they took."""
    whole, state = learn(), MODEL
    for part in PARTS:
        state = pt.partial_fit(state, (X[part], LABELS[part]))
        state.save(tmp_path / "state")
        state = pt.load(tmp_path / "state")
    assert state.fingerprint == whole.fingerprint
    timed = ("seconds", "clock")
    ours, theirs = ([{k: v for k, v in row.items() if k not in timed} for row in one.history] for one in (state, whole))
    assert ours == theirs
