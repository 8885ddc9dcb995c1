"""How a federation is doing: a small file that the server keeps up to date, who is not asked, and requests to it."""

import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from partita.engines.peers import Peer
from partita.errors import CorruptStorage, InputError, StorageError
from partita.federation.folders import ServerFolder, read_server
from partita.foundation.fields import anything, fields, flag, items, maybe, number, one_of, text, whole
from partita.foundation.files import read_json, replace_file
from partita.foundation.locks import lock_holder
from partita.foundation.logs import clean_values
from partita.foundation.plain import Row, to_json
from partita.server.journals import read_notices, read_strikes
from partita.wire.messages import Notice
from partita.wire.naming import check_site_names

State = Literal["waiting for sites", "running", "finished", "stalled", "failed"]
RequestKind = Literal["retired", "readmitted", "quarantined"]
ENDED = ("finished", "stalled", "failed")
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
# Why a run is told of a site what an operator asks for.
REASONS = {"quarantined": "its key was revoked"}
REQUEST = fields({"site": text(40), "kind": one_of(get_args(RequestKind))})


def write_state(folder: ServerFolder, row: Row) -> None:
    """Whole or not at all; it is rewritten every few seconds, and nothing is lost with it."""
    replace_file(folder.run / "state.json", to_json({"time": time.time(), **row}).encode())


def describe_peer(peer: Peer) -> Row:
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
    serving = lock_holder(folder.run / "serve.lock")
    path = folder.run / "state.json"
    if not path.exists():
        state = "waiting for sites" if serving else "not started"
        return {
            "state": state,
            "serving": serving is not None,
            "sites": [describe_peer(Peer(name)) for name in folder.members.names],
        }
    try:
        row = read_json(path)
        STATE(row, "state")
        check_site_names([site["site"] for site in row["sites"]])
    except (OSError, ValueError) as error:
        raise CorruptStorage(f"{path}: {error}: it can be deleted, nothing is lost with it") from None
    if serving is None and row["state"] not in ENDED:
        row["state"] = "stopped"
    sites = [{**describe_peer(Peer(site["site"])), **site} for site in row["sites"]]
    return {**clean_values({**row, "sites": sites}), "serving": serving is not None}


def read_run_names(folder: ServerFolder) -> tuple[str, ...]:
    """Names of the sites of a run, in the order in which it counts them: those that were listed, and who has joined."""
    notices = read_notices(folder.run) if folder.has_run else ()
    return (*folder.sites, *(notice.reason for notice in notices if notice.kind == "joined"))


def read_barred(folder: ServerFolder) -> dict[str, str]:
    """Who is quarantined or retired, and why, as the journal has it."""
    found: dict[int, str] = {}
    for notice in read_notices(folder.run) if folder.has_run else ():
        if notice.kind in ("quarantined", "retired"):
            found[notice.site] = f"{notice.kind}: {notice.reason}"
        elif notice.kind == "readmitted" and not found.get(notice.site, "").startswith("retired"):
            found.pop(notice.site, None)
    names = read_run_names(folder)
    return {names[site]: words for site, words in found.items() if 0 <= site < len(names)}


def read_strike_reasons(folder: ServerFolder) -> dict[str, list[str]]:
    """Why each site was struck, strike by strike, as the journal has it."""
    found = read_strikes(folder.run) if folder.has_run else {}
    names = read_run_names(folder)
    return {names[site]: reasons for site, reasons in found.items() if site < len(names)}


def ask_server(path: Path, site: str, kind: RequestKind) -> str:
    """Ask the server of a folder for something that concerns a site; when that will be done, in words."""
    folder = read_server(path)
    request(folder, site, kind)
    state = read_state(folder)
    when = "now" if state["serving"] else f"with: partita resume {path}"
    more = "" if state["state"] != "finished" else " (the run is finished: raise its rounds or updates first)"
    return f"{site} will be {kind} {when}{more}"


def request(folder: ServerFolder, site: str, kind: RequestKind) -> Path:
    """Leave a request that concerns a site in the server's folder; it is read when the server runs."""
    names = folder.members.names
    if site not in names:
        raise InputError(f"site {site!r}: there are {', '.join(names)}")
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

    def __call__(self, names: Sequence[str]) -> list[Notice]:
        """Those that concern sites of a run, given the names of these in its order; others wait until they join."""
        # What was handed out last time is in the journal by now: the run asks again only after that.
        for path in self._handed:
            path.unlink(missing_ok=True)
        paths = sorted(self._folder.requests.glob("*.json")) if self._folder.requests.is_dir() else []
        found = {path: self._read(path) for path in paths}
        self._handed = [path for path, row in found.items() if row["site"] in names]
        return [_as_notice(found[path], names) for path in self._handed]

    @staticmethod
    def _read(path: Path) -> Row:
        try:
            row = read_json(path)
            REQUEST(row, "request")
            return row
        except (OSError, ValueError) as error:
            raise CorruptStorage(f"{path}: is no request: {error}: delete it") from None


def _as_notice(row: Row, names: Sequence[str]) -> Notice:
    return Notice(names.index(row["site"]), row["kind"], REASONS.get(row["kind"], "as the operator asked"))
