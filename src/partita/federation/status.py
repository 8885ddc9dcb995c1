"""`partita status`: how a federation is doing, as plain values and in words."""

import time

from partita.federation.folders import ServerFolder
from partita.federation.state import read_barred, read_state
from partita.foundation.plain import Row

# What a state has to say before there is a line about it.
PROGRESS = ("version", "total", "round", "accepted", "messages", "bytes_down", "bytes_up")


def read_status(folder: ServerFolder) -> Row:
    """What the server said last, and of each site whether it is `barred` from the run, and why."""
    state, barred = read_state(folder), read_barred(folder)
    return {**state, "sites": [{**row, "barred": barred.get(row["site"])} for row in state["sites"]]}


def describe_progress(status: Row) -> list[str]:
    """How far the run is, in a line or two."""
    reason = f": {status['reason']}" if status.get("reason") else ""
    lines = [f"{status['state']}{reason}"]
    if all(status.get(name) is not None for name in PROGRESS):
        lines.append(
            f"{status['version']} of {status['total']} updates, {status['round']:.1f} rounds; "
            f"accepted {status['accepted']:.2g} of the last; {status['messages']} messages, "
            f"{status['bytes_down']:,} bytes down, {status['bytes_up']:,} up"
        )
    return lines


def describe_problems(status: Row) -> list[str]:
    """What is wrong with sites, a line for each that has a problem, or that is quarantined or retired."""
    problems = [(row["site"], row["barred"] or row["problem"]) for row in status["sites"]]
    return [f"{site}: {problem}" for site, problem in problems if problem]


def tabulate_sites(status: Row) -> list[Row]:
    """A row for each site, to be shown."""
    return [_tabulate_site(row) for row in status["sites"]]


def _tabulate_site(row: Row) -> Row:
    seen = row.get("last_seen")
    return {
        "site": row["site"],
        "status": _status_word(row),
        "last seen": "never" if seen is None else f"{max(0.0, time.time() - seen):.0f} s ago",
        "updates": row["updates"],
        "staleness": row.get("staleness"),
        "accepted": row.get("accepted"),
        "bytes down": row["bytes_down"],
        "bytes up": row["bytes_up"],
    }


def _status_word(row: Row) -> str:
    if row["barred"]:
        return str(row["barred"]).partition(":")[0]
    return "ready" if row["ready"] else "connected" if row["connected"] else "away"
