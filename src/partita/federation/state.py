"""How a federation is doing: a small file that the server keeps up to date, requests to it, logs and metrics."""

import json
import logging
import logging.handlers
import os
import time
import uuid
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from partita.engines.flower import Peer
from partita.errors import CorruptStorage, InputError, StorageError
from partita.federation.folders import ServerFolder, holder
from partita.federation.recipe import check_names
from partita.foundation.fields import anything, fields, flag, items, maybe, number, one_of, text, whole
from partita.foundation.files import make_folder, open_private, read_json, replace_file
from partita.foundation.plain import Row, plain, to_json
from partita.foundation.text import clean
from partita.report.loopback import LoopbackHandler, LoopbackServer
from partita.server.storage import read_notices
from partita.wire.messages import MOST_REASON, Notice

State = Literal["waiting for sites", "running", "finished", "stalled", "failed"]
ENDED = ("finished", "stalled", "failed")
LOG_BYTES = 10_000_000
# What a state file says of a site, and of the run: since which version, an older one need not know.
_COUNTS = ("rows", "tasks", "updates", "bytes_down", "bytes_up")
_NUMBERS = ("version", "total", "round", "accepted", "free_energy", "messages", "bytes_down", "bytes_up")
SITE = fields(
    {"site": text(40)},
    {
        "ready": flag,
        "connected": flag,
        "problem": text(),
        "last_seen": maybe(number(0, most=1e12)),
        **{name: maybe(whole()) for name in _COUNTS},
        **{name: maybe(number()) for name in ("staleness", "accepted", "seconds")},
    },
)
STATE = fields(
    {"state": text(100), "sites": items(SITE)},
    {"time": number(), "attempt": text(), "reason": text(), **{name: maybe(number()) for name in _NUMBERS}},
    anything,
)
REQUEST = fields({"site": text(40), "kind": one_of(("retired", "readmitted"))})


def write_state(folder: ServerFolder, row: Row) -> None:
    """Whole or not at all; it is rewritten every few seconds, and nothing is lost with it."""
    replace_file(folder.run / "state.json", to_json({"time": time.time(), **row}).encode())


def about(peer: Peer) -> Row:
    """What is known of a site, to be shown."""
    return {
        "site": peer.name,
        "ready": peer.ready,
        "connected": peer.node is not None,
        "problem": peer.problem,
        "last_seen": peer.last_seen,
        "rows": peer.rows,
        "tasks": peer.tasks,
        "updates": peer.updates,
        "bytes_down": peer.bytes_down,
        "bytes_up": peer.bytes_up,
    }


def read_state(folder: ServerFolder) -> Row:
    """What the server said last; and whether it is there."""
    serving = holder(folder.run / "serve.lock")
    path = folder.run / "state.json"
    if not path.exists():
        state = "waiting for sites" if serving else "not started"
        return {"state": state, "serving": serving is not None, "sites": [about(Peer(name)) for name in folder.sites]}
    try:
        row = read_json(path)
        STATE(row, "state")
        check_names([site["site"] for site in row["sites"]])
    except (OSError, ValueError) as error:
        raise CorruptStorage(f"{path}: {error}: it can be deleted, nothing is lost with it") from None
    if serving is None and row["state"] not in ENDED:
        row["state"] = "stopped"
    sites = [{**about(Peer(site["site"])), **site} for site in row["sites"]]
    return {**_cleaned({**row, "sites": sites}), "serving": serving is not None}


def barred(folder: ServerFolder) -> dict[str, str]:
    """Who is quarantined or retired, and why, as the journal has it."""
    found: dict[int, str] = {}
    for notice in read_notices(folder.run) if folder.has_run else ():
        if notice.kind in ("quarantined", "retired"):
            found[notice.site] = f"{notice.kind}: {notice.reason}"
        elif notice.kind == "readmitted" and not found.get(notice.site, "").startswith("retired"):
            found.pop(notice.site, None)
    return {folder.sites[site]: words for site, words in found.items() if 0 <= site < len(folder.sites)}


def request(folder: ServerFolder, site: str, kind: Literal["retired", "readmitted"]) -> Path:
    """Ask the server for something that concerns a site; it is read when the server runs."""
    if site not in folder.sites:
        raise InputError(f"site {site!r}: there are {', '.join(folder.sites)}")
    path = folder.requests / f"{time.time_ns():020d}-{uuid.uuid4().hex}.json"
    try:
        replace_file(path, json.dumps({"site": site, "kind": kind}).encode())
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from None
    return path


class Requests:
    """Requests as notices, each until it is sure to be in the journal."""

    def __init__(self, folder: ServerFolder):
        self._folder = folder
        self._handed: list[Path] = []

    def __call__(self) -> list[Notice]:
        # What was handed out last time is in the journal by now: the run asks again only after that.
        for path in self._handed:
            path.unlink(missing_ok=True)
        self._handed = sorted(self._folder.requests.glob("*.json")) if self._folder.requests.is_dir() else []
        return [self._notice(path) for path in self._handed]

    def _notice(self, path: Path) -> Notice:
        try:
            row = read_json(path)
            REQUEST(row, "request")
            return Notice(self._folder.sites.index(row["site"]), row["kind"], "as the operator asked")
        except (OSError, ValueError) as error:
            raise CorruptStorage(f"{path}: is no request: {error}: delete it") from None


def logger(folder: Path, name: str) -> logging.Logger:
    """JSON lines in `folder/name.jsonl`, three files of at most ten megabytes each."""
    make_folder(folder)
    log = logging.getLogger(f"partita.{name}.{folder}")
    if not log.handlers:
        handler = _PrivateLog(folder / f"{name}.jsonl", maxBytes=LOG_BYTES, backupCount=2)
        handler.setFormatter(_JsonLines())
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    return log


class _PrivateLog(logging.handlers.RotatingFileHandler):
    """For its owner alone, and never through a link."""

    def _open(self) -> Any:
        handle = open_private(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return os.fdopen(handle, "a", encoding="utf-8")


class _JsonLines(logging.Formatter):
    """`log.info("event", extra={"row": {...}})` as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        about = {"time": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps({**about, **_cleaned(plain(getattr(record, "row", {})))})


def _cleaned(value: Any) -> Any:
    """What sites said, in lines of a log that end somewhere."""
    if isinstance(value, dict):
        return {clean(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return clean(value, MOST_REASON) if isinstance(value, str) else value


METRICS: Sequence[tuple[str, str, str]] = (
    ("version", "counter", "Updates that the posterior has taken."),
    ("messages", "counter", "Tasks and updates."),
    ("bytes_down", "counter", "Bytes of densities sent to sites."),
    ("bytes_up", "counter", "Bytes of densities that came from sites."),
    ("accepted", "gauge", "Share of the last proposed change that was accepted."),
    ("free_energy", "gauge", "Of the posterior, as sites reported it last."),
)
SITE_METRICS: Sequence[tuple[str, str, str]] = (
    ("ready", "gauge", "Whether the site can be asked."),
    ("updates", "counter", "Updates that came from the site since the server was started."),
    ("staleness", "gauge", "Updates that were folded while the site was at work, last time."),
    ("last_seen", "gauge", "When the site answered last, in seconds since 1970."),
)


def prometheus(state: Row) -> str:
    """The state in Prometheus' text format."""
    lines = []

    def metric(name: str, kind: str, words: str, samples: Sequence[tuple[str, Any]]) -> None:
        known = [(label, value) for label, value in samples if value is not None]
        if known:
            lines.append(f"# HELP partita_{name} {words}")
            lines.append(f"# TYPE partita_{name} {kind}")
            lines.extend(f"partita_{name}{label} {float(value):.17g}" for label, value in known)

    metric("serving", "gauge", "Whether the server runs.", [("", state["serving"])])
    metric("stalled", "gauge", "Whether nobody has answered for too long.", [("", state["state"] == "stalled")])
    for name, kind, words in METRICS:
        suffix = "_total" if kind == "counter" else ""
        metric(f"{name}{suffix}", kind, words, [("", state.get(name))])
    for name, kind, words in SITE_METRICS:
        suffix = "_total" if kind == "counter" else ""
        samples = [(f'{{site="{site["site"]}"}}', site.get(name)) for site in state["sites"]]
        metric(f"site_{name}{suffix}", kind, words, samples)
    return "\n".join(lines) + "\n"


def serve_metrics(folder: ServerFolder, port: int) -> LoopbackServer:
    """Prometheus metrics at http://127.0.0.1:port/metrics, until it is shut down."""

    class Handler(LoopbackHandler):
        def show(self, path: str) -> None:
            if path != "/metrics":
                self.answer(HTTPStatus.NOT_FOUND, "There is only /metrics here.\n")
                return
            kind = "text/plain; version=0.0.4; charset=utf-8"
            self.answer(HTTPStatus.OK, prometheus(read_state(folder)), kind)

    try:
        return LoopbackServer(port, Handler)
    except (OSError, OverflowError) as error:
        raise InputError(f"--metrics {port}: {getattr(error, 'strerror', error)}: use another port") from None
