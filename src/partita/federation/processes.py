"""A server's processes, started with what its folder says, watched, started again, and ended together."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from partita.engines.flower import import_flower
from partita.errors import EngineError
from partita.federation.control import Control
from partita.federation.folders import ServerFolder
from partita.federation.link import HERE
from partita.federation.state import ENDED, read_state
from partita.foundation.files import open_private
from partita.foundation.locks import hold_lock, lock_holder, private_folder
from partita.foundation.network import check_port, find_free_port, is_server_up
from partita.foundation.plain import Row
from partita.foundation.signals import IsEnding, notice_signals, pause

STOPPED = {"state": "stopped"}
# What the process with Flower's SuperLink is called.
LINK = "superlink"
# Seconds to get ready, and to end in good order.
START, END = 60.0, 15.0
# How often a process that ends by itself is started again within ten minutes.
RESTARTS, WINDOW = 30, 600.0
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
        self._running: dict[str, subprocess.Popen[bytes]] = {}
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

    def find_ended(self) -> list[str]:
        """Names of processes that have ended."""
        return [name for name, process in self._running.items() if process.poll() is not None]

    def restart(self, name: str) -> None:
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


def serve(folder: ServerFolder, watch: Callable[[Row], None]) -> Row:
    """Run a server until its run has ended, or somebody asks for an end; what its state was then."""
    import_flower()
    with private_folder(folder.run), hold_lock(folder.run / "serve.lock"), notice_signals() as is_ending:
        children = Children(folder.run)
        try:
            return _run_processes(folder, children, watch, is_ending)
        finally:
            children.close()


def _run_processes(folder: ServerFolder, children: Children, watch: Callable[[Row], None], is_ending: IsEnding) -> Row:
    """The link first, then what runs at the server."""

    def is_ending_while_watched() -> bool:
        watch(_as_starting(read_state(folder)))
        return is_ending()

    check_port(folder.server.address)
    port = find_free_port()
    if not _start_link(folder, children, port, is_ending_while_watched):
        return read_state(folder) | STOPPED
    with closing(Control(folder, port)) as control:
        folder.members.check()
        return _keep_app_running(folder, children, control, watch, is_ending)


def _keep_app_running(
    folder: ServerFolder,
    children: Children,
    control: Control,
    watch: Callable[[Row], None],
    is_ending: IsEnding,
) -> Row:
    """See to it that the server's app is there until its run has ended."""
    registered: set[tuple[str, bytes]] = set()
    _register_members(folder, control, registered)
    attempt, attempts, seen = _start_run(control), 1, time.monotonic() + START
    while not pause(0.3, is_ending):
        _register_members(folder, control, registered)
        state = read_state(folder)
        is_ours = state.get("attempt") == attempt
        watch(state if is_ours else _as_starting(state, control.connected()))
        if is_ours and state["state"] in ENDED:
            return state
        for name in children.find_ended():
            children.restart(name)
            if name == LINK and _wait_for_link(children, control.address, folder, is_ending):
                # It knows nobody, and no run: the app has ended with the first one.
                registered.clear()
                seen = time.monotonic() - 2 * WITHOUT_APP
        if lock_holder(folder.run / "server.lock") is not None:
            seen = time.monotonic()
        elif time.monotonic() - seen > WITHOUT_APP:
            if attempts == ATTEMPTS:
                raise EngineError(f"the server's app ended {attempts} times: see {folder.run / 'log.jsonl'}")
            attempt, attempts, seen = _start_run(control), attempts + 1, time.monotonic() + START
    return read_state(folder) | STOPPED


def _register_members(folder: ServerFolder, control: Control, known: set[tuple[str, bytes]]) -> None:
    """Tell Flower of keys that have come."""
    for member in folder.members.current().items():
        if member not in known:
            control.register(*member)
            known.add(member)


def _as_starting(before: Row, connected: frozenset[str] = frozenset()) -> Row:
    """Who was there before is not known to be there now, nor whether it has the problem still."""
    unknown = {"ready": False, "problem": ""}
    sites = [{**row, **unknown, "connected": row["site"] in connected} for row in before["sites"]]
    return {**before, "state": "starting", "sites": sites}


def _wait_for_link(children: Children, here: str, folder: ServerFolder, is_ending: IsEnding) -> bool:
    """Whether it is up; it is not, if somebody asked for an end meanwhile."""
    until = time.monotonic() + START
    while not is_server_up(here, folder.keys / "ca.crt"):
        if LINK in children.find_ended() or time.monotonic() > until:
            raise EngineError(f"Flower's SuperLink does not start: {children.last_words(LINK)}")
        if pause(0.2, is_ending):
            return False
    return True


def _start_link(folder: ServerFolder, children: Children, port: int, is_ending: IsEnding) -> bool:
    """Whether it is up; it is not, if somebody asked for an end meanwhile."""
    children.start(LINK, sys.executable, "-m", "partita.federation.link", str(folder.path), str(port))
    here, authority = f"{HERE}:{port}", folder.keys / "ca.crt"
    if not _wait_for_link(children, here, folder, is_ending):
        return False
    children.start(
        "superexec", "flower-superexec", "--runtime-api-address", here, "--root-certificates", str(authority),
        "--parent-pid", str(os.getpid()), "--superexec-auth-secret-file", str(folder.keys / "secret"),
    )  # fmt: skip
    return True


def _start_run(control: Control) -> str:
    attempt = uuid.uuid4().hex
    control.start_run(attempt)
    return attempt


def stop(path: Path) -> int | None:
    """Ask the server or the site of a folder to end, and wait until it has; its process, if there was one."""
    for name in ("serve.lock", "site.lock"):
        number = lock_holder(path / "run" / name)
        if number:
            try:
                os.kill(number, signal.SIGTERM)
            except (OSError, OverflowError):
                raise EngineError(f"{path}: {name} names process {number}, which cannot be ended from here") from None
            until = time.monotonic() + 2 * END
            while lock_holder(path / "run" / name) == number:
                if time.monotonic() > until:
                    raise EngineError(f"{path}: process {number} does not end: wait, or end it with kill -9 {number}")
                time.sleep(0.2)
            return number
    return None
