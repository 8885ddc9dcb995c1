"""A recipe is shown to a person, approved, and pinned by its digest: everything else is refused with the reason."""

import hashlib
import json
import pickle

import numpy as np
import pytest
from typer.testing import CliRunner

from partita.cli import app
from partita.errors import InputError, PolicyRefusal
from partita.federation.folders import read_server
from partita.federation.new import federation_file_text
from partita.site.consent import Consent
from partita.site.gate import Site
from partita.site.settings import site_file_text

X = np.random.default_rng(0).normal(size=(30, 2))


@pytest.fixture
def server(tmp_path):
    server = tmp_path / "server"
    (server / "sites").mkdir(parents=True)
    text = federation_file_text(["a"], "127.0.0.1:9092", ("age", "bmi"), "ill", "logistic-regression")
    (server / "federation.toml").write_text(text)
    (server / "sites" / "a.pub").write_text("a key")
    return server


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("ca.crt", "site.key"):
        (folder / name).write_text("")
    text = site_file_text("a", "127.0.0.1:9092", ("age", "bmi"), "ill")
    (folder / "site.toml").write_text(text.replace("most_tasks = 1000", "most_tasks = 7") + 'age = "YEARS"\n')
    rows = [f"{age!r},{bmi!r},{float(age > 0)!r}" for age, bmi in X.tolist()]
    (folder / "data.csv").write_text("\n".join(["YEARS,bmi,ill", *rows]) + "\n")
    return folder


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def ask(folder, server):
    """What a site that asks its person answers; as a server that asks how it is hears it."""
    recipe = read_server(server).recipe
    return Site(folder).answer("about", {**recipe.greeting, "site": 0, "payload": b""})


def approve(folder, *words, **options):
    done = CliRunner().invoke(app, ["site", "approve", str(folder), *words], **options)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_person_is_shown_columns_computation_and_what_leaves_how_often(server, folder):
    assert "(approval): nothing has been approved here yet" in ask(folder, server)["error"]
    shown = approve(folder, input="n\n")
    assert shown.exit_code == 1
    digest = hashlib.sha256(json.dumps(Consent(folder).proposed, sort_keys=True).encode()).hexdigest()
    for line in (
        f"recipe {digest}",
        'reads of each row: "age" (here "YEARS"), "bmi", to predict "ill"; no other column',
        'computes: "logistic-regression", 3 parameters, with the solver that suits it',
        "leaves: the number of rows, whenever the server asks how the site is",
        "leaves: updates of 12 numbers and their log likelihood, at most 7 times",
        "leaves: the log likelihood of the data, at most 50 times",
        "your policy allows this, if the table has 10 rows, 3 in each cell, and 3.03 for each parameter",
        'model: {"name": "logistic-regression"}',
    ):
        assert line in shown.output.splitlines()
    # Looking is not approving.
    assert "(approval)" in ask(folder, server)["error"]
    assert approve(folder, input="y\n").exit_code == 0
    assert "payload" in ask(folder, server)


def test_what_the_policy_refuses_is_shown_before_it_is_approved_and_stays_refused(server, folder):
    change(
        folder / "site.toml",
        '# models = ["logistic-regression", "bernoulli regression"]',
        'models = ["probit-regression"]',
    )
    change(folder / "site.toml", '"refine", "evaluate", ', '"refine", ')
    change(folder / "site.toml", "compression = true", "compression = false")
    ask(folder, server)
    shown = approve(folder, "--yes")
    assert "your policy refuses this (models): the model 'logistic-regression' may not be used here" in shown.output
    assert "log likelihood of the data" not in shown.output
    assert "if the server asks for that: never" in shown.output
    assert "its policy refuses this (models)" in ask(folder, server)["error"]


def test_scripts_can_name_the_recipe_that_they_approve(server, folder):
    ask(folder, server)
    digest = hashlib.sha256(json.dumps(Consent(folder).proposed, sort_keys=True).encode()).hexdigest()
    with pytest.raises(InputError, match=f"the recipe {digest} is proposed, and not 012345"):
        approve(folder, "--yes", "--digest", "012345")
    # As in a script whose variable is empty.
    with pytest.raises(InputError, match="at least 6 characters"):
        approve(folder, "--yes", "--digest", "")
    assert Consent(folder).accepted is None
    assert approve(folder, "--yes", "--digest", digest[:12]).exit_code == 0
    assert json.loads((folder / "run" / "accepted.json").read_text())["digest"] == digest
    assert "payload" in ask(folder, server)
    with pytest.raises(InputError, match="nothing new is proposed"):
        approve(folder, "--yes")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('["age", "bmi"]', '["age"]', "columns"),
        ('target = "ill"', 'target = "bmi2"', "columns"),
        ("# scale = [1.0, 1.0]", "scale = [1.0, 2.0]", "columns"),
        ('"logistic-regression"', '"probit-regression"', "model"),
        ("[schedule]", "[solver]\nsteps = 3\n[schedule]", "solver"),
        ("# Sites are told", "seed = 8\n# Sites are told", "seed"),
    ],
)
def test_every_other_recipe_is_refused_with_what_differs(server, folder, old, new, what):
    ask(folder, server)
    approve(folder, "--yes")
    change(server / "federation.toml", old, new)
    told = ask(folder, server)["error"]
    assert told == (
        "its policy refuses this (approval): the server asks under another recipe than the approved one: "
        f"it differs in {what}"
    )
    # What is new can be approved in turn.
    assert Consent(folder).proposed != Consent(folder).accepted


def test_what_was_approved_cannot_be_changed_behind_its_digest(server, folder):
    ask(folder, server)
    approve(folder, "--yes")
    change(server / "federation.toml", '["age", "bmi"]', '["age"]')
    path = folder / "run" / "accepted.json"
    row = json.loads(path.read_text())
    row["recipe"]["columns"]["features"] = ["age"]
    path.write_text(json.dumps(row))
    assert ask(folder, server)["error"] == (
        "its policy refuses this (approval): what was approved cannot be read at the site"
    )
    assert approve(folder, "--yes").exit_code == 0
    assert "payload" in ask(folder, server)


def test_a_recipe_that_cannot_be_built_is_shown_as_such(server, folder):
    ask(folder, server)
    path = folder / "run" / "proposed.json"
    row = json.loads(path.read_text())
    row["recipe"]["model"]["prior_scale"] = -1.0
    path.write_text(json.dumps(row))
    shown = approve(folder, "--yes")
    assert "cannot be built here, and would be refused: [model] " in shown.output
    assert "your policy was not asked" in shown.output


def test_what_python_takes_for_equal_is_another_recipe(folder):
    consent = Consent(folder)
    consent.check('{"model": {"prior_scale": 1}}', accepts=True)
    consent.check('{"model": {"prior_scale": 1}, "rounds": 3}')
    for other in ("1.0", "true"):
        with pytest.raises(PolicyRefusal, match="it differs in model") as refusal:
            consent.check(f'{{"model": {{"prior_scale": {other}}}}}')
        assert refusal.value.key == "approval"
        again = pickle.loads(pickle.dumps(refusal.value))
        assert (str(again), again.key) == (str(refusal.value), "approval")
