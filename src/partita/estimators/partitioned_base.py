"""What regressions and networks share whose data are in several places, or arrive over time."""

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from partita.designs.collinearity import describe_idle
from partita.errors import InputError
from partita.estimators import saving
from partita.estimators.base import Path, check_inputs
from partita.estimators.coefficients import Coefficients
from partita.estimators.parts import Part, ask_idle_columns, ask_parts, check_weights, group_rows
from partita.estimators.units import LINEAR_SLACK, NETWORK_SLACK, Units, convert, join, measure_units
from partita.families import Family
from partita.fitting import fit as fit_sites
from partita.fitting import partial_fit as fit_batch
from partita.foundation.archives import write_arrays
from partita.foundation.fields import Check
from partita.foundation.moments import Affine, Moments
from partita.foundation.plain import Row
from partita.models import AbstractModel
from partita.result import Result
from partita.server.hyper import LearnHyper
from partita.server.rules import Rule
from partita.server.schedules import OnePass, Schedule, Synchronous
from partita.server.settings import Settings
from partita.site.columns import Columns
from partita.solvers import Solver
from partita.telemetry import Callback
from partita.wire.engine import Engine

# Rounds that an estimator goes, at most, where nothing else is asked for.
ROUNDS = Synchronous(rounds=100)


class Partitioned(Coefficients):
    """What regression and classification share."""

    # What a fitted one has beside what all have, and what that has to be.
    _remembered: ClassVar[dict[str, Check]]

    _parts: list[Part]
    # Rows of sites in their own units, where they are at hand.
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
        engine: Engine | None = None,
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
        self.engine = engine
        self.standardise = standardise
        self.random_state = random_state
        self.verbose = verbose
        self.quiet = quiet

    def fit(
        self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()
    ) -> Self:
        """One posterior from all sites; rows with the same entry of `groups` are at the same one.

        Callbacks are called with every event of the run, as those of `pt.fit`.
        """
        X, y = self._check(X, y, first=True)
        weights = check_weights(sample_weight, X)
        rows = group_rows(groups, weights)
        self._warn_of_idle_columns([(X[part], y[part]) for part in rows.values()])
        # Kept for `forget`, and nowhere written: the others refine their factors.
        data = [(X[part], y[part], weights[part]) for part in rows.values()]
        parts = ask_parts(rows, data)
        units = self._units_of(parts)
        self.result_ = self._fit_sites(data, units, parts, callbacks=callbacks)
        self._units, self._parts, self._data, self._warned = units, parts, data, False
        return self

    def _check(self, X: Any, y: Any, first: bool) -> tuple[np.ndarray, np.ndarray]:
        """Rows of inputs, and targets as the model takes them; the first ones say how many columns there are."""
        raise NotImplementedError

    @property
    def _model(self) -> AbstractModel:
        raise NotImplementedError

    def _settings(self, schedule: Schedule | None, hyper: LearnHyper | None) -> Settings:
        """How a run is done: with the schedule that was given, if one was."""
        return Settings(
            solver=self.solver,
            schedule=schedule if self.schedule is None else self.schedule,
            damping=self.damping,
            # A copy: what an engine keeps during a fit is no setting, and could neither be cloned nor written down.
            engine=copy(self.engine),
            hyper=hyper,
            seed=self._seed,
        )

    def _scale(self, data: Sequence[Any], units: Units) -> list[Any]:
        """Rows of sites as the model takes them."""
        return [(units.inputs.standardise(X), self._scale_targets(y, units), weights) for X, y, weights in data]

    def _fit_sites(
        self,
        data: Sequence[Any],
        units: Units,
        parts: Sequence[Part],
        factors: Sequence[Family] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Result:
        model = self._model
        return fit_sites(
            model,
            self._scale(data, units),
            self._settings(OnePass() if model.exact else ROUNDS, self._hyper()),
            factors=factors,
            names=[str(part.name) for part in parts],
            callbacks=self._listeners(callbacks),
        )

    def _fit_batch(self, X: Any, y: Any, sample_weight: Any, callbacks: Sequence[Callback], **more: Any) -> Self:
        """A new batch is a new factor: the posterior becomes the prior, and the batch is not kept.

        Nothing changes if that fails.
        """
        is_first = not hasattr(self, "result_")
        X, y = self._check(X, y, first=is_first, **more)
        weights = check_weights(sample_weight, X)
        used = weights > 0
        X, y, weights = X[used], y[used], weights[used]
        self._warn_of_batch(y)
        before = [] if is_first else self._parts
        # A number of its own, whatever names sites before it have, and whichever were forgotten.
        number = 1 + max((part.name for part in before if isinstance(part.name, int)), default=len(before) - 1)
        parts = [*before, *ask_parts([number], [(X, y, weights)])]
        units, result = self._carry(parts) if before else (self._units_of(parts), None)
        # How large values were is remembered in the units of the data, not in those that the model sees.
        columns = Columns() if result is None else result.columns
        hyper = self._hyper(result, sum(part.weight for part in before))
        found = fit_batch(
            self._model if result is None else replace(result, columns=Columns()),
            self._scale([(X, y, weights)], units)[0],
            self._settings(ROUNDS if self.hidden is not None or hyper is not None else None, hyper),
            callbacks=self._listeners(callbacks),
        )
        self.result_ = replace(found, columns=columns.after((X, y), stacklevel=5))
        self._units, self._parts, self._data = units, parts, None
        self._warned = self._warned if before else False
        return self

    def _warn_of_batch(self, y: np.ndarray) -> None:
        """Say so where a batch is of a kind that a stream ends badly with."""

    def _carry(self, parts: Sequence[Part]) -> tuple[Units, Result]:
        """What is known so far, in the units of all these parts, or in those that are nearest to them."""
        own = self._units_of(parts)
        units = self._within_reach(own)
        if units.same_as(self._units):
            return self._units, self.result_
        try:
            return units, convert(self.result_, self._units, units, [part.weight for part in self._parts])
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

    def _hyper(self, before: Result | None = None, rows: float = 0.0) -> LearnHyper | None:
        """What is learnt as a number, beside what is known of it from so many rows before."""
        return None

    def _units_of(self, parts: Sequence[Part]) -> Units:
        """Units in which columns have mean 0 and deviation 1 over all rows of these parts."""
        return measure_units([part.moments for part in parts], bool(self.standardise), self._target_units)

    def _target_units(self, target: Moments) -> Affine:
        return Affine.unchanged()

    def _scale_targets(self, y: np.ndarray, units: Units) -> np.ndarray:
        return y

    def _warn_of_idle_columns(self, shards: Sequence[Any]) -> None:
        """Where coefficients are what the prior says, whatever the data are; networks have none that are read off."""
        if self.hidden is not None:
            return
        names = [str(name) for name in getattr(self, "feature_names_in_", range(self.n_features_in_))]
        for words in describe_idle(ask_idle_columns(shards), names):
            warnings.warn(f"X: {words}", stacklevel=3)

    def _check_inputs(self, X: Any) -> np.ndarray:
        """Rows of new inputs, as the model takes them."""
        check_is_fitted(self, "result_")
        return self._units.inputs.standardise(check_inputs(self, X))

    @property
    def log_evidence_(self) -> float:
        """A lower bound of log p(y) of all sites; of a stream, a sum of bounds given what is kept of batches before."""
        check_is_fitted(self, "result_")
        return self.result_.log_evidence

    @property
    def history_(self) -> list[Row]:
        """One row per fold."""
        check_is_fitted(self, "result_")
        return self.result_.history

    @property
    def sites_(self) -> list[Row]:
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
            return self._refine_without(rest, parts)
        if not self._model.exact:
            warnings.warn("forget: without their data, the others are not refined", stacklevel=2)
        units, result = self._carry(parts)
        factors = tuple(result.factors[number] for number in rest)
        posterior = join(result.prior, factors)
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

    def _refine_without(self, rest: Sequence[int], parts: list[Part]) -> Self:
        """Fitted to the data of the rest, in units of theirs: from their factors, where those can be brought there."""
        assert self._data is not None
        units = self._units_of(parts)
        result: Result | None = self.result_
        if not units.same_as(self._units):
            try:
                result = convert(self.result_, self._units, units, [part.weight for part in self._parts])
            except InputError:
                result = None
        data = [self._data[number] for number in rest]
        factors = None if result is None else [result.factors[number] for number in rest]
        self.result_ = self._fit_sites(data, units, parts, factors)
        self._units, self._parts, self._data = units, parts, data
        return self

    def save(self, path: Path) -> None:
        """Write one file, complete or not at all; `load` reads it. Data are not kept.

        What is kept of each site or batch are its factor, and means and deviations of its columns. A solver or a
        damping policy, if they were given, are not: `load` asks for them.
        """
        check_is_fitted(self, "result_")
        write_arrays(path, *saving.pack(self))

    @classmethod
    def load(cls, path: Path, **settings: Any) -> Self:
        """What `save` wrote: it predicts, and learns on. Settings that were not kept can be given again."""
        return saving.load(cls, path, settings)

    def __getstate__(self) -> Row:
        """Data do not go where an estimator goes."""
        state: Row = super().__getstate__()
        return {**state, "_data": None} if hasattr(self, "result_") else state
