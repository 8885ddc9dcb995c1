"""A real federation on loopback, with TLS and keys: one SuperLink, three sites; killed, resumed, forged."""

import hashlib
import ipaddress
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import partita as pt
from partita.federation.folders import read_server
from partita.federation.status import read_status
from partita.server.journals import read_history
from partita.server.schedules import Synchronous

pytest.importorskip("flwr")
pytestmark = pytest.mark.engines

PARTITA = [sys.executable, "-m", "partita"]
SITES = ("a", "b", "c")
COLUMNS = [f"x{i}" for i in range(1, 6)]
X, Y = pt.datasets.load("breast-cancer")
X = pt.datasets.standardised(X)[:, :5]
SHARDS = pt.datasets.split((X, Y), sites=3)


def in_process(rounds, shards=SHARDS):
    return pt.fit(pt.models.LogisticRegression(features=5), shards, schedule=Synchronous(rounds=rounds))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def distance(first, second):
    """Of locations, in posterior deviations."""
    return np.max(np.abs(first.location - second.location) / second.scale)


class Federation:
    """A folder with everything, and the processes that were started in it."""

    def __init__(self, folder, rounds, shards=None, **settings):
        self.folder, self.started = folder, {}
        shards = shards or dict(zip(SITES, SHARDS, strict=True))
        self.address = f"127.0.0.1:{free_port()}"
        self.command("new-federation", folder, "--sites", ",".join(shards), "--address", self.address,
                     "--features", ",".join(COLUMNS), "--target", "y")  # fmt: skip
        file = folder / "federation.toml"
        text = file.read_text().replace("rounds = 20", f"rounds = {rounds}")
        for name, value in settings.items():
            lines = [line for line in text.splitlines() if not line.startswith((f"{name} =", f"# {name} ="))]
            text = "\n".join(lines).replace("[server]", f"[server]\n{name} = {value}") + "\n"
        file.write_text(text)
        for site, (inputs, targets) in shards.items():
            self.write_data(site, inputs, targets)

    def site_folder(self, site):
        return self.folder / "for-sites" / site

    def write_data(self, site, inputs, targets, names=(*COLUMNS, "y")):
        path, table = self.site_folder(site) / "data.csv", np.column_stack([inputs, targets])
        np.savetxt(path, table, delimiter=",", header=",".join(names), comments="", fmt="%.17g")

    def command(self, *arguments, code=0):
        done = subprocess.run([*PARTITA, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def start(self, name, *arguments, command=PARTITA):
        with (self.folder.parent / f"{name}.log").open("wb") as log:
            self.started[name] = subprocess.Popen(
                [*command, *map(str, arguments)], stdout=log, stderr=subprocess.STDOUT
            )
        return self.started[name]

    def log(self, name):
        return (self.folder.parent / f"{name}.log").read_text()

    def start_sites(self, *sites):
        for site in sites or SITES:
            self.start(f"site-{site}", "site", self.site_folder(site), "--accept")

    def status(self):
        return json.loads(self.command("status", self.folder, "--json"))

    def site(self, name):
        return next((row for row in self.status()["sites"] if row["site"] == name), None)

    def until(self, condition, seconds=240):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (self.status(), self.log("serve"))
            time.sleep(0.5)

    def version(self):
        return self.status().get("version", 0)

    def kill_server(self):
        """Everything of it at once: supervisor, SuperLink, SuperExec and the app with the ledger."""
        app = int((self.folder / "run" / "server.lock").read_text())
        victims = [app, *children(self.started["serve"].pid), self.started["serve"].pid]
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        self.started.pop("serve").wait()

    def result(self):
        return pt.load(self.folder / "run" / "result.safetensors")

    def close(self):
        for process in self.started.values():
            process.terminate()
        for process in self.started.values():
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def children(parent):
    return [int(number) for number in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.fixture
def federation(tmp_path):
    opened = []

    def make(rounds, shards=None, **settings):
        opened.append(Federation(tmp_path / "federation", rounds, shards, **settings))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def descendants(parent):
    return [parent, *(one for child in children(parent) for one in descendants(child))]


def listening(process):
    """Addresses at which a process and those it has started take connections."""
    sockets = set()
    for number in descendants(process.pid):
        for handle in Path(f"/proc/{number}/fd").iterdir():
            with suppress(OSError):
                sockets.add(os.readlink(handle))
    found = []
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                host, _, port = local.partition(":")
                # As the kernel writes it: four bytes, the last one first.
                number = bytes.fromhex(host)[::-1] if len(host) == 8 else bytes.fromhex(host)
                found.append((str(ipaddress.ip_address(number)), int(port, 16)))
    return found


FOREIGN = {
    "pyproject.toml": b"""
[project]
name = "foreign"
version = "1.0.0"
description = "Somebody else's"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "foreign.app:server"
clientapp = "foreign.app:client"
[tool.flwr.app.config]
out = ""
""",
    "foreign/__init__.py": b"",
    "foreign/app.py": b"""
import json, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server, client = ServerApp(), ClientApp()

@client.train()
def steal(message, context):
    return Message(RecordDict({"partita": ConfigRecord({"stolen": open("/etc/hostname").read()})}), reply_to=message)

@server.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    record = RecordDict({"partita": ConfigRecord({"out": 1})})
    sent = [Message(record, dst_node_id=nodes[0], message_type=kind, ttl=60.0) for kind in ("train", "query.about")]
    replies = grid.send_and_receive(sent, timeout=10)
    told = [dict(one.content["partita"]) if one.has_content() else {"flower": one.error.reason} for one in replies]
    Path(str(context.run_config["out"])).write_text(json.dumps(told))
""",
}


def status_of(request, certificate=None):
    """What a server answers to a client that believes it with a certificate, or believes anybody."""
    context = ssl.create_default_context(cafile=certificate)
    if certificate is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_17_18_32_strangers_get_nothing_and_sites_run_nothing(federation, tmp_path, monkeypatch):
    """One server, one site: every route from outside, what listens, and an app that is not Partita's."""
    import flwr.superlink.routers.control
    import flwr.superlink.routers.fleet.router
    from flwr.cli.build import build_fab_from_files
    from flwr.common.config import parse_config_args
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab
    from flwr.supercore.routers.runtime.router import router as runtime

    from partita.federation.control import Control
    from partita.federation.folders import read_server
    from partita.federation.link import FOR_SITES

    ours = federation(3)
    # From its parent, by a path that is relative.
    monkeypatch.chdir(ours.folder / "for-sites")
    ours.start("site-a", "site", "a", "--accept")
    serve = ours.start("serve", "serve", ours.folder)
    ours.until(lambda: ours.site("a")["ready"])

    addresses = listening(serve)
    assert {host for host, _ in addresses} == {"127.0.0.1"}
    (inner,) = {port for _, port in addresses} - {int(ours.address.partition(":")[2])}
    assert listening(ours.started["site-a"]) == []
    assert not (ours.site_folder("a") / "for-sites").exists()
    assert not (ours.site_folder("a") / "run" / "a").exists()
    for path in ours.folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or path.name == "data.csv", path

    routers = (flwr.superlink.routers.control.router, flwr.superlink.routers.fleet.router.router, runtime)
    paths = {route.path for router in routers for route in router.routes}
    assert "/v1/control/start-run" in paths
    for certificate in (None, ours.folder / "keys" / "ca.crt"):
        for path in sorted(paths | {"/docs", "/openapi.json", "/health"}):
            about = {"content-type": "application/protobuf", "accept": "application/protobuf"}
            request = urllib.request.Request(f"https://{ours.address}{path}", b"", about, method="POST")
            assert status_of(request, certificate) == (401 if path in FOR_SITES else 404), path

    content, _ = build_fab_from_files(FOREIGN)
    out = tmp_path / "out.json"
    request = StartRunRequest(
        fab=fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {})),
        override_config=user_config_to_proto(parse_config_args([f'out="{out}"'])),
    )
    # With the operator's secret, which whoever runs the server has.
    with closing(Control(read_server(ours.folder), inner)) as control:
        control._client.StartRun(request)
    ours.until(out.exists, 120)
    # Flower's own messages come to a site without what was in them, and what it refuses with does not come back.
    assert {name for one in json.loads(out.read_text()) for name in one} <= {"flower"}
    # Both have a line in the site's log of what left.
    *lines, _ = map(json.loads, ours.command("site", "audit", ours.site_folder("a"), "--json").splitlines())
    words = hashlib.sha256(b"EngineError: this site answers Partita's server, and nothing else").hexdigest()
    assert [row["digest"] for row in lines if row["kind"] == "foreign"] == [words, words]


def test_a_server_that_is_killed_resumes_and_ends_as_in_process(federation):
    ours = federation(400)
    ours.start_sites()
    port = free_port()
    ours.start("serve", "serve", ours.folder, "--metrics", port)
    ours.until(lambda: ours.version() >= 6)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert "partita_serving 1.0\n" in metrics
    assert 'partita_site_ready{site="b"} 1.0\n' in metrics
    # Flower's SuperLink by itself: it knows nothing when it is back, and the run goes on from its journal.
    link = next(
        child
        for child in children(ours.started["serve"].pid)
        if b"partita.federation.link" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    before = ours.status()
    os.kill(link, signal.SIGKILL)
    ours.until(lambda: ours.status()["attempt"] != before["attempt"] and ours.version() > before["version"])
    ours.kill_server()
    assert ours.status()["state"] == "stopped"
    # A site predicts by itself, without the server and without its own process.
    rows = ours.folder.parent / "rows.csv"
    np.savetxt(rows, X[:5], delimiter=",", header=",".join(COLUMNS), comments="", fmt="%.17g")
    alone = ours.started.pop("site-c")
    alone.terminate()
    alone.wait(40)
    shown = ours.command("predict", ours.site_folder("c"), rows)
    assert shown.startswith("row,probability,low,high\n1,0.")
    assert "from the posterior of version " in shown
    ours.start_sites("c")
    assert "there is a run already" in ours.command("serve", ours.folder, code=2)
    ours.start("serve", "resume", ours.folder)
    assert ours.started["serve"].wait(300) == 0
    result, there = ours.result(), in_process(400)
    assert len(result.history) == 400
    assert distance(result.posterior, there.posterior) < 1e-9
    np.testing.assert_allclose(result.log_evidence, there.log_evidence, rtol=1e-9)
    assert ours.status()["state"] == "finished"
    out = ours.folder.parent / "predicted.csv"
    ours.command("predict", ours.site_folder("a"), rows, "--out", out)
    predicted = np.loadtxt(out, delimiter=",", skiprows=1)
    wanted = np.column_stack([result.predict_proba(X[:5])[:, 1], result.predict_interval(X[:5])[:, 1]])
    # The command compiles for itself, without the options that tests have.
    np.testing.assert_allclose(predicted[:, 1:], wanted, rtol=1e-12)
    ours.command("report", ours.folder)
    assert "Federation federation" in (ours.folder / "report.html").read_text()
    # More rounds of the same run.
    file = ours.folder / "federation.toml"
    file.write_text(file.read_text().replace("rounds = 400", "rounds = 401"))
    ours.start("serve", "resume", ours.folder)
    assert ours.started["serve"].wait(300) == 0
    assert distance(ours.result().posterior, in_process(401).posterior) < 1e-9


MANY = """
import sys, threading
from pathlib import Path
from partita.foundation.signals import notice_signals
from partita.site.gate import Site
from partita.site.process import keep_connected
from partita.site.settings import read_site
from partita.site.signing import sign_answers

with notice_signals() as is_ending:
    def hold(folder):
        site = Site(folder, True)
        keep_connected(read_site(folder), sign_answers(site, site.answer), print, is_ending)

    threads = [threading.Thread(target=hold, args=(Path(folder),)) for folder in sys.argv[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_many_sites_lose_no_round(federation):
    """Twelve sites in one process, each with its key, its connection and its log."""
    shards = pt.datasets.split((X, Y), sites=12)
    ours = federation(5, {f"s{i}": shard for i, shard in enumerate(shards)})
    folders = [ours.site_folder(f"s{i}") for i in range(12)]
    ours.start("sites", *folders, command=[sys.executable, "-c", MANY])
    assert ours.start("serve", "serve", ours.folder).wait(240) == 0, ours.log("serve")
    assert [site["updates"] for site in ours.status()["sites"]] == [5] * 12
    assert distance(ours.result().posterior, in_process(5, shards).posterior) < 1e-9
    rows = map(json.loads, (ours.folder / "run" / "log.jsonl").read_text().splitlines())
    times = [row["time"] for row in rows if row["event"] == "fold"]
    # A tenth of a second each on a machine that has nothing else to do.
    assert np.median(np.diff(times)) < 3


def test_a_site_that_is_killed_rejoins_and_a_late_site_is_welcome(federation):
    """A site with other columns is told what is wrong, mends it, and joins; another is killed, and comes back."""
    ours = federation(900, minimum=2, gather=1.0)
    ours.write_data("c", *SHARDS[2], names=("x1", "x2", "SIZE", "x4", "x5", "y"))
    ours.start_sites()
    ours.start("serve", "serve", ours.folder)
    ours.until(lambda: ours.version() >= 4)
    assert "its own log says why" in ours.site("c")["problem"]
    assert "data.csv: no column 'x3'; it has x1, x2, SIZE" in ours.log("site-c")
    settings = ours.site_folder("c") / "site.toml"
    settings.write_text(settings.read_text() + 'x3 = "SIZE"\n')
    ours.started["site-b"].kill()
    ours.started["site-b"].wait()
    ours.until(lambda: not ours.site("b")["ready"])
    ours.start_sites("b")
    ours.until(lambda: ours.site("b")["ready"])
    assert ours.started["serve"].wait(400) == 0
    assert all(site["ready"] and site["updates"] > 5 for site in ours.status()["sites"])
    assert distance(ours.result().posterior, in_process(60).posterior) < 1e-3


def test_a_retired_site_leaves_nothing_behind_and_the_server_can_be_stopped(federation):
    ours = federation(400)
    ours.start_sites()
    ours.start("serve", "serve", ours.folder)
    ours.until(lambda: ours.version() >= 6)
    assert "c will be retired now" in ours.command("retire", ours.folder, "c")
    ours.until(lambda: ours.site("c")["barred"] is not None)
    assert "has ended" in ours.command("stop", ours.folder)
    assert ours.started["serve"].wait(10) == 0
    assert "nobody is at work" in ours.command("stop", ours.folder)
    assert "there are a, b, c" in ours.command("retire", ours.folder, "nobody", code=2)
    ours.start("serve", "resume", ours.folder)
    assert ours.started["serve"].wait(300) == 0
    assert "retired" in ours.command("status", ours.folder)
    assert distance(ours.result().posterior, in_process(60, SHARDS[:2]).posterior) < 1e-3


RECORDING = """
import sys
from pathlib import Path
from flwr.supernode.fleet_http_client import FleetHttpClient
from partita.site.process import run_site

def record(name, call):
    def recorded(self, request):
        with open(sys.argv[2], "a") as stream:
            stream.write(f"{name} {request.SerializeToString().hex()}\\n")
        return call(self, request)
    return recorded

for name, call in list(vars(FleetHttpClient).items()):
    if name[0].isupper():
        setattr(FleetHttpClient, name, record(name, call))
run_site(Path(sys.argv[1]), print, accepts=True)
"""


def test_the_audit_log_has_every_byte_that_a_recorder_saw_leaving(federation, tmp_path):
    """Whatever a site calls of Flower's is recorded: answers are those of its log, and the rest is small."""
    from flwr.common.serde import message_from_proto
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    ours, seen = federation(4), tmp_path / "seen"
    ours.start_sites("b", "c")
    ours.start("site-a", ours.site_folder("a"), seen, command=[sys.executable, "-c", RECORDING])
    serve = ours.start("serve", "serve", ours.folder)
    assert serve.wait(240) == 0, ours.log("serve")
    calls = [line.split() for line in seen.read_text().splitlines()]
    left = []
    for content in (bytes.fromhex(data) for name, data in calls if name == "PushMessages"):
        (message,) = PushMessagesRequest.FromString(content).messages_list
        ((_, record),) = message_from_proto(message).content.items()
        record = dict(record)
        assert len(record.pop("signature")) < 120
        ((name, value),) = record.items()
        assert name in ("payload", "error")
        left.append(value if name == "payload" else value.encode())
        assert len(content) - len(left[-1]) < 600
    assert all(len(data) < 2 * 400 for name, data in calls if name != "PushMessages")
    told = ours.command("site", "audit", ours.site_folder("a"), "--json")
    *lines, summary = map(json.loads, told.splitlines())
    assert [row["digest"] for row in lines] == [hashlib.sha256(one).hexdigest() for one in left]
    assert [row["size"] for row in lines] == [len(one) for one in left]
    assert summary["sent"]["refine"]["answers"] == 4
    assert summary["problems"] == []
    assert sum(one["bytes"] for one in summary["sent"].values()) == ours.site("a")["bytes_up"]


def test_what_a_policy_refuses_is_said_at_the_server_and_the_others_go_on(federation):
    """One site has too few rows for its policy, and one never tells its log likelihood: the evidence is unknown."""
    ours = federation(3, minimum=2, gather=1.0)
    for site, old, new in (
        ("b", '"refine", "evaluate", ', '"refine", '),
        ("c", "fewest_rows = 10", "fewest_rows = 10000"),
    ):
        file = ours.site_folder(site) / "site.toml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    ours.start_sites()
    assert ours.start("serve", "serve", ours.folder).wait(240) == 0, ours.log("serve")
    shown = ours.command("status", ours.folder)
    assert "its policy refuses this (fewest_rows): the table has fewer rows than the policy asks for" in shown
    assert "its policy refuses this (answers): answers to 'evaluate' may not leave this site" in shown
    assert "change answers in [policy]" not in shown
    assert "change answers in [policy]" in ours.log("site-b")
    assert ours.site("c")["updates"] == 0
    result = ours.result()
    assert np.isnan(result.log_evidence)
    assert [any(np.any(array) for array in vars(factor).values()) for factor in result.factors] == [True, True, False]
    told = ours.command("site", "audit", ours.site_folder("c"))
    assert "left: " not in told
    assert "refused: about: " in told


BROKEN = """
import sys
from pathlib import Path
from partita.site.gate import Site
from partita.site.process import run_site

good = Site.answer
def garbage(self, kind, request):
    reply = good(self, kind, request)
    return {"payload": b"\\x00" * 64} if kind == "refine" else reply
Site.answer = garbage
run_site(Path(sys.argv[1]), print, accepts=True)
"""


def test_forged_sites_wrong_certificates_and_garbage(federation, tmp_path):
    """Row 14 of the faults, and bad bytes over the wire: refused, and the others go on."""
    ours = federation(600, minimum=2, gather=20.0)
    other = Federation(tmp_path / "other", 14)
    # A stranger with a key of its own, a site that trusts another authority, and one that answers nonsense.
    stranger = ours.folder / "for-sites" / "stranger"
    shutil.copytree(ours.site_folder("a"), stranger)
    shutil.copy(other.site_folder("a") / "site.key", stranger / "site.key")
    shutil.copy(other.folder / "keys" / "ca.crt", ours.site_folder("b") / "ca.crt")
    ours.start_sites("a")
    ours.start("site-c", ours.site_folder("c"), command=[sys.executable, "-c", BROKEN])
    ours.start("serve", "serve", ours.folder)
    ours.until(lambda: ours.site("a") is not None)
    refused = ours.command("site", ours.site_folder("b"), code=2)
    assert "does not speak for the server" in refused
    assert "Traceback" not in refused
    intruder = ours.start("stranger", "site", stranger)
    ours.until(lambda: "refused, trying again" in ours.log("stranger"))
    assert ours.started["serve"].wait(300) == 0
    assert ours.site("c")["barred"].startswith("quarantined: cannot be read")
    assert ours.site("a")["updates"] == 600
    assert not ours.site("b")["ready"]
    assert intruder.poll() is None or intruder.returncode == 2
    assert distance(ours.result().posterior, in_process(60, SHARDS[:1]).posterior) < 1e-3


def test_a_summary_is_asked_of_all_sites(federation, tmp_path):
    """Table 1 between real processes, as `partita summary DIR` makes it: the same as in one process."""
    pytest.importorskip("polars")
    folder, tables = tmp_path / "summed", {}
    command = [*PARTITA, "new-federation", folder, "--sites", "a,b", "--summary", ",".join(COLUMNS),
               "--by", "y", "--address", f"127.0.0.1:{free_port()}"]  # fmt: skip
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=120)
    for site, (inputs, targets) in zip("ab", SHARDS, strict=False):
        tables[site] = folder / "for-sites" / site / "data.csv"
        table = np.column_stack([inputs, targets])
        np.savetxt(tables[site], table, delimiter=",", header=",".join([*COLUMNS, "y"]), comments="", fmt="%.17g")
    ours = federation(1)
    for site in tables:
        ours.start(f"summed-{site}", "site", folder / "for-sites" / site, "--accept")
    told = ours.command("summary", folder, "--quiet", "--json")
    there = pt.summary(tables, COLUMNS, by="y")
    *rows, last = map(json.loads, told.splitlines())
    means = {row["column"]: row["value"] for row in rows if (row["statistic"], row["of"]) == ("mean", "all")}
    assert means == {name: there.numbers(name).mean for name in COLUMNS}
    assert last["rows"] == sum(len(targets) for _, targets in SHARDS[:2])
    assert "mean (SD)" in ours.command("summary", folder)
    assert (folder / "summary.html").exists()
    audit = ours.command("site", "audit", folder / "for-sites" / "a")
    assert "left: tabulate: answers: 1" in audit


def test_a_formula_across_the_wall_is_the_same_as_in_one_process_between_real_processes(tmp_path):
    """As a new user would: tables with levels that one site lacks, and cells that are missing."""
    generator = np.random.default_rng(0)
    tables = {}
    for site, wards in (("a", ("east", "west", "south")), ("b", ("west", "east"))):
        ward, age = np.resize(wards, 60), generator.normal(50, 10, 60)
        ill = generator.random(60) < 1 / (1 + np.exp(-0.1 * (age - 50) - (ward == "west")))
        tables[site] = pd.DataFrame({"age": age, "ward": ward, "ill": np.where(ill, "yes", "no")})
        tables[site].loc[7, "age"] = np.nan
    ours = Federation.__new__(Federation)
    ours.folder, ours.started = tmp_path / "federation", {}
    ours.address = f"127.0.0.1:{free_port()}"
    formula = "ill ~ age + C(ward)"
    ours.command("new-federation", ours.folder, "--sites", "a,b", "--address", ours.address,
                 "--formula", formula, "--family", "bernoulli")  # fmt: skip
    for site, table in tables.items():
        table.to_csv(ours.site_folder(site) / "data.csv", index=False)
    try:
        ours.start_sites("a", "b")
        serve = ours.start("serve", "serve", ours.folder)
        assert serve.wait(240) == 0, ours.log("serve")
        here = pt.Regression.load(ours.folder / "run" / "result.safetensors")
        there = pt.regress(formula, tables, family="bernoulli", quiet=True)
        for one, other in zip(here.coefficients(), there.coefficients(), strict=True):
            assert one["name"] == other["name"]
            np.testing.assert_allclose([one["mean"], one["sd"]], [other["mean"], other["sd"]], rtol=1e-8)
        np.testing.assert_allclose(here.predict(tables["a"]), there.predict(tables["a"]), rtol=1e-8)
        assert "C(ward)[T.west]" in ours.command("report", ours.folder) + (ours.folder / "report.html").read_text()
        ours.command("verify", ours.folder)
    finally:
        ours.close()


def test_sites_join_rotate_keys_are_revoked_and_leave_while_the_server_is_killed_in_between(federation):
    ours, late = federation(100_000), (X[::4], Y[::4])
    for site in SITES:
        allow_many(ours, site)
    ours.start_sites()
    ours.start("serve", "serve", ours.folder)
    ours.until(lambda: look(ours).get("version", 0) > 6)
    # One that nobody has heard of: invited, and at work, while the others go on.
    ours.command("invite", ours.folder, "d")
    ours.write_data("d", *late)
    allow_many(ours, "d")
    ours.start_sites("d")
    ours.until(lambda: updates_of(ours, "d") > 2)
    ours.kill_server()
    ours.start("serve", "resume", ours.folder)
    ours.until(lambda: updates_of(ours, "d") > 2)
    # Another key for b, whose site is not stopped.
    before = (ours.folder / "sites" / "b.pub").read_text()
    ours.command("site", "rotate", ours.site_folder("b"))
    said = ours.command("rotate", ours.folder, "b", ours.site_folder("b") / "rotation.json")
    assert "opens nothing any more" in said
    ours.until(lambda: not (ours.site_folder("b") / "site.key.next").exists())
    assert (ours.folder / "sites" / "b.pub").read_text() != before
    done = updates_of(ours, "b")
    ours.until(lambda: updates_of(ours, "b") > done)
    # The door is closed for c at once, and what it has said is forgotten.
    ours.command("revoke", ours.folder, "c", "--forget")
    ours.until(lambda: barred(ours, "c").startswith("retired"))
    ours.until(lambda: "refused, trying again" in ours.log("site-c"))
    ours.command("retire", ours.folder, "a")
    ours.until(lambda: barred(ours, "a").startswith("retired"))
    last = look(ours)["version"]
    ours.until(lambda: look(ours)["version"] > last + 4)
    ours.command("stop", ours.folder)
    assert ours.started.pop("serve").wait(30) == 0
    # What is left are b and d: the result is theirs, and everything is signed by those who sent it.
    file = ours.folder / "federation.toml"
    rounds = len(read_history(ours.folder / "run")) + 20
    file.write_text(file.read_text().replace("rounds = 100000", f"rounds = {rounds}"))
    assert ours.start("serve", "resume", ours.folder).wait(120) == 0, ours.log("serve")
    found = ours.result()
    assert [any(np.any(array) for array in vars(factor).values()) for factor in found.factors] == [
        False, True, False, True,
    ]  # fmt: skip
    assert distance(found.posterior, in_process(60, [SHARDS[1], late]).posterior) < 1e-6
    told = ours.command("verify", ours.folder)
    for words in ("signed with an earlier key", "signed with its key", "signed with a key that was revoked later"):
        assert words in told
    ours.command("rotate", ours.folder, "c", ours.site_folder("c") / "site.toml", code=2)


def allow_many(ours, site):
    file = ours.site_folder(site) / "site.toml"
    file.write_text(file.read_text().replace("most_tasks = 1000", "most_tasks = 1000000"))


def look(ours):
    """What `partita status` shows, without a process for each look."""
    return read_status(read_server(ours.folder))


def updates_of(ours, site):
    return sum(row["updates"] or 0 for row in look(ours)["sites"] if row["site"] == site)


def barred(ours, site):
    return next(row["barred"] or "" for row in look(ours)["sites"] if row["site"] == site)
