"""Who may speak for which site: which keys have come, were replaced, and were revoked.

`sites/NAME.pub` has the key that a site has now, and `sites/register.jsonl` what happened to keys since the folder was
made: a line for each site that was invited, each key that was replaced, with the signatures that say so, and each that
was revoked. Lines are only added. A revoked key stays in it for good.
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from partita.errors import CorruptStorage, PartitaError, StorageError
from partita.foundation.fields import fields, number, one_of, text
from partita.foundation.files import MOST_NOTES, open_private, read_file, sync_folder
from partita.foundation.foreign import parse_object
from partita.foundation.keys import canonical_key, read_public_key
from partita.foundation.locks import hold_lock
from partita.foundation.plain import Row

REGISTER, LOCK = "register.jsonl", "register.lock"
# Letters of a public key as a line has it, and of a signature.
LONGEST, MOST_SIGNATURE = 2000, 1000
EventName = Literal["invited", "rotated", "revoked"]
LINE = fields(
    {"time": number(0, most=1e12), "event": one_of(("invited", "rotated", "revoked")), "site": text(40)},
    {"key": text(LONGEST), "new": text(LONGEST), "by_old": text(MOST_SIGNATURE), "by_new": text(MOST_SIGNATURE)},
)
# Seconds after which keys are read again, though their folder seems to be as it was.
AGAIN = 1.0


@dataclass(frozen=True)
class Entry:
    """What happened to a key."""

    event: str
    site: str
    key: bytes
    new: bytes | None = None


class Register:
    """The lines of a folder of keys."""

    def __init__(self, sites: Path):
        self._sites, self._path = sites, sites / REGISTER

    def read(self) -> list[Entry]:
        """All that has happened, in order."""
        try:
            content = read_file(self._path, MOST_NOTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror or error}") from None
        lines = content.split(b"\n")
        # What a kill has cut off was never told of.
        return [self._read_line(number, line) for number, line in enumerate(lines[:-1], 1)]

    def _read_line(self, number: int, line: bytes) -> Entry:
        try:
            row = parse_object(line)
            LINE(row, "line")
            new = canonical_key(row["new"].encode()) if "new" in row else None
            return Entry(row["event"], row["site"], canonical_key(row["key"].encode()), new)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStorage(
                f"{self._path}: line {number}: {error}: nobody is let in before that is mended from a copy"
            ) from None

    def add(self, event: EventName, site: str, **about: str) -> None:
        """Add a line; it is on disk when this returns."""
        row: Row = {"time": round(time.time(), 3), "event": event, "site": site, **about}
        try:
            with hold_lock(self._sites / LOCK, 10.0):
                handle = open_private(self._path, os.O_RDWR | os.O_CREAT)
                try:
                    self._append(handle, json.dumps(row).encode() + b"\n")
                finally:
                    os.close(handle)
                sync_folder(self._sites)
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror or error}") from None

    @staticmethod
    def _append(handle: int, line: bytes) -> None:
        size = os.fstat(handle).st_size
        complete = os.pread(handle, size, 0).rfind(b"\n") + 1
        os.ftruncate(handle, complete)
        os.pwrite(handle, line, complete)
        os.fsync(handle)


class Members:
    """Who may come in now: the key of each site, read again when something in the folder of keys has changed.

    Args:
        sites: the folder.
        listed: names of sites that the federation's file lists.
    """

    def __init__(self, sites: Path, listed: tuple[str, ...]):
        self._sites, self._listed = sites, listed
        self._register = Register(sites)
        self._seen: tuple[object, float] = (None, 0.0)
        self._keys: dict[str, bytes] = {}
        self._invited: tuple[str, ...] = ()

    @property
    def invited(self) -> tuple[str, ...]:
        """Sites that were invited, in order."""
        self.current()
        return self._invited

    @property
    def names(self) -> tuple[str, ...]:
        """All sites, those that are listed first."""
        return (*self._listed, *self.invited)

    def current(self) -> dict[str, bytes]:
        """The key of each site that has one which is not revoked."""
        stamp, now = self._stamp(), time.monotonic()
        if stamp != self._seen[0] or now - self._seen[1] > AGAIN:
            self._read()
            self._seen = stamp, now
        return self._keys

    def _stamp(self) -> object:
        """What changes when a file is put in another's place, and when a line is added."""
        found = []
        for path in (self._sites, self._sites / REGISTER):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size))
        return tuple(found)

    def _read(self) -> None:
        entries = self._register.read()
        revoked = {entry.key for entry in entries if entry.event == "revoked"}
        self._invited = tuple(dict.fromkeys(entry.site for entry in entries if entry.event == "invited"))
        found = {name: self._read_key(name) for name in (*self._listed, *self._invited)}
        self._keys = {name: key for name, key in found.items() if key is not None and key not in revoked}

    def _read_key(self, name: str) -> bytes | None:
        """A site's key; None, where its file cannot be read, which may be about to be written."""
        try:
            return read_public_key(self._sites / f"{name}.pub")
        except PartitaError:
            return None

    def check(self) -> None:
        """That the keys of all who are not revoked can be read."""
        for name in self.names:
            read_public_key(self._sites / f"{name}.pub")

    def known_keys(self, site: str) -> dict[bytes, str]:
        """All keys that a site ever had, as far as is known here, and what became of each."""
        found: dict[bytes, str] = {}
        current = self._read_key(site)
        if current is not None:
            found[current] = "its key"
        for entry in self._register.read():
            if entry.site == site and entry.event == "rotated":
                found.setdefault(entry.key, "an earlier key")
            if entry.site == site and entry.event == "revoked":
                found[entry.key] = "a key that was revoked later"
        return found
