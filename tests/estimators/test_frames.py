"""The estimators in scikit-learn's company: frames with named columns, pipelines, searches, routed metadata."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import partita as pt
from partita.errors import InputError

X, NUMBERS = (part[50:] for part in load_iris(return_X_y=True))
NAMES = ["sepal length", "sepal width", "petal length", "petal width"]
SPECIES = np.array(["setosa", "versicolor", "virginica"])[NUMBERS]
LENGTHS = X[:, 0] + X[:, 3]
SITES = np.array(["north", "south", "east"])[np.arange(100) % 3]

BRIEF = pt.schedules.Synchronous(rounds=5)
ESTIMATORS = {
    "partitioned classifier": (pt.PartitionedClassifier(schedule=BRIEF), SPECIES),
    "partitioned regressor": (pt.PartitionedRegressor(schedule=BRIEF), LENGTHS),
    "streaming classifier": (pt.StreamingGPClassifier(hyperparameters="fixed", move_points=False), SPECIES),
    "streaming regressor": (pt.StreamingGPRegressor(hyperparameters="fixed", move_points=False), LENGTHS),
}
FRAMES = {"pandas": (pd.DataFrame, pd.Series), "polars": (pl.DataFrame, pl.Series)}


@pytest.mark.parametrize("library", FRAMES)
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_frames_are_arrays_with_names(kind, library):
    estimator, y = ESTIMATORS[kind]
    frame, series = FRAMES[library]
    table, targets = frame(dict(zip(NAMES, X.T, strict=True))), series(y.tolist())
    model, plain = clone(estimator).fit(table, targets), clone(estimator).fit(X, y)
    assert model.feature_names_in_.tolist() == NAMES
    assert not hasattr(plain, "feature_names_in_")
    same(model.predict(table), plain.predict(X))
    assert model.score(table, targets) == pytest.approx(plain.score(X, y))
    assert plain.score(X, y) > 0.9
    for wrong in (table[NAMES[::-1]], table[NAMES[:3]], frame({f"{name} (cm)": table[name] for name in NAMES})):
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(wrong)
        with pytest.raises(ValueError, match="feature names should match"):
            model.partial_fit(wrong, targets)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model.predict(X)
    with pytest.warns(UserWarning, match="X has feature names"):
        plain.predict(table)
    assert model.partial_fit(table, targets).feature_names_in_.tolist() == NAMES
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        same(plain.partial_fit(X, y).predict(X), model.predict(X))


def same(a, b):
    """Up to the order in which a frame's columns lie, and are summed."""
    assert np.array_equal(a, b) if a.dtype.kind in "OU" else np.allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("series", [pd.Series, pl.Series, lambda names: pd.Series(names).astype("category"), list])
def test_sites_may_be_a_column(series):
    estimator, y = ESTIMATORS["partitioned classifier"]
    model = clone(estimator).fit(X, y, groups=series(SITES.tolist()))
    assert [(type(site["site"]), site["site"]) for site in model.sites_] == [
        (str, name) for name in ("east", "north", "south")
    ]
    np.testing.assert_array_equal(model.coef_, clone(estimator).fit(X, y, groups=SITES).coef_)
    assert len(model.forget("south").sites_) == 2


@pytest.mark.parametrize(
    "groups",
    [
        pd.Series([None, *SITES[1:]]),
        pl.Series([None, *SITES[1:].tolist()]),
        pd.Series([pd.NA, *SITES[1:]], dtype="string"),
        np.where(np.arange(100) < 3, np.nan, 1.0),
        np.array(["north", 1] * 50, dtype=object),
    ],
)
def test_every_row_is_at_a_site(groups):
    with pytest.raises(InputError, match="groups: expected entries of one kind, and none missing"):
        pt.PartitionedClassifier().fit(X, SPECIES, groups=groups)


@pytest.fixture
def routed():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def pipeline(library):
    estimator = clone(ESTIMATORS["partitioned classifier"][0]).set_fit_request(groups=True)
    return make_pipeline(StandardScaler().set_output(transform=library), estimator)


@pytest.mark.parametrize("library", FRAMES)
def test_sites_find_their_way_through_a_pipeline(routed, library):
    table = FRAMES[library][0](dict(zip(NAMES, X.T, strict=True)))
    model = pipeline(library).fit(table, SPECIES, groups=SITES)[-1]
    assert model.feature_names_in_.tolist() == NAMES
    assert [site["rows"] for site in model.sites_] == [33, 34, 33]


def test_searches_and_cross_validation_by_site(routed):
    """The same groups tell `fit` who works and `GroupKFold` whom to hold out."""
    table = pd.DataFrame(X, columns=NAMES)
    settings = {"partitionedclassifier__prior_scale": [1e-3, 1.0]}
    search = GridSearchCV(pipeline("pandas"), settings, cv=GroupKFold(3), scoring="neg_log_loss")
    search.fit(table, SPECIES, groups=SITES)
    assert search.best_params_ == {"partitionedclassifier__prior_scale": 1.0}
    assert len(search.best_estimator_[-1].sites_) == 3
    scores = cross_val_score(pipeline("pandas"), table, SPECIES, params={"groups": SITES}, cv=LeaveOneGroupOut())
    assert len(scores) == 3
    assert scores.mean() > 0.85


def test_settings_survive_cloning():
    estimator = pt.PartitionedClassifier(schedule=BRIEF, damping=pt.damping.Fixed(0.5), hidden=[3])
    copied = clone(estimator)
    assert copied.get_params() == estimator.get_params()
    assert copied.get_params()["damping"] is not estimator.damping


@pytest.mark.parametrize("kind", ["partitioned regressor", "streaming regressor"])
def test_names_survive_pipelines_whose_steps_give_frames(kind):
    estimator, y = ESTIMATORS[kind]
    table = pd.DataFrame(X, columns=NAMES)
    pipeline = make_pipeline(StandardScaler(), clone(estimator)).set_output(transform="pandas").fit(table, y)
    assert pipeline[-1].feature_names_in_.tolist() == pipeline.feature_names_in_.tolist() == NAMES


@pytest.mark.parametrize("output", ["default", "pandas", "polars"])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("own", "theirs"),
    [(pt.PartitionedClassifier, LogisticRegression), (pt.PartitionedRegressor, LinearRegression)],
    ids=["classifier", "regressor"],
)
def test_names_in_a_pipeline_are_those_of_scikit_learn(own, theirs, named, output):
    """A scaler hands arrays on unless it is told not to; whatever arrives, the last step knows and says the same."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 2)), columns=["age", "dose"])
    y = (frame.age + rng.normal(size=40) > 0).astype(int)
    X = frame if named else frame.to_numpy()

    def look(last):
        make_pipeline(StandardScaler(), last).set_output(transform=output).fit(X, y)
        said = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for rows in (frame, frame.to_numpy(), frame[["dose", "age"]]):
                try:
                    last.predict(rows)
                except ValueError as error:
                    said.append(str(error))
        said += [str(one.message).replace(type(last).__name__, "") for one in caught]
        return getattr(last, "feature_names_in_", np.array([])).tolist(), said

    assert look(own(quiet=True)) == look(theirs())
