"""A fitted regression: what people read off it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import jax
import numpy as np

from partita.designs.calibration import Draws, begin_random, predict_observations
from partita.designs.design import Counts, Design, Reading
from partita.designs.regressions import rebuild_model
from partita.designs.responses import Sums
from partita.designs.saving import unpack_stored
from partita.errors import InputError, RunMismatch
from partita.exchange import CHAINS, import_arviz
from partita.families.marginals import Marginals
from partita.formulas.agreement import check_unchanged
from partita.formulas.prediction import expect_observations
from partita.formulas.silos import Connection, Silos
from partita.foundation.archives import doubted, read_arrays
from partita.foundation.checks import check_count, check_level
from partita.foundation.text import clean
from partita.models.coefficients import Coefficients
from partita.models.linear import to_units_of_data
from partita.result import Result, unpacked
from partita.site.reading import read_inputs
from partita.wire.questions import Predict, PredictAnswer

# So many numbers at once, when intervals are drawn.
MOST_DRAWS = 5_000_000


@dataclass(frozen=True, repr=False)
class Regression:
    """A fitted regression: coefficients in the units of the data, the log evidence, what each site contributed."""

    reading: Reading
    result: Result
    # Who can be asked about the tables; nobody, of a regression that comes from a file.
    silos: Silos | None
    counts: Mapping[str, Counts]
    digest: str
    # Whether each column is 0 or 1 in all rows; that is not known from a file.
    two_valued: tuple[bool, ...] = ()

    @property
    def design(self) -> Design:
        return self.reading.design

    def __repr__(self) -> str:
        return f"<Regression {self.formula!r}, {self.design.family}: {self._rows} rows at {len(self.counts)} sites>"

    def __str__(self) -> str:
        """The coefficients as a table."""
        keys = ("mean", "sd", "low", "high")
        rows = [{"name": clean(row["name"]), **{key: row[key] for key in keys}} for row in self.coefficients()]
        width = max((len(row["name"]) for row in rows), default=0)
        head = f"{'':<{width}}" + "".join(f"{key:>11}" for key in ("mean", "sd", "2.5 %", "97.5 %"))
        lines = [f"{row['name']:<{width}}" + "".join(f"{row[key]:>11.4g}" for key in keys) for row in rows]
        classes = self.design.classes
        modelled = [] if classes is None else [clean(f"P({self.design.target} = {classes[1]!r})")]
        # What is found for models that are not exact is a lower bound.
        evidence = "log evidence" if self.result.model.exact else "log evidence at least"
        return "\n".join([repr(self), *modelled, head, *lines, f"{evidence} {self.log_evidence:.2f}"])

    @property
    def formula(self) -> str:
        return self.design.formula

    @property
    def log_evidence(self) -> float:
        """A lower bound of log p(y), in the units of the data."""
        return self.result.log_evidence - self._rows * float(np.log(self.design.target_unit))

    @property
    def _rows(self) -> int:
        return sum(one.rows for one in self.counts.values())

    def predict(self, table: Any) -> np.ndarray:
        """What is expected of each row of a table (a frame, or a CSV or Parquet file), in the units of the data.

        The probability of the second level or of 1, for two classes; the mean, for numbers and counts. It is averaged
        over the posterior, and over groups as new ones. A row that misses something the formula needs has nan.
        """
        X, whole = read_inputs(self.design, table)
        means = {row["name"]: row["mean"] for row in self.coefficients()}
        return _put_in_place(expect_observations(self.design, self.result, means, X), whole)

    def predict_interval(self, table: Any, level: float = 0.95, draws: int = 10_000, seed: int = 0) -> np.ndarray:
        """Between which values each row's observation is believed to be, low and high in two columns.

        With noise, for numbers and counts; of the probability itself, for two classes. From as many draws of the
        posterior as are asked for; groups are taken as new ones.
        """
        check_level(level)
        check_count(draws=draws)
        X, whole = read_inputs(self.design, table)
        rng, tail = np.random.default_rng(seed), 0.5 - level / 2
        at_once = max(1, MOST_DRAWS // draws)

        def predict(part: np.ndarray) -> np.ndarray:
            return predict_observations(self.design, self._draw(draws, int(rng.integers(2**32))), part, rng)

        pieces = (predict(X[start : start + at_once]) for start in range(0, len(X), at_once))
        found = [np.quantile(piece, [tail, 1 - tail], axis=0).T for piece in pieces]
        return _put_in_place(np.concatenate([np.empty((0, 2)), *found]), whole)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, complete or not at all, without data; `Regression.load` reads it."""
        self.result.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """What `save` wrote: it predicts, but for calibration the data would be needed."""
        arrays, about = read_arrays(path)
        if not isinstance(about.get("design"), dict) or "formula" not in about["design"]:
            raise RunMismatch(f"{path}: holds no regression: use partita.load, or its own load")
        design, counts, digest = unpack_stored(path, about["design"])
        with doubted(path):
            result = unpacked(path, arrays, about, rebuild_model(design))
            # Groups may have a factor of their own, after those of sites.
            if len(result.factors) < len(counts):
                raise ValueError("there are more sites than factors")
            return cls(Reading(design), result, None, counts, digest)

    @cached_property
    def _transform(self) -> tuple[np.ndarray, np.ndarray]:
        """T and t, such that coefficients in the units of the data, the intercept last, are T w + t."""
        design = self.design
        T = design.target_unit * to_units_of_data(design.centre, design.unit, design.intercept)
        shift = np.zeros(len(T))
        if design.intercept:
            shift[-1] = design.target_centre
        return T, shift

    @cached_property
    def _coefficients(self) -> Marginals:
        """What is believed of the coefficients in the units of the data, the intercept last."""
        T, shift = self._transform
        return self._read.marginals(T).shifted(shift)

    @property
    def _read(self) -> Coefficients:
        """What the run says of its coefficients, in its own units."""
        return self.result.model.coefficients(self.result.posterior)

    def coefficients(self, level: float = 0.95) -> list[dict[str, Any]]:
        """A row for each coefficient: mean, standard deviation, credible interval, and the ratio that it stands for."""
        check_level(level)
        found = self._coefficients
        mean, deviation, (lows, highs) = found.mean, found.deviation, found.interval(level)
        order = [len(mean) - 1, *range(len(mean) - 1)] if self.design.intercept else range(len(mean))
        names = [*self.design.names, *(["Intercept"] if self.design.intercept else [])]
        ratio = self.design.response.ratio
        rows = []
        for i in order:
            low, high = lows[i], highs[i]
            row = {"name": names[i], "mean": mean[i], "sd": deviation[i], "low": low, "high": high}
            if ratio:
                # Ratios of columns in tiny units are beyond all numbers.
                with np.errstate(over="ignore"):
                    row |= {ratio: np.exp(mean[i]), "ratio low": np.exp(low), "ratio high": np.exp(high)}
            rows.append(row)
        return rows

    def spreads(self, level: float = 0.95) -> list[dict[str, Any]]:
        """The same for standard deviations of noise and of groups, and for a negative binomial's size."""
        check_level(level)
        tail = 0.5 - level / 2
        rows = []
        found = self._read
        for name in found.log_quantiles:
            label = f"sd of {self.design.group}" if name == "spread" else name
            low, middle, high = self.design.target_unit * found.quantiles(name, [tail, 0.5, 1 - tail])
            rows.append({"name": label, "median": middle, "low": low, "high": high})
        return rows

    def to_arviz(self, draws: int = 1000, seed: int = 0) -> Any:
        """An ArviZ `InferenceData` with draws of every coefficient by name, in the units of the data."""
        number = -(-draws // CHAINS) * CHAINS
        key = int(np.random.default_rng(seed).integers(2**32))
        drawn = self._draw(number, key).coefficients
        names = [*self.design.names, *(["Intercept"] if self.design.intercept else [])]
        by_name = dict(zip(names, drawn.T.reshape(len(names), CHAINS, -1), strict=True))
        return import_arviz().from_dict(posterior=by_name)

    def contributions(self) -> list[dict[str, Any]]:
        """Each site's rows, groups, rows left out, and how far the posterior would be without it, in nats."""
        nats = self.result.contributions()
        return [
            {
                "site": name,
                "rows": one.rows,
                **({} if one.groups is None else {"groups": one.groups}),
                "missing": one.missing,
                "nats": float(nats[number]),
            }
            for number, (name, one) in enumerate(self.counts.items())
        ]

    def calibration(self, draws: int = 400, seed: int = 0) -> dict[str, Any]:
        """Whether predictions mean what they say: of rows that were held out, if any, else of the fitted ones.

        Observed shares against predicted probabilities, or shares in predictive intervals. Every site's part is counted
        there; groups are taken as new ones.
        """
        if self.silos is None:
            raise InputError("calibration: needs the data, which are not kept in a file: ask before it is saved")
        with self.silos.connected() as connection:
            check_unchanged(self.digest, connection, self.reading)
            rows, sums = self._compare(connection, self.reading, draws, seed)
            held_out = rows > 0 and self.reading.held_out > 0
            if rows == 0:
                rows, sums = self._compare(connection, replace(self.reading, held_out=0.0), draws, seed)
        where = {"on": "rows that were held out" if held_out else "the rows that were fitted", "rows": rows}
        return {**where, **self.design.response.describe_calibration(sums, rows)}

    def _compare(self, connection: Connection, reading: Reading, draws: int, seed: int) -> tuple[int, Sums]:
        """What predictions are beside what was observed, as sums over the rows of all sites."""
        questions = {}
        for number, name in enumerate(connection.sites):
            drawn = self._draw(draws, begin_random(seed, name)[0])
            questions[number] = Predict(reading, seed, drawn.coefficients, dict(drawn.others))
        answers: list[PredictAnswer] = connection.ask(questions)
        sums = {key: np.sum([answer.sums[key] for answer in answers], axis=0) for key in answers[0].sums}
        return sum(answer.rows for answer in answers), sums

    def _draw(self, number: int, key: int) -> Draws:
        """Draws of the posterior."""
        T, shift = self._transform
        weights, others = self._read.draw(jax.random.key(key), number)
        return Draws(weights @ T.T + shift, {name: values[:, None] for name, values in others.items()})


def _put_in_place(values: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Values of whole rows in their places, nan in those of the others."""
    found = np.full((len(whole), *values.shape[1:]), np.nan)
    found[whole] = values
    return found
