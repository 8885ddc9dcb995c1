"""What a formula may say: rows are read alone, or not at all."""

import numpy as np
import pandas as pd
import patsy
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from numpy.testing import assert_allclose

import partita as pt
from partita.designs import language
from partita.designs.language import parse
from partita.errors import InputError
from silo_tables import read_design

# Terms, and what of them is named.
WHOLE_COLUMNS = {
    "I(x - x.mean())": "x.mean()",
    "I((x - np.mean(x)) / np.std(x))": "np.mean(x)",
    "np.max(x)": "np.max(x)",
    "x.rank()": "x.rank()",
    "np.sort(x)": "np.sort(x)",
    "np.cumsum(x)": "np.cumsum(x)",
    "x.shift(1)": "x.shift(1)",
    "x.diff()": "x.diff()",
    "lag(x)": "lag(x)",
    "I(x - min(x))": "min(x)",
    "{x[::-1]}": "x[::-1]",
    "{len(x) * x}": "len(x)",
    "{x.values[0] * x}": "x.values[0]",
    "np.add.reduce(x)": "np.add.reduce(x)",
    "np.linalg.norm(x)": "np.linalg.norm(x)",
    "np.matmul(x, x)": "np.matmul(x, x)",
    "np.where(x > np.median(x), 1, 0)": "np.median(x)",
    "np.where(x > 1)": "np.where(x > 1)",
    "np.clip(x, np.min(x), 1)": "np.min(x)",
    "x.clip(x.min(), 3)": "x.clip(x.min(), 3)",
    "np.digitize(x, np.quantile(x, 0.5))": "np.digitize(x, np.quantile(x, 0.5))",
    "pd.qcut(x, 4)": "pd.qcut(x, 4)",
    "{(lambda c: c - c.mean())(x)}": "lambda c",
    "{[i for i in x]}": "[i for i in x]",
    "{x if x.any() else 0}": "x if x.any() else 0",
    "C(arm, contr.treatment(arm.max()))": "arm.max()",
    "bs(x, knots=[x.mean()], lower_bound=0, upper_bound=1)": "bs(x, knots=[x.mean()]",
    "center(x)": "center(x)",
    "scale(x)": "scale(x)",
    "scale(x, center=3)": "scale(x, center=3)",
    "scale(x, 3, True)": "scale(x, 3, True)",
    "standardize(x)": "standardize(x)",
    "poly(x, 2)": "poly(x, 2)",
    "bs(x, df=4)": "bs(x, df=4)",
    "bs(x, knots=[1, 2])": "bs(x, knots=[1, 2])",
    "bs(x, df=5, lower_bound=0, upper_bound=1)": "bs(x, df=5",
    "cr(x, df=4, lower_bound=0, upper_bound=1)": "cr(x, df=4",
    "cr(x, knots=[0.5], lower_bound=0, upper_bound=1, constraints='center')": "cr(x",
}


@pytest.mark.parametrize("term", WHOLE_COLUMNS)
def test_functions_of_a_whole_column_are_refused_by_name(term):
    for formula in (f"y ~ {term}", f"y ~ z:{term}", f"{term} ~ z"):
        with pytest.raises(InputError, match="a row's value from that row alone|depends on all data") as caught:
            parse(formula)
        assert WHOLE_COLUMNS[term] in str(caught.value)


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("y ~ {__import__('os').system('true')}", "from that row alone"),
        ("y ~ {().__class__.__base__}", "from that row alone"),
        ("y ~ {np.__loader__}", "from that row alone"),
        ("y ~ C(x, contr.__class__)", "from that row alone"),
        ("y ~ I(10**10**10 * x)", "write the number"),
        ("y ~ I(" + "(" * 150 + "x" + "+ 1)" * 150 + ")", "nested too deeply"),
        ("y ~ " + "x + " * 6000 + "x", "something like"),
        ("y ~ I(x and z)", "write & for and"),
        ("y ~ np.where(x > 1, 'a', 'b')", "can only be compared with"),
        ("y ~ log(wt.loss)", "backticks, `wt.loss`"),
        ("y ~ Q(x)", "name in quotes"),
        ("y ~ a | b", "random intercept"),
        ("y ~ a ~ b", "something like"),
        ("y ~ " + "*".join(f"x{i}" for i in range(40)), "more than 10,000 terms"),
        ("y ~ (a + b + c)**99", "more than 10,000 terms"),
        ("y ~ ((a + b)**9)**9", "more than 10,000 terms"),
        ("y ~ poly(x, 51, raw=True)", "at most 50"),
        ("y ~ poly(x, 2.5, raw=True)", "whole number"),
        ("y ~ sqrt(x)", "write np.sqrt"),
        ("y ~ round(x)", "write np.round"),
        ("y ~ factor(x)", "C\\(column\\)"),
        ("y ~ I(x^2)", r"write \*\* for powers"),
        ("y ~ Intercept + x", "taken for the formula's own"),
        (3, "something like"),
    ],
)
def test_what_else_a_formula_cannot_say(formula, words):
    with pytest.raises(InputError, match=words):
        parse(formula)


def table(rows=240):
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "x": rng.uniform(0.5, 9.5, rows),
            "z": rng.normal(size=rows),
            "wt.loss": rng.normal(size=rows),
            "arm": rng.choice(["a", "b", "c"], rows),
        }
    )
    frame["y"] = rng.poisson(np.exp(1 + np.sin(frame.x) + 0.3 * frame["wt.loss"]))
    # Sites with very different rows, so that whatever depends on a site's own would show.
    frame = frame.sort_values("x", ignore_index=True)
    return frame, {"low": frame[: rows // 3], "high": frame[rows // 3 :]}


TABLE, SITES = table()
BY_ROW = {
    "bs(x, knots=[3, 6], lower_bound=0, upper_bound=10)": None,
    "bs(x, knots=[5], degree=2, lower_bound=0, upper_bound=10, include_intercept=False)": None,
    "cr(x, knots=[3, 6], lower_bound=0, upper_bound=10)": None,
    "cc(x, knots=[3, 6], lower_bound=0, upper_bound=10)": None,
    "poly(x, 3, raw=True)": "x + I(x**2) + I(x**3)",
    "scale(x, center=5, scale=2)": "I((x - 5) / 2)",
    "standardize(x, center=5, rescale=2)": "I((x - 5) / 2)",
    "np.log(x) + np.sqrt(x) + np.maximum(z, 0) + np.sin(2 * np.pi * x)": None,
    "np.where((x > 3) & ~(z > 0), x, 2)": None,
    "I(arm == 'b')": "I(1 * (arm == 'b'))",
    "I((arm == 'b') | (x < 2))": "I(1 * ((arm == 'b') | (x < 2)))",
    "np.clip(x, 2, None)": None,
    "x.clip(1, 5) + x.between(2, 3)": "x.clip(1, 5) + I(1 * x.between(2, 3))",
    "Q('wt.loss') + I(Q(\"wt.loss\")**2)": None,
    "C(arm, Treatment('b')):x": None,
    "C(arm, contr.sum)": "C(arm, Sum)",
}


@pytest.mark.parametrize("right", BY_ROW)
def test_functions_of_a_row_are_read_as_on_pooled_data(right):
    """The same columns as patsy has of all rows at once."""
    _, parts = read_design(f"y ~ {right}", "poisson", SITES)
    pooled = patsy.dmatrix(BY_ROW[right] or right, TABLE, return_type="dataframe")
    X = np.concatenate([rows.X for rows in parts.values()])
    expected = pooled.drop(columns="Intercept").to_numpy()
    if right.startswith(("cr", "cc")):
        # Another basis: patsy keeps one column more, which with the intercept spans the same functions.
        both = [np.column_stack([np.ones(len(X)), one]) for one in (X, expected)]
        assert_allclose(_projector(both[0]), _projector(both[1]), atol=1e-8)
    else:
        assert_allclose(X, expected, atol=1e-12)


def _projector(X):
    U, d, _ = np.linalg.svd(X, full_matrices=False)
    U = U[:, d > 1e-9 * d[0]]
    return U @ U.T


def test_a_spline_is_fitted_as_on_pooled_data():
    right = "bs(x, knots=[3, 6], lower_bound=0, upper_bound=10) + Q('wt.loss')"
    found = pt.regress(f"y ~ {right}", SITES, family="poisson", prior_scale=10)
    fitted = smf.glm(f"y ~ {right}", TABLE, family=sm.families.Poisson()).fit()
    for row, value, error in zip(found.coefficients(), fitted.params, fitted.bse, strict=True):
        assert abs(row["mean"] - value) < 0.1 * error, row["name"]
        assert 0.97 < row["sd"] / error < 1.03, row["name"]


def test_a_row_outside_of_bounds_is_told_with_its_site():
    with pytest.raises(InputError, match="site high: the formula cannot be evaluated: .*bounds"):
        pt.regress("y ~ bs(x, lower_bound=0, upper_bound=8)", SITES, family="poisson")


def test_whatever_gets_through_is_evaluated_on_some_rows_alone(monkeypatch):
    monkeypatch.setattr(language, "METHODS", (*language.METHODS, "rank"))
    with pytest.raises(InputError, match="site low: the formula gives a row other values if it is alone"):
        read_design("y ~ x.rank()", "poisson", SITES)


def test_levels_that_are_named_are_all_of_them():
    design, _ = read_design("y ~ C(arm, levels=['c', 'b', 'a'])", "poisson", SITES)
    assert [name[-4:] for name in design.names] == ["T.b]", "T.a]"]
    with pytest.raises(InputError, match="leaves out levels that sites have"):
        read_design("y ~ C(arm, levels=['c', 'b'])", "poisson", SITES)


def test_more_coefficients_than_a_posterior_can_have():
    frame = pd.DataFrame({name: [f"{name}{i}" for i in range(300)] for name in "ab"} | {"y": np.arange(300.0)})
    with pytest.raises(InputError, match="up to 90601 coefficients"):
        read_design("y ~ C(a) * C(b)", "gaussian", {"all": frame})


def test_interactions_that_are_few_are_written_out():
    formula = "y ~ a * b * c + (d + e + f)**2 + g / h + " + " + ".join(f"x{i}" for i in range(300))
    assert len(parse(formula).expanded) == 1 + 7 + 6 + 2 + 300


def test_names_with_dots_are_found():
    design, _ = read_design("y ~ wt.loss + log(1 + `wt.loss`**2)", "poisson", SITES)
    assert design.names == ("wt.loss", "log(1 + `wt.loss` ** 2)")


@pytest.mark.parametrize(
    "formula",
    ["y ~ y + x", "np.log(y) ~ y", "y ~ x + np.log(y)", "y ~ x:y", "I(a - b) ~ a + b", "y ~ x + (1 | y)", "C(y) ~ y"],
)
def test_a_target_that_would_explain_itself_is_refused(formula):
    with pytest.raises(InputError, match=r"explained by itself; leave `[ay]`.* out of the right side"):
        parse(formula)


def test_a_change_may_be_explained_by_where_it_began():
    assert parse("I(after - before) ~ before + arm").inputs == ("arm", "before")
    assert parse("y ~ x - y").inputs == ("x",)
    with pytest.raises(InputError, match="the target, left of ~, is no column"):
        parse("1 ~ x")
