"""What a run gives: the posterior, and what can be done with it."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import jax
import numpy as np

from partita._version import __version__
from partita.errors import CorruptStorage, InputError, RunMismatch
from partita.exchange import inference_data
from partita.families import REGISTRY as FAMILIES
from partita.families import Family
from partita.foundation.archives import doubted, read_arrays, write_arrays
from partita.foundation.checks import check_count, check_level
from partita.foundation.fields import Check, anything, entries, fields, flag, items, maybe, number, scalar, text, whole
from partita.foundation.plain import Row, plain
from partita.foundation.text import clean
from partita.models import REGISTRY as MODELS
from partita.models import AbstractModel, Hyper
from partita.models.base import prior_shapes
from partita.predictive import expected_response, predict_interval, predictive_std, scaled_columns
from partita.site.columns import Columns, arrange

# What a file says of a result beside its arrays. Hyperparameters are positive; JSON has no nan.
ABOUT = fields(
    {
        "model": fields({"name": text()}, others=anything),
        "family": text(),
        "has_given_prior": flag,
        "log_evidence": maybe(number()),
        "expected_log_probs": items(maybe(number())),
        "hyper": entries(number(above=0)),
        "history": items(entries(anything)),
        "seed": whole(),
    },
    {"design": maybe(entries(anything)), "quarantined": items(items(scalar, 2))},
    anything,
)
# Settings of models that no file can hold.
NO_SETTINGS = ("given_prior", "params")


@dataclass(frozen=True)
class Result:
    """A fitted posterior: `prior × ∏ factors`, the log evidence and the history of the run."""

    model: AbstractModel
    posterior: Family
    prior: Family
    factors: tuple[Family, ...] = field(repr=False)
    log_evidence: float
    expected_log_probs: tuple[float, ...] = field(repr=False)
    hyper: Hyper
    history: list[Row] = field(repr=False)
    seed: int = 0
    # How rows of tables become the inputs of the model, in plain words: kept with it wherever it goes.
    design: Row | None = field(default=None, repr=False)
    # Names of columns, and how large values were, of what a stream has seen.
    columns: Columns = field(default_factory=Columns, repr=False)
    # Sites that the run went on without, and why; those of whose data nothing is in the posterior do not count in the
    # log evidence.
    quarantined: Mapping[int, str] = field(default_factory=dict, repr=False)

    def predict_proba(self, X: Any, samples: int = 256) -> np.ndarray:
        """Probabilities of the classes, averaged over the posterior."""
        X = self._inputs("predict_proba", X)
        response = expected_response(self.model, self.posterior, X, samples)
        if not self.model.classifies(response):  # type: ignore[attr-defined]
            raise InputError(f"predict_proba: {type(self.model).__name__} has no classes: use predict")
        return response

    def predict(self, X: Any, return_std: bool = False, samples: int = 256) -> Any:
        """The most probable class, or the expected target; with its standard deviation if asked."""
        X = self._inputs("predict", X)
        response = expected_response(self.model, self.posterior, X, samples)
        prediction = self.model.predict(response)  # type: ignore[attr-defined]
        if not return_std:
            return prediction
        return prediction, predictive_std(self.model, self.posterior, self.hyper, X)

    def predict_interval(self, X: Any, level: float = 0.95, draws: int = 4000, seed: int = 0) -> np.ndarray:
        """Between which values each row's observation is believed to be, low and high in the last of two axes.

        With the noise of the model, for numbers and counts; of the probability of each class, for classes.
        """
        check_level(level)
        check_count(draws=draws)
        X = self._inputs("predict_interval", X)
        return predict_interval(self.model, self.posterior, self.hyper, X, level, draws, seed)

    def _inputs(self, asked: str, X: Any) -> Any:
        """Rows of a table as the model takes them: as they are, or as the result's design says."""
        if self.design is None:
            return arrange(X, self.columns.names)
        if "formula" in self.design:
            raise InputError(
                f"{asked}: this is the run of the regression {self.design['formula']!r}, whose inputs are made from "
                "tables: use predict(table) of the regression itself, or pt.Regression.load(path).predict(table)"
            )
        if "estimator" in self.design:
            raise InputError(
                f"{asked}: this is the run inside a {self.design['estimator']}, which scales its inputs: use predict "
                f"of pt.{self.design['estimator']}.load(path)"
            )
        return scaled_columns(self.design, X)

    def sample(self, key: Any, number: int) -> Any:
        """`number` draws of the parameters; `key` is a JAX key or a whole number."""
        key = jax.random.key(key) if isinstance(key, int | np.integer) else key
        return self.model.named(self.posterior.sample(key, (number,)))

    def to_arviz(self, shards: Sequence[Any] = (), draws: int = 1000, key: Any = 0) -> Any:
        """An ArviZ `InferenceData`: draws of the posterior, and the history as sample statistics.

        With shards, where they are at hand: what was observed, its log likelihood, and new observations in its place.
        """
        check_count(draws=draws)
        key = jax.random.key(key) if isinstance(key, int | np.integer) else key
        shards = shards if self.design is None else [(self._inputs("to_arviz", X), y) for X, y in shards]
        checked = [self.model.shard(site, shard) for site, shard in enumerate(shards)]
        return inference_data(self.model, self.posterior, self.hyper, self.history, checked, draws, key)

    def cavity(self, site: int) -> Family:
        """What all the other sites believe: prior × ∏ of their factors."""
        if not 0 <= site < len(self.factors):
            raise InputError(f"site {site}: there are sites 0 to {len(self.factors) - 1}")
        return reduce(lambda a, b: a * b, (t for m, t in enumerate(self.factors) if m != site), self.prior)

    def contributions(self) -> np.ndarray:
        """How far the posterior would be without each site, in nats: KL(posterior ‖ posterior / factor).

        nan where the others alone say nothing proper.
        """
        cavities = (self.posterior / factor for factor in self.factors)
        return np.array([self.posterior.kl(rest) if rest.is_proper() else np.nan for rest in cavities])

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the posterior and all factors, bit by bit."""
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves((self.posterior, self.factors)):
            digest.update(np.ascontiguousarray(leaf).tobytes())
        return digest.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, complete or not at all; `partita.load` reads it."""
        write_arrays(path, *self.packed())

    def packed(self) -> tuple[dict[str, np.ndarray], Row]:
        """Everything as arrays by name, and plain words about them."""
        arrays = {f"prior.{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(self.prior))}
        arrays |= {f"posterior.{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(self.posterior))}
        arrays |= {f"factors.{i}": a for i, a in enumerate(jax.tree.leaves(Family.stack(self.factors)))}
        about = {
            "version": __version__,
            "model": _model_settings(self.model),
            "family": type(self.posterior).__name__,
            "has_given_prior": self.model.given_prior is not None,
            "log_evidence": self.log_evidence,
            "expected_log_probs": self.expected_log_probs,
            "hyper": self.hyper,
            "history": self.history,
            "seed": self.seed,
            "design": self.design,
            "columns": self.columns.settings(),
            "quarantined": [[site, reason] for site, reason in self.quarantined.items()],
        }
        return arrays, plain(about)


def load(path: str | os.PathLike[str], model: AbstractModel | None = None) -> Result:
    """Read a saved result, or that of a saved estimator, which predicts only by the estimator's own `load`.

    One of `pt.Model` needs the model too, because code is never stored.
    """
    arrays, about = read_arrays(path)
    if not isinstance(about.get("model"), dict):
        raise RunMismatch(f"{path}: holds a {about.get('estimator', 'file')}: use its own load")
    result, estimator = unpacked(path, arrays, about, model), about.get("estimator")
    if not isinstance(estimator, dict):
        return result
    # An estimator scales what it is given; its run alone does not know how.
    return dataclasses.replace(result, design={"estimator": str(estimator.get("name"))})


def unpacked(
    path: str | os.PathLike[str], arrays: dict[str, np.ndarray], about: Row, model: AbstractModel | None = None
) -> Result:
    """The result that `Result.packed` gave, as it was read from a path."""
    with doubted(path):
        return _unpacked(path, arrays, about, model)


def _unpacked(
    path: str | os.PathLike[str], arrays: dict[str, np.ndarray], about: Row, model: AbstractModel | None
) -> Result:
    ABOUT(about, "about")
    settings = dict(about["model"])
    name = settings.pop("name")
    if model is None:
        if name not in MODELS or not settings or any(settings.get(key) is not None for key in NO_SETTINGS):
            by_formula = "formula" in (about.get("design") or ())
            how = "use pt.Regression.load(path)" if by_formula else "pass it as load(path, model=...)"
            raise InputError(f"{path}: holds a {name}, whose code is not stored: {how}")
        model = MODELS[name].from_settings(settings)
    elif _model_settings(model) != about["model"]:
        raise RunMismatch(f"{path}: was fitted with another model: {about['model']}")
    if about["hyper"].keys() != model.hyper.keys():
        raise CorruptStorage(f"{path}: has other hyperparameters than its model: {', '.join(about['hyper'])}")
    hyper = {key: float(about["hyper"][key]) for key in model.hyper}
    # Shapes alone: a file that claims a billion features costs nothing.
    like = prior_shapes(model, hyper)
    if type(like).__name__ != about["family"]:
        if not about["has_given_prior"] or about["family"] not in FAMILIES:
            raise RunMismatch(f"{path}: holds a {about['family']}, the model has a {type(like).__name__}")
        # A prior of another structure took the place of the model's own; `with_prior` says whether it can.
        number = sum(name.startswith("prior.") for name in arrays)
        like = FAMILIES[about["family"]].from_leaves([arrays[f"prior.{i}"] for i in range(number)])
        model.with_prior(like)
    prior, posterior = (_proper(path, arrays, name, like) for name in ("prior", "posterior"))
    return Result(
        model=model.with_prior(prior) if about["has_given_prior"] else model,
        posterior=posterior,
        prior=prior,
        factors=_factors(path, arrays, like),
        log_evidence=_number(about["log_evidence"]),
        expected_log_probs=tuple(map(_number, about["expected_log_probs"])),
        hyper=hyper,
        history=about["history"],
        seed=about["seed"],
        design=_design(about.get("design"), model),
        columns=Columns.from_settings(about.get("columns"), _width(model)),
        quarantined={int(site): clean(reason) for site, reason in about.get("quarantined", ())},
    )


def _design(design: Row | None, model: AbstractModel) -> Row | None:
    """How rows become inputs, of as many columns as the model has; a regression's is read by its own load."""
    if design is not None and "formula" not in design:
        scaled_design(_width(model))(design, "design")
    return design


def scaled_design(width: int | None) -> Check:
    """What `predictive.scaled_columns` needs."""
    names, centre, unit = text(), number(), number(above=0)
    parts = {"columns": names, "centre": centre, "unit": unit}
    return fields({name: items(part, width) for name, part in parts.items()}, {"target": text()})


def _width(model: AbstractModel) -> int | None:
    """How many columns of inputs a model has, if it says so."""
    layers = getattr(model, "layers", None)
    return layers[0] if isinstance(layers, tuple) else getattr(model, "features", None)


def _number(stored: float | None) -> float:
    """A number of a file; None stands for nan, which JSON does not have."""
    return float("nan") if stored is None else float(stored)


def _proper(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], name: str, like: Family) -> Family:
    leaves = [arrays[f"{name}.{i}"] for i in range(len(jax.tree.leaves(like)))]
    _check_leaves(path, name, leaves, [leaf.shape for leaf in jax.tree.leaves(like)], like)
    density: Family = jax.tree.unflatten(jax.tree.structure(like), leaves)
    if not density.is_proper():
        raise CorruptStorage(f"{path}: the {name} is no proper {type(like).__name__}: it says nothing")
    return density


def _factors(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], like: Family) -> tuple[Family, ...]:
    """The factors of all sites, which need not be proper."""
    leaves = [arrays[f"factors.{i}"] for i in range(len(jax.tree.leaves(like)))]
    number = len(leaves[0])
    _check_leaves(path, "factors", leaves, [(number, *leaf.shape) for leaf in jax.tree.leaves(like)], like)
    return tuple(jax.tree.unflatten(jax.tree.structure(like), [leaf[m, ...] for leaf in leaves]) for m in range(number))


def _check_leaves(
    path: str | os.PathLike[str],
    name: str,
    leaves: Sequence[np.ndarray],
    shapes: Sequence[tuple[Any, ...]],
    like: Family,
) -> None:
    for leaf, shape, wanted in zip(leaves, shapes, jax.tree.leaves(like), strict=True):
        if leaf.shape != shape or leaf.dtype != wanted.dtype:
            raise CorruptStorage(
                f"{path}: {name}: expected {wanted.dtype} of shape {shape}, got {leaf.dtype} of shape {leaf.shape}"
            )
        if not np.isfinite(leaf).all():
            raise CorruptStorage(f"{path}: {name}: has numbers that are not finite")


def _model_settings(model: AbstractModel) -> Row:
    """A built-in model's name and settings; only the name of one that holds code, or arrays."""
    for name, known in MODELS.items():
        if type(model) is known:
            return {"name": name, **(model.to_settings() or {})}
    return {"name": type(model).__name__}
