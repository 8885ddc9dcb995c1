"""Ends in good order: SIGTERM and Ctrl-C, noticed where it is safe to stop."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

IsEnding = Callable[[], bool]


@contextmanager
def notice_signals() -> Iterator[IsEnding]:
    """Gives a function that says whether SIGTERM or Ctrl-C has asked this process to end."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: received.append(n)) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pause(seconds: float, is_ending: IsEnding) -> bool:
    """Wait for so long, or until this process is to end; whether it is."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not is_ending():
        time.sleep(0.1)
    return is_ending()
