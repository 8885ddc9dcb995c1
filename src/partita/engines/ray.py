"""Sites on a Ray cluster: actors that hold data, and answer tasks with updates."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from partita.errors import EngineError, PartitaError, Stalled
from partita.families import Family
from partita.foundation.checks import check_count, check_not_negative, check_one_of, check_positive, import_extra
from partita.foundation.runtime import cache_compilation
from partita.models import Hyper, prior_of
from partita.server.completion import read_answer
from partita.shards import Shard, capacities, padded
from partita.site.worker import Worker, digest_shard, load_shard
from partita.wire.job import Job
from partita.wire.messages import (
    Arrival,
    Compression,
    Notice,
    decode_question,
    decode_task,
    encode_question,
    encode_task,
    encode_update,
)
from partita.wire.tasks import Task


class Holder:
    """What an actor is: the data of some sites, loaded where it runs, and the work on them."""

    def __init__(self, job: Job, shards: Mapping[int, Any], cache: str | None, compression: Compression):
        if cache is not None:
            cache_compilation(Path(cache))
        self._job, self._given = job, shards
        self._like = prior_of(job.model, job.model.hyper)
        self._worker: Worker | None = None
        self._compression: Compression = compression

    def process(self) -> int:
        """Where it runs."""
        return os.getpid()

    @cached_property
    def _shards(self) -> dict[int, Shard]:
        return {site: load_shard(self._job.model, site, shard) for site, shard in self._given.items()}

    def rows(self) -> dict[int, int]:
        return {site: int(shard.rows) for site, shard in self._shards.items()}

    def prepare(self, sizes: Mapping[int, int]) -> None:
        """Pad to what all sites of the run have agreed on."""
        ready: dict[int, Shard] = {site: padded(shard, sizes[site]) for site, shard in self._shards.items()}
        self._worker = Worker(self._job, ready)

    def digests(self) -> dict[int, str]:
        assert self._worker is not None
        return {site: digest_shard(shard) for site, shard in self._worker.shards.items()}

    def refine(self, tasks: Sequence[bytes]) -> list[tuple[int, bytes]]:
        assert self._worker is not None
        updates = self._worker.refine([decode_task(task, self._like) for task in tasks])
        return [(update.site, encode_update(update, self._compression)) for update in updates]

    def evaluate(self, questions: Mapping[int | None, bytes]) -> dict[int, float]:
        """One question for all sites here, as None's; or one for each, with its factor."""
        assert self._worker is not None
        asked = {site: decode_question(question, self._like) for site, question in questions.items()}
        posterior, hyper, _ = next(iter(asked.values()))
        factors = {site: factor for site, (_, _, factor) in asked.items() if site is not None and factor is not None}
        return self._worker.evaluate(posterior, hyper, factors or None)


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

    def __post_init__(self) -> None:
        check_positive("Ray: ", timeout=self.timeout, patience=self.patience, cpus=self.cpus)
        check_not_negative("Ray: ", restarts=self.restarts)
        check_one_of("Ray: ", get_args(Compression), compression=self.compression)
        if self.actors is not None:
            check_count("Ray: ", actors=self.actors)

    def open(self, job: Job, shards: Sequence[Any]) -> None:
        self._ray = import_ray()
        self._own = not self._ray.is_initialized()
        if self._own:
            quiet = {"log_to_driver": False, "configure_logging": False}
            if self.address:
                self._ray.init(self.address, **quiet)
            else:
                with on_loopback():
                    self._ray.init(include_dashboard=False, **quiet)
        try:
            self._begin(job, shards)
        except BaseException:
            self.close()
            raise

    def _begin(self, job: Job, shards: Sequence[Any]) -> None:
        self._like = prior_of(job.model, job.model.hyper)
        self._waits = job.waits
        self._job = self._ray.put(job)
        self._sites = len(shards)
        most = self.actors or int(self._ray.cluster_resources().get("CPU", 1) / self.cpus) or 1
        groups = min(most, len(shards))
        self._group = {site: site % groups for site in range(len(shards))}
        self._data = [
            self._ray.put({site: shards[site] for site in range(len(shards)) if site % groups == group})
            for group in range(groups)
        ]
        self._handles: list[Any] = [None] * groups
        self._left = [self.restarts] * groups
        self._calls: dict[Any, Call] = {}
        self._notices: list[Arrival] = []
        self._opened = self._heard = time.monotonic()
        for group in range(groups):
            self._make(group)
        counts = self._all("rows")
        sizes = capacities([counts[site] for site in range(self._sites)])
        self._sizes = self._ray.put(dict(enumerate(sizes)))
        self._all("prepare", self._sizes)

    def _make(self, group: int) -> None:
        options = {"num_cpus": self.cpus, "max_restarts": 0}
        self._handles[group] = self._ray.remote(Holder).options(**options).remote(
            self._job, self._data[group], self.cache, self.compression
        )  # fmt: skip

    def _all(self, method: str, *arguments: Any) -> dict[int, Any]:
        """The answers of all actors to one question, at the start, when everybody has to be there."""
        calls = [getattr(handle, method).remote(*arguments) for handle in self._handles]
        merged: dict[int, Any] = {}
        try:
            for answer in self._ray.get(calls, timeout=self.timeout):
                merged.update(answer or {})
        except self._ray.exceptions.GetTimeoutError:
            raise EngineError(f"Ray: actors did not answer within {self.timeout:g} s: give the cluster more") from None
        except self._ray.exceptions.RayError as error:
            raise _own_error(error) from error
        return merged

    def digests(self) -> list[str]:
        found = self._all("digests")
        return [found[site] for site in range(self._sites)]

    def submit(self, tasks: Sequence[Task], at: float) -> None:
        by_group: dict[int, dict[int, Task]] = {}
        for task in tasks:
            by_group.setdefault(self._group[task.site], {})[task.site] = task
        for group, mine in by_group.items():
            # All at once, where the schedule waits for all anyway: an actor works on a stack of sites.
            parts = [mine] if self._waits else [{site: task} for site, task in mine.items()]
            for part in parts:
                self._ask(group, part)

    def _ask(self, group: int, tasks: dict[int, Task]) -> None:
        if self._left[group] < 0:
            self._notices += [Notice(site, "away", "its actor died too often") for site in tasks]
            return
        call = self._handles[group].refine.remote([encode_task(task, self.compression) for task in tasks.values()])
        self._calls[call] = Call(group, tasks, time.monotonic())

    def collect(self) -> list[Arrival]:
        while True:
            if self._notices:
                notices, self._notices = self._notices, []
                return notices
            arrivals = self._arrived()
            if arrivals:
                self._heard = time.monotonic()
                return arrivals
            self._check_time()

    def _arrived(self) -> list[Arrival]:
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
            at = time.monotonic() - self._opened
            arrivals += [read_answer(call.tasks[site], payload, self._like, at) for site, payload in answers]
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
            names = ", ".join(map(self._job.names.of, waiting))
            raise Stalled(f"Ray: no answer for {self.patience:g} s from {names}; the run can be resumed")

    def _again(self, lost: Call, reason: str) -> None:
        """Make an actor anew, and ask it all that it had not answered."""
        group, calls = lost.group, [lost]
        for reference, call in list(self._calls.items()):
            if call.group == group:
                calls.append(self._calls.pop(reference))
        self._left[group] -= 1
        if self._left[group] < 0:
            sites = [site for site, own in self._group.items() if own == group]
            self._notices += [Notice(site, "away", f"its actor died too often: {reason}") for site in sites]
            return
        self._make(group)
        self._handles[group].prepare.remote(self._sizes)
        for call in calls:
            self._ask(group, call.tasks)

    def evaluate(self, posterior: Family, hyper: Hyper, factors: Sequence[Family] | None = None) -> dict[int, float]:
        values: dict[int, float] = {}
        alive = [group for group, left in enumerate(self._left) if left >= 0]
        if factors is None:
            questions = dict.fromkeys(alive, self._ray.put({None: encode_question(posterior, hyper)}))
        else:
            questions = {group: self._questions(group, posterior, hyper, factors) for group in alive}
        calls = [self._handles[group].evaluate.remote(asked) for group, asked in questions.items()]
        for call in calls:
            try:
                values |= self._ray.get(call, timeout=self.timeout)
            except self._ray.exceptions.RayError:
                continue
        return values

    def _questions(self, group: int, posterior: Family, hyper: Hyper, factors: Sequence[Family]) -> dict[int, bytes]:
        sites = [site for site, own in self._group.items() if own == group]
        return {site: encode_question(posterior, hyper, factors[site]) for site in sites}

    def close(self) -> None:
        for handle in getattr(self, "_handles", []):
            if handle is not None:
                self._ray.kill(handle)
        if self._own:
            self._ray.shutdown()


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
