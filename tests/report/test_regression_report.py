"""What a page shows of a regression."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import partita as pt
from partita.report.charts import draw_pictures
from partita.report.formatting import format_ratio, format_value
from partita.report.regression import build_tables, describe, read_findings


def table(rows=300):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {"income": rng.normal(36_000, 8_000, rows), "arm": rng.choice(["drug", "placebo"], rows), "late": 0.0}
    )
    frame["late"] = rng.integers(0, 2, rows)
    f = 1e-4 * (frame.income - 36_000) + 0.8 * (frame.arm == "drug") - 0.5 * frame.late
    frame["ill"] = (rng.random(rows) < 1 / (1 + np.exp(-f))) * 1
    frame["score"] = 50 + 10 * f + 5 * rng.normal(size=rows)
    return {"north": frame[:120], "south": frame[120:]}


SITES = table()


@pytest.mark.parametrize(("target", "family"), [("score", "gaussian"), ("ill", "bernoulli")])
def test_a_picture_of_coefficients_does_not_mix_units(target, family):
    found = pt.regress(f"{target} ~ income + arm + late", SITES, family=family, quiet=True)
    row = describe([found], level=0.8)
    picture = draw_pictures(read_findings(row))[0]
    points = picture.figure.data[0]
    low, middle, high = np.array(
        [[one[name] for one in found.coefficients(0.8)[:0:-1]] for name in ("low", "mean", "high")]
    )
    # From the last to the first: 0 to 1 for those that have no other values, a deviation for the other.
    deviation = pd.concat(SITES.values()).income.std(ddof=0)
    steps = np.array([1.0, 1.0, deviation])
    assert points.y == ("late", "arm[T.placebo]", f"income, per {deviation:,.0f}")
    shape = np.exp if family == "bernoulli" else lambda values: values
    assert_allclose(points.x, shape(steps * middle), rtol=1e-6)
    assert_allclose(np.add(points.x, points.error_x.array), shape(steps * high), rtol=1e-6)
    assert_allclose(np.subtract(points.x, points.error_x.arrayminus), shape(steps * low), rtol=1e-6)
    axis = picture.figure.layout.xaxis
    assert (axis.type, axis.title.text) == (
        ("log", "odds ratio") if family == "bernoulli" else (None, "change of the target")
    )
    assert picture.words.startswith("80 % intervals")
    # A row that was written before steps were.
    assert (
        draw_pictures(read_findings({name: value for name, value in row.items() if name != "steps"}))[0].title
        == "Coefficients"
    )


def test_a_ratio_near_one_is_told_from_it():
    found = pt.regress("ill ~ income + arm", SITES, family="bernoulli", quiet=True)
    row = describe([found])
    (coefficients,) = (rows for caption, rows in build_tables(row).items() if caption.startswith("Coefficients"))
    income = next(one for one in coefficients if one["name"] == "income")
    texts = [format_value(income[name], name) for name in ("odds ratio", "ratio low", "ratio high")]
    assert "1" not in texts
    assert_allclose(
        [float(text) - 1 for text in texts],
        [row["coefficients"][1][n] - 1 for n in ("odds ratio", "ratio low", "ratio high")],
        rtol=0.06,
    )
    assert [format_value(format_ratio(value)) for value in (0.9996, 1.0004, 1.0, 0.5, 1.25)] == [
        "0.99960",
        "1.00040",
        "1",
        "0.5",
        "1.25",
    ]
    assert format_value(format_ratio(1 + 2.2e-16)) != "1"
    assert format_ratio(None) is None
