"""A model: prior × likelihood, and what it can say in closed form."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import numpy as np

from partita.errors import ImproperDensity, InputError, MissingCapability, ShardError
from partita.families import Family
from partita.foundation.runtime import Array, on_host, precision
from partita.foundation.shapes import Inputs, PerRow, Scalar
from partita.metrics import classification, regression
from partita.models.coefficients import Coefficients, name_leaves, name_place
from partita.models.opening import Opening
from partita.shards import Shard, as_numbers, check_rows, check_weights, make_shard

Hyper = dict[str, Any]
# The most natural parameters of a model that a file names.
MOST_NUMBERS = 10_000_000


class Rows(NamedTuple):
    """Inputs and targets."""

    X: Array
    y: Array


class AbstractModel(Opening):
    """What a solver needs of a model; `log_prob` is enough, the rest is optional and faster."""

    # Whether the model has `expected_log_prob`.
    closed_form: ClassVar[bool] = False
    # Whether that is linear in the mean parameters, given local latent variables if there are any: a whole step then
    # never lowers the free energy, and is exact without them.
    conjugate: ClassVar[bool] = False
    # Whether the likelihood sees θ only through Xθ, and how many of those a row has.
    projected: ClassVar[bool] = False
    outputs: ClassVar[int] = 1
    # Whether it is a network of dense layers; and whether it is a network of any kind, whose weights are always drawn.
    layered: ClassVar[bool] = False
    drawn: ClassVar[bool] = False
    # Whether it has exponentials, whose expectation under a wide prior is too large to start from.
    steep: ClassVar[bool] = False
    # Whether `natural_prior` computes in NumPy, so that nothing has to be compiled for it.
    prior_on_host: ClassVar[bool] = False
    # Whether it is of targets given inputs, or of rows by themselves, which are then all that a shard is.
    takes_target: ClassVar[bool] = True
    # For files that are made: of settings that have no value of their own, one to begin with, and what it is.
    suggested: ClassVar[Mapping[str, tuple[Any, str]]] = {}

    given_prior: Family | None = eqx.field(default=None, kw_only=True)

    @classmethod
    def for_data(cls, X: np.ndarray, y: Any, **settings: Any) -> Self:
        """A model of the right size for data like these, with what a file says of it."""
        raise MissingCapability(f"{cls.__name__} cannot be made from settings of a file")

    def to_settings(self) -> dict[str, Any] | None:
        """What makes the same model again, as plain values, to store; None of one that holds code, or arrays."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "given_prior"]
        values = {name: getattr(self, name) for name in names}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        kinds = (str, int, float, bool, np.number, list, type(None))
        return plain if all(isinstance(value, kinds) for value in plain.values()) else None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The inverse of `to_settings`."""
        return cls(**settings)

    @property
    def exact(self) -> bool:
        """Whether a site's factor does not depend on the others', so that one pass is the answer."""
        return False

    @property
    def smooth(self) -> bool:
        """Whether log p has a Hessian, over a vector of parameters, that tells all of its curvature."""
        return False

    @property
    def hyper(self) -> Hyper:
        """Starting values of the hyperparameters ε: positive numbers by name."""
        return {}

    @abstractmethod
    def natural_prior(self, hyper: Hyper) -> Family:
        """p(θ | ε)."""

    @abstractmethod
    def log_prob(self, params: Any, data: Any, hyper: Hyper) -> PerRow:
        """log p(y_n | θ, ε) for each row."""

    @abstractmethod
    def shard(self, site: int, raw: Any) -> Shard:
        """Check one site's data."""

    def named(self, draws: Any) -> Any:
        """Draws of the parameters, as people know them."""
        return draws

    def variables(self, draws: Any) -> dict[str, np.ndarray]:
        """Draws of the parameters by name: as `named` has them, or by where they are in their tree."""
        return name_leaves(self.named(draws))

    def coefficients(self, posterior: Family) -> Coefficients:
        """What a posterior says of the coefficients, by name; for models that have any."""
        raise MissingCapability(f"coefficients: a {type(self).__name__} has none: use predict, or sample")

    def parameter_name(self, tree: Any, place: int, features: Sequence[str] = ()) -> str:
        """What one of all numbers of a tree of parameters is called; features may have names of their own."""
        return name_place(tree, place)

    def observed(self, data: Any) -> dict[str, Array]:
        """What was observed, by name, in a shard's data."""
        return {}

    def replicated(self, params: Any, data: Any, hyper: Hyper, key: Array) -> dict[str, Array]:
        """New observations in the place of those, given θ; nothing, where a model cannot draw them."""
        return {}

    def expected_log_prob(self, mean: Any, data: Any, hyper: Hyper) -> PerRow:
        """E_q[log p(y_n | θ, ε)] for each row, from the mean parameters of q; where `closed_form`."""
        raise InputError(f"{type(self).__name__} has no closed form")

    def pointwise(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        """log p(y | f, ε) for one row, from its linear predictors f = xθ; where `projected`."""
        raise InputError(f"{type(self).__name__} has no linear predictor")

    def prior(self, hyper: Hyper) -> Family:
        """p(θ | ε), or the density that `with_prior` put in its place."""
        return self.natural_prior(hyper) if self.given_prior is None else self.given_prior

    def doubts(self, posterior: Family) -> list[str]:
        """What about a fitted posterior looks as if the prior were not meant for these data, with the remedy."""
        return []

    def with_prior(self, prior: Family) -> Self:
        """The same likelihood with another prior: yesterday's posterior, for a stream.

        In place of a Gaussian it may be one of another structure, which the posterior then has too.
        """
        if not prior.is_proper():
            raise ImproperDensity("prior: must be proper")
        own = prior_of(self, self.hyper)
        if not (own.is_gaussian and prior.is_gaussian and prior.as_gaussian("prior").is_over_same(own)):
            check_like(own, prior=prior)
        return eqx.tree_at(lambda model: model.given_prior, self, prior, is_leaf=lambda leaf: leaf is None)

    def with_hyper(self, hyper: Hyper) -> Self:
        """The same model with other starting values of its hyperparameters."""
        return dataclasses.replace(self, **hyper)

    @property
    def start(self) -> Family | None:
        """A density from which refinements of the untouched prior start, where the prior is a bad place."""
        return narrow(prior_of(self, self.hyper)) if self.steep and self.given_prior is None else None

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float64)


class Predictor(AbstractModel):
    """A model of targets given inputs, which predicts: p(y | f) with f the outputs of something with parameters θ."""

    @classmethod
    @abstractmethod
    def for_data(cls, X: np.ndarray, y: np.ndarray, **settings: Any) -> Self:
        """A model of the right size for data like these."""

    @abstractmethod
    def design(self, site: int | None, X: Any) -> np.ndarray:
        """Check inputs, and give them the shape that `predictors` takes."""

    @abstractmethod
    def targets(self, site: int, y: np.ndarray) -> np.ndarray:
        """Check the targets of one site."""

    @abstractmethod
    def predictors(self, params: Any, X: Array) -> Array:
        """f for every row."""

    def draws(self, q: Any, X: Array) -> Callable[[Array], Array]:
        """A function from a random key to f for every row, with θ ~ q. What all draws share is computed here, once."""
        return lambda key: self.predictors(q.sample(key), X)

    def predictor_moments(self, q: Any, X: Array) -> tuple[Array, Array] | None:
        """Mean and variance of f for every row, where f is Gaussian under q."""
        return q.as_gaussian("predict").moments_along(X) if self.projected and q.is_gaussian else None

    @abstractmethod
    def response(self, f: Array) -> Array:
        """What is predicted at f: a probability, a rate, a mean; probabilities of all classes if there are several."""

    def expected_response(self, q: Any, X: Array) -> Array | None:
        """E_q[response(f)] for each row, where the model has a formula for it."""
        return None

    def sample_targets(self, f: Array, hyper: Hyper, key: Array, like: Array) -> Array:
        """y ~ p(y | f) for each row, of the kind of `like`, observed ones."""
        raise InputError(f"{type(self).__name__} does not draw targets")

    def observed(self, data: Rows) -> dict[str, Array]:
        """The targets, as one number per row where there is only one."""
        return {"y": data.y.reshape(len(data.y)) if data.y.size == len(data.y) else data.y}

    def replicated(self, params: Any, data: Rows, hyper: Hyper, key: Array) -> dict[str, Array]:
        drawn = self.sample_targets(self.predictors(params, data.X), hyper, key, data.y)
        return self.observed(data._replace(y=drawn))

    def predictive_variance(self, q: Any, X: Inputs, hyper: Hyper) -> PerRow:
        """The variance of new observations, noise included, where these are numbers around a mean."""
        raise InputError(f"return_std: {type(self).__name__} has no normal predictive; use predict_proba or sample")

    def log_prob(self, params: Any, data: Rows, hyper: Hyper) -> PerRow:
        return jax.vmap(lambda f, y: self.pointwise(f, y, hyper))(self.predictors(params, data.X), data.y)

    def shard(self, site: int, raw: Any) -> Shard:
        """Check `(X, y)` or `(X, y, weights)`."""
        if not isinstance(raw, tuple | list) or len(raw) not in (2, 3):
            raise ShardError(site, "shard", "expected (X, y) or (X, y, weights)")
        X = self.design(site, raw[0])
        y = as_numbers(site, "y", raw[1], self.dtype)
        check_rows(site, {"X": X, "y": y})
        weights = check_weights(site, raw[2] if len(raw) == 3 else None, len(X), self.dtype)
        return make_shard(Rows(X, self.targets(site, y)), weights)

    def predict(self, response: np.ndarray) -> np.ndarray:
        """A decision from the expected response."""
        return response

    def classifies(self, response: np.ndarray) -> bool:
        """Whether expected responses are probabilities of classes."""
        return response.ndim == 2

    def score(self, response: np.ndarray, y: np.ndarray) -> dict[str, float]:
        """How good expected responses are, against observed targets."""
        return classification(response, y) if self.classifies(response) else regression(response, y)


def check_labels(site: int, y: np.ndarray, classes: int) -> np.ndarray:
    """Labels 0 … classes - 1, as whole numbers."""
    wrong = (y < 0) | (y >= classes) | (y != np.floor(y))
    if np.any(wrong):
        known = "0 or 1" if classes == 2 else f"whole numbers from 0 to {classes - 1}"
        raise ShardError(site, "y", f"labels must be {known}, got {y[wrong][0]:g}")
    return y


def narrow(prior: Family) -> Family | None:
    """A tenth as wide as a Gaussian prior over a vector, or 0.1, around its mean; None for other priors.

    Under a wide prior, what is expected of an exponential has little to do with where the data lead.
    """
    if not (prior.is_gaussian and prior.as_gaussian("start").is_vector):
        return None
    gaussian = prior.as_gaussian("start")
    return gaussian.around(gaussian.location, 0.1 * np.minimum(gaussian.scale, 1.0))


class Weighted(eqx.Module):
    """A shard for `Model` whose rows carry weights."""

    data: Any
    weights: Any


def shard_of_rows(model: AbstractModel, site: int, raw: Any, features: int, of: str = "numbers") -> Shard:
    """Check an array of rows with so many features, or `Weighted` ones. `of` says in errors what the features are."""
    rows, weights = (raw.data, raw.weights) if isinstance(raw, Weighted) else (raw, None)
    X = as_numbers(site, "data", rows, model.dtype)
    if X.ndim != 2 or X.shape[1] != features:
        raise ShardError(site, "data", f"expected rows of {features} {of}, got shape {X.shape}")
    check_rows(site, {"data": X})
    return make_shard(X, check_weights(site, weights, len(X), model.dtype))


def check_numbers(numbers: int, settings: str) -> None:
    """Check that a model that a file names fits into memory; of which settings there should be less, is told."""
    if numbers > MOST_NUMBERS:
        raise InputError(
            f"{settings}: these make {numbers:,} natural parameters, and at most {MOST_NUMBERS:,} are read"
        )


def check_like(own: Family, /, *, proper: bool = True, **given: Family) -> Family:
    """A density over what a model's own prior is over."""
    ((name, density),) = given.items()
    shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(part)] for part in (own, density)]
    if type(density) is not type(own) or shapes[0] != shapes[1] or (proper and not density.is_proper()):
        kind = f"proper {type(own).__name__}" if proper else type(own).__name__
        raise InputError(f"{name}: expected a {kind} with parameters of shapes {shapes[0]}")
    return density


def prior_of(model: AbstractModel, hyper: Hyper) -> Family:
    """p(θ | ε) as it is kept: NumPy arrays in the model's precision."""
    numbers = {name: np.asarray(v, model.dtype) for name, v in hyper.items()}
    with precision(model.dtype):
        if model.given_prior is not None:
            return jax.tree.map(_own_copy, model.given_prior)
        if model.prior_on_host:
            # What is too large for a number makes a prior that is not proper, which is refused where it is used.
            with np.errstate(all="ignore"):
                return on_host(model.natural_prior(numbers))
        return on_host(_compiled_prior(model, numbers))


def _own_copy(leaf: Array) -> np.ndarray:
    """An array of its own, in a precision that JAX has here."""
    return np.array(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))


def prior_shapes(model: AbstractModel, hyper: Hyper) -> Family:
    """The same without its numbers: shapes and dtypes, however large they would be."""
    with precision(model.dtype):
        like = {name: np.asarray(v, model.dtype) for name, v in hyper.items()}
        return eqx.filter_eval_shape(model.prior, like)


def count_numbers(prior: Family) -> int:
    """How many numbers a density has, from it or from its shapes: as many as a site sends of it."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(prior))


def count_parameters(model: AbstractModel, prior: Family) -> int:
    """How many numbers a model learns, from its prior or the shapes of one: not how many a density of them has."""
    with precision(model.dtype):
        drawn = eqx.filter_eval_shape(lambda density: density.sample(jax.random.key(0)), prior)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(drawn))


@eqx.filter_jit
def _compiled_prior(model: AbstractModel, hyper: Hyper) -> Family:
    return model.prior(hyper)
