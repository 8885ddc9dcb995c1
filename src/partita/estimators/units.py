"""Units of columns and targets, and how what was learnt in one kind of them is said in another.

A linear predictor sees weights only through (x - centre)ᵀ w / unit and an intercept, so that other centres and units
make weights that are a linear function of the old ones. Factors are changed with them, exactly; the prior is not, for
it is relative to the units.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from partita.errors import InputError
from partita.families import Family, Substitution
from partita.foundation.moments import Affine, Moments, join_moments
from partita.models.linear import LinearPredictor, to_units_of_data
from partita.result import Result

# By how much a column may be larger in units that are kept than in its own: a mean-field posterior that does not know
# where the middle of a column is has intervals that are too narrow by as much; a network has another prior.
LINEAR_SLACK, NETWORK_SLACK = 1.1, 2.0


class Units(NamedTuple):
    """The means and scales of all columns of inputs, and of the target."""

    inputs: Affine
    target: Affine

    def same_as(self, other: "Units") -> bool:
        return self.inputs.same_as(other.inputs) and self.target.same_as(other.target)

    def sizes(self, own: "Units") -> np.ndarray:
        """How large columns and the target are in these units, as root mean squares, where in their own they are 1."""
        pairs = ((self.inputs, own.inputs), (self.target, own.target))
        each = [np.hypot(theirs.mean - kept.mean, theirs.scale) / kept.scale for kept, theirs in pairs]
        return np.concatenate([np.atleast_1d(size) for size in each])


def measure_units(each: Sequence[Moments], standardise: bool, of_target: Callable[[Moments], Affine]) -> Units:
    """Units in which columns have mean 0 and deviation 1 over all rows of several places.

    Args:
        each: moments of every place's columns, the target last.
        standardise: otherwise columns and targets are left in their own units.
        of_target: what the units of a target are that has such moments.
    """
    together = join_moments(each)
    if not standardise:
        return Units(Affine.unchanged(len(together.mean) - 1), Affine.unchanged())
    inputs, target = (Moments(together.count, together.mean[k], together.total[k]) for k in (slice(0, -1), -1))
    return Units(inputs.affine, of_target(target))


def substitution(outputs: int, before: Units, after: Units) -> Substitution:
    """Weights in units from before, as functions of those in units from now on."""
    old, new = before.inputs, after.inputs
    T = to_units_of_data((new.mean - old.mean) / old.scale, new.scale / old.scale)
    larger = float(after.target.scale / before.target.scale)
    shift = np.zeros(len(T))
    shift[-1] = (after.target.mean - before.target.mean) / before.target.scale
    return Substitution(np.kron(np.eye(outputs), larger * T), np.tile(shift, outputs), larger)


def convert(result: Result, before: Units, after: Units, weights: Sequence[float]) -> Result:
    """A result of a linear model in other units, under the same prior relative to them.

    `weights` are of the rows behind each factor, whose targets have another density in other units. The log evidence
    stays what it is of: ∏ factors integrated over the prior, times constants of the factors.
    """
    model = result.model
    if not isinstance(model, LinearPredictor):
        raise InputError("units: only those of linear models can be changed")
    change = substitution(model.outputs, before, after)
    pairs = [factor.substituted(change) for factor in result.factors]
    posterior = join(result.prior, [factor for factor, _ in pairs])
    if not posterior.is_proper():
        raise InputError("units: in others the posterior is not proper")
    denser = np.log(change.noise) * np.asarray(weights)
    gained = float(posterior.log_partition() - result.posterior.log_partition())
    return replace(
        result,
        posterior=posterior,
        factors=tuple(factor for factor, _ in pairs),
        log_evidence=result.log_evidence + gained + sum(constant for _, constant in pairs) + float(denser.sum()),
        expected_log_probs=tuple(
            float(prob + more) for prob, more in zip(result.expected_log_probs, denser, strict=True)
        ),
        hyper={name: value / change.noise if name == "noise" else value for name, value in result.hyper.items()},
    )


def join(prior: Family, factors: Sequence[Family]) -> Family:
    """prior × ∏ factors."""
    return reduce(lambda a, b: a * b, factors, prior)
