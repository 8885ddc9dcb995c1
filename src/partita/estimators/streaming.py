"""The scikit-learn face: Gaussian processes that follow a stream."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from partita.errors import InputError
from partita.estimators.base import check_inputs, check_labels, check_numbers
from partita.estimators.streaming_base import DRAWS, StreamingGP
from partita.foundation.runtime import precision
from partita.telemetry import Callback


class StreamingGPRegressor(RegressorMixin, StreamingGP):  # type: ignore[misc, unused-ignore]
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

    def _check(self, X: Any, y: Any, first: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = check_numbers(self, X, y, first, multi_output=True)
        single = y.ndim == 1
        if not first and single != self._single:
            raise InputError("y: has another number of columns than before")
        self._single = single
        y = y.reshape(len(y), -1)
        if not first and y.shape[1] != self.stream_.factor.shift.shape[0]:
            raise InputError(f"y: expected {self.stream_.factor.shift.shape[0]} columns, got {y.shape[1]}")
        return X, y

    def partial_fit(self, X: Any, y: Any, *, callbacks: Sequence[Callback] = ()) -> Self:
        """One more batch: the posterior so far is its prior."""
        return self._fit_batch(X, y, callbacks)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of new observations, and their standard deviation, noise included."""
        mean, variance = self._predict_responses(X)
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
        X = check_inputs(self, X)
        m, S, drawn = self.stream_.joint(self._scale_inputs(X, self.inputs_), DRAWS)
        generator, gp = np.random.default_rng(random_state), self.stream_.gp
        chosen = generator.integers(len(m), size=n_samples)
        roots = {which: [take_root(matrix) for matrix in S[which]] for which in np.unique(chosen)}
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


class StreamingGPClassifier(ClassifierMixin, StreamingGP):  # type: ignore[misc, unused-ignore]
    """Gaussian process classification on a stream; arguments are those of `StreamingGPRegressor`.

    The likelihood is "probit" or "logit". With more than two classes there is one function per class, against all
    others, with one kernel; their probabilities are scaled to add up to one.
    """

    _default_likelihood = "probit"

    def _check(self, X: Any, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Labels become one column of zeros and ones; of more than two classes, one for each."""
        if not self._gp().likelihood.classifies:
            raise InputError(f'likelihood: expected "probit" or "logit", got {self.likelihood!r}')
        X, places = check_labels(self, X, y, first, classes)
        wanted = [1] if len(self.classes_) == 2 else np.arange(len(self.classes_))
        return X, (places[:, None] == wanted).astype(float)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, *, callbacks: Sequence[Callback] = ()) -> Self:
        """One more batch; the first has to name all `classes`, unless it shows them."""
        return self._fit_batch(X, y, callbacks, classes=classes)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of all classes, averaged over functions and hyperparameters."""
        mean, _ = self._predict_responses(X)
        if len(self.classes_) == 2:
            return np.stack([1 - mean[0], mean[0]], axis=1)
        mean = np.maximum(mean.T, 1e-12)
        probabilities: np.ndarray = mean / mean.sum(axis=1, keepdims=True)
        return probabilities

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        check_is_fitted(self, "stream_")
        labels: np.ndarray = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return labels


def take_root(matrix: np.ndarray) -> np.ndarray:
    """A square root of a covariance that may be singular."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    root: np.ndarray = vectors * np.sqrt(np.maximum(values, 0))
    return root
