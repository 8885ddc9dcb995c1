"""Data that cannot be loaded: whose they are is said."""

import numpy as np
import pandas as pd
import pytest

import partita as pt
from partita.errors import InputError, ShardError
from partita.foundation.csv_files import read_csv

TABLE = pd.DataFrame({"x": [1.0, 2.0, 4.0], "y": [1.0, 3.0, 4.0]})


def fail():
    raise FileNotFoundError("there is no such share")


def test_a_function_that_cannot_load_is_told_with_its_site():
    model = pt.models.LinearRegression(features=1, noise=1.0)
    shard = np.ones((3, 1)), np.ones(3)
    words = "site south: data: the function that loads them failed with FileNotFoundError: there is no such share"
    with pytest.raises(ShardError, match=words):
        pt.fit(model, [shard, fail], names=["north", "south"])
    with pytest.raises(ShardError, match=words):
        pt.regress("y ~ x", {"north": TABLE, "south": fail}, quiet=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read as a table: FileNotFoundError"),
        ("", "empty CSV"),
        ("y,x\n", "its table has no rows"),
        ("y,x\n1,2,3\n", "cannot be read as a table"),
    ],
)
def test_a_file_that_is_no_table_is_told_with_its_site(tmp_path, text, words):
    file = tmp_path / "south.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=f"site south: .*{words}"):
        pt.regress("y ~ x", {"north": TABLE, "south": file}, quiet=True)


def test_what_is_no_table_at_all_is_told_with_its_site():
    with pytest.raises(InputError, match="site south: expected a file or a pandas or polars frame, got int"):
        pt.regress("y ~ x", {"north": TABLE, "south": 3}, quiet=True)


def test_a_csv_file_without_rows_is_told_as_such(tmp_path):
    (tmp_path / "empty.csv").write_text("x,y\n")
    with pytest.raises(InputError, match="empty.csv: has a header and no rows"):
        read_csv(tmp_path / "empty.csv", "y")


@pytest.mark.parametrize(("family", "words"), [("gaussian", "log evidence -"), ("poisson", "log evidence at least -")])
def test_the_log_evidence_of_an_exact_model_is_no_bound(family, words):
    found = pt.regress("y ~ x", {"a": TABLE, "b": TABLE}, family=family, quiet=True)
    assert words in str(found)
