"""The page of a run, served while the run goes on: to this machine only, and only to be read."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from partita.errors import InputError, StorageError
from partita.foundation.loopback import LoopbackHandler, LoopbackServer
from partita.foundation.plain import to_json
from partita.report.follower import Follower
from partita.report.page import build_contents, render_page

# Seconds between looks at the folder, and between signs of life for the browser.
LOOK, SIGN = 1.0, 2.0


@dataclass
class Channel:
    """What the page is told of a run, as server-sent events, and the listeners that wait for it."""

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
                self.contents = to_json(build_contents(self.follower.report()))
                self.number += 1
                self.changed.notify_all()

    def state(self) -> str:
        trouble = {"state": "lost", "words": self.trouble, "still": 0.0}
        return to_json(trouble if self.trouble else self.follower.state())

    def render(self) -> str:
        with self.changed:
            return render_page(self.follower.report(), live=True)

    def stream_events(self) -> Iterator[str]:
        """What one listener hears: the contents at once and whenever they change, the state more often."""
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

    @contextmanager
    def keep_looking(self) -> Iterator[None]:
        """Look at the folder again and again, in a thread. At the end, all who wait are let go."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(LOOK):
                self.look()

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            with self.changed:
                self.is_open = False
                self.changed.notify_all()
            thread.join()


class Handler(LoopbackHandler):
    """Answers GET of two paths: the page, and its stream of events."""

    server: "Server"

    def show(self, path: str) -> None:
        if path == "/":
            self.answer(HTTPStatus.OK, self.server.channel.render(), "text/html; charset=utf-8")
        elif path == "/events":
            self._stream()
        else:
            self.answer(HTTPStatus.NOT_FOUND, "There is only / here.\n")

    def _stream(self) -> None:
        self.begin(HTTPStatus.OK, "text/event-stream", {})
        for event in self.server.channel.stream_events():
            self.wfile.write(event.encode())


class Server(LoopbackServer):
    """Serves the page of one channel."""

    def __init__(self, port: int, channel: Channel):
        self.channel = channel
        super().__init__(port, Handler)


@contextmanager
def serve_page(follower: Follower, port: int = 0) -> Iterator[str]:
    """Serve a live page while the context lasts, and yield its address. Port 0 takes any port that is free."""
    channel = Channel(follower)
    try:
        server = Server(port, channel)
    except (OSError, OverflowError) as error:
        raise InputError(f"--port {port}: {getattr(error, 'strerror', error)}: use another port") from None
    with server.running() as url, channel.keep_looking():
        yield url
