"""What Gaussian processes that follow a stream share, whatever they predict: settings, batches, units, files."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from scipy.special import ndtri
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from partita.errors import InputError, RunMismatch
from partita.estimators.base import Arrays, Estimator, Path, check_inputs
from partita.foundation.archives import check_finite, doubted, read_arrays, write_arrays
from partita.foundation.checks import check_count
from partita.foundation.fields import anything, check_classes, entries, fields, flag, items, maybe, number, text, whole
from partita.foundation.moments import Moments
from partita.foundation.plain import Row, plain
from partita.gaussian_processes import kernels, likelihoods
from partita.gp import saving
from partita.gp.learning import Learning
from partita.gp.sparse import SparseGP
from partita.gp.stream import Stream
from partita.site.columns import warn_of_units
from partita.telemetry import Callback, listening, tell

# Draws of the hyperparameters that predictions average over.
DRAWS = 16
# What a file says of an estimator, beside its stream. Other settings are looked at by what they make.
SETTINGS = fields(
    {"kernel": entries(anything), "likelihood": entries(anything)},
    {"random_state": maybe(whole()), "batch_size": whole(1)}
    | dict.fromkeys(("move_points", "standardise", "keep_factors", "verbose", "quiet"), flag),
    anything,
)
ABOUT = fields(
    {
        "settings": SETTINGS,
        "count": number(0),
        "names": items(text()),
        "classes": items(anything),
        "single": flag,
    },
    others=anything,
)


class StreamingGP(Estimator):
    """What regression and classification share."""

    stream_: Stream
    inputs_: Moments
    targets_: Moments
    scales_inputs_: bool
    scales_targets_: bool
    classes_: np.ndarray
    _single: bool
    _default_likelihood: str

    def __init__(
        self,
        kernel: kernels.Kernel | None = None,
        *,
        likelihood: Any = None,
        points_per_batch: int = 10,
        pseudo_points: Literal["private", "shared"] = "private",
        hyperparameters: Literal["variational", "ml", "fixed"] = "variational",
        max_points: int | None = None,
        variance_threshold: float = 0.0,
        selection: Literal["variance", "k-means"] = "variance",
        move_points: bool = True,
        steps: int = 60,
        learning_rate: float = 0.05,
        samples: int = 1,
        batch_size: int = 500,
        standardise: bool = True,
        keep_factors: bool = False,
        random_state: int = 0,
        verbose: bool = False,
        quiet: bool = False,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.points_per_batch = points_per_batch
        self.pseudo_points = pseudo_points
        self.hyperparameters = hyperparameters
        self.max_points = max_points
        self.variance_threshold = variance_threshold
        self.selection = selection
        self.move_points = move_points
        self.steps = steps
        self.learning_rate = learning_rate
        self.samples = samples
        self.batch_size = batch_size
        self.standardise = standardise
        self.keep_factors = keep_factors
        self.random_state = random_state
        self.verbose = verbose
        self.quiet = quiet

    def _gp(self) -> SparseGP:
        kernel = kernels.SquaredExponential() if self.kernel is None else self.kernel
        if not isinstance(kernel, kernels.Kernel):
            raise InputError(f"kernel: expected a kernel such as pt.gp.kernels.Matern32(), got {kernel!r}")
        return SparseGP(kernel, likelihoods.find_likelihood(self.likelihood or self._default_likelihood))

    def _learning(self) -> Learning:
        return Learning(
            hyperparameters=self.hyperparameters,
            pseudo_points=self.pseudo_points,
            points_per_batch=self.points_per_batch,
            max_points=self.max_points,
            variance_threshold=self.variance_threshold,
            selection=self.selection,
            moves=self.move_points,
            steps=self.steps,
            learning_rate=self.learning_rate,
            samples=self.samples,
        )

    def _begin(self, features: int, outputs: int) -> None:
        """A stream that has seen nothing."""
        gp = self._gp()
        self.stream_ = Stream.begin(gp, self._learning(), features, outputs, self._seed, self.keep_factors)
        self.inputs_, self.targets_ = Moments(), Moments()
        self.scales_inputs_ = bool(self.standardise)
        self.scales_targets_ = self.scales_inputs_ and gp.likelihood.has_units

    def fit(self, X: Any, y: Any, *, callbacks: Sequence[Callback] = ()) -> Self:
        """Begin anew, with rows in batches of `batch_size`, in the order in which they are.

        Callbacks are called with the event of every batch, as those of `pt.fit` are with that of every fold.
        """
        check_count(batch_size=self.batch_size)
        X, y = self._check(X, y, first=True)
        self._gp().likelihood.check(y)
        self._begin(X.shape[1], y.shape[1])
        starts = range(0, len(X), self.batch_size)
        listeners = self._listeners(callbacks)
        with listening(listeners):
            for start in starts:
                rows = slice(start, start + self.batch_size)
                self._absorb(X[rows], y[rows], listeners, len(starts))
        return self

    def _fit_batch(self, X: Any, y: Any, callbacks: Sequence[Callback], **more: Any) -> Self:
        """One more batch, of a stream that begins with it if there is none yet."""
        first = not hasattr(self, "stream_")
        X, y = self._check(X, y, first=first, **more)
        if first:
            self._gp().likelihood.check(y)
            self._begin(X.shape[1], y.shape[1])
        listeners = self._listeners(callbacks)
        with listening(listeners):
            self._absorb(X, y, listeners)
        return self

    def _check(self, X: Any, y: Any, first: bool) -> tuple[np.ndarray, np.ndarray]:
        """Rows of inputs and of targets [rows, outputs], as numbers; the first ones say how many columns there are."""
        raise NotImplementedError

    def _absorb(
        self, X: np.ndarray, y: np.ndarray, callbacks: Sequence[Callback] = (), total: int | None = None
    ) -> None:
        """X [rows, features], y [rows, outputs], in their own units. Nothing changes if it fails."""
        stream = self.stream_
        stream.gp.likelihood.check(y)
        learning = self._learning()
        if learning.hyperparameters != stream.learning.hyperparameters:
            raise InputError("hyperparameters: cannot change within a stream: call fit, or begin another one")
        stream = replace(stream, learning=learning)
        inputs, targets = self.inputs_.with_rows(X), self.targets_.with_rows(y)
        warn_of_units("X", self.inputs_, X, stacklevel=5)
        if self.scales_targets_:
            warn_of_units("y", self.targets_, y, stacklevel=5)
        if self.scales_inputs_ and stream.batches:
            units = (self.targets_.affine, targets.affine) if self.scales_targets_ else None
            stream = stream.rescale(self.inputs_.affine, inputs.affine, units)
        # Densities of standardised targets are higher by the scale.
        log_unit = len(y) * np.log(targets.affine.scale).sum() if self.scales_targets_ else 0.0
        scaled = self._scale_inputs(X, inputs), self._scale_targets(y, targets)
        stream, event = stream.advance(*scaled, log_unit, total)
        before = self.inputs_, self.targets_, self.stream_
        self.inputs_, self.targets_, self.stream_ = inputs, targets, stream
        try:
            # Whoever listens may ask this estimator for predictions with the batch.
            self.stream_ = stream.record(tell(event, callbacks))
        except BaseException:
            self.inputs_, self.targets_, self.stream_ = before
            raise

    def _scale_inputs(self, X: np.ndarray, inputs: Moments) -> np.ndarray:
        return inputs.affine.standardise(X) if self.scales_inputs_ else X

    def _scale_targets(self, y: np.ndarray, targets: Moments) -> np.ndarray:
        return targets.affine.standardise(y).T if self.scales_targets_ else y.T

    def _predict_responses(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y [outputs, rows], averaged over draws of the hyperparameters; standardised."""
        check_is_fitted(self, "stream_")
        means, variances = self.stream_.responses(self._scale_inputs(check_inputs(self, X), self.inputs_), DRAWS)
        mean = means.mean(axis=0)
        return mean, variances.mean(axis=0) + means.var(axis=0)

    @property
    def log_evidence_(self) -> float:
        """log p(y_1) + log p(y_2 | y_1) + …; unknown after `forget` and `revisit`.

        Each term is what a batch adds to the free energy. With "variational" the sum is from below, as long as units
        stay; with "ml" each term is at that batch's hyperparameters, so the sum is no bound.
        """
        check_is_fitted(self, "stream_")
        return self.stream_.log_evidence

    @property
    def history_(self) -> list[Row]:
        """One row per batch: free energy, change in nats, seconds, hyperparameters, and what callbacks measured."""
        check_is_fitted(self, "stream_")
        return list(self.stream_.history)

    @property
    def pseudo_points_(self) -> np.ndarray:
        """Where the pseudo-points are, in the units of the inputs."""
        check_is_fitted(self, "stream_")
        points = self.stream_.points
        return self.inputs_.affine.restore(points) if self.scales_inputs_ else points

    @property
    def hyperparameters_(self) -> dict[str, np.ndarray]:
        """Medians of what is believed of them, for standardised inputs and targets."""
        check_is_fitted(self, "stream_")
        return self.stream_.params

    def hyperparameter_intervals(self, level: float = 0.95) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Between which values each hyperparameter is believed to be."""
        check_is_fitted(self, "stream_")
        hyper, z = self.stream_.hyper, ndtri(0.5 + level / 2)
        return {
            name: (
                np.exp(hyper.location[name] - z * hyper.scale[name]),
                np.exp(hyper.location[name] + z * hyper.scale[name]),
            )
            for name in hyper.location
        }

    def forget(self, batch: int) -> Self:
        """Divide a batch's factor out; what it taught about hyperparameters and scales stays.

        Batches count from 0, and those after it move up by one. Needs `keep_factors`.
        """
        check_is_fitted(self, "stream_")
        self.stream_ = self.stream_.without(batch)
        return self

    def revisit(self, batch: int, X: Any, y: Any) -> Self:
        """Compute a batch's factor again from its data, with the points and hyperparameters of today.

        Needs `keep_factors`.
        """
        check_is_fitted(self, "stream_")
        X, y = self._check(X, y, first=False)
        self.stream_.gp.likelihood.check(y)
        self.stream_ = self.stream_.refine(
            batch, self._scale_inputs(X, self.inputs_), self._scale_targets(y, self.targets_)
        )
        return self

    def save(self, path: Path) -> None:
        """Write one file, complete or not at all; `load` reads it. Factors of single batches are not kept."""
        check_is_fitted(self, "stream_")
        arrays, about = saving.pack(self.stream_)
        parts = saving.pack_parts(self.stream_)
        settings = {
            **self.get_params(),
            "kernel": parts["kernel"],
            "likelihood": parts["likelihood"],
            "standardise": self.scales_inputs_,
        }
        for name in ("inputs_", "targets_"):
            moments = getattr(self, name)
            arrays |= {f"{name}.mean": np.asarray(moments.mean), f"{name}.total": np.asarray(moments.total)}
        about |= {
            "estimator": type(self).__name__,
            "settings": settings,
            "count": self.inputs_.count,
            "names": self._column_names,
            "classes": self.classes_.tolist() if hasattr(self, "classes_") else [],
            "single": getattr(self, "_single", True),
        }
        write_arrays(path, arrays, plain(about))

    @classmethod
    def load(cls, path: Path) -> Self:
        """What `save` wrote: it predicts, and learns on, as if it had never been away, to the last bit."""
        arrays, about = read_arrays(path)
        check_finite(path, arrays)
        if about.get("estimator") != cls.__name__:
            raise RunMismatch(f"{path}: holds a {about.get('estimator', 'result')}, not a {cls.__name__}")
        with doubted(path):
            return cls._unpack(path, arrays, about)

    @classmethod
    def _unpack(cls, path: Path, arrays: Arrays, about: Row) -> Self:
        ABOUT(about, "stream")
        settings = dict(about["settings"])
        settings["kernel"] = kernels.from_settings(settings["kernel"])
        settings["likelihood"] = likelihoods.from_settings(settings["likelihood"])
        loaded = cls(**{**settings, "keep_factors": False})
        if len(arrays["factor.precision"]) != len(arrays["factor.shift"]):
            raise RunMismatch(f"{path}: several columns of y, in units that they share: written by an earlier version")
        factor = saving.read_factor(arrays)
        features, outputs = factor.points.shape[1], len(factor.shift)
        loaded._begin(features, outputs)
        loaded.stream_ = saving.unpack(loaded.stream_, factor, arrays, about)
        for name, size in (("inputs_", features), ("targets_", outputs)):
            moments = Moments.checked(about["count"], arrays[f"{name}.mean"], arrays[f"{name}.total"], size)
            setattr(loaded, name, moments)
        if issubclass(cls, ClassifierMixin):
            check_classes(about["classes"], "classes")
            if len(about["classes"]) != max(2, outputs):
                raise ValueError("classes: there are more or fewer than functions")
            loaded.classes_ = np.array(about["classes"])
        loaded._single = about["single"]
        return loaded._restore_columns(features, about["names"])
