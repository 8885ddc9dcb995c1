"""Sites of a federation, over Flower: each has a key, holds its data, and answers when it is there."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np

from partita.engines.peers import Asked, Notary, Peer
from partita.errors import EngineError, InputError, MalformedMessage, Stalled
from partita.foundation.checks import check_one_of, check_positive, import_extra, is_whole
from partita.models import AbstractModel, prior_of
from partita.server.completion import complete_updates, read_answer
from partita.shards import agree_on_sizes
from partita.site.answering import answer_questions
from partita.site.holder import Holder
from partita.wire import questions as q
from partita.wire.codec import decode_answer, encode_question, largest_message
from partita.wire.engine import address
from partita.wire.job import Job
from partita.wire.messages import Arrival, Compression, Notice, encode_task, largest
from partita.wire.naming import SiteNames
from partita.wire.questions import ANSWERS, RECORD, Answer, Question
from partita.wire.signing import SIGNATURE
from partita.wire.tasks import Task, Update

COMPARE = "compare Partita versions on both sides"
# Seconds between looks at who is there.
LOOK = 2.0


@dataclass
class Flower:
    """Messages over a Flower `Grid`, which does not wait: who answers first is folded first.

    A site that does not answer, or cannot, counts as away; the others go on. As soon as it is connected and says that
    it can work, it is asked again. It is known by the name that its key was registered under.

    Args:
        grid: what Flower gives a ServerApp.
        greeting: what every message carries: how sites build the model, and which one it has to be.
        tell_agreed: what messages carry beside it once there is a job: what sites have agreed on before.
        minimum: sites that have to be there before a run begins; all of them, if not given. None have to be where a run
            goes on: some may have been retired.
        timeout: seconds that a site may take for one task.
        patience: seconds without any good update, after which a run stops with `Stalled`; it can be resumed.
        gather: seconds that are waited for all sites once the minimum is there.
        poll: seconds between looks at what came.
        compression: "float16" halves what is sent of float32 densities, and keeps three digits of them.
        is_known: whether a node is one of ours: its name, and the key that it has proved to have.
        requests: what an operator has asked for since the last look, as notices, given the names of a run's sites.
        invited: names of sites that may join while a run goes on.
        watch: called at every look, with all peers.
        notary: checks that answers are signed by their sites, if they have to be.
    """

    grid: Any
    greeting: Mapping[str, str] = field(default_factory=dict)
    tell_agreed: Callable[[Job], Mapping[str, Any]] = lambda job: {}
    minimum: int | None = None
    timeout: float = 600.0
    patience: float = 1800.0
    gather: float = 60.0
    poll: float = 0.25
    compression: Compression = "none"
    is_known: Callable[[Any], bool] = bool
    requests: Callable[[Sequence[str]], list[Notice]] = lambda names: []
    invited: Callable[[], Sequence[str]] = tuple
    watch: Callable[[Sequence[Peer]], object] = len
    notary: Notary | None = None
    _connected: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        limits = {"timeout": self.timeout, "patience": self.patience, "gather": self.gather, "poll": self.poll}
        check_positive("Flower: ", **limits)
        check_one_of("Flower: ", get_args(Compression), compression=self.compression)
        if self.minimum is not None and not is_whole(self.minimum, 0):
            raise InputError(f"Flower: minimum: expected a number of sites, got {self.minimum!r}")

    def connect(
        self, shards: Sequence[Any], names: SiteNames | None = None, model: AbstractModel | None = None
    ) -> None:
        """Shards are names of sites: data are where those are. Sites know the model by the recipe in the greeting."""
        if not all(isinstance(name, str) for name in shards) or len(set(shards)) < len(shards):
            raise InputError("shards: expected the names of sites, each once: their data stay there")
        if self.minimum is not None and self.minimum > len(shards):
            raise InputError(f"Flower: minimum is {self.minimum}, and there are {len(shards)} sites")
        self.peers, self._connected = [Peer(name, site) for site, name in enumerate(shards)], True
        self._like = None if model is None else prior_of(model, model.hyper)
        # Sites that were invited and are not part of the run; and the one that the run was told of.
        self._newcomers: dict[str, Peer] = {}
        self._joining: str | None = None
        self._asked: dict[str, Asked] = {}
        self._notices: list[Arrival] = []
        self._answers: dict[int, Answer] = {}
        self._refusals: dict[str, str] = {}
        self._opened = self._heard = time.monotonic()
        self._looked = -np.inf
        self._assembled = False
        # What sites have agreed on, and to how many rows each pads; and data that the model adds, which are here.
        self._agreed: Mapping[str, Any] = {}
        self._sizes: Mapping[int, int] = {}
        self._own: Holder | None = None

    def open(self, job: Job, shards: Sequence[Any]) -> None:
        if not self._connected:
            self.connect(shards, job.names, job.model)
        self._like = prior_of(job.model, job.model.hyper)
        self._agreed = self.tell_agreed(job)
        if self._agreed:
            # They have to look whether they can work that way.
            for peer in (*self.peers, *self._newcomers.values()):
                peer.ready, peer.not_before = False, 0.0
            self._looked = -np.inf
        self._assemble()
        counts = {site: peer.rows for site, peer in enumerate(self.peers) if peer.ready and peer.rows}
        own = dict(enumerate(shards[len(self.peers) :], len(self.peers)))
        if own:
            self._own = Holder({}, job.names)
            counts |= self._own.load(replace(job, reading=None), own)
        self._sizes = agree_on_sizes(counts) if counts else {}
        if self._own is not None:
            self._own.prepare(self._sizes)

    def _assemble(self) -> None:
        """Wait for sites; the run needs some to begin with."""
        least, before = len(self.peers) if self.minimum is None else self.minimum, 0
        while (ready_count := sum(peer.ready for peer in self.peers)) < len(self.peers):
            if ready_count > before:
                self._heard = time.monotonic()
            before = ready_count
            if ready_count >= least and time.monotonic() - self._opened > self.gather:
                break
            if time.monotonic() - self._heard > self.patience:
                missing = ", ".join(f"{peer.name} ({peer.problem})" for peer in self.peers if not peer.ready)
                raise Stalled(
                    f"only {ready_count} of at least {least} sites came within {self.patience:g} s: {missing}"
                )
            self._look()
        self._heard, self._assembled = time.monotonic(), True

    def submit(self, tasks: Sequence[Task], at: float) -> None:
        now = time.monotonic()
        own = [task for task in tasks if self._is_own(task.site)]
        wanted = []
        for task in tasks:
            if self._is_own(task.site):
                continue
            peer = self.peers[task.site]
            if peer.can_work:
                wanted.append((Asked(peer, task, now), encode_task(task, self.compression)))
            else:
                self._miss(peer)
        self._push(wanted)
        if self._own is not None and own:
            updates = complete_updates(own, self._own.worker.refine(own))
            self._notices += [replace(update, finished_at=time.monotonic() - self._opened) for update in updates]

    def _is_own(self, site: int) -> bool:
        """Whether the data of a site are here, because the model adds it to the run."""
        return self._own is not None and site in self._own.sources

    def _miss(self, peer: Peer) -> None:
        assert peer.site is not None
        peer.missed = True
        self._notices.append(Notice(peer.site, "away", peer.problem or "is not connected"))

    def _number(self, peer: Peer) -> int:
        """A site's number in the run; of one that is not part of it, the number that it would have."""
        return len(self.peers) if peer.site is None else peer.site

    def _push(self, wanted: Sequence[tuple[Asked, bytes]]) -> None:
        if not wanted:
            return
        from flwr.app import ConfigRecord, Message, RecordDict

        messages = []
        for asked, payload in wanted:
            peer = asked.peer
            assert peer.node is not None
            size = self._sizes.get(self._number(peer))
            asked.node = peer.node
            record = ConfigRecord(
                {
                    **self.greeting,
                    **self._agreed,
                    **({} if size is None else {"capacity": size}),
                    "compression": self.compression,
                    "site": self._number(peer),
                    "payload": payload,
                }
            )
            messages.append(
                Message(
                    RecordDict({RECORD: record}),
                    dst_node_id=peer.node,
                    message_type=f"query.{asked.kind}",
                    ttl=self.timeout,
                )
            )
            peer.tasks += asked.kind == "refine"
            peer.bytes_down += len(payload)
        for (asked, _), number in zip(wanted, self.grid.push_messages(messages), strict=True):
            if number:
                self._asked[number] = asked
            else:
                self._note_failure(asked, "Flower did not take the message")

    def collect(self) -> list[Arrival]:
        while True:
            self._notices += self.requests([peer.name for peer in self.peers])
            self._look()
            self._introduce()
            # Sites that come and go, or say that they can work and then fail, are no answer.
            if time.monotonic() - self._heard > self.patience:
                raise Stalled(f"no update for {self.patience:g} s; the run can be resumed. {self._where_all_are()}")
            if self._notices:
                if self.notary is not None:
                    self.notary.keep()
                arrivals, self._notices = self._notices, []
                return arrivals

    def _introduce(self) -> None:
        """Tell the run of a site that was invited and can work, one at a time: it says so by `join`.

        Whether it can work it has said itself, at its gate, under the recipe and what the others have agreed on.
        """
        ready = [name for name, peer in self._newcomers.items() if peer.can_work]
        if self._own is not None:
            for name in ready:
                self._newcomers[name].lost("cannot join: this model adds data of its own behind those of all sites")
            return
        if ready and self._joining is None:
            self._joining = ready[0]
            self._notices.append(Notice(len(self.peers), "joined", self._joining))

    def join(self, site: int, name: str) -> None:
        peer = self._newcomers.pop(name, None) or Peer(name)
        peer.site, self._joining = site, None
        self.peers.append(peer)

    def _where_all_are(self) -> str:
        return "; ".join(f"{peer.name}: {'asked' if peer.ready else peer.problem}" for peer in self.peers)

    def _look(self) -> None:
        """Who is connected, what has come, who has taken too long; this waits a little, if nothing has come."""
        now = time.monotonic()
        if now - self._looked > LOOK:
            self._looked = now
            for name in self.invited():
                if name not in self._newcomers and all(peer.name != name for peer in self.peers):
                    self._newcomers[name] = Peer(name)
            self._greet()
            self.watch([*self.peers, *self._newcomers.values()])
        replies = self.grid.pull_messages(list(self._asked)) if self._asked else []
        for reply in replies:
            asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if asked is not None:
                self._read_reply(asked, reply)
        for number, asked in list(self._asked.items()):
            if now - asked.since > self.timeout:
                del self._asked[number]
                self._note_failure(asked, f"did not answer within {self.timeout:g} s")
        if not replies and not self._notices:
            # The grid may have waited by itself.
            time.sleep(max(0.0, now + self.poll - time.monotonic()))

    def _greet(self) -> None:
        """Ask those who are connected, and have not said that they can work, how they are."""
        nodes = [node for node in self.grid.get_nodes() if self.is_known(node)]
        connected = {node.name: node.node_id for node in nodes}
        self._withdraw(connected)
        busy = {asked.peer.name for asked in self._asked.values()}
        wanted = []
        for peer in (*self.peers, *self._newcomers.values()):
            peer.node = connected.get(peer.name)
            if peer.node is None:
                if peer.ready and peer.name not in busy:
                    peer.lost("is not connected")
            elif not peer.ready and peer.name not in busy and time.monotonic() >= peer.not_before:
                wanted.append((Asked(peer, q.About(), time.monotonic()), b""))
        self._push(wanted)

    def _withdraw(self, connected: Mapping[str, int]) -> None:
        """What a site was asked before it came with another key will not be answered."""
        for number, asked in list(self._asked.items()):
            if connected.get(asked.peer.name, asked.node) != asked.node:
                del self._asked[number]
                self._note_failure(asked, "has come with another key, and is asked again")

    def _note_failure(self, asked: Asked, problem: str) -> None:
        if not isinstance(asked.content, Task | q.About | q.Evaluate):
            # A site that does not answer a question can work all the same.
            self._refusals[asked.peer.name] = problem
            return
        asked.peer.lost(problem)
        if asked.kind == "refine":
            self._miss(asked.peer)

    def _read_reply(self, asked: Asked, reply: Any) -> None:
        peer = asked.peer
        if reply.has_error():
            self._note_failure(asked, f"Flower says: {reply.error.reason or reply.error.code}")
            return
        peer.last_seen = time.time()
        record = reply.content.get(RECORD, {}) if reply.has_content() else {}
        payload = record.get("payload")
        if "error" in record:
            self._note_failure(asked, str(record["error"]))
        elif not isinstance(payload, bytes):
            self._note_failure(asked, f"the answer to {asked.words} has no payload: {COMPARE}")
        elif len(payload) > self._largest(asked):
            self._note_failure(asked, f"the answer to {asked.words} is too long, {len(payload)} bytes: {COMPARE}")
        elif self.notary is not None and (
            problem := self.notary.check(peer.name, asked.kind, asked.version, payload, record.get(SIGNATURE))
        ):
            self._note_failure(asked, problem)
        else:
            peer.bytes_up += len(payload)
            self._take(asked, peer, payload)

    def _largest(self, asked: Asked) -> int:
        """How many bytes an answer may have."""
        if isinstance(asked.content, Task):
            assert self._like is not None
            return largest(self._like)
        return largest_message(ANSWERS[type(asked.content)], self._like)

    def _take(self, asked: Asked, peer: Peer, payload: bytes) -> None:
        if isinstance(asked.content, Task):
            assert self._like is not None
            peer.updates += 1
            at = time.monotonic() - self._opened
            arrival = read_answer(asked.content, payload, self._like, at)
            if isinstance(arrival, Update):
                self._heard = time.monotonic()
            self._notices.append(arrival)
            return
        try:
            answer = decode_answer(type(asked.content), payload, self._like)
        except MalformedMessage as error:
            self._note_failure(asked, f"the answer to {asked.words} could not be decoded ({error}): {COMPARE}")
            return
        if isinstance(answer, q.AboutAnswer):
            self._welcome(asked, answer)
        elif isinstance(answer, q.EvaluateAnswer) and not np.isfinite(answer.value):
            self._note_failure(asked, "the log likelihood that it answered is not finite")
        else:
            self._heard = time.monotonic()
            assert peer.site is not None
            self._answers[peer.site] = answer

    def _welcome(self, asked: Asked, answer: q.AboutAnswer) -> None:
        if not answer.rows >= 1:
            self._note_failure(asked, f"it said that it has {answer.rows:g} rows: {COMPARE}")
            return
        peer = asked.peer
        peer.welcome(answer.rows)
        if peer.missed:
            assert peer.site is not None
            peer.missed = False
            self._notices.append(Notice(peer.site, "back"))

    def ask(self, question: Question | Mapping[int, Question]) -> dict[int, Answer]:
        mine = {} if self._own is None else self._own.sources
        asked = address(question, len(self.peers) + len(mine))
        kind = type(next(iter(asked.values())))
        if self._own is not None and mine.keys() & asked.keys():
            here = answer_questions(self._own, {site: one for site, one in asked.items() if site in mine})
            rest = {site: one for site, one in asked.items() if site not in mine}
            return (self._ask_sites(kind, rest) if rest else {}) | here
        return self._ask_sites(kind, asked)

    def _ask_sites(self, kind: type[Question], asked: Mapping[int, Question]) -> dict[int, Answer]:
        # A federation's recipe names columns; and data may be added to where they are, so that names tell sites apart.
        if kind is q.ColumnNames:
            return dict.fromkeys(asked, q.ColumnNamesAnswer(None))
        if kind is q.Digest:
            return {site: q.DigestAnswer(self.peers[site].name) for site in asked}
        if not self._assembled:
            self._assemble()
        self._answers, self._refusals, now = {}, {}, time.monotonic()
        ready = {site: one for site, one in asked.items() if self.peers[site].can_work}
        self._push([(Asked(self.peers[site], one, now), encode_question(one)) for site, one in ready.items()])
        while any(isinstance(one.content, kind) for one in self._asked.values()):
            self._look()
        if self._refusals:
            words = [f"site {name}: {problem}" for name, problem in self._refusals.items()]
            raise EngineError(f"the question {kind.name!r} was refused: {'; '.join(words)}")
        return self._answers

    def close(self) -> None:
        self._asked.clear()
        self._connected = False


def import_flower() -> Any:
    """Flower, or an error that says how to get it."""
    return import_extra("flwr", "Flower", "flower")
