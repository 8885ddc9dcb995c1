"""Logs as lines of JSON, for their owner alone, in files that do not grow without end."""

import json
import logging
import logging.handlers
import os
from pathlib import Path
from typing import Any, TextIO

from partita.foundation.files import make_folder, open_private
from partita.foundation.plain import plain
from partita.foundation.text import MOST_REASON, clean

LOG_BYTES = 10_000_000


def open_log(folder: Path, name: str) -> logging.Logger:
    """JSON lines in `folder/name.jsonl`, three files of at most ten megabytes each."""
    make_folder(folder)
    log = logging.getLogger(f"partita.{name}.{folder}")
    if not log.handlers:
        handler = _PrivateLog(folder / f"{name}.jsonl", maxBytes=LOG_BYTES, backupCount=2)
        handler.setFormatter(_JsonLines())
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    return log


class _PrivateLog(logging.handlers.RotatingFileHandler):
    """A log that only its owner can read, and that is never written through a link."""

    def _open(self) -> TextIO:  # type: ignore[override]
        handle = open_private(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return os.fdopen(handle, "a", encoding="utf-8")


class _JsonLines(logging.Formatter):
    """`log.info("event", extra={"row": {...}})` as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        about = {"time": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps({**about, **clean_values(plain(getattr(record, "row", {})))})


def clean_values(value: Any) -> Any:
    """Plain values with every text in them cleaned and cut: sites wrote some of it, and a line of a log has to end."""
    if isinstance(value, dict):
        return {clean(key): clean_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_values(item) for item in value]
    return clean(value, MOST_REASON) if isinstance(value, str) else value
