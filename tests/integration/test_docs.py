"""Every code block of the README and of docs/ runs as it stands, and prints what the page says that it prints.

The blocks of a page run in order, in one namespace and an empty folder:

* `python` is executed; `sh` has one `partita` command per line, called in this process;
* `toml title="NAME"` is written to that file;
* `text title="prints"` is what the block before it printed, but for the last digits of numbers;
* `text` is for reading, as are diagrams and formulas.

A block that cannot run here has a line `<!-- not run: why -->` above it.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import partita as pt
from partita.cli import app

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(
    r"(?P<mark><!-- not run: (?P<why>[^>]+) -->\n)?"
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")


class Block(NamedTuple):
    """A fenced block, and where it is."""

    language: str
    title: str | None
    text: str
    why_not_run: str | None
    page: Path
    line: int


def blocks(page: Path) -> list[Block]:
    source = page.read_text(encoding="utf-8")
    return [
        Block(m["language"], m["title"], m["text"], m["why"], page, source.count("\n", 0, m.start("text")))
        for m in FENCE.finditer(source)
    ]


def run(block: Block, names: dict[str, Any]) -> str:
    """What it prints."""
    if block.why_not_run is not None:
        return ""
    if block.language == "toml" and block.title is not None:
        Path(block.title).write_text(block.text, encoding="utf-8")
    if block.language == "sh":
        return "".join(called(line) for line in block.text.splitlines())
    printed = io.StringIO()
    if block.language == "python":
        # Empty lines before it, so that a traceback names the line of the page.
        program = compile("\n" * block.line + block.text, block.page, "exec")
        with contextlib.redirect_stdout(printed):
            exec(program, names)
    return printed.getvalue()


def called(line: str) -> str:
    command, *arguments = shlex.split(line, comments=True)
    assert command == "partita", f"{line}: only partita's own commands are run; mark others"
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def check_printed(block: Block, printed: str) -> None:
    shown, given = (NUMBER.split(" ".join(text.split())) for text in (block.text, printed))
    assert [part.strip() for part in shown] == [part.strip() for part in given], printed
    shown, given = (np.array(NUMBER.findall(text), float) for text in (block.text, printed))
    np.testing.assert_allclose(given, shown, rtol=0.02, atol=0.011, err_msg=printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Commands would take the user's cache of compiled programs, for all tests after them.
    monkeypatch.setattr("partita.foundation.compilation.cache_compilations", lambda: None)
    names: dict[str, Any] = {"__name__": "page"}
    printed = ""
    for block in blocks(page):
        if block.title == "prints":
            check_printed(block, printed)
        else:
            printed = run(block, names)


EXAMPLES = [block for block in blocks(README) if block.language == "python"]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_of_the_readme_runs_by_itself(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    run(EXAMPLES[number], names)
    if hasattr(names.get("model"), "stream_"):
        assert np.isfinite(names["model"].log_evidence_)
        assert np.mean(np.abs(names["y"][400:] - names["mean"]) < 1.96 * names["std"]) > 0.85
        return
    if hasattr(names.get("model"), "sites_"):
        names["result"] = names["model"].result_
    result = next(names[name] for name in ("result", "state", "vi", "event") if name in names)
    assert result.posterior.is_proper()
    assert np.isfinite(result.free_energy if "event" in names else result.log_evidence)


def test_the_readme_has_an_example_for_each_user_and_one_for_networks_and_processes():
    assert len(EXAMPLES) == 6
    assert all(len([line for line in example.text.splitlines() if line.strip()]) <= 15 for example in EXAMPLES)


def test_links_of_the_readme_lead_somewhere():
    """Those between pages are checked when the site is built."""
    links = re.findall(r"\]\(([^)]+)\)", README.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith("http")]
    assert local
    assert [link for link in local if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_is_left_out_silently(page):
    """Every fence is of a kind that is run or is for reading; every mark has its block; no code is only indented."""
    found = blocks(page)
    source = page.read_text(encoding="utf-8")
    assert source.count("\n```") + source.startswith("```") == 2 * len(found)
    assert {block.language for block in found} <= {"python", "sh", "toml", "text"}
    assert set(re.findall(r"^ +```(.+)$", source, re.MULTILINE)) <= {"text"}
    marked = [block for block in found if block.why_not_run is not None]
    assert source.count("<!-- not run") == len(marked)
    assert all(block.language in ("python", "sh") for block in marked)
    assert all(block.title for block in found if block.language == "toml")
    rest = FENCE.sub("", source)
    assert re.findall(r"^ {4,}(?:partita|python|pip|make|import|from|>>>) .*", rest, re.MULTILINE) == []


def test_every_command_is_documented():
    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name in commands if f"`partita {name}" not in page] == []


def test_every_public_name_is_in_the_reference():
    """By itself, or in a module without a list of public names, which is shown whole."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = {f"partita.{name}" for name in re.findall(r"^::: partita\.(.+)$", pages, re.MULTILINE)}
    missing = []
    for name in set(pt.__all__) - {"__version__"}:
        part = getattr(pt, name)
        module = getattr(part, "__name__", "")
        listed = [f"{module}.{each}" for each in getattr(part, "__all__", [])]
        public = listed or [module if isinstance(part, ModuleType) else f"partita.{name}"]
        missing += [each for each in public if each not in shown and getattr(part, "__module__", None) not in shown]
    assert [
        each for each in missing if not each.endswith((".REGISTRY", ".Hyper", "models.Model", "models.from_numpyro"))
    ] == []
