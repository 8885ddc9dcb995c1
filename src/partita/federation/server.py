"""The server's run: the ledger, over Flower, with its journal in the federation's folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partita.engines.flower import Flower
from partita.engines.peers import Peer
from partita.errors import EngineError, PartitaError, Stalled
from partita.federation.fits import run_recipe
from partita.federation.folders import ServerFolder, read_server
from partita.federation.messenger import LinkLost
from partita.federation.signatures import Signatures
from partita.federation.state import Requests, State, describe_peer, write_state
from partita.foundation.keys import canonical_key
from partita.foundation.locks import hold_lock, lock_holder
from partita.foundation.logs import open_log
from partita.foundation.plain import Row
from partita.server.events import Event
from partita.wire.naming import SiteNames
from partita.wire.signing import RUN

# Seconds that are waited for an earlier server, which is about to find out that it is not wanted any more.
PATIENCE = 30.0


class Reporter:
    """Keeps the state file and the log up to date."""

    def __init__(self, folder: ServerFolder, attempt: str):
        self._folder, self._attempt = folder, attempt
        self._names = SiteNames(folder.sites)
        self._log = open_log(folder.run, "log")
        self._state: State = "waiting for sites"
        self._row: Row = {}
        self._sites: dict[str, Row] = {}
        self._peers: Sequence[Peer] = [Peer(name) for name in folder.members.names]
        self._problems: dict[str, str] = {}

    def watch(self, peers: Sequence[Peer]) -> None:
        """Called by the engine at every look."""
        # Without an attempt, somebody has started Flower's commands by hand.
        if self._attempt and lock_holder(self._folder.run / "serve.lock") is None:
            raise EngineError("`partita serve`, which started this run, has ended: go on with `partita resume`")
        self._peers = peers
        for peer in peers:
            if self._problems.get(peer.name) != peer.problem:
                self._problems[peer.name] = peer.problem
                level = self._log.warning if peer.problem else self._log.info
                level("site" if peer.problem else "site is ready", extra={"row": describe_peer(peer)})
        self.write()

    def __call__(self, event: Event) -> None:
        """Called with every fold."""
        self._state = "running"
        row = event.row()
        self._row = {**row, "replayed": event.replayed}
        # Until the first look at the sites of a run that is resumed, who has joined is not known here.
        names = {peer.site: peer.name for peer in self._peers if peer.site is not None}
        for work in event.work:
            known = {"staleness": work.staleness, "accepted": event.accepted, "seconds": work.seconds}
            self._sites[names.get(work.site, str(work.site))] = known
        if not event.replayed:
            called = [names.get(site, str(site)) for site in event.sites]
            about = {"names": called, "refused": event.refused, "problems": event.problems}
            self._log.info("fold", extra={"row": {**row, **about, "quarantined": dict(event.quarantined)}})
        self.write()

    def warn(self, words: str) -> None:
        """What looks wrong in the tables of sites."""
        self._log.warning("tables", extra={"row": {"problem": words}})

    def end(self, state: State, reason: str = "") -> None:
        self._state = state
        self._log.info(state, extra={"row": {"reason": reason}})
        self.write(reason)

    def write(self, reason: str = "") -> None:
        sites = [{**describe_peer(peer), **self._sites.get(peer.name, {})} for peer in self._peers]
        row = {"attempt": self._attempt, "state": self._state, "reason": reason, **self._row, "sites": sites}
        write_state(self._folder, row)


def run(grid: Any, path: Path, attempt: str) -> None:
    """Run, or carry on with the run, in a federation's folder.

    Args:
        grid: a `Messenger`, or whatever else takes messages to sites.
        path: the folder.
        attempt: what `partita serve` calls this run of the app.
    """
    folder = read_server(path)
    reporter = Reporter(folder, attempt)
    try:
        with hold_lock(folder.run / "server.lock", PATIENCE):
            reporter.write()
            _run(grid, folder, reporter)
    except Stalled as error:
        reporter.end("stalled", str(error))
    except LinkLost:
        # Whoever has started this starts another, with another link.
        reporter.end("waiting for sites", "Flower's SuperLink was lost, and is being started again")
    except Exception as error:
        reporter.end("failed", f"{type(error).__name__}: {error}")
        if not isinstance(error, PartitaError):
            raise
    else:
        reporter.end("finished")


def _run(grid: Any, folder: ServerFolder, reporter: Reporter) -> None:
    server = folder.server
    members, signatures = folder.members, Signatures(folder)
    members.check()
    engine = Flower(
        grid,
        {**folder.recipe.greeting, RUN: signatures.run},
        folder.recipe.tell_agreed,
        # Before a run all sites have to be there whose tables are agreed on.
        minimum=0 if folder.has_run else None if folder.recipe.settled is None else server.minimum,
        timeout=server.timeout,
        patience=server.patience,
        gather=server.gather,
        compression=server.compression,
        is_known=lambda node: canonical_key(node.public_key) == members.current().get(node.name),
        requests=Requests(folder),
        invited=lambda: members.invited,
        watch=reporter.watch,
        notary=signatures,
    )
    run_recipe(folder, engine, [reporter], reporter.warn)
