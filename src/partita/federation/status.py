"""`partita status`: how a federation is doing, as plain values and in words."""

import time

from partita.federation.folders import ServerFolder
from partita.federation.state import read_barred, read_state, read_strike_reasons
from partita.foundation.plain import Row
from partita.foundation.text import clean
from partita.server.journals import read_unknown_kinds

# What a state has to say before there is a line about it.
PROGRESS = ("version", "total", "round", "accepted", "messages", "bytes_down", "bytes_up")


def read_status(folder: ServerFolder) -> Row:
    """What the server said last, and of each site whether it is `barred` from the run, and its strikes, with reasons.

    `unknown` are kinds of notices that a later version may have written.
    """
    state, barred, strikes = read_state(folder), read_barred(folder), read_strike_reasons(folder)
    sites = [
        {**row, "barred": barred.get(row["site"]), "strikes": strikes.get(row["site"], [])} for row in state["sites"]
    ]
    return {**state, "sites": sites, "unknown": read_unknown_kinds(folder.run) if folder.has_run else []}


def describe_progress(status: Row) -> list[str]:
    """How far the run is, in a line or two."""
    reason = f": {status['reason']}" if status.get("reason") else ""
    lines = [f"{status['state']}{reason}"]
    if all(status.get(name) is not None for name in PROGRESS):
        # Sites that were quarantined or away have sent less than was planned.
        of = "" if status["state"] == "finished" else f" of {status['total']}"
        lines.append(
            f"{status['version']}{of} updates, {status['round']:.1f} rounds; "
            f"accepted {status['accepted']:.2g} of the last; {status['messages']} messages, "
            f"{status['bytes_down']:,} bytes down, {status['bytes_up']:,} up"
        )
    return lines


def describe_problems(status: Row) -> list[str]:
    """What is wrong with sites, a line for each that has a problem, is quarantined or retired, or has strikes."""
    problems = [(row["site"], row["barred"] or row["problem"]) for row in status["sites"]]
    lines = [f"{site}: {problem}" for site, problem in problems if problem]
    for row in status["sites"]:
        if row["strikes"]:
            number = len(row["strikes"])
            times = f"{number} time{'s' if number > 1 else ''}"
            lines.append(f"{row['site']}: struck {times} so far, the last: {row['strikes'][-1]}")
    if status["unknown"]:
        kinds = ", ".join(clean(repr(kind), 60) for kind in status["unknown"][:5])
        lines.append(f"the journal holds notices that this version does not know, and does not show: {kinds}")
    return lines


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
        "strikes": len(row["strikes"]),
        "bytes down": row["bytes_down"],
        "bytes up": row["bytes_up"],
    }


def _status_word(row: Row) -> str:
    if row["barred"]:
        return str(row["barred"]).partition(":")[0]
    return "ready" if row["ready"] else "connected" if row["connected"] else "away"
