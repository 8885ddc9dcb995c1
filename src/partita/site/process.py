"""`partita site`: a process that looks for its server, answers what it is asked, and goes on when connections break."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from partita.errors import EngineError
from partita.foundation.checks import import_extra
from partita.foundation.compilation import cache_compilations
from partita.foundation.locks import hold_lock, private_folder
from partita.foundation.logs import open_log
from partita.foundation.network import is_server_up
from partita.foundation.signals import IsEnding, notice_signals, pause
from partita.site.gate import Site
from partita.site.node import Answer, Disconnected, Node, Record, Refused
from partita.site.rotation import adopt_key, next_key
from partita.site.settings import SiteSettings, read_site
from partita.site.signing import sign_answers

Say = Callable[[str], None]
# Seconds that a site keeps trying when it is refused: after a crash, Flower takes it for connected for another minute.
REFUSED = 120.0
# Seconds between attempts to reach a server.
AGAIN = 5.0
# Where in its folder a site's process writes, and the lock that it holds.
RUN, LOCK = "run", "site.lock"


def run_site(path: Path, say: Say, accepts: bool = False) -> None:
    """Be a site until somebody asks for an end, or the server refuses it.

    Args:
        path: the site's folder.
        say: is told what happens.
        accepts: whether what the server proposes first is accepted, where nothing has been.
    """
    import_extra("flwr", "Flower", "flower")
    path = path.resolve()
    settings, run = read_site(path), path / RUN
    cache_compilations()
    with private_folder(run), hold_lock(run / LOCK), notice_signals() as is_ending:
        log = open_log(run, "log")

        def tell(words: str) -> None:
            log.info(words)
            say(words)

        site = Site(path, accepts)
        tell(f"site {settings.name}: looking for the server at {settings.server}")
        keep_connected(settings, sign_answers(site, log_answers(site, log, say)), tell, is_ending)


def keep_connected(settings: SiteSettings, answer: Answer, tell: Say, is_ending: IsEnding) -> None:
    """Connect, attend, and connect again; an error, if the server has refused this site for too long."""
    refused_since: float | None = None
    key = settings.key
    while not is_ending():
        if is_server_up(settings.server, settings.certificate):
            try:
                with Node(settings.server, settings.certificate, key, answer) as node:
                    refused_since = None
                    if key != settings.key:
                        adopt_key(settings)
                        key = settings.key
                    tell("connected")
                    _attend(node, settings, tell, is_ending)
            except Disconnected as error:
                tell(f"could not connect ({error}), trying again")
            except Refused:
                refused_since = refused_since or time.monotonic()
                if time.monotonic() - refused_since > REFUSED:
                    raise EngineError(
                        f"the server refuses this site: either its key, {settings.key}, is not the other half of "
                        f"sites/{settings.name}.pub there, or it was revoked, or another process with that key is "
                        "connected"
                    ) from None
                # The server may have taken the next key meanwhile.
                key = next_key(settings) if key == settings.key and next_key(settings).exists() else settings.key
                tell("refused, trying again")
        pause(AGAIN, is_ending)


def _attend(node: Node, settings: SiteSettings, tell: Say, is_ending: IsEnding) -> None:
    """Answer what comes, through interruptions, until somebody asks for an end; or `Refused`."""
    is_lost = False
    while not pause(AGAIN if is_lost else 0.0, is_ending):
        try:
            if is_lost:
                node.rejoin()
                tell("connected again")
            is_lost = False
            node.work(is_ending)
        except Disconnected as error:
            if not is_lost:
                tell(f"lost the connection ({error}), trying again")
            is_lost = True
            # Raises, if another server is there now.
            is_server_up(settings.server, settings.certificate)


def log_answers(site: Site, log: logging.Logger, say: Say) -> Answer:
    """What a site answers, with all that it was asked in its log: also what it refused, and why."""

    def answer(kind: str, asked: Record) -> Record:
        began = time.monotonic()
        reply = site.answer(kind, asked)
        row = {"seconds": round(time.monotonic() - began, 3), "bytes": len(reply.get("payload", b""))}
        if "error" in reply:
            log.warning(kind, extra={"row": {**row, "error": site.problem}})
            say(f"could not answer: {site.problem}")
        else:
            log.info(kind, extra={"row": row})
            say(f"{kind}: {row['seconds']:g} s")
        return reply

    return answer
