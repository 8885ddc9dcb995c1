"""The scikit-learn face of regressions and networks whose data are in several places, or arrive over time."""

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from partita.estimators.base import check_labels, check_numbers
from partita.estimators.partitioned_base import Partitioned
from partita.estimators.units import Units
from partita.families.marginals import Marginals
from partita.foundation.fields import Check, check_classes
from partita.foundation.moments import Affine, Moments
from partita.models import AbstractModel, LinearRegression, LogisticRegression, Network, SoftmaxRegression
from partita.result import Result
from partita.server.hyper import LearnHyper
from partita.server.rules import Rule
from partita.server.schedules import Schedule
from partita.solvers import Solver
from partita.telemetry import Callback
from partita.wire.engine import Engine

# Rows of one class, in a batch that has no others, that are worth a word.
MANY_ALIKE = 10


class PartitionedClassifier(ClassifierMixin, Partitioned):  # type: ignore[misc, unused-ignore]
    """Bayesian logistic or softmax regression, or a network, from data at several sites or from a stream.

    `fit(X, y, groups=site)` finds one posterior without ever looking at the rows of two sites together;
    `partial_fit(X, y)` takes a batch and keeps nothing of it but a factor.

    Args:
        hidden: sizes of hidden layers; none: a linear model.
        prior_scale: standard deviation of the weights under the prior, for standardised inputs.
        posterior: "full" covariances of a linear model's weights, or "mean-field"; networks are mean-field.
        schedule: who works next; by default a hundred synchronous rounds, or one pass where that is exact.
        solver: how a site refines its factor; chosen for the model, if not given.
        damping: the share of a proposed change that is taken.
        engine: what carries tasks to sites, such as `pt.engines.Ray()`; this process, if not given. It changes no
            result, and is not saved.
        standardise: inputs, by their means and deviations over all rows so far. When those change, what was learnt is
            converted; a mean-field posterior keeps the means of its first batch, a network all units, and both say so
            where that matters.
        random_state: with the same one, the same result.
        verbose: show how far a fit is from its beginning; otherwise a fit says so after two seconds.
        quiet: say nothing.
    """

    _remembered: ClassVar[dict[str, Check]] = {"classes_": check_classes}
    classes_: np.ndarray

    def _check(self, X: Any, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, np.ndarray]:
        return check_labels(self, X, y, first, classes)

    @property
    def _model(self) -> AbstractModel:
        classes, features = len(self.classes_), self.n_features_in_
        if self.hidden is not None:
            return Network([features, *self._hidden, classes], prior_scale=self.prior_scale)
        if classes == 2:
            return LogisticRegression(features=features, prior_scale=self.prior_scale, posterior=self.posterior)
        return SoftmaxRegression(
            features=features, classes=classes, prior_scale=self.prior_scale, posterior=self.posterior
        )

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()
    ) -> Self:
        """One more batch; `classes` have to be given with the first, if that does not have them all."""
        return self._fit_batch(X, y, sample_weight, callbacks, classes=classes)

    def _warn_of_batch(self, y: np.ndarray) -> None:
        if len(y) >= MANY_ALIKE and np.all(y == y[0]):
            warnings.warn(
                "y: all rows of this batch are of one class: a stream that is sorted by class ends far from what all "
                "rows together say, and its log evidence is too high; mix classes, or fit all rows at once",
                stacklevel=4,
            )

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, averaged over the posterior."""
        inputs = self._check_inputs(X)  # First: it is what says that nothing has been fitted yet.
        return self.result_.predict_proba(inputs)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        probabilities = self.predict_proba(X)
        labels: np.ndarray = self.classes_[probabilities.argmax(axis=1)]
        return labels


class PartitionedRegressor(RegressorMixin, Partitioned):  # type: ignore[misc, unused-ignore]
    """Bayesian linear regression, or a network, from data at several sites or from a stream.

    A linear model's noise is a parameter too; a network's is learnt as a number. Targets are standardised, as inputs
    are.

    Args:
        noise_scale: scale of a linear model's noise under the prior, half a Student t with three degrees of freedom,
            for standardised targets. The intercept's prior is ten times as wide as that of the weights. See
            `PartitionedClassifier` for the others.
    """

    _remembered: ClassVar[dict[str, Check]] = {}

    def __init__(
        self,
        hidden: Sequence[int] | None = None,
        *,
        prior_scale: float = 1.0,
        noise_scale: float = 1.0,
        posterior: Literal["full", "mean-field"] = "full",
        schedule: Schedule | None = None,
        solver: Solver | None = None,
        damping: float | str | Rule = "auto",
        engine: Engine | None = None,
        standardise: bool = True,
        random_state: int = 0,
        verbose: bool = False,
        quiet: bool = False,
    ):
        super().__init__(
            hidden,
            prior_scale=prior_scale,
            posterior=posterior,
            schedule=schedule,
            solver=solver,
            damping=damping,
            engine=engine,
            standardise=standardise,
            random_state=random_state,
            verbose=verbose,
            quiet=quiet,
        )
        self.noise_scale = noise_scale

    def _check(self, X: Any, y: Any, first: bool) -> tuple[np.ndarray, np.ndarray]:
        return check_numbers(self, X, y, first)

    def _target_units(self, target: Moments) -> Affine:
        return target.affine_or_size

    def _scale_targets(self, y: np.ndarray, units: Units) -> np.ndarray:
        return units.target.standardise(y)

    @property
    def _model(self) -> AbstractModel:
        if self.hidden is not None:
            sizes = [self.n_features_in_, *self._hidden, 1]
            return Network(sizes, likelihood="gaussian", noise=0.5, prior_scale=self.prior_scale)
        # Only a full posterior has the noise as a parameter; otherwise it is learnt as a number.
        noise = None if self.posterior == "full" else 0.5
        return LinearRegression(
            features=self.n_features_in_,
            noise=noise,
            noise_scale=self.noise_scale,
            prior_scale=self.prior_scale,
            intercept_scale=10 * self.prior_scale,
            posterior=self.posterior,
        )

    def _hyper(self, before: Result | None = None, rows: float = 0.0) -> LearnHyper | None:
        if "noise" not in self._model.hyper:
            return None
        if before is None:
            return LearnHyper(names="noise")
        # n rows tell of the logarithm of Gaussian noise with a Fisher information of 2n.
        return LearnHyper(names="noise", prior={"noise": (before.hyper["noise"], (2 * rows) ** -0.5)})

    def _coefficients(self) -> Marginals:
        target = self._units.target
        shift = np.append(np.zeros(self.n_features_in_), target.mean)
        return super()._coefficients().scaled(float(target.scale)).shifted(shift)

    @property
    def log_evidence_(self) -> float:
        """A lower bound of log p(y) of all sites; of a stream, a sum of bounds given what is kept of batches before."""
        check_is_fitted(self, "result_")
        denser = sum(part.weight for part in self._parts) * np.log(self._units.target.scale)
        return float(self.result_.log_evidence - denser)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()) -> Self:
        """One more batch."""
        return self._fit_batch(X, y, sample_weight, callbacks)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The expected target; with the standard deviation of a new observation, noise included, if asked."""
        X = self._check_inputs(X)
        target = self._units.target
        mean = target.restore(np.ravel(self.result_.predict(X)))
        if not return_std:
            return mean
        return mean, target.scale * np.ravel(self.result_.predict(X, return_std=True)[1])
