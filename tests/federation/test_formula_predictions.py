"""What a regression's sites predict, in their own names and units, beside the server's result."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import partita as pt
from memory_federation import MemoryFederation
from partita.errors import InputError
from partita.federation.new import plan_formula
from partita.federation.prediction import predict_rows

pytest.importorskip("flwr")
pytest.importorskip("cryptography")


def make_table(rows, number):
    rng = np.random.default_rng(number)
    frame = pd.DataFrame({"age": rng.normal(50, 12, rows), "weight": rng.normal(70, 9, rows)})
    frame["ward"] = np.resize(["east", "north", "south"], rows)
    f = 0.05 * (frame.age - 50) - 0.04 * (frame.weight - 70)
    frame["ill"] = np.where(rng.random(rows) < 1 / (1 + np.exp(-f)), "yes", "no")
    frame["pressure"] = 120 + 5 * f + rng.normal(0, 8, rows)
    frame["patient"] = np.repeat(np.arange(rows // 4 + 1), 4)[:rows] + 100
    return frame


TABLES = {"a": make_table(60, 1), "b": make_table(72, 2)}
NEW = make_table(9, 3).drop(columns=["ill", "pressure"])


def to_own(frame):
    """As site b has it: another name, another unit."""
    return frame.rename(columns={"age": "YEARS"}).assign(weight=frame["weight"] * 1024)


@pytest.mark.parametrize(
    ("formula", "family", "name"),
    [
        ("ill ~ age + weight + C(ward)", "bernoulli", "probability"),
        ("pressure ~ age * ward + weight", "gaussian", "mean"),
    ],
)
def test_every_site_predicts_what_the_server_does(tmp_path, monkeypatch, formula, family, name):
    ours = MemoryFederation(tmp_path / "ours", plan_formula(formula, family, ["a", "b"]), ("a", "b"), monkeypatch)
    ours.write_table("a", TABLES["a"], "")
    ours.write_table("b", to_own(TABLES["b"]), f'\ncolumns: age = "YEARS"\nunits: weight = {1 / 1024!r}')
    assert ours.run()["state"] == "finished"
    there = pt.Regression.load(ours.result)
    rows = NEW.copy()
    rows.loc[2, "age"] = np.nan
    wanted = np.column_stack([there.predict(rows), there.predict_interval(rows, 0.8)])
    file = tmp_path / "new.csv"
    for site, own in (("a", rows), ("b", to_own(rows))):
        own.to_csv(file, index=False)
        found = predict_rows(tmp_path / "ours" / "for-sites" / site, file, 0.8)
        assert found.names == (name, "low", "high")
        assert_allclose(found.values, wanted, rtol=1e-9)
        assert found.missing == 1
        assert (name == "probability") == any("probabilities that ill is 'yes'" in note for note in found.notes())
    folder = tmp_path / "ours" / "for-sites" / "a"
    for wrong, words in (
        (rows.drop(columns="weight"), "has no column 'weight'"),
        (rows.assign(age="old"), "column 'age' is not numbers"),
    ):
        wrong.to_csv(file, index=False)
        with pytest.raises(InputError, match=words):
            predict_rows(folder, file)
