"""The gate of a federation's site: which questions of a server it answers, after its person and policy were asked."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from partita._version import __version__
from partita.errors import EngineError, InputError, MalformedMessage, PolicyRefusal, StorageError
from partita.foundation.files import read_file, replace_file
from partita.foundation.text import MOST_REASON, clean
from partita.site.audit import REFUSED, AuditLog, Reply
from partita.site.consent import Consent, digest_recipe, pinned
from partita.site.held import Held
from partita.site.latest import keep_posterior
from partita.site.policy import KINDS, Policy
from partita.site.settings import read_site
from partita.wire.base_recipe import BaseRecipe
from partita.wire.codec import decode_question, encode_answer
from partita.wire.messages import Compression, decode_task, encode_update
from partita.wire.questions import FOREIGN, QUESTIONS, Question
from partita.wire.recipes import parse_recipe
from partita.wire.tasks import Task

# All that a server hears of what is wrong with a site's data or settings.
CANNOT = "cannot answer; its own log says why"
# Bytes of what digests are made with.
SECRET = 32


class Site:
    """Answers a server, from data that stay here. Settings and data are read again when their files change.

    Args:
        folder: the site's.
        accepts: whether the first recipe that the server asks under is accepted, where none has been.
    """

    def __init__(self, folder: Path, accepts: bool = False):
        self.folder, self._accepts = folder, accepts
        self._consent, self._audit = Consent(folder), AuditLog(folder / "run")
        self._known: tuple[Any, ...] = ()
        self._held: Held | None = None
        self._recipe: BaseRecipe | None = None
        # What was wrong last, in words that stay here: they may quote the data.
        self.problem = ""
        # What was written down of the latest reply.
        self.noted = Reply("")

    def answer(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        """The payload that was asked for; or what is wrong, as far as it is the server's business.

        This is all that leaves, and there is a line about it in the audit log by then.
        """
        about = Reply(kind, _digest_of(request), str(request.get("run", "")))
        reply: dict[str, Any]
        try:
            payload, version = self._answer(kind, request)
            reply, note = {"payload": payload}, replace(about, content=payload, version=version)
        except Exception as error:
            # It may quote what the server sent.
            self.problem = clean(f"{type(error).__name__}: {error}", MOST_REASON)
            words = _words_for_the_server(error, self.problem)
            reply = {"error": words}
            why = error.key if isinstance(error, PolicyRefusal) else type(error).__name__
            note = replace(about, outcome=REFUSED, content=words.encode(), why=why)
        self.noted = note
        try:
            self._audit.note(note)
        except StorageError as error:
            # Words that are always the same are all that leaves without a line.
            self.problem = clean(f"{type(error).__name__}: {error}", MOST_REASON)
            return {"error": CANNOT}
        return reply

    def _answer(self, kind: str, request: dict[str, Any]) -> tuple[bytes, int | None]:
        """What leaves; and the version of the posterior that a task is about."""
        if kind == FOREIGN:
            raise EngineError("this site answers Partita's server, and nothing else")
        # Before anything of it is read: reading a question can be work.
        if kind in QUESTIONS and kind not in KINDS:
            raise PolicyRefusal(
                "answers", f"the server asks for {clean(kind)!r}, which no site of a federation answers"
            )
        asked = Asked.read(kind, request)
        held, policy = self._ready(kind, asked)
        policy.check_kind(kind)
        policy.check_compression(asked.compression)
        self._consent.count(kind, policy)
        if kind != "refine":
            question = decode_question(kind, asked.payload, held.like)
            self._consent.pin(kind, repr(question))
            self._keep(request, asked, question)
            return encode_answer(type(question), held.answer(question)), None
        if held.like is None:
            raise MalformedMessage("task: comes before sites have agreed on what is computed")
        task = decode_task(asked.payload, held.like)
        if task.site != asked.site:
            raise MalformedMessage(f"task: it is for site {task.site}, and this is site {asked.site}")
        self._keep(request, asked, task)
        return encode_update(held.refine(task), asked.compression), task.version

    def _keep(self, request: dict[str, Any], asked: "Asked", sent: Task | Question) -> None:
        """Keep the posterior that was sent, for predictions here. Without it, the site answers all the same."""
        if self._recipe is None or asked.digest is None:
            return
        with suppress(StorageError):
            run = str(request.get("run", ""))
            keep_posterior(self.folder / "run", self._recipe, asked.agreed, asked.digest, run, sent)

    def _ready(self, kind: str, asked: "Asked") -> tuple[Held, Policy]:
        """The data, ready for a question of this kind; and the policy."""
        settings = read_site(self.folder)
        _check_version(asked.version)
        self._consent.check(asked.recipe, self._accepts)
        known = (asked.site, asked.recipe, settings, _stamp(settings.data))
        if self._held is None or known != self._known:
            self._held, self._recipe = None, parse_recipe(asked.recipe, self.folder)
            self._known = known
        assert self._recipe is not None
        if kind in KINDS and kind not in ("refine", *self._recipe.questions):
            raise PolicyRefusal("answers", f"the server asks for {kind!r}, for which the approved recipe has no use")
        self._consent.note_agreed(asked.agreed)
        if self._held is None:
            self._held = Held(self._recipe, settings, asked.site, read_secret(self.folder / "run"))
        self._held.open(asked.agreed, asked.digest, asked.capacity)
        return self._held, settings.policy


@dataclass(frozen=True)
class Asked:
    """What a message to a site says, beside its kind: read as what it has to be, and not believed."""

    site: int
    payload: bytes
    recipe: str
    version: str
    # Of what is computed, and what sites have agreed on: from when that is known.
    digest: str | None
    agreed: bytes | None
    # To how many rows shards of all sites are padded.
    capacity: int | None
    compression: Compression

    @classmethod
    def read(cls, kind: str, request: dict[str, Any]) -> Self:
        try:
            payload, agreed = request["payload"], request.get("agreed")
            if not isinstance(payload, bytes) or not isinstance(agreed, bytes | None):
                raise TypeError("the payload is not bytes")
            digest, capacity = request.get("digest"), request.get("capacity")
            return cls(
                int(request["site"]),
                payload,
                str(request["recipe"]),
                str(request["version"]),
                None if digest is None else str(digest),
                agreed,
                None if capacity is None else int(capacity),
                "float16" if request.get("compression") == "float16" else "none",
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedMessage(f"{kind}: cannot be read: {error!r}") from None


def read_secret(run: Path) -> bytes:
    """What this site makes digests of its data with, and tells nobody; made, if there is none yet."""
    path = run / "secret"
    try:
        secret = read_file(path, SECRET)
    except FileNotFoundError:
        secret = os.urandom(SECRET)
        replace_file(path, secret, durable=True)
    if path.is_symlink() or len(secret) != SECRET:
        raise StorageError(f"{path}: is not what this site has written: delete it, and another is made")
    return secret


def _digest_of(request: dict[str, Any]) -> str:
    """Of the recipe that a message carries; nothing, if there is none that can be read."""
    try:
        return digest_recipe(pinned(str(request["recipe"])))
    except (KeyError, MalformedMessage):
        return ""


def _words_for_the_server(error: Exception, problem: str) -> str:
    """What the server hears of an error: of a policy its key and why, of messages what is wrong, of data nothing."""
    if isinstance(error, PolicyRefusal):
        return clean(f"its policy refuses this ({error.key}): {error.told}", MOST_REASON)
    return problem if isinstance(error, EngineError | MalformedMessage) else CANNOT


def _check_version(version: str) -> None:
    if version != __version__:
        raise EngineError(
            f"the server has Partita {version}, this site has {__version__}: install the same version on both"
        )


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: {getattr(error, 'strerror', error)}: put the data there, or change `data` in site.toml"
        ) from None
    return found.st_mtime_ns, found.st_size
