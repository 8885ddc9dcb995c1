"""The page on the paper: nothing is left out, nothing points nowhere, and no figure is made up."""

import importlib
import os
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from paper_parts import read_parts
from partita.cli import app
from partita.errors import ConfigError, InputError
from partita.studies.methods import find_method
from partita.studies.paper import banana, federated, robot_arm, sngd
from partita.studies.paper.recipes import SCHEMES
from partita.studies.paper_page import PAGE, ROWS, anchor, check_cover, read_entries, write_paper_page
from partita.studies.pictures.drawing import PICTURES

ROOT = Path(__file__).parents[2]
PARTS, ENTRIES = read_entries(ROOT / ROWS)
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.?\d*(?:e-?\d+)?")
METHODS = {
    "federated": [*federated.methods("iid", federated.FULL), *federated.sweeps(federated.FULL), *SCHEMES],
    "sngd": [*sngd.METHODS],
    "banana": [*banana.METHODS, *banana.PAPER_WORDS],
    "robot-arm": [*robot_arm.METHODS, *robot_arm.PAPER_WORDS],
}


def paper():
    """The authors' source, which is not part of the repository: beside a folder of data, or in it."""
    data = Path(os.environ.get("PARTITA_DATA", "nowhere"))
    return next((path for path in (data / "paper.tex", data.parent / "paper.tex") if path.exists()), None)


def entries(name):
    return [pytest.param(entry, id=anchor(entry)) for entry in ENTRIES if getattr(entry, name)]


def numbers(text):
    return {found.rstrip(".,").replace(",", "") for found in NUMBER.findall(text)}


def find(name):
    """What a dotted name means."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        try:
            found = importlib.import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            found = getattr(found, word)
        return found
    raise AssertionError(f"{name}: no such module")


def test_the_page_is_what_its_rows_make(tmp_path):
    said = []
    write_paper_page(said.append, tmp_path / "paper.md", ROOT / ROWS)
    assert (tmp_path / "paper.md").read_text(encoding="utf-8") == (ROOT / PAGE).read_text(encoding="utf-8"), (
        "write it again: partita study paper"
    )
    assert said == [f"{tmp_path / 'paper.md'}: {len(ENTRIES)} entries for {len(PARTS)} parts"]


def test_every_part_has_an_entry_and_numbers_are_complete():
    check_cover(PARTS, ENTRIES)
    for kind, number in {"Property": 7, "Algorithm": 4, "Eq.": 94, "Figure": 29, "Table": 1}.items():
        assert [part for part in PARTS if part.startswith(kind)] == [f"{kind} {i}" for i in range(1, number + 1)]


def test_parts_that_are_missing_or_unknown_are_named():
    with pytest.raises(InputError, match=r"got none for Appendix C.4, Eq. 94, and some for \(no other\)"):
        check_cover(PARTS, [entry for entry in ENTRIES if "Eq. 94" not in entry.parts])
    with pytest.raises(InputError, match=r"none for \(all have one\), and some for Property 7"):
        check_cover({part: "" for part in PARTS if part != "Property 7"}, ENTRIES)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('verdict = "true"', "expected one of holds, holds with a correction"),
        ('verdict = "holds"\ncolour = "red"', "colour is not a known key"),
        ('verdict = "holds"\ncode = "partita"', "code expected a list"),
    ],
)
def test_mistakes_in_rows_are_told(line, complaint, tmp_path):
    (tmp_path / "rows.toml").write_text(f'[parts]\n"Eq. 1" = ""\n[[entries]]\ncovers = ["Eq. 1"]\nsays = "."\n{line}\n')
    with pytest.raises(ConfigError, match=complaint):
        read_entries(tmp_path / "rows.toml")


def test_entries_have_names_of_their_own():
    assert len({anchor(entry) for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("entry", entries("code"))
def test_code_is_there(entry):
    for name in entry.code:
        assert (ROOT / name).exists() if "/" in name else find(name) is not None, name


@pytest.mark.parametrize("entry", entries("tests"))
def test_tests_are_there(entry):
    for name in entry.tests:
        file, function = name.split("::")
        assert re.search(rf"^ *def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name


@pytest.mark.parametrize("entry", entries("commands"))
def test_commands_can_be_parsed(entry):
    for line in entry.commands:
        command, *words = shlex.split(line)
        assert command == "partita"
        group = get_command(app).commands[words[0]]
        if hasattr(group, "commands"):
            group, words = group.commands[words[1]], words[1:]
        given = group.make_context(words[0], words[1:]).params
        if method := given.get("method"):
            assert set(method.split(",")) <= set(METHODS[words[0]]), line
        if words[0] == "methods" and given["name"]:
            find_method(given["name"])
        if words[0] == "pictures":
            assert set(given["names"]) <= set(PICTURES), line


@pytest.mark.parametrize("entry", entries("pictures"))
def test_pictures_are_there(entry):
    assert [place for place, _ in entry.pictures if not (ROOT / "docs" / place).exists()] == []


@pytest.mark.parametrize("entry", entries("ours"))
def test_figures_of_ours_are_in_the_pages_that_they_are_said_to_be_from(entry):
    pages = "".join((ROOT / source).read_text(encoding="utf-8") for source in entry.sources)
    assert entry.sources or not numbers(entry.ours), entry.ours
    assert numbers(entry.ours) - numbers(pages) == set()


@pytest.mark.parametrize("entry", entries("note"))
def test_figures_in_notes_are_there_too(entry):
    """Numbers with a decimal point, but for those of sections and equations."""
    pages = "".join((ROOT / source).read_text(encoding="utf-8") for source in entry.sources)
    words = re.sub(r"(Section|Appendix|Eqs?\.|Figure|Property) [\w.]+", "", entry.note)
    assert {each for each in numbers(words) if "." in each} - numbers(pages) == set()


def test_what_code_and_pages_refer_to_is_in_the_paper():
    """ "Section 3.4 of the paper", wherever it is written."""
    found = {}
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.py")]:
        words = " ".join(path.read_text(encoding="utf-8").split())
        kinds = r"(?:Section|Appendix|Property|Algorithm|Eq\.|Figure|Table)"
        for part in re.findall(rf"({kinds} [\dA-E.]*[\dA-E]) of (?:the|this) paper", words):
            found[part] = path
    assert len(found) > 10
    assert {part: path for part, path in found.items() if part not in PARTS} == {}


def test_what_is_not_tried_or_failed_says_why():
    assert [entry for entry in ENTRIES if entry.verdict != "holds" and not entry.note] == []
    assert [entry for entry in ENTRIES if entry.verdict.startswith("holds") and not entry.tests + entry.commands] == []


def test_numbers_are_those_of_latex():
    """A small source with what LaTeX counts and what it does not."""
    source = r"""
\section{Before} \begin{document} \section{One, $\theta$\label{sec:one}} \subsection{Two}
\begin{align} a &= b \label{eq:a} \\ c &= d \nonumber \\ e &= f \end{align}
\begin{align*} g &= h \end{align*} % \begin{equation}
\begin{property}\label{prop:p} \begin{align} i \end{align} \end{property}
\begin{figure}\caption{\label{fig:f}}\end{figure} \appendix \section{Proof of \ref{prop:p}}
"""
    assert read_parts(source) == {
        "Section 1": "One, θ", "Section 1.1": "Two", "Eq. 1": "eq:a", "Eq. 2": "", "Property 1": "prop:p",
        "Eq. 3": "", "Figure 1": "fig:f", "Appendix A": "Proof of 1",
    }  # fmt: skip


@pytest.mark.skipif(paper() is None, reason="the paper's source is not in the folder of data, nor beside it")
def test_parts_are_those_of_the_paper():
    assert list(PARTS.items()) == list(read_parts(paper().read_text(encoding="utf-8")).items())


@pytest.mark.skipif(paper() is None, reason="the paper's source is not in the folder of data, nor beside it")
@pytest.mark.parametrize("entry", entries("theirs"))
def test_figures_of_the_paper_are_in_it(entry):
    assert numbers(entry.theirs) - numbers(re.sub(r"\\mypm", " ", paper().read_text(encoding="utf-8"))) == set()
