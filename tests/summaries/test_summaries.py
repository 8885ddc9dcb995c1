"""Summaries across sites beside pandas on the pooled rows; and that no number that leaves a site is of a few."""

import csv
import html.parser
import io
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.designs.tallies import Cut
from partita.engines import InProcess
from partita.errors import EngineError, InputError
from partita.report.summaries import escape_latex, render, render_csv, render_latex, render_text
from partita.site.tallies import group_bins, group_cells, pool_parts, tabulate
from partita.summaries.distributions import Distribution
from partita.summaries.table_one import Group
from partita.wire import questions as q
from partita.wire.codec import decode_answer, decode_question, encode_answer, encode_question

RNG = np.random.default_rng(3)
ROWS = 1200
POOLED = pd.DataFrame(
    {
        "age": RNG.normal(50, 12, ROWS),
        "visits": RNG.poisson(3, ROWS),
        "income": np.exp(RNG.normal(10, 1.2, ROWS)),
        "sex": RNG.choice(["f", "m"], ROWS),
        "smokes": RNG.integers(0, 2, ROWS),
        "ward": RNG.choice(["a", "b", "c"], ROWS, p=[0.5, 0.3, 0.2]),
    }
)
POOLED.loc[RNG.random(ROWS) < 0.1, "age"] = np.nan
POOLED.loc[RNG.random(ROWS) < 0.1, "sex"] = None
SITES = {"north": POOLED[:500], "south": POOLED[500:700], "east": POOLED[700:]}
NUMBERS = ("age", "visits", "income")


class Wired(InProcess):
    """Sites behind the bytes that a network would carry, all of which are kept."""

    def ask(self, question):
        sent = encode_question(question)
        answers = super().ask(decode_question(question.name, sent))
        self.kept = {site: encode_answer(type(question), answer) for site, answer in answers.items()}
        return {site: decode_answer(type(question), payload) for site, payload in self.kept.items()}


@pytest.fixture(scope="module")
def found():
    return pt.summary(SITES, by="ward", cross=[("sex", "smokes"), ("ward", "sex")], engine=Wired())


def rows_of(group):
    if group.kind == "site":
        return SITES[group.name]
    return POOLED[POOLED.ward == group.name] if group.kind == "level" else POOLED


def test_numbers_and_levels_are_those_of_the_pooled_rows(found):
    assert found.columns == ("age", "visits", "income", "sex", "smokes")
    assert [group.name for group in found.groups()] == ["", "north", "south", "east", "a", "b", "c"]
    for group in found.groups():
        rows = rows_of(group)
        size = found.size(group)
        assert (size.rows, size.at_least) == (len(rows), False)
        for name in NUMBERS:
            one = found.numbers(name, group)
            assert (one.rows, one.missing, one.at_least) == (rows[name].count(), rows[name].isna().sum(), False)
            assert_allclose([one.mean, one.sd], [rows[name].mean(), rows[name].std()], rtol=1e-12)
        for name in ("sex", "smokes"):
            one = found.levels(name, group)
            counts = rows[name].astype(object).map(str, na_action="ignore").value_counts()
            assert one.counts == counts.to_dict()
            assert (one.others, one.missing, one.hidden) == (0, rows[name].isna().sum(), frozenset())
            assert one.share(counts.iloc[0]) == counts.iloc[0] / rows[name].count()


def test_quantiles_are_within_the_bounds_that_are_told(found):
    for group, name, share in itertools.product(found.groups(), NUMBERS, (0.25, 0.5, 0.75)):
        value, low, high = found.numbers(name, group).quantiles()[share]
        exact = rows_of(group)[name].quantile(share)
        assert low <= exact <= high
        assert low <= value <= high
    quartiles = found.numbers("age").quantiles().values()
    assert all(one.high - one.low < 3 for one in quartiles)
    # Whole numbers have a bin each.
    assert [one.value for one in found.numbers("visits").quantiles().values()] == [2, 3, 4]


def test_cross_tables_are_those_of_the_pooled_rows(found):
    for first, second in (("sex", "smokes"), ("ward", "sex")):
        cross = found.cross(first, second)
        exact = pd.crosstab(POOLED[first], POOLED[second])
        assert_array_equal(cross.counts, exact)
        assert cross.told.all()
        assert cross.others == ROWS - exact.to_numpy().sum()
    with pytest.raises(InputError, match="were not asked for together"):
        found.cross("smokes", "sex")


@pytest.mark.parametrize("unit", [1.0, 1.0437, 1e-5, 7e6])
def test_many_rows_at_an_end_have_a_bin_with_two_edges(unit):
    frame = pd.DataFrame({"x": np.repeat([0.0, 0.31, 9.0], [40, 10, 40]) * unit})
    found = pt.summary({"a": frame}).numbers("x")
    for share, exact in ((0.25, 0.0), (0.5, 0.31), (0.75, 9.0)):
        value, low, high = found.distribution.quantile(share)
        assert low <= exact * unit <= high
        assert value == pytest.approx(exact * unit, abs=0.3 * unit)


def test_histograms_have_every_row_about_where_it_is(found):
    for name in NUMBERS:
        distribution = found.numbers(name).distribution
        below = [(POOLED[name] < edge).sum() for edge in distribution.edges]
        assert np.all((distribution.least <= below) & (below <= distribution.most))
        shares = distribution.shares(np.linspace(distribution.edges[0], distribution.edges[-1], 9))
        assert shares.sum() == pytest.approx(1)


TABLES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=6, max_size=60)


@given(TABLES, st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_no_cell_is_small_and_no_difference_tells_one(rows, fewest):
    """Cells, their margins, and bins: each has no row or enough of them, and what is hidden could be many numbers."""
    first, second = np.array(rows).T
    one_way = group_cells(np.bincount(first, minlength=6), fewest)
    parts = group_cells(np.bincount(second, minlength=5), fewest)
    table = np.zeros((one_way.max() + 1, parts.max() + 1), int)
    np.add.at(table, (one_way[first], parts[second]), 1)
    pooled = pool_parts(table, fewest)
    told = np.zeros((pooled.max() + 1, len(table)), int)
    np.add.at(told, pooled, table.T)
    bins = group_bins(np.bincount(first, minlength=6), fewest)
    for counts in (table.sum(axis=0), table.sum(axis=1), told, bins[bins >= 0]):
        assert np.all((counts == 0) | (counts >= fewest)), counts
        assert counts.sum() == len(rows)
    # A hidden cell, given all margins of its block, can be any number of a range that is at least so wide.
    hidden = table[:, np.bincount(pooled)[pooled] > 1]
    total = hidden.sum()
    for i, j in np.ndindex(hidden.shape):
        row, column = hidden[i].sum(), hidden[:, j].sum()
        widest = min(row, column, total - row, total - column)
        # Or it follows, and then it is not small.
        assert widest >= fewest or hidden[i, j] == 0 or hidden[i, j] >= fewest


def test_what_leaves_a_site_has_no_small_cell_and_no_value_of_one_row():
    frame = POOLED[:60].assign(rare=["x"] * 58 + ["y", "z"], name=[f"person {i}" for i in range(60)])
    frame.loc[frame.index[0], "age"] = 987.654321
    frame.loc[frame.index[:2], "income"] = np.nan
    engine = Wired()
    summed = pt.summary({"north": frame, "south": POOLED[60:400].assign(rare="x", name="?")}, by="ward", engine=engine)
    sent = engine.kept[0]
    assert b"person" not in sent
    assert b"987.65" not in sent
    for tally in summed.answers["north"].tallies:
        counts = tally.get("counts", np.zeros(0))
        assert np.all((counts <= 0) | (counts >= 3))
    # The rare levels are with others, and the few that miss the income among the rest.
    rare = summed.levels("rare", Group("site", "north"))
    assert rare.counts == {"x": 0}
    assert rare.others == 60
    income = summed.numbers("income", Group("site", "north"))
    assert income.hides_missing
    assert (income.rows, income.missing) == (60, 0)
    assert summed.levels("name").counts == {"?": 340}
    assert summed.levels("name").others == 60
    assert "counts them among the others" in render_text(summed)


def test_a_level_that_a_site_does_not_tell_apart_is_a_lower_bound():
    small = POOLED[:60].copy()
    small["sex"] = ["f"] * 40 + ["m"] * 18 + ["x"] * 2
    summed = pt.summary({"north": small, "south": POOLED[60:].assign(sex="x")}, ["sex"])
    found = summed.levels("sex")
    assert found.counts == {"f": 40, "m": 0, "x": ROWS - 60}
    assert found.hidden == {"m", "x"}
    assert found.others == 20
    shown = render_text(summed)
    assert f"≥ {ROWS - 60:,}" in shown


def test_a_part_with_a_small_cell_is_not_broken_down_and_the_rest_is():
    frame = pd.DataFrame(
        {"ward": ["a"] * 30 + ["b"] * 20 + ["c"] * 20, "ill": [0, 1] * 15 + [0] * 19 + [1] + [0, 1] * 10}
    )
    summed = pt.summary({"north": frame}, by="ward")
    assert summed.levels("ill").counts == {"0": 44, "1": 26}
    assert summed.levels("ill", Group("level", "a")).counts == {"0": 15, "1": 15}
    for level in "bc":
        one = summed.levels("ill", Group("level", level))
        assert (one.counts, one.at_least) == ({"0": 0, "1": 0}, True)
    # With sites of one person each cell, everything is told.
    every = pt.summary({"north": frame}, by="ward", fewest_per_cell=1)
    assert every.levels("ill", Group("level", "b")).counts == {"0": 19, "1": 1}


@pytest.mark.parametrize("values", [(0, 1), (0, 7), (1, 0), (2.5, 9.25), (-4, 3)])
@pytest.mark.parametrize("few", [1, 2, 3])
@pytest.mark.parametrize("edges", [(0.5,), ()])
def test_means_tell_no_few_rows_that_are_unlike_the_others(values, few, edges):
    """A column of two values may be asked for as numbers, where another site has more of them; or to find a person."""
    wards, common = np.resize(["e", "n", "s", "w"], 200), np.full(200, values[0], float)
    x = np.where((np.arange(200) < 4 * few) & (wards == "n"), values[1], common)
    cuts = (Cut("x", None, edges), Cut("ward", ("e", "n", "s", "w")))
    answer = tabulate(pd.DataFrame({"x": x, "ward": wards}), q.Tabulate(cuts, "ward", (), 3))
    told = answer.tallies[0]
    if few < 3:
        # Of no ward, for that of all would be the same number.
        assert not told["told"].any()
        assert not told["mean"].any()
        assert not told["total"].any()
        return
    assert told["told"].all()
    assert_allclose(told["mean"][int(told["parts"][1])], x[wards == "n"].mean())
    assert_allclose(told["mean"][int(told["parts"][0])], values[0])


def test_parts_that_are_alike_but_for_a_few_rows_are_told_together():
    x = np.zeros(200)
    # One in ward "e", one in "n", and many in "s".
    x[[0, 1, *range(2, 80, 4)]] = 1
    cuts = (Cut("x", None, (0.5,)), Cut("ward", ("e", "n", "s", "w")))
    frame = pd.DataFrame({"x": x, "ward": np.resize(["e", "n", "s", "w"], 200)})
    answer = tabulate(frame, q.Tabulate(cuts, "ward", (), 3))
    told = answer.tallies[0]
    sums = told["mean"] * np.bincount(told["parts"].astype(int), weights=answer.sizes)
    assert set(sums.round(9)) <= {0.0, 22.0}
    assert told["told"].all()
    summed = pt.summary({"a": frame.assign(x=x), "b": frame.assign(x=np.arange(200) % 7)}, ["x"], by="ward")
    assert summed.numbers("x").mean == pytest.approx(np.concatenate([x, np.arange(200) % 7]).mean())


MARKUP = "<script>alert(1)</script>&\"'{}\\end{tabular}%$#_^~"
HOSTILE = {
    "markup": pd.DataFrame({MARKUP: [1.5, 2.5, 4.0, 9.0] * 5, "b": [MARKUP, "=1+1"] * 10}),
    "control": pd.DataFrame({"a\x1b]0;owned\x07": [1.0, 2.0] * 10, "b": ["\x1b[31m", "\u202e"] * 10}),
    "levels": pd.DataFrame({"id": [f"p{i}" for i in range(10_000)], "x": np.arange(10_000.0)}),
    "missing": pd.DataFrame({"x": [np.nan] * 12, "b": [None] * 12, "y": [np.nan] * 11 + [1.0]}),
    "constant": pd.DataFrame({"x": [3.7] * 12, "k": [4] * 12, "z": [0.0] * 12, "b": ["same"] * 12}),
    "infinite": pd.DataFrame({"x": [np.inf, -np.inf, 1.5, np.nan] * 5, "y": [1e300, 2.5, 3.5, 4.5] * 5}),
    "dates": pd.DataFrame({"when": pd.date_range("2020-01-01", periods=12), "x": np.arange(12.0) + 0.5}),
    "tiny": pd.DataFrame({"x": np.arange(20) * 1e-300, "y": np.arange(20) * 1e120 + 0.5}),
    "kinds": pd.DataFrame({"b": [True, False] * 6, "c": pd.Categorical(["u", "v"] * 6), "n": [2**60, 1] * 6}),
    "empty": pd.DataFrame({"": ["", "q"] * 6, "x": np.arange(12.0)}),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("fewest", [1, 3])
def test_hostile_tables_are_summed_up_and_shown(kind, fewest):
    summed = pt.summary({"a": HOSTILE[kind], "b": HOSTILE[kind]}, fewest_per_cell=fewest, engine=Wired())
    page, text, table, tex = (render(summed, how) for how in ("html", "text", "csv", "latex"))
    assert "<script" not in page
    assert not any(character in page + text + table + tex for character in "\x1b\x07\u202e")
    rows = list(csv.DictReader(io.StringIO(table)))
    assert not any(cell.startswith(("=", "@")) for row in rows for cell in row.values())
    check_page(page)
    check_latex(tex)


def test_hostile_values_are_what_they_should_be():
    def sum_up(kind, **more):
        return pt.summary({"a": HOSTILE[kind]}, **more)

    infinite = sum_up("infinite").numbers("x")
    assert (infinite.rows, infinite.missing, infinite.mean) == (5, 15, 1.5)
    assert sum_up("dates").columns == ("x",)
    assert "when: left out, because it holds dates" in sum_up("dates").notes[0]
    levels = sum_up("levels")
    assert levels.levels("id").counts == {}
    assert levels.levels("id").others == 10_000
    assert "is it a name, or a text?" in levels.notes[0]
    missing = sum_up("missing")
    assert missing.levels("x").missing == 12
    # One row with a number is not told of: all twelve are one cell.
    assert (missing.levels("y").others, missing.levels("y").missing) == (12, 0)
    every = sum_up("missing", fewest_per_cell=1).levels("y")
    assert (every.counts, every.missing) == ({"0": 0, "1": 1}, 11)
    constant = sum_up("constant").numbers("x")
    assert constant.sd == pytest.approx(0, abs=1e-12)
    assert constant.quantiles()[0.5].value == pytest.approx(3.7, rel=1e-5)
    assert sum_up("constant").numbers("k").quantiles()[0.5] == (4, 4, 4)


def test_tables_that_cannot_be_summed_up_are_told():
    frame = POOLED[:50]
    cases = [
        ({"a": frame[:1]}, {}, "site a: its table has fewer than 3 rows"),
        ({"a": frame, "b": frame[:0]}, {}, "site b: its table has no rows"),
        ({"a": frame}, {"columns": ["height"]}, "site a: has no column 'height'"),
        ({"a": frame}, {"columns": "age"}, "columns: expected a list of names"),
        ({"a": frame}, {"by": "age"}, "column 'age': has to have levels"),
        ({"a": frame}, {"by": "height"}, "column 'height': has to have levels"),
        ({"a": frame}, {"cross": [("sex", "sex")]}, "cross: expected pairs of different columns"),
        ({"a": frame}, {"cross": ["sex"]}, "cross: expected pairs"),
        ({"a": frame}, {"fewest_per_cell": 0}, "fewest_per_cell"),
        ({"a": frame, "b": frame.assign(age="old")}, {}, "column 'age': is numbers at site a, text at site b"),
        ({"a": frame[["age"]], "b": frame[["sex"]]}, {}, "no column in common"),
        ({"a": pd.concat([frame, frame[["age"]]], axis=1)}, {}, "has 'age' twice"),
    ]
    for sites, more, words in cases:
        with pytest.raises(InputError, match=words):
            pt.summary(sites, **more)
    one = pt.summary({"a": frame[:1]}, ["age"], fewest_per_cell=1).numbers("age")
    assert (one.rows, one.mean) == (1, frame.age.iloc[0])
    assert np.isnan(one.sd)
    some = pt.summary({"a": frame, "b": frame.drop(columns="sex")})
    assert "sex" not in some.columns
    assert "sex: left out, because not all sites have it" in some.notes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tally: tally["counts"].__setitem__((0, 0), 1.0), "0 or at least 3"),
        (lambda tally: tally["counts"].__setitem__((0, 0), 1000.0), "are not all rows"),
        (lambda tally: tally["counts"].__setitem__((0, 0), -5.0), "are negative"),
        (lambda tally: tally["parts"].__setitem__(0, 9.0), "expected a group"),
        (lambda tally: tally["total"].__setitem__(0, -1.0), "total: is negative"),
        (lambda tally: tally.pop("mean"), "expected"),
        (lambda tally: tally.__setitem__("counts", tally["counts"][:, 1:]), "expected .* bins"),
    ],
)
def test_answers_that_cannot_be_are_refused_with_the_sites_name(change, words):
    class Lying(InProcess):
        def ask(self, question):
            answers = super().ask(question)
            if isinstance(question, q.Tabulate):
                change(answers[1].tallies[0])
            return answers

    with pytest.raises(EngineError, match=f"site south.*{words}"):
        pt.summary({"north": POOLED[:50], "south": POOLED[50:99]}, ["age"], engine=Lying())


def test_quantiles_of_counts_are_those_of_numbers():
    values = np.array([1, 2, 2, 3, 10, 11, 12, 40])
    edges = np.arange(0.5, 45)
    counts = np.histogram(values, [-np.inf, *edges, np.inf])[0]
    exact = Distribution.of_counts(edges, [counts], whole=True)
    for share in (0.0, 0.1, 0.25, 0.5, 0.75, 1.0):
        value, low, high = exact.quantile(share)
        assert low <= np.quantile(values, share) <= high
        assert low <= value <= high
    nothing = Distribution.of_counts((), [])
    assert np.isnan(nothing.quantile(0.5).value)
    with pytest.raises(InputError, match="edges in order"):
        Cut("x", None, (2.0, 1.0))


class Checker(html.parser.HTMLParser):
    """Every element that is opened is closed, and there are none that the page does not make itself."""

    KNOWN = (
        *("html", "head", "meta", "link", "title", "style", "body", "h1", "h2", "p", "div", "ul", "li", "br"),
        *("table", "thead", "tbody", "tr", "td", "th", "svg", "rect"),
    )

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        assert tag in self.KNOWN
        if tag not in ("meta", "link", "br", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in self.KNOWN

    def handle_endtag(self, tag):
        if tag != "rect":
            assert self.open.pop() == tag


def check_page(page):
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert "http" not in page.replace("http-equiv", "")


def check_latex(tex):
    """Braces are balanced, and what is special stands only where it is meant."""
    depth = 0
    for line in tex.splitlines()[1:]:
        plain = line.replace("\\\\", "  ")
        for escaped in ("\\{", "\\}", "\\%", "\\$", "\\#", "\\_", "\\&"):
            plain = plain.replace(escaped, "  ")
        depth += plain.count("{") - plain.count("}")
        assert depth >= 0
        assert not set('%#_~^<>|"') & set(plain), line
        assert plain.replace("$\\geq$", "").count("$") == 0
        # After the end of a row, these would be its options.
        assert not line.startswith(("*", "["))
    assert depth == 0
    assert tex.count("\\begin{") == tex.count("\\end{")


def test_latex_shows_what_it_is_given():
    assert escape_latex("50 % of A_1 & {B} #1 $5 ~ ^ \\end") == (
        r"50 \% of A\_1 \& \{B\} \#1 \$5 \textasciitilde{} \textasciicircum{} \textbackslash{}end"
    )


def test_every_line_has_as_many_cells_as_groups(found):
    tex = render_latex(found)
    body = tex[tex.index(r"\midrule") : tex.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.startswith(r"\quad")]
    assert len(rows) > 8
    assert all(line.count(" & ") == len(found.groups()) for line in rows)
    text = render_text(found)
    assert "(n = 1,200)" in text
    assert "at most: age" in text
    values = {
        (row["column"], row["statistic"], row["of"], row["group"]): row["value"]
        for row in csv.DictReader(io.StringIO(render_csv(found)))
    }
    assert float(values["age", "mean", "site", "south"]) == pytest.approx(SITES["south"].age.mean(), rel=1e-12)
    assert int(values["", "rows", "level", "b"]) == (POOLED.ward == "b").sum()


def test_the_command_writes_every_format(tmp_path):
    files = []
    for name, frame in SITES.items():
        files.append(str(tmp_path / f"{name}.csv"))
        frame.to_csv(files[-1], index=False)
    runner = CliRunner()
    command = ["summary", *files, "--by", "ward", "--cross", "sex,smokes", "--columns", "age,sex"]
    text = runner.invoke(app, command)
    assert text.exit_code == 0, text.output
    assert "sex by smokes, all sites" in text.stdout
    for how, words in (("html", "<table>"), ("csv", "column,level"), ("latex", r"\toprule")):
        out = tmp_path / how
        assert runner.invoke(app, [*command, "--format", how, "--out", str(out)]).exit_code == 0
        assert words in out.read_text()
    *rows, last = map(json.loads, runner.invoke(app, [*command, "--json"]).stdout.splitlines())
    assert (last["event"], last["rows"], last["sites"]) == ("summary", ROWS, ["north", "south", "east"])
    assert {"group": "", "of": "all", "statistic": "rows", "value": ROWS, "at_least": False} in rows
    wrong = runner.invoke(app, [*command, "--format", "pdf"])
    assert "format: expected one of text, html, csv, latex" in str(wrong.exception)
