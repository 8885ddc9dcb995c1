"""Formulas across silos, beside statsmodels (and bambi) on pooled data: writes docs/statistics_results.md.

`partita study silo-statistics` runs all questions, and with names only these, which are not written. It needs the `dev`
extra and the data files (see docs/results.md). With `--bambi PYTHON`, an interpreter that has bambi is asked.
"""

import gzip
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from scipy.io import loadmat
from typer import Option

import partita as pt
from partita.datasets.places import find_needed
from partita.errors import InputError
from partita.studies.documents import choose, write_sections
from partita.studies.options import Page, Say, Some
from partita.studies.regressions.packages import import_pandas, import_statsmodels
from partita.studies.regressions.sets import Table

DOCUMENT = Path("docs/statistics_results.md")
Bambi = Annotated[str | None, Option(metavar="PYTHON", help="An interpreter that has bambi.")]
BAMBI = """
import json, sys
import arviz, bambi, pandas
formula, family, group, path = sys.argv[1:]
table = pandas.read_csv(path, dtype={group: str})
model = bambi.Model(formula, table, family=family)
draws = model.fit(draws=2000, tune=1000, chains=2, cores=2, random_seed=1, progressbar=False)
kept = [name for name in draws.posterior.data_vars if not name.startswith("1|" + group) or name.endswith("sigma")]
found = arviz.summary(draws, var_names=kept, kind="stats", round_to="none")
print("RESULT" + json.dumps({name: [row["mean"], row["sd"]] for name, row in found.iterrows()}))
"""
ADULT = (
    "age", "workclass", "weight", "education", "years", "marital", "occupation", "relationship", "race", "sex", "gain",
    "loss", "hours", "country", "income",
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """Tables of sites, a formula, a family, and what a statistician gets from all rows together."""

    words: str
    table: Table
    site: str
    formula: str
    family: str
    pooled: Callable[[Table], dict[str, tuple[float, float]]]
    anchor: str
    # The name of the group, which bambi is told if it is asked.
    group: str | None = None
    compare: tuple[str, ...] = ()

    @property
    def sites(self) -> dict[str, Table]:
        return {f"{name}": part.drop(columns=self.site) for name, part in self.table.groupby(self.site)}


def coefficients(fitted: Any) -> dict[str, tuple[float, float]]:
    return {name: (fitted.params[name], fitted.bse[name]) for name in fitted.params.index}


def logistic_coefficients(formula: str, table: Table) -> dict[str, tuple[float, float]]:
    sm, smf = import_statsmodels()
    return coefficients(smf.glm(formula, table, family=sm.families.Binomial()).fit())


def grouped_coefficients(kind: str, formula: str, group: str, table: Table) -> dict[str, tuple[float, float]]:
    """What mean-field variational Bayes finds with an intercept for every group, and the spread of these."""
    sm, _ = import_statsmodels()
    model = getattr(sm, kind).from_formula(formula, {group: f"0 + C({group})"}, table, vcp_p=1.0, fe_p=10.0)
    fitted = model.fit_vb()
    found = dict(zip(model.exog_names, zip(fitted.fe_mean, fitted.fe_sd, strict=True), strict=True))
    return found | {f"sd of {group}": (float(np.exp(fitted.vcp_mean[0])), np.nan)}


def read(name: str) -> Table:
    return import_pandas().read_csv(find_needed(f"tables/{name}.csv", None, "Rdatasets"))


def contraception() -> Question:
    table = read("Contraception").assign(region=lambda t: t.district % 6)
    formula = "use ~ age + I(age**2) + urban + livch"

    def fit_pooled(table: Table) -> dict:
        known = table.assign(use=(table.use == "Y") * 1)
        return logistic_coefficients(formula, known)

    words = "Contraception: 1,934 women, six sites"
    other = ("use ~ age + urban + livch", "use ~ age + I(age**2) + urban")
    return Question(words, table, "region", formula, "bernoulli", fit_pooled, "statsmodels GLM", compare=other)


def contraception_by_district() -> Question:
    table = read("Contraception").assign(region=lambda t: t.district % 6, age=lambda t: t.age / 10)
    formula = "use ~ age + I(age**2) + urban + livch + (1|district)"

    def fit_pooled(table: Table) -> dict:
        known = table.assign(use=(table.use == "Y") * 1)
        return grouped_coefficients("BinomialBayesMixedGLM", "use ~ age + I(age**2) + urban + livch", "district", known)

    words = "Contraception with an intercept for each of 60 districts, which stay at their site (age in tens of years)"
    return Question(words, table, "region", formula, "bernoulli", fit_pooled, "statsmodels mean-field VB", "district")


def epil() -> Question:
    table = read("epil").assign(clinic=lambda t: t.subject % 6)
    formula = "y ~ lbase * trt + lage + V4 + (1|subject)"

    def fit_pooled(table: Table) -> dict:
        return grouped_coefficients("PoissonBayesMixedGLM", "y ~ lbase * trt + lage + V4", "subject", table)

    words = "epil: seizures of 59 people at six clinics, an intercept for everyone"
    return Question(words, table, "clinic", formula, "poisson", fit_pooled, "statsmodels mean-field VB", "subject")


def epil_overdispersed() -> Question:
    table = read("epil").assign(clinic=lambda t: t.subject % 6)
    formula = "y ~ lbase * trt + lage + V4"

    def fit_pooled(table: Table) -> dict:
        return coefficients(import_statsmodels()[1].negativebinomial(formula, table).fit(disp=0))

    words = "epil: a negative binomial instead"
    return Question(words, table, "clinic", formula, "negative binomial", fit_pooled, "statsmodels NegativeBinomial")


def school() -> Question:
    data = loadmat(find_needed("school.mat", None, "the multi-task learning literature"))
    parts = []
    for number, (X, y) in enumerate(zip(data["X"][0], data["Y"][0], strict=True)):
        columns = {"year2": X[:, 1], "year3": X[:, 2], "meals": X[:, 3], "verbal1": X[:, 4], "girl": X[:, 6]}
        parts.append(import_pandas().DataFrame({**columns, "score": y[:, 0], "school": number}).astype(float))
    table = import_pandas().concat(parts).assign(place=lambda t: t.school)
    formula = "score ~ year2 + year3 + meals + verbal1 + girl + (1|school)"

    def fit_pooled(table: Table) -> dict:
        fitted = import_statsmodels()[1].mixedlm(formula.replace(" + (1|school)", ""), table, groups=table.school).fit()
        found = {name: pair for name, pair in coefficients(fitted).items() if "Var" not in name}
        spread = float(np.sqrt(fitted.cov_re.iloc[0, 0]))
        return found | {"sd of school": (spread, np.nan), "noise": (float(np.sqrt(fitted.scale)), np.nan)}

    words = "school: 15,362 pupils at 139 schools, each a site, with an intercept each"
    return Question(words, table, "place", formula, "gaussian", fit_pooled, "statsmodels MixedLM")


def adult() -> Question:
    with gzip.open(find_needed("adult/adult.data.gz", None, "UCI"), "rt") as stream:
        table = import_pandas().read_csv(stream, names=ADULT, skipinitialspace=True, na_values="?").dropna()
    few = table.country.where(table.country.isin(["United-States", "Mexico", "Philippines", "Germany"]), "elsewhere")
    table = table.assign(place=few, income=(table.income == ">50K") * 1)
    formula = "income ~ age + years + hours + sex + marital + occupation + race"

    def fit_pooled(table: Table) -> dict:
        return logistic_coefficients(formula, table)

    words = "adult: 30,162 people by country, five sites; two occupations and some races are not everywhere"
    return Question(words, table, "place", formula, "bernoulli", fit_pooled, "statsmodels GLM")


QUESTIONS = (contraception, contraception_by_district, epil, epil_overdispersed, school, adult)


def ask_bambi(python: str, question: Question) -> dict[str, tuple[float, float]]:
    family = {"negative binomial": "negativebinomial"}.get(question.family, question.family)
    table = question.table.assign(use=(question.table.use == "Y") * 1) if "use" in question.table else question.table
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as stream:
        table.to_csv(stream.name, index=False)
        command = [python, "-c", BAMBI, question.formula, family, str(question.group), stream.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    if line is None:
        raise InputError(f"--bambi {python}: expected an interpreter that has bambi: {done.stderr[-2000:]}")
    named = {"1|" + str(question.group) + "_sigma": f"sd of {question.group}"}
    found = json.loads(line.removeprefix("RESULT"))
    return {_as_formulaic(named.get(name, name)): tuple(pair) for name, pair in found.items()}


def _as_formulaic(name: str) -> str:
    """A level as formulaic writes it: bambi says urban[Y] where formulaic says urban[T.Y]."""
    if name.startswith("sd of") or "[" not in name:
        return name
    return name.replace("[", "[T.")


def section(question: Question, python: str | None) -> str:
    began = time.perf_counter()
    found = pt.regress(question.formula, question.sites, family=question.family)
    seconds = time.perf_counter() - began
    theirs = question.pooled(question.table)
    bambi = ask_bambi(python, question) if python and question.group else {}
    rows = {row["name"]: row for row in found.coefficients()}
    lines = [f"## {question.words}", "", f"`{question.formula}`, {question.family}, {len(found.counts)} sites.", ""]
    heads = ["", "PVI mean", "PVI sd", f"{question.anchor}", "its se"] + (["bambi mean", "bambi sd"] if bambi else [])
    lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    gaps, ratios = [], []
    for name, row in rows.items():
        value, error = _matching(theirs, name)
        more: tuple[float, ...] = _matching(bambi, name) if bambi else ()
        numbers = (row["mean"], row["sd"], value, error, *more)
        lines.append(f"| {name} | " + " | ".join(f"{number:.4g}" for number in numbers) + " |")
        best = more if bambi else (value, error)
        gaps.append(abs(row["mean"] - best[0]) / best[1])
        ratios.append(row["sd"] / best[1])
    for row in found.spreads():
        value, error = _matching(theirs, row["name"])
        more = _matching(bambi, row["name"]) if bambi else ()
        numbers = (value, error, *more)
        shown = " | ".join("" if np.isnan(number) else f"{number:.4g}" for number in numbers)
        lines.append(
            f"| {row['name']} (median) | {row['median']:.4g} | {row['low']:.3g} to {row['high']:.3g} | {shown} |"
        )
    against = "bambi" if bambi else question.anchor
    lines += [
        "",
        f"Beside {against}: means differ by at most {max(gaps):.2f} standard errors (median {np.median(gaps):.2f}), "
        f"standard deviations are {min(ratios):.2f} to {max(ratios):.2f} of its. Log evidence "
        f"{found.log_evidence:.2f}; {len(found.result.history)} rounds, "
        f"{found.result.history[-1]['bytes'] / 1000:,.0f} kB, {seconds:.0f} s, compiling included. Calibration on "
        f"{_calibration(found)}.",
        "",
    ]
    if question.compare:
        others = [pt.regress(formula, question.sites, family=question.family) for formula in question.compare]
        lines += ["| formula | log evidence | weight |", "|---|---|---|"]
        lines += [
            f"| `{r['formula']}` | {r['log evidence']:.2f} | {r['weight']:.3g} |" for r in pt.compare([found, *others])
        ]
        lines.append("")
    return "\n".join(lines)


def _matching(found: dict[str, tuple[float, float]], name: str) -> tuple[float, float]:
    """Mean and deviation of the same coefficient, however interactions are ordered and spaces are put."""
    spelt = {"".join(sorted(key.replace(" ", "").split(":"))): pair for key, pair in found.items()}
    return spelt.get("".join(sorted(name.replace(" ", "").split(":"))), (np.nan, np.nan))


def _calibration(found: pt.Regression) -> str:
    row = found.calibration()
    if "inside" in row:
        shares = ", ".join(f"{share:.2f} in {level:.0%} intervals" for level, share in row["inside"].items())
        return f"{row['on']}: {shares}"
    return f"{row['on']}: calibration error {row['ece']:.3f}"


HEAD = (
    "# Formulas across silos beside pooled data",
    "",
    "No site shows its rows to another; statsmodels and bambi have all rows in one table. Ours are posterior",
    "means and deviations under weak priors, errors of maximum likelihood are something else: neither is the",
    "other's truth. bambi samples with NUTS, and chooses its own weak priors.",
    "`partita study silo-statistics --bambi PYTHON` writes this page.",
    "",
)


def compare_silos(say: Say, names: Some = None, bambi: Bambi = None, out: Page = None) -> None:
    """Say the tables of all questions, or of those named; all of them are written, too, as any are with `out`."""
    sections = (section(make(), bambi) for make in choose(QUESTIONS, names))
    write_sections(HEAD, sections, out or (None if names else DOCUMENT), say)
