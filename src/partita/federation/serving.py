"""`partita serve` and `resume`: a server with its metrics, watched until its run has ended."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Self

from partita.engines.peers import Peer
from partita.errors import InputError, RunMismatch
from partita.federation.folders import ServerFolder, read_server
from partita.federation.metrics import serve_metrics
from partita.federation.processes import serve
from partita.federation.state import read_barred
from partita.foundation.plain import Row, to_json
from partita.telemetry import Progress

# Exit codes of states in which a run may end; all others are 0.
EXIT_CODES = {"stalled": 3, "failed": 1}
MOST_MISSING = 5
AWAY = "not connected"


def open_server(path: Path, resume: bool) -> ServerFolder:
    """A server's folder, which has a run to go on with, or none yet."""
    folder = read_server(path)
    if folder.has_run and not resume:
        raise RunMismatch(f"{path}: there is a run already; go on with: partita resume {path}")
    if resume and not folder.has_run:
        raise InputError(f"{path}: there is no run yet; begin with: partita serve {path}")
    return folder


def run_server(folder: ServerFolder, watch: Callable[[Row], None], metrics: int | None = None) -> Row:
    """Run a server, with metrics at that port if there is one; its state in the end."""
    with nullcontext() if metrics is None else serve_metrics(folder, metrics).running():
        return serve(folder, watch)


def describe_end(folder: ServerFolder, state: Row) -> str:
    """How a run has ended, and how to go on with it."""
    if state["state"] == "finished":
        barred = read_barred(folder)
        without = "".join(f"; without {name}, which is {words}" for name, words in barred.items())
        return f"finished: {folder.result}{without}"
    reason = f"{state['reason']}. " if state.get("reason") else ""
    return f"{state['state']}: {reason}Go on with: partita resume {folder.path}"


class Watch:
    """Shows a server's state as it changes: a progress bar, or with `json` an object per change.

    Args:
        quiet: show nothing.
        json: takes a line of JSON for each change, instead of the bar.
    """

    def __init__(self, quiet: bool = False, json: Callable[[str], None] | None = None):
        self._bar, self._json = Progress("starting", quiet=quiet or json is not None), json
        self._last: tuple[object, ...] = ()
        # How each site was last told to be.
        self._told: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def __call__(self, state: Row) -> None:
        ready = [site["site"] for site in state["sites"] if site["ready"]]
        missing = [site["site"] for site in state["sites"] if not site["ready"]]
        self._tell_changes(state["sites"])
        done, note = state.get("version", 0), f"{len(ready)} of {len(state['sites'])} sites ready"
        if missing:
            note += f", not {', '.join(missing[:MOST_MISSING])}{' …' if len(missing) > MOST_MISSING else ''}"
        self._bar.show(done, state.get("total"), note, state["state"])
        change = (state["state"], done, tuple(ready), tuple(self._told.items()))
        if self._json is not None and change != self._last:
            self._json(to_json({"event": "state", **state}))
        self._last = change

    def _tell_changes(self, sites: list[Row]) -> None:
        """Say of sites by name that they have come, can work, cannot, or are away: a line for all of whom the same
        is true."""
        changed: dict[str, list[str]] = {}
        for site in sites:
            name, words = site["site"], _describe_presence(site)
            if words != self._told.get(name, AWAY):
                changed.setdefault(words, []).append(name)
            self._told[name] = words
        for words, names in changed.items():
            self._bar.say(f"{words}: {', '.join(names)}")


def _describe_presence(site: Row) -> str:
    if site["ready"]:
        return "ready"
    if not site["connected"]:
        return AWAY
    is_told = site["problem"] and site["problem"] != Peer.problem
    return f"connected, but cannot work ({site['problem']})" if is_told else "connected"
