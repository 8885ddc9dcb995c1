"""The page of a run, served while the run goes on: to this machine only, and only to be read."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from partita.errors import InputError, StorageError
from partita.report.follower import Follower
from partita.report.page import contents, page
from partita.telemetry import to_json

ADDRESS = "127.0.0.1"
# Seconds between looks at the folder, and between signs of life.
LOOK, SIGN = 1.0, 2.0
# Pages and listeners at one time; seconds that a listener may take to read.
MOST_CONNECTIONS, PATIENCE = 24, 10.0


@dataclass
class Channel:
    """What there is to say, as events of a stream, and who waits for it."""

    follower: Follower
    changed: threading.Condition = field(default_factory=threading.Condition)
    number: int = 0
    contents: str = ""
    # Why the journal cannot be read, if it cannot.
    trouble: str = ""
    is_open: bool = True

    def __post_init__(self) -> None:
        self.look()

    def look(self) -> None:
        """Read what is new; a journal that cannot be read now may be readable soon."""
        with self.changed:
            try:
                is_new, self.trouble = self.follower.read(), ""
            except StorageError as error:
                is_new, self.trouble = False, str(error)
            if is_new or not self.contents:
                self.contents = to_json(contents(self.follower.report()))
                self.number += 1
                self.changed.notify_all()

    def state(self) -> str:
        trouble = {"state": "lost", "words": self.trouble, "still": 0.0}
        return to_json(trouble if self.trouble else self.follower.state())

    def page(self) -> str:
        with self.changed:
            return page(self.follower.report(), live=True)

    def messages(self) -> Iterator[str]:
        """For one listener: the contents at once and whenever they change, the state more often."""
        heard = 0
        while self.is_open:
            with self.changed:
                if self.number == heard:
                    self.changed.wait(SIGN)
                state, number = self.state(), self.number
            if number > heard:
                yield f"event: contents\ndata: {self.contents}\n\n"
            yield f"event: state\ndata: {state}\n\n"
            heard = number

    def close(self) -> None:
        with self.changed:
            self.is_open = False
            self.changed.notify_all()


class Handler(BaseHTTPRequestHandler):
    """GET of two paths, by a browser that means this address."""

    server: "Server"
    timeout = PATIENCE

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        port = self.server.server_port
        # Another site's name may be made to point here: its pages would then be allowed to read this one.
        if self.headers.get("Host") not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            self._answer(HTTPStatus.FORBIDDEN, "This is for 127.0.0.1 only.\n")
        elif self.command != "GET":
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "GET only.\n", Allow="GET")
        else:
            return True
        return False

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            self._answer(HTTPStatus.OK, self.server.channel.page(), "text/html; charset=utf-8")
        elif path == "/events":
            self._stream()
        else:
            self._answer(HTTPStatus.NOT_FOUND, "There is only / here.\n")

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8", **headers: str) -> None:
        body = text.encode()
        self.close_connection = True
        self._begin(status, kind, {"Content-Length": str(len(body)), **headers})
        self.wfile.write(body)

    def _begin(self, status: HTTPStatus, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        fixed = {"Content-Type": kind, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        for name, value in {**fixed, "X-Frame-Options": "DENY", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self) -> None:
        self._begin(HTTPStatus.OK, "text/event-stream", {})
        for message in self.server.channel.messages():
            self.wfile.write(message.encode())

    def log_message(self, *_: object) -> None:
        """Not a line on standard error for every request."""


class Server(ThreadingHTTPServer):
    """A few connections at a time; those that are open do not keep the process."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, channel: Channel):
        self.channel = channel
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((ADDRESS, port), Handler)

    def process_request(self, request: Any, address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, address)
            return
        request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n")
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, address: Any) -> None:
        try:
            super().process_request_thread(request, address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, address: Any) -> None:
        """Whoever goes away is not missed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, address)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"


@contextmanager
def served(follower: Follower, port: int = 0) -> Iterator[str]:
    """The address of a live page, which is there while the context lasts. Port 0: any that is free."""
    channel = Channel(follower)
    try:
        server = Server(port, channel)
    except (OSError, OverflowError) as error:
        raise InputError(f"--port {port}: {getattr(error, 'strerror', error)}: use another port") from None
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK):
            channel.look()

    threads = [threading.Thread(target=work, daemon=True) for work in (server.serve_forever, look)]
    for thread in threads:
        thread.start()
    try:
        yield server.url
    finally:
        ended.set()
        channel.close()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join()
