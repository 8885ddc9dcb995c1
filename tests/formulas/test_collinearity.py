"""Columns that do not vary or follow from others are named before a fit, by all who fit coefficients."""

import warnings
from functools import reduce

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import partita as pt
from partita.designs.collinearity import Idle, describe_idle, find_idle, multiply_columns
from partita.foundation.moments import Moments

RNG = np.random.default_rng(8)
TABLE = pd.DataFrame({"a": RNG.normal(size=80), "b": RNG.normal(size=80), "n": RNG.poisson(2.0, 80)})
TABLE = TABLE.assign(y=TABLE.a + RNG.normal(size=80), flat=3.7, twin=1e6 - 2e-3 * TABLE.a, total=TABLE.a + TABLE.b - 4)
TABLE["ill"] = (TABLE.y > 0).astype(int)


def sites(table=TABLE):
    return {"north": table[:30], "south": table[30:31], "west": table[31:]}


def words_of(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(one.message) for one in caught if one.category is UserWarning]


@pytest.mark.parametrize(("target", "family"), [("y", "gaussian"), ("ill", "bernoulli"), ("n", "poisson")])
def test_regress_names_columns_that_data_say_nothing_of(target, family):
    rounds = pt.schedules.Synchronous(rounds=2)
    found = words_of(
        lambda: pt.regress(
            f"{target} ~ a + flat + b + twin + total", sites(), family=family, schedule=rounds, quiet=True
        )
    )
    assert len(found) == 3
    assert found[0].startswith("column 'flat' is the same in all rows: data say nothing of its coefficient")
    assert found[1].startswith("column 'twin' is a multiple of 'a' in all rows, but for a constant: data cannot tell")
    assert found[2].startswith("column 'total' is a sum of multiples of 'a', 'b' in all rows")
    assert all(words.endswith("out") for words in found)


def test_a_column_that_is_flat_at_every_site_but_not_between_them_is_fine():
    table = pd.concat([part.assign(beds=beds) for beds, part in zip((3.0, 5.0, 9.0), sites().values(), strict=True)])
    assert words_of(lambda: pt.regress("y ~ a + beds", sites(table), quiet=True)) == []
    assert "column 'beds' is the same" in words_of(lambda: pt.regress("y ~ beds", {"all": table[:30]}, quiet=True))[0]


def test_without_an_intercept_a_constant_is_one():
    assert words_of(lambda: pt.regress("y ~ 0 + a + flat", sites(), quiet=True)) == []
    found = words_of(lambda: pt.regress("y ~ 0 + flat + I(2 * flat) + I(0 * flat)", sites(), quiet=True))
    assert found[0].startswith("column 'I(0 * flat)' is the same in all rows")
    assert found[1].startswith("column 'I(2 * flat)' is a multiple of 'flat'")


@pytest.mark.parametrize("kind", [pt.PartitionedRegressor, pt.PartitionedClassifier])
@pytest.mark.parametrize("standardise", [True, False])
def test_estimators_do_too(kind, standardise):
    model = kind(standardise=standardise, schedule=pt.schedules.Synchronous(rounds=2), quiet=True)
    groups = np.repeat(["north", "south"], 40)
    X = TABLE[["a", "b", "flat", "total"]]
    found = words_of(lambda: model.fit(X, TABLE.ill, groups=groups))
    assert [words.split(" in all rows")[0] for words in found] == [
        "X: column 'flat' is the same",
        "X: column 'total' is a sum of multiples of 'a', 'b'",
    ]
    found = words_of(lambda: model.fit(X.to_numpy(), TABLE.ill, groups=groups))
    assert found[0].startswith("X: column '2' is the same in all rows")


def test_networks_say_nothing():
    model = pt.PartitionedRegressor(hidden=[3], schedule=pt.schedules.Synchronous(rounds=1), quiet=True)
    assert words_of(lambda: model.fit(TABLE[["a", "flat"]], TABLE.y)) == []


def test_targets_groups_and_rows_that_leave_all_to_the_prior():
    def said(formula, table=TABLE, **options):
        rounds = pt.schedules.Synchronous(rounds=1)
        return " ".join(words_of(lambda: pt.regress(formula, {"all": table}, schedule=rounds, quiet=True, **options)))

    assert "the target is the same in all rows" in said("flat ~ a")
    assert "there is one group only" in said("y ~ a + (1 | ward)", TABLE.assign(ward="one"))
    assert "every row is a group of its own" in said("y ~ a + (1 | ward)", TABLE.assign(ward=range(80)))
    assert "there are 3 coefficients for 2 rows" in said("y ~ a + b", TABLE[:2])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.floats(-6, 6), st.booleans())
def test_as_many_follow_as_the_rank_is_short(seed, extra, magnitude, intercept):
    """Against numpy's rank of the pooled rows, whatever the units, and however rows are parted."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(60, 4))
    # No weight is tiny: a column that enters a sum by a millionth is lost in rounding where the sum comes first.
    weights = rng.uniform(0.1, 2.0, size=(4, extra)) * rng.choice([-1, 1], size=(4, extra))
    X = np.column_stack([own, own @ weights])[:, rng.permutation(4 + extra)]
    whole = np.column_stack([X, np.ones(60)]) if intercept else X
    parts = np.split(X * 10.0 ** (magnitude * rng.uniform(size=4 + extra)), [1, 25])
    idle = find(parts, intercept)
    assert idle.flat == ()
    assert len(idle.following) == whole.shape[1] - np.linalg.matrix_rank(whole)
    for column, terms in idle.following:
        target, known = X[:, column], np.column_stack([X[:, list(terms)], np.ones(60)])
        assert np.abs(known @ np.linalg.lstsq(known, target)[0] - target).max() < 1e-6


def find(parts, intercept=True):
    """From what sites tell of their rows."""
    moments = reduce(lambda so_far, rows: so_far.with_rows(rows), parts, Moments())
    return find_idle(moments, lambda *view: sum(multiply_columns(rows, *view) for rows in parts), intercept)


def test_nearly_is_not_quite():
    x = TABLE.a.to_numpy()
    noise = RNG.normal(size=80)
    assert find([np.column_stack([x, x + 1e-3 * noise])]) == Idle()
    assert find([np.column_stack([x, x + 1e-7 * noise])]).following == ((1, (0,)),)


def test_very_many_are_not_all_named():
    names = [f"pixel {i}" for i in range(20)]
    words = describe_idle(Idle(tuple(range(8)), tuple((i, (9,)) for i in range(10, 20))), names)
    assert "'pixel 4' and 3 more are the same in all rows" in words[0]
    assert len(words) == 5
    assert "'pixel 17' and 2 more: leave them out" in words[-1]
