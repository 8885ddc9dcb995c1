"""What is built from the repository, and that it works where the repository is not."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from dataclasses import replace
from email import message_from_string
from pathlib import Path

import pytest

import partita as pt
from partita.engines.flower import import_flower
from partita.engines.ray import import_ray
from partita.errors import MissingExtra, PartitaError
from partita.foundation.checks import import_extra
from partita.studies.methods import check_methods, comparisons, find_method

ROOT = Path(__file__).parents[2]
GENERATED = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "runs")


def ignore_generated(folder, names):
    """What is made, not written; the documentation as a site is at the root, and `partita.site` is not."""
    return GENERATED(folder, names) | ({"site"} & set(names) if Path(folder) == ROOT else set())


LARGEST = 300_000

USE = """
import sys
import numpy as np
import partita as pt

assert pt.__file__.startswith(sys.prefix), pt.__file__
X = np.ones((4, 1)); y = np.array([1.0, 2.0, 3.0, 2.0])
model = pt.models.LinearRegression(features=1, noise=1.0, intercept=False)
result = pt.fit(model, [(X[:2], y[:2]), (X[2:], y[2:])], schedule=pt.schedules.OnePass())
print(result.posterior.location.round(6))
"""


def run(*command, cwd, **options):
    """With an environment that knows nothing of this one."""
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=bare, capture_output=True, text=True, timeout=900, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A source distribution, and the wheel that is built from it; with the setuptools that is here."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, folder / "source", ignore=ignore_generated)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "source", cwd=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def metadata(wheel, name):
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"partita-{pt.__version__}.dist-info/{name}").decode()


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as archive:
        names = set(archive.namelist())
    package = {name for name in names if not name.startswith(f"partita-{pt.__version__}.dist-info/")}
    source = ROOT / "src"
    modules = {str(path.relative_to(source)) for path in (source / "partita").rglob("*.py")}
    assert package == modules | {"partita/py.typed", "partita/report/page.css", "partita/report/page.js"}


def test_the_wheel_knows_its_command_and_its_licence(built):
    entries = ConfigParser()
    entries.read_string(metadata(built[1], "entry_points.txt"))
    assert dict(entries["console_scripts"]) == {"partita": "partita.cli:main"}
    assert "Apache License" in metadata(built[1], "licenses/LICENSE")


def test_the_source_distribution_is_small_and_can_be_built(built):
    with tarfile.open(built[0]) as archive:
        files = {member.name.partition("/")[2]: member.size for member in archive if member.isfile()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/partita/py.typed", "src/partita/_version.py"} <= files.keys()
    assert max(files.values()) < LARGEST
    assert not any(name.startswith("tests/") for name in files)
    kinds = {Path(name).suffix for name in files}
    assert kinds <= {".py", ".md", ".toml", ".txt", ".cfg", ".in", ".typed", ".css", ".js", ""}


def test_the_version_is_in_one_place(built):
    version = re.search(r'"(.+)"', (ROOT / "src/partita/_version.py").read_text()).group(1)
    assert pt.__version__ == version
    assert message_from_string(metadata(built[1], "METADATA"))["Version"] == version
    assert f'"{version}"' not in (ROOT / "pyproject.toml").read_text()


def check_use(python, folder):
    """From a folder that has nothing to do with the repository."""
    command = python.parent / "partita"
    assert run(python, "-c", USE, cwd=folder).strip() == "[1.6]"
    assert run(command, "--version", cwd=folder).strip() == f"partita {pt.__version__}"
    rows = [json.loads(line) for line in run(command, "methods", "--json", cwd=folder).splitlines()]
    assert "minka-2001" in {row["method"] for row in rows}


def test_the_wheel_works_elsewhere(built, tmp_path):
    """In an environment of its own that borrows what Partita needs from this one."""
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    (own,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # Folders that are named in such a file are not looked through for more such files: editable installs stay out.
    (own / "borrowed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    pip = ("-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", built[1])
    run(sys.executable, *pip, cwd=tmp_path)
    check_use(python, tmp_path)


@pytest.mark.slow
def test_the_wheel_installs_what_it_needs_and_is_typed(built, tmp_path):
    """With its dependencies, as on a machine that has nothing but Python."""
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    index = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-c", ROOT / "constraints.txt")
    subprocess.run(list(map(str, (python, *index, built[1]))), check=True, cwd=tmp_path, timeout=900)
    check_use(python, tmp_path)
    # The comment is needed, and no other complaint is made, only where types are seen.
    lines = (
        "import partita as pt",
        "result: pt.Result = pt.load('a')",
        "wrong: int = result.log_evidence  # type: ignore",
    )
    (tmp_path / "user.py").write_text("\n".join(lines))
    options = ("--warn-unused-ignores", "--follow-imports", "silent", "--cache-dir", tmp_path / "mypy")
    run(sys.executable, "-m", "mypy", "--python-executable", python, *options, "user.py", cwd=tmp_path)


@pytest.mark.parametrize(("module", "needs_it"), [("ray", import_ray), ("flwr", import_flower)])
def test_an_extra_that_is_missing_is_asked_for_by_name(module, needs_it, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"is not installed: .*pip install '.\[(ray|flower)\]'") as caught:
        needs_it()
    assert isinstance(caught.value, PartitaError)
    assert isinstance(caught.value, ImportError)


def test_a_method_without_its_reference_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(MissingExtra, match="NumPyro is not installed"):
        comparisons.nuts_moments(None, None)
    needs_it = replace(find_method("wand-2014"), problem=lambda: import_extra("numpyro", "NumPyro", "numpyro"))
    (told,) = check_methods([needs_it])
    assert told["status"] == "no package"
    assert "pip install '.[numpyro]'" in told["words"]


def test_every_extra_is_in_the_table():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert [name for name in extras if f"| `{name}` |" not in page] == []
