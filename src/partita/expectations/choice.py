"""Which expectation fits a model."""

from partita.errors import InputError
from partita.expectations.base import Expectation
from partita.expectations.networks import DrawnFisher, GaussNewton
from partita.expectations.parameters import Enumeration, ExpectedHessian, ExpectedSlope, MonteCarlo
from partita.expectations.predictors import ClosedForm, GaussHermite, LocalReparameterisation
from partita.families import Family
from partita.models import AbstractModel

# Up to how many parameters Hessians, and gradients at many points, are worth their price; and up to how many values
# that parameters can take they are all looked at.
MOST_CURVED = 300
MOST_VALUES = 2**16


def is_enumerable(q: Family) -> bool:
    """Whether a density is over so few values that all of them can be looked at."""
    return q.values is not None and q.values <= MOST_VALUES


def choose(model: AbstractModel, prior: Family, wanted: Expectation | None = None) -> Expectation:
    """The best expectation that a model allows, or the wanted one if it is possible."""
    gaussian = prior.is_gaussian
    few = gaussian and prior.as_gaussian("expectation").size <= MOST_CURVED
    vector = few and prior.as_gaussian("expectation").is_vector
    if wanted is None:
        if model.closed_form:
            return ClosedForm()
        if model.layered and prior.is_mean_field:
            return GaussNewton()
        if model.drawn and prior.is_mean_field:
            return DrawnFisher()
        if model.projected and gaussian:
            return GaussHermite() if model.outputs == 1 else LocalReparameterisation()
        if is_enumerable(prior):
            return Enumeration()
        if model.drawn or not few:
            return MonteCarlo()
        return ExpectedHessian() if model.smooth and vector else ExpectedSlope()
    linear = model.projected and gaussian
    dense = "it needs dense layers, or several linear predictors per row, and a mean-field posterior"
    draws_afresh = not (model.layered and isinstance(wanted, LocalReparameterisation) and wanted.fixed)
    needs: tuple[tuple[type[Expectation], bool, str], ...] = (
        (ClosedForm, model.closed_form, "the model has no closed form"),
        (GaussHermite, linear and model.outputs == 1, "it needs one linear predictor per row and a Gaussian posterior"),
        (LocalReparameterisation, draws_afresh, "networks draw afresh: say fixed=False"),
        (GaussNewton, model.layered, "it needs a network of dense layers"),
        (DrawnFisher, model.drawn and prior.is_mean_field, "it needs a network and a mean-field posterior"),
        (Enumeration, is_enumerable(prior), f"it needs a posterior over at most {MOST_VALUES} values"),
        (ExpectedHessian, vector, f"it needs a Gaussian posterior over a vector of at most {MOST_CURVED} numbers"),
        (ExpectedSlope, few, f"it needs a Gaussian posterior over at most {MOST_CURVED} numbers"),
        (LocalReparameterisation, model.layered or (linear and model.outputs > 1), dense),
    )
    for kind, possible, words in needs:
        if isinstance(wanted, kind) and not possible:
            raise InputError(f"expectation: {type(wanted).__name__} does not fit {type(model).__name__}: {words}")
    return wanted
