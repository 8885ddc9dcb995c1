"""Formulas across silos, beside statsmodels (and bambi) on pooled data: writes docs/statistics_results.md.

Run with `python -m experiments.silo_statistics`, or with names of some of the studies, which are only printed. Needs
the `dev` extra and the data files (see docs/results.md). With `--bambi PYTHON`, an interpreter that has bambi is asked.
"""

import argparse
import gzip
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy.io import loadmat

import partita as pt
from partita.datasets.places import needed

DOCUMENT = Path(__file__).parents[1] / "docs" / "statistics_results.md"
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
class Study:
    """Tables of sites, a formula, a family, and what a statistician gets from all rows together."""

    words: str
    table: pd.DataFrame
    site: str
    formula: str
    family: str
    pooled: Callable[[pd.DataFrame], dict[str, tuple[float, float]]]
    anchor: str
    # For bambi, if it is asked: the name of the group.
    group: str | None = None
    compare: tuple[str, ...] = ()

    @property
    def sites(self) -> dict[str, pd.DataFrame]:
        return {f"{name}": part.drop(columns=self.site) for name, part in self.table.groupby(self.site)}


def coefficients(fitted: Any) -> dict[str, tuple[float, float]]:
    return {name: (fitted.params[name], fitted.bse[name]) for name in fitted.params.index}


def read(name: str) -> pd.DataFrame:
    return pd.read_csv(needed(f"tables/{name}.csv", None, "Rdatasets"))


def contraception() -> Study:
    table = read("Contraception").assign(region=lambda t: t.district % 6)
    formula = "use ~ age + I(age**2) + urban + livch"

    def pooled(table: pd.DataFrame) -> dict:
        known = table.assign(use=(table.use == "Y") * 1)
        return coefficients(smf.glm(formula, known, family=sm.families.Binomial()).fit())

    words = "Contraception: 1,934 women, six sites"
    other = ("use ~ age + urban + livch", "use ~ age + I(age**2) + urban")
    return Study(words, table, "region", formula, "bernoulli", pooled, "statsmodels GLM", compare=other)


def contraception_by_district() -> Study:
    table = read("Contraception").assign(region=lambda t: t.district % 6, age=lambda t: t.age / 10)
    formula = "use ~ age + I(age**2) + urban + livch + (1|district)"

    def pooled(table: pd.DataFrame) -> dict:
        known = table.assign(use=(table.use == "Y") * 1)
        model = sm.BinomialBayesMixedGLM.from_formula(
            "use ~ age + I(age**2) + urban + livch", {"district": "0 + C(district)"}, known, vcp_p=1.0, fe_p=10.0
        )
        fitted = model.fit_vb()
        found = dict(zip(model.exog_names, zip(fitted.fe_mean, fitted.fe_sd, strict=True), strict=True))
        return found | {"sd of district": (float(np.exp(fitted.vcp_mean[0])), np.nan)}

    words = "Contraception with an intercept for each of 60 districts, which stay at their site (age in tens of years)"
    return Study(words, table, "region", formula, "bernoulli", pooled, "statsmodels mean-field VB", "district")


def epil() -> Study:
    table = read("epil").assign(clinic=lambda t: t.subject % 6)
    formula = "y ~ lbase * trt + lage + V4 + (1|subject)"

    def pooled(table: pd.DataFrame) -> dict:
        model = sm.PoissonBayesMixedGLM.from_formula(
            "y ~ lbase * trt + lage + V4", {"subject": "0 + C(subject)"}, table, vcp_p=1.0, fe_p=10.0
        )
        fitted = model.fit_vb()
        found = dict(zip(model.exog_names, zip(fitted.fe_mean, fitted.fe_sd, strict=True), strict=True))
        return found | {"sd of subject": (float(np.exp(fitted.vcp_mean[0])), np.nan)}

    words = "epil: seizures of 59 people at six clinics, an intercept for everyone"
    return Study(words, table, "clinic", formula, "poisson", pooled, "statsmodels mean-field VB", "subject")


def epil_overdispersed() -> Study:
    table = read("epil").assign(clinic=lambda t: t.subject % 6)
    formula = "y ~ lbase * trt + lage + V4"

    def pooled(table: pd.DataFrame) -> dict:
        return coefficients(smf.negativebinomial(formula, table).fit(disp=0))

    words = "epil: a negative binomial instead"
    return Study(words, table, "clinic", formula, "negative binomial", pooled, "statsmodels NegativeBinomial")


def school() -> Study:
    data = loadmat(needed("school.mat", None, "the multi-task learning literature"))
    parts = []
    for number, (X, y) in enumerate(zip(data["X"][0], data["Y"][0], strict=True)):
        columns = {"year2": X[:, 1], "year3": X[:, 2], "meals": X[:, 3], "verbal1": X[:, 4], "girl": X[:, 6]}
        parts.append(pd.DataFrame({**columns, "score": y[:, 0], "school": number}).astype(float))
    table = pd.concat(parts).assign(place=lambda t: t.school)
    formula = "score ~ year2 + year3 + meals + verbal1 + girl + (1|school)"

    def pooled(table: pd.DataFrame) -> dict:
        fitted = smf.mixedlm(formula.replace(" + (1|school)", ""), table, groups=table.school).fit()
        found = {name: pair for name, pair in coefficients(fitted).items() if "Var" not in name}
        spread = float(np.sqrt(fitted.cov_re.iloc[0, 0]))
        return found | {"sd of school": (spread, np.nan), "noise": (float(np.sqrt(fitted.scale)), np.nan)}

    words = "school: 15,362 pupils at 139 schools, each a site, with an intercept each"
    return Study(words, table, "place", formula, "gaussian", pooled, "statsmodels MixedLM")


def adult() -> Study:
    with gzip.open(needed("adult/adult.data.gz", None, "UCI"), "rt") as stream:
        table = pd.read_csv(stream, names=ADULT, skipinitialspace=True, na_values="?").dropna()
    few = table.country.where(table.country.isin(["United-States", "Mexico", "Philippines", "Germany"]), "elsewhere")
    table = table.assign(place=few, income=(table.income == ">50K") * 1)
    formula = "income ~ age + years + hours + sex + marital + occupation + race"

    def pooled(table: pd.DataFrame) -> dict:
        return coefficients(smf.glm(formula, table, family=sm.families.Binomial()).fit())

    words = "adult: 30,162 people by country, five sites; two occupations and some races are not everywhere"
    return Study(words, table, "place", formula, "bernoulli", pooled, "statsmodels GLM")


STUDIES = (contraception, contraception_by_district, epil, epil_overdispersed, school, adult)


def ask_bambi(python: str, study: Study) -> dict[str, tuple[float, float]]:
    family = {"negative binomial": "negativebinomial"}.get(study.family, study.family)
    table = study.table.assign(use=(study.table.use == "Y") * 1) if "use" in study.table else study.table
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as stream:
        table.to_csv(stream.name, index=False)
        command = [python, "-c", BAMBI, study.formula, family, str(study.group), stream.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    if line is None:
        raise SystemExit(f"bambi: {done.stderr[-2000:]}")
    named = {"1|" + str(study.group) + "_sigma": f"sd of {study.group}"}
    found = json.loads(line.removeprefix("RESULT"))
    return {_as_formulaic(named.get(name, name)): tuple(pair) for name, pair in found.items()}


def _as_formulaic(name: str) -> str:
    """Levels as formulaic writes them: bambi says urban[Y] where it says urban[T.Y]."""
    if name.startswith("sd of") or "[" not in name:
        return name
    return name.replace("[", "[T.")


def section(study: Study, python: str | None) -> str:
    began = time.perf_counter()
    found = pt.regress(study.formula, study.sites, family=study.family)
    seconds = time.perf_counter() - began
    theirs = study.pooled(study.table)
    bambi = ask_bambi(python, study) if python and study.group else {}
    rows = {row["name"]: row for row in found.coefficients()}
    lines = [f"## {study.words}", "", f"`{study.formula}`, {study.family}, {len(found.sites)} sites.", ""]
    heads = ["", "PVI mean", "PVI sd", f"{study.anchor}", "its se"] + (["bambi mean", "bambi sd"] if bambi else [])
    lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    gaps, ratios = [], []
    for name, row in rows.items():
        value, error = _matching(theirs, name)
        more = _matching(bambi, name) if bambi else ()
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
    against = "bambi" if bambi else study.anchor
    lines += [
        "",
        f"Beside {against}: means differ by at most {max(gaps):.2f} standard errors (median {np.median(gaps):.2f}), "
        f"standard deviations are {min(ratios):.2f} to {max(ratios):.2f} of its. Log evidence "
        f"{found.log_evidence:.2f}; {len(found.result.history)} rounds, "
        f"{found.result.history[-1]['bytes'] / 1000:,.0f} kB, {seconds:.0f} s, compiling included. Calibration on "
        f"{_calibration(found)}.",
        "",
    ]
    if study.compare:
        others = [pt.regress(formula, study.sites, family=study.family) for formula in study.compare]
        lines += ["| formula | log evidence | weight |", "|---|---|---|"]
        lines += [
            f"| `{r['formula']}` | {r['log evidence']:.2f} | {r['weight']:.3g} |" for r in pt.compare([found, *others])
        ]
        lines.append("")
    return "\n".join(lines)


def _matching(found: dict[str, tuple[float, float]], name: str) -> tuple[float, float]:
    """The same coefficient, however interactions are ordered and spaces are put."""
    spelt = {"".join(sorted(key.replace(" ", "").split(":"))): pair for key, pair in found.items()}
    return spelt.get("".join(sorted(name.replace(" ", "").split(":"))), (np.nan, np.nan))


def _calibration(found: pt.Regression) -> str:
    row = found.calibration()
    if "inside" in row:
        shares = ", ".join(f"{share:.2f} in {level:.0%} intervals" for level, share in row["inside"].items())
        return f"{row['on']}: {shares}"
    return f"{row['on']}: calibration error {row['ece']:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--bambi", metavar="PYTHON")
    given = parser.parse_args()
    sections = []
    for make in STUDIES:
        if not given.names or make.__name__ in given.names:
            sections.append(section(make(), given.bambi))
            print(sections[-1], flush=True)
    if not given.names:
        head = [
            "# Formulas across silos beside pooled data",
            "",
            "No site shows its rows to another; statsmodels and bambi have all rows in one table. Ours are posterior",
            "means and deviations under weak priors, errors of maximum likelihood are something else: neither is the",
            "other's truth. bambi samples with NUTS, and chooses its own weak priors.",
            "`python -m experiments.silo_statistics --bambi PYTHON` writes this page.",
            "",
        ]
        DOCUMENT.write_text("\n".join([*head, *sections]), encoding="utf-8")


if __name__ == "__main__":
    main()
