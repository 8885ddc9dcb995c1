"""The scikit-learn face: Gaussian processes that follow a stream."""

import os
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from scipy.special import ndtri
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from partita._version import __version__
from partita.errors import ImproperDensity, InputError, RunMismatch
from partita.foundation.archives import check_finite, doubted, read_arrays, write_arrays
from partita.foundation.checks import check_count
from partita.foundation.fields import anything, check_classes, entries, fields, flag, items, maybe, number, text, whole
from partita.foundation.frames import check_columns
from partita.foundation.moments import Moments
from partita.foundation.plain import Row, plain
from partita.foundation.runtime import precision
from partita.gp import kernels, likelihoods
from partita.gp.beliefs import Beliefs
from partita.gp.learning import Learning
from partita.gp.placement import MOST_JITTER
from partita.gp.sparse import Factor, SparseGP, by_output
from partita.gp.stream import Stream
from partita.shards import as_numbers, check_rows
from partita.site.columns import warn_of_units
from partita.telemetry import Progress

# Draws of the hyperparameters that predictions average over.
DRAWS = 16
# What a file says of a stream, beside arrays. Other settings are looked at by what they make.
SETTINGS = fields(
    {"kernel": entries(anything), "likelihood": entries(anything)},
    {"random_state": maybe(whole()), "batch_size": whole(1)}
    | dict.fromkeys(("move_points", "standardise", "keep_factors", "verbose", "quiet"), flag),
    anything,
)
STREAM = fields(
    {
        "settings": SETTINGS,
        "count": number(0),
        "batches": whole(),
        "jitter": number(above=0, most=MOST_JITTER),
        "log_evidence": maybe(number()),
        "names": items(text()),
        "classes": items(anything),
        "single": flag,
    },
    others=anything,
)
# Of the largest eigenvalue: how far below zero rounding may take others.
ROUNDING = 1e-3
# Logarithms of hyperparameters are nearer to zero, so that their exponentials are numbers.
FAR = 100.0


class _StreamingGP(BaseEstimator):
    """What regression and classification share."""

    stream_: Stream
    inputs_: Moments
    targets_: Moments
    scales_inputs_: bool
    scales_targets_: bool
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

    def _progress(self) -> Progress:
        """Said from the beginning, if asked; else after two seconds, unless nobody wants to hear of it."""
        return Progress(type(self).__name__, quiet=bool(self.quiet), patient=not self.verbose)

    def _gp(self) -> SparseGP:
        kernel = kernels.SquaredExponential() if self.kernel is None else self.kernel
        if not isinstance(kernel, kernels.Kernel):
            raise InputError(f"kernel: expected a kernel such as pt.gp.kernels.Matern32(), got {kernel!r}")
        return SparseGP(kernel, likelihoods.named(self.likelihood or self._default_likelihood))

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
        seed = 0 if self.random_state is None else int(self.random_state)
        self.stream_ = Stream.begin(gp, self._learning(), features, outputs, seed, self.keep_factors)
        self.inputs_, self.targets_ = Moments(), Moments()
        self.scales_inputs_ = bool(self.standardise)
        self.scales_targets_ = self.scales_inputs_ and isinstance(
            gp.likelihood, likelihoods.Normal | likelihoods.StudentT
        )

    def _absorb(self, X: np.ndarray, y: np.ndarray) -> None:
        """X [rows, features], y [rows, outputs], in their own units. Nothing changes if it fails."""
        stream = self.stream_
        stream.gp.likelihood.check(y)
        learning = self._learning()
        if learning.hyperparameters != stream.learning.hyperparameters:
            raise InputError("hyperparameters: cannot change within a stream: call fit, or begin another one")
        stream = replace(stream, learning=learning)
        inputs, targets = self.inputs_.with_rows(X), self.targets_.with_rows(y)
        warn_of_units("X", self.inputs_, X, stacklevel=4)
        if self.scales_targets_:
            warn_of_units("y", self.targets_, y, stacklevel=4)
        if self.scales_inputs_ and stream.batches:
            units = (self.targets_.affine, targets.affine) if self.scales_targets_ else None
            stream = stream.rescaled(self.inputs_.affine, inputs.affine, units)
        stream = stream.absorb(self._scaled_inputs(X, inputs), self._scaled_targets(y, targets))
        if self.scales_targets_:
            # Densities of standardised targets are higher by the scale.
            evidence = stream.log_evidence - len(y) * np.log(targets.affine.scale).sum()
            stream = replace(stream, log_evidence=float(evidence))
        self.inputs_, self.targets_, self.stream_ = inputs, targets, stream

    def _scaled_inputs(self, X: np.ndarray, inputs: Moments) -> np.ndarray:
        return (X - inputs.affine.mean) / inputs.affine.scale if self.scales_inputs_ else X

    def _scaled_targets(self, y: np.ndarray, targets: Moments) -> np.ndarray:
        return ((y - targets.affine.mean) / targets.affine.scale).T if self.scales_targets_ else y.T

    def _latent(self, X: Any) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        check_is_fitted(self, "stream_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return self.stream_.latent(self._scaled_inputs(X, self.inputs_), DRAWS)

    def _responses(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y [outputs, rows], averaged over draws of the hyperparameters; standardised."""
        m, v, drawn = self._latent(X)
        gp = self.stream_.gp
        with precision(np.float64):
            each = [
                by_output(gp.likelihood.response, gp.split({name: a[s] for name, a in drawn.items()})[1], m[s], v[s])
                for s in range(len(m))
            ]
        means, variances = (np.stack([np.asarray(pair[i]) for pair in each]) for i in (0, 1))
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
    def pseudo_points_(self) -> np.ndarray:
        """Where the pseudo-points are, in the units of the inputs."""
        check_is_fitted(self, "stream_")
        points = self.stream_.points
        return points * self.inputs_.affine.scale + self.inputs_.affine.mean if self.scales_inputs_ else points

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
        X, y = self._checked(X, y, first=False)
        self.stream_.gp.likelihood.check(y)
        self.stream_ = self.stream_.refined(
            batch, self._scaled_inputs(X, self.inputs_), self._scaled_targets(y, self.targets_)
        )
        return self

    def _started(self, X: Any, y: Any, **more: Any) -> tuple[np.ndarray, np.ndarray]:
        """Checked, with a stream to take them."""
        first = not hasattr(self, "stream_")
        X, y = self._checked(X, y, first=first, **more)
        if first:
            self._gp().likelihood.check(y)
            self._begin(X.shape[1], y.shape[1])
        return X, y

    def fit(self, X: Any, y: Any) -> Self:
        """Begin anew, with rows in batches of `batch_size`, in the order in which they are."""
        check_count(batch_size=self.batch_size)
        X, y = self._checked(X, y, first=True)
        self._gp().likelihood.check(y)
        self._begin(X.shape[1], y.shape[1])
        with self._progress() as progress:
            for start in range(0, len(X), self.batch_size):
                progress.show(start, len(X), "rows")
                self._absorb(X[start : start + self.batch_size], y[start : start + self.batch_size])
            progress.show(len(X), len(X), "rows")
        return self

    def save(self, path: str | os.PathLike) -> None:
        """Write one file, complete or not at all; `load` reads it. Factors of single batches are not kept."""
        check_is_fitted(self, "stream_")
        stream = self.stream_
        settings = {
            **self.get_params(),
            "kernel": kernels.to_settings(stream.gp.kernel),
            "likelihood": likelihoods.to_settings(stream.gp.likelihood),
            "standardise": self.scales_inputs_,
        }
        arrays = {f"factor.{name}": np.asarray(a) for name, a in stream.factor._asdict().items()}
        for name, part in stream.hyper._asdict().items():
            arrays |= {f"hyper.{name}.{key}": np.asarray(value) for key, value in part.items()}
        for name in ("inputs_", "targets_"):
            moments = getattr(self, name)
            arrays |= {f"{name}.mean": np.asarray(moments.mean), f"{name}.total": np.asarray(moments.total)}
        about = {
            "version": __version__,
            "estimator": type(self).__name__,
            "settings": settings,
            "count": self.inputs_.count,
            "batches": stream.batches,
            "jitter": stream.jitter,
            "log_evidence": None if np.isnan(stream.log_evidence) else stream.log_evidence,
            "names": getattr(self, "feature_names_in_", np.array([])).tolist(),
            "classes": self.classes_.tolist() if hasattr(self, "classes_") else [],
            "single": getattr(self, "_single", True),
        }
        write_arrays(path, arrays, plain(about))

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """What `save` wrote: it predicts, and learns on."""
        arrays, about = read_arrays(path)
        check_finite(path, arrays)
        if about.get("estimator") != cls.__name__:
            raise RunMismatch(f"{path}: holds a {about.get('estimator', 'result')}, not a {cls.__name__}")
        with doubted(path):
            return cls._unpacked(path, arrays, about)

    @classmethod
    def _unpacked(cls, path: str | os.PathLike, arrays: dict[str, np.ndarray], about: Row) -> Self:
        STREAM(about, "stream")
        settings = dict(about["settings"])
        settings["kernel"] = kernels.from_settings(settings["kernel"])
        settings["likelihood"] = likelihoods.from_settings(settings["likelihood"])
        loaded = cls(**{**settings, "keep_factors": False})
        parts = {
            name: {key.split(".", 2)[2]: value for key, value in arrays.items() if key.startswith(f"hyper.{name}.")}
            for name in Beliefs._fields
        }
        factor = Factor(**{name: arrays[f"factor.{name}"] for name in Factor._fields})
        if len(factor.precision) != len(factor.shift):
            raise RunMismatch(f"{path}: several columns of y, in units that they share: written by an earlier version")
        _check_factor(factor)
        loaded._begin(factor.points.shape[1], len(factor.shift))
        _check_beliefs(loaded.stream_.hyper, parts)
        loaded.stream_ = replace(
            loaded.stream_,
            hyper=Beliefs(**parts),
            factor=factor,
            log_evidence=np.nan if about["log_evidence"] is None else about["log_evidence"],
            jitter=about["jitter"],
            batches=about["batches"],
        )
        for name in ("inputs_", "targets_"):
            size = factor.points.shape[1] if name == "inputs_" else len(factor.shift)
            moments = Moments.checked(about["count"], arrays[f"{name}.mean"], arrays[f"{name}.total"], size)
            setattr(loaded, name, moments)
        if issubclass(cls, ClassifierMixin):
            check_classes(about["classes"], "classes")
            if len(about["classes"]) != max(2, len(factor.shift)):
                raise ValueError("classes: there are more or fewer than functions")
            loaded.classes_ = np.array(about["classes"])
        loaded.n_features_in_ = factor.points.shape[1]
        if about["names"]:
            items(text(), loaded.n_features_in_)(about["names"], "names")
            loaded.feature_names_in_ = np.array(about["names"], dtype=object)
        loaded._single = about["single"]
        return loaded


class StreamingGPRegressor(RegressorMixin, _StreamingGP):
    """Gaussian process regression on a stream: `partial_fit` takes a batch, and no old data are kept.

    Inputs and targets are standardised by what has been seen so far. Several columns of y share the kernel and its
    hyperparameters, relative to the spread of each; each has its own noise.

    Args:
        kernel: squared exponential with a lengthscale per feature, if not given; in units of standardised inputs.
        likelihood: "gaussian", "student-t", "poisson", or one with starting values, such as `likelihoods.Normal(0.1)`.
        points_per_batch: pseudo-points added with every batch.
        pseudo_points: "private" leaves those of earlier batches where they are; "shared" moves all at every batch.
        hyperparameters: "variational" keeps a distribution over them, "ml" the best point, "fixed" the given ones.
        max_points: how many pseudo-points there may be; time and memory grow with the stream without it.
        variance_threshold: add fewer points where rows are determined up to this share of the prior variance.
        selection: of new points: "variance" (the rows that are determined least) or "k-means".
        move_points: whether new points are then moved by gradient, while there are fewer than `max_points`.
        steps: of the optimiser, per batch.
        learning_rate: of the optimiser.
        samples: draws of the hyperparameters per step.
        batch_size: of `fit`, which is a stream of the rows in their order.
        standardise: whether the estimator scales inputs and targets.
        keep_factors: keep every batch's own factor, for `forget` and `revisit`.
        random_state: a whole number; the same one gives the same result.
        verbose: show how far a fit is from its beginning; otherwise it says so after two seconds.
        quiet: say nothing.

    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> model = StreamingGPRegressor(points_per_batch=5, steps=20).partial_fit(X[:10], np.sin(6 * X[:10, 0]))
    >>> mean, std = model.partial_fit(X[10:], np.sin(6 * X[10:, 0])).predict(X, return_std=True)
    >>> bool(np.abs(mean - np.sin(6 * X[:, 0])).max() < 0.2)
    True
    """

    _default_likelihood = "gaussian"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _checked(self, X: Any, y: Any, first: bool) -> tuple[np.ndarray, np.ndarray]:
        check_columns(None, X)
        X, y = validate_data(self, X, y, reset=first, dtype=np.float64, multi_output=True, y_numeric=True)
        y = as_numbers(None, "y", y, np.float64)
        check_rows(None, {"X": X, "y": y})
        single = y.ndim == 1
        if not first and single != self._single:
            raise InputError("y: has another number of columns than before")
        self._single = single
        y = y.reshape(len(y), -1)
        if not first and y.shape[1] != self.stream_.factor.shift.shape[0]:
            raise InputError(f"y: expected {self.stream_.factor.shift.shape[0]} columns, got {y.shape[1]}")
        return X, y

    def partial_fit(self, X: Any, y: Any) -> Self:
        """One more batch: the posterior so far is its prior."""
        X, y = self._started(X, y)
        with self._progress():
            self._absorb(X, y)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of new observations, and their standard deviation, noise included."""
        mean, variance = self._responses(X)
        if self.scales_targets_:
            units = self.targets_.affine
            mean, variance = mean * units.scale[:, None] + units.mean[:, None], variance * units.scale[:, None] ** 2
        mean, std = mean.T, np.sqrt(variance).T
        if self._single:
            mean, std = mean[:, 0], std[:, 0]
        return (mean, std) if return_std else mean

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int | None = 0) -> np.ndarray:
        """Draws of new observations at all rows together: [rows, draws], or [rows, outputs, draws]."""
        check_is_fitted(self, "stream_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        m, S, drawn = self.stream_.joint(self._scaled_inputs(X, self.inputs_), DRAWS)
        generator, gp = np.random.default_rng(random_state), self.stream_.gp
        chosen = generator.integers(len(m), size=n_samples)
        roots = {which: [_root(matrix) for matrix in S[which]] for which in np.unique(chosen)}
        out = np.empty((len(X), m.shape[1], n_samples))
        with precision(np.float64):
            for number, which in enumerate(chosen):
                params = gp.split({name: value[which] for name, value in drawn.items()})[1]
                for output in range(m.shape[1]):
                    f = m[which, output] + roots[which][output] @ generator.standard_normal(len(X))
                    own = {name: value[output] if np.ndim(value) else value for name, value in params.items()}
                    out[:, output, number] = gp.likelihood.draw(own, f, generator)
        if self.scales_targets_:
            units = self.targets_.affine
            out = out * units.scale[:, None] + units.mean[:, None]
        return out[:, 0] if self._single else out


class StreamingGPClassifier(ClassifierMixin, _StreamingGP):
    """Gaussian process classification on a stream; arguments are those of `StreamingGPRegressor`.

    The likelihood is "probit" or "logit". With more than two classes there is one function per class, against all
    others, with one kernel; their probabilities are scaled to add up to one.
    """

    _default_likelihood = "probit"

    def _checked(self, X: Any, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, np.ndarray]:
        check_columns(None, X)
        X, y = validate_data(self, X, y, reset=first, dtype=np.float64)
        check_rows(None, {"X": X})
        check_classification_targets(y)
        if not isinstance(self._gp().likelihood, likelihoods.Bernoulli):
            raise InputError(f'likelihood: expected "probit" or "logit", got {self.likelihood!r}')
        if first:
            self.classes_ = np.unique(y if classes is None else classes)
            if len(self.classes_) < 2:
                raise InputError("y: has only one class; with partial_fit, name all of them: classes=[...]")
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError(f"classes: cannot change within a stream, where they are {self.classes_.tolist()}")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"y: the class {unknown.tolist()[0]!r} was not named before: {self.classes_.tolist()}")
        if len(self.classes_) == 2:
            return X, (y == self.classes_[1]).astype(float)[:, None]
        return X, (y[:, None] == self.classes_).astype(float)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """One more batch; the first has to name all `classes`, unless it shows them."""
        X, y = self._started(X, y, classes=classes)
        with self._progress():
            self._absorb(X, y)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of all classes, averaged over functions and hyperparameters."""
        mean, _ = self._responses(X)
        if len(self.classes_) == 2:
            return np.stack([1 - mean[0], mean[0]], axis=1)
        mean = np.maximum(mean.T, 1e-12)
        return mean / mean.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        check_is_fitted(self, "stream_")
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def _check_factor(factor: Factor) -> None:
    """That a factor from a file is one: of shapes that go together, and with precisions that take nothing back."""
    if factor.points.ndim != 2 or factor.shift.ndim != 2:
        raise ValueError("factor: points or shifts are no tables")
    (capacity, _), outputs = factor.points.shape, len(factor.shift)
    shapes = ((capacity,), (outputs, capacity), (outputs, capacity, capacity))
    if tuple(part.shape for part in factor[1:]) != shapes or 0 in factor.precision.shape + factor.points.shape:
        raise ValueError(f"factor: the shapes of its parts, {[part.shape for part in factor]}, do not go together")
    if any(part.dtype != np.float64 for part in factor) or not np.isin(factor.present, (0, 1)).all():
        raise ValueError("factor: expected float64, and points that are there or not")
    for one in factor.precision:
        values = np.linalg.eigvalsh(0.5 * (one + one.T))
        symmetric = np.allclose(one, one.T, 1e-6, 1e-6 * max(values[-1], 0))
        if values[0] < -ROUNDING * max(values[-1], 0) or not symmetric:
            raise ImproperDensity("factor: its precision is not that of a Gaussian")


def _check_beliefs(own: Beliefs, found: dict[str, dict[str, np.ndarray]]) -> None:
    """That a file has beliefs about the hyperparameters that there are."""
    for name, wanted in own._asdict().items():
        shapes = {key: np.shape(value) for key, value in wanted.items()}
        if shapes != {key: value.shape for key, value in found[name].items()}:
            raise ValueError(f"hyper: the {name} is of other hyperparameters than the kernel's and the likelihood's")
        if any(value.dtype != np.float64 or np.any(np.abs(value) > FAR) for value in found[name].values()):
            raise ValueError(f"hyper: the {name} of a logarithm is beyond all")
    if any(np.any(value < 0) for value in found["scale"].values()):
        raise ValueError("hyper: a deviation is negative")


def _root(matrix: np.ndarray) -> np.ndarray:
    """A square root of a covariance that may be singular."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return vectors * np.sqrt(np.maximum(values, 0))
