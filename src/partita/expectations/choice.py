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
    problem = None
    if isinstance(wanted, ClosedForm) and not model.closed_form:
        problem = "the model has no closed form"
    elif isinstance(wanted, GaussHermite) and not (model.projected and gaussian and model.outputs == 1):
        problem = "it needs one linear predictor per row and a Gaussian posterior"
    elif isinstance(wanted, LocalReparameterisation) and model.layered and wanted.fixed:
        problem = "networks draw afresh: say fixed=False"
    elif isinstance(wanted, GaussNewton) and not model.layered:
        problem = "it needs a network of dense layers"
    elif isinstance(wanted, DrawnFisher) and not (model.drawn and prior.is_mean_field):
        problem = "it needs a network and a mean-field posterior"
    elif isinstance(wanted, Enumeration) and not is_enumerable(prior):
        problem = f"it needs a posterior over at most {MOST_VALUES} values"
    elif isinstance(wanted, ExpectedHessian) and not vector:
        problem = f"it needs a Gaussian posterior over a vector of at most {MOST_CURVED} numbers"
    elif isinstance(wanted, ExpectedSlope) and not few:
        problem = f"it needs a Gaussian posterior over at most {MOST_CURVED} numbers"
    elif isinstance(wanted, LocalReparameterisation) and not (
        model.layered or (model.projected and gaussian and model.outputs > 1)
    ):
        problem = "it needs dense layers, or several linear predictors per row, and a mean-field posterior"
    if problem:
        raise InputError(f"expectation: {type(wanted).__name__} does not fit {type(model).__name__}: {problem}")
    return wanted
