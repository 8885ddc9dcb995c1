"""A server that asks beyond the formula or the program that was approved is refused, and the site's log has it."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from memory_federation import MemoryFederation
from partita.cli import app
from partita.designs.columns import Column
from partita.designs.design import Design
from partita.designs.regressions import rebuild_model
from partita.errors import ConfigError
from partita.federation.folders import read_server
from partita.federation.new import plan_formula, plan_program
from partita.formulas.agreement import agree
from partita.formulas.silos import Silos
from partita.models import NumPyroModel, prior_of
from partita.server.ledger import Ledger
from partita.site.approval import describe_proposal, read_proposal
from partita.site.consent import MOST_AGREED
from partita.site.gate import CANNOT, Site
from partita.site.held import Held
from partita.site.settings import read_site
from partita.wire.agreed import MOST, Agreed
from partita.wire.codec import encode_question
from partita.wire.messages import encode_task
from partita.wire.questions import Groups, Layout, Levels, Moments, Predict, Products, Rows

pytest.importorskip("flwr")
pytest.importorskip("cryptography")
FORMULA = "ill ~ age + C(ward)"
ROWS = 40
GENERATOR = np.random.default_rng(1)
TABLE = pd.DataFrame(
    {
        "age": GENERATOR.normal(50, 10, ROWS).round(3) + 0.0001,
        "ward": np.resize(["easternmost", "westernmost"], ROWS),
        "ill": (GENERATOR.random(ROWS) < 0.5).astype(float),
        "secret": GENERATOR.normal(0, 1e3, ROWS),
        "family": np.repeat(np.arange(ROWS // 4), 4),
    }
)
DATA = [repr(number) for name in ("age", "secret") for number in TABLE[name].tolist()] + ["easternmost", "westernmost"]


class Asking:
    """A site with a table under an approved recipe, and a server that asks it what it likes."""

    def __init__(self, tmp_path, monkeypatch, plan, table=TABLE, said=""):
        self.ours = MemoryFederation(tmp_path / "ours", plan, ("a",), monkeypatch)
        self.ours.write_table("a", table, said)
        self.folder = self.ours.site_folder("a")
        self.site = Site(self.folder, accepts=True)
        self.recipe = read_server(self.ours.folder).recipe

    def ask(self, kind, content=None, **changes):
        payload = b""
        if content is not None:
            payload = content if isinstance(content, bytes) else encode_question(content)
        request = {**self.recipe.greeting, "site": 0, "payload": payload, **changes}
        reply = self.site.answer(kind, {key: value for key, value in request.items() if value is not None})
        audit = (self.folder / "run" / "audit.jsonl").read_text().splitlines()[-1]
        words = reply.get("error", "")
        assert (json.loads(audit)["outcome"] == "refused") == bool(words)
        assert not any(one in words or one in audit for one in DATA)
        return words

    def refuses(self, kind, content=None, **changes):
        words = self.ask(kind, content, **changes)
        assert words
        return words


@pytest.fixture
def asking(tmp_path, monkeypatch):
    return Asking(tmp_path, monkeypatch, plan_formula(FORMULA, "bernoulli", ["a"]))


def read(formula, family="bernoulli", **options):
    with Silos.of({"a": TABLE}, None).connected() as connection:
        return agree(connection, formula, family, **options).reading


def told(recipe, reading, **changes):
    """What a server says that sites have agreed on, and a digest of what it computes."""
    model = rebuild_model(reading.design)
    # As a fit says it: rows are numbered by groups for programs alone.
    reading = reading if isinstance(model, NumPyroModel) else replace(reading, first_groups=())
    return {"agreed": Agreed.of(model, reading).encode(), "digest": recipe.digest_of(model), **changes}


def test_what_belongs_to_the_formula_is_answered(asking):
    reading = read(FORMULA)
    model = rebuild_model(reading.design)
    assert asking.ask("about") == ""
    assert asking.ask("levels", Levels(("age", "ill", "ward"), ("ward",))) == ""
    for question in (Rows(reading), Moments(reading), Products(np.array([0]), np.zeros(1), np.ones(1), reading)):
        assert asking.ask(question.name, question) == ""
    (task,) = Ledger(prior_of(model, model.hyper), 1).dispatch([0], model.hyper)
    assert asking.ask("refine", encode_task(task), **told(asking.recipe, reading)) == ""
    # Other middles and units are what sites agree on; how far shards are padded is bounded.
    other = replace(reading, design=replace(reading.design, centre=reading.design.centre + 1))
    assert asking.ask("refine", encode_task(task), **told(asking.recipe, other), capacity=10**12) == ""
    assert asking.ask("refine", encode_task(task), **told(asking.recipe, other), capacity=64) == ""


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (lambda: Levels(("age", "ill", "secret", "ward"), ("ward",)), "levels of other columns"),
        (lambda: Levels(("age", "ill", "ward"), ("age", "ward")), "levels of other columns"),
        (lambda: Levels(("age", "ill", "ward"), ("ward",), "family"), "levels of other columns"),
        (lambda: Rows(read("ill ~ age + secret")), "another formula"),
        (lambda: Rows(read("ill ~ age + C(ward) + (1 | family)")), "another formula"),
        (lambda: Rows(read(FORMULA, weights="family")), "another formula, family, group or weights"),
        (lambda: Moments(read("ill ~ age + C(ward)", family="gaussian")), "another formula, family"),
        (lambda: Rows(read(FORMULA, held_out=0.5, seed=1)), "other rows held out"),
        (lambda: Moments(), "rows that the formula does not read"),
        (lambda: Products(np.array([0]), np.zeros(1), np.ones(1)), "rows that the formula does not read"),
    ],
)  # fmt: skip
def test_questions_beyond_the_formula_are_refused(asking, question, why):
    asked = question()
    words = asking.refuses(asked.name, asked)
    assert words.startswith("its policy refuses this (approval): the server asks beyond the approved recipe: ")
    assert why in words


def test_terms_are_compared_and_not_their_words(asking):
    """What is evaluated are the terms that travel, so that a formula's words alone say nothing."""
    other = read("ill ~ secret")
    disguised = replace(other, design=replace(other.design, formula=FORMULA))
    assert "(approval): the server asks beyond the approved recipe: other terms" in asking.refuses(
        "rows", Rows(disguised)
    )
    assert "other terms" in asking.refuses("about", **told(asking.recipe, disguised))


def test_other_questions_are_refused_for_a_formula(asking):
    reading = read(FORMULA)
    predict = Predict(reading, 0, np.zeros((2, 3)), {})
    for question in (Layout(), Groups()):
        words = asking.refuses(question.name, question)
        assert words == (
            f"its policy refuses this (answers): the server asks for {question.name!r}, for which the approved recipe "
            "has no use"
        )
    assert "which no site of a federation answers" in asking.refuses("predict", predict)


def test_another_prior_another_program_and_nonsense_are_refused(asking):
    reading = read(FORMULA)
    wide = replace(reading, design=replace(reading.design, prior_scale=1e6))
    assert "under another prior" in asking.refuses("about", **told(asking.recipe, wide))
    assert "builds another model" in asking.refuses("about", **told(asking.recipe, reading, digest="0" * 64))
    assert "does not say what it computes" in asking.refuses("about", **told(asking.recipe, reading, digest=None))
    assert "tables are not read by its formula" in asking.refuses("about", agreed=Agreed().encode(), digest="x")
    for payload in (b"{", b"[]", b'{"reading": 3, "program": null, "group_rows": null}', b"\xff"):
        words = asking.refuses("about", agreed=payload, digest="x")
        assert words.startswith("MalformedMessage: agreed: cannot be read")
    assert "more than" in asking.refuses("about", agreed=b" " * (MOST + 1), digest="x")
    task = asking.refuses("refine", b"garbage")
    assert task == "MalformedMessage: task: comes before sites have agreed on what is computed"
    # A level that this site has, and that the server leaves out, is no first level.
    design = replace(reading.design, columns={**reading.design.columns})
    fewer = read_without(design)
    assert asking.refuses("rows", Rows(replace(reading, design=fewer))) == CANNOT
    assert "levels that sites have not agreed on" in asking.site.problem


def test_what_is_said_to_be_agreed_on_may_be_any_bytes(asking):
    """Bytes of a real agreement, torn and changed: each is refused, or is of the formula after all."""
    payload = Agreed.of(rebuild_model(read(FORMULA).design), read(FORMULA)).encode()
    generator = np.random.default_rng(0)
    for number in range(60):
        changed = bytearray(payload)
        for place in generator.integers(0, len(changed), 3):
            changed[place] = generator.integers(32, 127)
        torn = bytes(changed[: generator.integers(1, len(changed))] if number % 2 else changed)
        words = asking.refuses("about", agreed=torn, digest="x")
        known = ("MalformedMessage: agreed: ", "its policy refuses this (approval): ", "EngineError: this site builds")
        assert words.startswith(known) or words == CANNOT


def test_groups_are_not_padded_beyond_all_memory(tmp_path, monkeypatch):
    grouped = "ill ~ age + (1 | family)"
    asking = Asking(tmp_path, monkeypatch, plan_formula(grouped, "bernoulli", ["a"]))
    reading = replace(read(grouped), first_groups=(0,))
    model = replace(rebuild_model(reading.design), group_rows=20_000_000)
    changes = {"agreed": Agreed.of(model, reading).encode(), "digest": asking.recipe.digest_of(model)}
    assert asking.refuses("about", **changes) == CANNOT
    assert "groups would be padded to 20,000,000 rows each" in asking.site.problem


def read_without(design):
    from partita.designs.columns import Column
    from partita.designs.design import Design

    columns = {**design.columns, "ward": Column("ward", ("easternmost", "nowhere"))}
    return Design.unscaled(design.formula, design.family, design.parsed, columns)


POLICIES = [
    ('answers = ["about", "refine"]', "levels", "answers", "answers to 'levels' may not leave this site"),
    ('columns = ["age", "ill"]', "levels", "columns", "the column 'ward' may not be used here"),
    ('models = ["poisson regression"]', "levels", "models", "the model 'bernoulli regression' may not be used"),
    ("fewest_rows = 41", "levels", "fewest_rows", "the table has fewer rows"),
    ("fewest_per_cell = 21", "levels", "fewest_per_cell", "too few rows have one of the values of the column 'ill'"),
    ("most_parameters = 11", "rows", "most_parameters", "the model has 12 natural parameters"),
    ("most_parameters_per_row = 0.05", "rows", "most_parameters_per_row", "the model learns 3 parameters"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "key", "why"), POLICIES)
def test_every_key_of_a_policy_holds_for_formulas(tmp_path, monkeypatch, line, kind, key, why):
    plan = plan_formula(FORMULA, "bernoulli", ["a"])
    asking = Asking(tmp_path, monkeypatch, plan, said=f"policy: {line}")
    question = Levels(("age", "ill", "ward"), ("ward",)) if kind == "levels" else Rows(read(FORMULA))
    words = asking.refuses(kind, question)
    assert words.startswith(f"its policy refuses this ({key}): ")
    assert why in words


def test_a_site_with_too_few_complete_rows_says_so_when_it_is_asked_how_it_is(tmp_path, monkeypatch):
    table = TABLE.assign(age=np.where(np.arange(ROWS) < 9, TABLE.age, np.nan))
    asking = Asking(tmp_path, monkeypatch, plan_formula(FORMULA, "bernoulli", ["a"]), table)
    assert "(fewest_rows)" in asking.refuses("about")


def test_questions_are_counted_together(tmp_path, monkeypatch):
    asking = Asking(tmp_path, monkeypatch, plan_formula(FORMULA, "bernoulli", ["a"]), said="policy: most_questions = 2")
    reading = read(FORMULA)
    assert asking.ask("levels", Levels(("age", "ill", "ward"), ("ward",))) == ""
    assert asking.ask("rows", Rows(reading)) == ""
    assert "(most_questions): the server has asked 2 times already" in asking.refuses("moments", Moments(reading))
    assert asking.ask("about") == ""


def test_cells_are_counted_in_levels_terms_and_groups(tmp_path, monkeypatch):
    few = TABLE.assign(ward=["north-west"] * 2 + ["easternmost"] * (ROWS - 2))
    asking = Asking(tmp_path / "levels", monkeypatch, plan_formula(FORMULA, "bernoulli", ["a"]), few)
    words = asking.refuses("levels", Levels(("age", "ill", "ward"), ("ward",)))
    assert "column 'ward' (fewest_per_cell = 3)" in words
    assert "north-west" not in words
    # A term of two columns whose levels are frequent enough by themselves.
    crossed = "ill ~ age + I((age > 60) & (secret > 1500))"
    rare = TABLE.assign(age=np.where(np.arange(ROWS) < 5, 70.0, 50.0), secret=np.where(np.arange(ROWS) < 2, 2e3, 1.0))
    rare.loc[5:9, "secret"] = 2e3
    asking = Asking(tmp_path / "terms", monkeypatch, plan_formula(crossed, "bernoulli", ["a"]), rare)
    with Silos.of({"a": rare}, None).connected() as connection:
        reading = agree(connection, crossed, "bernoulli").reading
    assert "one of the values of a term of the formula" in asking.refuses("rows", Rows(reading))
    # Two groups: what is learnt of their spread is their difference.
    grouped = "ill ~ age + (1 | family)"
    two = TABLE.assign(family=np.resize([1, 2], ROWS))
    asking = Asking(tmp_path / "groups", monkeypatch, plan_formula(grouped, "bernoulli", ["a"]), two)
    assert "there are too few groups of rows" in asking.refuses("rows", Rows(read(grouped)))


def test_digests_of_targets_tell_nothing_to_whoever_tries_all_of_them(asking, tmp_path):
    """A few zeros and ones can be tried; the site's secret cannot."""
    settings, reading = read_site(asking.folder), read(FORMULA)
    assert asking.ask("rows", Rows(reading)) == ""
    secret = (asking.folder / "run" / "secret").read_bytes()
    assert len(secret) == 32
    assert (asking.folder / "run" / "secret").stat().st_mode & 0o777 == 0o600
    digests = [
        Held(asking.recipe, settings, 0, one).answer(Rows(reading)).digest for one in (secret, secret, b"x", b"")
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


PROGRAM = """
import numpyro
import numpyro.distributions as dist
from pathlib import Path

Path(__file__).with_name("was_run").write_text("yes")

def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(slope * x, 1), obs=y)
"""


def plan_file(tmp_path, text=PROGRAM, columns=None, local=None):
    (tmp_path / "model.py").write_text(text)
    return plan_program(tmp_path / "model.py", columns or {"x": "age", "y": "ill"}, local or {}, ["a"])


def test_a_file_is_looked_at_and_run_only_once_it_is_approved(tmp_path, monkeypatch):
    asking = Asking(tmp_path, monkeypatch, plan_file(tmp_path))
    asking.site = Site(asking.folder)
    assert "nothing has been approved" in asking.refuses("about")
    shown = "\n".join(describe_proposal(asking.folder, read_proposal(asking.folder)))
    assert "which is the file that the server means: read it, its code is run" in shown
    assert 'reads of each row: "age", "ill"; no other column' in shown
    (asking.folder / "model.py").write_text(PROGRAM + "\n# Another one.\n")
    shown = "\n".join(describe_proposal(asking.folder, read_proposal(asking.folder)))
    assert "but of ANOTHER CONTENT" in shown
    assert not (asking.folder / "was_run").exists()
    done = CliRunner().invoke(app, ["site", "approve", str(asking.folder), "--yes"])
    assert done.exit_code == 0
    # What is approved is the digest: another file is not run, whatever it is called.
    assert asking.refuses("about") == CANNOT
    assert "it is not the file that was agreed on" in asking.site.problem
    assert not (asking.folder / "was_run").exists()
    (asking.folder / "model.py").unlink()
    assert asking.refuses("about") == CANNOT
    assert "put the file with the model there" in asking.site.problem
    (asking.folder / "model.py").write_text(PROGRAM)
    assert asking.ask("about") == ""
    assert asking.ask("layout") == ""
    assert "no use" in asking.refuses("levels", Levels(("age",)))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"model.py"', '"../model.py"', "file: expected the name of a file of Python in the folder itself"),
        ('"model.py"', '"/etc/passwd"', "file: expected the name of a file"),
        ("sha256 = ", "# sha256 = ", "sha256: expected the digest of the file"),
        ('file = "model.py"', 'file = "model.py"\nentry = "os:system"', "give either an entry, or a file"),
        ('function = "model"', "function = \"__import__('os')\"", "function: expected a name"),
        ("[program.columns]", "[columns]\nfeatures = []\n[program.columns]", "does not go with"),
    ],
)
def test_programs_that_cannot_be_named_so_are_refused(tmp_path, monkeypatch, old, new, complaint):
    asking = Asking(tmp_path, monkeypatch, plan_file(tmp_path))
    path = asking.ours.folder / "federation.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=complaint):
        read_server(asking.ours.folder)


def test_text_and_plates_of_many_groups_are_told_at_the_site(tmp_path, monkeypatch):
    asking = Asking(tmp_path / "text", monkeypatch, plan_file(tmp_path, columns={"x": "ward", "y": "ill"}))
    assert asking.refuses("about") == CANNOT
    assert "column 'ward' has to hold numbers: programs take no levels" in asking.site.problem
    plates = PROGRAM.replace("def model(x, y):", "def model(x, family, y):").replace(
        "slope * x", "slope * x + own[family]"
    ).replace("    numpyro.sample(\"y\"", "    with numpyro.plate(\"families\", 10):\n"
              "        own = numpyro.sample(\"own\", dist.Normal(0, 1))\n    numpyro.sample(\"y\"")  # fmt: skip
    plan = plan_file(tmp_path, plates, {"x": "age", "family": "family", "y": "ill"}, {"families": "family"})
    state = run_alone(tmp_path / "plates", monkeypatch, plan)
    assert state["state"] == "failed"
    assert 'written for one group, as numpyro.plate("ward", 1)' in state["reason"]


def run_alone(path, monkeypatch, plan):
    ours = MemoryFederation(path, plan, ("a",), monkeypatch)
    ours.write_table("a", TABLE)
    return ours.run()


def with_line(plan, line):
    """A plan with one more line in its section [regression]."""
    return replace(plan, recipe=plan.recipe.replace("[regression]", f"[regression]\n{line}"))


def test_numbers_are_not_read_as_levels_and_levels_not_in_another_order(asking):
    """Or a row with a value of its own would be the level that no term stands for."""
    design = read(FORMULA).design
    for name, levels in (("age", ("50", "60")), ("ward", None), ("ward", ("westernmost", "easternmost"))):
        columns = {**design.columns, name: Column(name, levels)}
        reading = replace(read(FORMULA), design=Design.unscaled(FORMULA, "bernoulli", design.parsed, columns))
        words = asking.refuses("moments", Moments(reading))
        assert "(approval): the server asks beyond the approved recipe: " in words
        assert "levels" in words


def test_a_level_that_no_term_stands_for_is_a_cell_too(tmp_path, monkeypatch):
    """The first level in the alphabet, in rows of which all but two miss something else."""
    table = TABLE.assign(ward=["easternmost"] * 8 + ["westernmost"] * (ROWS - 8))
    table.loc[2:7, "age"] = np.nan
    asking = Asking(tmp_path, monkeypatch, plan_formula(FORMULA, "bernoulli", ["a"]), table)
    assert "(fewest_per_cell)" in asking.ask("rows", Rows(read(FORMULA)))


def test_terms_that_part_off_a_few_rows_are_refused_whatever_their_values(tmp_path, monkeypatch):
    for number, term in enumerate(("I((family == 3) * age)", "I((family == 3) + 1e-12 * age)")):
        formula = f"ill ~ {term}"
        plan = plan_formula(formula, "bernoulli", ["a"])
        asking = Asking(tmp_path / str(number), monkeypatch, plan, said="policy: fewest_per_cell = 5")
        assert "one of the values of a term" in asking.ask("rows", Rows(read(formula)))


def test_how_a_site_is_may_be_asked_about_few_agreements(asking):
    """Whether a table can be read in some way tells of it: a server cannot try one way after another."""
    reading = read(FORMULA)
    words = []
    for number in range(MOST_AGREED + 1):
        shifted = replace(reading, design=replace(reading.design, centre=reading.design.centre + number))
        words.append(asking.ask("about", **told(asking.recipe, shifted)))
    assert words[:-1] == [""] * MOST_AGREED
    assert f"the server has said {MOST_AGREED} different things" in words[-1]
    assert asking.ask("about", **told(asking.recipe, reading)) == ""


@pytest.mark.parametrize(("centre", "unit"), [(0.0, 1e160), (0.0, 1e-9), (1e17, 1.0), (0.0, 0.0)])
def test_middles_and_units_are_of_an_order_that_columns_have(asking, centre, unit):
    """Squares that vanish, overflow or are rounded would count the rows beyond a value."""
    reading = read(FORMULA)
    question = Products(np.array([0]), np.array([centre]), np.array([unit]), reading)
    assert "middles or units" in asking.refuses("products", question)
    if unit > 0:
        design = replace(reading.design, centre=reading.design.centre + centre, unit=reading.design.unit * unit)
        assert asking.refuses("about", **told(asking.recipe, replace(reading, design=design)))


@pytest.mark.parametrize("used", [[0, 0], [-1], [7], [1, 0]])
def test_products_are_of_columns_that_there_are(asking, used):
    question = Products(np.array(used), np.zeros(len(used)), np.ones(len(used)), read(FORMULA))
    assert "products of columns that there are not" in asking.refuses("products", question)


def test_targets_are_not_taken_for_weights(asking):
    reading = read(FORMULA)
    model = rebuild_model(reading.design)
    said = {"agreed": Agreed.of(model, replace(reading, first_groups=(0,))).encode(), "digest": "x"}
    said["digest"] = asking.recipe.digest_of(model)
    assert "groups of rows where the formula has none" in asking.refuses("about", **said)


def test_a_few_rows_are_not_held_out(tmp_path, monkeypatch):
    """Sums of all rows, less those of the fitted ones, are sums of those that are held out."""
    plan = plan_formula(FORMULA, "bernoulli", ["a"])
    asking = Asking(tmp_path, monkeypatch, with_line(plan, "held_out = 0.1"))
    reading = read(FORMULA, held_out=0.1)
    assert "fewer rows would be held out" in asking.refuses("rows", Rows(reading))
    assert asking.ask("rows", Rows(replace(reading, held_out=0.0))) == ""


def test_weights_do_not_make_few_rows_many(tmp_path, monkeypatch):
    alone = TABLE.assign(w=np.where(np.arange(ROWS) == 3, 40, 0))
    heavy = TABLE.assign(w=np.where(np.arange(ROWS) == 3, 4000, 1))
    rare = TABLE.assign(w=2, age=np.where(np.arange(ROWS) < 2, 97.0, 50.0))
    keys = ("fewest_rows", "fewest_rows", "fewest_per_cell")
    for key, (number, table) in zip(keys, enumerate((alone, heavy, rare)), strict=True):
        plan = with_line(plan_formula(FORMULA, "bernoulli", ["a"]), 'weights = "w"')
        asking = Asking(tmp_path / str(number), monkeypatch, plan, table)
        with Silos.of({"a": TABLE.assign(w=1)}, None).connected() as connection:
            reading = agree(connection, FORMULA, "bernoulli", weights="w").reading
        assert f"({key})" in asking.refuses("rows", Rows(reading))
