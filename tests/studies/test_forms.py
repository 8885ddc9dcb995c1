"""The paper's four forms of streams: against dense algebra, collapsed bounds and exact processes."""

from itertools import product

import jax
import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import multivariate_normal

from partita.errors import InputError
from partita.foundation.runtime import precision
from partita.gaussian_processes.kernels import SquaredExponential
from partita.gaussian_processes.likelihoods import Normal, Probit
from partita.gp.sparse import Batch, Factor, SparseGP, Step
from partita.studies.paper import forms
from partita.studies.paper.form_streams import FormClassifier, FormRegressor, Search
from partita.studies.paper.forms import Form, Free, Old, Values

FORMS = [Form(*choice) for choice in product(("private", "shared"), ("variational", "ml"))]
READINGS = [Form("private", "ml", reading) for reading in ("now", "printed")]
GP = SparseGP(SquaredExponential(), Normal())
EMPTY = Values(np.empty((0, 1)), np.empty(0), np.empty((0, 0)))
PARAMS, BEFORE = (
    {"kernel.variance": np.array(v), "kernel.lengthscale": np.array([s]), "likelihood.noise": np.array(n)}
    for v, s, n in ((1.5, 0.8, 0.4), (0.7, 1.3, 0.2))
)


def data(rows: int, seed: int = 0):
    generator = np.random.default_rng(seed)
    X = np.sort(generator.uniform(-2, 2, (rows, 1)), axis=0)
    return X, np.sin(2 * X[:, 0]) + 0.3 * generator.normal(size=rows)


def kernel(params, A, B):
    gaps = (A[:, None] - B) / params["kernel.lengthscale"]
    return params["kernel.variance"] * np.exp(-0.5 * np.sum(gaps**2, axis=-1))


def own_kernel(params, A):
    return kernel(params, A, A) + forms.JITTER * params["kernel.variance"] * np.eye(len(A))


def exact(params, X, y):
    """log p(y)."""
    K = kernel(params, X, X) + params["likelihood.noise"] ** 2 * np.eye(len(y))
    return multivariate_normal(np.zeros(len(y)), K).logpdf(y)


def best(params, points, X, y):
    """Free parameters of the best q(u) of one batch with normal noise: Titsias (2009), whitened."""
    L = np.linalg.cholesky(own_kernel(params, points))
    V = np.linalg.solve(L, kernel(params, points, X))
    B = np.eye(len(points)) + V @ V.T / params["likelihood.noise"] ** 2
    covariance = np.linalg.inv(B)
    return free_of(points, covariance @ V @ y / params["likelihood.noise"] ** 2, np.linalg.cholesky(covariance))


def free_of(points, middle, root, tilt=None):
    logs = np.tril(root, -1) + np.diag(np.log(np.diag(root)))
    return Free(np.zeros(3), np.zeros(3), points, middle, logs, np.empty((len(points), 0)) if tilt is None else tilt)


def value(form, values, free, X, y, gp=GP, before=BEFORE, params=PARAMS, middle=PARAMS):
    with precision(np.float64):
        old = forms.recall(gp, form, values, before)
        new = forms.combine(gp, form, values, free, middle)
        return float(forms.bound(gp, form, old, new, params, X, y))


def collapsed(params, points, X, y):
    """The collapsed bound of a sparse process of one batch, as `partita.gp` has it."""
    size = len(points)
    nothing = Factor(np.zeros_like(points), np.zeros(size), np.zeros((1, size)), np.zeros((1, size, size)))
    batch = Batch(X, y[None], np.ones(len(y)))
    step = Step(nothing, batch, points, np.ones(size), np.asarray(forms.JITTER), True)
    with precision(np.float64):
        return float(GP.free_energy(params, step, GP.first_terms(batch))[0])


@pytest.mark.parametrize("form", FORMS + READINGS)
def test_one_batch_is_a_sparse_process_whatever_the_form(form):
    X, y = data(20)
    points = np.linspace(-2, 2, 5)[:, None]
    free = best(PARAMS, points, X, y)
    assert value(form, EMPTY, free, X, y) == pytest.approx(collapsed(PARAMS, points, X, y), abs=1e-8)

    def climb(middle, root, points):
        moved = free._replace(middle=middle, root=root, points=points)
        new = forms.combine(GP, form, EMPTY, moved, PARAMS)
        return forms.bound(GP, form, Old(EMPTY, np.empty((0, 0))), new, PARAMS, X, y)

    with precision(np.float64):
        by_middle, by_root, by_points = jax.grad(climb, argnums=(0, 1, 2))(free.middle, free.root, points)
    # The best q(u) is where nothing climbs; points are not the best ones.
    assert np.max(np.abs(by_middle)) < 1e-6
    assert np.max(np.abs(by_root)) < 1e-6
    assert np.max(np.abs(by_points)) > 1e-2


@pytest.mark.parametrize("form", FORMS)
def test_points_at_all_inputs_make_the_exact_process(form):
    X, y = np.linspace(-2, 2, 8)[:, None], data(8)[1]
    assert value(form, EMPTY, best(PARAMS, X, X, y), X, y) == pytest.approx(exact(PARAMS, X, y), abs=1e-3)


@pytest.mark.parametrize("hyperparameters", ["variational", "ml"])
def test_shared_points_at_all_inputs_are_exact_batch_after_batch(hyperparameters, monkeypatch):
    """Of the second batch F is log p(y_2 | y_1), where θ stays: old values say of the first what its rows did."""
    monkeypatch.setattr(forms, "JITTER", 1e-10)
    monkeypatch.setattr(forms, "FLOOR", 1e-10)
    X, y = np.linspace(-2, 2, 8)[:, None], data(8)[1]
    form = Form("shared", hyperparameters)
    with precision(np.float64):
        old = jax.tree.map(np.asarray, forms.combine(GP, form, EMPTY, best(PARAMS, X[:4], X[:4], y[:4]), PARAMS))
    found = value(form, old, best(PARAMS, X, X, y), X[4:], y[4:], before=PARAMS)
    assert found == pytest.approx(exact(PARAMS, X, y) - exact(PARAMS, X[:4], y[:4]), abs=1e-3)


def dense_kl(mean, covariance, prior):
    """KL(N(mean, covariance) || N(0, prior))."""
    solved = np.linalg.solve(prior, np.column_stack([covariance, mean]))
    logs = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance)[1]
    return 0.5 * (np.trace(solved[:, :-1]) + mean @ solved[:, -1] - len(mean) + logs)


def expected_log_normal(mean, covariance, middle, prior):
    """E[log N(z; middle, prior)], z ~ N(mean, covariance)."""
    apart = mean - middle
    quadratic = np.trace(np.linalg.solve(prior, covariance + np.outer(apart, apart)))
    return -0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * prior)[1])


def expected_probit(params, new, X, y):
    K, k = own_kernel(params, new.points), kernel(params, new.points, X)
    project = np.linalg.solve(K, k)
    m = project.T @ new.mean
    v = params["kernel.variance"] - np.sum(k * project, axis=0) + np.sum((new.root.T @ project) ** 2, axis=0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    logs = log_ndtr((2 * y - 1)[:, None] * (m[:, None] + np.sqrt(v)[:, None] * nodes))
    return np.sum(logs @ weights / weights.sum())


@pytest.mark.parametrize("form", FORMS + READINGS)
def test_free_energies_are_those_of_the_paper(form):
    """The last lines of the appendix's four sections, by dense algebra, for labels and arbitrary beliefs."""
    generator = np.random.default_rng(1)
    X, y = generator.normal(size=(7, 1)), generator.integers(0, 2, 7).astype(float)
    roots = [np.tril(0.2 * generator.normal(size=(k, k)), -1) + np.diag([0.6, 0.9, 0.5, 0.8][:k]) for k in (3, 4)]
    old = Values(np.array([[-1.5], [0.1], [1.2]]), generator.normal(size=3), roots[0])
    places = np.array([[-1.9], [-0.7], [0.6], [2.0]])
    tilt = generator.normal(size=(4, 3)) / 3
    free = free_of(places, generator.normal(size=4), roots[1], tilt if form == FORMS[0] else None)
    gp = SparseGP(SquaredExponential(), Probit())
    now, before = ({k: v for k, v in params.items() if "noise" not in k} for params in (PARAMS, BEFORE))
    middle = {"kernel.variance": np.array(1.1), "kernel.lengthscale": np.array([0.9])} if form.is_variational else now
    ours = value(form, old, free, X, y, gp, before, now, middle)
    with precision(np.float64):
        new = jax.tree.map(np.asarray, forms.combine(gp, form, old, free, middle))
    S, expected = new.root @ new.root.T, expected_probit(now, new, X, y)
    a = old.mean, old.root @ old.root.T
    told = {"now": 1.0, "printed": -1.0}.get(form.reading, 0.0)
    if form.is_private:
        np.testing.assert_allclose(new.mean[:3], a[0])
        np.testing.assert_allclose(S[:3, :3], a[1], atol=1e-12)
        paper = expected - dense_kl(new.mean, S, own_kernel(now, new.points))
        entropy = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * a[1])[1]
        if form.is_variational:
            paper += dense_kl(*a, own_kernel(now, old.points))
        elif form.reading == "before":
            paper += dense_kl(*a, own_kernel(before, old.points))
        else:
            paper -= entropy + told * expected_log_normal(*a, 0, own_kernel(now, old.points))
    else:
        wider = forms.FLOOR * np.eye(3)
        A = np.linalg.solve(own_kernel(now, places), kernel(now, places, old.points))
        seen = A.T @ new.mean, kernel(now, old.points, old.points) - kernel(now, old.points, places) @ A + A.T @ S @ A
        paper = (
            expected - dense_kl(new.mean, S, own_kernel(now, places)) + expected_log_normal(*seen, a[0], a[1] + wider)
        )
        then = now if form.is_variational else before
        paper -= expected_log_normal(*seen, 0, own_kernel(then, old.points) + wider)
    assert ours == pytest.approx(paper, abs=1e-4)


def test_a_point_leaves_new_values_what_a_factor_over_them_says():
    """q(b | a) ∝ p(b | a, θ) t(b): so q(a, b) / p(a, b | θ) is a function of a times one of b."""
    form = Form("private", "ml")
    generator = np.random.default_rng(2)
    old = Values(np.array([[-1.0], [0.5]]), generator.normal(size=2), np.array([[0.7, 0.0], [0.2, 0.5]]))
    root = np.array([[0.6, 0.0], [0.1, 0.8]])
    with precision(np.float64):
        new = forms.combine(GP, form, old, free_of(np.array([[0.0], [1.4]]), np.ones(2), root), PARAMS)
    new = jax.tree.map(np.asarray, new)
    left = np.linalg.inv(new.root @ new.root.T) - np.linalg.inv(own_kernel(PARAMS, new.points))
    np.testing.assert_allclose(left[:2, 2:], 0, atol=1e-6)
    assert np.max(np.abs(left[2:, 2:])) > 0.1


@pytest.mark.parametrize("form", FORMS)
def test_two_batches_of_numbers(form):
    X, y = data(60)
    model = FormRegressor(form, {"private": 5, "shared": 10}[form.pseudo_points], Search(steps=300, rate=0.05))
    model.partial_fit(X[:30], y[:30])
    before = model.values_
    model.partial_fit(X[30:], y[30:])
    assert len(model.pseudo_points_) == 10
    mean, std = model.predict(X)
    assert np.mean((mean - y) ** 2) < 0.25 * y.var()
    assert 0.8 < np.mean(np.abs(mean - y) < 1.96 * std) <= 1
    if form.is_private:
        np.testing.assert_allclose(model.values_.mean[:5], before.mean)
        np.testing.assert_allclose(model.values_.root[:5, :5], before.root)
        np.testing.assert_allclose(model.values_.points[:5], before.points)
    draws = model.hyperparameter_draws(7)["noise"]
    assert len(draws) == (7 if form.is_variational else 1)


def test_the_same_seed_has_the_same_result():
    X, y = data(30)
    first, second = (FormRegressor(FORMS[0], 4, Search(20), 3).partial_fit(X, y) for _ in range(2))
    assert np.array_equal(first.values_.root, second.values_.root)


def test_labels():
    X, y = data(40)
    labels = (y > 0).astype(float)
    model = FormClassifier(FORMS[0], 5, Search(150, 0.05)).partial_fit(X, labels)
    assert np.mean((model.predict_proba(X)[:, 1] > 0.5) == labels) > 0.85


def test_unknown_forms_are_refused():
    with pytest.raises(InputError, match="reading: expected one of before, now, printed"):
        Form("private", "ml", "maybe")
