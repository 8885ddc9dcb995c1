"""What sites answer is checked when it comes in: whoever is broken or lies is named, and nobody else crashes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import partita as pt
from partita.designs.columns import Column
from partita.engines import InProcess
from partita.errors import EngineError
from partita.formulas.agreement import agree
from partita.formulas.silos import Silos
from partita.wire import questions as q

pytest.importorskip("formulaic")
RNG = np.random.default_rng(8)
TABLE = pd.DataFrame({"age": RNG.normal(50, 9, 60), "arm": RNG.choice(["drug", "none"], 60), "ward": np.arange(60) % 6})
TABLE["y"] = 0.1 * TABLE.age + (TABLE.arm == "drug") + RNG.normal(size=60)
TABLE["ill"] = (TABLE.y > 5.5).astype(int)
TABLE.loc[::13, "age"] = np.nan
SITES = {"north": TABLE[:30], "south": TABLE[30:]}


class Lying(InProcess):
    """Sites in this process, of which the second answers one kind of question with something else."""

    def __init__(self, kind, lie, after=0):
        super().__init__()
        self.kind, self.lie, self.after = kind, lie, after

    def ask(self, question):
        answers = super().ask(question)
        if isinstance(answers[1], q.ANSWERS[self.kind]):
            self.after -= 1
            if self.after < 0:
                answers[1] = self.lie(answers[1])
        return answers


def changed(**fields):
    return lambda answer: replace(answer, **{name: make(getattr(answer, name)) for name, make in fields.items()})


LIES = [
    (q.Levels, lambda answer: None, "expected LevelsAnswer, got NoneType"),
    (q.Levels, changed(columns=lambda columns: columns[:1]), "columns: expected"),
    (q.Levels, changed(columns=lambda columns: (*columns, columns[0])), "columns: expected"),
    (q.Levels, changed(columns=lambda columns: [Column("age", (1, 2)), *columns[1:]]), "levels"),
    (q.Levels, changed(columns=lambda columns: None), "columns"),
    (q.Levels, changed(rows=lambda rows: -1), "rows: expected a whole number"),
    (q.Levels, changed(rows=lambda rows: rows + 0.5), "rows: expected a whole number"),
    (
        q.Levels,
        changed(columns=lambda columns: tuple(Column(one.name, tuple(map(str, range(1001)))) for one in columns)),
        "has 1,001 levels, at most 1,000",
    ),
    (q.Rows, lambda answer: q.DigestAnswer("x"), "expected RowsAnswer, got DigestAnswer"),
    (q.Rows, changed(rows=lambda rows: 0), "rows: none is complete"),
    (q.Rows, changed(rows=lambda rows: rows + 1), "rows of the table"),
    (q.Rows, changed(missing=lambda missing: "two"), "missing: expected a whole number"),
    (q.Rows, changed(groups=lambda groups: 3), "groups: 3 cannot be"),
    (q.Rows, changed(two_valued=lambda flags: flags[:1]), "two_valued: expected 2 columns"),
    (q.Rows, changed(digest=lambda digest: 7), "digest: expected text"),
    (q.Moments, changed(count=lambda count: count - 1), "complete rows"),
    (q.Moments, changed(count=lambda count: np.nan), "count"),
    (q.Moments, changed(count=lambda count: 0.0), "count: no row counts"),
    (q.Moments, changed(mean=lambda mean: mean[:1]), "mean and total"),
    (q.Moments, changed(mean=lambda mean: mean[:1], total=lambda total: total[:1]), "mean: expected 2 columns"),
    (q.Moments, changed(mean=lambda mean: mean * np.nan), "mean: expected finite numbers"),
    (q.Moments, changed(mean=lambda mean: ["a", "b"]), "mean: expected an array"),
    (q.Moments, changed(total=lambda total: -total), "size or total: is negative"),
    (q.Moments, changed(mean=lambda mean: mean + 1e6), "contradict each other"),
    (
        q.Moments,
        changed(
            mean=lambda mean: mean * 0 + 1e300, total=lambda total: total * 0 + 1e308, size=lambda size: size + 1e307
        ),
        "size: numbers are so large that squares have no room",
    ),
    (
        q.Moments,
        changed(target_mean=lambda mean: mean * 0 + 1e150, target_size=lambda size: size * 0 + 1e153),
        "target_size: numbers are so large that squares have no room",
    ),
    (q.Moments, changed(target_size=lambda size: size / 100), "target_mean, target_total and target_size: contradict"),
    (q.Products, changed(products=lambda products: products[:1]), "products: expected"),
    (q.Products, changed(products=lambda products: -products), "products: squares are negative"),
    (q.Products, changed(products=lambda products: products + np.triu([[0, 5], [0, 0]])), "not the same both ways"),
]


@pytest.mark.parametrize(("kind", "lie", "words"), LIES)
def test_answers_of_a_broken_site_are_refused_by_its_name(kind, lie, words):
    with pytest.raises(
        EngineError, match=f"^site south: its answer to the question '{kind.name}' .*{words}.*; compare"
    ):
        pt.regress("y ~ age + arm", SITES, engine=Lying(kind, lie), quiet=True)


@pytest.mark.parametrize("lie", [changed(value=lambda value: "much"), lambda answer: None])
def test_a_fit_is_not_lost_because_its_last_question_is_answered_with_nonsense(lie):
    with pytest.warns(
        RuntimeWarning, match=r"evidence is not known \(nan\): site south: its answer .*'evaluate' .*expected"
    ):
        found = pt.regress("y ~ age + arm", SITES, engine=Lying(q.Evaluate, lie), quiet=True)
    plain = pt.regress("y ~ age + arm", SITES, quiet=True)
    assert np.isnan(found.result.log_evidence)
    assert found.result.fingerprint == plain.result.fingerprint


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (changed(groups=lambda groups: None), "groups: None cannot be"),
        (changed(groups=lambda groups: 29), "rows cannot be in 29 groups of"),
        (changed(largest_group=lambda largest: 1), "rows cannot be in 6 groups of 1"),
    ],
)
def test_rows_fit_into_groups(lie, words):
    with pytest.raises(EngineError, match=words):
        pt.regress("y ~ age + (1 | ward)", SITES, engine=Lying(q.Rows, lie), quiet=True)


def test_a_site_has_as_many_rows_whenever_it_is_asked():
    lie = changed(rows=lambda rows: rows + 1)
    with pytest.raises(EngineError, match="site south: .*'rows' .*rows of the table: 30 now, and 31 before"):
        pt.regress("y ~ age + arm", SITES, engine=Lying(q.Levels, lie), quiet=True)


def test_what_is_fitted_is_no_more_than_there_is():
    lie = changed(rows=lambda rows: rows + 20)
    with pytest.raises(EngineError, match="site south: .*rows: .* are fitted of 28"):
        pt.regress("y ~ age + arm", SITES, held_out=0.3, engine=Lying(q.Rows, lie, after=1), quiet=True)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (changed(sums=lambda sums: {}), "sums: expected .*, got nothing"),
        (changed(sums=lambda sums: {**sums, "wrong": np.zeros(3)}), "sums: expected"),
        (changed(sums=lambda sums: {**sums, "wrong": np.array([-1.0])}), "sums: wrong is negative"),
        (changed(rows=lambda rows: rows + 1), "rows: 29 now, and 28 before"),
        (changed(sums=lambda sums: {**sums, "nll": np.array([np.inf])}), "nll: expected finite numbers"),
        (
            changed(sums=lambda sums: {**sums, "rows by confidence": 2 * sums["rows by confidence"]}),
            "rows by confidence are not 28 rows",
        ),
    ],
)
def test_sums_of_predictions_are_those_that_were_asked_for(lie, words):
    found = pt.regress("ill ~ age + arm", SITES, family="bernoulli", engine=Lying(q.Predict, lie), quiet=True)
    with pytest.raises(EngineError, match=f"site south: its answer to the question 'predict' .*{words}"):
        found.calibration()


def test_an_engine_gives_answers_of_those_who_were_asked():
    class Odd(InProcess):
        def ask(self, question):
            return self.change(super().ask(question))

    for change, words in ((lambda a: None, "gave NoneType where answers"), (lambda a: {**a, 7: a[0]}, "answer of 7")):
        engine = Odd()
        engine.change = change
        with pytest.raises(EngineError, match=words):
            pt.regress("y ~ age", SITES, engine=engine, quiet=True)


@pytest.mark.parametrize(
    ("kind", "lie", "words"),
    [
        (q.ColumnNames, changed(names=lambda names: ("a", "a")), "a column is there twice"),
        (q.Layout, changed(layout=lambda layout: {}), "KeyError: 'rows'"),
        (q.Layout, changed(scale=lambda scale: scale[:-1]), "location and scale: expected 2 numbers"),
        (q.Layout, changed(scale=lambda scale: -scale), "scale: has to be positive"),
        (q.Groups, changed(codes=lambda codes: np.array([1, 1])), "a group is there twice"),
        (q.Groups, changed(codes=lambda codes: codes + 0.5), "codes: expected an array of int64"),
        (q.Groups, changed(largest=lambda largest: 0), "largest: 0 rows cannot be"),
    ],
)
def test_programs_are_laid_out_by_sites_that_make_sense(kind, lie, words):
    def program(x, g, y):
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist

        slope, spread = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("spread", dist.HalfNormal(1))
        with numpyro.plate("groups", 4):
            own = numpyro.sample("own", dist.Normal(0, spread))
        numpyro.sample("y", dist.Normal(slope * x + jnp.take(own, g), 0.5), obs=y)

    class First(InProcess):
        def ask(self, question):
            answers = super().ask(question)
            return {**answers, 0: lie(answers[0])} if isinstance(answers[0], q.ANSWERS[kind]) else answers

    g, x = np.arange(40, dtype=np.int32) % 4, np.linspace(-1, 1, 40)
    model = pt.models.from_numpyro(program, ("x", "g", "y"), local={"groups": "g"})
    with pytest.raises(EngineError, match=f"site 0: its answer to the question '{kind.name}' .*{words}"):
        pt.fit(model, [(x, g, x)], schedule=pt.schedules.Synchronous(rounds=1), engine=First())


def test_several_formulas_of_one_connection_may_read_other_rows():
    with Silos.of(SITES, None).connected() as connection:
        rows = [
            sum(one.rows for one in agree(connection, f, "gaussian").counts.values()) for f in ("y ~ arm", "y ~ age")
        ]
    assert rows == [60, 55]
