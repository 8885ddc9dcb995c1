"""Posterior means and standard deviations beside NUTS on the same models and data: writes docs/against_nuts.md.

`partita study against-nuts` runs it; it needs NumPyro.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import partita as pt
from partita.studies.documents import compare_moments, markdown_table, write_sections
from partita.studies.nuts import Plan, import_numpyro, sample_program
from partita.studies.options import Page, Say

DOCUMENT = Path("docs/against_nuts.md")
HEAD = """# Against NUTS

Partitioned variational inference over five sites, beside NumPyro's NUTS (4,000 draws) on the pooled data, with the same
prior N(0, 1) on every weight. Made by `partita study against-nuts`.

A full Gaussian posterior is close wherever the posterior is nearly Gaussian. A mean-field posterior has the right
means but underestimates standard deviations where weights are correlated: that is what minimising KL(q ‖ p) over
independent factors does, and more data do not help.
"""


def likelihoods() -> dict[str, Callable[[Any], Any]]:
    """What a NumPyro program says of the target, given the linear predictor; by the name of our model."""
    _, dist = import_numpyro()
    return {
        "LogisticRegression": lambda f: dist.Bernoulli(logits=f),
        "ProbitRegression": lambda f: dist.Bernoulli(probs=jax.scipy.special.ndtr(f)),
        "PoissonRegression": lambda f: dist.Poisson(jax.numpy.exp(f)),
        "LinearRegression": lambda f: dist.Normal(f, 0.7),
    }


def problems() -> dict[str, tuple[str, np.ndarray, np.ndarray, dict[str, float]]]:
    X, y = pt.datasets.load("breast-cancer")
    cancer = pt.datasets.standardised(X)[:, :8], y
    X, y = pt.datasets.load("diabetes")
    body = pt.datasets.standardised(X)[:, :6]
    counts, scores = np.floor(y / 40), pt.datasets.standardised(y)
    return {
        "breast cancer, 8 columns, 5 by-label sites": ("LogisticRegression", *cancer, {}),
        "breast cancer, 8 columns, 5 by-label sites ": ("ProbitRegression", *cancer, {}),
        "diabetes, progression / 40 as a count, 5 by-label sites": ("PoissonRegression", body, counts, {}),
        "diabetes, standardised progression, 5 by-label sites": ("LinearRegression", body, scores, {"noise": 0.7}),
    }


def sample_weights(likelihood: Callable[[Any], Any], X: np.ndarray, y: np.ndarray, samples: int = 4000) -> np.ndarray:
    numpyro, dist = import_numpyro()

    def program() -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
        numpyro.sample("y", likelihood(X @ w), obs=y)

    return sample_program(program, Plan(1000, samples))["w"]


def fit_sites(name: str, X: np.ndarray, y: np.ndarray, settings: dict[str, float], posterior: str) -> pt.Result:
    model = getattr(pt.models, name)(features=X.shape[1], intercept=False, posterior=posterior, **settings)
    shards = pt.datasets.split((X, y), sites=5, how="by-label")
    return pt.fit(model, shards, schedule=pt.schedules.Synchronous(rounds=100))


def section(title: str, name: str, X: np.ndarray, y: np.ndarray, settings: dict[str, float]) -> str:
    draws = sample_weights(likelihoods()[name], X, y)
    full: Any
    diagonal: Any
    full, diagonal = (fit_sites(name, X, y, settings, kind).posterior for kind in ("full", "mean-field"))
    heads = ["weight", *("NUTS mean", "PVI full", "PVI mean-field"), *("NUTS sd", "PVI full", "PVI mean-field")]
    columns = (
        *(draws.mean(0), full.location, diagonal.location),
        *(draws.std(0), full.scale, diagonal.scale),
    )
    lines = [
        [str(number), *(f"{value:.3f}" for value in values)] for number, values in enumerate(zip(*columns, strict=True))
    ]
    near, flat = (compare_moments(q.location, q.scale, draws.mean(0), draws.std(0)) for q in (full, diagonal))
    summary = (
        f"Largest difference of a mean: {near.means.max():.2f} posterior standard deviations (full). Standard "
        f"deviations relative to NUTS: {near.ratios.min():.2f} to {near.ratios.max():.2f} (full), "
        f"{flat.ratios.min():.2f} to {flat.ratios.max():.2f} (mean-field)."
    )
    return "\n".join([f"## {name}: {title.strip()}", "", markdown_table(heads, lines), summary, ""])


def compare_with_nuts(say: Say, out: Page = None) -> None:
    """Say the tables of all problems, and write the page."""
    import_numpyro()
    sections = (section(title, *problem) for title, problem in problems().items())
    write_sections([HEAD], sections, out or DOCUMENT, say)
