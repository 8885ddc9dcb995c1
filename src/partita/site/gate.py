"""The gate of a federation's site: which questions of a server it answers, after its person and policy were asked."""

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from partita._version import __version__
from partita.errors import EngineError, InputError, MalformedMessage, PolicyRefusal, StorageError
from partita.families import Family
from partita.foundation.csv_files import read_columns
from partita.foundation.text import MOST_REASON, clean
from partita.models import prior_of
from partita.models.base import count_parameters, prior_shapes
from partita.shards import agree_on_sizes
from partita.site.answering import answer_questions
from partita.site.audit import REFUSED, AuditLog, Reply
from partita.site.consent import Consent, digest_recipe, pinned
from partita.site.holder import Holder
from partita.site.latest import keep_posterior
from partita.site.policy import KINDS, Policy
from partita.site.settings import SITE, SiteSettings, read_site
from partita.wire.codec import decode_question, encode_answer
from partita.wire.messages import Compression, decode_task, encode_update
from partita.wire.naming import SiteNames
from partita.wire.questions import FOREIGN, QUESTIONS, Question
from partita.wire.recipe import Columns, Recipe
from partita.wire.tasks import Task

# All that a server hears of what is wrong with a site's data or settings.
CANNOT = "cannot answer; its own log says why"


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
        self._holder: Holder | None = None
        self._like: Family | None = None
        self._recipe: Recipe | None = None
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
        try:
            number, payload = int(request["site"]), request["payload"]
            if not isinstance(payload, bytes):
                raise TypeError("the payload is not bytes")
            text, digest, version = (str(request[name]) for name in ("recipe", "digest", "version"))
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedMessage(f"{kind}: cannot be read: {error!r}") from None
        compression: Compression = "float16" if request.get("compression") == "float16" else "none"
        holder, like, policy = self._ready(kind, number, text, digest, version)
        policy.check_kind(kind)
        policy.check_compression(compression)
        self._consent.count(kind, policy)
        if kind != "refine":
            question = decode_question(kind, payload, like)
            self._keep(request, question)
            return encode_answer(type(question), answer_questions(holder, {number: question})[number]), None
        task = decode_task(payload, like)
        if task.site != number:
            raise MalformedMessage(f"task: it is for site {task.site}, and this is site {number}")
        self._keep(request, task)
        (update,) = holder.worker.refine([task])
        return encode_update(update, compression), task.version

    def _keep(self, request: dict[str, Any], sent: Task | Question) -> None:
        """Keep the posterior that was sent, for predictions here. Without it, the site answers all the same."""
        assert self._recipe is not None
        with suppress(StorageError):
            keep_posterior(self.folder / "run", self._recipe, str(request.get("run", "")), sent)

    def _ready(self, kind: str, number: int, text: str, digest: str, version: str) -> tuple[Holder, Family, Policy]:
        """The data, ready for a question of this kind, with what densities are like, and the policy."""
        settings = read_site(self.folder)
        _check_version(version)
        self._consent.check(text, self._accepts)
        known = (number, text, digest, version, settings, _stamp(settings.data))
        recipe, policy = Recipe.parse(text), settings.policy
        if kind in KINDS and kind not in ("refine", *recipe.questions):
            raise PolicyRefusal("answers", f"the server asks for {kind!r}, for which the approved recipe has no use")
        if self._holder is None or known != self._known:
            self._holder = None
            check_recipe(recipe, settings)
            _check_digest(recipe, digest)
            like = prior_of(recipe.model, recipe.model.hyper)
            table = read_table(settings, recipe.columns)
            parameters = count_parameters(recipe.model, like)
            policy.check_rows(len(table[0]), parameters)
            policy.check_cells(
                dict(zip(recipe.columns.names, np.column_stack(table).T, strict=True)),
                [str(recipe.columns.target)] if recipe.columns.classes > 2 else [],
            )
            names = SiteNames((settings.name,), number)
            holder = Holder({number: table if recipe.model.takes_target else table[0]}, names, recipe.model)
            with names.told():
                counts = holder.load(replace(recipe.job, names=names), {})
                # Rows without anything, such as documents without words, do not count.
                policy.check_rows(counts[number], parameters)
                holder.prepare(agree_on_sizes(counts))
            self._holder, self._like, self._recipe = holder, like, recipe
            self._known = known
        assert self._like is not None
        return self._holder, self._like, policy


def _digest_of(request: dict[str, Any]) -> str:
    """Of the recipe that a message carries; nothing, if there is none that can be read."""
    try:
        return digest_recipe(pinned(str(request["recipe"])))
    except (KeyError, MalformedMessage):
        return ""


def check_recipe(recipe: Recipe, settings: SiteSettings) -> None:
    """Check a recipe against a site's policy, as far as that is possible without its data."""
    names = recipe.columns.names
    settings.policy.check_columns({name: settings.columns.get(name, name) for name in names})
    settings.policy.check_model(recipe.model_choice.name)
    # By shapes alone: a model that is too large must not be made to find that out.
    shapes = prior_shapes(recipe.model, recipe.model.hyper)
    settings.policy.check_parameters(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)))


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


def _check_digest(recipe: Recipe, digest: str) -> None:
    if recipe.digest != digest:
        raise EngineError(
            "this site builds another model from the server's settings: "
            "compare the versions of Python and Partita on both sides"
        )


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: {getattr(error, 'strerror', error)}: put the data there, or change `data` in site.toml"
        ) from None
    return found.st_mtime_ns, found.st_size


def read_table(settings: SiteSettings, columns: Columns) -> tuple[np.ndarray, ...]:
    """This site's features, scaled as everybody's are; and the target, if there is one."""
    unknown = sorted(set(settings.columns) - set(columns.names))
    if unknown:
        raise InputError(f"{settings.path / SITE}: [columns] {unknown[0]}: the federation has no such column")
    _, table = read_columns(settings.data, [settings.columns.get(name, name) for name in columns.names])
    X, *target = np.split(table, [len(columns.features)], axis=1)
    return columns.scale_rows(X), *(column[:, 0] for column in target if column.size)
