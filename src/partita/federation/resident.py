"""A site that stays in memory: data and compiled programs are not loaded anew for every message.

Flower starts a process per message. It hands the message over through a socket that only this user can reach, and needs
nothing but this module for that.
"""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Record = dict[str, Any]
# The most bytes of a message, which is Flower's own limit, and of what is said about it.
LARGEST, HEAD = 2**31, 2**20


class Resident:
    """Answers what comes through a socket, until it is closed."""

    def __init__(self, answer: Callable[[Any, Record], Record], path: Path):
        self._answer, self._socket = answer, socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                try:
                    kind, request = _received(connection)
                except (OSError, ValueError, KeyError, TypeError):
                    continue  # it broke off, and is asked for again
                try:
                    reply = self._answer(kind, request)
                except Exception as error:
                    reply = {"error": f"{type(error).__name__} in the site's process"}
                with suppress(OSError):
                    _send(connection, "reply", reply)

    def close(self) -> None:
        self._socket.close()


def ask(path: Path, kind: str, request: Record) -> Record:
    """What the site in memory answers."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            _send(connection, kind, request)
            return _received(connection)[1]
    except (OSError, ValueError) as error:
        return {"error": f"EngineError: the site's process does not answer: {error}"}


def _send(connection: socket.socket, kind: str, record: Record) -> None:
    payload = record.get("payload", b"")
    texts = {key: value for key, value in record.items() if key != "payload"}
    head = json.dumps({"kind": kind, "record": texts, "bytes": len(payload)}).encode()
    connection.sendall(len(head).to_bytes(4, "little") + head + payload)


def _received(connection: socket.socket) -> tuple[str, Record]:
    with connection.makefile("rb") as stream:
        head = json.loads(stream.read(min(int.from_bytes(stream.read(4), "little"), HEAD)))
        if not 0 <= head["bytes"] <= LARGEST:
            raise ValueError("too large")
        payload = stream.read(head["bytes"])
        if len(payload) < head["bytes"]:
            raise ValueError("cut short")
    record = dict(head["record"])
    return str(head["kind"]), record if "error" in record else {**record, "payload": payload}
