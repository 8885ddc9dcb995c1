"""What a federation's server and sites do, without the network between them."""

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import partita as pt
from partita._version import __version__
from partita.cli import app
from partita.errors import ConfigError, CorruptStorage, InputError, QuarantineWarning, StorageError
from partita.federation.folders import read_server
from partita.federation.greeting import describe_start
from partita.federation.metrics import format_metrics
from partita.federation.new import federation_file_text
from partita.federation.serving import Watch
from partita.federation.state import Requests, read_state, request, write_state
from partita.federation.status import read_status, tabulate_sites
from partita.fitting import prepare
from partita.foundation.locks import hold_lock, lock_holder
from partita.foundation.settings_files import SettingsFile
from partita.models import prior_of
from partita.report.posterior import compute_quantiles, read_units
from partita.server.ledger import Ledger
from partita.server.schedules import Board, Sequential
from partita.site.gate import Site
from partita.site.settings import read_site, site_file_text
from partita.site.sources import read_table
from partita.studies.faults.chaos import Chaos
from partita.wire.codec import encode_question
from partita.wire.messages import decode_update, encode_task
from partita.wire.questions import ColumnNames, Digest, Evaluate, Levels, Moments
from partita.wire.recipes import parse_recipe, read_recipe

FEATURES = ("age", "bmi")
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(30, 2))
Y = (X[:, 0] + 0.5 * GENERATOR.normal(size=30) > 0).astype(float)


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "server"
    (folder / "sites").mkdir(parents=True)
    (folder / "federation.toml").write_text(
        federation_file_text(["a", "b"], "127.0.0.1:9092", FEATURES, "ill", "logistic-regression")
    )
    for site in ("a", "b"):
        (folder / "sites" / f"{site}.pub").write_text("a key")
    return folder


@pytest.fixture
def folder(tmp_path):
    """A site's; its column of the age has a name of its own, and there is one of words."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("ca.crt", "site.key"):
        (folder / name).write_text("")
    (folder / "site.toml").write_text(site_file_text("b", "127.0.0.1:9092", FEATURES, "ill") + 'age = "YEARS"\n')
    rows = [f"{bmi!r},someone,{ill!r},{age!r}" for (age, bmi), ill in zip(X.tolist(), Y.tolist(), strict=True)]
    (folder / "data.csv").write_text("\n".join(["bmi,name,ill,YEARS", *rows]) + "\n")
    return folder


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_site_answers_as_it_would_in_process(server, folder):
    given = read_server(server)
    recipe = given.recipe
    greeting = {**recipe.greeting, "site": 1}
    site, model = Site(folder, accepts=True), recipe.model
    assert site.answer("about", {**greeting, "payload": b""}) == {"payload": np.float64(30).tobytes()}
    prior = prior_of(model, model.hyper)
    (task,) = Ledger(prior, 2).dispatch([1], model.hyper)
    payload = site.answer("refine", {**greeting, "payload": encode_task(task)})["payload"]
    update = decode_update(1, 0, payload, prior)
    run, shards = prepare(model, [(X, Y)], given.settings)
    run.engine.open(run.job(), shards)
    run.engine.submit(run.ledger.dispatch([0], model.hyper), 0.0)
    (there,) = run.engine.collect()
    for a, b in zip(update.change.__dict__.values(), there.change.__dict__.values(), strict=True):
        np.testing.assert_array_equal(a, b)
    question = Evaluate(prior, model.hyper)
    asked = {**greeting, "payload": encode_question(question)}
    assert np.frombuffer(site.answer("evaluate", asked)["payload"]) == run.engine.ask(question)[0].value


def test_questions_that_no_policy_knows_are_refused(server, folder):
    recipe = read_server(server).recipe
    greeting = {**recipe.greeting, "site": 1}
    site = Site(folder, accepts=True)
    for question in (Levels(("age",)), ColumnNames(), Digest(), Moments()):
        asked = {**greeting, "payload": encode_question(question)}
        told = site.answer(question.name, asked)["error"]
        assert told.startswith(f"its policy refuses this (answers): the server asks for {question.name!r}")
        assert site.problem.startswith("PolicyRefusal: the server asks for")
    said = site.answer("everything", {**greeting, "payload": b""})["error"]
    assert said.startswith("MalformedMessage: question 'everything': is not known here")


def test_what_is_wrong_at_a_site_is_said(server, folder):
    greeting = {**read_server(server).recipe.greeting, "site": 1, "payload": b""}

    def told(kind="about", **changes):
        site = Site(folder, accepts=True)
        public = site.answer(kind, {**greeting, **changes})["error"]
        # What concerns the data is told here, not there.
        assert public == site.problem or "its own log says why" in public
        return site.problem

    assert told(version="0.0.1") == (
        f"EngineError: the server has Partita 0.0.1, this site has {__version__}: install the same version on both"
    )
    assert "\x1b" not in told(version="0.0.1\x1b[2J")
    assert "builds another model" in told(digest="0" * 64)
    assert told(recipe="{") == "MalformedMessage: recipe: cannot be read"
    assert told("refine", payload=b"garbage").startswith("MalformedMessage: task: cannot be read")
    assert "MalformedMessage" in Site(folder, accepts=True).answer("about", {"payload": b""})["error"]
    prior = prior_of(pt.models.LogisticRegression(features=2), {"prior_scale": 1.0})
    (task,) = Ledger(prior, 2).dispatch([0], {})
    assert "it is for site 0, and this is site 1" in told("refine", payload=encode_task(task))
    change(folder / "data.csv", "YEARS", "AGE")
    assert "data.csv: no column 'YEARS'; it has bmi, name, ill, AGE" in told()
    change(folder / "site.toml", 'age = "YEARS"', 'weight = "AGE"')
    assert "[columns] weight: the federation has no such column" in told()
    (folder / "data.csv").unlink()
    assert "data.csv: No such file or directory: put the data there" in told()


def test_a_site_notices_that_its_data_have_changed(server, folder):
    greeting, site = {**read_server(server).recipe.greeting, "site": 1, "payload": b""}, Site(folder, accepts=True)
    assert "payload" in site.answer("about", greeting)
    with (folder / "data.csv").open("a") as stream:
        stream.write("0.5,another,1.0,0.25\n")
    assert site.answer("about", greeting) == {"payload": np.float64(31).tobytes()}
    with (folder / "data.csv").open("a") as stream:
        stream.write("0.5,another,nan,0.25\n")
    assert site.answer("about", greeting)["error"] == "cannot answer; its own log says why"
    assert site.problem.startswith("ShardError: site b: y: is not finite at [31]")


def scaled(server):
    change(server / "federation.toml", "# centre = [0.0, 0.0]", "centre = [1.0, 2.0]")
    change(server / "federation.toml", "# scale = [1.0, 1.0]", "scale = [2.0, 4.0]")
    return read_server(server).recipe


def test_columns_are_scaled_the_same_everywhere(server, folder):
    columns = parse_recipe(scaled(server).text, server).columns
    inputs, _ = read_table(read_site(folder), columns)
    np.testing.assert_allclose(inputs, (X - [1.0, 2.0]) / [2.0, 4.0])


def test_a_saved_result_takes_rows_as_they_are_in_tables(server, tmp_path):
    recipe = scaled(server)
    inputs = (X - [1.0, 2.0]) / [2.0, 4.0]
    fitted = pt.fit(recipe.model, [(inputs, Y)])
    replace(fitted, design=recipe.columns.design).save(tmp_path / "result")
    loaded = pt.load(tmp_path / "result")
    right = fitted.predict_proba(inputs)
    assert np.max(np.abs(fitted.predict_proba(X) - right)) > 0.1
    np.testing.assert_array_equal(loaded.predict_proba(X), right)
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(inputs))
    # Columns of a table are found by their names.
    table = pd.DataFrame({"bmi": X[:, 1], "name": "someone", "age": X[:, 0]})
    np.testing.assert_array_equal(loaded.predict_proba(table), right)
    with pytest.raises(InputError, match="X: has no column 'bmi'; expected age, bmi"):
        loaded.predict(table.drop(columns="bmi"))
    with pytest.raises(InputError, match=r"expected the columns age, bmi, got an array of shape \(30, 1\)"):
        loaded.predict(X[:, :1])
    given, made = loaded.to_arviz([(X, Y)], draws=100), fitted.to_arviz([(inputs, Y)], draws=100)
    np.testing.assert_allclose(given.log_likelihood["y"], made.log_likelihood["y"])


@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_a_report_shows_coefficients_in_units_of_the_data(server, posterior):
    """Against draws: what acts on columns as they are is w/s, and b - w c/s."""
    change(server / "federation.toml", "[schedule]", f'posterior = "{posterior}"\n[schedule]')
    recipe = scaled(server)
    centre, unit = np.array([1.0, 2.0]), np.array([2.0, 4.0])
    fitted = pt.fit(recipe.model, [((X - centre) / unit, Y)])
    found = compute_quantiles(fitted.posterior, read_units(replace(fitted, design=recipe.columns.design)))
    draws = np.asarray(fitted.posterior.sample(jax.random.key(1), (200_000,)))
    raw = np.column_stack([draws[:, :2] / unit, draws[:, 2] - draws[:, :2] @ (centre / unit)])
    spread = raw.std(axis=0)
    for ours, theirs in zip(found[1:], np.quantile(raw, [0.025, 0.5, 0.975], axis=0), strict=True):
        assert np.max(np.abs(ours - theirs) / spread) < 0.02
    assert read_units(fitted) is None


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "rounds = 20",
            "round = 20",
            r"federation.toml:\d+: \[schedule\] round is not a known key; did you mean rounds",
        ),
        ('["age", "bmi"]', '["age", "age"]', r"\[columns\] features: a column is named twice"),
        ('["age", "bmi"]', "[]", r"\[columns\] features: expected names"),
        ("# centre = [0.0, 0.0]", "centre = [0.0]", r"\[columns\] centre: expected 2 numbers"),
        ("# scale = [1.0, 1.0]", "scale = [1.0, 0.0]", r"\[columns\] scale: expected positive"),
        ('"logistic-regression"', '"logistic"', r"\[model\] name 'logistic' is not known"),
        ('"127.0.0.1:9092"', '"here"', r"\[server\] address: expected host:port, .* got 'here'"),
        ('["a", "b"]', '["a", "c"]', r"\[server\] sites c: its public key is missing"),
        ('["a", "b"]', '["a", "../b"]', r"\[server\] site '../b': use letters"),
        ('["a", "b"]', '["a", "a"]', r"\[server\] sites: a name is there twice"),
        ("timeout = 600.0", "timeout = -1", r"\[server\] timeout: expected a positive number"),
        ("timeout = 600.0", "timeout = 6000.0", r"\[server\] patience: expected more than the timeout"),
        ("# minimum = 1", "minimum = 3", r"\[server\] minimum: 3, and there are 2 sites"),
        ("rounds = 20", "rounds = 20\n[solver]\ntolerance = nan", "not finite"),
        (
            'name = "logistic-regression"',
            'name = "logistic-regression"\nprior_scale = -1.0',
            r"prior_scale: expected a pos",
        ),
        ("change = 100.0", "change = -1", r"\[limits\] limits: change: expected a positive number"),
    ],
)
def test_settings_that_cannot_be_used(server, old, new, complaint):
    change(server / "federation.toml", old, new)
    with pytest.raises(ConfigError, match=complaint):
        read_server(server)


def test_folders_that_are_none(tmp_path, folder):
    with pytest.raises(ConfigError, match=r"has no federation.toml: partita new-federation makes one"):
        read_server(tmp_path)
    with pytest.raises(ConfigError, match=r"has no site.toml: ask whoever runs the server"):
        read_site(tmp_path)
    change(folder / "site.toml", 'data = "data.csv"', "data = 3")
    with pytest.raises(ConfigError, match=r"site.toml:\d+: data is missing, or not in quotes"):
        read_site(folder)


def test_the_same_settings_are_the_same_model_in_another_process(server):
    recipe = read_server(server).recipe
    program = "from partita.wire.recipes import parse_recipe; print(parse_recipe(sys.argv[1], Path()).digest)"
    program = f"import sys; from pathlib import Path; {program}"
    other = subprocess.run([sys.executable, "-c", program, recipe.text], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == recipe.digest
    tables = {"columns": {"features": ["age"], "target": "ill"}, "model": {"name": "logistic-regression"}}
    assert read_recipe(SettingsFile(server), tables, server).digest != recipe.digest


# What `partita accept` wrote when recipes named schedules, too; and what a server sent then.
FORMER = {
    "columns": {"features": ["age", "bmi"], "target": "ill"},
    "model": {"name": "logistic-regression"},
    "hyper": {"names": ["prior_scale"]},
    "seed": 3,
}


@pytest.fixture
def former(server):
    """A server whose recipe is that of `FORMER`."""
    change(server / "federation.toml", "# Sites are told", "seed = 3\n# Sites are told")
    change(server / "federation.toml", "[schedule]", '[hyper]\nnames = ["prior_scale"]\n[schedule]')
    return read_server(server).recipe


def test_what_was_accepted_before_recipes_were_split_is_still_accepted(former, folder):
    (folder / "run").mkdir()
    (folder / "run" / "accepted.json").write_text(json.dumps({"recipe": FORMER, "name": "0" * 32}))
    site = Site(folder)
    assert "payload" in site.answer("about", {**former.greeting, "site": 1, "payload": b""}), site.problem


def test_a_message_of_another_schedule_is_another_job(former, folder):
    """Where a server sends less than sites need, the digests of both differ, and the site says what to do."""
    tables = json.loads(former.text)
    assert (tables.pop("waits"), tables.pop("once")) == (True, False)
    assert "schedule" not in tables
    greeting = {**former.greeting, "site": 1, "payload": b""}
    site = Site(folder, accepts=True)
    assert "payload" in site.answer("about", {**greeting, "recipe": json.dumps(tables)})
    assert (
        "builds another model"
        in site.answer("about", {**greeting, "recipe": json.dumps({**tables, "once": True})})["error"]
    )
    assert "true or false" in site.answer("about", {**greeting, "recipe": json.dumps({**tables, "once": 1})})["error"]


def test_requests_stay_until_they_are_in_the_journal(server):
    folder = read_server(server)
    with pytest.raises(InputError, match="there are a, b"):
        request(folder, "c", "retired")
    path = request(folder, "b", "retired")
    requests = Requests(folder)
    assert requests(["a"]) == []
    (notice,) = requests(["a", "b"])
    assert (notice.site, notice.kind) == (1, "retired")
    assert path.exists()
    assert requests(["a", "b"]) == []
    assert not path.exists()
    path.write_text("{}")
    with pytest.raises(CorruptStorage, match="is no request"):
        requests(["a", "b"])


def test_a_quarantined_site_comes_back_only_when_somebody_says_so():
    board = Board(2)
    board.left(0, "nonsense", barred=True)
    board.left(0, "is not connected")
    board.came_back(0)
    assert board.away == {0: "nonsense"}
    board.readmitted(0)
    assert not board.away
    assert 0 in board.idle


@pytest.mark.filterwarnings("ignore:weight 0 is")
def test_status_says_who_was_quarantined_by_limits_and_why(server):
    """As the journal has it, where nothing else is known of the run."""
    folder = read_server(server)
    huge = Chaos(corrupt={0: lambda update: replace(update, change=update.change**1e9)})
    settings = replace(folder.settings, engine=huge, schedule=Sequential(passes=8), damping=1.0)
    with pytest.warns(QuarantineWarning, match="site a was quarantined"):
        pt.fit(folder.recipe.model, [(X, Y), (X, Y)], settings, names=folder.sites, run_dir=folder.run)
    shown = CliRunner().invoke(app, ["status", str(server)]).output
    assert "a: struck 3 times so far, the last: its update goes too far" in shown
    assert "a: quarantined: its update goes too far" in shown
    rows = {row["site"]: row for row in read_status(folder)["sites"]}
    assert rows["a"]["barred"].startswith("quarantined: its update goes too far")
    assert rows["b"]["barred"] is None
    table = {row["site"]: row["status"] for row in tabulate_sites(read_status(folder))}
    assert table == {"a": "quarantined", "b": "away"}
    assert [row["strikes"] for row in tabulate_sites(read_status(folder))] == [3, 0]
    with sqlite3.connect(folder.run / "journal.sqlite") as database:
        database.execute("UPDATE arrivals SET kind = 'readmitted' WHERE number = (SELECT min(number) FROM arrivals "
                         "WHERE kind = 'struck')")  # fmt: skip
    shown = CliRunner().invoke(app, ["status", str(server)]).output
    assert "a: struck 2 times so far" in shown
    with sqlite3.connect(folder.run / "journal.sqlite") as database:
        database.execute("UPDATE arrivals SET kind = 'readmitted' WHERE kind = 'struck'")
    assert "a: struck 1 time so far" in CliRunner().invoke(app, ["status", str(server)]).output
    with sqlite3.connect(folder.run / "journal.sqlite") as database:
        database.execute("UPDATE arrivals SET kind = 'praised' WHERE kind = 'readmitted'")
    shown = CliRunner().invoke(app, ["status", str(server)]).output
    assert "a: quarantined: its update goes too far" in shown
    assert "notices that this version does not know, and does not show: 'praised'" in shown


def test_one_process_at_a_time(tmp_path):
    place = tmp_path / "lock"
    assert lock_holder(place) is None
    with hold_lock(place):
        assert lock_holder(place) == os.getpid()
        with pytest.raises(StorageError, match=f"process {os.getpid()} is at work here"), hold_lock(place):
            pass
    assert lock_holder(place) is None
    with hold_lock(place):
        pass


def test_a_server_says_whom_it_waits_for(server, monkeypatch, capsys):
    monkeypatch.setattr("partita.telemetry.FIRST_LINE", 0.0)
    with Watch() as watch:
        watch(read_state(read_server(server)))
    assert "not started: 0 of 2 sites ready, not a, b" in capsys.readouterr().err


def test_a_server_says_who_comes_and_goes_by_name(server, capsys):
    state = read_state(read_server(server))

    def look(watch, **sites):
        watch({**state, "sites": [{**row, **sites[row["site"]]} for row in state["sites"]]})
        return [line for line in capsys.readouterr().err.splitlines() if "sites ready" not in line]

    here, ready = {"connected": True}, {"connected": True, "ready": True, "problem": ""}
    refused = {**here, "problem": "its policy refuses this"}
    with Watch() as watch:
        assert look(watch, a={}, b={}) == []
        assert look(watch, a=here, b=here) == ["connected: a, b"]
        assert look(watch, a=ready, b=here) == ["ready: a"]
        assert look(watch, a=ready, b=refused) == ["connected, but cannot work (its policy refuses this): b"]
        assert look(watch, a={"problem": "is not connected"}, b=ready) == ["not connected: a", "ready: b"]
        assert look(watch, a={"problem": "is not connected"}, b=ready) == []


def test_a_server_says_within_seconds_what_it_waits_for(server):
    """Before it imports what it computes with; a file that is no good is complained of, and nothing else is said."""
    script = "import sys; from partita.federation.greeting import describe_start; from pathlib import Path;"
    script += "print(describe_start(Path(sys.argv[1]))); print('jax' in sys.modules)"
    words, has_jax = subprocess.check_output([sys.executable, "-c", script, server], text=True).splitlines()
    assert words == "server at 127.0.0.1:9092, starting; it waits for a, b; Ctrl-C ends it"
    assert has_jax == "False"
    for text in ("", "[server]", "server = 1", "[server]\naddress = 1\nsites = 2", "["):
        (server / "federation.toml").write_text(text)
        assert describe_start(server) == ""
    assert describe_start(server / "nowhere") == ""


def test_metrics_and_state(server):
    folder = read_server(server)
    state = read_state(folder)
    assert (state["state"], [row["site"] for row in state["sites"]]) == ("not started", ["a", "b"])
    row = {"site": "a", "ready": True, "updates": 3, "staleness": 2, "last_seen": None}
    write_state(folder, {"state": "running", "version": 7, "accepted": 0.5, "sites": [row]})
    state = read_state(folder)
    assert state["state"] == "stopped"
    text = format_metrics(state)
    assert "partita_serving 0.0\n" in text
    assert "# TYPE partita_version_total counter\npartita_version_total 7.0\n" in text
    assert 'partita_site_updates_total{site="a"} 3.0\n' in text
    assert "last_seen" not in text
    (folder.run / "state.json").write_text("{")
    with pytest.raises(CorruptStorage, match="it can be deleted"):
        read_state(folder)
