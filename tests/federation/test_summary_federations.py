"""Table 1 across the wall: the same as in one process, under each site's policy, with a line for all that left."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import partita as pt
from memory_federation import MemoryFederation
from partita.cli import app
from partita.errors import ConfigError, CorruptStorage, InputError
from partita.federation.folders import read_server
from partita.federation.new import plan_summary
from partita.report.summaries import list_values
from partita.site.approval import describe_proposal, read_proposal
from partita.site.audit import read_audit
from partita.site.consent import Consent
from partita.site.gate import Site
from partita.summaries.saving import read_summary
from partita.wire.codec import encode_question
from partita.wire.questions import Moments, Outline, Tabulate

pytest.importorskip("flwr")
pytest.importorskip("cryptography")


def make_table(rows, number):
    rng = np.random.default_rng(number)
    frame = pd.DataFrame({"age": rng.normal(50, 12, rows), "weight": rng.normal(70, 9, rows)})
    frame["ward"] = np.resize(["east", "north", "south"], rows)
    frame["sex"] = rng.choice(["f", "m"], rows)
    frame["ill"] = rng.integers(0, 2, rows)
    frame.loc[frame.index[::9], "weight"] = np.nan
    return frame


TABLES = {"a": make_table(60, 1), "b": make_table(90, 2), "c": make_table(72, 3)}
PLAN = plan_summary(["age", "weight", "sex", "ill"], "ward", [("sex", "ill")])


@pytest.fixture
def federate(tmp_path, monkeypatch):
    def make(said=""):
        ours = MemoryFederation(tmp_path / "ours", PLAN, tuple(TABLES), monkeypatch)
        ours.write_table("a", TABLES["a"].assign(name="secret"))
        ours.write_table("b", TABLES["b"].rename(columns={"age": "YEARS"}), f'\ncolumns: age = "YEARS"{said}')
        units = f"\nunits: weight = {1 / 1024!r}"
        ours.write_table("c", TABLES["c"].assign(weight=TABLES["c"].weight * 1024), units)
        return ours

    return make


def test_a_summary_across_the_wall_is_the_same_as_in_one_process(federate, tmp_path):
    ours = federate()
    state = ours.run()
    assert state["state"] == "finished", state["reason"]
    found = read_summary(ours.result)
    there = pt.summary(TABLES, ["age", "weight", "sex", "ill"], by="ward", cross=[("sex", "ill")])
    assert list(list_values(found)) == list(list_values(there))
    assert found.question == there.question
    # Every answer has a line, with its digest and size; the server was sent nothing else.
    for name in TABLES:
        lines = []
        assert read_audit(ours.site_folder(name), lines.append).problems == []
        assert [line["kind"] for line in lines if line["kind"] != "about"] == ["outline", "tabulate"]
        assert {line["outcome"] for line in lines} == {"sent"}
    # What was made is read again, and written in every format; nobody has to be there.
    told = CliRunner().invoke(app, ["summary", str(ours.folder)])
    assert told.exit_code == 0, told.output
    assert "sex by ill, all sites" in told.stdout
    for ending, words in (("txt", "mean (SD)"), ("html", "<table>"), ("csv", "column,level"), ("tex", "\\toprule")):
        path = ours.folder / f"summary.{ending}"
        assert words in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600
    tex = CliRunner().invoke(app, ["summary", str(ours.folder), "--format", "latex"])
    assert tex.stdout == (ours.folder / "summary.tex").read_text()
    for words, more in (("--by", ["--by", "sex"]), ("--columns", ["--columns", "age"])):
        wrong = CliRunner().invoke(app, ["summary", str(ours.folder), *more])
        assert words in str(wrong.exception)
    content = json.loads(ours.result.read_text())
    content["sites"][0][1] = content["sites"][0][1][:-8]
    ours.result.write_text(json.dumps(content))
    with pytest.raises(CorruptStorage, match="is no summary that Partita writes"):
        read_summary(ours.result)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("\npolicy: fewest_per_cell = 5", "(fewest_per_cell): the server asks for cells of 3 rows and more"),
        ("\npolicy: fewest_rows = 100", "(fewest_rows)"),
        ('\npolicy: answers = ["about", "outline"]', "(answers): answers to 'tabulate' may not leave"),
        ('\npolicy: columns = ["YEARS", "sex"]', "(columns): the column 'weight' may not be used"),
        ('\npolicy: models = ["logistic-regression"]', "(models)"),
        ("\npolicy: most_questions = 1", "(most_questions): the server has asked 1 times already"),
    ],
)
def test_policies_refuse_summaries_and_say_why(federate, said, why):
    ours = federate(said)
    file = ours.folder / "federation.toml"
    file.write_text(file.read_text().replace("timeout = 600.0", "timeout = 1.0").replace("= 1800.0", "= 2.0"))
    state = ours.run()
    assert state["state"] in ("failed", "stalled")
    assert "site b" in state["reason"] or "b (" in state["reason"]
    assert why in state["reason"]
    assert not ours.result.exists()
    lines = []
    read_audit(ours.site_folder("b"), lines.append)
    assert any(line["outcome"] == "refused" for line in lines)


def ask(site, folder, question):
    recipe = folder.recipe
    return site.answer(question.name, {**recipe.greeting, "site": 1, "payload": encode_question(question)})


def test_a_site_answers_one_form_of_a_question_until_it_is_approved_again(federate):
    ours = federate()
    folder, own = read_server(ours.folder), ours.site_folder("a")
    site = Site(own, accepts=True)
    names = ("age", "weight", "sex", "ill", "ward")
    outline = Outline(names, (), 3)
    assert "payload" in ask(site, folder, outline)
    assert "payload" in ask(site, folder, outline)
    told = ask(site, folder, Outline(names, (), 4))["error"]
    assert "(approval): the server has asked 'outline' in another form" in told
    Consent(own).accept(read_proposal(own))
    assert "payload" in ask(site, folder, Outline(names, (), 4))


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (Outline(("age", "name"), (), 3), "beyond the approved recipe: other columns"),
        (Outline((), (), 3), "beyond the approved recipe: other columns"),
        (Outline(("age", "weight", "sex", "ill", "ward"), (), 2), "cells of fewer than 3 rows"),
        (Tabulate((), None, (("sex", "ill"),), 3), "another breakdown"),
        (Moments(), "for which the approved recipe has no use"),
    ],
)
def test_nothing_beyond_the_recipe_is_answered(federate, question, why):
    ours = federate()
    site = Site(ours.site_folder("a"), accepts=True)
    assert why in ask(site, read_server(ours.folder), question)["error"]


def test_the_person_of_a_site_is_shown_what_a_summary_tells(federate):
    ours = federate("\npolicy: fewest_per_cell = 5")
    folder, own = read_server(ours.folder), ours.site_folder("b")
    site = Site(own)
    assert "nothing has been approved" in ask(site, folder, Outline(("age",), (), 3))["error"]
    shown = "\n".join(describe_proposal(own, read_proposal(own)))
    assert 'reads of each row: "age" (here "YEARS"), "weight", "sex", "ill", "ward"; no other column' in shown
    assert "computes: a summary of the table; nothing is fitted" in shown
    assert 'counts of rows by levels and in bins of numbers, "sex" with "ill", broken down by "ward"' in shown
    assert "your policy refuses this (fewest_per_cell): its cells have to have 5 rows" in shown


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[summary]", '[model]\nname = "logistic-regression"\n\n[summary]', "model.* does not go with"),
        ('columns = ["age", "weight", "sex", "ill"]', "", "columns is missing"),
        ('cross = [["sex", "ill"]]', 'cross = [["sex", "sex"]]', "pairs of different columns"),
        ("fewest_per_cell = 3", "fewest_per_cell = 0", "fewest_per_cell"),
        ("# categorical = []", 'categorical = ["height"]', "is none of the columns"),
    ],
)
def test_what_a_file_says_of_a_summary_is_checked(federate, old, new, words):
    ours = federate()
    file = ours.folder / "federation.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=words):
        read_server(ours.folder)


def test_a_folder_that_fits_something_has_no_summary(tmp_path):
    from partita.federation.new import make_federation
    from partita.federation.summaries import sum_up_federation

    make_federation(tmp_path / "fit", ["a"], "127.0.0.1:9092", ["x"], "y", "logistic-regression")
    with pytest.raises(InputError, match=r"has no \[summary\]"):
        sum_up_federation(tmp_path / "fit", False, print)
