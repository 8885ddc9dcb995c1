"""A Gaussian process that learns from a stream: batch after batch, with beliefs about its hyperparameters."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from partita.errors import ImproperDensity, InputError, RunMismatch
from partita.families.gaussian import Gaussian
from partita.foundation.archives import check_finite, doubted, read_arrays, write_arrays
from partita.foundation.moments import Affine
from partita.foundation.plain import Row
from partita.foundation.runtime import compile_quickly, on_host, precision
from partita.foundation.shapes import Inputs, Scalar
from partita.gp import saving
from partita.gp.beliefs import Beliefs, draw_noise
from partita.gp.events import describe_batch
from partita.gp.learning import Given, Learning, Learnt, learn
from partita.gp.padding import capacity_for, divide, empty_factor, enlarge, pad_batch
from partita.gp.placement import MOST_JITTER, Placement
from partita.gp.sparse import Factor, SparseGP, Step, Whitened, by_output
from partita.server.events import Event
from partita.server.ledger import Ledger
from partita.shards import pad_rows
from partita.telemetry import Callback, tell
from partita.wire.tasks import Update

# How far the mean or the logarithm of the spread of targets moves, in spreads, before beliefs about a kernel are stale.
STEADY = 0.1
# The first jitter, relative to the mean of the diagonal.
JITTER = 1e-9
# The first batch is learnt from again until log hyperparameters move no further than this, or so many times.
STILL, MOST_ROUNDS = 0.05, 12


@dataclass(frozen=True)
class Stream:
    """What is kept of all batches: a factor at pseudo-points, and beliefs about the hyperparameters. Immutable."""

    gp: SparseGP
    learning: Learning
    hyper: Beliefs
    factor: Factor
    # The share of what is believed of the kernel that was heard in units that are no more.
    stale: float = 0.0
    log_evidence: float = 0.0
    jitter: float = JITTER
    batches: int = 0
    # Each batch's own part of the factor, if asked for.
    parts: tuple[Factor, ...] | None = None
    seed: int = 0
    # One row per batch, as `Result.history` has one per fold.
    history: tuple[Row, ...] = field(default=(), repr=False)

    @classmethod
    def begin(
        cls, gp: SparseGP, learning: Learning, features: int, outputs: int = 1, seed: int = 0, keep_parts: bool = False
    ) -> "Stream":
        """A stream that has seen nothing."""
        hyper = Beliefs.begin(gp, learning.is_variational, features, outputs)
        if keep_parts and (learning.pseudo_points == "shared" or learning.max_points is not None):
            raise InputError("keep_factors: needs private pseudo-points and no max_points: others do not stay")
        factor = empty_factor(capacity_for(1, learning.max_points), features, outputs)
        return cls(gp, learning, hyper, factor, parts=() if keep_parts else None, seed=seed)

    @property
    def points(self) -> np.ndarray:
        """The pseudo-inputs."""
        return np.asarray(self.factor.points[self.factor.present > 0])

    @property
    def params(self) -> dict[str, np.ndarray]:
        """Hyperparameters at the middle of what is believed of them."""
        return self.hyper.params

    def absorb(self, X: np.ndarray, y: np.ndarray, callbacks: Sequence[Callback] = ()) -> "Stream":
        """The stream after one more batch: X [rows, features], y [outputs, rows]; callbacks are told of it."""
        after, event = self.advance(X, y)
        return after.record(tell(event, callbacks))

    def advance(
        self, X: np.ndarray, y: np.ndarray, log_unit: float = 0.0, total: int | None = None
    ) -> tuple["Stream", Event]:
        """The stream after one more batch, and what there is to tell of it, which is not in its history yet.

        Args:
            X: inputs [rows, features].
            y: targets [outputs, rows].
            log_unit: the logarithm of the units of all these targets together, by which their density is lower than
                that of the numbers given.
            total: how many batches there will be, if that is known.
        """
        began = time.perf_counter()
        batch = pad_batch(X, y)
        with precision(np.float64):
            step, movable = self.placement.place(batch)
            # A batch that brings more than all before it is as good as the first: these may have been single rows.
            begins = 2 * self.factor.present.sum() < step.present.sum()
            if begins and self.learning.is_variational:
                learnt, jitter = self._learn_until_still(step, movable)
            else:
                learnt, jitter = self._learn(self.learning, step, movable, self.hyper)
        after = replace(
            self,
            hyper=learnt.hyper,
            factor=learnt.factor,
            stale=0.0,
            log_evidence=float(self.log_evidence + float(learnt.log_evidence) - log_unit),
            jitter=jitter,
            batches=self.batches + 1,
            parts=None if self.parts is None else (*self.parts, learnt.own),
        )
        return after, describe_batch(self, after, len(X), time.perf_counter() - began, total)

    def record(self, row: Row) -> "Stream":
        """The same stream with one more row in its history."""
        return replace(self, history=(*self.history, row))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, complete or not at all; `load` reads it. Factors of single batches are not kept."""
        arrays, about = saving.pack(self)
        write_arrays(path, arrays, {**about, "stream": saving.pack_parts(self)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Stream":
        """What `save` wrote: it goes on with the next batch as if it had never been away, to the last bit."""
        arrays, about = read_arrays(path)
        check_finite(path, arrays)
        if "stream" not in about:
            raise RunMismatch(f"{path}: holds a {about.get('estimator', 'result')}, not a stream: use its own load")
        with doubted(path):
            gp, learning, seed = saving.unpack_parts(about["stream"])
            factor = saving.read_factor(arrays)
            begun = cls.begin(gp, learning, factor.points.shape[1], len(factor.shift), seed)
            return saving.unpack(begun, factor, arrays, about)

    @property
    def placement(self) -> Placement:
        """What says where the points of the next batch go."""
        return Placement(
            self.gp, self.learning, self.params, self.factor, self.jitter, self.seed, is_first=self.batches == 0
        )

    def _learn_until_still(self, step: Step, movable: np.ndarray) -> tuple[Learnt, float]:
        """The first batch has all the way to go from a guess, further than later ones: until nothing moves.

        Only a distribution: a point that nothing holds back would run off along what one batch says nothing about.
        """
        start = self.hyper.narrowed
        for _ in range(MOST_ROUNDS):
            learnt, jitter = self._learn(self.learning, step, movable, start)
            if learnt.hyper.distance(start) < STILL:
                break
            start, step = learnt.hyper, step._replace(points=learnt.factor.points)
        return learnt, jitter

    def _learn(self, learning: Learning, step: Step, movable: np.ndarray, start: Beliefs) -> tuple[Learnt, float]:
        """Learn from a batch, with more jitter than before only where factorisations fail without."""
        size = self.hyper.size
        noise = draw_noise(self.seed, self.batches, learning.steps * learning.samples, size)
        noise = self.hyper.share_among_outputs(noise).reshape(learning.steps, learning.samples, size)
        outputs, features = len(self.factor.shift), self.factor.points.shape[1]
        # Beside the prior the factor says what old batches say of the kernel; of the likelihood it says nothing.
        first = Beliefs.begin(self.gp, self.learning.is_variational, features, outputs).with_likelihood_of(self.hyper)
        given = Given(start, self.hyper, first, np.asarray(self.stale))
        jitter = self.jitter
        while jitter <= MOST_JITTER:
            tried = step._replace(jitter=np.asarray(jitter))
            learnt: Learnt = on_host(learn(self.gp, learning, given, tried, movable, noise))
            if all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(learnt)):
                return learnt, jitter
            jitter *= 10
        raise InputError(
            f"batch {self.batches}: the covariance of the pseudo-points cannot be factorised: standardise inputs, and "
            "check that targets are finite"
        )

    def without(self, batch: int) -> "Stream":
        """The stream with a batch's factor divided out. What the batch taught about hyperparameters stays."""
        parts = self._parts_of(batch)
        factor = divide(self.factor, parts[batch])
        if not all(np.all(np.isfinite(leaf)) for leaf in self.whiten(factor)):
            raise ImproperDensity(
                f"batch {batch}: without it the posterior would not be proper: revisit other batches before, or keep it"
            )
        others = (*parts[:batch], *parts[batch + 1 :])
        return replace(self, factor=factor, parts=others, batches=self.batches - 1, log_evidence=float("nan"))

    def refine(self, batch: int, X: np.ndarray, y: np.ndarray) -> "Stream":
        """The factor of a batch computed again from its data, with the points and hyperparameters of today."""
        parts = self._parts_of(batch)
        cavity = divide(self.factor, parts[batch])
        step = Step(cavity, pad_batch(X, y), cavity.points, cavity.present, np.asarray(self.jitter), True)
        as_they_are = replace(
            self.learning, hyperparameters="fixed", pseudo_points="private", moves=False, max_points=None
        )
        with precision(np.float64):
            learnt, jitter = self._learn(as_they_are, step, np.zeros_like(cavity.present), self.hyper)
        renewed = (*parts[:batch], learnt.own, *parts[batch + 1 :])
        return replace(self, factor=learnt.factor, parts=renewed, jitter=jitter, log_evidence=float("nan"))

    def _parts_of(self, batch: int) -> tuple[Factor, ...]:
        if self.parts is None:
            raise InputError("the factors of batches were not kept: begin with keep_factors=True")
        if not 0 <= batch < len(self.parts):
            raise InputError(f"batch {batch}: there are batches 0 to {len(self.parts) - 1}")
        return self.parts

    def whiten(self, factor: Factor) -> Whitened:
        """The posterior that a factor makes with today's hyperparameters, over v = L⁻¹ f(points)."""
        with precision(np.float64):
            whitened: Whitened = on_host(whiten(self.gp, self.params, factor, np.asarray(self.jitter)))
        return whitened

    def ledger(self, output: int = 0) -> Ledger:
        """prior × ∏ factors with one site per batch, over v = L⁻¹ f(points), whose prior is N(0, I)."""
        parts = self._parts_of(0)
        size = len(self.factor.present)
        L = self.whiten(self.factor).L
        ledger = Ledger(Gaussian(np.zeros(size), np.eye(size)), len(parts))
        tasks = ledger.dispatch(range(len(parts)), {})
        changes = []
        for task, part in zip(tasks, parts, strict=True):
            own = enlarge(part, size)
            matrix = L.T @ own.precision[output] @ L
            changes.append(
                Update(task.site, task.version, Gaussian(L.T @ own.shift[output], 0.5 * (matrix + matrix.T)), 0.0)
            )
        ledger.fold(changes)
        return ledger

    def rescale(self, before: Affine, after: Affine, targets: tuple[Affine, Affine] | None) -> "Stream":
        """The same stream in other units of inputs and, where given, of targets."""
        outputs = len(self.factor.shift)
        if targets is None:
            targets = (Affine(np.zeros(outputs), np.ones(outputs)),) * 2
        old, new = targets
        larger, moved = new.scale / old.scale, (new.mean - old.mean) / old.scale

        def change(factor: Factor) -> Factor:
            points = (factor.points * before.scale + before.mean - after.mean) / after.scale
            shift = factor.shift - moved[:, None] * (factor.precision @ factor.present)
            matrix = factor.precision * larger[:, None, None] ** 2
            return Factor(points * factor.present[:, None], factor.present, shift * larger[:, None], matrix)

        growth = self.gp.in_units(before.scale / after.scale, 1 / larger)
        return replace(
            self,
            hyper=self.hyper if self.learning.hyperparameters == "fixed" else self.hyper.convert(growth),
            factor=change(self.factor),
            stale=1 - (1 - self.stale) * np.exp(-np.max(np.abs(moved) + np.abs(np.log(larger))) / STEADY),
            parts=None if self.parts is None else tuple(map(change, self.parts)),
        )

    def latent(self, X: np.ndarray, samples: int = 8) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Mean and variance [draws, outputs, rows] of f(X), for draws of the hyperparameters, which come third."""
        drawn = self.draws(samples, by_output=True)
        with precision(np.float64):
            m, v = on_host(predict(self.gp, drawn, self.factor, pad_rows(X), np.asarray(self.jitter)))
        return m[..., : len(X)], v[..., : len(X)], drawn

    def responses(self, X: np.ndarray, samples: int = 8) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [draws, outputs, rows] of y at X, noise included, for draws of the hyperparameters."""
        drawn = self.draws(samples, by_output=True)
        with precision(np.float64):
            means, variances = on_host(
                predict_responses(self.gp, drawn, self.factor, pad_rows(X), np.asarray(self.jitter))
            )
        return means[..., : len(X)], variances[..., : len(X)]

    def draws(self, samples: int, by_output: bool = False) -> dict[str, np.ndarray]:
        """Hyperparameters with a leading axis; only their point, where nothing else is believed.

        Where outputs are looked at one by one, what each has of its own need not be drawn apart.
        """
        if not self.learning.is_variational or self.batches == 0:
            return {name: value[None] for name, value in self.params.items()}
        return self.hyper.draw(self.seed, samples, by_output)

    def joint(self, X: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """The same as `latent`, with covariances [draws, outputs, rows, rows] in place of variances."""
        with precision(np.float64):
            drawn = self.draws(samples)
            m, S = on_host(predict_jointly(self.gp, drawn, self.factor, pad_rows(X), np.asarray(self.jitter)))
        return m[..., : len(X)], S[..., : len(X), : len(X)], drawn


@compile_quickly
def predict(gp: SparseGP, drawn: Any, factor: Factor, X: Inputs, jitter: Scalar) -> Any:
    """Mean and variance of f(X) for every draw of the hyperparameters."""
    return jax.lax.map(lambda params: gp.predict(params, factor, X, jitter), drawn)


@compile_quickly
def predict_responses(gp: SparseGP, drawn: Any, factor: Factor, X: Inputs, jitter: Scalar) -> Any:
    """Mean and variance of y at X for every draw of the hyperparameters."""

    def respond(params: Any) -> Any:
        return by_output(gp.likelihood.response, gp.split(params)[1], *gp.predict(params, factor, X, jitter))

    return jax.lax.map(respond, drawn)


@compile_quickly
def predict_jointly(gp: SparseGP, drawn: Any, factor: Factor, X: Inputs, jitter: Scalar) -> Any:
    """Mean and covariance of f(X) for every draw of the hyperparameters."""
    return jax.lax.map(lambda params: gp.predict_jointly(params, factor, X, jitter), drawn)


@compile_quickly
def whiten(gp: SparseGP, params: Any, factor: Factor, jitter: Scalar) -> Whitened:
    return gp.posterior(params, factor, jitter)
