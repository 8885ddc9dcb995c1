"""Every key of [policy] refuses, and says why on both sides in words that quote no data."""

import json

import numpy as np
import pytest

from partita.errors import ConfigError
from partita.federation.folders import read_server
from partita.federation.new import federation_file_text
from partita.foundation.logs import open_log
from partita.models import prior_of
from partita.server.ledger import Ledger
from partita.site.gate import Site
from partita.site.policy import Policy
from partita.site.process import log_answers
from partita.site.settings import read_site, site_file_text
from partita.wire.codec import encode_question
from partita.wire.messages import encode_task
from partita.wire.questions import Evaluate

ROWS = 30
GENERATOR = np.random.default_rng(0)
AGE = GENERATOR.normal(size=ROWS) * 10 + 47.123456
SMOKES = (np.arange(ROWS) % 2).astype(float)
ILL = (np.arange(ROWS) % 3 == 0).astype(float)
# Nothing of this sort may be said: not numbers of the table, nor how many rows there are of a kind.
DATA = [repr(number) for number in AGE.tolist()]


def make_recipe(path, model="logistic-regression", more="", posterior="full"):
    (path / "sites").mkdir(parents=True)
    text = federation_file_text(["a"], "127.0.0.1:9092", ("age", "smokes"), "ill", model)
    (path / "federation.toml").write_text(text.replace("[model]", f'{more}\n[model]\nposterior = "{posterior}"'))
    (path / "sites" / "a.pub").write_text("a key")
    return read_server(path).recipe


@pytest.fixture
def recipe(tmp_path):
    return make_recipe(tmp_path / "server")


@pytest.fixture
def folder(tmp_path):
    """A site's, which calls the age YEARS."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("ca.crt", "site.key"):
        (folder / name).write_text("")
    text = site_file_text("a", "127.0.0.1:9092", ("age", "smokes"), "ill")
    (folder / "site.toml").write_text(text + 'age = "YEARS"\n')
    write_table(folder, AGE, SMOKES, ILL)
    return folder


def write_table(folder, *columns):
    lines = [",".join(map(repr, row)) for row in np.column_stack(columns).tolist()]
    (folder / "data.csv").write_text("\n".join(["YEARS,smokes,ill", *lines]) + "\n")


def set_policy(folder, **values):
    """Keys of [policy], in the place of what the file says of them."""
    path = folder / "site.toml"
    lines = [line for line in path.read_text().splitlines() if line.partition(" =")[0] not in values]
    place = lines.index("[policy]") + 1
    lines[place:place] = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path.write_text("\n".join(lines) + "\n")


def ask(site, given, kind="refine", **changes):
    answer = site.answer if isinstance(site, Site) else site
    prior = prior_of(given.model, given.model.hyper)
    payload = encode_question(Evaluate(prior, given.model.hyper)) if kind == "evaluate" else b""
    if kind == "refine":
        (task,) = Ledger(prior, 1).dispatch([0], given.model.hyper)
        payload = encode_task(task)
    return answer(kind, {**given.greeting, "site": 0, "payload": payload, **changes})


REFUSED = [
    ("columns", ["smokes", "ill"], ["YEARS", "smokes", "ill"], "refine", {}, "the column 'age' may not be used here"),
    ("models", ["probit-regression"], ["logistic-regression"], "refine", {}, "'logistic-regression' may not be used"),
    ("answers", ["about", "evaluate"], ["about", "refine"], "refine", {}, "answers to 'refine' may not leave"),
    ("answers", ["about", "refine"], ["evaluate"], "evaluate", {}, "answers to 'evaluate' may not leave"),
    ("answers", ["refine"], ["about"], "about", {}, "answers to 'about' may not leave"),
    ("compression", False, True, "refine", {"compression": "float16"}, "answers may not leave this site compressed"),
    ("fewest_rows", 31, 30, "about", {}, "the table has fewer rows than the policy asks for (fewest_rows = 31)"),
    ("fewest_per_cell", 11, 10, "about", {}, "too few rows have one of the values of the column 'ill'"),
    ("most_parameters", 11, 12, "about", {}, "the model has 12 natural parameters, and the policy allows 11"),
    ("most_parameters_per_row", 0.09, 0.1, "about", {}, "the model learns 3 parameters, more than the policy allows"),
    ("most_tasks", 1, 2, "refine", {}, "the server has asked 1 times already"),
    ("most_questions", 1, 2, "evaluate", {}, "the server has asked 1 times already"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "other", "kind", "changes", "why"), REFUSED, ids=lambda x: str(x)[:20])
def test_every_key_refuses_and_says_why_on_both_sides(recipe, folder, capsys, key, value, other, kind, changes, why):
    site = Site(folder, accepts=True)
    log = open_log(folder / "run", "log")
    answer = log_answers(site, log, print)
    assert "payload" in ask(answer, recipe, kind, **changes)
    set_policy(folder, **{key: value})
    told = ask(answer, recipe, kind, **changes)["error"]
    assert told.startswith(f"its policy refuses this ({key}): ")
    assert why in told
    assert site.problem.startswith("PolicyRefusal: ")
    assert why in site.problem
    log.handlers[0].close()
    for words in (told, site.problem, (folder / "run" / "log.jsonl").read_text(), capsys.readouterr().out):
        assert why in words
        assert not any(number in words for number in DATA)
    # The audit log has the key; and the other value lets it pass.
    assert json.loads((folder / "run" / "audit.jsonl").read_text().splitlines()[-1])["why"] == key
    set_policy(folder, **{key: other})
    assert "payload" in ask(site, recipe, kind, **changes)


def test_every_key_is_tried_above_and_is_in_a_new_file(folder):
    keys = {key for key, *_ in REFUSED}
    assert keys == set(Policy.__dataclass_fields__)
    text = (folder / "site.toml").read_text()
    assert all(f"{key} = " in text for key in keys)
    # What a new file says is what holds if nothing is said.
    assert read_site(folder).policy == Policy()


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_a_site_of_one_patient_or_few_is_refused_if_nothing_is_said(recipe, folder, rows):
    text = (folder / "site.toml").read_text()
    (folder / "site.toml").write_text(text[: text.index("# What this site")] + '[columns]\nage = "YEARS"\n')
    write_table(folder, AGE[:rows], SMOKES[:rows], ILL[:rows])
    site = Site(folder, accepts=True)
    for kind in ("about", "refine", "evaluate"):
        assert "(fewest_rows)" in ask(site, recipe, kind)["error"]


def test_parameters_are_those_that_are_learnt_whatever_is_sent_of_them(tmp_path, folder):
    """As DataSHIELD counts: a full covariance sends more numbers of the same parameters."""
    set_policy(folder, most_parameters_per_row=3 / ROWS)
    for how in ("full", "mean-field"):
        recipe = make_recipe(tmp_path / how, posterior=how)
        assert "payload" in ask(Site(folder, accepts=True), recipe, "about")
        (folder / "run" / "accepted.json").unlink()
    noisy = make_recipe(tmp_path / "noisy", "linear-regression")
    # Its noise is learnt too.
    assert "learns 4 parameters" in ask(Site(folder, accepts=True), noisy, "about")["error"]


def test_cells_are_values_of_two_valued_columns_and_classes(tmp_path, recipe, folder):
    few = np.zeros(ROWS)
    few[:2] = 1
    # Three numbers, of which a model sees two.
    nearly = np.where(few == 1, 1.0, 0.3)
    nearly[-1] = 0.1 + 0.2
    write_table(folder, AGE, nearly, ILL)
    assert "(fewest_per_cell)" in ask(Site(folder, accepts=True), recipe, "about")["error"]
    for column, table in (("smokes", (AGE, few, ILL)), ("ill", (AGE, SMOKES, few))):
        write_table(folder, *table)
        told = ask(Site(folder, accepts=True), recipe, "about")["error"]
        assert told.startswith("its policy refuses this (fewest_per_cell): ")
        assert f"column {column!r} (fewest_per_cell = 3)" in told
    # A site where nobody, or everybody, is ill has no such cell; numbers are none.
    for ill in (np.zeros(ROWS), np.ones(ROWS)):
        write_table(folder, AGE, SMOKES, ill)
        assert "payload" in ask(Site(folder), recipe, "about")
    (folder / "run" / "accepted.json").unlink()
    three = make_recipe(tmp_path / "three", "softmax-regression", "classes = 3")
    classes = np.arange(ROWS) % 2
    classes[:2] = 2
    write_table(folder, AGE, SMOKES, classes.astype(float))
    assert "(fewest_per_cell)" in ask(Site(folder, accepts=True), three, "about")["error"]
    classes[2] = 2
    write_table(folder, AGE, SMOKES, classes.astype(float))
    assert "payload" in ask(Site(folder), three, "about")


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("columns", [], "columns: is empty"),
        ("models", [], "models: is empty"),
        ("columns", "age", r"columns expected a list"),
        ("answers", ["digest"], "answers: expected one of about, refine, evaluate, levels, .*, got 'digest'"),
        ("compression", 1, "compression expected true or false"),
        ("fewest_per_cell", 0, "fewest_per_cell: expected a whole number of at least 1"),
        ("most_parameters_per_row", 0, "most_parameters_per_row: expected a positive number"),
    ],
)
def test_a_policy_that_cannot_be_is_told(folder, key, value, complaint):
    set_policy(folder, **{key: value})
    with pytest.raises(ConfigError, match=complaint):
        read_site(folder)
