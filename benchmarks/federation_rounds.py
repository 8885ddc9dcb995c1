"""Where the time of a federation's rounds goes: a real server and real sites on loopback, with keys and TLS.

python -m benchmarks.federation_rounds [--sites 3,10] [--model logistic] [--rounds 20] [--hosts 2]
python -m benchmarks.federation_rounds --load             # 100 sites for 50 rounds, none lost

Up to four sites are processes of `partita site`. More do not fit well into one machine: then a few processes hold many
sites each, with a thread, a key, a connection and an audit log for each of them.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from partita.federation.new import make_federation
from partita.foundation.compilation import cache_compilations
from partita.foundation.logs import open_log
from partita.foundation.signals import notice_signals
from partita.site.audit import AuditLog
from partita.site.gate import Site
from partita.site.process import keep_connected, log_answers
from partita.site.settings import read_site
from partita.site.signing import sign_answers

PARTITA = [sys.executable, "-m", "partita"]
ROWS, FEATURES, NETWORK = 60, 5, (784, 200, 10)
# More sites than that share processes, of which there are at most so many.
ALONE, HOSTS = 4, 2
# Rounds that are not counted: programs are compiled in them.
WARM = 3
# Seconds that a federation may take.
PATIENCE = 500.0
Costs = dict[str, list[float]]


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def write_federation(folder: Path, number: int, model: str, rounds: int) -> list[str]:
    """A federation with tables at its sites; their names."""
    sites = [f"s{i:03d}" for i in range(number)]
    is_network = model == "network"
    features = [f"x{i}" for i in range(NETWORK[0] if is_network else FEATURES)]
    make_federation(folder, sites, free_address(), features, "y", "network" if is_network else "logistic-regression")
    file = folder / "federation.toml"
    text = file.read_text().replace("rounds = 20", f"rounds = {rounds}")
    if is_network:
        text = text.replace("# classes = 2", f"classes = {NETWORK[2]}")
        text = text.replace(
            "[schedule]", f'hidden = [{NETWORK[1]}]\n\n[solver]\nname = "natural-gradient"\nsteps = 1\n\n[schedule]'
        )
    file.write_text(text)
    generator = np.random.default_rng(0)
    weights = generator.normal(size=len(features)) / np.sqrt(len(features))
    for site in sites:
        X = generator.normal(size=(ROWS, len(features))).astype(np.float32)
        y = np.arange(ROWS) % NETWORK[2] if is_network else (generator.random(ROWS) < 1 / (1 + np.exp(-X @ weights)))
        place = folder / "for-sites" / site
        header = ",".join([*features, "y"])
        np.savetxt(place / "data.csv", np.column_stack([X, y]), delimiter=",", header=header, comments="", fmt="%.7g")
        settings = (place / "site.toml").read_text()
        settings = settings.replace("most_parameters = 10000", "most_parameters = 1000000")
        (place / "site.toml").write_text(
            settings.replace("most_parameters_per_row = 0.33", "most_parameters_per_row = 1e6")
        )
    return sites


def note_cost(costs: Costs, name: str, seconds: float, size: int = 0) -> None:
    for place, one in enumerate((1, seconds, size)):
        costs[name][place] += one


def time_calls(costs: Costs) -> None:
    """From now on, note what sites call of their server, what they compute and what they write into their logs."""
    from flwr.supercore.protobuf.client import ProtobufClient

    def timed(kind: Any, method: str, name: Callable[..., str], size: Callable[..., int]) -> None:
        call = getattr(kind, method)

        def noted(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            answer = call(*arguments, **named)
            note_cost(costs, name(named), time.perf_counter() - began, size(named, answer))
            return answer

        setattr(kind, method, noted)

    timed(
        ProtobufClient, "_unary_unary", lambda named: str(named["path"]).rpartition("/")[2],
        lambda named, answer: named["request"].ByteSize() + answer.ByteSize(),
    )  # fmt: skip
    timed(Site, "answer", lambda _: "(gate, with the log)", lambda *_: 0)
    timed(AuditLog, "note", lambda _: "(audit log)", lambda *_: 0)


def hold_sites(folder: Path, sites: list[str], report: Path) -> None:
    """Be many sites in one process, until somebody asks for an end; then report what calls have cost."""
    costs: Costs = defaultdict(lambda: [0.0, 0.0, 0.0])
    time_calls(costs)
    cache_compilations()
    with notice_signals() as is_ending:

        def hold(name: str) -> None:
            place = folder / "for-sites" / name
            log = open_log(place / "run", "log")
            site = Site(place, True)
            answer = sign_answers(site, log_answers(site, log, lambda words: None))
            keep_connected(read_site(place), answer, lambda words: log.info(words), is_ending)

        threads = [threading.Thread(target=hold, args=(name,)) for name in sites]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    report.write_text(json.dumps(costs))


def processor_seconds(number: int) -> float:
    """Of one process, as the kernel counts them."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(parent: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@contextmanager
def running(folder: Path, sites: list[str], hosts: int) -> Iterator[tuple[Any, list[Any]]]:
    """A server and its sites; all processes end with the block."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, os.environ.get("PYTHONPATH", "").split(os.pathsep))),
    }
    held = [sites[i::hosts] for i in range(hosts)]
    started: list[Any] = []

    def start(name: str, *command: Any) -> Any:
        with (folder.parent / f"{name}.log").open("wb") as log:
            started.append(
                subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT, env=environment)
            )
        return started[-1]

    try:
        if len(sites) <= ALONE:
            for site in sites:
                start(site, *PARTITA, "site", folder / "for-sites" / site, "--accept")
        else:
            for place, names in enumerate(held):
                start(
                    f"host-{place}", sys.executable, "-m", "benchmarks.federation_rounds", "--hold", folder,
                    folder.parent / f"costs-{place}.json", *names,
                )  # fmt: skip
        hosting = list(started)
        yield start("serve", *PARTITA, "serve", folder, "--json"), hosting
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def folds(folder: Path) -> list[dict[str, Any]]:
    path = folder / "run" / "log.jsonl"
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else []
    return [row for row in rows if row["event"] == "fold"]


def parts_of(serve: Any, folder: Path, hosting: list[Any]) -> dict[str, list[int]]:
    """Processes by what they are."""
    link = [
        child for child in children(serve.pid)
        if b"partita.federation.link" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]  # fmt: skip
    return {
        "link": link,
        "app": [int((folder / "run" / "server.lock").read_text())],
        "sites": [process.pid for process in hosting],
    }


def measure(number: int, model: str, rounds: int, hosts: int) -> dict[str, Any]:
    """Run one federation; what a round costs."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "federation"
        sites = write_federation(folder, number, model, rounds)
        costs: Costs = defaultdict(lambda: [0.0, 0.0, 0.0])
        began, before, used = time.monotonic(), {}, {}
        with running(folder, sites, hosts) as (serve, hosting):
            while serve.poll() is None:
                if time.monotonic() - began > PATIENCE:
                    raise TimeoutError((folder.parent / "serve.log").read_text()[-2000:])
                done = len(folds(folder))
                if done >= WARM and not before:
                    parts = parts_of(serve, folder, hosting)
                    before = {name: sum(map(processor_seconds, those)) for name, those in parts.items()}
                    first = done
                elif before and done < rounds:
                    used = {
                        name: (sum(map(processor_seconds, those)) - before[name], done - first)
                        for name, those in parts.items()
                    }
                time.sleep(0.1)
            times = [row["time"] for row in folds(folder)]
            log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
        for report in folder.parent.glob("costs-*.json"):
            for name, one in json.loads(report.read_text()).items():
                for place, amount in enumerate(one):
                    costs[name][place] += amount
        state = json.loads((folder / "run" / "state.json").read_text())
        gaps = np.diff(times)[WARM - 1 :]
        return {
            "sites": number, "model": model, "state": state["state"], "rounds": len(times),
            "median": float(np.median(gaps)), "worst": float(np.max(gaps)),
            "cpu": {name: seconds / max(1, n) for name, (seconds, n) in used.items()},
            "costs": costs, "updates": sorted({site["updates"] for site in state["sites"]}),
            "bytes": sum(site["bytes_down"] + site["bytes_up"] for site in state["sites"]) / max(1, len(times)),
            "lost": [row for row in log if row["level"] == "warning" and row.get("last_seen")],
        }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    cpu = row["cpu"]
    print(
        f"| {row['sites']} | {row['model']} | {row['median']:.2f} | {row['worst']:.2f} | "
        + " | ".join(f"{cpu.get(part, float('nan')):.2f}" for part in ("link", "app", "sites"))
        + f" | {row['bytes']:,.0f} | {row['state']}, {row['rounds']} rounds, updates {row['updates']}"
        + f" | {len(row['lost'])}"
    )
    for name, (count, seconds, size) in sorted(row["costs"].items(), key=lambda item: -item[1][1]):
        print(f"    {name}: {count:.0f} calls, {1e3 * seconds / count:.1f} ms, {size / count:,.0f} bytes each")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", default="3,10,30")
    parser.add_argument("--model", default="logistic", choices=("logistic", "network"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--hold", nargs="+")
    chosen = parser.parse_args()
    if chosen.hold:
        hold_sites(Path(chosen.hold[0]), chosen.hold[2:], Path(chosen.hold[1]))
        return
    print("| sites | model | seconds a round | worst | processor: link | app | sites | bytes | how it ended | away |")
    print("|" + "---|" * 10)
    for number in [100] if chosen.load else map(int, chosen.sites.split(",")):
        show(measure(number, chosen.model, 50 if chosen.load else chosen.rounds, chosen.hosts))


if __name__ == "__main__":
    main()
