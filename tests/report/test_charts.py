"""The registry of charts: one entry is all that a chart needs to be on every page."""

from dataclasses import replace

import numpy as np
import pytest

import partita as pt
from partita.report.charts import Chart, Findings, Picture, draw_pictures, registry
from partita.report.charts.base import Calibration, Coefficients, Intervals, style_figure
from partita.report.charts.intervals import draw_coefficients
from partita.report.charts.registry import LINES, PICTURES
from partita.report.follower import Follower
from partita.report.page import build_contents

X = np.random.default_rng(0).normal(size=(40, 2))
SHARDS = [(X[:15], X[:15] @ [1.0, -1.0]), (X[15:], X[15:] @ [1.0, -1.0])]
BOUNDS = np.array([[-1.0, 0.5], [0.0, 1.0], [1.0, 1.5]])
EVERYTHING = Findings(
    "run",
    [
        {"site": "a", "updates": 1, "staleness": 0.0, "accepted": 1.0},
        {"site": "b", "updates": 2, "staleness": 1.0, "accepted": 0.5},
    ],
    [("a", 1.0), ("b", 2.0)],
    Calibration([0.5], [0.4], [1.0]),
    Intervals(["w", "b"].__getitem__, *BOUNDS),
    Coefficients(["w", "b"], BOUNDS, np.ones(2), 0.95, None),
)


def test_every_picture_draws_what_is_known_and_nothing_else():
    titles = [picture.title for picture in draw_pictures(EVERYTHING)]
    assert len(titles) == len(set(titles)) == len(PICTURES)
    assert draw_pictures(Findings("run")) == []
    without = [picture.title for picture in draw_pictures(replace(EVERYTHING, calibration=None, sites=()))]
    assert without == ["Coefficients", "Contribution of sites", "Posterior"]


def test_lines_have_names_and_labels_of_their_own():
    # The page finds a chart by its label.
    assert len({chart.y for chart in LINES}) == len({chart.label for chart in LINES}) == len(LINES)
    assert all(chart.label for chart in LINES)


def test_one_entry_puts_a_chart_on_the_page_of_a_run(tmp_path, monkeypatch):
    import plotly.graph_objects as go

    def draw_count(findings):
        return Picture("Sites", f"{len(findings.sites)} sites.", style_figure(go.Figure()))

    monkeypatch.setattr(registry, "PICTURES", (*PICTURES, draw_count))
    monkeypatch.setattr(registry, "LINES", (*LINES, Chart("clock", label="clock of the run")))
    model = pt.models.LinearRegression(features=2, noise=0.3)
    pt.fit(model, SHARDS, schedule=pt.schedules.Synchronous(rounds=2), run_dir=tmp_path)
    follower = Follower(tmp_path)
    follower.read()
    drawn = build_contents(follower.report())
    assert drawn["charts"][-1]["label"] == "clock of the run"
    assert (drawn["pictures"][-1]["title"], drawn["pictures"][-1]["words"]) == ("Sites", "2 sites.")


@pytest.mark.parametrize(("low", "high"), [(-1.4, 2.1), (-0.1, 0.2), (-9.0, 14.0), (-300.0, 5.0)])
def test_ticks_of_ratios_are_few_and_written_whole(low, high):
    intervals = np.array([[low, high - 0.1], [low + 0.05, high - 0.05], [low + 0.1, high]])
    known = Coefficients(["a", "b"], intervals, np.ones(2), 0.95, "odds ratio")
    picture = draw_coefficients(replace(EVERYTHING, coefficients=known))
    axis = picture.figure.layout.xaxis
    if high - low < 1:
        # Less than a decade: Plotly writes numbers as they are.
        assert axis.tickvals is None
    else:
        inside = [tick for tick in axis.tickvals if np.exp(low) <= tick <= np.exp(high)]
        assert 3 <= len(inside) <= 20
        assert 1.0 in axis.tickvals
        assert [float(text) for text in axis.ticktext] == pytest.approx(list(axis.tickvals))
