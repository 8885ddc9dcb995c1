"""p(y | f) of one latent value, and what a sparse GP needs of it: E[log p], and a Gaussian term in its place."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError, MissingCapability
from partita.foundation import fields as checks
from partita.foundation.checks import check_one_of, check_positive
from partita.foundation.points import hermite
from partita.foundation.runtime import Array
from partita.foundation.shapes import Scalar
from partita.gaussian_processes.shapes import Values

LOG_2PI = math.log(2 * math.pi)
POINTS = 40

Params = Mapping[str, Array]


@dataclass(frozen=True)
class Likelihood:
    """log p(y | f); the rest follows by quadrature, unless it is known."""

    # Whether a Gaussian term of the right precision is all there is to it, so that nothing has to be iterated.
    exact: ClassVar[bool] = False
    # Whether targets are labels of two classes, 0 and 1.
    classifies: ClassVar[bool] = False

    def initial(self) -> dict[str, np.ndarray]:
        """Starting values of its positive parameters: its own fields."""
        return {field.name: np.asarray(getattr(self, field.name), float) for field in fields(self)}

    def in_units(self, targets: Any) -> dict[str, Any]:
        """The factor by which each parameter grows where targets grow by this; others have no units."""
        return {}

    def __post_init__(self) -> None:
        check_positive(f"{type(self).__name__}: ", **{field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def has_units(self) -> bool:
        """Whether targets are numbers in units, which can be standardised."""
        return bool(self.in_units(1.0))

    @abstractmethod
    def log_prob(self, params: Params, f: Values, y: Values) -> Values: ...

    def check(self, y: np.ndarray) -> None:
        """Whether there can be such targets."""

    def expected(self, params: Params, m: Values, v: Values, y: Values) -> Values:
        """E[log p(y | f)], f ~ N(m, v)."""
        nodes, weights = (jnp.asarray(a, m.dtype) for a in hermite(POINTS))
        f = m[..., None] + jnp.sqrt(v)[..., None] * nodes
        return self.log_prob(params, f, y[..., None]) @ weights

    def gaussian_terms(self, params: Params, m: Values, v: Values, y: Values) -> tuple[Values, Values]:
        """g and h of the Gaussian term exp(g f - h f² / 2) that stands for p(y | f) around N(m, v).

        They are the gradient of E[log p] in the mean parameters. Curvature that is not positive is left out.
        """

        def total(m: Values, v: Values) -> Scalar:
            return jnp.sum(self.expected(params, m, v, y))

        by_mean, by_variance = jax.grad(total, argnums=(0, 1))(m, v)
        h = jnp.maximum(-2 * by_variance, 1e-10)
        return by_mean + h * m, h

    def response(self, params: Params, m: Values, v: Values) -> tuple[Values, Values]:
        """Mean and variance of y, given f ~ N(m, v)."""
        nodes, weights = (jnp.asarray(a, m.dtype) for a in hermite(POINTS))
        mean, variance = self.moments(params, m[..., None] + jnp.sqrt(v)[..., None] * nodes)
        first = mean @ weights
        return first, (variance + mean**2) @ weights - first**2

    @abstractmethod
    def moments(self, params: Params, f: Values) -> tuple[Values, Values]:
        """Mean and variance of y, given f."""

    @abstractmethod
    def draw(self, params: Params, f: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """y ~ p(y | f)."""

    def sample(self, params: Params, f: Values, key: Array) -> Values:
        """The same inside compiled programs, for intervals."""
        raise MissingCapability(f"{type(self).__name__} does not draw targets inside compiled programs")


@dataclass(frozen=True)
class Normal(Likelihood):
    """y = f + noise."""

    noise: float = 0.3

    exact = True

    def in_units(self, targets: Any) -> dict[str, Any]:
        return {"noise": targets}

    def log_prob(self, params: Params, f: Values, y: Values) -> Values:
        return -0.5 * ((y - f) / params["noise"]) ** 2 - jnp.log(params["noise"]) - 0.5 * LOG_2PI

    def expected(self, params: Params, m: Values, v: Values, y: Values) -> Values:
        return self.log_prob(params, m, y) - 0.5 * v / params["noise"] ** 2

    def gaussian_terms(self, params: Params, m: Values, v: Values, y: Values) -> tuple[Values, Values]:
        h = jnp.broadcast_to(1 / params["noise"] ** 2, y.shape)
        return y * h, h

    def response(self, params: Params, m: Values, v: Values) -> tuple[Values, Values]:
        return m, v + params["noise"] ** 2

    def moments(self, params: Params, f: Values) -> tuple[Values, Values]:
        return f, jnp.broadcast_to(params["noise"] ** 2, f.shape)

    def draw(self, params: Params, f: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return f + float(params["noise"]) * generator.standard_normal(f.shape)

    def sample(self, params: Params, f: Values, key: Array) -> Values:
        return f + params["noise"] * jax.random.normal(key, f.shape, f.dtype)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Labels 0 and 1, of probability link(f)."""

    classifies = True

    def check(self, y: np.ndarray) -> None:
        if not np.all((y == 0) | (y == 1)):
            raise InputError("y: expected labels 0 and 1")

    def moments(self, params: Params, f: Values) -> tuple[Values, Values]:
        p = jnp.exp(self.log_prob(params, f, jnp.ones_like(f)))
        return p, p * (1 - p)

    def draw(self, params: Params, f: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return (generator.random(f.shape) < np.asarray(self.moments(params, f)[0])).astype(float)

    def sample(self, params: Params, f: Values, key: Array) -> Values:
        return jax.random.bernoulli(key, self.moments(params, f)[0]).astype(f.dtype)


class Probit(Bernoulli):
    """p(y = 1 | f) = Φ(f)."""

    def log_prob(self, params: Params, f: Values, y: Values) -> Values:
        return jax.scipy.special.log_ndtr((2 * y - 1) * f)


class Logit(Bernoulli):
    """p(y = 1 | f) = 1 / (1 + exp(-f))."""

    def log_prob(self, params: Params, f: Values, y: Values) -> Values:
        return y * f - jax.nn.softplus(f)


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts of rate exp(f)."""

    def check(self, y: np.ndarray) -> None:
        if not np.all((y >= 0) & (y == np.floor(y))):
            raise InputError("y: expected counts: whole numbers of at least 0")

    def log_prob(self, params: Params, f: Values, y: Values) -> Values:
        return y * f - jnp.exp(f) - jax.lax.lgamma(y + 1)

    def expected(self, params: Params, m: Values, v: Values, y: Values) -> Values:
        return y * m - jnp.exp(m + 0.5 * v) - jax.lax.lgamma(y + 1)

    def response(self, params: Params, m: Values, v: Values) -> tuple[Values, Values]:
        rate = jnp.exp(m + 0.5 * v)
        return rate, rate + rate**2 * jnp.expm1(v)

    def moments(self, params: Params, f: Values) -> tuple[Values, Values]:
        return jnp.exp(f), jnp.exp(f)

    def draw(self, params: Params, f: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        counts: np.ndarray = generator.poisson(np.exp(f))
        return counts.astype(float)

    def sample(self, params: Params, f: Values, key: Array) -> Values:
        return jax.random.poisson(key, jnp.exp(f), f.shape).astype(f.dtype)


@dataclass(frozen=True)
class StudentT(Likelihood):
    """y = f + noise with heavy tails. Its degrees of freedom, more than two, are not learnt."""

    noise: float = 0.3
    freedom: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.freedom <= 2:
            raise InputError(f"StudentT: freedom: expected more than 2, got {self.freedom}")

    def initial(self) -> dict[str, np.ndarray]:
        return {"noise": np.asarray(self.noise, float)}

    def in_units(self, targets: Any) -> dict[str, Any]:
        return {"noise": targets}

    def log_prob(self, params: Params, f: Values, y: Values) -> Values:
        nu, scale = self.freedom, params["noise"]
        constant = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu * math.pi) - jnp.log(scale)
        return constant - (nu + 1) / 2 * jnp.log1p(((y - f) / scale) ** 2 / nu)

    def gaussian_terms(self, params: Params, m: Values, v: Values, y: Values) -> tuple[Values, Values]:
        """The same, with the curvature of a bound where its own is not positive.

        The bound takes the noise for a mixture of normal ones, each row's with the precision that is expected of it
        (Tipping and Lawrence, 2005).
        """
        g, h = super().gaussian_terms(params, m, v, y)
        bound = (self.freedom + 1) / (self.freedom * params["noise"] ** 2 + (y - m) ** 2 + v)
        positive = jnp.where(h > 0.1 * bound, h, bound)
        return g + (positive - h) * m, positive

    def moments(self, params: Params, f: Values) -> tuple[Values, Values]:
        return f, jnp.broadcast_to(params["noise"] ** 2 * self.freedom / (self.freedom - 2), f.shape)

    def draw(self, params: Params, f: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return f + float(params["noise"]) * generator.standard_t(self.freedom, f.shape)

    def sample(self, params: Params, f: Values, key: Array) -> Values:
        return f + params["noise"] * jax.random.t(key, self.freedom, f.shape, f.dtype)


@dataclass(frozen=True)
class Volatility(Likelihood):
    """y = noise × exp(f / 2) × a standard normal number: how much something moves, rather than where to."""

    noise: float = 1.0

    def log_prob(self, params: Params, f: Values, y: Values) -> Values:
        return -0.5 * ((y / params["noise"]) ** 2 * jnp.exp(-f) + f + LOG_2PI) - jnp.log(params["noise"])

    def expected(self, params: Params, m: Values, v: Values, y: Values) -> Values:
        return self.log_prob(params, m, y) - 0.5 * (y / params["noise"]) ** 2 * jnp.exp(-m) * jnp.expm1(0.5 * v)

    def response(self, params: Params, m: Values, v: Values) -> tuple[Values, Values]:
        return jnp.zeros_like(m), params["noise"] ** 2 * jnp.exp(m + 0.5 * v)

    def moments(self, params: Params, f: Values) -> tuple[Values, Values]:
        return jnp.zeros_like(f), params["noise"] ** 2 * jnp.exp(f)

    def draw(self, params: Params, f: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return float(params["noise"]) * np.exp(f / 2) * generator.standard_normal(f.shape)

    def sample(self, params: Params, f: Values, key: Array) -> Values:
        return params["noise"] * jnp.exp(f / 2) * jax.random.normal(key, f.shape, f.dtype)


LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Normal,
    "probit": Probit,
    "logit": Logit,
    "poisson": Poisson,
    "student-t": StudentT,
    "volatility": Volatility,
}


def find_likelihood(likelihood: Any) -> Likelihood:
    """The likelihood of a name; a likelihood is returned as it is."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    check_one_of("", LIKELIHOODS, likelihood=likelihood)
    return LIKELIHOODS[likelihood]()


def to_settings(likelihood: Likelihood) -> dict[str, Any]:
    """A likelihood as plain values, to store."""
    names = [name for name, kind in LIKELIHOODS.items() if type(likelihood) is kind]
    if not names:
        raise InputError(f"likelihood: {type(likelihood).__name__} is not one of Partita's: its code cannot be stored")
    return {"likelihood": names[0], **asdict(likelihood)}


def from_settings(settings: dict[str, Any]) -> Likelihood:
    """The inverse of `to_settings`."""
    checks.fields({"likelihood": checks.one_of(LIKELIHOODS)}, others=checks.number())(settings, "likelihood")
    values = {name: value for name, value in settings.items() if name != "likelihood"}
    return LIKELIHOODS[settings["likelihood"]](**values)
