"""Frames whose columns are named, moved, of other kinds or in other units: by `fit`, `partial_fit` and estimators."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import statsmodels.api as sm

import partita as pt
from partita.errors import InputError, ShardError

GENERATOR = np.random.default_rng(0)
NUMBERS = GENERATOR.normal(size=(200, 3))
TABLE = pd.DataFrame(NUMBERS, columns=["age", "dose", "weight"])
Y = NUMBERS @ [1.0, 2.0, -1.0] + 0.1 * GENERATOR.normal(size=200)
MODEL = pt.models.LinearRegression(features=3)
MOVED = ["weight", "age", "dose"]
FIRST, SECOND = slice(0, 100), slice(100, 200)


@pytest.mark.parametrize("frame", [pd.DataFrame, lambda table: pl.DataFrame({name: table[name] for name in table})])
def test_columns_are_found_by_their_names(frame, tmp_path):
    first, second = frame(TABLE[FIRST]), frame(TABLE[SECOND][MOVED])
    state = pt.partial_fit(MODEL, (first, Y[FIRST]))
    state.save(tmp_path / "state")
    stream = pt.partial_fit(pt.load(tmp_path / "state"), (second, Y[SECOND]))
    reference = sm.OLS(Y, np.column_stack([NUMBERS, np.ones(200)])).fit()
    np.testing.assert_allclose(stream.posterior.location, reference.params, atol=0.05)
    at_sites = pt.fit(MODEL, [(first, Y[FIRST]), (second, Y[SECOND])])
    np.testing.assert_allclose(at_sites.posterior.location, reference.params, atol=0.05)
    for result in (stream, at_sites):
        np.testing.assert_array_equal(result.predict(frame(TABLE[MOVED])), result.predict(frame(TABLE)))


def test_other_columns_are_refused():
    state = pt.partial_fit(MODEL, (TABLE, Y))
    with pytest.raises(InputError, match="age missing; years unknown"):
        pt.partial_fit(state, (TABLE.rename(columns={"age": "years"}), Y))
    with pytest.raises(InputError, match="weight missing"):
        state.predict(TABLE[["age", "dose"]])
    with pytest.raises(ShardError, match="site 1: X: expected the columns age, dose, weight"):
        pt.fit(MODEL, [(TABLE, Y), (TABLE.rename(columns={"age": "years"}), Y)])
    with pytest.warns(UserWarning, match="no names of columns: taken as age, dose, weight"):
        pt.partial_fit(state, (NUMBERS, Y))


KINDS = {
    "dates": (pd.date_range("2020-01-01", periods=200), "dates"),
    "dates with a zone": (pd.date_range("2020-01-01", periods=200, tz="Europe/Berlin"), "dates"),
    "spans": (pd.to_timedelta(np.arange(200), unit="D"), "dates"),
    "categories": (pd.Categorical(["low", "high"] * 100), "text or categories"),
    "text": (["low", "high"] * 100, "text or categories"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_hold_no_numbers_are_named(kind):
    values, words = KINDS[kind]
    table = TABLE.assign(dose=values)
    regressor, process = pt.PartitionedRegressor(), pt.StreamingGPRegressor(hyperparameters="fixed", move_points=False)
    takers = [lambda: pt.partial_fit(MODEL, (table, Y)), lambda: pt.fit(MODEL, [(table, Y)])]
    takers += [lambda: regressor.partial_fit(table, Y), lambda: process.partial_fit(table, Y)]
    for taker in takers:
        with pytest.raises(ShardError, match=f"dose: holds {words}"):
            taker()


def test_targets_that_are_dates_and_sparse_rows_are_refused():
    with pytest.raises(ShardError, match="site 0: y: .*dates"):
        pt.partial_fit(MODEL, (NUMBERS, pd.Series(KINDS["dates with a zone"][0])))
    with pytest.raises(ShardError, match="site 0: X: .*toarray"):
        pt.partial_fit(MODEL, (scipy.sparse.csr_array(NUMBERS), Y))


@pytest.mark.parametrize("factors", [(1000, 1), (0.001, 1), (1, 1000)])
def test_another_unit_is_said_aloud(factors):
    inputs, targets = factors
    state = pt.partial_fit(MODEL, (NUMBERS, Y))
    regressor = pt.PartitionedRegressor().partial_fit(NUMBERS, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = pt.partial_fit(state, (3 * NUMBERS + 1, 3 * Y))
    batch = NUMBERS * [1, inputs, 1], targets * Y
    with pytest.warns(UserWarning, match="far from all before it: has it other units"):
        pt.partial_fit(state, batch)
    with pytest.warns(UserWarning, match="far from all before it: has it other units"):
        regressor.partial_fit(*batch)


def test_a_level_that_nobody_has_is_no_other_unit():
    X = np.column_stack([NUMBERS[:, :2], np.arange(200) % 2])
    state = pt.partial_fit(MODEL, (X, Y))
    pt.partial_fit(state, (X[::2], Y[::2]))
