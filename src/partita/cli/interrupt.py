"""Ctrl-C, which ends a command in good order."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer


@contextmanager
def suppress_interrupt(kept: str) -> Iterator[Any]:
    """End at Ctrl-C with a line that says how to go on: everything acknowledged is on disk.

    Gives a callback that ends a run at the next event, should the exception have got lost in somebody's destructor.
    """
    pressed = []

    def press(number: int, frame: Any) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    def look(event: Any) -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield look
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; {kept}", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGINT, before)
