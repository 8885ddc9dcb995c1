"""What the person of a site is shown of a recipe before it is approved: what is read, computed, and leaves."""

import json
import math
from pathlib import Path

import jax

from partita.errors import InputError, PartitaError, PolicyRefusal
from partita.foundation.text import MOST_REASON, clean
from partita.models.base import count_parameters, prior_shapes
from partita.site.consent import Consent, Pinned, digest_recipe
from partita.site.gate import check_recipe
from partita.site.policy import Policy
from partita.site.settings import SiteSettings, read_site
from partita.wire.recipe import Recipe

# So much of a digest says which recipe is meant.
FEWEST_CHARACTERS = 6


def read_proposal(folder: Path, digest: str | None = None) -> Pinned:
    """What a server has proposed to the site of a folder; an error that says so, if there is nothing to approve.

    Args:
        folder: the site's.
        digest: the beginning of the digest that the recipe has to have, if it matters.
    """
    if digest is not None and len(digest) < FEWEST_CHARACTERS:
        raise InputError(f"--digest: expected at least {FEWEST_CHARACTERS} characters of a digest, got {digest!r}")
    consent = Consent(read_site(folder).path)
    proposed = consent.proposed
    if proposed is None:
        known = "nothing new is proposed" if consent.accepted else "no server has proposed anything yet"
        raise InputError(f"{folder}: {known}; it is noted here when one asks, while this runs: partita site {folder}")
    # What is no recipe is never answered, whoever has put it there.
    Recipe.parse(json.dumps(proposed))
    if digest is not None and not digest_recipe(proposed).startswith(digest):
        raise InputError(f"{folder}: the recipe {digest_recipe(proposed)} is proposed, and not {digest}")
    return proposed


def describe_proposal(folder: Path, proposed: Pinned) -> list[str]:
    """A proposal as the person of a site is shown it: what it comes to, and all of it, a line for each section.

    With escapes of JSON: nothing in it is obeyed by a terminal, and nothing is left out.
    """
    settings, recipe = read_site(folder), Recipe.parse(json.dumps(proposed))
    try:
        found = _describe_model(recipe, settings.policy)
    except PartitaError as error:
        found = [f"cannot be built here, and would be refused: {_short(error)}"]
    return [
        f"recipe {digest_recipe(proposed)}",
        *_describe_columns(recipe, settings),
        *found,
        _describe_policy(recipe, settings),
        "in full, as the server says it:",
        *(f"{name}: {json.dumps(section)}" for name, section in proposed.items()),
    ]


def _describe_columns(recipe: Recipe, settings: SiteSettings) -> list[str]:
    def show(name: str) -> str:
        own = settings.columns.get(name)
        return json.dumps(name) + ("" if own is None else f" (here {json.dumps(own)})")

    features = ", ".join(map(show, recipe.columns.features))
    target = "nothing" if recipe.columns.target is None else show(recipe.columns.target)
    return [f"reads of each row: {features}, to predict {target}; no other column"]


def _describe_model(recipe: Recipe, policy: Policy) -> list[str]:
    model = recipe.model
    shapes = prior_shapes(model, model.hyper)
    numbers = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    parameters = count_parameters(model, shapes)
    solver = "the solver that is named below" if recipe.solver else "the solver that suits it"
    hyper = ", and the gradient of its hyperparameters" if recipe.learns_hyper else ""
    leaving = {
        "about": "the number of rows, whenever the server asks how the site is",
        "refine": f"updates of {numbers} numbers and their log likelihood{hyper}, at most {policy.most_tasks} times",
        "evaluate": f"the log likelihood of the data, at most {policy.most_questions} times",
    }
    return [
        f"computes: {json.dumps(recipe.model_choice.name)}, {parameters} parameters, with {solver}",
        *(f"leaves: {leaving[kind]}" for kind in policy.answers),
        f"leaves: rounded to fewer digits, if the server asks for that: {'yes' if policy.compression else 'never'}",
    ]


def _describe_policy(recipe: Recipe, settings: SiteSettings) -> str:
    try:
        check_recipe(recipe, settings)
    except PolicyRefusal as error:
        return f"your policy refuses this ({error.key}): {error}"
    except PartitaError:
        # That it cannot be built is said already.
        return "your policy was not asked"
    policy = settings.policy
    return (
        f"your policy allows this, if the table has {policy.fewest_rows} rows, "
        f"{policy.fewest_per_cell} in each cell, and {1 / policy.most_parameters_per_row:.3g} for each parameter"
    )


def _short(error: Exception) -> str:
    return clean(error, MOST_REASON)
