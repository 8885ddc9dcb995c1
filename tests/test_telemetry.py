"""Progress: on a terminal, elsewhere, and not at all."""

import io

import numpy as np
import pytest
from rich.console import Console

import partita as pt
from partita import telemetry
from partita.telemetry import Progress

MODEL = pt.models.LinearRegression(features=1, noise=1.0)
SHARDS = [(np.ones((4, 1)), np.arange(4.0)), (np.ones((3, 1)), np.arange(3.0))]


def told(terminal, callbacks=(), **settings):
    """What progress says of a run of three rounds."""
    stream = io.StringIO()
    progress = Progress("trial", Console(file=stream, force_terminal=terminal, width=100), **settings)
    schedule = pt.schedules.Synchronous(rounds=3)
    result = pt.fit(MODEL, SHARDS, schedule=schedule, callbacks=[progress, *callbacks])
    return stream.getvalue(), result


def test_a_bar_on_a_terminal():
    text, _ = told(terminal=True)
    assert "6/6" in text
    # The cursor was hidden, and is there again.
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_plain_lines_elsewhere_and_not_too_many(monkeypatch):
    monkeypatch.setattr(telemetry, "FIRST_LINE", 1e6)
    monkeypatch.setattr(telemetry, "BETWEEN_LINES", 1e6)
    assert told(terminal=False)[0] == ""
    monkeypatch.setattr(telemetry, "FIRST_LINE", 0.0)
    text, result = told(terminal=False)
    last = result.history[-1]["free_energy"]
    assert text.splitlines() == ["trial: round 1 of 3", f"trial: round 3 of 3, free energy {last:.2f}"]
    monkeypatch.setattr(telemetry, "BETWEEN_LINES", 0.0)
    assert len(told(terminal=False)[0].splitlines()) == 3


def test_the_free_energy_of_a_wide_prior_is_not_shown(monkeypatch):
    """It is about the prior's width, not about what was learnt."""
    monkeypatch.setattr(telemetry, "FIRST_LINE", 0.0)
    monkeypatch.setattr(telemetry, "BETWEEN_LINES", 0.0)
    model = pt.models.LinearRegression(features=1, noise=1.0, prior_scale=1e6)
    stream = io.StringIO()
    progress = Progress("trial", Console(file=stream, force_terminal=False, width=100))
    result = pt.fit(model, SHARDS, schedule=pt.schedules.Synchronous(rounds=3), callbacks=[progress])
    known = [row["free_energy"] for row in result.history if row["free_energy"] is not None]
    assert known[0] < -1e9
    assert f"{known[0]:.2f}" not in stream.getvalue()
    assert f"free energy {known[-1]:.2f}" in stream.getvalue()


@pytest.mark.parametrize("name", ["fold", "free_energy", "problem", "hyper.noise"])
def test_callbacks_cannot_overwrite_what_the_history_says(name):
    model, shards = pt.models.LinearRegression(features=1, noise=1.0), [(np.ones((3, 1)), np.ones(3))]
    settings = {"hyper": pt.LearnHyper()} if name.startswith("hyper.") else {}
    with pytest.raises(pt.errors.InputError, match=f"callbacks: '{name}' is a column of the history itself"):
        pt.fit(model, shards, callbacks=[lambda event: {name: 3.0}], **settings)


@pytest.mark.parametrize("callbacks", [print, [3], "print", None])
def test_callbacks_are_a_list_for_everybody(callbacks):
    X, y = np.linspace(0, 1, 12)[:, None], np.linspace(0, 1, 12)
    model = pt.models.LinearRegression(features=1, noise=1.0)
    for begin in (
        lambda: pt.fit(model, [(X, y)], callbacks=callbacks),
        lambda: pt.partial_fit(model, (X, y), callbacks=callbacks),
        lambda: pt.PartitionedRegressor().fit(X, y, callbacks=callbacks),
        lambda: pt.StreamingGPRegressor().fit(X, y, callbacks=callbacks),
        lambda: pt.StreamingGPRegressor().partial_fit(X, y, callbacks=callbacks),
    ):
        with pytest.raises(pt.errors.InputError, match=r"callbacks: expected a list of functions"):
            begin()


@pytest.mark.parametrize(("terminal", "words"), [(False, "trial: settled in round 4, of at most 48"), (True, "8/8")])
def test_a_run_that_settles_early_says_so(terminal, words, monkeypatch):
    monkeypatch.setattr(telemetry, "FIRST_LINE", 0.0)
    stream = io.StringIO()
    progress = Progress("trial", Console(file=stream, force_terminal=terminal, width=100))
    schedule = pt.schedules.Synchronous(rounds=48, settled=1e-6)
    result = pt.fit(MODEL, SHARDS, schedule=schedule, damping=1.0, callbacks=[progress])
    assert len(result.history) == 4
    assert words in stream.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_if_quiet(terminal, monkeypatch):
    monkeypatch.setattr(telemetry, "FIRST_LINE", 0.0)
    assert told(terminal, quiet=True)[0] == ""


def test_a_run_that_fails_leaves_the_terminal_as_it_was():
    stream = io.StringIO()

    def fail(event):
        raise OSError

    progress = Progress("trial", Console(file=stream, force_terminal=True))
    with pytest.raises(OSError):
        pt.fit(MODEL, SHARDS, callbacks=[progress, fail])
    assert stream.getvalue().endswith("\x1b[?25h")


def test_what_is_entered_twice_is_left_once():
    text = io.StringIO()
    with Progress("trial", Console(file=text, force_terminal=True, width=100)) as progress:
        pt.fit(MODEL, SHARDS, schedule=pt.schedules.OnePass(), callbacks=[progress])
        assert "\x1b[?25h" not in text.getvalue()
        progress.show(1, 4, "another thing")
    assert "another thing" in text.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_patient_one_is_silent_at_first_and_then_speaks_by_itself(terminal, monkeypatch):
    """Before the first fold there is nothing to be told of, and it can take long: models are compiled."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100)
    monkeypatch.setattr(telemetry, "FIRST_LINE", 1e6)
    with Progress("trial", console, patient=True) as progress:
        progress.show(1, 3, "one thing")
    assert stream.getvalue() == ""
    monkeypatch.setattr(telemetry, "FIRST_LINE", 0.0)
    with Progress("trial", console, patient=True) as progress:
        progress._timer.join()
        assert "trial" in stream.getvalue()
        monkeypatch.setattr(telemetry, "BETWEEN_LINES", 1e6)
        progress.show(2, 3, "another thing")
    assert "another thing" in stream.getvalue()
    if terminal:
        assert stream.getvalue().endswith("\x1b[?25h")
    else:
        assert stream.getvalue().splitlines() == ["trial: at work", "trial: 2 of 3, another thing"]


def test_progress_is_added_unless_somebody_is_told_already():
    own = Progress("own")
    with telemetry.with_progress("fit", [own], quiet=False) as callbacks:
        assert callbacks == [own]
    with telemetry.with_progress("fit", [], quiet=True) as callbacks:
        assert callbacks == []
    with telemetry.with_progress("fit", [print], quiet=False) as callbacks:
        assert [callbacks[0], callbacks[1].label] == [print, "fit"]
