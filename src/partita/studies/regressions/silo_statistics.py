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
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from scipy.io import loadmat
from typer import Option

import partita as pt
from partita.datasets.places import find_needed
from partita.errors import InputError
from partita.studies.documents import Gap, choose, compare_moments, markdown_table, write_sections
from partita.studies.options import Page, Say, Some
from partita.studies.regressions.packages import import_pandas, import_statsmodels, normalise_name
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


WOMEN, SEIZURES = "use ~ age + I(age**2) + urban + livch", "y ~ lbase * trt + lage + V4"

# Means and standard deviations of coefficients, by their names.
Moments = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Question:
    """Tables of sites, a formula, a family, and what a statistician gets from all rows together."""

    words: str
    table: Table
    site: str
    formula: str
    family: str
    pooled: Callable[["Question"], Moments]
    anchor: str
    # The name of the group, which bambi is told if it is asked.
    group: str | None = None
    compare: tuple[str, ...] = ()

    @property
    def sites(self) -> dict[str, Table]:
        return {f"{name}": part.drop(columns=self.site) for name, part in self.table.groupby(self.site)}

    @property
    def fixed(self) -> str:
        """The formula without intercepts of groups."""
        return self.formula.split(" + (1|")[0]

    @property
    def numbers(self) -> Table:
        """The table with zeros and ones for those who use no contraception, and some."""
        return self.table.assign(use=(self.table.use == "Y") * 1) if "use" in self.table else self.table


def coefficients(fitted: Any) -> Moments:
    return {name: (fitted.params[name], fitted.bse[name]) for name in fitted.params.index}


def fit_logistic(question: Question) -> Moments:
    sm, smf = import_statsmodels()
    return coefficients(smf.glm(question.formula, question.numbers, family=sm.families.Binomial()).fit())


def fit_sizes(question: Question) -> Moments:
    return coefficients(import_statsmodels()[1].negativebinomial(question.formula, question.table).fit(disp=0))


def fit_groups(kind: str, question: Question) -> Moments:
    """What mean-field variational Bayes finds with an intercept for every group, and the spread of these."""
    sm, _ = import_statsmodels()
    groups = {question.group: f"0 + C({question.group})"}
    model = getattr(sm, kind).from_formula(question.fixed, groups, question.numbers, vcp_p=1.0, fe_p=10.0)
    fitted = model.fit_vb()
    found = dict(zip(model.exog_names, zip(fitted.fe_mean, fitted.fe_sd, strict=True), strict=True))
    return found | {f"sd of {question.group}": (float(np.exp(fitted.vcp_mean[0])), np.nan)}


def fit_schools(question: Question) -> Moments:
    fitted = import_statsmodels()[1].mixedlm(question.fixed, question.table, groups=question.table.school).fit()
    found = {name: pair for name, pair in coefficients(fitted).items() if "Var" not in name}
    spread = float(np.sqrt(fitted.cov_re.iloc[0, 0]))
    return found | {"sd of school": (spread, np.nan), "noise": (float(np.sqrt(fitted.scale)), np.nan)}


def read(name: str) -> Table:
    return import_pandas().read_csv(find_needed(f"tables/{name}.csv", None, "Rdatasets"))


def contraception() -> Question:
    table = read("Contraception").assign(region=lambda t: t.district % 6)
    words = "Contraception: 1,934 women, six sites"
    other = ("use ~ age + urban + livch", "use ~ age + I(age**2) + urban")
    return Question(words, table, "region", WOMEN, "bernoulli", fit_logistic, "statsmodels GLM", compare=other)


def contraception_by_district() -> Question:
    table = read("Contraception").assign(region=lambda t: t.district % 6, age=lambda t: t.age / 10)
    formula, fit = f"{WOMEN} + (1|district)", partial(fit_groups, "BinomialBayesMixedGLM")
    words = "Contraception with an intercept for each of 60 districts, which stay at their site (age in tens of years)"
    return Question(words, table, "region", formula, "bernoulli", fit, "statsmodels mean-field VB", "district")


def epil() -> Question:
    table = read("epil").assign(clinic=lambda t: t.subject % 6)
    formula, fit = f"{SEIZURES} + (1|subject)", partial(fit_groups, "PoissonBayesMixedGLM")
    words = "epil: seizures of 59 people at six clinics, an intercept for everyone"
    return Question(words, table, "clinic", formula, "poisson", fit, "statsmodels mean-field VB", "subject")


def epil_overdispersed() -> Question:
    table = read("epil").assign(clinic=lambda t: t.subject % 6)
    words = "epil: a negative binomial instead"
    return Question(words, table, "clinic", SEIZURES, "negative binomial", fit_sizes, "statsmodels NegativeBinomial")


def school() -> Question:
    data = loadmat(find_needed("school.mat", None, "the multi-task learning literature"))
    parts = []
    for number, (X, y) in enumerate(zip(data["X"][0], data["Y"][0], strict=True)):
        columns = {"year2": X[:, 1], "year3": X[:, 2], "meals": X[:, 3], "verbal1": X[:, 4], "girl": X[:, 6]}
        parts.append(import_pandas().DataFrame({**columns, "score": y[:, 0], "school": number}).astype(float))
    table = import_pandas().concat(parts).assign(place=lambda t: t.school)
    formula = "score ~ year2 + year3 + meals + verbal1 + girl + (1|school)"
    words = "school: 15,362 pupils at 139 schools, each a site, with an intercept each"
    return Question(words, table, "place", formula, "gaussian", fit_schools, "statsmodels MixedLM")


def adult() -> Question:
    with gzip.open(find_needed("adult/adult.data.gz", None, "UCI"), "rt") as stream:
        table = import_pandas().read_csv(stream, names=ADULT, skipinitialspace=True, na_values="?").dropna()
    few = table.country.where(table.country.isin(["United-States", "Mexico", "Philippines", "Germany"]), "elsewhere")
    table = table.assign(place=few, income=(table.income == ">50K") * 1)
    formula = "income ~ age + years + hours + sex + marital + occupation + race"
    words = "adult: 30,162 people by country, five sites; two occupations and some races are not everywhere"
    return Question(words, table, "place", formula, "bernoulli", fit_logistic, "statsmodels GLM")


QUESTIONS = (contraception, contraception_by_district, epil, epil_overdispersed, school, adult)


def ask_bambi(python: str, question: Question) -> Moments:
    family = {"negative binomial": "negativebinomial"}.get(question.family, question.family)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as stream:
        question.numbers.to_csv(stream.name, index=False)
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
    theirs = question.pooled(question)
    bambi = ask_bambi(python, question) if python and question.group else {}
    about = f"`{question.formula}`, {question.family}, {len(found.counts)} sites."
    last = found.result.history[-1]
    summary = (
        f"Beside {'bambi' if bambi else question.anchor}: "
        f"{_compare(found, bambi or theirs).describe('standard errors', 'its')}. "
        f"Log evidence {found.log_evidence:.2f}; {len(found.result.history)} rounds, "
        f"{last['bytes'] / 1000:,.0f} kB, {seconds:.0f} s, compiling included. "
        f"Calibration on {_calibration(found)}."
    )
    parts = [f"## {question.words}", "", about, "", _coefficients(question, found, theirs, bambi), summary, ""]
    return "\n".join([*parts, _formulas(question, found)] if question.compare else parts)


def _coefficients(question: Question, found: pt.Regression, theirs: Moments, bambi: Moments) -> str:
    """The table of coefficients and spreads, each beside what others find."""
    heads = ["", "PVI mean", "PVI sd", question.anchor, "its se"] + (["bambi mean", "bambi sd"] if bambi else [])

    def others(name: str) -> tuple[float, ...]:
        return (*_match(theirs, name), *(_match(bambi, name) if bambi else ()))

    lines = [
        [row["name"], *(f"{number:.4g}" for number in (row["mean"], row["sd"], *others(row["name"])))]
        for row in found.coefficients()
    ]
    for row in found.spreads():
        shown = ["" if np.isnan(number) else f"{number:.4g}" for number in others(row["name"])]
        lines.append(
            [f"{row['name']} (median)", f"{row['median']:.4g}", f"{row['low']:.3g} to {row['high']:.3g}", *shown]
        )
    return markdown_table(heads, lines)


def _compare(found: pt.Regression, others: Moments) -> Gap:
    ours = found.coefficients()
    theirs = [_match(others, row["name"]) for row in ours]
    return compare_moments([row["mean"] for row in ours], [row["sd"] for row in ours], *np.transpose(theirs))


def _formulas(question: Question, found: pt.Regression) -> str:
    """The table of other formulas for the same tables."""
    others = [pt.regress(formula, question.sites, family=question.family) for formula in question.compare]
    rows = pt.compare([found, *others])
    lines = [[f"`{row['formula']}`", f"{row['log evidence']:.2f}", f"{row['weight']:.3g}"] for row in rows]
    return markdown_table(["formula", "log evidence", "weight"], lines)


def _match(found: Moments, name: str) -> tuple[float, float]:
    """The mean and deviation of the same coefficient, however it is written."""
    known = {normalise_name(key): pair for key, pair in found.items()}
    return known.get(normalise_name(name), (np.nan, np.nan))


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
