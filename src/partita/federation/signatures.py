"""The signatures of a run's updates: checked when they come, kept beside the journal, and checked again by anybody.

`run/signatures.jsonl` has a line for each update that came: what its site has signed, the signature, and the bytes that
it is of, unless these are many. Lines are only added.
"""

import base64
import binascii
import json
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from partita.errors import CorruptStorage, MalformedUpdate, StorageError
from partita.federation.agreements import find_model
from partita.federation.folders import ServerFolder
from partita.federation.state import read_run_names
from partita.foundation.fields import fields, maybe, text, whole
from partita.foundation.files import MOST_SETTINGS, make_folder, open_private, read_json, replace_file
from partita.foundation.foreign import parse_object
from partita.foundation.keys import fingerprint, is_signed_by
from partita.foundation.plain import Row
from partita.foundation.text import clean
from partita.models import prior_of
from partita.server.journals import read_update_payloads
from partita.site.consent import digest_recipe, pinned
from partita.wire.messages import decode_update, encode_update, largest
from partita.wire.signing import MOST_SIGNATURE, Statement
from partita.wire.tasks import Update

SIGNATURES, NAME = "signatures.jsonl", "name.json"
# Bytes of an update that are kept; of a longer one only the digest that is signed.
KEPT = 32_768
# Updates that are told one by one, of those whose signatures do not fit.
MOST_TOLD = 10
# Of a part of the prior that no Gaussian can be, a task of its own that no site is asked for.
OWN = "the server's own: what the prior is beside a Gaussian"
OTHER = "the journal has other numbers than were signed"
# Bytes of a line: those of an update in base64, and what is said of it.
MOST_LINE = 2 * KEPT
LINE = fields(
    {
        "site": text(40),
        "run": text(100),
        "recipe": text(64),
        "version": whole(),
        "digest": text(64),
        "key": text(100),
        "signature": text(2 * MOST_SIGNATURE),
        "payload": maybe(text(MOST_LINE)),
    }
)


def name_run(run: Path) -> str:
    """The name of the run in a folder, which it keeps over restarts: what sites sign for one run is of no other."""
    path = run / NAME
    try:
        row = read_json(path, MOST_SETTINGS)
        fields({"name": text(100)})(row, NAME)
        return str(row["name"])
    except FileNotFoundError:
        name = uuid.uuid4().hex
        replace_file(path, json.dumps({"name": name}).encode(), durable=True)
        return name
    except (OSError, ValueError) as error:
        raise CorruptStorage(f"{path}: {error}: restore it from a copy") from None


class Signatures:
    """Checks signatures as they come, and keeps those of updates.

    Args:
        folder: the server's, which knows who may sign for which site now.
    """

    def __init__(self, folder: ServerFolder):
        self._members = folder.members
        self._run, self._recipe = name_run(folder.run), digest_recipe(pinned(folder.recipe.text))
        self._path = folder.run / SIGNATURES
        self._new: list[bytes] = []

    @property
    def run(self) -> str:
        """What the server calls its run."""
        return self._run

    def check(self, site: str, kind: str, version: int | None, payload: bytes, signature: Any) -> str:
        """What is wrong with a site's signature of an answer, which may be anything; nothing, if it fits."""
        key = self._members.current().get(site)
        told = Statement.of(kind, self._run, site, self._recipe, version, payload)
        if not isinstance(signature, bytes) or len(signature) > MOST_SIGNATURE:
            return "its answer is not signed: compare Partita versions on both sides"
        if key is None or not is_signed_by(key, told.signed, signature):
            return (
                "its answer is not signed by its key, or is signed for another task, site, recipe or run: it was not "
                f"taken. Its key is the other half of sites/{site}.pub, and its name has to be the one in its site.toml"
            )
        if told.version is not None:
            self._new.append(_write_line(told, fingerprint(key), signature, payload))
        return ""

    def keep(self) -> None:
        """Wait until the signatures that were checked since the last time are on disk."""
        if not self._new:
            return
        try:
            make_folder(self._path.parent)
            handle = open_private(self._path, os.O_RDWR | os.O_CREAT)
            try:
                end = _find_end(handle)
                os.ftruncate(handle, end)
                os.pwrite(handle, b"".join(self._new), end)
                os.fdatasync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror or error}") from None
        self._new = []


def _find_end(handle: int) -> int:
    """Where the last whole line ends: a kill may have cut off what follows."""
    size = os.fstat(handle).st_size
    begin = max(0, size - MOST_LINE)
    return begin + os.pread(handle, size - begin, begin).rfind(b"\n") + 1


def _write_line(told: Statement, key: str, signature: bytes, payload: bytes) -> bytes:
    row = {
        "site": told.site,
        "run": told.run,
        "recipe": told.recipe,
        "version": told.version,
        "digest": told.digest,
        "key": key,
        "signature": base64.b64encode(signature).decode(),
        "payload": base64.b64encode(payload).decode() if len(payload) <= KEPT else None,
    }
    return json.dumps(row).encode() + b"\n"


@dataclass(frozen=True)
class Verdict:
    """What is to be said of the signature of one update in a journal.

    Args:
        number: of the update in the journal.
        site: the site's name.
        version: of the task that it answers.
        fits: whether its site has signed it.
        words: with which key, and what is known of its bytes; or what is wrong.
    """

    number: int
    site: str
    version: int
    fits: bool
    words: str

    def row(self) -> Row:
        return {
            "update": self.number, "site": self.site, "version": self.version, "fits": self.fits, "words": self.words,
        }  # fmt: skip


class Verifier:
    """Goes through the updates in a server's journal, and finds out of each whether its site has signed it."""

    def __init__(self, folder: ServerFolder):
        model = find_model(folder)
        self._folder, self._path = folder, folder.run / SIGNATURES
        self._members = folder.members
        self._run, self._recipe = name_run(folder.run), digest_recipe(pinned(folder.recipe.text))
        model = find_model(folder)
        self._like = prior_of(model, model.hyper)
        # Sites that the model has added to the run, whose updates are the server's own.
        self._own = range(len(folder.sites), len(folder.sites) + len(model.own_shards))
        # Whether what sites send is what the journal has, or a message from which that follows.
        chosen = folder.settings.choose(model)
        self._sends_factors = not chosen.solver.sends_message(chosen.expectation)
        # Whether the bytes that were sent can be made from the journal.
        self._is_whole = self._sends_factors and folder.server.compression == "none"
        self._keys: dict[str, dict[str, tuple[bytes, str]]] = {}

    def verdicts(self) -> Iterator[Verdict]:
        """A verdict on each update, in order."""
        names = read_run_names(self._folder)
        for number, site, version, payload in read_update_payloads(self._folder.run, largest(self._like)):
            name = names[site] if site < len(names) else str(site)
            if site in self._own:
                yield Verdict(number, name, version, True, OWN)
                continue
            fits, words = self._judge(name, site, version, payload)
            yield Verdict(number, name, version, fits, words)

    def _judge(self, name: str, site: int, version: int, kept: bytes) -> tuple[bool, str]:
        rows = list(self._find(name, version))
        found = [self._judge_line(name, site, row, kept) for row in rows]
        return max(found, default=(False, "it is not signed"), key=lambda one: one[0])

    @cached_property
    def _places(self) -> dict[tuple[str, int], list[int]]:
        """Where lines begin, by site and version."""
        places: dict[tuple[str, int], list[int]] = {}
        for place, row in self._read_lines():
            places.setdefault((row["site"], row["version"]), []).append(place)
        return places

    def _read_lines(self, start: int = 0, most: int | None = None) -> Iterator[tuple[int, Row]]:
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror or error}") from None
        with os.fdopen(handle, "rb") as stream:
            stream.seek(start)
            count = 0
            while (line := stream.readline(MOST_LINE + 1)).endswith(b"\n") and count != most:
                yield start, self._read_line(line)
                start, count = start + len(line), count + 1
            if len(line) > MOST_LINE:
                raise CorruptStorage(f"{self._path}: has a line of more than {MOST_LINE} bytes")

    def _read_line(self, line: bytes) -> Row:
        try:
            row = parse_object(line)
            LINE(row, "line")
            return row
        except ValueError as error:
            raise CorruptStorage(f"{self._path}: has a line that cannot be read: {error}") from None

    def _find(self, name: str, version: int) -> Iterator[Row]:
        for place in self._places.get((name, version), ()):
            for _, row in self._read_lines(place, 1):
                yield row

    def _judge_line(self, name: str, site: int, row: Row, kept: bytes) -> tuple[bool, str]:
        told = Statement("refine", row["run"], name, row["recipe"], row["version"], row["digest"])
        known = self._keys.setdefault(
            name, {fingerprint(key): (key, words) for key, words in self._members.known_keys(name).items()}
        )
        key, whose = known.get(row["key"], (b"", ""))
        signature = _decode(row["signature"])
        if not whose:
            return False, f"is signed with {row['key']}, which is no key of this site that is known here"
        if signature is None or not is_signed_by(key, told.signed, signature):
            return False, "its signature does not fit"
        if told.run != self._run:
            return False, "was signed for another run"
        if told.recipe != self._recipe:
            return False, "was signed under another recipe"
        problem, about = self._compare(site, told, row["payload"], kept)
        return (False, problem) if problem else (True, f"signed with {whose}{about}")

    def _compare(self, site: int, told: Statement, payload: str | None, kept: bytes) -> tuple[str, str]:
        """What is wrong with the bytes that are signed, beside what the journal has; and how far both were compared."""
        assert told.version is not None
        try:
            ours = decode_update(site, told.version, kept, self._like)
            sent = encode_update(_as_sent(ours)) if payload is None else _decode(payload)
            again = Statement.of("refine", told.run, told.site, told.recipe, told.version, sent or b"")
            if again.digest != told.digest and payload is not None:
                return "its bytes are not what was signed", ""
            if again.digest != told.digest:
                return (OTHER, "") if self._is_whole else ("", "; its bytes are not kept")
            theirs = decode_update(site, told.version, sent or b"", self._like)
        except MalformedUpdate as error:
            return f"cannot be read: {error.problem}", ""
        if not _agree(ours, theirs, self._sends_factors):
            return OTHER, ""
        return "", ""


def _as_sent(update: Update) -> Update:
    """An update as it was when it came, without when that was."""
    return replace(update, finished_at=0.0)


def _agree(ours: Update, theirs: Update, sends_factors: bool) -> bool:
    """Whether two updates say the same, as far as they are of one kind: a change follows from a message."""
    names = ("expected_log_prob", "steps", "outcome", "seconds", "hyper_gradient")
    same = all(repr(getattr(ours, name)) == repr(getattr(theirs, name)) for name in names)
    if not sends_factors:
        return same
    return same and encode_update(_as_sent(ours)) == encode_update(_as_sent(theirs))


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


@dataclass
class Tally:
    """Verdicts, summed up.

    Args:
        counts: how often each verdict was found, by site and words.
        missing: of how many updates it is not known who sent them.
        first: what is wrong with the first of them.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    missing: int = 0
    first: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.counts[verdict.site, verdict.words] += 1
        if not verdict.fits:
            self.missing += 1
            self.first = [*self.first, verdict][:MOST_TOLD]

    def row(self) -> Row:
        """As plain values."""
        sites = [{"site": site, "words": words, "updates": count} for (site, words), count in self.counts.items()]
        return {"updates": sum(self.counts.values()), "missing": self.missing, "sites": sites}

    def describe(self) -> list[str]:
        """In lines."""
        lines = [f"{clean(site)}: {count} updates: {words}" for (site, words), count in sorted(self.counts.items())]
        lines += [
            f"PROBLEM: update {one.number} of {clean(one.site)}, for task {one.version}: {one.words}"
            for one in self.first
        ]
        if not self.missing:
            own = sum(count for (_, words), count in self.counts.items() if words == OWN)
            others = f"; {own} are the server's own" if own else ""
            lines.append(f"all {sum(self.counts.values()) - own} updates of sites are signed by them{others}")
        return lines
