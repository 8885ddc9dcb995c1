"""Mixed models: what everybody shares, what each has of their own, and how far those spread."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.datasets import load_table, standardised
from partita.families import Gaussian
from partita.foundation.checks import import_extra
from partita.models import Model
from partita.studies.methods.problems import Problem

# The deviation of a prior that own effects have to have, which rows take back: see `_spread`.
WIDE = 3.0


def read_seizures() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns of `epil` with an intercept, who each row is of, and how many seizures it counts."""
    table = load_table("epil")
    treated = (table["trt"] == "progabide").astype(float)
    columns = (table["lbase"], treated, treated * table["lbase"], table["lage"], table["V4"])
    X = np.column_stack([np.ones(len(treated)), *columns])
    return X, table["subject"].astype(int) - 1, table["y"]


def seizures() -> Problem:
    """Seizures of 59 people with epilepsy, in four periods each (epil)."""
    return _counts(*read_seizures())


def simulated_counts() -> Problem:
    """Counts of 40 people, in five periods each, that were drawn from such a model: it needs no file."""
    generator = np.random.default_rng(0)
    person = np.repeat(np.arange(40), 5)
    X = np.column_stack([np.ones(200), generator.normal(size=200)])
    own = 0.7 * generator.normal(size=40)
    return _counts(X, person, generator.poisson(np.exp(X @ [0.8, 0.4] + own[person])).astype(float))


def _counts(X: np.ndarray, person: np.ndarray, y: np.ndarray) -> Problem:
    """A Poisson model with an intercept for everyone: over fixed effects, the logarithm of the deviation of own ones,
    and these.
    """
    fixed, people = X.shape[1], int(person.max()) + 1

    def log_prob(params: Any, rows: Any) -> Any:
        x, who, y, share = rows
        own = params[fixed + 1 :][who]
        f = x @ params[:fixed] + own
        return y * f - jnp.exp(f) + share * _spread(own, params[fixed])

    location = np.zeros(fixed + 1 + people)
    location[[0, fixed]] = 1.0, -1.0
    scale = np.concatenate([[3.0], np.ones(fixed), np.full(people, WIDE)])
    return _begin(log_prob, (X, person, y, 1 / np.bincount(person)[person]), location, scale)


def firms() -> Problem:
    """What eleven American firms invested in twenty years (Grunfeld, 1958), given their value and capital: each with an
    intercept and a slope of its own, which are correlated.

    Over three fixed effects, logarithms of the noise and of two deviations, the correlation's inverse hyperbolic
    tangent, and eleven pairs.
    """
    datasets = import_extra("statsmodels.datasets", "statsmodels", "dev")
    table = datasets.grunfeld.load_pandas().data
    y, value, capital = (standardised(np.log(table[name].to_numpy())) for name in ("invest", "value", "capital"))
    firm = np.unique(table["firm"].to_numpy().astype(str), return_inverse=True)[1]

    def log_prob(params: Any, rows: Any) -> Any:
        x, who, z, y, share = rows
        noise, first, second, twisted = params[3:7]
        a, b = params[7:].reshape(-1, 2)[who].T
        f = x @ params[:3] + a + b * z
        # The slope, given the intercept, is as wide as their correlation leaves it.
        r = jnp.tanh(twisted)
        left = b - r * jnp.exp(second - first) * a
        own = _spread(a, first) + _spread(left, second + 0.5 * jnp.log1p(-(r**2)), of=b)
        return -0.5 * (y - f) ** 2 * jnp.exp(-2 * noise) - noise + share * own

    X = np.column_stack([np.ones(len(y)), value, capital])
    location = np.concatenate([np.zeros(3), [-1.0, -1.0, -1.0, 0.0], np.zeros(22)])
    scale = np.concatenate([np.ones(7), np.full(22, WIDE)])
    return _begin(log_prob, (X, firm, capital, y, 1 / np.bincount(firm)[firm]), location, scale)


def read_districts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns of `Contraception` with an intercept, the district of each woman, and whether she uses any."""
    table = load_table("Contraception")
    age = table["age"] / 10
    X = np.column_stack([np.ones(len(age)), age, age**2, table["urban"] == "Y", table["livch"] != "0"]).astype(float)
    return X, np.unique(table["district"], return_inverse=True)[1], (table["use"] == "Y").astype(float)


def districts() -> Problem:
    """Use of contraception by 1,934 women in 60 districts (Contraception)."""
    return _choices(*read_districts())


def simulated_choices() -> Problem:
    """Choices of 600 people in 30 places that were drawn from such a model: it needs no file."""
    generator = np.random.default_rng(0)
    place = np.repeat(np.arange(30), 20)
    X = np.column_stack([np.ones(600), generator.normal(size=600)])
    f = X @ [-0.5, 0.8] + 0.8 * generator.normal(size=30)[place]
    return _choices(X, place, (generator.random(600) < 1 / (1 + np.exp(-f))).astype(float))


def _choices(X: np.ndarray, place: np.ndarray, y: np.ndarray) -> Problem:
    """A logistic model in two levels: over fixed effects, the logarithm of the deviation of places' own ones, and these
    in units of it.
    """
    fixed, size = X.shape[1], X.shape[1] + 2 + int(place.max())

    def log_prob(params: Any, rows: Any) -> Any:
        x, where, y = rows
        f = x @ params[:fixed] + jnp.exp(params[fixed]) * params[fixed + 1 :][where]
        return y * f - jax.nn.softplus(f)

    location = np.zeros(size)
    location[fixed] = -1.0
    return _begin(log_prob, (X, place, y), location, np.ones(size))


def _spread(own: Any, spread: Any, of: Any = None) -> Any:
    """log N(own; 0, exp(2 spread)) in place of the wide prior of a number `of`, which is itself if not said."""
    number = own if of is None else of
    return -0.5 * (own**2 * jnp.exp(-2 * spread) - number**2 / WIDE**2) - spread + np.log(WIDE)


def _begin(log_prob: Any, rows: Any, location: np.ndarray, scale: np.ndarray) -> Problem:
    """From a narrow density around the prior's mean: what exponentials are there says little where it is wide."""
    prior = Gaussian.from_moments(location, np.diag(scale**2))
    return Problem(Model(prior, log_prob), rows, Gaussian.from_moments(location, 0.01 * np.eye(len(location))))
