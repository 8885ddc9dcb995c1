"""Flower's processes: started with what a folder says, watched, started again, ended together."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partita.engines.flower import import_flower
from partita.errors import EngineError, InputError
from partita.federation.folders import ServerFolder, SiteSettings, held, holder, read_site, split_address
from partita.federation.resident import Resident
from partita.federation.state import ENDED, logger, read_state
from partita.telemetry import Row

LINK = "federation"
# Seconds to get ready, and to end in good order.
START, END = 60.0, 15.0
# How often a process that ends by itself is started again within ten minutes.
RESTARTS, WINDOW = 30, 600.0
# Seconds that a site keeps trying when it is refused: after a crash, Flower takes it for connected for another minute.
REFUSED, NOT_ACTIVATED = 120.0, "[code: 2004]"
# Seconds that a server may be without its app before another is started; and how often that is done.
WITHOUT_APP, ATTEMPTS = 20.0, 10


class Children:
    """Processes of one folder, each with a log of its own. They end with this one, however that ends."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        home = folder / "flower"
        home.mkdir(exist_ok=True)
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
        with log.open("ab") as stream:
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

    def flwr(self, *arguments: str) -> Any:
        """What Flower's own command answers, as JSON."""
        command = [str(Path(sys.executable).parent / "flwr"), *arguments, "--format", "json"]
        try:
            done = subprocess.run(
                command,
                env=self.environment,
                cwd=self._folder,
                capture_output=True,
                timeout=120,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"flwr {' '.join(arguments[:2])}: no answer within 120 s") from None
        text = done.stdout.decode(errors="replace")
        start = min((place for place in (text.find("{"), text.find("[")) if place >= 0), default=len(text))
        try:
            answer = json.loads(text[start:])
        except ValueError:
            words = _plain(text + done.stderr.decode(errors="replace"))
            raise EngineError(f"flwr {' '.join(arguments[:2])}: {words[-600:]}") from None
        if isinstance(answer, dict) and answer.get("success") is False:
            raise EngineError(f"flwr {' '.join(arguments[:2])}: {answer.get('error-message', answer)}")
        return answer


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
    with held(folder.run / "serve.lock"), ended_by_signals() as is_asked_to_end:
        children = Children(folder.run)
        try:
            return _served(folder, children, watch, is_asked_to_end)
        finally:
            children.close()


def _served(
    folder: ServerFolder, children: Children, watch: Callable[[Row], None], is_asked_to_end: Callable[[], bool]
) -> Row:
    stopped = {"state": "stopped"}
    _configure(folder)
    _check_port(folder.server.address)
    if not _start_link(folder, children, is_asked_to_end):
        return read_state(folder) | stopped
    for site in folder.sites:
        if is_asked_to_end():
            return read_state(folder) | stopped
        _register(folder, site, children)
    attempt, attempts, seen = _start_run(folder, children), 1, time.monotonic() + START
    while not _pause(0.3, is_asked_to_end):
        state = read_state(folder)
        if state.get("attempt") == attempt:
            watch(state)
            if state["state"] in ENDED:
                return state
        for name in children.ended():
            children.again(name)
        if holder(folder.run / "server.lock") is not None:
            seen = time.monotonic()
        elif time.monotonic() - seen > WITHOUT_APP:
            if attempts == ATTEMPTS:
                raise EngineError(f"the server's app ended {attempts} times: see {folder.run / 'log.jsonl'}")
            attempt, attempts, seen = _start_run(folder, children), attempts + 1, time.monotonic() + START
    return read_state(folder) | stopped


def _configure(folder: ServerFolder) -> None:
    home = folder.run / "flower"
    lines = [
        "[superlink]",
        f"default = {json.dumps(LINK)}",
        f"[superlink.{LINK}]",
        f"address = {json.dumps(folder.server.address)}",
        f"root-certificates = {json.dumps(str(folder.keys / 'ca.crt'))}",
    ]
    (home / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _check_port(address: str) -> None:
    host, port = split_address(address)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(f"address {address}: {error.strerror}: change [server] address") from None


def _start_link(folder: ServerFolder, children: Children, is_asked_to_end: Callable[[], bool]) -> bool:
    """Whether it is up; it is not, if somebody asked for an end meanwhile."""
    host, port = split_address(folder.server.address)
    keys = folder.keys
    secret = ("--superexec-auth-secret-file", str(keys / "secret"))
    children.start(
        "superlink", "flower-superlink", "--host", host, "--port", str(port),
        "--database", str(folder.run / "superlink.db"), "--ssl-certfile", str(keys / "server.pem"),
        "--ssl-keyfile", str(keys / "server.key"), "--ssl-ca-certfile", str(keys / "ca.crt"),
        "--enable-supernode-auth", "--isolation", "process", "--disable-runtime-dependency-installation", *secret,
    )  # fmt: skip
    until = time.monotonic() + START
    while not _is_up(folder.server.address, keys / "ca.crt"):
        if children.ended() or time.monotonic() > until:
            raise EngineError(f"Flower's SuperLink does not start: {children.last_words('superlink')}")
        if _pause(0.2, is_asked_to_end):
            return False
    children.start(
        "superexec", "flower-superexec", "--runtime-api-address", folder.server.address,
        "--root-certificates", str(keys / "ca.crt"), "--parent-pid", str(os.getpid()), *secret,
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


def _register(folder: ServerFolder, site: str, children: Children) -> None:
    """Tell Flower the key of a site; it refuses one that it knows already."""
    try:
        children.flwr("supernode", "register", str(folder.public_key(site)), LINK, "--name", site)
    except EngineError as error:
        if "already in use" not in str(error):
            raise


def _start_run(folder: ServerFolder, children: Children) -> str:
    attempt = uuid.uuid4().hex
    settings = f"folder={json.dumps(str(folder.path))} attempt={json.dumps(attempt)}"
    children.flwr("run", str(folder.path / "app"), LINK, "--run-config", settings)
    return attempt


def run_site(path: Path, say: Callable[[str], None]) -> None:
    """Be a site until somebody asks for an end, or the server refuses it."""
    import_flower()
    from partita.federation.site import Site
    from partita.runtime import cache_compilation

    settings = read_site(path)
    cache_compilation()
    site, log = Site(path), logger(path / "run", "log")

    def answer(kind: Any, asked: dict[str, Any]) -> dict[str, Any]:
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

    with (
        held(path / "run" / "site.lock"),
        ended_by_signals() as is_asked_to_end,
        tempfile.TemporaryDirectory(prefix="partita-") as private,
    ):
        resident = Resident(answer, Path(private) / "socket")
        children = Children(path / "run")
        try:
            say(f"site {settings.name}: looking for the server at {settings.server}")
            while not _is_up(settings.server, settings.certificate):
                if _pause(5.0, is_asked_to_end):
                    return
            _start_node(children, settings, Path(private) / "socket")
            began = refused = time.monotonic()
            while not _pause(0.3, is_asked_to_end):
                if not children.ended():
                    continue
                now, words = time.monotonic(), children.last_words("supernode")
                refused = refused if now - began < START else now
                log.warning("supernode ended", extra={"row": {"words": words}})
                if NOT_ACTIVATED in words and now - refused > REFUSED:
                    raise EngineError(
                        f"the server refuses this site: either its key, {settings.key}, is not the other half of "
                        f"sites/{settings.name}.pub there, or another process with that key is connected"
                    )
                say("refused, trying again" if NOT_ACTIVATED in words else "could not connect, trying again")
                if _pause(10.0, is_asked_to_end):
                    return
                # Raises, if another server is there now.
                _is_up(settings.server, settings.certificate)
                began = time.monotonic()
                children.again("supernode")
        finally:
            children.close()
            resident.close()


def _pause(seconds: float, is_asked_to_end: Callable[[], bool]) -> bool:
    """Wait; whether somebody asked for an end meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not is_asked_to_end():
        time.sleep(0.1)
    return is_asked_to_end()


def _start_node(children: Children, settings: SiteSettings, socket_path: Path) -> None:
    config = f"folder={json.dumps(str(settings.path))} socket={json.dumps(str(socket_path))}"
    children.start(
        "supernode", "flower-supernode", "--superlink", settings.server,
        "--root-certificates", str(settings.certificate), "--auth-supernode-private-key", str(settings.key),
        "--node-config", config, "--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(_free_port()),
    )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stop(path: Path) -> int | None:
    """Ask the server or the site of a folder to end, and wait until it has; its process, if there was one."""
    for name in ("serve.lock", "site.lock"):
        number = holder(path / "run" / name)
        if number:
            os.kill(number, signal.SIGTERM)
            until = time.monotonic() + 2 * END
            while holder(path / "run" / name) == number:
                if time.monotonic() > until:
                    raise EngineError(f"{path}: process {number} does not end")
                time.sleep(0.2)
            return number
    return None
