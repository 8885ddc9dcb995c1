"""Files that an attacker has changed, field by field: whoever reads them says so in an error of ours, and soon.

A file that was written in good faith is read as a tree of plain values; every place of it in turn is given values that
no run writes, and whatever reads such files is let at it, and then asked for what people ask for. What is accepted has
to work; what is not has to be told in a typed error.
"""

import copy
import json
import math
import os
import random
import sqlite3
from contextlib import closing, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO

import numpy as np
import pandas
import pytest
from safetensors import numpy as safetensors
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.cli.runs import show_report
from partita.config import build_model, load_data, read_config
from partita.datasets import read_columns, split
from partita.errors import (
    ConfigError,
    CorruptStorage,
    ImproperDensity,
    InputError,
    PartitaError,
    PolicyRefusal,
    StorageError,
)
from partita.federation.folders import read_server
from partita.federation.metrics import format_metrics
from partita.federation.new import make_federation
from partita.federation.processes import stop
from partita.federation.state import Requests, read_state, write_state
from partita.fitting import prepare
from partita.formulas.fitting import check_comparable
from partita.formulas.regression import check_level
from partita.foundation import archives
from partita.foundation.digests import content_digest
from partita.foundation.foreign import parse_json, parse_toml
from partita.foundation.keys import read_public_key
from partita.foundation.locks import hold_lock
from partita.report.measures import write_measures
from partita.report.regression import describe, write_regression
from partita.server.schedules import Synchronous
from partita.server.settings import Settings
from partita.site.consent import Consent
from partita.site.policy import Policy
from partita.site.settings import read_site
from partita.site.tables import read_sites, read_table
from partita.wire.recipes import parse_recipe

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 2))
Y = (X[:, 0] + 0.5 * GENERATOR.normal(size=40) > 0).astype(float)
SHARDS = [(X[i::4], Y[i::4]) for i in range(4)]
# Put into the text instead of these words: what JSON and TOML can say, and Python cannot write.
RAW = {"@digits@": "9" * 5000, "@deep@": "[" * 50_000 + "]" * 50_000, "@twice@": '{"a": 1, "a": 2}'}
EVIL = "\x1b]0;owned\x07\x1b[2J\u202e[/b]<img src=x>"
VALUES = (
    None, True, -1, 0, 3, 10**30, 0.5, -1e300, 1e308, math.nan, math.inf, "", "nan", EVIL, "\x00", "\ud800",
    "x" * 100_000, [], [[]], [None], [1e308] * 3, ["a"] * 3, [0] * 100_000, {}, {"a": 1}, {"name": []}, *RAW,
)  # fmt: skip
DELETED = object()


def is_plain(text):
    return all(character.isprintable() or character == "\n" for character in text)


def places(tree, before=()):
    """Every place of a tree; of long lists, the first and the last."""
    yield before
    items = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    for key, value in items if isinstance(tree, dict) else [*items[:2], *items[2:][-1:]]:
        yield from places(value, (*before, key))


def changed(tree, place, value):
    """The same tree with another value at one place; or without it."""
    if not place:
        return {} if value is DELETED else value
    tree = copy.deepcopy(tree)
    inner = tree
    for key in place[:-1]:
        inner = inner[key]
    if value is DELETED:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return tree


def mutations(tree):
    """Of every place, every value; a key that nobody knows, everywhere."""
    found = [(place, value) for place in places(tree) for value in (*VALUES, DELETED)]
    return [(one, changed(tree, *one)) for one in found]


def as_json(tree):
    text = json.dumps(tree)
    for word, raw in RAW.items():
        text = text.replace(f'"{word}"', raw)
    return text


def as_toml(tree):
    """Sections, and values in one line."""
    if not isinstance(tree, dict):
        return f"x = {_toml(tree)}"
    tops = [f"{_toml_key(key)} = {_toml(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for key, value in tree.items():
        if isinstance(value, dict):
            tops += [f"[{_toml_key(key)}]", *(f"{_toml_key(inner)} = {_toml(one)}" for inner, one in value.items())]
    return "\n".join(tops)


def _toml_key(key):
    return json.dumps(str(key))


def _toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    if value in RAW:
        return RAW[value]
    return '"none"' if value is None else json.dumps(value)


# What is read, and how.


class Archive:
    """A saved result: arrays, and words about them."""

    def __init__(self, folder, save, use):
        self.path, self.use = folder / "result.safetensors", use
        save(self.path)
        self.arrays, self.tree = archives.read_arrays(self.path)

    def write(self, tree, arrays=None):
        arrays = self.arrays if arrays is None else arrays
        text = as_json(tree)
        with suppress(UnicodeEncodeError):
            metadata = {"partita": text, "sha256": content_digest(arrays, text)}
            self.path.write_bytes(safetensors.save(arrays, metadata))


class Notes:
    """A file of JSON or TOML."""

    def __init__(self, path, use, tree=None, dump=as_json, load=json.loads):
        self.path, self.use, self.dump = path, use, dump
        self.tree = load(path.read_text()) if tree is None else tree

    def write(self, tree):
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(self.dump(tree).encode(errors="surrogatepass"))


def fit(model=None, folder=None, rounds=2, shards=SHARDS):
    model = model or pt.models.LogisticRegression(features=2)
    return pt.fit(model, shards, schedule=Synchronous(rounds=rounds), run_dir=folder)


def use_result(result):
    assert "\x1b" not in repr(result)
    with suppress(InputError):
        result.predict_proba(X)
    assert np.isfinite(np.asarray(result.predict(X), float)).all()
    with suppress(InputError):
        assert np.isfinite(np.asarray(result.predict(X, return_std=True), float)).all()
    result.contributions(), result.cavity(0), result.sample(0, 2), result.packed()


DESIGN = {"columns": ["a", "b"], "target": "y", "centre": [0.0, 1.0], "unit": [1.0, 2.0]}


def of_result(folder):
    made = replace(fit(), design=DESIGN)
    return Archive(folder, made.save, lambda path: use_result(pt.load(path)))


def of_network(folder):
    model = pt.models.Network([2, 3, 2])
    made = pt.fit(model, SHARDS[:2], schedule=Synchronous(rounds=1), solver=pt.solvers.Gradient(steps=2))
    return Archive(folder, made.save, lambda path: use_result(pt.load(path)))


def of_noise(folder):
    made = fit(pt.models.LinearRegression(features=2))
    return Archive(folder, made.save, lambda path: use_result(pt.load(path)))


def of_classifier(folder):
    frame = pandas.DataFrame(X, columns=["a", "b"])
    made = pt.PartitionedClassifier(schedule=Synchronous(rounds=2), quiet=True).fit(frame, Y)

    def use(path):
        loaded = pt.PartitionedClassifier.load(path)
        names = getattr(loaded, "feature_names_in_", None)
        table = X if names is None else pandas.DataFrame(X, columns=list(names))
        assert np.isfinite(loaded.predict_proba(table)).all()
        repr(loaded), loaded.coef_, loaded.intercept_, loaded.sites_, loaded.predict(table)
        loaded.save(folder / "again")

    return Archive(folder, made.save, use)


def of_regressor(folder):
    made = pt.PartitionedRegressor(schedule=Synchronous(rounds=2), quiet=True).fit(X, X[:, 0])

    def use(path):
        loaded = pt.PartitionedRegressor.load(path)
        repr(loaded), loaded.coef_, loaded.intercept_
        assert np.isfinite(np.asarray(loaded.predict(X, return_std=True))).all()
        loaded.save(folder / "again")

    return Archive(folder, made.save, use)


def of_stream(folder):
    made = pt.StreamingGPRegressor(points_per_batch=3, steps=1, quiet=True).partial_fit(X[:8], X[:8, 0])

    def use(path):
        loaded = pt.StreamingGPRegressor.load(path)
        repr(loaded)
        assert np.isfinite(np.asarray(loaded.predict(X[:2], return_std=True))).all()
        loaded.save(folder / "again")

    return Archive(folder, made.save, use)


def of_stream_of_classes(folder):
    made = pt.StreamingGPClassifier(points_per_batch=3, steps=1, quiet=True).partial_fit(X[:8], np.arange(8) % 3)

    def use(path):
        loaded = pt.StreamingGPClassifier.load(path)
        repr(loaded), loaded.predict(X[:2])
        assert np.isfinite(loaded.predict_proba(X[:2])).all()

    return Archive(folder, made.save, use)


def frames():
    table = {"y": Y, "age": X[:, 0], "arm": np.where(X[:, 1] > 0, "drug", "none"), "clinic": np.arange(40) % 5}
    frame = pandas.DataFrame(table)
    return {"north": frame[:20], "south": frame[20:]}


def of_regression(folder, formula="y ~ age + arm", family="bernoulli"):
    made = pt.regress(formula, frames(), family=family, schedule=Synchronous(rounds=2), quiet=True)
    table = frames()["north"]

    def use(path):
        loaded = pt.Regression.load(path)
        text = repr(loaded) + str(loaded)
        assert is_plain(text), text
        loaded.coefficients(), loaded.spreads(), loaded.contributions(), loaded.counts
        assert np.isfinite(loaded.predict(table)).all()
        assert np.isfinite(loaded.predict_interval(table, draws=10)).all()

    return Archive(folder, made.save, use)


def of_grouped_regression(folder):
    return of_regression(folder, "y ~ age + (1 | clinic)", "gaussian")


def quietly(function, *arguments):
    out = StringIO()
    with redirect_stdout(out):
        function(*arguments)
    assert is_plain(out.getvalue()), out.getvalue()


class History:
    """A row of a journal's history."""

    def __init__(self, folder):
        self.path = folder / "journal.sqlite"
        self.tree = json.loads(json.dumps(fit(folder=folder).history[-1]))
        self.connect = lambda: closing(sqlite3.connect(self.path))

    def write(self, tree):
        with self.connect() as database, database:
            text = as_json(tree)
            with suppress(UnicodeEncodeError):
                database.execute("UPDATE history SET row = ? WHERE fold = ?", (text, self.tree["fold"]))

    def use(self, path):
        quietly(show_report, path.parent, False)
        assert "\x1b" not in (path.parent / "report.html").read_text()
        quietly(show_report, path.parent, True)


def of_report(folder):
    """A result beside its journal."""
    made = fit(folder=folder)
    return Archive(folder, made.save, lambda path: quietly(show_report, path.parent, False))


def of_measures(folder):

    result = fit(folder=folder)
    result.save(folder / "result.safetensors")
    write_measures(folder, result, (X, Y), ["a", "b"])
    return Notes(folder / "measures.json", lambda path: quietly(show_report, path.parent, False))


def of_regression_notes(folder):

    made = pt.regress(
        "y ~ age + arm", frames(), family="bernoulli", schedule=Synchronous(rounds=2), quiet=True, run_dir=folder
    )
    made.save(folder / "result.safetensors")
    write_regression(folder, describe([made]))
    return Notes(folder / "regression.json", lambda path: quietly(show_report, path.parent, False))


CONFIG = {
    "damping": "auto",
    "seed": 1,
    "data": {"path": "table.csv", "target": "y", "test_share": 0.2, "standardise": True},
    "partition": {"sites": 3, "how": "iid", "concentration": 0.3},
    "model": {"name": "network", "hidden": [3], "prior_scale": 1.0, "noise": 0.5, "likelihood": "gaussian"},
    "solver": {"name": "gradient", "steps": 3},
    "schedule": {"name": "synchronous", "rounds": 2},
    "hyper": {"names": ["noise"], "first_step": 0.1, "largest_step": 0.5, "prior": {"noise": [0.3, 0.1]}},
}


def write_csv(path):
    path.write_text("a,b,y\n" + "".join(f"{a:.4f},{b:.4f},{y:.0f}\n" for (a, b), y in zip(X, Y, strict=True)))


def use_config(path):
    wanted = read_config(path)
    if wanted.regression is not None:
        return
    (inputs, targets), _, _ = load_data(wanted, path.parent)
    model = build_model(wanted, inputs, targets)
    parts = wanted.partition
    shards = split((inputs, targets), parts.sites, parts.how, concentration=parts.concentration, seed=wanted.seed)
    settings = Settings(
        solver=wanted.solver,
        schedule=wanted.schedule,
        damping=wanted.damping,
        hyper=wanted.hyper,
        seed=wanted.seed,
    )
    run, _ = prepare(model, shards, settings)
    run.job()


def of_config(folder):
    write_csv(folder / "table.csv")
    return Notes(folder / "run.toml", use_config, CONFIG, as_toml)


def of_linear_config(folder):
    write_csv(folder / "table.csv")
    linear = {"name": "linear-regression", "prior_scale": 1.0, "noise": 0.5, "posterior": "full", "intercept": True}
    tree = {
        **CONFIG,
        "model": linear,
        "solver": {"name": "fixed-point"},
        "schedule": {"name": "asynchronous", "updates": 9},
    }
    return Notes(folder / "run.toml", use_config, tree, as_toml)


def of_formula_config(folder):
    for name, frame in frames().items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    regression = {
        "formula": "y ~ age + arm", "family": "bernoulli", "compare": ["y ~ age"], "prior_scale": 2.5, "held_out": 0.0,
        "level": 0.95,
    }  # fmt: skip
    tree = {"data": {"sites": "*.csv"}, "regression": regression, "schedule": {"name": "synchronous", "rounds": 1}}

    def use(path):

        wanted = read_config(path)
        if wanted.regression is None:
            return
        asked = wanted.regression
        sites = read_sites(wanted.data.sites, path.parent)
        check_level(asked.level)
        check_comparable(
            (asked.formula, *asked.compare),
            sites,
            family=asked.family,
            held_out=asked.held_out,
            weights=asked.weights,
            seed=wanted.seed,
        )

    return Notes(folder / "run.toml", use, tree, as_toml)


def federation(folder):
    make_federation(folder / "server", ["north", "south"], "127.0.0.1:9092", ["a", "b"], "y", "logistic-regression")
    return folder / "server"


FEDERATION = {
    "damping": "auto",
    "seed": 1,
    "columns": {"features": ["a", "b"], "target": "y", "centre": [0.0, 0.0], "scale": [1.0, 1.0], "classes": 2},
    "model": {"name": "network", "hidden": [3], "prior_scale": 1.0, "likelihood": "softmax"},
    "solver": {"name": "gradient", "steps": 3},
    "schedule": {"name": "synchronous", "rounds": 20},
    "hyper": {"names": ["prior_scale"], "prior": {"prior_scale": [1.0, 1.0]}},
    "limits": {"change": 100.0, "total": 10000.0, "strikes": 3, "staleness": 100},
    "server": {
        "address": "127.0.0.1:9092", "sites": ["north", "south"], "minimum": 1, "timeout": 600.0, "patience": 1800.0,
        "gather": 60.0, "compression": "none",
    },
}  # fmt: skip


def of_federation(folder):
    server = federation(folder)

    def use(path):
        assert read_server(path.parent).recipe.greeting

    return Notes(server / "federation.toml", use, FEDERATION, as_toml)


SITE = {
    "name": "north", "server": "127.0.0.1:9092", "data": "data.csv", "certificate": "ca.crt", "key": "site.key",
    "policy": {
        "columns": ["mine", "b"], "models": ["logistic-regression"], "answers": ["about", "refine"],
        "compression": False, "fewest_rows": 10, "fewest_per_cell": 3, "most_parameters": 100,
        "most_parameters_per_row": 0.5, "most_tasks": 10, "most_questions": 5,
    },
    "columns": {"a": "mine"},
}  # fmt: skip


def of_site(folder):
    home = federation(folder) / "for-sites" / "north"
    return Notes(home / "site.toml", lambda path: read_site(path.parent), SITE, as_toml)


def command(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert is_plain(done.output), done.output


def of_state(folder):
    server = federation(folder)
    sites = [
        {
            "site": name, "ready": True, "connected": True, "problem": "", "last_seen": 1.7e9, "rows": 10, "tasks": 3,
            "updates": 3, "bytes_down": 100, "bytes_up": 100, "staleness": 0, "accepted": 1.0, "seconds": 0.1,
        }
        for name in ("north", "south")
    ]  # fmt: skip
    row = {
        "attempt": "x", "state": "running", "reason": "", **fit().history[-1], "replayed": False, "sites": sites,
    }  # fmt: skip
    (server / "run").mkdir()
    write_state(read_server(server), row)

    def use(path):
        command("status", server)
        command("status", server, "--json")
        format_metrics(read_state(read_server(server)))

    return Notes(server / "run" / "state.json", use)


RECIPE = {name: FEDERATION[name] for name in ("columns", "model", "solver", "schedule", "hyper", "damping", "seed")}


def of_proposal(folder):
    home = federation(folder) / "for-sites" / "north"
    (home / "run").mkdir()
    pinned = {name: RECIPE[name] for name in ("columns", "model", "solver", "hyper", "seed")}
    (home / "run" / "proposed.json").write_text(json.dumps({"recipe": pinned}))

    def use(path):
        proposed = Consent(home).proposed
        command("accept", home, "--yes")
        assert Consent(home).accepted == proposed
        # As it was, for whoever looks again.
        path.write_text(json.dumps({"recipe": proposed}))

    return Notes(home / "run" / "proposed.json", use)


def of_consent(folder, name="accepted"):
    home = federation(folder) / "for-sites" / "north"
    consent = Consent(home)
    consent.check(json.dumps(RECIPE), accepts=True)
    consent.count("refine", Policy())

    def use(path):
        consent.check(json.dumps(RECIPE))
        consent.count("refine", Policy())
        consent.count("evaluate", Policy())

    return Notes(home / "run" / f"{name}.json", use)


def of_count(folder):
    return of_consent(folder, "used")


def of_request(folder):
    server = federation(folder)
    path = server / "run" / "requests" / "1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"site": "north", "kind": "retired"}))
    return Notes(path, lambda path: Requests(read_server(server))(["a", "b"]))


def of_message(folder):
    """A recipe as a server sends it."""
    home = federation(folder) / "for-sites" / "north"

    def use(path):
        text = path.read_text(errors="surrogatepass")
        Consent(home).check(text, accepts=True)
        (home / "run" / "accepted.json").unlink()
        assert parse_recipe(text, home).greeting

    path = folder / "recipe"
    path.write_text(json.dumps(RECIPE))
    return Notes(path, use)


READERS = {name.removeprefix("of_"): made for name, made in list(globals().items()) if name.startswith("of_")} | {
    "history": History
}


def complaint(reader):
    """What is wrong with how a file was read, if something is."""
    try:
        reader.use(reader.path)
    except PartitaError as error:
        return "" if is_plain(str(error)) else f"shows {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


# How many of each reader's mutations are tried here; some readers compile programs for what they accept.
FEW, MANY = 12, 40
SLOW = ("network", "noise", "regressor", "stream", "stream_of_classes", "grouped_regression", "regression_notes")


@pytest.mark.parametrize("name", READERS)
def test_29_every_field_of_every_file_is_read_with_suspicion(tmp_path, name):
    reader = READERS[name](tmp_path)
    reader.write(reader.tree)
    reader.use(reader.path)
    found = mutations(reader.tree)
    some = random.Random(name).sample(found, min(len(found), FEW if name in SLOW else MANY))
    wrong = {}
    for (place, value), tree in some:
        reader.write(tree)
        if words := complaint(reader):
            wrong[place, repr(value)[:30]] = words
    assert wrong == {}


def not_files(path):
    """What may stand where a file should be."""

    def sparse():
        with path.open("wb") as stream:
            stream.truncate(2 * 10**12)

    return {
        "nothing": lambda: path.write_bytes(b""),
        "nul": lambda: path.write_bytes(bytes(64)),
        "no text": lambda: path.write_bytes(b"\xff\xfe\xc3\x28" * 20),
        "a folder": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "a loop": lambda: path.symlink_to(path.name),
        "an endless device": lambda: path.symlink_to("/dev/zero"),
        "terabytes": sparse,
        "deep": lambda: path.write_bytes(b"[" * 1000),
        "deeper": lambda: path.write_bytes(b'{"a":' * 100_000),
    }


@pytest.mark.parametrize("name", [name for name in READERS if name not in (*SLOW, "message")])
def test_29_what_is_no_file_is_told_where_a_file_should_be(tmp_path, name):
    reader = READERS[name](tmp_path)
    wrong = {}
    for what, put in not_files(reader.path).items():
        reader.path.rmdir() if reader.path.is_dir() else reader.path.unlink(missing_ok=True)
        put()
        if words := complaint(reader):
            wrong[what] = words
    assert wrong == {}


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_29_tables_that_are_none_are_told(tmp_path, name):
    path = tmp_path / name
    wrong = {}
    for what, put in not_files(path).items():
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        put()
        for read in (read_table, lambda path: read_columns(path, needed=["y"])):
            if (words := refusal(read, path)) is not None:
                wrong[what] = words
    assert wrong == {}


def refusal(read, path):
    """What is wrong with how a table that is none is refused."""
    try:
        read(path)
    except InputError as error:
        return None if is_plain(str(error)) else f"shows {error}"
    except BaseException as error:
        return repr(error)
    # Any bytes can be a table of one column.
    return None if path.stat().st_size < 10**6 else "was read"


def test_29_a_line_without_end_is_not_taken_into_memory(tmp_path):
    path = tmp_path / "table.csv"
    with path.open("wb") as stream:
        stream.write(b"a,y\n1,2\n")
        stream.truncate(9 * 10**9)
    for read in (read_table, lambda path: read_columns(path, needed=["y"])):
        with pytest.raises(InputError, match="has a line of more than 16000000 bytes"):
            read(path)


TOMLS = {
    "5,000 digits": ("seed = " + "9" * 5000, "has a number of more than 300 digits"),
    "400 digits": ("seed = " + "9" * 400, "has a number of more than 300 digits"),
    "no such day": ("seed = 1979-02-31", "Invalid date or datetime"),
    "a key of many parts": (".".join(["a"] * 100_000) + " = 1", "has a key of 20 parts or more"),
    "a section of many parts": ("[" + ".".join(['"!"'] * 100_000) + "]", "has a key of 20 parts or more"),
    "a key without end": ("x" * 900_000 + " = 1", "is not a known key"),
    "deep": ("seed = " + "[" * 200 + "]" * 200, "is nested too deeply"),
    "twice": ("seed = 1\nseed = 2", "Cannot overwrite a value"),
}


@pytest.mark.parametrize(("text", "words"), TOMLS.values(), ids=TOMLS)
def test_29_what_takes_a_reader_of_toml_long_or_apart_is_refused(tmp_path, text, words):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_config(path)


def test_29_what_people_write_in_toml_is_not_mistaken_for_a_dotted_key():
    numbers = ", ".join(f"{number}.5" for number in range(1000))
    text = f"""# e.g. a.b.c, and so on. 1. 2. 3.
    centre = [{numbers}]
    words = "a.b.c/../../x.y \\" ." # {"." * 100}
    a.b."c.d".e = 1
    """
    assert parse_toml(text)["a"] == {"b": {"c.d": {"e": 1}}}


JSONS = {
    "digits": ("9" * 301, "a number of 301 digits"),
    "beyond": ("1e999", "beyond all floats"),
    "nan": ("NaN", "has NaN, which is no JSON"),
    "twice": ('{"a": 1, "a": 2}', "two things under one key"),
    "deep": ("[" * 100 + "]" * 100, "nested too deeply"),
    "deeper": ("[" * 100_000, "nested too deeply"),
    "many": ("[" + "0," * 5_000_001 + "0]", "is too long"),
}


@pytest.mark.parametrize(("text", "words"), JSONS.values(), ids=JSONS)
def test_29_what_no_run_writes_is_no_json(text, words):
    with pytest.raises(ValueError, match=words):
        parse_json(text)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0, "1", True, None, [1.0]])
def test_29_hyperparameters_that_are_none_are_refused_when_a_result_is_read(tmp_path, value):
    saved = of_result(tmp_path)
    saved.write(changed(saved.tree, ("hyper", "prior_scale"), value))
    with pytest.raises(CorruptStorage):
        pt.load(saved.path)


@pytest.mark.parametrize("column", ["columns", "centre", "unit"])
def test_29_a_design_of_another_width_is_refused_when_a_result_is_read(tmp_path, column):
    saved = of_result(tmp_path)
    saved.write(changed(saved.tree, ("design", column), saved.tree["design"][column] * 2))
    with pytest.raises(CorruptStorage, match=f"design.{column}: expected a list of 2, got a list of 4"):
        pt.load(saved.path)


@pytest.mark.parametrize("layers", [[2, *[3] * 20_000, 2], [10**8, 10**8], [2, 10**30, 2]])
def test_29_networks_that_nobody_could_use_are_refused_before_they_are_made(tmp_path, layers):
    saved = of_network(tmp_path)
    saved.write(changed(saved.tree, ("model", "layers"), layers))
    with pytest.raises(PartitaError, match=r"layers: expected at most|prior: expected float32 of shape"):
        pt.load(saved.path)
    hidden = {"columns": FEDERATION["columns"], "model": {"name": "network", "hidden": layers[1:-1]}}
    if len(layers) > 2:
        with pytest.raises(ConfigError, match="layers: expected at most 100 of them"):
            _ = parse_recipe(json.dumps(hidden), tmp_path).model


@pytest.mark.parametrize("number", [b"-1", b"0", b"x", b"", b"99999999999999999999"])
def test_28_a_lock_that_names_no_process_ends_none(tmp_path, number, monkeypatch):
    ended = []
    monkeypatch.setattr(os, "kill", lambda *asked: ended.append(asked) or int.to_bytes(asked[0], 4))
    server = federation(tmp_path)
    with hold_lock(server / "run" / "serve.lock"):
        (server / "run" / "serve.lock").write_bytes(number)
        with suppress(PartitaError):
            stop(server)
    assert all(process > 1 for process, _ in ended)


def test_28_a_planted_lock_is_told(tmp_path):
    server = federation(tmp_path)
    (server / "run").mkdir()
    (server / "run" / "serve.lock").symlink_to("elsewhere")
    with pytest.raises(StorageError, match="serve.lock: is a link"):
        command("status", server)


@pytest.mark.parametrize("content", [b"", b"x", b"-----BEGIN PUBLIC KEY-----\n", b"\xff" * 100, b"x" * 200_000])
def test_29_a_key_that_is_none_is_told(tmp_path, content):
    path = tmp_path / "north.pub"
    path.write_bytes(content)
    with pytest.raises(PartitaError, match="north.pub"):
        read_public_key(path)


def test_27_what_a_person_is_shown_is_what_is_pinned(tmp_path):
    proposal = of_proposal(tmp_path)
    evil = changed(proposal.tree, ("recipe", "columns", "target"), EVIL)
    proposal.write(evil)
    home = proposal.path.parents[1]
    done = CliRunner().invoke(app, ["accept", str(home), "--yes"])
    assert done.exit_code == 0, done.output
    assert is_plain(done.output)
    shown = dict(line.split(": ", 1) for line in done.output.splitlines() if ": {" in line or line.startswith("seed"))
    assert {name: json.loads(section) for name, section in shown.items()} == evil["recipe"]
    assert Consent(home).accepted == evil["recipe"]


@pytest.mark.parametrize("extra", [EVIL, "schedule"])
def test_27_a_proposal_with_more_than_a_site_pins_is_not_shown(tmp_path, extra):
    proposal = of_proposal(tmp_path)
    proposal.write({"recipe": {**proposal.tree["recipe"], extra: {}}})
    with pytest.raises(PolicyRefusal, match="is not known"):
        command("accept", proposal.path.parents[1], "--yes")


def test_29_a_stream_whose_factor_takes_information_back_is_refused(tmp_path):
    stream = of_stream(tmp_path)
    arrays = {**stream.arrays, "factor.precision": -stream.arrays["factor.precision"]}
    stream.write(stream.tree, arrays)
    with pytest.raises(ImproperDensity, match="factor"):
        pt.StreamingGPRegressor.load(stream.path)
