"""Reports: what a run's folder says, the page in a real browser, and the page of a run that goes on."""

import html
import http.client
import io
import json
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import t

import partita as pt
from browser import BINARY, Browser
from partita.errors import CorruptStorage, InputError, StorageError
from partita.federation.new import federation_file_text
from partita.foundation import loopback
from partita.launch import follow_run, write_run_report
from partita.models import prior_of
from partita.report import Chart, Curve, Report, write_report
from partita.report.charts import COLOURS, ON_DARK
from partita.report.charts.sites import draw_bars
from partita.report.follower import Follower, Sample
from partita.report.formatting import format_value
from partita.report.live import serve_page
from partita.report.measures import Measures, measure_calibration, read_measures, write_measures
from partita.report.page import MOST_ROWS, pick_columns
from partita.report.posterior import compute_quantiles
from partita.report.terminal import draw_run, watch
from partita.server.schedules import Asynchronous, Sequential, Synchronous

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 2))
Y = X @ np.array([1.0, -0.5]) + 0.3 * GENERATOR.normal(size=60)
MODEL = pt.models.LinearRegression(features=2, noise=0.3)
SHARDS = [(X[rows], Y[rows]) for rows in np.array_split(np.arange(60), [10, 35])]


def fit(run_dir, schedule=None, **settings):
    return pt.fit(MODEL, SHARDS, schedule=schedule or Synchronous(rounds=4), run_dir=run_dir, **settings)


def test_contributions_are_divergences_of_gaussians():
    result = pt.fit(MODEL, SHARDS)
    m, V = np.asarray(result.posterior.location), np.linalg.inv(result.posterior.precision)
    for site, found in enumerate(result.contributions()):
        without = result.cavity(site)
        d = without.location - m
        trace = np.trace(without.precision @ V)
        expected = 0.5 * (trace + d @ without.precision @ d - 3 - np.linalg.slogdet(without.precision @ V)[1])
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "schedule",
    [Synchronous(rounds=4), Synchronous(rounds=5, participation=0.5), Asynchronous(updates=13), Sequential(passes=2)],
    ids=lambda schedule: type(schedule).__name__,
)
def test_a_follower_knows_what_each_site_did(tmp_path, schedule):
    seen = {}

    def note(event):
        for work in event.work:
            seen.setdefault(work.site, []).append((event.accepted, work.staleness))

    follower = Follower(tmp_path)
    assert not follower.read()
    # It reads while the run writes, and the run is none the worse for it.
    result = fit(tmp_path, schedule, callbacks=[note, lambda event: follower.read() and None])
    assert result.fingerprint == fit(None, schedule).fingerprint
    follower.read()
    rows = follower.site_rows()
    assert [row["site"] for row in rows] == [f"site {site}" for site in sorted(seen)]
    for row, told in zip(rows, (seen[site] for site in sorted(seen)), strict=True):
        assert row["updates"] == len(told)
        assert (row["accepted"], row["staleness"]) == pytest.approx(tuple(np.mean(told, axis=0)))
    assert follower.rows() == result.history


def test_whether_a_run_goes_on(tmp_path, monkeypatch):
    folder = tmp_path / "trial"
    follower = Follower(folder, names=("a", "b", "c"))
    assert follower.state()["words"] == "The run has not begun yet."
    assert "as soon as the run" in follower.report().words

    def stop(event):
        if event.fold == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(folder, callbacks=[stop])
    follower.read()
    # The second update was taken, and its row not written: on resume it is.
    assert follower.state()["words"] == "Running: round 1 of 4."
    assert [row["site"] for row in follower.site_rows()] == ["a", "b", "c"]
    monkeypatch.setattr("partita.report.follower.STILL", 0.0)
    assert follower.state()["state"] == "still"
    result = fit(folder, resume=True)
    assert follower.read()
    assert follower.state()["words"] == "Finished: round 4 of 4."
    assert follower.summary()["log evidence"] is None
    result.save(folder / "result.safetensors")
    assert follower.read()
    assert not follower.read()
    assert follower.summary()["log evidence"] == result.log_evidence
    assert follower.rows()[-1]["log_evidence"] == result.log_evidence
    assert [row["nats"] for row in follower.site_rows()] == pytest.approx(result.contributions().tolist())
    titles = [picture.title for picture in follower.pictures()]
    assert titles == ["Contribution of sites", "Posterior"]
    # With more rounds the old result is not that of the run any more.
    fit(folder, Synchronous(rounds=6), resume=True)
    follower.read()
    assert follower.summary()["log evidence"] is None
    # Another run in the same place.
    shutil.rmtree(folder)
    fit(folder, Sequential(passes=1))
    follower.read()
    assert follower.state()["words"] == "Finished: round 1 of 1."
    assert [row["updates"] for row in follower.site_rows()] == [1, 1, 1]


def test_models_whose_code_is_not_stored_have_reports_too(tmp_path):
    prior = pt.families.Gaussian.from_moments(np.zeros(1), np.eye(1))
    model = pt.Model(prior, lambda w, d: -0.5 * (d[0] - w[0]) ** 2)
    result = pt.fit(model, [(Y[:5],), (Y[5:],)], schedule=Synchronous(rounds=2), run_dir=tmp_path)
    result.save(tmp_path / "result.safetensors")
    follower = Follower(tmp_path)
    follower.read()
    assert follower.summary()["log evidence"] == result.log_evidence
    assert follower.pictures() == []


def test_long_histories_are_thinned_evenly():
    sample = Sample(most=10)
    for number in range(1000):
        sample.add(number)
        kept = list(sample)
        assert len(kept) <= 11
        assert kept[0] == 0
        assert kept[-1] == number
    assert len(set(np.diff(kept[:-1]))) == 1
    rows = [
        {"round": n, "free_energy": float(n), **({"error": 1 / n} if n % 997 == 0 else {})} for n in range(1, 50_000)
    ]
    found = pick_columns(rows, ["free_energy", "error"])
    assert len(found["round"]) <= 2 * MOST_ROWS
    assert sum(value is not None for value in found["error"]) == 50
    assert found["round"][-1] == 49_999
    assert "messages" not in found


def test_calibration_of_classes_and_of_intervals(tmp_path):
    result = fit(tmp_path)
    result.save(tmp_path / "result.safetensors")
    write_measures(tmp_path, result, (X, Y), ["age", "dose"])
    measured = read_measures(tmp_path, 4)
    scores, found = measured.scores, measured.calibration
    assert found.claimed[9] == pytest.approx(0.5)
    assert abs(np.subtract(found.claimed, found.found)).max() < 0.15
    assert scores["smse"] < 0.15
    # Noise that is taken for ten times smaller than it is.
    assert max(measure_calibration(replace(result, hyper={**result.hyper, "noise": 0.03}), X, Y).found) < 0.5
    assert read_measures(tmp_path, 5) == Measures()
    follower = Follower(tmp_path)
    follower.read()
    assert list(follower.pictures()[-1].figure.data[0].y) == ["intercept", "dose", "age"]
    (tmp_path / "measures.json").write_text("{")
    with pytest.raises(CorruptStorage, match="can be deleted"):
        read_measures(tmp_path, 4)
    classes = pt.fit(pt.models.LogisticRegression(features=2), [(X, Y > 0)])
    assert np.sum(measure_calibration(classes, X, Y > 0).share) == pytest.approx(1)


def test_intervals_of_any_family():
    _, low, middle, high = compute_quantiles(pt.families.Gaussian.from_moments(np.array([1.0]), np.array([[4.0]])))
    assert (low[0], middle[0], high[0]) == pytest.approx((1 - 3.92, 1, 1 + 3.92), abs=1e-3)
    noisy = pt.models.LinearRegression(features=2, noise=None)
    tree, low, middle, high = compute_quantiles(prior_of(noisy, noisy.hyper))
    assert [noisy.parameter_name(tree, place) for place in range(4)] == [
        "weight 0",
        "weight 1",
        "intercept",
        "precision",
    ]
    assert (low[3], middle[3], high[3]) == pytest.approx(tuple(t(3).ppf([0.9875, 0.75, 0.5125]) ** -2), rel=0.5)
    network = pt.models.Network([2, 3, 2])
    tree, low, _, _ = compute_quantiles(network.start)
    assert len({network.parameter_name(tree, place) for place in range(len(low))}) == len(low) == 17


def luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4) @ [
        0.2126,
        0.7152,
        0.0722,
    ]


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if BINARY is None:
        pytest.skip("no Chromium on this machine")
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


EVIL = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    rows = [
        {"round": n, "seconds": n / 2, "bytes": 100 * n, "error": 1 / n, "free_energy": -1000.0 / n}
        for n in range(1, 30)
    ]
    rows[-1]["log_evidence"] = -30.0
    report = Report(
        title=f"Trial {EVIL}",
        words="Words.",
        table=[{"method": EVIL, "error": 0.1}],
        curves=[Curve("one", rows), Curve(EVIL, rows[:1])],
        pictures=[draw_bars("Contribution of sites", "Nats.", "nats", ["a", "b"], [1.0, 2.0])],
        charts=(Chart("error"), Chart("free_energy", log=False), Chart("staleness")),
    )
    return write_report(tmp_path_factory.mktemp("report") / "report.html", report)


def test_the_page_by_keyboard_in_light_and_dark(browser, page):
    browser.look()
    browser.open(page.as_uri())
    assert browser.problems == []
    assert browser.run("window.hurt") is None
    assert browser.run("[...document.querySelectorAll('h2')].map((h) => h.textContent)") == [
        "test error", "free energy", "Contribution of sites",
    ]  # fmt: skip
    drawn = "document.querySelector('.plot').data.map((line) => [line.name, line.x.length, line.x.at(-1)])"
    assert browser.run(drawn) == [["one", 29, 29], [html.escape(EVIL, quote=False), 1, 1]]
    alt = "document.querySelector('.plot').getAttribute('aria-label')"
    assert browser.run(alt).startswith("test error against rounds (updates per site): one from 1 to 0.0345; ")
    # The skip link, the table, the axis, its scale, and the two lines: each is reached with Tab, and seen to be.
    focused = []
    for _ in range(6):
        browser.press("Tab", 9)
        focused.append(browser.run("document.activeElement.name || document.activeElement.id || 'skip'"))
        assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert focused == ["skip", "table", "against", "log", "line", "line"]
    browser.press(" ", 32)
    browser.wait(f"{drawn}.length === 1")
    browser.run("document.querySelector('select').focus()")
    browser.press("b", 66)
    browser.wait(f"{drawn}[0][2] === 2900")
    assert "bytes" in browser.run(alt)
    energies = "document.querySelectorAll('.plot')[1].data.map((line) => line.name)"
    assert browser.run(energies) == ["one", "one: log evidence"]
    text = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    assert browser.run(text) == "rgb(28, 31, 35)"
    browser.look(dark=True)
    browser.wait(f"{text} === 'rgb(232, 234, 237)'")
    assert browser.run("document.querySelector('.plot').data[0].line.color") == ON_DARK[0]
    assert browser.run("document.querySelectorAll('.plot')[2].data[0].marker.color") == ON_DARK[0]
    assert browser.problems == []


def test_axes_of_a_run_that_has_long_converged(browser, tmp_path):
    rows = [{"round": 1, "error": 0.069, "free_energy": -900.0}]
    rows += [{"round": n, "error": 0.0627, "free_energy": -50.9 - 1e-13 * (n % 3)} for n in range(2, 200)]
    rows[-1]["log_evidence"] = -50.9
    charts = (Chart("error"), Chart("free_energy", log=False))
    browser.look()
    browser.open(
        write_report(tmp_path / "report.html", Report("Long", "", [], [Curve("one", rows)], charts=charts)).as_uri()
    )
    low, high = browser.run("document.querySelectorAll('.plot')[1].layout.yaxis.range")
    assert low < -51.8
    assert -50.9 < high < -50.8
    ticks = browser.run(
        "[...document.querySelectorAll('.plot')[0].querySelectorAll('.ytick')].map((t) => t.textContent)"
    )
    assert {"0.064", "0.066", "0.068"} <= set(ticks)


def test_the_page_on_a_phone(browser, page):
    browser.look(width=390, height=844, phone=True)
    browser.open(page.as_uri())
    assert browser.run("document.documentElement.scrollWidth") == 390
    assert browser.run("Math.max(...[...document.querySelectorAll('.plot')].map((p) => p.offsetWidth))") <= 390


def test_lines_stand_out_from_the_page():
    assert min(contrast(colour, "#ffffff") for colour in COLOURS) > 3
    assert min(contrast(colour, "#14171a") for colour in ON_DARK) > 3
    assert min(contrast("#52585f", "#f5f6f8"), contrast("#aab1b9", "#1d2226")) > 4.5


def asked(url, method="GET", path="/", host=None):
    address = url.removeprefix("http://").rstrip("/")
    with closing(http.client.HTTPConnection(address, timeout=10)) as connection:
        connection.request(method, path, headers={"Host": host or address})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Allow"), answer.read(200)


def test_the_live_page_is_for_reading_on_this_machine_only(tmp_path, monkeypatch):
    monkeypatch.setattr(loopback, "MOST_CONNECTIONS", 3)
    with serve_page(Follower(tmp_path)) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        assert asked(url)[0] == 200
        assert asked(url, host=f"localhost:{port}")[0] == 200
        for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS", "BREW"):
            assert asked(url, method)[:2] == (405, "GET")
        assert [asked(url, path=path)[0] for path in ("/journal.sqlite", "/../etc/passwd", "/events/")] == [404] * 3
        assert [asked(url, host=host)[0] for host in ("evil.example", f"evil.example:{port}", "127.0.0.1")] == [403] * 3
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        assert asked(url)[0] == 200
        for connection in idle:
            connection.close()
        with (
            pytest.raises(InputError, match=f"--port {port}: Address already in use"),
            serve_page(Follower(tmp_path), port),
        ):
            pass
    with pytest.raises(ConnectionRefusedError):
        asked(url)


def messages(url, stop):
    """Events of the stream, until one of them is what was waited for."""
    connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=10)
    with closing(connection):
        connection.request("GET", "/events")
        stream, found = connection.getresponse(), []
        while not found or not stop(*found[-1]):
            kind = stream.readline().decode().removeprefix("event: ").strip()
            found.append((kind, json.loads(stream.readline().decode().removeprefix("data: "))))
            stream.readline()
        return found


def test_trouble_with_the_journal_is_told_and_passes(tmp_path):
    (tmp_path / "journal.sqlite").write_text("not a database, not at all" * 100)
    with serve_page(Follower(tmp_path)) as url:
        found = messages(url, lambda kind, row: kind == "state")
        assert "file is not a database" in found[-1][1]["words"]
        (tmp_path / "journal.sqlite").unlink()
        fit(tmp_path)
        found = messages(url, lambda kind, row: row.get("state") == "finished")
        assert "<td>4</td>" in found[0][1]["table"] or found[0][1]["table"] == ""


@pytest.fixture
def going_on(tmp_path):
    """Starts `partita run` of more than anybody waits for, and ends it."""
    (tmp_path / "wine.toml").write_text(
        '[data]\nname = "wine"\n[partition]\nsites = 3\n[model]\nname = "softmax-regression"\n'
        '[schedule]\nname = "asynchronous"\nupdates = 100000\n'
    )
    command = [sys.executable, "-m", "partita", "run", "wine.toml", "--quiet"]
    processes = []

    def start():
        processes.append(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True))
        return processes[0]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_a_run_is_watched_while_it_goes_on(browser, tmp_path, going_on):
    with serve_page(Follower(tmp_path / "runs" / "wine")) as url:
        browser.look()
        browser.open(url)
        browser.wait("document.getElementById('state').innerText === 'The run has not begun yet.'")
        process = going_on()
        drawn = "(document.querySelector('.plot')?.data?.[0].x.length || 0)"
        browser.wait(f"{drawn} > 1")
        browser.run("document.querySelector('select').focus()")
        before = browser.run(drawn)
        browser.wait(f"{drawn} > {before}")
        assert browser.run("document.getElementById('state').className") == "running"
        assert browser.run("document.activeElement.name") == "against"
        assert browser.run("document.querySelectorAll('#sites tbody tr').length") == 3
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=60)[1]
        assert process.returncode == 130
        assert told.strip() == (
            "stopped; every finished update is kept. Go on with: partita run wine.toml --out runs/wine --resume"
        )
    browser.wait("document.getElementById('state').className === 'lost'")


def test_a_run_on_a_terminal(tmp_path):
    result = fit(tmp_path, Asynchronous(updates=12))
    result.save(tmp_path / "result.safetensors")
    screen = Console(record=True, force_terminal=True, width=100, file=io.StringIO())
    watch(Follower(tmp_path), screen)
    told = screen.export_text()
    assert "Finished: round 4 of 4." in told
    assert "free energy" in told
    assert "site 2" in told
    assert "█" in told
    plain = Console(record=True, force_terminal=False, width=100)
    with plain.capture() as captured:
        plain.print(draw_run(Follower(tmp_path / "none")))
    assert captured.get().strip() == "Run none. The run has not begun yet."


def test_reports_of_nothing_say_so(tmp_path):
    with pytest.raises(StorageError, match="journal.sqlite: no such run"):
        write_run_report(tmp_path)


def test_a_federation_is_watched_by_the_names_of_its_sites(tmp_path):
    names = ["north", "south", "east"]
    (tmp_path / "sites").mkdir()
    (tmp_path / "federation.toml").write_text(
        federation_file_text(names, "127.0.0.1:9092", ("age", "bmi"), "ill", "linear-regression")
    )
    for name in names:
        (tmp_path / "sites" / f"{name}.pub").write_text("a key")
    fit(tmp_path / "run")
    follower = follow_run(tmp_path)
    assert follower.read()
    assert [row["site"] for row in follower.site_rows()] == names
    assert follower.title == f"Federation {tmp_path.name}"


def test_numbers_of_any_size_fit_into_a_cell():
    assert [format_value(value) for value in (0.01234, 12.345, 123456.7, 6.5e79, -2e12)] == [
        "0.0123", "12.3", "123,457", "6.5e+79", "-2e+12",
    ]  # fmt: skip
    assert format_value(-1603068.91, "free energy") == "-1,603,068.91"
