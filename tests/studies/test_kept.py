"""Rows that are kept: where they come from, what is left of them, and pictures that are drawn from them alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from partita.errors import InputError
from partita.studies.kept import choose_rows, keep_rows, read_kept
from partita.studies.pictures import banana, drawing, federated, robot_arm


def write_cells(folder, cells):
    (folder / "cells").mkdir(parents=True)
    for number, rows in enumerate(cells):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "cells" / f"{number}.jsonl").write_text(text)


def banana_rows(seed, setting):
    return [
        {
            "method": "paper-private-vi", "setting": setting, "seed": seed, "round": number, "variance": 1 / 3 + seed,
            "lengthscales": [0.5, 0.7 + number], "drawn": {"variance": [[0.1] * 400]}, "surface": [[0.5]],
        }
        for number in (1, 2, 3)
    ]  # fmt: skip


def arm_rows(seed):
    return [
        {
            "method": "paper-private-vi",
            "setting": "torque 3",
            "seed": seed,
            "round": number,
            "smse": 0.3 / number + seed,
        }
        for number in (1, 2)
    ]


def federated_rows(scheme, setting, rate=None, damping=None, **more):
    name = scheme + (f" rate {rate}" if rate else "") + (f" damping {damping}" if damping else "")
    return [
        {
            "method": name, "setting": setting, "seed": 0, "round": number, "seconds": 0.1 * number,
            "messages": 20 * number, "error": 0.3 / number, "nll": 1 / number, "scheme": scheme, "rate": rate,
            "damping": damping, "epochs": 3, **more,
        }
        for number in (1, 2, 3)
    ]  # fmt: skip


CELLS = {
    banana: lambda: [banana_rows(s, name) for s in (0, 1) for name in banana.SETTINGS],
    robot_arm: lambda: map(arm_rows, (0, 1)),
    # Of the grids, one cell is missing.
    federated: lambda: [
        federated_rows("default", "iid"),
        federated_rows("gvi-1", "non-iid", 0.01),
        federated_rows("pvi-sync", "iid", 0.01, 0.8),
        federated_rows("pvi-sync", "iid", 0.02, 0.9),
        federated_rows("over-fitting", "iid", 0.01, 0.8, train_error=0.1, train_nll=0.1),
    ],
}


def test_rows_are_kept_with_what_made_them(tmp_path):
    write_cells(tmp_path, [banana_rows(1, "three batches"), banana_rows(0, "three batches")])
    said, page = [], tmp_path / "kept.jsonl"
    keep_rows(said.append, tmp_path, page, "partita reproduce banana")
    head, rows = read_kept(page)
    assert head["command"] == "partita reproduce banana"
    assert head["seeds"] == [0, 1]
    assert {"partita", "jax", "numpy"} < set(head["versions"])
    assert [(row["seed"], row["round"]) for row in rows] == [(seed, number) for seed in (0, 1) for number in (1, 2, 3)]
    assert rows[0]["variance"] == 0.333333
    assert all("surface" not in row for row in rows)
    assert ["drawn" in row for row in rows] == [True] * 3 + [False] * 3
    assert len(rows[0]["drawn"]["variance"][0]) == 100
    assert said == [f"{page}: 6 rows of 2 seeds"]
    assert choose_rows(rows, "another") == []


def test_nothing_to_keep_or_to_read(tmp_path):
    with pytest.raises(InputError, match="expected finished cells"):
        keep_rows(print, tmp_path, tmp_path / "kept.jsonl", "a command")
    with pytest.raises(InputError, match="keep-rows"):
        read_kept(tmp_path / "kept.jsonl")


@pytest.mark.parametrize("picture", list(CELLS))
def test_pictures_are_drawn_from_kept_rows(picture, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    write_cells(tmp_path / "out", list(CELLS[picture]()))
    keep_rows(print, tmp_path / "out", tmp_path / "kept.jsonl", "a command")
    monkeypatch.setattr(picture, "ROWS", tmp_path / "kept.jsonl")
    picture.draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_pictures_of_rows_that_are_not_there_are_left_out(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(drawing, "PICTURES", ("robot_arm",))
    monkeypatch.setattr(robot_arm, "ROWS", tmp_path / "none.jsonl")
    said = []
    drawing.draw_pictures(said.append, folder=tmp_path)
    assert said == [f"robot_arm: left out, {tmp_path / 'none.jsonl'} is not there"]
    with pytest.raises(InputError, match="not found"):
        drawing.draw_pictures(said.append, ["robot_arm"], tmp_path)


def test_distributions_are_narrower_than_those_of_nuts_and_points_decide_more():
    """What docs/results.md says of banana, from the rows that are kept with it."""
    _, rows = read_kept(Path(__file__).parents[2] / "docs" / "data" / "banana_own.jsonl")
    last = {row["method"]: row for row in choose_rows(rows, "three batches")}

    def spread(method):
        drawn = last[method]["drawn"]
        return np.std([*drawn["variance"], *drawn["lengthscale"]], axis=1)

    np.testing.assert_allclose(spread("nuts"), [0.50, 0.19, 0.21], rtol=0.2)
    for method in ("batch-vi", "streaming-vi"):
        assert np.all(spread(method) < 0.95 * spread("nuts"))
    assert last["streaming-ml"]["undecided"] < last["streaming-vi"]["undecided"] - 0.1
    assert last["batch-ml"]["undecided"] < last["batch-vi"]["undecided"]
