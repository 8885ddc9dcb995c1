"""The latest posterior that a site was sent: kept in its own folder, so that it predicts with nobody else there."""

import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from partita.errors import CorruptStorage, InputError, RunMismatch
from partita.families import Family
from partita.foundation.archives import doubted, read_arrays, write_arrays
from partita.foundation.fields import anything, entries, fields, maybe, number, text, whole
from partita.models import AbstractModel, Hyper
from partita.models.base import prior_shapes
from partita.site.consent import LONGEST, digest_recipe, pinned
from partita.wire.agreed import MOST, Agreed
from partita.wire.base_recipe import BaseRecipe
from partita.wire.messages import name_leaves, read_density
from partita.wire.program_recipe import ProgramRecipe
from partita.wire.questions import Evaluate, Question
from partita.wire.recipes import parse_recipe
from partita.wire.tasks import Task

RUN, FILE = "run", "posterior.safetensors"
# What the file says beside the density. JSON has no density, so what there is of the recipe is its own text.
ABOUT = fields(
    {
        "recipe": text(LONGEST),
        "agreed": maybe(text(MOST)),
        "recipe_digest": text(64),
        "model_digest": text(64),
        "run": text(100),
        "posterior_version": maybe(whole()),
        "time": number(0, most=1e12),
        "hyper": entries(number(above=0)),
    },
    others=anything,
)


@dataclass(frozen=True)
class Latest:
    """A posterior as a site was sent it, and all that is needed to predict from it.

    Args:
        recipe: under which it was sent, which says from which columns it predicts.
        agreed: what sites have agreed on beside it; None, if nothing has to be.
        model: what it is a posterior of.
        posterior: cavity × factor of a task, or what was to be evaluated.
        hyper: the hyperparameters that came with it.
        version: how many updates it had taken; None of the one that is evaluated at the end of a run.
        run: the server's own name for its run.
        time: when it came.
    """

    recipe: BaseRecipe
    agreed: Agreed | None
    model: AbstractModel
    posterior: Family
    hyper: Hyper
    version: int | None
    run: str
    time: float


def find_posterior(sent: Task | Question) -> tuple[Family, Hyper, int | None] | None:
    """The posterior in what a server sent, with its hyperparameters and version; None, if there is none in it.

    Before the first update it is the prior, or a place to start from, and tells nothing.
    """
    if isinstance(sent, Evaluate):
        return sent.posterior, sent.hyper, None
    if not isinstance(sent, Task) or sent.version == 0:
        return None
    if not sent.message_only:
        return sent.cavity * sent.factor, sent.hyper, sent.version
    return None if sent.start is None else (sent.start, sent.hyper, sent.version)


def keep_posterior(
    folder: Path, recipe: BaseRecipe, agreed: bytes | None, digest: str, run: str, sent: Task | Question
) -> None:
    """Keep the posterior in what was sent, whole, in the place of the one before.

    The disk is not waited for: after a power failure the file may be one that is refused, until the next task comes.

    Args:
        folder: where it is kept.
        recipe: that is approved.
        agreed: what sites have agreed on, as the server says it, and as it was checked here.
        digest: of what is computed.
        run: the server's own name for its run.
        sent: a task or a question.
    """
    found = find_posterior(sent)
    if found is None:
        return
    posterior, hyper, version = found
    about = {
        "recipe": recipe.text,
        "agreed": None if agreed is None else agreed.decode(),
        "recipe_digest": digest_recipe(pinned(recipe.text)),
        "model_digest": digest,
        "run": run,
        "posterior_version": version,
        "time": round(time.time(), 3),
        "hyper": {name: float(value) for name, value in hyper.items()},
    }
    write_arrays(folder / FILE, name_leaves("posterior", posterior), about, durable=False)


def read_posterior(folder: Path) -> Latest:
    """What was kept last in a site's folder, checked: it has to be of the model that this version builds."""
    path = folder / RUN / FILE
    if not path.exists():
        raise InputError(
            f"{folder}: no posterior has come yet: one is kept here with the first task after a round, while this "
            f"runs: partita site {folder}"
        )
    arrays, about = read_arrays(path)
    with doubted(path):
        ABOUT(about, FILE)
        recipe = parse_recipe(about["recipe"], folder)
        if isinstance(recipe, ProgramRecipe):
            raise InputError(
                f"{path}: is of a program, which does not say how it predicts; at the server, use `sample`"
            )
        if digest_recipe(pinned(recipe.text)) != about["recipe_digest"]:
            raise CorruptStorage(f"{path}: its recipe is not the one that it names")
        agreed = None if about["agreed"] is None else Agreed.decode(about["agreed"].encode())
        model = recipe.begin(agreed)
        if model is not None and agreed is not None:
            model = agreed.settle(model)
        if model is None or recipe.digest_of(model) != about["model_digest"]:
            raise RunMismatch(
                f"{path}: came under another version of Partita, which built another model; "
                "the next task brings a new one"
            )
        hyper = {name: float(value) for name, value in about["hyper"].items()}
        if hyper.keys() != model.hyper.keys():
            raise ValueError("has other hyperparameters than its model")
        posterior = jax.tree.map(np.asarray, read_density("posterior", arrays, prior_shapes(model, hyper)))
        if not posterior.is_finite() or not posterior.is_proper():
            raise CorruptStorage(f"{path}: the posterior is not proper: it says nothing")
    return Latest(recipe, agreed, model, posterior, hyper, about["posterior_version"], about["run"], about["time"])
