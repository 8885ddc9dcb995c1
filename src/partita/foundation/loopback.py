"""Small HTTP servers for this machine only, and only to be read; nobody is kept out by those who are slow."""

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ADDRESS = "127.0.0.1"
# Connections at one time; seconds that one may take to send or to read something.
MOST_CONNECTIONS, PATIENCE = 24, 10.0


class LoopbackHandler(BaseHTTPRequestHandler):
    """Refuses what is not a GET for this address; `show` answers the rest."""

    server: "LoopbackServer"
    timeout = PATIENCE

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        self.server.heard(self.connection)
        port = self.server.server_port
        # Another site's name may be made to point here: its pages would then be allowed to read this one.
        if self.headers.get("Host") not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            self.answer(HTTPStatus.FORBIDDEN, "This is for 127.0.0.1 only.\n")
        elif self.command != "GET":
            self.answer(HTTPStatus.METHOD_NOT_ALLOWED, "GET only.\n", Allow="GET")
        else:
            return True
        return False

    def do_GET(self) -> None:
        self.show(self.path.partition("?")[0])

    def show(self, path: str) -> None:
        """What is there, by `answer`, or by `begin` and what follows."""
        raise NotImplementedError

    def answer(self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8", **headers: str) -> None:
        body = text.encode()
        self.close_connection = True
        self.begin(status, kind, {"Content-Length": str(len(body)), **headers})
        self.wfile.write(body)

    def begin(self, status: HTTPStatus, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        fixed = {"Content-Type": kind, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        for name, value in {**fixed, "X-Frame-Options": "DENY", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing: a line on standard error for every request helps nobody."""


class LoopbackServer(ThreadingHTTPServer):
    """A few connections at a time; those that are open do not keep the process.

    Whoever comes when all are taken is served: the oldest connection is closed whose request has not come yet, because
    on one machine a request comes at once; if all have come, the oldest of these. Browsers come back by themselves.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, port: int, handler: type[LoopbackHandler]):
        # Connections in the order in which they came, and whether their request has come.
        self._open: dict[socket.socket, bool] = {}
        self._lock = threading.Lock()
        super().__init__((ADDRESS, port), handler)

    def process_request(self, request: Any, address: Any) -> None:
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                silent = (known for known, has_asked in self._open.items() if not has_asked)
                oldest = next(silent, None) or next(iter(self._open))
                del self._open[oldest]
                # Its thread notices, and ends.
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = False
        super().process_request(request, address)

    def heard(self, request: socket.socket) -> None:
        """Its request has come."""
        with self._lock:
            if request in self._open:
                self._open[request] = True

    def process_request_thread(self, request: Any, address: Any) -> None:
        try:
            super().process_request_thread(request, address)
        finally:
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, address: Any) -> None:
        """Whoever goes away is not missed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, address)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve in a thread, at the address that is given, until the context ends."""
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        thread.start()
        try:
            yield self.url
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"
