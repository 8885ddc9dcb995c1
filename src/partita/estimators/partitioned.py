"""The scikit-learn face of regressions and networks whose data are in several places, or arrive over time."""

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from partita.designs.collinearity import describe_idle, find_idle
from partita.engines import InProcess
from partita.errors import InputError, MissingCapability, RunMismatch
from partita.estimators.units import LINEAR_SLACK, NETWORK_SLACK, Units, converted, joint
from partita.families import Family
from partita.families.marginals import Marginals
from partita.fitting import fit as fit_sites
from partita.fitting import partial_fit as fit_batch
from partita.foundation.fields import (
    Check,
    anything,
    check_classes,
    entries,
    fields,
    flag,
    items,
    maybe,
    number,
    scalar,
    text,
    whole,
)
from partita.foundation.frames import check_columns
from partita.foundation.moments import Affine, Moments
from partita.foundation.plain import Row, plain
from partita.models import AbstractModel, LinearRegression, LogisticRegression, Network, SoftmaxRegression
from partita.models.base import prior_shapes
from partita.models.linear import to_units_of_data
from partita.result import Result, unpacked
from partita.server import schedules
from partita.server.hyper import LearnHyper
from partita.server.rules import Rule, as_damping
from partita.server.schedules import OnePass, Schedule, Synchronous
from partita.server.storage import doubted, read_arrays, write_arrays
from partita.shards import as_numbers, check_rows
from partita.site.columns import Columns
from partita.solvers import Solver
from partita.telemetry import Progress
from partita.wire.engine import ask_all
from partita.wire.naming import SiteNames
from partita.wire.questions import Moments as AskMoments
from partita.wire.questions import Products, Question

# What a file says of an estimator. Its other settings are looked at by the model that they make.
SETTINGS = fields(
    {}, {"schedule": anything, **dict.fromkeys(("standardise", "verbose", "quiet"), flag)}, others=anything
)
ESTIMATOR = fields(
    {
        "name": text(),
        "settings": SETTINGS,
        "left_out": items(text()),
        "warned": flag,
        "parts": items(fields({"name": scalar, "rows": whole(), "weight": number(0)})),
        "features": whole(1),
        "names": items(text()),
        "own": entries(anything),
    }
)

# Rows of one class, in a batch that has no others, that are worth a word.
MANY_ALIKE = 10
# What is written of the moments of each part.
MOMENTS = ("mean", "total")


class Part(NamedTuple):
    """A site, or a batch of a stream."""

    name: Any
    rows: int
    # Of its columns, the target last; they count the weights of rows.
    moments: Moments

    @property
    def weight(self) -> float:
        return self.moments.count


def _ask_parts(names: Iterable[Any], data: Sequence[tuple[np.ndarray, ...]]) -> list[Part]:
    """What sites tell of their columns and targets, each with a weight for every row."""
    return [
        Part(
            name,
            len(own[0]),
            Moments(
                answer.count,
                np.concatenate([answer.mean, answer.target_mean]),
                np.concatenate([answer.total, answer.target_total]),
            ),
        )
        for name, own, answer in zip(names, data, _ask(data, AskMoments()), strict=True)
    ]


def _ask(shards: Sequence[Any], question: Question) -> list[Any]:
    """What sites in this process answer."""
    engine = InProcess()
    engine.connect(shards)
    return ask_all(engine, question, len(shards), SiteNames())


def _check_weights(weights: np.ndarray) -> None:
    if not weights.any():
        raise InputError("sample_weight: all are zero")


def _in(units: Affine, values: np.ndarray) -> np.ndarray:
    return (values - units.mean) / units.scale


def _sites(groups: Any, rows: int) -> tuple[list[Any], np.ndarray]:
    """The names of the sites in their order, and the number of the one that each row is at."""
    entries = np.zeros(rows, int) if groups is None else np.asarray(groups)
    if entries.shape != (rows,):
        raise InputError(f"groups: expected one entry per row, {rows}, got shape {entries.shape}")
    try:
        names, sites = np.unique(entries, return_inverse=True)
        missing = bool(np.any(names != names))
    except TypeError:  # they cannot be sorted
        missing = True
    if missing:
        raise InputError("groups: expected entries of one kind, and none missing")
    return (names.tolist() if names.dtype.kind in "OUSbiuf" else list(names)), sites


class _Partitioned(BaseEstimator):
    """What regression and classification share."""

    # What a fitted one has beside what all have, and what that has to be.
    _remembered: ClassVar[dict[str, Check]]

    result_: Result
    _units: Units
    _parts: list[Part]
    _data: list[Any] | None
    # Whether it was said that units are kept which are not those of all rows.
    _warned: bool

    def __init__(
        self,
        hidden: Sequence[int] | None = None,
        *,
        prior_scale: float = 1.0,
        posterior: Literal["full", "mean-field"] = "full",
        schedule: Schedule | None = None,
        solver: Solver | None = None,
        damping: float | str | Rule = "auto",
        standardise: bool = True,
        random_state: int = 0,
        verbose: bool = False,
        quiet: bool = False,
    ):
        self.hidden = hidden
        self.prior_scale = prior_scale
        self.posterior = posterior
        self.schedule = schedule
        self.solver = solver
        self.damping = damping
        self.standardise = standardise
        self.random_state = random_state
        self.verbose = verbose
        self.quiet = quiet

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """One posterior from all sites; rows with the same entry of `groups` are at the same one."""
        X, y = self._checked(X, y, first=True)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        _check_weights(weights)
        names, sites = _sites(groups, len(X))
        used = {name: np.flatnonzero((sites == number) & (weights > 0)) for number, name in enumerate(names)}
        rows = {name: part for name, part in used.items() if len(part)}
        self._warn_of_idle_columns([(X[part], y[part]) for part in rows.values()])
        # Kept for `forget`, and nowhere written: the others refine their factors.
        data = [(X[part], y[part], weights[part]) for part in rows.values()]
        parts = _ask_parts(rows, data)
        units = self._units_of(parts)
        self.result_ = self._fitted(self._scaled(data, units), parts)
        self._units, self._parts, self._data, self._warned = units, parts, data, False
        return self

    def _scaled(self, data: Sequence[Any], units: Units) -> list[Any]:
        """Rows of sites as the model takes them."""
        return [(_in(units.inputs, X), self._targets(y, units), weights) for X, y, weights in data]

    def _fitted(self, shards: Sequence[Any], parts: Sequence[Part], factors: Sequence[Family] | None = None) -> Result:
        model, schedule = self._model, self.schedule
        if schedule is None:
            schedule = OnePass() if model.exact else Synchronous(rounds=100)
        return fit_sites(
            model,
            shards,
            schedule=schedule,
            solver=self.solver,
            damping=self.damping,
            hyper=self._hyper(),
            factors=factors,
            names=[str(part.name) for part in parts],
            seed=self._seed,
            callbacks=self._callbacks,
        )

    @property
    def _callbacks(self) -> list[Progress]:
        """Said from the beginning, if asked; else after two seconds, unless nobody wants to hear of it."""
        return [] if self.quiet else [Progress(type(self).__name__, patient=not self.verbose)]

    def _begin_stream(self, X: Any, y: Any, sample_weight: Any, **more: Any) -> tuple[Any, Any, Any]:
        first = not hasattr(self, "result_")
        X, y = self._checked(X, y, first=first, **more)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        _check_weights(weights)
        return X, y, weights

    def _absorbed(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Self:
        """A new batch is a new factor: the posterior becomes the prior, and the batch is not kept.

        Nothing changes if that fails.
        """
        used = weights > 0
        X, y, weights = X[used], y[used], weights[used]
        before = self._parts if hasattr(self, "result_") else []
        # A number of its own, whatever names sites before it have, and whichever were forgotten.
        number = 1 + max((part.name for part in before if isinstance(part.name, int)), default=len(before) - 1)
        parts = [*before, *_ask_parts([number], [(X, y, weights)])]
        units, result = self._carried(parts) if before else (self._units_of(parts), None)
        # How large values were is remembered in the units of the data, not in those that the model sees.
        columns = Columns() if result is None else result.columns
        hyper = self._hyper(result, sum(part.weight for part in before))
        schedule = self.schedule
        if schedule is None and (self.hidden is not None or hyper is not None):
            schedule = Synchronous(rounds=100)
        found = fit_batch(
            self._model if result is None else replace(result, columns=Columns()),
            self._scaled([(X, y, weights)], units)[0],
            solver=self.solver,
            schedule=schedule,
            damping=self.damping,
            hyper=hyper,
            seed=self._seed,
            callbacks=self._callbacks,
        )
        self.result_ = replace(found, columns=columns.after((X, y), stacklevel=5))
        self._units, self._parts, self._data = units, parts, None
        self._warned = self._warned if before else False
        return self

    def _carried(self, parts: Sequence[Part]) -> tuple[Units, Result]:
        """What is known so far, in the units of all these parts, or in those that are nearest to them."""
        own = self._units_of(parts)
        units = self._within_reach(own)
        if units.same_as(self._units):
            return self._units, self.result_
        try:
            return units, converted(self.result_, self._units, units, [part.weight for part in self._parts])
        except InputError:
            self._warn_of_units(self._units.sizes(own), LINEAR_SLACK)
            return self._units, self.result_

    def _within_reach(self, own: Units) -> Units:
        """Units that are as near to a stream's own as its factors can be brought.

        A mean-field posterior cannot be brought to other centres of its columns, because weights and intercept would
        be mixed. A network keeps its units.
        """
        if self.hidden is not None:
            self._warn_of_units(self._units.sizes(own), NETWORK_SLACK)
            return self._units
        if self.posterior == "full":
            return own
        units = own._replace(inputs=Affine(self._units.inputs.mean, own.inputs.scale))
        self._warn_of_units(units.sizes(own), LINEAR_SLACK)
        return units

    def _warn_of_units(self, sizes: np.ndarray, slack: float) -> None:
        """Say once where columns, or the target, are of another size in the units that are kept."""
        off = np.abs(np.log(sizes))
        worst = int(np.argmax(off))
        if off[worst] <= np.log(slack) or self._warned:
            return
        names = getattr(self, "feature_names_in_", np.arange(self.n_features_in_))
        what = f"X: column {names[worst]} has" if worst < len(names) else "y: targets have"
        kind = "a network keeps" if self.hidden is not None else "this posterior keeps"
        other = "" if self.hidden is not None else ', or take posterior="full" and the default solver'
        warnings.warn(
            f"{what} another middle or spread by now than in the first batch, whose units {kind}: intervals are off, "
            f"and so is what counts as a weak prior; begin with a batch of rows like all others{other}",
            stacklevel=6,
        )
        self._warned = True

    @property
    def _hidden(self) -> list[int]:
        """Sizes of hidden layers."""
        if self.hidden is None or np.ndim(np.asarray(self.hidden)) != 1:
            raise InputError(f"hidden: expected a list of sizes, such as [50], got {self.hidden!r}")
        return list(self.hidden)

    @property
    def _seed(self) -> int:
        return 0 if self.random_state is None else int(self.random_state)

    def _hyper(self, before: Result | None = None, rows: float = 0.0) -> LearnHyper | None:
        """What is learnt as a number, beside what is known of it from so many rows before."""
        return None

    def _units_of(self, parts: Sequence[Part]) -> Units:
        """Units in which columns have mean 0 and deviation 1 over all rows of these parts."""
        told = reduce(lambda so_far, part: so_far.with_others(part.moments), parts, Moments())
        if not self.standardise:
            features = len(told.mean) - 1
            return Units(Affine(np.zeros(features), np.ones(features)), Affine(np.array(0.0), np.array(1.0)))
        columns = told.affine
        return Units(Affine(columns.mean[:-1], columns.scale[:-1]), self._target_units(told))

    def _target_units(self, told: Moments) -> Affine:
        return Affine(np.array(0.0), np.array(1.0))

    def _targets(self, y: np.ndarray, units: Units) -> np.ndarray:
        return y

    def _warn_of_idle_columns(self, shards: Sequence[Any]) -> None:
        """Where coefficients are what the prior says, whatever the data are; networks have none that are read off."""
        if self.hidden is not None:
            return
        names = [str(name) for name in getattr(self, "feature_names_in_", range(self.n_features_in_))]
        told = [Moments(one.count, one.mean, one.total) for one in _ask(shards, AskMoments())]
        moments = reduce(lambda so_far, own: so_far.with_others(own), told, Moments())

        def ask_products(used: np.ndarray, centre: np.ndarray, unit: np.ndarray) -> np.ndarray:
            return np.sum([answer.products for answer in _ask(shards, Products(used, centre, unit))], axis=0)

        for words in describe_idle(find_idle(moments, ask_products), names):
            warnings.warn(f"X: {words}", stacklevel=3)

    def _inputs(self, X: np.ndarray) -> np.ndarray:
        return _in(self._units.inputs, X)

    @property
    def log_evidence_(self) -> float:
        """A lower bound of log p(y) of all sites; of a stream, a sum of bounds given what is kept of batches before."""
        check_is_fitted(self, "result_")
        return self.result_.log_evidence

    @property
    def history_(self) -> list[dict[str, Any]]:
        """One row per fold."""
        check_is_fitted(self, "result_")
        return self.result_.history

    @property
    def sites_(self) -> list[dict[str, Any]]:
        """How much each site, or batch, contributed: its rows, and how far the posterior would be without it, in nats.

        That is KL(posterior ‖ posterior / factor); nan where the others alone say nothing proper.
        """
        check_is_fitted(self, "result_")
        nats = self.result_.contributions().tolist()
        return [
            {"site": part.name, "rows": part.rows, "nats": own} for part, own in zip(self._parts, nats, strict=True)
        ]

    def forget(self, site: Any) -> Self:
        """Divide a site's factor out, and let the others refine theirs, in units of their own rows.

        The others' data have to be at hand: after `partial_fit`, or for an estimator that was saved, factors are only
        divided out, and what others learnt from the one that is forgotten stays in theirs.
        """
        check_is_fitted(self, "result_")
        names = [part.name for part in self._parts]
        if site not in names:
            raise InputError(f"site {site!r}: there are {', '.join(map(str, names))}")
        rest = [number for number, name in enumerate(names) if name != site]
        if not rest:
            raise InputError(f"site {site!r}: is the only one: nothing would be left")
        parts = [self._parts[number] for number in rest]
        if self._data is not None:
            return self._refined_without(rest, parts)
        if not self._model.exact:
            warnings.warn("forget: without their data, the others are not refined", stacklevel=2)
        units, result = self._carried(parts)
        factors = tuple(result.factors[number] for number in rest)
        posterior = joint(result.prior, factors)
        if not posterior.is_proper():
            raise InputError(f"site {site!r}: without it the posterior is not proper")
        self.result_ = replace(
            result,
            posterior=posterior,
            factors=factors,
            log_evidence=float("nan"),
            expected_log_probs=tuple(result.expected_log_probs[number] for number in rest),
        )
        self._units, self._parts = units, parts
        return self

    def _refined_without(self, rest: Sequence[int], parts: list[Part]) -> Self:
        """Fitted to the data of the rest, in units of theirs: from their factors, where those can be brought there."""
        units = self._units_of(parts)
        result: Result | None = self.result_
        if not units.same_as(self._units):
            try:
                result = converted(self.result_, self._units, units, [part.weight for part in self._parts])
            except InputError:
                result = None
        data = [self._data[number] for number in rest]  # type: ignore[index]
        factors = None if result is None else [result.factors[number] for number in rest]
        self.result_ = self._fitted(self._scaled(data, units), parts, factors)
        self._units, self._parts, self._data = units, parts, data
        return self

    def save(self, path: str | os.PathLike) -> None:
        """Write one file, complete or not at all; `load` reads it. Data are not kept.

        What is kept of each site or batch are its factor, and means and deviations of its columns. A solver or a
        damping policy, if they were given, are not: `load` asks for them.
        """
        check_is_fitted(self, "result_")
        arrays, about = self.result_.packed()
        kinds = str | int | float | list | tuple | np.generic | np.ndarray | None
        settings = self.get_params()
        kept: dict[str, Any] = {name: value for name, value in settings.items() if isinstance(value, kinds)}
        if (schedule := schedules.to_settings(self.schedule)) is not None:
            kept["schedule"] = schedule
        estimator = {
            "name": type(self).__name__,
            "settings": kept,
            "left_out": sorted(set(settings) - set(kept)),
            "parts": [{"name": part.name, "rows": part.rows, "weight": part.weight} for part in self._parts],
            "warned": self._warned,
            "features": self.n_features_in_,
            "names": getattr(self, "feature_names_in_", np.array([])).tolist(),
            "own": {name: np.asarray(getattr(self, name)).tolist() for name in self._remembered},
        }
        arrays |= {f"inputs.{name}": part for name, part in self._units.inputs._asdict().items()}
        arrays |= {f"target.{name}": part for name, part in self._units.target._asdict().items()}
        arrays |= {f"parts.{name}": np.stack([getattr(p.moments, name) for p in self._parts]) for name in MOMENTS}
        write_arrays(path, arrays, {**about, "estimator": plain(estimator)})

    @classmethod
    def load(cls, path: str | os.PathLike, **settings: Any) -> Self:
        """What `save` wrote: it predicts, and learns on. Settings that were not kept can be given again."""
        arrays, about = read_arrays(path)
        known = about.get("estimator")
        if not isinstance(known, dict) or known.get("name") != cls.__name__:
            held = known.get("name") if isinstance(known, dict) else known or "result"
            raise RunMismatch(f"{path}: holds a {held}, not a {cls.__name__}")
        with doubted(path):
            return cls._unpacked(path, arrays, about, settings)

    @classmethod
    def _unpacked(
        cls, path: str | os.PathLike, arrays: dict[str, np.ndarray], about: Row, settings: dict[str, Any]
    ) -> Self:
        known = about["estimator"]
        if "parts.mean" not in arrays:
            raise RunMismatch(f"{path}: its units are those of a first batch for ever: written by an earlier version")
        ESTIMATOR(known, "estimator")
        missing = [name for name in known["left_out"] if name not in settings]
        if missing:
            again = ", ".join(f"{name}=..." for name in missing)
            warnings.warn(f"{path}: {', '.join(missing)} not kept: to learn on, load(path, {again})", stacklevel=5)
        kept = known["settings"] | {"schedule": schedules.from_settings(known["settings"].get("schedule"))}
        loaded = cls(**{**kept, **settings})
        loaded.result_ = unpacked(path, arrays, about)
        told = zip(known["parts"], *(arrays[f"parts.{name}"] for name in MOMENTS), strict=True)
        columns = known["features"] + 1  # the target is the last
        loaded._parts = [
            Part(part["name"], part["rows"], Moments.checked(part["weight"], mean, total, columns))
            for part, mean, total in told
        ]
        loaded._units = Units(*(Affine(arrays[f"{n}.mean"], arrays[f"{n}.scale"]) for n in ("inputs", "target")))
        loaded._data, loaded._warned = None, known["warned"]
        loaded.n_features_in_ = known["features"]
        if known["names"]:
            loaded.feature_names_in_ = np.array(known["names"], dtype=object)
        fields(cls._remembered)(known["own"], "estimator.own")
        for name, value in known["own"].items():
            setattr(loaded, name, np.array(value) if isinstance(value, list) else value)
        loaded._check_loaded(known["names"])
        return loaded

    def _check_loaded(self, names: Sequence[str]) -> None:
        """That what a file says of an estimator goes together, and that it could learn on."""
        features, result = self.n_features_in_, self.result_
        for what, units, shape in (("inputs", self._units.inputs, (features,)), ("target", self._units.target, ())):
            right = all(array.dtype == np.float64 and array.shape == shape for array in units)
            if not right or not np.all(np.isfinite(units.mean) & (units.scale > 0) & (units.scale < np.inf)):
                raise ValueError(f"{what}: expected a mean and a positive deviation of each column")
        if len(names) not in (0, features) or len(self._parts) != len(result.factors):
            raise ValueError("names or parts: there are more or fewer than columns or factors")
        own, found = self._model, jax.tree.leaves(result.posterior)
        shapes = [leaf.shape for leaf in jax.tree.leaves(prior_shapes(own, own.hyper))]
        if type(own) is not type(result.model) or shapes != [leaf.shape for leaf in found]:
            raise ValueError("settings: are those of another model")
        as_damping(self.damping)
        maybe(whole())(self.random_state, "random_state")

    def __getstate__(self) -> dict[str, Any]:
        """Data do not go where an estimator goes."""
        return {**super().__getstate__(), "_data": None} if hasattr(self, "result_") else super().__getstate__()

    # What linear models say about their coefficients, in the units of the data.

    def _coefficients(self) -> Marginals:
        """Of the coefficients and the intercept, one output after the other."""
        check_is_fitted(self, "result_")
        model = self.result_.model
        try:
            found = model.coefficients(self.result_.posterior)
        except MissingCapability as error:
            raise AttributeError("coefficients: a network has none: use predict") from error
        return found.marginals(np.kron(np.eye(model.outputs), to_units_of_data(*self._units.inputs)))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        """[outputs, coefficients and intercept]; of a regression there is one output."""
        shaped = values.reshape(-1, self.n_features_in_ + 1)
        return shaped if isinstance(self, ClassifierMixin) else shaped[0]

    @property
    def coef_(self) -> np.ndarray:
        """Posterior means of the coefficients, in the units of the data."""
        return self._shaped(self._coefficients().mean)[..., :-1]

    @property
    def intercept_(self) -> Any:
        """Posterior means of the intercepts, in the units of the data."""
        mean = self._shaped(self._coefficients().mean)[..., -1]
        return mean if isinstance(self, ClassifierMixin) else float(mean)

    def intervals(self, level: float = 0.95) -> np.ndarray:
        """Between which values each coefficient is believed to be: shaped as `coef_`, with a last axis of two."""
        if not 0 < level < 1:
            raise InputError(f"level: expected a number between 0 and 1, got {level}")
        ends = self._coefficients().interval(level)
        return np.stack([self._shaped(end)[..., :-1] for end in ends], axis=-1)


class PartitionedClassifier(ClassifierMixin, _Partitioned):
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
        standardise: inputs, by their means and deviations over all rows so far. When those change, what was learnt is
            converted; a mean-field posterior keeps the means of its first batch, a network all units, and both say so
            where that matters.
        random_state: with the same one, the same result.
        verbose: show how far a fit is from its beginning; otherwise a fit says so after two seconds.
        quiet: say nothing.
    """

    _remembered: ClassVar[dict[str, Check]] = {"classes_": check_classes}
    classes_: np.ndarray

    def _checked(self, X: Any, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, np.ndarray]:
        check_columns(None, X)
        X, y = validate_data(self, X, y, reset=first, dtype=np.float64)
        check_rows(None, {"X": X})
        check_classification_targets(y)
        if first:
            self.classes_ = np.unique(y) if classes is None else np.unique(classes)
            if len(self.classes_) < 2:
                raise InputError("y: expected at least 2 classes, got 1 class")
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError(f"classes: cannot change within a stream, where they are {self.classes_.tolist()}")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"y: class {unknown[0]} is new: give all classes to the first partial_fit")
        return X, np.searchsorted(self.classes_, y)

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

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One more batch; `classes` have to be given with the first, if that does not have them all."""
        X, y, weights = self._begin_stream(X, y, sample_weight, classes=classes)
        labels = y[weights > 0]
        if len(labels) >= MANY_ALIKE and np.all(labels == labels[0]):
            warnings.warn(
                "y: all rows of this batch are of one class: a stream that is sorted by class ends far from what all "
                "rows together say, and its log evidence is too high; mix classes, or fit all rows at once",
                stacklevel=2,
            )
        return self._absorbed(X, y, weights)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, averaged over the posterior."""
        check_is_fitted(self, "result_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return self.result_.predict_proba(self._inputs(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]


class PartitionedRegressor(RegressorMixin, _Partitioned):
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
            standardise=standardise,
            random_state=random_state,
            verbose=verbose,
            quiet=quiet,
        )
        self.noise_scale = noise_scale

    def _checked(self, X: Any, y: Any, first: bool) -> tuple[np.ndarray, np.ndarray]:
        check_columns(None, X)
        X, y = validate_data(self, X, y, reset=first, dtype=np.float64, y_numeric=True)
        y = as_numbers(None, "y", y, np.float64)
        check_rows(None, {"X": X, "y": y})
        return X, y

    def _target_units(self, told: Moments) -> Affine:
        centre, deviation = told.mean[-1], told.deviation[-1]
        # Of one row, or of equal ones, nothing but their size is known.
        varies = deviation > 1e-12 * abs(centre)
        return Affine(np.asarray(centre), np.asarray(deviation if varies else abs(centre) or 1.0))

    def _targets(self, y: np.ndarray, units: Units) -> np.ndarray:
        return _in(units.target, y)

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

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One more batch."""
        return self._absorbed(*self._begin_stream(X, y, sample_weight))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The expected target; with the standard deviation of a new observation, noise included, if asked."""
        check_is_fitted(self, "result_")
        X = self._inputs(validate_data(self, X, reset=False, dtype=np.float64))
        target = self._units.target
        mean = target.mean + target.scale * np.ravel(self.result_.predict(X))
        if not return_std:
            return mean
        return mean, target.scale * np.ravel(self.result_.predict(X, return_std=True)[1])
