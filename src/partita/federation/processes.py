"""A server's processes, started with what its folder says, watched, started again, ended together; and a site's."""

import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from partita.engines.flower import import_flower
from partita.errors import EngineError, InputError
from partita.federation.control import Control
from partita.federation.folders import ServerFolder, SiteSettings, held, holder, private, read_site, split_address
from partita.federation.link import HERE
from partita.federation.node import Answer, Disconnected, Node, Record, Refused
from partita.federation.state import ENDED, logger, read_state
from partita.foundation.files import open_private
from partita.foundation.plain import Row
from partita.wire.questions import Question

STOPPED = {"state": "stopped"}
# Seconds to get ready, and to end in good order.
START, END = 60.0, 15.0
# How often a process that ends by itself is started again within ten minutes.
RESTARTS, WINDOW = 30, 600.0
# Seconds that a site keeps trying when it is refused: after a crash, Flower takes it for connected for another minute.
REFUSED = 120.0
# Seconds between looks for messages, and between attempts to reach a server.
POLL, AGAIN = 0.5, 5.0
# Seconds that a server may be without its app before another is started; and how often that is done.
WITHOUT_APP, ATTEMPTS = 20.0, 10


class Children:
    """Processes of one folder, each with a log of its own. They end with this one, however that ends."""

    def __init__(self, folder: Path):
        self._folder = folder
        home = folder / "flower"
        home.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
            "PYTHONUNBUFFERED": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        }
        self._commands: dict[str, Sequence[str]] = {}
        self._running: dict[str, subprocess.Popen] = {}
        self._began: dict[str, list[float]] = {}
        # Where in its log each one's own words begin.
        self._from: dict[str, int] = {}

    def start(self, name: str, *command: str) -> None:
        self._commands[name] = command
        log = self._folder / f"{name}.log"
        self._began.setdefault(name, []).append(time.monotonic())
        launcher = [sys.executable, "-m", "partita.federation.child", str(os.getpid())]
        with os.fdopen(open_private(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as stream:
            self._from[name] = stream.tell()
            # In a session of its own: Ctrl-C is for this process, which ends the others in good order.
            self._running[name] = subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self._folder,
                start_new_session=True,
            )

    def ended(self) -> list[str]:
        return [name for name, process in self._running.items() if process.poll() is not None]

    def again(self, name: str) -> None:
        """Start one anew that has ended; not for ever."""
        recent = [began for began in self._began[name] if time.monotonic() - began < WINDOW]
        if len(recent) > RESTARTS:
            words = f"{self.last_words(name)} (see {self._folder / name}.log)"
            raise EngineError(f"{name} ended {len(recent)} times within {WINDOW / 60:g} minutes: {words}")
        self.start(name, *self._commands[name])

    def last_words(self, name: str) -> str:
        """The end of what the one that was started last has said, in one line."""
        with (self._folder / f"{name}.log").open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(self._from[name], size - 10_000))
            return _plain(stream.read().decode(errors="replace"))[-600:]

    def close(self) -> None:
        """Those that were started last end first."""
        for process in reversed(self._running.values()):
            process.terminate()
        until = time.monotonic() + END
        for process in self._running.values():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _plain(text: str) -> str:
    """Without colours and runs of blanks."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text)).strip()


@contextmanager
def ended_by_signals() -> Iterator[Callable[[], bool]]:
    """SIGTERM and Ctrl-C ask for an end, and are noticed where it is safe."""
    asked: list[int] = []
    before = {number: signal.signal(number, lambda n, _: asked.append(n)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve(folder: ServerFolder, watch: Callable[[Row], None]) -> Row:
    """Run a server until its run has ended, or somebody asks for an end; what its state was then."""
    import_flower()
    with private(folder.run), held(folder.run / "serve.lock"), ended_by_signals() as is_asked_to_end:
        children = Children(folder.run)
        try:
            return _served(folder, children, watch, is_asked_to_end)
        finally:
            children.close()


def _served(
    folder: ServerFolder, children: Children, watch: Callable[[Row], None], is_asked_to_end: Callable[[], bool]
) -> Row:
    def is_asked() -> bool:
        watch(_starting(read_state(folder)))
        return is_asked_to_end()

    _check_port(folder.server.address)
    port = _free_port()
    if not _start_link(folder, children, port, is_asked):
        return read_state(folder) | STOPPED
    with closing(Control(folder, port)) as control:
        for site in folder.sites:
            control.register(site)
        return _attended(folder, children, control, watch, is_asked_to_end)


def _attended(
    folder: ServerFolder,
    children: Children,
    control: Control,
    watch: Callable[[Row], None],
    is_asked_to_end: Callable[[], bool],
) -> Row:
    """See to it that the server's app is there until its run has ended."""
    attempt, attempts, seen = _start_run(control), 1, time.monotonic() + START
    while not _pause(0.3, is_asked_to_end):
        state = read_state(folder)
        is_ours = state.get("attempt") == attempt
        watch(state if is_ours else _starting(state))
        if is_ours and state["state"] in ENDED:
            return state
        for name in children.ended():
            children.again(name)
        if holder(folder.run / "server.lock") is not None:
            seen = time.monotonic()
        elif time.monotonic() - seen > WITHOUT_APP:
            if attempts == ATTEMPTS:
                raise EngineError(f"the server's app ended {attempts} times: see {folder.run / 'log.jsonl'}")
            attempt, attempts, seen = _start_run(control), attempts + 1, time.monotonic() + START
    return read_state(folder) | STOPPED


def _starting(before: Row) -> Row:
    """Who was there before is not known to be there now."""
    return {**before, "state": "starting", "sites": [{**row, "ready": False} for row in before["sites"]]}


def _check_port(address: str) -> None:
    host, port = split_address(address)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(f"address {address}: {error.strerror}: change [server] address") from None


def _start_link(folder: ServerFolder, children: Children, port: int, is_asked_to_end: Callable[[], bool]) -> bool:
    """Whether it is up; it is not, if somebody asked for an end meanwhile."""
    children.start("superlink", sys.executable, "-m", "partita.federation.link", str(folder.path), str(port))
    here, authority = f"{HERE}:{port}", folder.keys / "ca.crt"
    until = time.monotonic() + START
    while not _is_up(here, authority):
        if children.ended() or time.monotonic() > until:
            raise EngineError(f"Flower's SuperLink does not start: {children.last_words('superlink')}")
        if _pause(0.2, is_asked_to_end):
            return False
    children.start(
        "superexec", "flower-superexec", "--runtime-api-address", here, "--root-certificates", str(authority),
        "--parent-pid", str(os.getpid()), "--superexec-auth-secret-file", str(folder.keys / "secret"),
    )  # fmt: skip
    return True


def _is_up(address: str, certificate: Path) -> bool:
    """Whether the server is there, and is the one that the certificate speaks for."""
    host, port = split_address(address)
    try:
        context = ssl.create_default_context(cafile=str(certificate))
    except (OSError, ValueError) as error:
        raise InputError(f"{certificate}: is no certificate ({error})") from None
    try:
        with socket.create_connection((host, port), 5) as plain, context.wrap_socket(plain, server_hostname=host):
            return True
    except ssl.SSLCertVerificationError as error:
        raise EngineError(
            f"{certificate} does not speak for the server at {address} ({error.verify_message}): "
            "ask whoever runs it for the federation's ca.crt"
        ) from None
    except OSError:
        return False


def _start_run(control: Control) -> str:
    attempt = uuid.uuid4().hex
    control.start_run(attempt)
    return attempt


def run_site(path: Path, say: Callable[[str], None], accepts: bool = False) -> None:
    """Be a site until somebody asks for an end, or the server refuses it.

    Args:
        path: the site's folder.
        say: is told what happens.
        accepts: whether what the server proposes first is accepted, where nothing has been.
    """
    import_flower()
    from partita.federation.site import Site
    from partita.foundation.runtime import cache_compilation

    path = path.resolve()
    settings = read_site(path)
    cache_compilation()
    with private(path / "run"), held(path / "run" / "site.lock"), ended_by_signals() as is_asked_to_end:
        log = logger(path / "run", "log")
        answer = logged(Site(path, accepts), log, say)

        def tell(words: str) -> None:
            log.info(words)
            say(words)

        tell(f"site {settings.name}: looking for the server at {settings.server}")
        refused: float | None = None
        while not is_asked_to_end():
            if not _is_up(settings.server, settings.certificate):
                _pause(AGAIN, is_asked_to_end)
                continue
            try:
                with Node(settings.server, settings.certificate, settings.key, answer) as node:
                    refused = None
                    tell("connected")
                    _attend(node, settings, tell, is_asked_to_end)
            except Disconnected as error:
                tell(f"could not connect ({error}), trying again")
            except Refused:
                refused = refused or time.monotonic()
                if time.monotonic() - refused > REFUSED:
                    raise EngineError(
                        f"the server refuses this site: either its key, {settings.key}, is not the other half of "
                        f"sites/{settings.name}.pub there, or another process with that key is connected"
                    ) from None
                tell("refused, trying again")
            _pause(AGAIN, is_asked_to_end)


def logged(site: Any, log: logging.Logger, say: Callable[[str], None]) -> Answer:
    """What a site answers, with all that it was asked in its log: also what it refused, and why."""

    def answer(kind: Question, asked: Record) -> Record:
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


def _attend(
    node: Node, settings: SiteSettings, tell: Callable[[str], None], is_asked_to_end: Callable[[], bool]
) -> None:
    """Answer what comes, through interruptions, until somebody asks for an end; or `Refused`."""
    is_lost = False
    while not _pause(AGAIN if is_lost else POLL, is_asked_to_end):
        try:
            if is_lost:
                node.rejoin()
                tell("connected again")
            is_lost = False
            while node.work() and not is_asked_to_end():
                pass
        except Disconnected as error:
            if not is_lost:
                tell(f"lost the connection ({error}), trying again")
            is_lost = True
            # Raises, if another server is there now.
            _is_up(settings.server, settings.certificate)


def _pause(seconds: float, is_asked_to_end: Callable[[], bool]) -> bool:
    """Wait; whether somebody asked for an end meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not is_asked_to_end():
        time.sleep(0.1)
    return is_asked_to_end()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stop(path: Path) -> int | None:
    """Ask the server or the site of a folder to end, and wait until it has; its process, if there was one."""
    for name in ("serve.lock", "site.lock"):
        number = holder(path / "run" / name)
        if number:
            try:
                os.kill(number, signal.SIGTERM)
            except (OSError, OverflowError):
                raise EngineError(f"{path}: {name} names process {number}, which cannot be ended from here") from None
            until = time.monotonic() + 2 * END
            while holder(path / "run" / name) == number:
                if time.monotonic() > until:
                    raise EngineError(f"{path}: process {number} does not end")
                time.sleep(0.2)
            return number
    return None
