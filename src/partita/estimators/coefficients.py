"""What linear models say about their coefficients, in the units of the data."""

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from partita.errors import InputError, MissingCapability
from partita.estimators.base import Estimator
from partita.estimators.units import Units
from partita.families.marginals import Marginals
from partita.models.linear import to_units_of_data
from partita.result import Result


class Coefficients(Estimator):
    """An estimator of which coefficients can be read off, if its model is linear."""

    result_: Result
    _units: Units

    def _coefficients(self) -> Marginals:
        """What is believed of the coefficients and the intercept, one output after the other."""
        check_is_fitted(self, "result_")
        model = self.result_.model
        try:
            found = model.coefficients(self.result_.posterior)
        except MissingCapability as error:
            raise AttributeError("coefficients: a network has none: use predict") from error
        return found.marginals(np.kron(np.eye(model.outputs), to_units_of_data(*self._units.inputs)))

    def _by_output(self, values: np.ndarray) -> np.ndarray:
        """[outputs, coefficients and intercept]; of a regression there is one output."""
        shaped = values.reshape(-1, self.n_features_in_ + 1)
        return shaped if isinstance(self, ClassifierMixin) else shaped[0]

    @property
    def coef_(self) -> np.ndarray:
        """Posterior means of the coefficients, in the units of the data."""
        return self._by_output(self._coefficients().mean)[..., :-1]

    @property
    def intercept_(self) -> Any:
        """Posterior means of the intercepts, in the units of the data."""
        mean = self._by_output(self._coefficients().mean)[..., -1]
        return mean if isinstance(self, ClassifierMixin) else float(mean)

    def intervals(self, level: float = 0.95) -> np.ndarray:
        """Between which values each coefficient is believed to be: shaped as `coef_`, with a last axis of two."""
        if not 0 < level < 1:
            raise InputError(f"level: expected a number between 0 and 1, got {level}")
        ends = self._coefficients().interval(level)
        return np.stack([self._by_output(end)[..., :-1] for end in ends], axis=-1)
