"""Responses of regressions: how a target is distributed around its linear predictor.

One class says all in which a response differs from the others, to whoever reads tables, fits, predicts or compares; no
other file asks for one by its name. A new one is a class here and its place in `RESPONSES`.
"""

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from partita.errors import InputError
from partita.families.weights_and_noise import DEGREES
from partita.foundation.points import hermite
from partita.metrics import sum_bins
from partita.models import AbstractModel, LinearRegression, LogisticRegression, PoissonRegression

# Shares of observations that intervals are to hold.
LEVELS = (0.5, 0.8, 0.95)
# Bins of confidence for the calibration error, and of probability for the curve.
BINS, CURVE_BINS = 15, 10
# Points of a quadrature over the linear predictor.
POINTS = 40
# Draws of rates go no further: exp(30) is more than can be counted.
LARGEST_LOG_RATE = 30.0
Sums = dict[str, np.ndarray]
# Draws of what a distribution has beside its linear predictor, such as noise, by name; in the units of the targets.
Others = Mapping[str, np.ndarray]


class Response(ABC):
    """How targets are distributed, given their linear predictors f, and what follows from that for a regression."""

    name: ClassVar[str]
    # What else people call it, in small letters and with blanks.
    also_called: ClassVar[tuple[str, ...]] = ()
    # What targets have to be, in words, and what is asked for in place of text that does not fit; how many levels a
    # target that is text has to have, or None where text never fits.
    wanted: ClassVar[str] = "a number"
    wanted_levels: ClassVar[str] = "numbers"
    classes: ClassVar[int | None] = None
    # A target that can be observed: programs are laid out with it before any row is read.
    example: ClassVar[float] = 0.0
    # What the exponential of a coefficient is called, where it is a ratio.
    ratio: ClassVar[str | None] = None
    # Whether targets have units, which are divided out before a fit; and whether the log evidence is one of densities,
    # which cannot be compared with one of probabilities.
    has_units: ClassVar[bool] = False
    has_density: ClassVar[bool] = False
    # Whether the mean of all targets is kept, so that a fit starts from the intercept that gives it.
    keeps_mean: ClassVar[bool] = False
    # Whether an intercept of each row's own can be told from noise.
    tells_rows_apart: ClassVar[bool] = False

    def is_possible(self, y: np.ndarray) -> bool:
        """Whether all of these targets can be observed."""
        return True

    def start_intercept(self, mean: float) -> float:
        """The intercept that gives this mean, where `keeps_mean`."""
        raise NotImplementedError(f"the response {self.name} starts from no mean")

    def make_model(
        self, features: int, intercept: bool, prior_scale: float, noise_scale: float
    ) -> AbstractModel | None:
        """The model of a regression without groups; None, where only a program can say it."""
        return None

    @abstractmethod
    def distribution(self, f: Any, noise_scale: float) -> Any:
        """The distribution of targets in a NumPyro program, which draws the parameters that it needs beside f."""

    @abstractmethod
    def expect(self, f: np.ndarray, variances: Callable[[], np.ndarray]) -> np.ndarray:
        """The expected target of each row, from the mean of f [rows] and equally likely variances [rows, some]."""

    @abstractmethod
    def draw(self, f: np.ndarray, others: Others, rng: np.random.Generator) -> np.ndarray:
        """Draws of new observations, of the shape of f; of probabilities, for classes."""

    def sum_comparisons(self, mean: np.ndarray, ranks: np.ndarray, y: np.ndarray) -> Sums:
        """What was predicted beside what was observed, as sums over rows.

        Args:
            mean: of the draws of each row.
            ranks: the share of a row's draws that are below what was observed.
            y: what was observed.
        """
        off = np.abs(ranks - 0.5)
        return {
            "squares": np.array([np.sum((mean - y) ** 2)]),
            "inside": np.array([np.sum(off <= level / 2) for level in LEVELS], float),
        }

    def describe_calibration(self, sums: Sums, rows: int) -> dict[str, Any]:
        """Error and calibration, from the sums over the rows of all sites."""
        inside = dict(zip(LEVELS, (sums["inside"] / rows).tolist(), strict=True))
        return {"rmse": float(np.sqrt(sums["squares"][0] / rows)), "inside": inside}


class Gaussian(Response):
    """Numbers with normal noise, whose deviation is learnt."""

    name = "gaussian"
    also_called = ("normal",)
    has_units = True
    has_density = True

    def make_model(self, features: int, intercept: bool, prior_scale: float, noise_scale: float) -> AbstractModel:
        return LinearRegression(
            features=features, intercept=intercept, prior_scale=prior_scale, noise_scale=noise_scale
        )

    def distribution(self, f: Any, noise_scale: float) -> Any:
        import numpyro
        import numpyro.distributions as dist

        noise = numpyro.sample("noise", dist.FoldedDistribution(dist.StudentT(DEGREES, 0, noise_scale)))
        return dist.Normal(f, noise)

    def expect(self, f: np.ndarray, variances: Callable[[], np.ndarray]) -> np.ndarray:
        return f

    def draw(self, f: np.ndarray, others: Others, rng: np.random.Generator) -> np.ndarray:
        return f + others["noise"] * rng.normal(size=f.shape)


class Bernoulli(Response):
    """Two classes, 0 and 1 or two levels of text; f is the logarithm of the odds."""

    name = "bernoulli"
    also_called = ("binomial", "binary", "logistic", "logit")
    wanted = "0 or 1"
    wanted_levels = "two of them, or 0 and 1"
    classes = 2
    ratio = "odds ratio"

    def is_possible(self, y: np.ndarray) -> bool:
        return bool(np.all(np.isin(y, (0, 1))))

    def make_model(self, features: int, intercept: bool, prior_scale: float, noise_scale: float) -> AbstractModel:
        return LogisticRegression(features=features, intercept=intercept, prior_scale=prior_scale)

    def distribution(self, f: Any, noise_scale: float) -> Any:
        import numpyro.distributions as dist

        return dist.Bernoulli(logits=f)

    def expect(self, f: np.ndarray, variances: Callable[[], np.ndarray]) -> np.ndarray:
        nodes, weights = hermite(POINTS)
        points = f[:, None, None] + np.sqrt(variances())[..., None] * nodes
        mean: np.ndarray = (expit(points) @ weights).mean(axis=1)
        return mean

    def draw(self, f: np.ndarray, others: Others, rng: np.random.Generator) -> np.ndarray:
        # SciPy's expit rounds otherwise, so that intervals would differ from earlier versions in their last bit.
        return 1 / (1 + np.exp(-f))

    def sum_comparisons(self, mean: np.ndarray, ranks: np.ndarray, y: np.ndarray) -> Sums:
        """The means are probabilities."""
        chosen = np.where(y == 1, mean, 1 - mean)
        confidence, right = np.maximum(mean, 1 - mean), (mean > 0.5) == (y == 1)
        by_confidence, by_probability = sum_bins(confidence, right, BINS), sum_bins(mean, y, CURVE_BINS)
        return {
            "wrong": np.array([np.sum(~right)], float),
            "nll": np.array([np.sum(-np.log(np.maximum(chosen, np.finfo(float).tiny)))]),
            "rows by confidence": by_confidence.rows.astype(float),
            "confidence": by_confidence.claimed,
            "right": by_confidence.found,
            "rows by probability": by_probability.rows.astype(float),
            "predicted": by_probability.claimed,
            "observed": by_probability.found,
        }

    def describe_calibration(self, sums: Sums, rows: int) -> dict[str, Any]:
        """Error, log likelihood, and observed shares against predicted probabilities."""
        bins = zip(sums["predicted"], sums["observed"], sums["rows by probability"], strict=True)
        return {
            "error": float(sums["wrong"][0] / rows),
            "nll": float(sums["nll"][0] / rows),
            "ece": float(np.sum(np.abs(sums["confidence"] - sums["right"]) / rows)),
            "curve": [
                {"predicted": float(predicted / count), "observed": float(observed / count), "rows": int(count)}
                for predicted, observed, count in bins
                if count
            ],
        }


class CountResponse(Response):
    """Counts whose mean is exp(f)."""

    wanted = "a count"
    ratio = "rate ratio"
    keeps_mean = True
    tells_rows_apart = True

    def is_possible(self, y: np.ndarray) -> bool:
        return not (np.any(y < 0) or np.any(y != np.floor(y)))

    def start_intercept(self, mean: float) -> float:
        return float(np.log(max(mean, 0.1)))

    def expect(self, f: np.ndarray, variances: Callable[[], np.ndarray]) -> np.ndarray:
        mean: np.ndarray = np.exp(f[:, None] + variances() / 2).mean(axis=1)
        return mean

    def draw(self, f: np.ndarray, others: Others, rng: np.random.Generator) -> np.ndarray:
        return rng.poisson(self.draw_rates(np.exp(np.minimum(f, LARGEST_LOG_RATE)), others, rng))

    def draw_rates(self, mean: np.ndarray, others: Others, rng: np.random.Generator) -> np.ndarray:
        """The rate of each count, which may vary around its mean."""
        return mean


class Poisson(CountResponse):
    """Counts whose variance is their mean."""

    name = "poisson"

    def make_model(self, features: int, intercept: bool, prior_scale: float, noise_scale: float) -> AbstractModel:
        return PoissonRegression(features=features, intercept=intercept, prior_scale=prior_scale)

    def distribution(self, f: Any, noise_scale: float) -> Any:
        import numpyro.distributions as dist

        return dist.Poisson(jnp.exp(f))


class NegativeBinomial(CountResponse):
    """Counts whose variance is mean + mean² / size, with a size that is learnt."""

    name = "negative binomial"
    also_called = ("negativebinomial", "negbinomial", "neg binomial", "negbin")

    def distribution(self, f: Any, noise_scale: float) -> Any:
        import numpyro
        import numpyro.distributions as dist

        size = numpyro.sample("size", dist.Gamma(2, 0.1))
        return dist.NegativeBinomial2(jnp.exp(f), size)

    def draw_rates(self, mean: np.ndarray, others: Others, rng: np.random.Generator) -> np.ndarray:
        return mean * rng.gamma(others["size"], 1 / others["size"], mean.shape)


RESPONSES: dict[str, Response] = {
    response.name: response for response in (Gaussian(), Bernoulli(), Poisson(), NegativeBinomial())
}


def find_response(family: Any) -> Response:
    """One of RESPONSES, by its name or another one that can only mean it."""
    names = {also: name for name, response in RESPONSES.items() for also in (name, *response.also_called)}
    words = re.sub(r"[\s_-]+", " ", family).strip().lower() if isinstance(family, str) else ""
    if words in names:
        return RESPONSES[names[words]]
    close = difflib.get_close_matches(words or type(family).__name__.lower(), names, n=1)
    meant = f"; did you mean {names[close[0]]!r}?" if close else ""
    raise InputError(f"family: expected one of {', '.join(RESPONSES)}, got {family!r}{meant}")
