"""What left a site: a line for each reply, on disk before the reply leaves, chained so that changes are noticed.

A line is a JSON object with fields of bounded length. `before` is the SHA-256 of the line before, so that whoever takes
a line out, or changes one, has to write all later ones anew. How many lines there are, and the digest of the last, is
in a second file, so that lines taken from the end are missed too.
"""

import errno
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partita.errors import CorruptStorage, StorageError
from partita.foundation.fields import fields, maybe, number, one_of, text, whole
from partita.foundation.files import MOST_SETTINGS, make_folder, open_private, read_json, replace_file
from partita.foundation.foreign import parse_object
from partita.foundation.plain import Row
from partita.foundation.text import MOST_REASON, clean
from partita.site.settings import read_site

LOG, HEAD = "audit.jsonl", "audit.head"
# Bytes of a line, and letters of a word in one. No line comes near to that.
MOST_LINE, MOST_WORD = 4096, 60
# What the first line has for the digest of the line before.
NOTHING = "0" * 64
# What became of a question: an answer left, words left that say why not; or a line was cut off by a kill or a crash.
OUTCOMES = SENT, REFUSED, TORN = "sent", "refused", "torn"
# A time beyond the year 8900 has no date.
MOST_TIME = 2.2e11
WORD, DIGEST = text(MOST_WORD), text(64)
LINE = fields(
    {
        "line": whole(1),
        "time": number(0, most=MOST_TIME),
        "kind": WORD,
        "outcome": one_of(OUTCOMES),
        "size": whole(),
        "digest": DIGEST,
        "recipe": DIGEST,
        "run": WORD,
        "version": maybe(whole()),
        "why": WORD,
        "before": DIGEST,
    }
)
TIP = fields({"lines": whole(1), "digest": DIGEST})
# How many problems of one log are told.
MOST_PROBLEMS = 10
# The last line may be on disk without what says so: with the line that tells of a torn one, two.
LATE = 2


@dataclass(frozen=True)
class Reply:
    """What is about to leave, and what is known of what it answers.

    Args:
        kind: what was asked.
        recipe: digest of the recipe under which was asked; nothing, where none could be read.
        run: the server's own name for its run.
        outcome: whether an answer leaves, or words that say why there is none.
        content: the bytes that leave.
        version: how many updates the posterior of a task had taken.
        why: the key of the policy, or the kind of error, for which there is no answer.
    """

    kind: str
    recipe: str = ""
    run: str = ""
    outcome: str = SENT
    content: bytes = b""
    version: int | None = None
    why: str = ""


class AuditLog:
    """The log of a site's folder `run`, which one process at a time appends to."""

    def __init__(self, run: Path):
        self._path, self._head = run / LOG, run / HEAD

    def note(self, reply: Reply) -> None:
        """Write a line about what is about to leave; it is on disk when this returns, or there is a `StorageError`."""
        try:
            make_folder(self._path.parent)
            handle = open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                self._append(handle, reply)
            finally:
                os.close(handle)
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror or error}") from None

    def _append(self, handle: int, reply: Reply) -> None:
        end = os.fstat(handle).st_size
        start = max(0, end - (LATE + 2) * MOST_LINE)
        complete, ended, torn = os.pread(handle, end - start, start).rpartition(b"\n")
        if start and not ended:
            raise CorruptStorage(f"{self._path}: has a line of more than {MOST_LINE} bytes")
        last = complete.split(b"\n")[-LATE - 1 :] if ended else []
        lines, digest = (_read_line(last[-1])["line"], _digest(last[-1])) if last else (0, NOTHING)
        digests = {lines - i: _digest(line) for i, line in enumerate(reversed(last))}
        tip = self._read_tip()
        if problem := find_missing(lines, tip, digests):
            raise CorruptStorage(
                f"{self._path}: {problem}: nothing is answered. Find out why, with partita site audit; to begin a new "
                f"log, move {LOG} and {HEAD} elsewhere, and keep them"
            )
        if lines and (tip is None or tip["lines"] < lines):
            # A kill came between. It is mended before anything else, or such kills would add up.
            self._note_tip(lines, digest)
        new = b""
        if torn:
            # What it was to tell of has not left: a line is on disk before that.
            os.ftruncate(handle, end - len(torn))
            end -= len(torn)
            lines, digest, new = _extend(lines, digest, new, Reply("", outcome=TORN, content=torn))
        lines, digest, new = _extend(lines, digest, new, reply)
        try:
            written = 0
            while written < len(new):
                written += os.write(handle, new[written:])
            os.fsync(handle)
            self._note_tip(lines, digest)
        except OSError:
            # Unless the head already tells of the new line: without it, lines would seem to be missing.
            if self._read_tip() != {"lines": lines, "digest": digest}:
                os.ftruncate(handle, end)
            raise

    def _note_tip(self, lines: int, digest: str) -> None:
        replace_file(self._head, json.dumps({"lines": lines, "digest": digest}).encode(), durable=True)

    def _read_tip(self) -> Row | None:
        try:
            tip = read_json(self._head, MOST_SETTINGS)
            TIP(tip, HEAD)
            return tip
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CorruptStorage(f"{self._head}: {error}") from None

    def read(self, show: Callable[[Row], object]) -> "Summary":
        """Go through the whole log, check it, and sum up; `show` is given line by line."""
        found = Summary()
        digests: dict[int, str] = {}
        try:
            for content, is_whole in self._read_lines():
                if not is_whole:
                    found.torn_bytes = len(content)
                    break
                row = found.check(content)
                if row is not None:
                    found.add(row)
                    show(row)
                digests[found.lines] = found.digest
                digests.pop(found.lines - LATE - 1, None)
            found.complain(find_missing(found.lines, self._read_tip(), digests))
        except CorruptStorage as error:
            found.complain(str(error))
        except FileNotFoundError:
            # Without a log, nothing has left; unless something says that there was one.
            found.complain(find_missing(0, self._read_tip(), {}))
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror or error}") from None
        return found

    def _read_lines(self) -> Iterator[tuple[bytes, bool]]:
        """Lines without their ends; and whether they had one."""
        handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as stream:
            while content := stream.readline(MOST_LINE + 1):
                if len(content) > MOST_LINE:
                    raise CorruptStorage(f"{self._path}: has a line of more than {MOST_LINE} bytes")
                yield content.removesuffix(b"\n"), content.endswith(b"\n")


@dataclass
class Summary:
    """What an audit log says in sum, and what is wrong with it.

    Args:
        lines: how many there are.
        digest: of the last line. Whoever writes it down elsewhere will notice a log that was written anew.
        first: when the first line was written; None, if there is none.
        last: when the last line was.
        sent: answers that left, by kind.
        sent_bytes: their bytes, by kind.
        refused: words that left in the place of answers, by kind and reason.
        refused_bytes: their bytes.
        torn: lines that were cut off, by kills and crashes; nothing had left of what they were to tell of.
        torn_bytes: of a line at the end that is cut off.
        problems: what is wrong with the log itself.
    """

    lines: int = 0
    digest: str = NOTHING
    first: float | None = None
    last: float | None = None
    sent: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused_bytes: int = 0
    torn: int = 0
    torn_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    def complain(self, problem: str) -> None:
        if problem and len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)

    def check(self, content: bytes) -> Row | None:
        """A line, checked against the line before; None, if it is none."""
        self.lines += 1
        before, self.digest = self.digest, _digest(content)
        try:
            row = _read_line(content)
        except CorruptStorage as error:
            self.complain(f"line {self.lines}: {error}")
            return None
        if row["before"] != before or row["line"] != self.lines:
            self.complain(f"line {self.lines}: does not follow from the line before: lines were changed or taken out")
        return row

    def add(self, row: Row) -> None:
        self.first = row["time"] if self.first is None else self.first
        self.last = row["time"]
        if row["outcome"] == SENT:
            self.sent[row["kind"]] += 1
            self.sent_bytes[row["kind"]] += row["size"]
        elif row["outcome"] == REFUSED:
            self.refused[row["kind"], row["why"]] += 1
            self.refused_bytes += row["size"]
        else:
            self.torn += 1

    def row(self) -> Row:
        """As plain values."""
        return {
            "lines": self.lines,
            "digest": self.digest,
            "first": self.first,
            "last": self.last,
            "sent": {
                kind: {"answers": count, "bytes": self.sent_bytes[kind]} for kind, count in sorted(self.sent.items())
            },
            "refused": [
                {"kind": kind, "why": why, "replies": count} for (kind, why), count in sorted(self.refused.items())
            ],
            "refused_bytes": self.refused_bytes,
            "torn": self.torn,
            "torn_bytes": self.torn_bytes,
            "problems": self.problems,
        }


def find_missing(lines: int, tip: Row | None, digests: dict[int, str]) -> str:
    """What is wrong with the end of a log, given what was noted of it, and the digests of its last lines by number."""
    if tip is None:
        return f"{HEAD} is missing, and perhaps lines at the end" if lines > LATE else ""
    if tip["lines"] > lines:
        return f"{tip['lines'] - lines} lines are missing from the end"
    if digests.get(tip["lines"]) != tip["digest"]:
        return f"its end is not the one that {HEAD} knows: lines were changed, or written by somebody else"
    return ""


def read_audit(folder: Path, show: Callable[[Row], object]) -> Summary:
    """Check and sum up the audit log of a site's folder; `show` is given line by line."""
    return AuditLog(read_site(folder).path / "run").read(show)


def describe_line(row: Row) -> Row:
    """A line as a row of a table, with digests cut short."""
    return {
        "line": row["line"],
        "time": _show_time(row["time"]),
        "asked": clean(row["kind"]),
        "outcome": row["outcome"] + (f": {clean(row['why'])}" if row["why"] else ""),
        "size": row["size"],
        "digest": clean(row["digest"][:12]),
        "recipe": clean(row["recipe"][:12]),
        "version": row["version"],
    }


def describe_summary(found: Summary) -> list[str]:
    """What a log says in sum, and what is wrong with it, in lines."""
    if not found.lines and not found.problems:
        return ["nothing has left this site yet"]
    span = "" if found.first is None else f", {_show_time(found.first)} to {_show_time(found.last)}"
    lines = [f"lines: {found.lines}{span}"]
    lines += [
        f"left: {clean(kind)}: answers: {count}, bytes: {found.sent_bytes[kind]:,}"
        for kind, count in sorted(found.sent.items())
    ]
    lines += [
        f"refused: {clean(kind)}: {count}, because of: {clean(why)}"
        for (kind, why), count in sorted(found.refused.items())
    ]
    if found.refused:
        lines.append(f"bytes of words that left in place of answers: {found.refused_bytes:,}")
    if found.torn or found.torn_bytes:
        times = found.torn + (found.torn_bytes > 0)
        lines.append(f"lines cut off by a kill or a crash, of what had not left yet: {times}")
    lines += [f"PROBLEM: {clean(problem, MOST_REASON)}" for problem in found.problems]
    if not found.problems:
        lines.append("every line follows from the one before")
    return [*lines, f"digest of the last line: {found.digest}"]


def _show_time(seconds: float | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _extend(lines: int, digest: str, before: bytes, reply: Reply) -> tuple[int, str, bytes]:
    """One more line."""
    row = {
        "line": lines + 1,
        "time": round(time.time(), 3),
        "kind": clean(reply.kind, MOST_WORD),
        "outcome": reply.outcome,
        "size": len(reply.content),
        "digest": hashlib.sha256(reply.content).hexdigest(),
        "recipe": clean(reply.recipe, 64),
        "run": clean(reply.run, MOST_WORD),
        "version": reply.version,
        "why": clean(reply.why, MOST_WORD),
        "before": digest,
    }
    line = json.dumps(row).encode()
    if len(line) >= MOST_LINE:
        raise OSError(errno.EFBIG, "a line would be too long")
    return lines + 1, _digest(line), before + line + b"\n"


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _read_line(content: bytes) -> dict[str, Any]:
    try:
        row = parse_object(content)
        LINE(row, "line")
        return row
    except ValueError as error:
        raise CorruptStorage(f"cannot be read: {error}") from None
