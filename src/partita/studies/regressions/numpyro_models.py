"""NumPyro models without pooling, beside NUTS on all data at once: writes docs/numpyro_results.md.

`partita study numpyro-models` runs all of them, and with names only these, which are not written. It needs NumPyro, and
the grouped tables (see docs/results.md).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import partita as pt
from partita.datasets import load_table
from partita.foundation.runtime import precision
from partita.studies.documents import choose, compare_moments, markdown_table, write_sections
from partita.studies.methods.mixed_models import read_districts, read_seizures
from partita.studies.nuts import Plan, import_numpyro, sample_program
from partita.studies.options import Page, Say, Some

DOCUMENT = Path("docs/numpyro_results.md")


@dataclass(frozen=True)
class Problem:
    """A program, its data by name, and how rows go to sites: by which of the arguments, if not in turn."""

    words: str
    program: Callable[..., None]
    data: dict[str, np.ndarray]
    by: str | None = None
    local: dict[str, str] = field(default_factory=dict)
    posterior: Literal["full", "mean-field"] = "full"
    sites: int = 5
    rounds: int = 60
    # A run begins this far from the prior's mean, at random: units of a network have to differ.
    shake: float = 0.0
    # A function of draws gives what is compared, where parameters themselves mean little.
    seen: Callable[[dict[str, Any]], dict[str, Any]] | None = None


def schools() -> Problem:
    """Eight schools (Rubin, 1981)."""
    numpyro, dist = import_numpyro()
    effect = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    error = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def program(error: Any, effect: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        spread = numpyro.sample("spread", dist.HalfCauchy(5))
        with numpyro.plate("schools", len(error)):
            own = numpyro.sample("own", dist.Normal(mean, spread))
            numpyro.sample("effect", dist.Normal(own, error), obs=effect)

    words = "eight schools, one site each; a school's own effect stays there"
    return Problem(words, program, {"error": error, "effect": effect}, sites=8)


def sleep() -> Problem:
    numpyro, dist = import_numpyro()
    table = load_table("sleepstudy")
    person = np.unique(table["Subject"], return_inverse=True)[1]
    people = int(person.max()) + 1

    def program(days: Any, person: Any, y: Any) -> None:
        level = numpyro.sample("level", dist.Normal(2.5, 1))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        spread = numpyro.sample("spread", dist.HalfNormal(1).expand([2]).to_event(1))
        with numpyro.plate("people", people):
            own = numpyro.sample("own", dist.Normal(jnp.zeros(2), spread).to_event(1))
        f = level + own[person, 0] + (slope + own[person, 1]) * days
        numpyro.sample("y", dist.Normal(f, noise), obs=y)

    data = {"days": table["Days"] / 10, "person": person, "y": table["Reaction"] / 100}
    words = "hierarchical regression (sleepstudy): everyone's own level and slope, integrated out at six sites"
    return Problem(words, program, data, "person", {"people": "person"}, sites=6)


def radon() -> Problem:
    numpyro, dist = import_numpyro()
    table = load_table("radon")
    county = np.unique(table["county"], return_inverse=True)[1]
    counties = int(county.max()) + 1

    def program(floor: Any, county: Any, y: Any) -> None:
        level = numpyro.sample("level", dist.Normal(0, 5))
        slope = numpyro.sample("slope", dist.Normal(0, 2))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        with numpyro.plate("counties", counties):
            own = numpyro.sample("own", dist.Normal(level, spread))
        numpyro.sample("y", dist.Normal(own[county] + slope * floor, noise), obs=y)

    data = {"floor": 1 - table["basement"], "county": county, "y": table["log.radon"]}
    words = f"radon in houses of {counties} counties, all of whose levels are global: one Gaussian over everything"
    return Problem(words, program, data, "county", rounds=40)


def mixed_model(words: str, rows: tuple[np.ndarray, np.ndarray, np.ndarray], respond: Callable[[Any], Any]) -> Problem:
    """A regression with a level for every group, which is integrated out at one of six sites."""
    numpyro, dist = import_numpyro()
    X, group, y = rows
    groups = int(group.max()) + 1

    def program(X: Any, group: Any, y: Any) -> None:
        weights = numpyro.sample("weights", dist.Normal(0, 3).expand([X.shape[1]]).to_event(1))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        with numpyro.plate("groups", groups):
            own = numpyro.sample("own", dist.Normal(0, spread))
        numpyro.sample("y", respond(X @ weights + own[group]), obs=y)

    data = {"X": X, "group": group, "y": y.astype(int)}
    return Problem(words, program, data, "group", {"groups": "group"}, sites=6)


def seizures() -> Problem:
    _, dist = import_numpyro()
    words = "Poisson mixed model (epil): a patient's own level is integrated out at one of six sites"
    return mixed_model(words, read_seizures(), lambda f: dist.Poisson(jnp.exp(f)))


def districts() -> Problem:
    _, dist = import_numpyro()
    words = "logistic mixed model (Contraception): 60 districts at six sites, their levels integrated out there"
    return mixed_model(words, read_districts(), lambda f: dist.Bernoulli(logits=f))


def _diabetes(columns: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = pt.datasets.load("diabetes")
    return pt.datasets.standardised(X)[:, :columns], pt.datasets.standardised(y)


def robust() -> Problem:
    numpyro, dist = import_numpyro()
    X, y = _diabetes(5)
    y = y.copy()
    y[::40] += 6.0

    def program(X: Any, y: Any) -> None:
        level = numpyro.sample("level", dist.Normal(0, 2))
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        degrees = numpyro.sample("degrees", dist.Gamma(2, 0.1))
        numpyro.sample("y", dist.StudentT(degrees, level + X @ weights, noise), obs=y)

    return Problem(
        "robust regression (diabetes, every 40th row spoilt): degrees of freedom unknown", program, {"X": X, "y": y}
    )


def overdispersed() -> Problem:
    numpyro, dist = import_numpyro()
    table = load_table("epil")
    treated = (table["trt"] == "progabide").astype(float)
    X = np.column_stack([np.ones(len(treated)), table["lbase"], treated, table["lage"]])

    def program(X: Any, y: Any) -> None:
        weights = numpyro.sample("weights", dist.Normal(0, 3).expand([X.shape[1]]).to_event(1))
        size = numpyro.sample("size", dist.Gamma(2, 0.5))
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(X @ weights), size), obs=y)

    return Problem(
        "negative binomial regression (epil), dispersion unknown", program, {"X": X, "y": table["y"].astype(int)}
    )


def network() -> Problem:
    numpyro, dist = import_numpyro()
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-2, 2, 120))
    y = np.sin(2 * x) + 0.2 * rng.normal(size=len(x))
    grid = np.linspace(-2, 2, 9)

    def output(draw: dict[str, Any], x: Any) -> Any:
        hidden = jnp.tanh(x[:, None] * draw["first"] + draw["bias"])
        return hidden @ draw["second"]

    def program(x: Any, y: Any) -> None:
        draw = {name: numpyro.sample(name, dist.Normal(0, 2).expand([6]).to_event(1)) for name in ("first", "bias")}
        draw["second"] = numpyro.sample("second", dist.Normal(0, 1).expand([6]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        numpyro.sample("y", dist.Normal(output(draw, x), noise), obs=y)

    def seen(draws: dict[str, Any]) -> dict[str, Any]:
        lines = jax.vmap(lambda draw: output(draw, jnp.asarray(grid)))({k: v for k, v in draws.items() if k != "noise"})
        return {"f": np.asarray(lines), "noise": draws["noise"]}

    words = "a small network (sin 2x, six tanh units): its outputs at nine places, and the noise"
    return Problem(words, program, {"x": x, "y": y}, rounds=200, shake=1.0, seen=seen)


PROBLEMS = (schools, sleep, radon, seizures, districts, robust, overdispersed, network)


def part_rows(problem: Problem) -> list[dict[str, np.ndarray]]:
    """Rows by site: groups stay whole, and without groups rows go to sites in turn."""
    rows = len(next(iter(problem.data.values())))
    where = (np.arange(rows) if problem.by is None else problem.data[problem.by]) % problem.sites
    return [{name: a[where == m] for name, a in problem.data.items()} for m in range(problem.sites)]


def fit_parts(problem: Problem) -> tuple[pt.Result, float]:
    began = time.perf_counter()
    shards, start = part_rows(problem), None
    model = pt.from_numpyro(problem.program, tuple(problem.data), problem.posterior, problem.local or None)
    if problem.shake:
        layout: Any = model.sized(shards[0]).layout
        size = layout.size
        place = problem.shake * np.random.default_rng(0).normal(size=size)
        start = pt.families.Gaussian.from_moments(place, 0.01 * np.eye(size))
    schedule = pt.schedules.Synchronous(problem.rounds, settled=1e-6)
    result = pt.fit(model, shards, schedule=schedule, start=start)
    return result, time.perf_counter() - began


def sample(problem: Problem) -> tuple[dict[str, np.ndarray], float]:
    began = time.perf_counter()
    with precision(np.float64):
        plan = Plan(1500, 6000, seed=1, accept=0.95, from_median=True)
        draws = sample_program(problem.program, plan, problem.data)
    return draws, time.perf_counter() - began


def compare(problem: Problem, draws: dict[str, np.ndarray], result: pt.Result) -> list[dict[str, Any]]:
    """Mean and standard deviation of every number, both ways."""
    ours = result.sample(0, 20_000)
    if problem.seen is not None:
        draws, ours = problem.seen(draws), problem.seen(ours)
    rows = []
    for name, values in ours.items():
        theirs = draws[name].reshape(len(draws[name]), -1)
        for number, column in enumerate(values.reshape(len(values), -1).T):
            label = name if theirs.shape[1] == 1 else f"{name}[{number}]"
            other = theirs[:, number]
            rows.append({"name": label, "nuts": (other.mean(), other.std()), "ours": (column.mean(), column.std())})
    return rows


def section(problem: Problem, rows: list[dict[str, Any]], seconds: tuple[float, float], result: pt.Result) -> str:
    gap = compare_moments(*np.transpose([row["ours"] for row in rows]), *np.transpose([row["nuts"] for row in rows]))
    shown = rows if len(rows) <= 14 else [row for row in rows if "[" not in row["name"]]
    lines = []
    for row in shown:
        (a, b), (c, d) = row["nuts"], row["ours"]
        lines.append([row["name"], *(f"{value:.3f}" for value in (a, c, b, d))])
    if len(shown) < len(rows):
        lines.append([f"{len(rows) - len(shown)} others", "", "", "", ""])
    summary = (
        f"Over all {len(rows)} numbers: {gap.describe('standard deviations', 'those of NUTS')} (median "
        f"{np.median(gap.ratios):.2f}). {problem.sites} sites, {len(result.history)} rounds, {seconds[0]:.0f} s, "
        f"compiling included; NUTS {seconds[1]:.0f} s. Log evidence {result.log_evidence:.2f}."
    )
    table = markdown_table(["variable", "NUTS mean", "PVI mean", "NUTS sd", "PVI sd"], lines)
    return "\n".join([f"## {problem.words[0].upper()}{problem.words[1:]}", "", table, summary, ""])


HEAD = (
    "# NumPyro models beside NUTS",
    "",
    "Each model is fitted without pooling: sites keep their rows, and, where it says so, variables of their",
    "own. NUTS has all data at once (1,500 steps of warm-up, 6,000 draws, one chain). Variables are in their",
    "own units, constrained.",
    "`partita study numpyro-models` writes this page.",
    "",
)


def compare_models(say: Say, names: Some = None, out: Page = None) -> None:
    """Say the tables of all models, or of those named; all of them are written, too, as any are with `out`."""
    chosen = choose(PROBLEMS, names)
    write_sections(HEAD, _sections(chosen), out or (None if names else DOCUMENT), say)


def _sections(chosen: Sequence[Callable[[], Problem]]) -> Iterator[str]:
    for make in chosen:
        problem = make()
        result, ours = fit_parts(problem)
        draws, theirs = sample(problem)
        yield section(problem, compare(problem, draws, result), (ours, theirs), result)
