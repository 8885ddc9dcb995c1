"""The command line: as processes, and within this one for what ends before anything is computed."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import partita as pt
from partita.cli import app, main
from partita.config import read_config

CONFIG = """
seed = 1

[data]
name = "wine"

[partition]
sites = 4
how = "dirichlet"

[model]
name = "softmax-regression"

[schedule]
name = "synchronous"
rounds = 4
"""


def partita(*arguments, cwd, **options):
    command = [sys.executable, "-c", "from partita.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, **options)


def find_commands(group, before=()):
    """Every command by its full name."""
    for name, command in group.commands.items():
        yield " ".join((*before, name)), command
        yield from find_commands(command, (*before, name)) if hasattr(command, "commands") else ()


def test_every_command_and_option_is_explained():
    """By `--help`; that docs name every command is held by the tests of docs."""
    commands = dict(find_commands(get_command(app)))
    assert {"run", "status", "readmit", "study soak", "reproduce vcl"} <= commands.keys()
    silent = [name for name, command in commands.items() if not command.help]
    silent += [
        f"{name} {parameter.name}"
        for name, command in commands.items()
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.help
    ]
    assert silent == []


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "wine.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def complaint_of(tmp_path, monkeypatch, capsys):
    """What is told on standard error by a command that ends with exit code 2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("partita.foundation.compilation.cache_compilations", lambda: None)

    def complaint_of(*arguments):
        monkeypatch.setattr(sys, "argv", ["partita", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    return complaint_of


def test_version(tmp_path):
    assert partita("--version", cwd=tmp_path).stdout.strip() == f"partita {pt.__version__}"


def test_run_resume_report(config, tmp_path):
    first = partita("run", "wine.toml", "--json", cwd=tmp_path)
    lines = [json.loads(line) for line in first.stdout.splitlines()]
    assert first.returncode == 0
    assert [line["event"] for line in lines] == ["fold"] * 4 + ["summary"]
    assert {"error", "nll", "ece", "log evidence", "messages", "bytes", "report"} <= lines[-1].keys()
    page = (tmp_path / "runs" / "wine" / "report.html").read_text()
    assert "<h1>Run wine</h1>" in page
    assert "http://" not in page.split("</script>")[-1]

    # The run saw standardised inputs; whoever reads its result has those of the data.
    result = pt.load(tmp_path / "runs" / "wine" / "result.safetensors")
    _, (X, y) = pt.datasets.train_test(pt.datasets.load("wine"), 0.2, seed=1)
    assert np.mean(result.predict(X) != y) == pytest.approx(lines[-1]["error"])
    assert np.mean(result.predict(X) != y) < 0.2

    again = partita("run", "wine.toml", cwd=tmp_path)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert "Traceback" not in again.stderr
    longer = partita("run", "wine.toml", "--resume", "--set", "schedule.rounds=6", "--json", cwd=tmp_path)
    assert json.loads(longer.stdout.splitlines()[-1])["rounds"] == 6
    assert "Calibration" in (tmp_path / "runs" / "wine" / "report.html").read_text().split("</script>")[-3]
    report = partita("report", "runs/wine", "--json", cwd=tmp_path)
    assert json.loads(report.stdout)["error"] == json.loads(longer.stdout.splitlines()[-1])["error"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("rounds = 4", "roundz = 4"), "wine.toml:16: [schedule] roundz is not a known key; did you mean rounds?"),
        (("rounds = 4", "rounds = 'x'"), "wine.toml:16: [schedule] rounds expected a whole number, got 'x'"),
        (("rounds = 4", "rounds = 0"), "[schedule] schedule: rounds: expected a whole number of at least 1, got 0"),
        (("[schedule]", "[schedul]"), "wine.toml:14: schedul is not a known key; did you mean schedule?"),
        (('"synchronous"', '"sync"'), "[schedule] name 'sync' is not known: use one of sequential"),
        (("rounds = 4", "rounds ="), "wine.toml: Invalid value (at line 16"),
        (('name = "wine"', 'name = "beer"'), "data set 'beer' is not known: use one of breast-cancer"),
        (('name = "wine"', 'path = "no.csv"\ntarget = "y"'), "no.csv: No such file or directory"),
        (("sites = 4", "sites = 4000"), "sites: expected a number from 1 to"),
        (('"softmax-regression"', '"softmax-regression"\nprior_scale = -1'), "prior_scale: expected a positive number"),
        (("seed = 1", "seed = 1\ndamping = 7"), "wine.toml:3: damping expected a number in (0, 1], got 7"),
        (("seed = 1", "seed = -1"), "wine.toml:2: seed expected a whole number"),
        (("[schedule]", "[hyper]\nprior = 3\n[schedule]"), "wine.toml:15: [hyper] prior expected a section"),
        (
            ("[schedule]", "[hyper.prior]\nnoise = 3\n[schedule]"),
            "[hyper] prior expected a list, got {'noise': 3}",
        ),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_mistakes_are_one_line_and_exit_code_2(config, tmp_path, complaint_of, change, complaint):
    config.write_text(CONFIG.replace(*change))
    told = complaint_of("run", "wine.toml")
    assert complaint in told
    assert len(told.strip().splitlines()) == 1
    assert not (tmp_path / "runs" / "wine" / "result.safetensors").exists()


def test_what_is_known_of_hyperparameters_is_a_section(config):
    config.write_text(CONFIG + "[hyper.prior]\nprior_scale = [0.3, 0.1]\n")
    assert read_config(config).hyper.prior == {"prior_scale": [0.3, 0.1]}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "none.toml"], "none.toml: No such file or directory"),
        (["run", "."], "Is a directory"),
        (["report", "nowhere"], "nowhere/journal.sqlite: no such run"),
        (["run", "wine.toml", "--set", "rounds"], "--set rounds: expected section.key=value"),
        (["run", "wine.toml", "--set", "solver.name=newton"], "[solver] name 'newton' is not known"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_wrong_arguments_are_one_line_too(config, complaint_of, arguments, complaint):
    told = complaint_of(*arguments)
    assert complaint in told
    assert len(told.strip().splitlines()) == 1


def test_a_csv_file_as_data(tmp_path):
    rows = "\n".join(f"{i % 7},{(i * 3) % 5},{2 * (i % 7) - (i * 3) % 5}" for i in range(60))
    (tmp_path / "table.csv").write_text("a,b,goal\n" + rows + "\n")
    (tmp_path / "table.toml").write_text(
        '[data]\npath = "table.csv"\ntarget = "goal"\n[partition]\nsites = 3\n'
        '[model]\nname = "linear-regression"\n[schedule]\nname = "one-pass"\n'
    )
    summary = json.loads(partita("run", "table.toml", "--json", cwd=tmp_path).stdout.splitlines()[-1])
    assert summary["smse"] < 0.01
    (tmp_path / "table.csv").write_text("a,b,goal\n1,2,x\n")
    assert "table.csv:2: goal is not a number" in partita("run", "table.toml", "--out", "other", cwd=tmp_path).stderr


def test_ctrl_c_says_how_to_go_on_and_nothing_is_lost(config, tmp_path):
    arguments = ("run", "wine.toml", "--set", "schedule.rounds=100000", "--json")
    process = started(*arguments, cwd=tmp_path)
    for _ in range(3):
        assert json.loads(process.stdout.readline())["event"] == "fold"
    os.kill(process.pid, signal.SIGINT)
    rest, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in told
    assert "Traceback" not in told
    done = 3 + len(rest.splitlines())
    limit = f"schedule.rounds={done + 2}"
    resumed = partita("run", "wine.toml", "--resume", "--set", limit, "--json", cwd=tmp_path)
    assert json.loads(resumed.stdout.splitlines()[-1])["rounds"] == done + 2


def started(*arguments, cwd):
    command = [sys.executable, "-c", "from partita.cli import main; main()", *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_watching_ends_with_ctrl_c(tmp_path):
    process = started("watch", "runs/none", "--json", cwd=tmp_path)
    told = json.loads(process.stdout.readline())
    assert (told["event"], told["run"]) == ("watching", "runs/none")
    with urllib.request.urlopen(told["url"], timeout=60) as answer:
        assert b"Run none" in answer.read()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "runs/none: no run there yet; waiting for one to begin\n")
    assert process.returncode == 0
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo",), "nothing was kept; begin again with: partita demo"),
        (("methods", "--check"), "begin again with the same command"),
        (("reproduce", "streaming-1d", "--quick"), "finished runs are kept. Go on with the same command"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_ctrl_c_everywhere(tmp_path, arguments, words):
    process = started(*arguments, "--json", cwd=tmp_path)
    assert json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert told.strip() == f"stopped; {words}"
    assert process.returncode == 130


def test_demo_writes_the_table_and_the_page(tmp_path):
    # A long run, for which optimised programs pay.
    optimised = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    told = partita("demo", "--json", cwd=tmp_path, env=optimised)
    summary = json.loads(told.stdout.splitlines()[-1])
    rows = {row["method"]: row for row in summary["rows"]}
    assert len(rows) == 6
    best = rows["global VI, pooled"]["log evidence"]
    for name in ("PVI synchronous", "PVI sequential", "PVI asynchronous"):
        assert best - rows[name]["log evidence"] < 25
        assert rows[name]["error"] < 0.045
    for name in ("BCM, same prior", "BCM, split prior"):
        assert best - rows[name]["log evidence"] > 100
    assert (tmp_path / "report.html").stat().st_size > 1e6


def test_arguments_are_explained_where_people_look():
    for command in ("run", "report", "watch", "serve", "resume", "site", "accept", "status", "stop", "new-federation"):
        shown = CliRunner().invoke(app, [command, "--help"]).output
        assert re.search(r"(DIR|CONFIG) is (a|the) ", shown), command


def test_a_file_that_is_not_there_is_told_as_such(tmp_path):
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "nothere.safetensors")])
    assert shown.exit_code != 0
    assert "nothere.safetensors: there is no such file or folder" in shown.output + str(shown.exception)


def test_a_model_that_predicts_nothing_runs_from_a_file(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 2)) + 8 * (np.arange(60) % 2)[:, None]
    (tmp_path / "table.csv").write_text("a,b\n" + "\n".join(",".join(map(repr, row)) for row in rows.tolist()) + "\n")
    config = (
        '[data]\npath = "table.csv"\n[partition]\nsites = 3\n[model]\nname = "gaussian-mixture"\ncomponents = 4\n'
        '[schedule]\nname = "synchronous"\nrounds = 20\n'
    )
    (tmp_path / "table.toml").write_text(config)
    summary = json.loads(partita("run", "table.toml", "--json", cwd=tmp_path).stdout.splitlines()[-1])
    result = pt.load(tmp_path / "runs" / "table" / "result.safetensors")
    train, test = pt.datasets.train_test((rows,), 0.2)
    # Rows are four deviations and more from the other half of them.
    share = result.model.responsibilities(result.posterior, pt.datasets.standardised(test[0], train[0]))
    assert np.all(share.max(axis=1) > 0.99)
    low = np.count_nonzero(train[0][:, 0] < 4)
    found = np.sort(result.posterior.parts["weights"].concentration)
    assert found == pytest.approx(sorted([1, 1, 1 + low, 1 + len(train[0]) - low]), abs=0.1)
    assert 0 < summary["nll"] < 2.9  # of two independent standard normal columns: 2.84
    for old, new, complaint in (
        ("components = 4\n", "", "components is missing: how many there are at most; components = 3, for example"),
        ('"table.csv"', '"table.csv"\ntarget = "b"', "[data] target: the model predicts nothing: leave it out"),
        ("sites = 3", 'sites = 3\nhow = "by-label"', "'by-label' needs labels"),
    ):
        (tmp_path / "table.toml").write_text(config.replace(old, new))
        assert complaint in partita("run", "table.toml", "--out", "other", cwd=tmp_path).stderr
