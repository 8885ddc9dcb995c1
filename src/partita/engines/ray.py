"""Sites on a Ray cluster: actors that hold data, and answer tasks with updates."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from partita.errors import EngineError, MalformedMessage, PartitaError, Stalled
from partita.families import Family
from partita.foundation.checks import check_count, check_not_negative, check_one_of, check_positive, import_extra
from partita.foundation.compilation import cache_compilations
from partita.models import AbstractModel, prior_of
from partita.server.completion import read_answer
from partita.shards import agree_on_sizes
from partita.site.answering import answer_questions
from partita.site.holder import Holder
from partita.wire.codec import decode_answer, decode_question, encode_answer, encode_question
from partita.wire.engine import address
from partita.wire.job import Job
from partita.wire.messages import Arrival, Compression, Notice, decode_task, encode_task, encode_update
from partita.wire.naming import SiteNames
from partita.wire.questions import QUESTIONS, Answer, Evaluate, Question
from partita.wire.tasks import Task


class Actor:
    """What runs on a cluster: the data of some sites, loaded there, behind bytes."""

    def __init__(
        self, sources: Mapping[int, Any], known: tuple[SiteNames | None, AbstractModel | None], cache: str | None
    ):
        if cache is not None:
            cache_compilations(Path(cache))
        self._holder = Holder(sources, *known)
        self._like: Family | None = None

    def process(self) -> int:
        """Where it runs."""
        return os.getpid()

    def load(self, job: Job, added: Mapping[int, Any]) -> dict[int, int]:
        self._like = prior_of(job.model, job.model.hyper)
        return self._holder.load(job, added)

    def prepare(self, sizes: Mapping[int, int]) -> None:
        self._holder.prepare(sizes)

    def refine(self, tasks: Sequence[bytes], compression: Compression) -> list[tuple[int, bytes]]:
        assert self._like is not None
        like = self._like
        updates = self._holder.worker.refine([decode_task(task, like) for task in tasks])
        return [(update.site, encode_update(update, compression)) for update in updates]

    def answer(self, name: str, payloads: Mapping[int, bytes]) -> dict[int, bytes]:
        """Answer one question of each of some sites; what is asked of several in the same words is read once."""
        questions = {payload: decode_question(name, payload, self._like) for payload in set(payloads.values())}
        answers = answer_questions(self._holder, {site: questions[payload] for site, payload in payloads.items()})
        return {site: encode_answer(QUESTIONS[name], answer) for site, answer in answers.items()}


@dataclass
class Call:
    """A call of an actor that has not answered yet."""

    group: int
    tasks: dict[int, Task]
    since: float


@dataclass
class Ray:
    """One actor per site, or per group of sites where there are more sites than `actors`.

    Shards may be functions: they are called where the actor runs, so that data are loaded there and never travel. An
    actor that dies, or does not answer in time, is made anew and asked again. What it answers is the same, because a
    site's randomness depends on seed, site and version alone; and it is counted once. After `restarts` the sites of an
    actor count as away, and the others go on without them.

    A Ray cluster is one trust domain: whoever can reach it can run code on it.

    Args:
        address: of an existing cluster; else one is started that listens to this machine only, and is stopped with the
            run, unless Ray runs already.
        actors: at most so many; by default as many as the cluster has processors.
        timeout: seconds that a call may take, compilation included.
        patience: seconds without any answer, after which a run stops with `Stalled`; it can be resumed.
        restarts: how often each actor is made anew.
        cpus: that an actor asks the cluster for.
        cache: folder in which actors keep compiled programs.
        compression: "float16" halves what is sent of float32 densities, and keeps three digits of them.
    """

    address: str | None = None
    actors: int | None = None
    timeout: float = 600.0
    patience: float = 1200.0
    restarts: int = 3
    cpus: float = 1.0
    cache: str | None = None
    compression: Compression = "none"
    _connected: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_positive("Ray: ", timeout=self.timeout, patience=self.patience, cpus=self.cpus)
        check_not_negative("Ray: ", restarts=self.restarts)
        check_one_of("Ray: ", get_args(Compression), compression=self.compression)
        if self.actors is not None:
            check_count("Ray: ", actors=self.actors)

    def connect(
        self, shards: Sequence[Any], names: SiteNames | None = None, model: AbstractModel | None = None
    ) -> None:
        self._ray, self._connected = import_ray(), True
        self._handles: list[Any] = []
        self._own = not self._ray.is_initialized()
        if self._own:
            quiet = {"log_to_driver": False, "configure_logging": False}
            if self.address:
                self._ray.init(self.address, **quiet)
            else:
                with on_loopback():
                    self._ray.init(include_dashboard=False, **quiet)
        try:
            self._begin(shards, names, model)
        except BaseException:
            self.close()
            raise

    def _begin(self, shards: Sequence[Any], names: SiteNames | None, model: AbstractModel | None) -> None:
        self._names = SiteNames() if names is None else names
        self._known = self._ray.put((names, model))
        self._sites = self._given = len(shards)
        most = self.actors or int(self._ray.cluster_resources().get("CPU", 1) / self.cpus) or 1
        self._groups = min(most, len(shards))
        # Relative files are the driver's, wherever an actor runs.
        sources = [shard.absolute() if isinstance(shard, Path) else shard for shard in shards]
        self._data = [self._ray.put(self._part(group, dict(enumerate(sources)))) for group in range(self._groups)]
        self._handles = [None] * self._groups
        self._left = [self.restarts] * self._groups
        self._calls: dict[Any, Call] = {}
        self._notices: list[Arrival] = []
        self._like: Family | None = None
        self._opened = self._heard = time.monotonic()
        for group in range(self._groups):
            self._make(group)

    def _part(self, group: int, by_site: Mapping[int, Any]) -> dict[int, Any]:
        """What concerns the sites of one actor."""
        return {site: value for site, value in by_site.items() if site % self._groups == group}

    def open(self, job: Job, shards: Sequence[Any]) -> None:
        if not self._connected:
            self.connect(shards, job.names)
        try:
            self._like = prior_of(job.model, job.model.hyper)
            self._waits, self._names, self._sites = job.waits, job.names, len(shards)
            added = dict(enumerate(shards[self._given :], self._given))
            self._job = self._ray.put(job)
            self._added = [self._part(group, added) for group in range(self._groups)]
            counts = self._call([handle.load.remote(self._job, self._added[i]) for i, handle in self._numbered])
            self._sizes = self._ray.put(agree_on_sizes(counts))
            self._call([handle.prepare.remote(self._sizes) for _, handle in self._numbered])
        except BaseException:
            self.close()
            raise

    @property
    def _numbered(self) -> Iterator[tuple[int, Any]]:
        return enumerate(self._handles)

    def _make(self, group: int) -> None:
        options = {"num_cpus": self.cpus, "max_restarts": 0}
        actor = self._ray.remote(Actor).options(**options)
        self._handles[group] = actor.remote(self._data[group], self._known, self.cache)

    def _call(self, calls: Sequence[Any]) -> dict[int, Any]:
        """What all actors answer, by site, at the start, when everybody has to be there."""
        merged: dict[int, Any] = {}
        try:
            for answer in self._ray.get(list(calls), timeout=self.timeout):
                merged.update(answer or {})
        except self._ray.exceptions.GetTimeoutError:
            raise EngineError(f"Ray: actors did not answer within {self.timeout:g} s: give the cluster more") from None
        except self._ray.exceptions.RayError as error:
            raise _own_error(error) from error
        return merged

    def ask(self, question: Question | Mapping[int, Question]) -> dict[int, Answer]:
        asked = address(question, self._sites)
        kind = type(next(iter(asked.values())))
        encoded = {id(one): encode_question(one) for one in asked.values()}
        by_group = {
            group: self._part(group, {site: encoded[id(one)] for site, one in asked.items()})
            for group, left in enumerate(self._left)
            if left >= 0
        }
        calls = [self._handles[group].answer.remote(kind.name, part) for group, part in by_group.items() if part]
        # Whoever cannot say what its share of the evidence is leaves a gap; other questions need all answers.
        payloads = self._call_those_alive(calls) if kind is Evaluate else self._call(calls)
        answers = {site: self._decode(site, kind, payload) for site, payload in payloads.items()}
        return {site: answer for site, answer in answers.items() if answer is not None}

    def _decode(self, site: int, kind: type[Question], payload: bytes) -> Answer | None:
        try:
            return decode_answer(kind, payload, self._like)
        except MalformedMessage as error:
            if kind is Evaluate:
                return None
            raise EngineError(
                f"{self._names.of(site)}: the answer to the question {kind.name!r} could not be decoded ({error}): "
                "compare Partita versions on both sides"
            ) from error

    def _call_those_alive(self, calls: Sequence[Any]) -> dict[int, Any]:
        merged: dict[int, Any] = {}
        for call in calls:
            try:
                merged |= self._ray.get(call, timeout=self.timeout)
            except self._ray.exceptions.RayError:
                continue
        return merged

    def submit(self, tasks: Sequence[Task], at: float) -> None:
        by_group: dict[int, dict[int, Task]] = {}
        for task in tasks:
            by_group.setdefault(task.site % self._groups, {})[task.site] = task
        for group, mine in by_group.items():
            # All at once, where the schedule waits for all anyway: an actor works on a stack of sites.
            parts = [mine] if self._waits else [{site: task} for site, task in mine.items()]
            for part in parts:
                self._ask(group, part)

    def _ask(self, group: int, tasks: dict[int, Task]) -> None:
        if self._left[group] < 0:
            self._notices += [Notice(site, "away", "its actor died too often") for site in tasks]
            return
        payloads = [encode_task(task, self.compression) for task in tasks.values()]
        call = self._handles[group].refine.remote(payloads, self.compression)
        self._calls[call] = Call(group, tasks, time.monotonic())

    def collect(self) -> list[Arrival]:
        while True:
            if self._notices:
                notices, self._notices = self._notices, []
                return notices
            arrivals = self._take_arrivals()
            if arrivals:
                self._heard = time.monotonic()
                return arrivals
            self._check_time()

    def _take_arrivals(self) -> list[Arrival]:
        if not self._calls:
            raise Stalled("Ray: nobody is working, and nobody can be asked: all actors died too often")
        ready, _ = self._ray.wait(list(self._calls), timeout=min(1.0, self.timeout / 4))
        arrivals: list[Arrival] = []
        for reference in ready:
            call = self._calls.pop(reference)
            try:
                answers = self._ray.get(reference)
            except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError) as error:
                self._again(call, type(error).__name__)
                continue
            except self._ray.exceptions.RayError as error:
                raise _own_error(error) from error
            at, like = time.monotonic() - self._opened, self._like
            assert like is not None
            arrivals += [read_answer(call.tasks[site], payload, like, at) for site, payload in answers]
        return arrivals

    def _check_time(self) -> None:
        now = time.monotonic()
        for reference, call in list(self._calls.items()):
            if now - call.since > self.timeout:
                del self._calls[reference]
                self._ray.kill(self._handles[call.group])
                self._again(call, f"no answer within {self.timeout:g} s")
        if now - self._heard > self.patience:
            waiting = sorted(site for call in self._calls.values() for site in call.tasks)
            names = ", ".join(map(self._names.of, waiting))
            raise Stalled(f"Ray: no answer for {self.patience:g} s from {names}; the run can be resumed")

    def _again(self, lost: Call, reason: str) -> None:
        """Make an actor anew, and ask it all that it had not answered."""
        group, calls = lost.group, [lost]
        for reference, call in list(self._calls.items()):
            if call.group == group:
                calls.append(self._calls.pop(reference))
        self._left[group] -= 1
        if self._left[group] < 0:
            sites = range(group, self._sites, self._groups)
            self._notices += [Notice(site, "away", f"its actor died too often: {reason}") for site in sites]
            return
        self._make(group)
        self._handles[group].load.remote(self._job, self._added[group])
        self._handles[group].prepare.remote(self._sizes)
        for call in calls:
            self._ask(group, call.tasks)

    def join(self, site: int, name: str) -> None:
        raise EngineError(f"site {name}: sites that come during a run are of federations: see docs/federations.md")

    def close(self) -> None:
        for handle in self._handles:
            if handle is not None:
                self._ray.kill(handle)
        if self._own:
            self._ray.shutdown()
        self._handles, self._own, self._connected = [], False, False


@contextmanager
def on_loopback() -> Iterator[None]:
    """A cluster that is begun here listens to this machine only, as Ray does by itself on macOS and Windows.

    On Linux it would listen to everybody; an address of its own does not change that, and it takes 127.0.0.1 for a
    mistake. What it reads is an environment variable, once, when it is imported, and by the processes that it starts.
    """
    constants: Any = import_module("ray._private.ray_constants")
    name = constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    given, enabled = os.environ.get(name), constants.ENABLE_RAY_CLUSTER
    os.environ[name], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = enabled
        if given is None:
            del os.environ[name]
        else:
            os.environ[name] = given


def import_ray() -> Any:
    """Ray, or an error that says how to get it."""
    return import_extra("ray", "Ray", "ray")


def _own_error(error: Any) -> PartitaError:
    """What a site said, if it was one of ours; else what Ray says."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, PartitaError) else EngineError(f"Ray: {str(error).strip().splitlines()[-1]}")
