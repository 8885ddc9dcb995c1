"""The paper's experiments as commands: rows, resuming, mistakes; tables by hand."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import partita as pt
from partita import cli
from partita.errors import InputError
from partita.foundation import compilation
from partita.server.schedules import Synchronous
from partita.solvers import FixedPoint, Gradient
from partita.studies.checkpoints import keep, recall
from partita.studies.committee import split_prior
from partita.studies.images import Images
from partita.studies.paper import federated, sngd
from partita.studies.progress import duration
from partita.studies.runner import START_UP, Cell, Watch, run_study
from partita.studies.tables import curves, messages_to, spread, summary

KEYS = {"method", "setting", "seed", "round", "seconds", "messages", "bytes", "error", "nll", "ece", "free_energy"}


@pytest.fixture
def partita(monkeypatch, capsys):
    """The command in this process, with the cache of the tests: exit code, standard output and standard error."""
    monkeypatch.setattr(compilation, "cache_compilations", lambda: None)

    def run(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["partita", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return (left.value.code or 0, *capsys.readouterr())

    return run


def test_rows_of_a_study_and_its_second_run(partita, tmp_path):
    command = ("reproduce", "federated", "--quick", "--method", "pvi-sync", "--setting", "iid", "--rounds", 6)
    command = (*command, "--json", "--out", tmp_path / "out")
    code, told, _ = partita(*command)
    plan, *rows, last = map(json.loads, told.splitlines())
    assert code == 0
    assert (plan["event"], plan["runs"], plan["finished"]) == ("plan", 1, 0)
    assert all(row.keys() == KEYS for row in rows)
    assert {(row["method"], row["setting"], row["seed"]) for row in rows} == {("pvi-sync", "iid", 0)}
    # Six rounds, and the free energy of the last posterior.
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6, 6]
    assert [row["messages"] for row in rows] == [20, 40, 60, 80, 100, 120, 120]
    # Down go the posterior and the prior's scale; up goes a message with four numbers.
    density = 2 * 4 * (64 * 50 + 50 + 50 * 10 + 10)
    size = [number * 10 * (density + 8 + density + 32) for number in (1, 2, 3, 4, 5, 6, 6)]
    assert [row["bytes"] for row in rows] == size
    assert all(0 < row["error"] < 1 and row["nll"] > 0 and 0 <= row["ece"] <= 1 for row in rows)
    assert rows[-1]["free_energy"] > rows[1]["free_energy"]
    assert rows[-1]["error"] == rows[-2]["error"]
    assert last["event"] == "summary"
    assert last["rows"][0]["error"] == f"{100 * rows[-1]['error']:.2f}"
    page = Path(last["pages"][0])
    assert "pvi-sync" in page.read_text()
    (kept,) = (tmp_path / "out" / "cells").iterdir()
    assert [json.loads(line) for line in kept.read_text().splitlines()] == rows

    page.unlink()
    code, told, _ = partita(*command)
    plan, again = map(json.loads, told.splitlines())
    assert (code, plan["runs"], plan["finished"], plan["seconds"]) == (0, 1, 1, 0)
    assert again["rows"] == last["rows"]
    assert page.exists()


def test_the_papers_own_recipes_and_pages_of_them(partita, tmp_path):
    """One cell of a grid by its name, and both clocks of global VI from one run."""
    command = ("reproduce", "federated", "--paper", "--quick", "--setting", "non-iid", "--rounds", 6, "--json")
    names = "gvi rate 0.005,pvi-sync rate 0.005 damping 0.9"
    code, told, _ = partita(*command, "--method", names, "--out", tmp_path / "out")
    plan, *rows, last = map(json.loads, told.splitlines())
    assert (code, plan["runs"]) == (0, 2)
    assert all(row.keys() == KEYS | {"scheme", "rate", "damping", "epochs", "held", *TRAINING} for row in rows)
    assert {row["method"] for row in rows} == {name.replace("gvi", core) for name in names.split(",") for core in CORES}
    sync = [row for row in rows if row["scheme"] == "pvi-sync"]
    assert [row["round"] for row in sync] == [1, 3, 5, 6]
    assert [row["messages"] for row in sync] == [20, 60, 100, 120]
    assert all(a["seconds"] < b["seconds"] for a, b in pairwise(sync))
    assert {line["method"] for line in last["rows"]} == {row["method"] for row in rows}
    assert all(line["error after 6 passes"] == line["error in the end"] for line in last["rows"])
    page = Path(last["pages"][0]).read_text()
    assert "The best of every scheme" in page
    assert "All settings" in page


CORES = ("gvi-1", "gvi-10")
TRAINING = ("train_error", "train_nll")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["federated", "--quick", "--setting", "some"], "--setting: expected one of iid, non-iid, got 'some'"),
        (["federated", "--quick", "--method", "pvi-sync,fedavg"], "--method: expected one of global-vi, bcm-same"),
        (
            ["sngd", "--quick", "--method", "sgd"],
            "--method: expected one of adam, adam-decaying, sngd, sngd-fisher, natural-gradient, got 'sgd'",
        ),
        (["federated", "--quick", "--rounds", "2"], "--rounds"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_mistakes_name_what_is_known(partita, tmp_path, monkeypatch, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    code, told, error = partita("reproduce", *arguments)
    assert (code, told) == (2, "")
    assert complaint in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_study_says_how_to_go_on(partita, tmp_path, monkeypatch):
    def interrupted(*_):
        yield {"round": 1, "error": 0.5}
        raise KeyboardInterrupt

    monkeypatch.setattr(federated, "_rows", interrupted)
    monkeypatch.setattr(federated, "measure_network", lambda model: 1e3)
    code, told, error = partita("reproduce", "federated", "--quick", "--json", "--out", tmp_path / "out")
    assert code == 130
    assert len(told.splitlines()) == 2
    assert "the same command" in error
    assert list((tmp_path / "out" / "cells").iterdir()) == []


class Recorded(Watch):
    def __init__(self):
        self.plans, self.begun, self.rows = [], [], []

    def plan(self, cells, finished, seconds):
        self.plans.append((cells, finished, seconds))

    def begin(self, cell):
        self.begun.append(cell.name)

    def row(self, cell, row):
        self.rows.append(row)


def test_a_long_cell_goes_on_where_it_was_stopped(tmp_path):
    """What it keeps is found again, and gone when it has finished; all rows are written once."""
    stops = [True, False]

    def go_on(path):
        rows, carried = recall(path, {"sum": np.zeros(2)})
        yield from rows
        for number in range(len(rows) + 1, 5):
            if number == 3 and stops.pop(0):
                raise KeyboardInterrupt
            carried = {"sum": carried["sum"] + number}
            rows.append({"round": number, "error": float(carried["sum"][0])})
            keep(path, rows, carried)
            yield rows[-1]

    long = replace(cell("a"), go_on=go_on)
    with pytest.raises(KeyboardInterrupt):
        run_study([long], tmp_path, lambda: 100.0, Recorded())
    assert [path.suffix for path in (tmp_path / "cells").iterdir()] == [".npz"]
    rows = run_study([long], tmp_path, lambda: 100.0, Recorded())
    assert [(row["round"], row["error"]) for row in rows] == [(1, 1.0), (2, 3.0), (3, 6.0), (4, 10.0)]
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [long.path]


@pytest.mark.parametrize("name", ["adam", "sngd"])
def test_traces_of_solvers_end_where_a_fit_ends_though_they_were_stopped(tmp_path, name):
    images = Images.load("digits")
    trace = sngd.Trace(name, 0.002, 12, 3, seed=1)
    path = tmp_path / "kept.npz"
    stopped = sngd.follow(images, trace, path)
    first = next(stopped), next(stopped)
    rows = list(sngd.follow(images, trace, path))
    straight = list(sngd.follow(images, trace))
    seconds = {"seconds": None}
    assert [{**row, **seconds} for row in rows] == [{**row, **seconds} for row in straight]
    assert [row["round"] for row in rows] == [1, 2, 3]
    # The second row was yielded before it was kept: it was computed again.
    assert {**first[1], **seconds} == {**rows[1], **seconds}
    model = images.network([12], start_scale=0.03, init_seed=1)
    solver, expectation = sngd.solver(name, 0.002, 3, len(images.train[1]))
    settings = {"expectation": expectation, "schedule": pt.schedules.Synchronous(1), "damping": 1.0, "seed": 1}
    fitted = pt.fit(model, [images.train], solver=solver, **settings)
    assert images.score(model, fitted.posterior)["nll"] == pytest.approx(rows[-1]["nll"], rel=1e-5)
    assert fitted.log_evidence == pytest.approx(rows[-1]["free_energy"], rel=1e-3)


def test_lengths_and_rates_of_the_solvers_study():
    images = Images.load("digits")
    rates = {name: method.rate(20) for name, method in sngd.METHODS.items()}
    made = sngd.cells(images, ["sngd"], 1, {200: 1000, 500: 800}, sweep=True)
    assert [(one.setting, one.method) for one in made] == [
        (f"{width} units", f"sngd {rate:g}") for width in (200, 500) for rate in sngd.METHODS["sngd"].rates
    ]
    assert sngd.cells(images, None, 1, {200: 20})[2].settings["rate"] == rates["sngd"]
    trace = sngd.Trace("sngd", 0.1, 5, 74, 0)
    shown = [epoch for epoch in range(1, 75) if trace.is_shown(epoch)]
    assert shown == [1, 2, 3, 4, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 60, 70, 74]
    assert trace.looks == len(shown)


def cell(method: str, problem: type[BaseException] | None = None, **settings) -> Cell:
    def run():
        yield {"round": 1, "error": np.float32(0.5), "nll": float("nan")}
        if problem is not None:
            raise problem
        yield {"round": 2, "error": 0.25, "nll": 1.0}

    return Cell(method, "iid", 0, 300.0, settings, run)


@pytest.mark.parametrize("problem", [KeyboardInterrupt, InputError])
def test_an_interrupted_cell_leaves_nothing_and_finished_ones_stay(tmp_path, problem):
    first = Recorded()
    with pytest.raises(problem):
        run_study([cell("a"), cell("b", problem), cell("c")], tmp_path, lambda: 100.0, first)
    assert first.plans == [(3, 0, 3 * START_UP + 9.0)]
    assert first.begun == ["iid a 0", "iid b 0"]
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [cell("a").path]
    second = Recorded()
    rows = run_study([cell("a"), cell("b"), cell("c")], tmp_path, lambda: 100.0, second)
    assert second.plans == [(3, 1, 2 * START_UP + 6.0)]
    assert second.begun == ["iid b 0", "iid c 0"]
    assert [(row["method"], row["round"], row["error"]) for row in rows] == [
        (method, number, error) for method in "abc" for number, error in ((1, 0.5), (2, 0.25))
    ]
    assert rows[0]["nll"] is None  # JSON has no NaN
    # What has finished is not timed either.
    third = Recorded()
    assert run_study([cell("a")], tmp_path, lambda: pytest.fail("nothing to run"), third) == rows[:2]
    assert third.plans == [(1, 1, 0.0)]


def test_other_settings_are_another_cell(tmp_path):
    assert cell("a", rate=1).path == cell("a", rate=1).path != cell("a", rate=2).path
    images = Images.load("digits")
    paths = {
        one.path
        for rounds in (12, 24)
        for one in federated.cells(images, ["iid"], ["pvi-sync"], 2, replace(federated.QUICK, rounds=rounds))
    }
    assert len(paths) == 4


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="file"):
        run_study([cell("a")], tmp_path / "file", lambda: 1.0, Recorded())


def test_a_committee_splits_its_prior_by_rows():
    """Each site has p^(N_k / N): of a conjugate model, the product is the exact posterior, and so is the evidence."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    shards = [(X[:5], y[:5]), (X[5:20], y[5:20]), (X[20:], y[20:])]
    model = pt.models.LinearRegression(2, noise=0.7, prior_scale=0.5, intercept=False)
    found = split_prior(model, shards, FixedPoint(step_size=1.0))
    exact = pt.fit(model, [(X, y)], schedule=pt.schedules.OnePass())
    np.testing.assert_allclose(found.posterior.location, exact.posterior.location, rtol=1e-9)
    np.testing.assert_allclose(found.posterior.precision, exact.posterior.precision, rtol=1e-9)
    assert found.log_evidence == pytest.approx(exact.log_evidence, abs=1e-9)
    assert (found.history[-1]["round"], found.history[-1]["messages"]) == (1, 6)
    # A conjugate factor does not depend on the prior that its site had; one of a logistic model does.
    logistic = pt.models.LogisticRegression(2, prior_scale=0.5, intercept=False)
    shards = [(X, (y > 0).astype(float)) for X, y in shards]
    parts = split_prior(logistic, shards, FixedPoint(steps=50)).factors
    for rows, shard, factor in zip((5, 15, 40), shards, parts, strict=True):
        scale = 0.5 / (rows / 60) ** 0.5
        alone = pt.fit(replace(logistic, prior_scale=scale), [shard], solver=FixedPoint(steps=50))
        np.testing.assert_allclose(factor.precision, alone.factors[0].precision, rtol=1e-6)


def committee_data():
    """Unequal sites, of 4, 11 and 45 rows."""
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    return X, y, [(X[:4], y[:4]), (X[4:15], y[4:15]), (X[15:], y[15:])]


def test_both_committees_combine_as_the_paper_writes():
    """Section 7.1, by matrices: ∏ q_k, q_k ∝ p^(N_k / N) p(y_k | θ); and ∏ q_k / p^(K - 1), q_k ∝ p(θ) p(y_k | θ)."""
    _, _, shards = committee_data()
    noise, scale = 0.7, 0.5
    model = pt.models.LinearRegression(3, noise=noise, prior_scale=scale, intercept=False)
    P = np.eye(3) / scale**2

    def member(share, rows):
        """Precision, and precision times location, of a sub-posterior with so much of the prior."""
        X, y = rows
        return share * P + X.T @ X / noise**2, X.T @ y / noise**2

    split = [member(len(rows[1]) / 60, rows) for rows in shards]
    found = split_prior(model, shards, FixedPoint(step_size=1.0))
    for ours, share, (precision, shift) in zip(found.factors, (4 / 60, 11 / 60, 45 / 60), split, strict=True):
        np.testing.assert_allclose(ours.precision + share * P, precision, rtol=1e-9)
        np.testing.assert_allclose(ours.precision_times_location, shift, rtol=1e-9)
    total = sum(precision for precision, _ in split)
    np.testing.assert_allclose(found.posterior.precision, total, rtol=1e-9)
    np.testing.assert_allclose(found.posterior.location, np.linalg.solve(total, sum(h for _, h in split)), rtol=1e-9)
    # An equal share for everybody would not add up to p here, whatever sites have.
    same = pt.fit(model, shards, solver=FixedPoint(step_size=1.0), schedule=pt.schedules.Synchronous(1), damping=1.0)
    whole = [member(1.0, rows) for rows in shards]
    np.testing.assert_allclose(same.posterior.precision, sum(p for p, _ in whole) - 2 * P, rtol=1e-9)
    np.testing.assert_allclose(same.posterior.precision, total, rtol=1e-9)


def test_committees_differ_where_nothing_is_conjugate_and_by_whose_prior_is_how_wide():
    """Each member by its own L-BFGS on its own bound: shares by rows, not equal ones, are what comes out."""
    _, _, data = committee_data()
    shards = [(X, (y > 0).astype(float)) for X, y in data]
    model = pt.models.LogisticRegression(3, prior_scale=0.5, intercept=False)
    solver = Gradient("lbfgs", steps=100)

    def product(shares):
        alone = [
            pt.fit(
                replace(model, prior_scale=0.5 / share**0.5),
                [rows],
                solver=solver,
                schedule=Synchronous(1),
                damping=1.0,
            )
            for share, rows in zip(shares, shards, strict=True)
        ]
        return sum(one.posterior.precision for one in alone)

    found = split_prior(model, shards, solver).posterior.precision
    np.testing.assert_allclose(found, product([4 / 60, 11 / 60, 45 / 60]), rtol=1e-4)
    assert np.abs(found / product([1 / 3] * 3) - 1).max() > 0.02


def test_a_row_of_weight_two_is_two_rows_to_a_committee():
    X, y, _ = committee_data()
    y = (y > 0).astype(float)
    model = pt.models.LogisticRegression(3, prior_scale=0.5, intercept=False)
    rest = (X[20:], y[20:])
    twice = (np.concatenate([X[:20], X[:20]]), np.concatenate([y[:20], y[:20]]))
    weighed, doubled = (
        split_prior(model, [first, rest], FixedPoint(steps=50)).posterior
        for first in ((X[:20], y[:20], np.full(20, 2.0)), twice)
    )
    np.testing.assert_allclose(weighed.precision, doubled.precision, rtol=1e-9)


def test_sites_of_the_federated_study():
    images = Images.load("digits")
    total = len(images.train[1])
    same = federated.shards_of(images, "iid", 0, pooled=False)
    assert len(same) == federated.SITES
    assert sum(len(y) for _, y in same) == total
    assert all(len(np.unique(y)) == 10 for _, y in same)
    apart = federated.shards_of(images, "non-iid", 0, pooled=False)
    assert sorted(np.unique(y).tolist() for _, y in apart) == [[label] for label in range(10)]
    assert sum(len(y) for _, y in apart) == total
    ((X, y),) = federated.shards_of(images, "non-iid", 0, pooled=True)
    assert np.all(np.diff(y) >= 0)
    assert_allclose_rows(X, images.train[0])


def assert_allclose_rows(A, B):
    """The same rows, in any order."""
    assert np.array_equal(A[np.lexsort(A.T)], B[np.lexsort(B.T)])


def test_validation_rows_are_training_rows_that_nobody_trains_on():
    images, held = Images.load("digits"), Images.load("digits", validate=True)
    train, test = images.train[0], held.test[0]
    assert len(test) == len(train) // 6
    assert_allclose_rows(np.concatenate([held.train[0], test]), train)
    few = Images.load("digits", rows=50, validate=True)
    assert len(few.train[1]) == 50
    assert np.array_equal(few.test[0], test)


ROWS = [
    {"method": m, "setting": s, "seed": seed, "round": r, "seconds": t, "messages": 20 * r, "bytes": 7 * r, "error": e}
    for m, s, seed, r, t, e in [
        ("a", "iid", 0, 1, 1.0, 0.5),
        ("a", "iid", 0, 2, 2.0, 0.1),
        ("a", "iid", 0, 3, 3.0, 0.2),
        ("a", "iid", 1, 1, 1.0, 0.4),
        ("a", "iid", 1, 2, 4.0, 0.3),
        ("a", "iid", 2, 1, 1.0, None),
        ("b", "iid", 1, 1, 1.0, 0.1),
        ("a", "non-iid", 0, 1, 1.0, 0.05),
    ]
]


def test_a_summary_is_of_the_last_rows():
    table = summary(ROWS, names=("error", "nll"))
    assert [(line["setting"], line["method"], line["seeds"]) for line in table] == [
        ("iid", "a", 3),
        ("iid", "b", 1),
        ("non-iid", "a", 1),
    ]
    first, second, _ = table
    assert first["error"] == "25.00 ± 5.00"  # of 0.2 and 0.3, in percent; the third seed has none
    assert (first["rounds"], first["messages"], first["bytes"]) == (3, 60, 21)
    assert first["seconds"] == pytest.approx((3 + 4 + 1) / 3)
    assert (second["error"], second["nll"]) == ("10.00", "–")


def test_a_summary_counts_messages_where_all_seeds_got_there():
    table = summary(ROWS, names=("error",), reach=0.05)
    assert [line["messages to 5 %"] for line in table] == [None, None, 20]
    assert [line["messages to 45 %"] for line in summary(ROWS[:5], reach=0.45)] == [30]  # 40 and 20


def test_messages_until_an_error_is_reached():
    assert messages_to(ROWS, "iid", "a", 0.3) == [40, 40]
    assert messages_to(ROWS, "iid", "a", 0.45) == [40, 20]
    assert messages_to(ROWS, "iid", "a", 0.15) == [40]  # at the first time, though it is worse later
    assert messages_to(ROWS, "iid", "a", 0.01) == []
    assert messages_to(ROWS, "non-iid", "a", 0.05) == [20]


def test_curves_are_those_of_the_first_seed():
    first, second = curves(ROWS, "iid")
    assert (first.name, [row["error"] for row in first.rows]) == ("a", [0.5, 0.1, 0.2])
    assert (second.name, [row["seed"] for row in second.rows]) == ("b", [1])


def test_spread_and_duration():
    assert spread([]) == "–"
    assert spread([0.5]) == "0.5000"
    assert spread([1.0, 2.0, 6.0]) == "3.0000 ± 2.5000"
    assert [duration(s) for s in (5, 89, 90, 5399, 5400)] == [
        "5 seconds",
        "89 seconds",
        "2 minutes",
        "90 minutes",
        "1.5 hours",
    ]
