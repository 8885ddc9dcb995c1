"""What the person of a site is shown of a recipe before it is approved: what is read, computed, and leaves."""

import json
from pathlib import Path

from partita.errors import InputError, PartitaError, PolicyRefusal
from partita.foundation.own_code import digest_file
from partita.foundation.text import MOST_REASON, clean
from partita.models.base import count_numbers, count_parameters, prior_shapes
from partita.site.consent import Consent, Pinned, digest_recipe
from partita.site.held import check_recipe, check_size
from partita.site.policy import Policy
from partita.site.settings import SiteSettings, read_site
from partita.wire.base_recipe import BaseRecipe
from partita.wire.formula_recipe import FormulaRecipe
from partita.wire.program_recipe import ProgramRecipe
from partita.wire.recipe import Recipe
from partita.wire.recipes import parse_recipe
from partita.wire.summary_recipe import SummaryRecipe

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
    parse_recipe(json.dumps(proposed), folder)
    if digest is not None and not digest_recipe(proposed).startswith(digest):
        raise InputError(f"{folder}: the recipe {digest_recipe(proposed)} is proposed, and not {digest}")
    return proposed


def describe_proposal(folder: Path, proposed: Pinned) -> list[str]:
    """A proposal as the person of a site is shown it: what it comes to, and all of it, a line for each section.

    With escapes of JSON: nothing in it is obeyed by a terminal, and nothing is left out.
    """
    settings, recipe = read_site(folder), parse_recipe(json.dumps(proposed), folder)
    try:
        found = _describe_model(recipe, settings)
    except PartitaError as error:
        found = [f"cannot be built here, and would be refused: {_short(error)}"]
    return [
        f"recipe {digest_recipe(proposed)}",
        _describe_columns(recipe, settings),
        *found,
        _describe_policy(recipe, settings),
        "in full, as the server says it:",
        *(f"{name}: {json.dumps(section)}" for name, section in proposed.items()),
    ]


def _describe_columns(recipe: BaseRecipe, settings: SiteSettings) -> str:
    def show(name: str) -> str:
        own, factor = settings.columns.get(name), settings.units.get(name)
        words = [] if own is None else [f"here {json.dumps(own)}"]
        words += [] if factor is None else [f"times {factor:g}"]
        return json.dumps(name) + (f" ({', '.join(words)})" if words else "")

    if isinstance(recipe, Recipe):
        features = ", ".join(map(show, recipe.columns.features))
        target = "nothing" if recipe.columns.target is None else show(recipe.columns.target)
        return f"reads of each row: {features}, to predict {target}; no other column"
    return f"reads of each row: {', '.join(map(show, recipe.reads))}; no other column"


def _describe_model(recipe: BaseRecipe, settings: SiteSettings) -> list[str]:
    """What is computed, and what leaves: as far as that can be said without running anybody's code."""
    policy, solver = settings.policy, "the solver that is named below" if recipe.solver else "the solver that suits it"
    hyper = ", and the gradient of its hyperparameters" if recipe.learns_hyper else ""
    if isinstance(recipe, SummaryRecipe):
        return _describe_summary(recipe, policy)
    match recipe:
        case Recipe():
            shapes = prior_shapes(recipe.model, recipe.model.hyper)
            parameters = count_parameters(recipe.model, shapes)
            computes, size = f"{json.dumps(recipe.name)}, {parameters} parameters", f"{count_numbers(shapes)} numbers"
        case FormulaRecipe():
            computes = f"a {recipe.name} by the formula {json.dumps(recipe.wanted.formula)}{_describe_counting(recipe)}"
            size = "about p + p² numbers, for p coefficients: one for each number, and for each level but one,"
        case _:
            computes, size = _describe_code(recipe, settings), "as many numbers as the program's posterior has,"
    told = {
        **_describe_questions(recipe),
        "about": "the number of rows, whenever the server asks how the site is",
        "refine": f"updates of {size} and their log likelihood{hyper}, at most {policy.most_tasks} times",
        "evaluate": f"the log likelihood of the data, at most {policy.most_questions} times",
    }
    kinds = [kind for kind in policy.answers if kind in ("refine", *recipe.questions)]
    together = f"leaves: these answers, updates apart, at most {policy.most_questions} times all together"
    return [
        f"computes: {computes}, with {solver}",
        *(f"leaves: {told[kind]}" for kind in kinds),
        *([] if isinstance(recipe, Recipe) else [together]),
        f"leaves: rounded to fewer digits, if the server asks for that: {'yes' if policy.compression else 'never'}",
    ]


def _describe_counting(recipe: FormulaRecipe) -> str:
    """How often rows count, and which do not."""
    wanted = recipe.wanted
    weighed = "" if wanted.weights is None else f"; each row counts as often as {json.dumps(wanted.weights)} says"
    return weighed + (f"; {100 * wanted.held_out:g} % of the rows are left out" if wanted.held_out else "")


def _describe_summary(recipe: SummaryRecipe, policy: Policy) -> list[str]:
    """What a summary computes and tells."""
    wanted, fewest = recipe.wanted, recipe.wanted.fewest_per_cell
    by = "" if wanted.by is None else f", broken down by {json.dumps(wanted.by)}"
    pairs = "".join(f", {json.dumps(first)} with {json.dumps(second)}" for first, second in wanted.pairs)
    told = {
        "about": "the number of rows, whenever the server asks how the site is",
        "outline": "for each column its kind; about where its quantiles are, rounded, and each the mean of at least "
        f"{fewest} neighbours; levels by their names, if {fewest} rows have them",
        "tabulate": f"counts of rows by levels and in bins of numbers{pairs}{by}; means, and squares around them; no "
        f"cell of fewer than {fewest} rows",
    }
    return [
        "computes: a summary of the table; nothing is fitted",
        *(f"leaves: {told[kind]}" for kind in policy.answers if kind in told),
        "leaves: each of these, the number of rows apart, in one form only until you approve again",
    ]


def _describe_questions(recipe: BaseRecipe) -> dict[str, str]:
    """What answers to questions before a run say."""
    group = recipe.parsed.group if isinstance(recipe, FormulaRecipe) else None
    groups = "" if group is None else f"; how many groups of {json.dumps(group)} there are, and rows in the largest"
    return {
        "levels": "for each column whether it holds numbers, or which levels it has, by their names",
        "rows": f"how many rows are complete, and how many miss something{groups}",
        "moments": "means of columns, squares around them, and the order of the largest value",
        "products": "sums of products of columns",
        "layout": "what the program is made of, as some rows show it",
        "groups": "how many groups there are, and how many rows the largest has",
    }


def _describe_code(recipe: BaseRecipe, settings: SiteSettings) -> str:
    """Whose code is run, and whether it is here. It is not run for that."""
    if not isinstance(recipe, ProgramRecipe):
        return json.dumps(recipe.name)
    wanted = recipe.wanted
    if wanted.file is None:
        return f"{json.dumps(wanted.entry)} of a package that is installed here, whose code is run"
    path = settings.path / wanted.file
    try:
        is_same = digest_file(path) == wanted.sha256
    except PartitaError as error:
        return f"{json.dumps(wanted.function)} of a file that is not here ({_short(error)})"
    same = "which is the file that the server means: read it, its code is run" if is_same else "but of ANOTHER CONTENT"
    return f"{json.dumps(wanted.function)} of {json.dumps(str(path))}, {same} (SHA-256 {wanted.sha256})"


def _describe_policy(recipe: BaseRecipe, settings: SiteSettings) -> str:
    try:
        check_recipe(recipe, settings)
        if isinstance(recipe, Recipe):
            check_size(recipe.model, settings.policy)
    except PolicyRefusal as error:
        return f"your policy refuses this ({error.key}): {error}"
    except PartitaError:
        # That it cannot be built is said already.
        return "your policy was not asked"
    policy = settings.policy
    if isinstance(recipe, SummaryRecipe):
        if recipe.wanted.fewest_per_cell < policy.fewest_per_cell:
            return f"your policy refuses this (fewest_per_cell): its cells have to have {policy.fewest_per_cell} rows"
        return f"your policy allows this, if the table has {policy.fewest_rows} rows"
    return (
        f"your policy allows this, if the table has {policy.fewest_rows} rows, "
        f"{policy.fewest_per_cell} in each cell, and {1 / policy.most_parameters_per_row:.3g} for each parameter"
    )


def _short(error: Exception) -> str:
    return clean(error, MOST_REASON)
