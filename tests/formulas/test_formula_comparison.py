"""Which regressions can be compared, and the reason that is given for every pair that cannot."""

import numpy as np
import pandas as pd
import pytest

import partita as pt
from partita.errors import InputError
from partita.formulas.fitting import check_comparable


def make_table(rows=60):
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"x": rng.normal(size=rows), "z": rng.normal(size=rows), "n": rng.poisson(3.0, rows)})
    frame["y"] = np.exp(frame.x + rng.normal(size=rows))
    return frame


TABLE = make_table()
SITES = {"north": TABLE[:25], "south": TABLE[25:]}


def fitted(formula="y ~ x", sites=SITES, **settings):
    return pt.regress(formula, sites, schedule=pt.schedules.Synchronous(rounds=2), quiet=True, **settings)


def with_gaps(column, rows):
    return {"north": SITES["north"].assign(**{column: SITES["north"][column].where(~np.isin(np.arange(25), rows))})}


FIRST = fitted()
PAIRS = {
    "another target": (fitted("z ~ x"), r"'z ~ x' has another target than 'y ~ x', 'z' and not 'y': .* same left side"),
    "other units": (
        fitted("np.log(y) ~ x"),
        r"'np.log\(y\) ~ x' has its target in other units than 'y ~ x', 'np.log\(y\)' and not 'y'",
    ),
    "other sites": (
        fitted(sites={"north": SITES["north"], "west": SITES["south"]}),
        "is of other sites than 'y ~ x': only one of them has south, west",
    ),
    "missing cells": (
        fitted("y ~ x + z", SITES | with_gaps("z", [3, 4])),
        "of other observations than 'y ~ x': rows that miss a column are left out, at site north 2 and 0 of them",
    ),
    "fewer rows": (
        fitted(sites=SITES | {"south": SITES["south"][:-4]}),
        "site south has 31 and 35 rows, and no others were left out for missing cells",
    ),
    "held out": (fitted(held_out=0.4), "site north has .* and 25 rows, .* weights and held_out"),
    "another order": (fitted(sites=SITES | {"south": SITES["south"][::-1]}), "as many, but .* another order of rows"),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_has_its_own_reason(pair, tmp_path):
    other, reason = PAIRS[pair]
    with pytest.raises(InputError, match=f"^compare: {reason}" if reason.startswith("'") else reason):
        pt.compare([FIRST, other])
    other.save(tmp_path / "other")
    with pytest.raises(InputError, match=reason):
        pt.compare([FIRST, pt.Regression.load(tmp_path / "other")])


def test_other_rows_that_miss_something():
    one = fitted("y ~ x + z", SITES | with_gaps("z", [3, 4]))
    two = fitted("y ~ x + n", SITES | with_gaps("n", [7, 8]))
    with pytest.raises(InputError, match="or other rows of site north miss a column"):
        pt.compare([one, two])


def test_densities_and_probabilities():
    counts = fitted("n ~ x", family="poisson")
    with pytest.raises(InputError, match="'n ~ x' is poisson, 'n ~ z' is gaussian: densities of numbers"):
        pt.compare([fitted("n ~ z"), counts])
    with pytest.raises(InputError, match="'y ~ x' is gaussian, 'n ~ x' is poisson"):
        pt.compare([counts, FIRST])
    assert len(pt.compare([counts, fitted("n ~ x", family="negative binomial")])) == 2


def test_what_is_the_same_is_compared():
    """However the left side is written, and in whatever order sites come."""
    turned = {name: SITES[name] for name in ("south", "north")}
    rows = pt.compare([FIRST, fitted("I(y) ~ z"), fitted(sites=turned)])
    assert len(rows) == 3


def test_the_reason_is_given_before_anything_is_fitted():
    with pytest.raises(InputError, match="'z ~ x' has another target than 'y ~ x'"):
        check_comparable(["y ~ x", "y ~ z", "z ~ x"], SITES, family="gaussian")
