"""A Gaussian with blocks goes wherever a Gaussian does: runs, files, reports, ArviZ and predictions."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import block_diag
from scipy.optimize import minimize

import partita as pt
from partita.families import BlockGaussian, Gaussian, MeanField
from partita.report import write_report
from partita.report.charts.intervals import draw_intervals
from partita.report.follower import Follower
from partita.report.posterior import find_intervals

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 3)) @ np.array([[1.0, 0.7, 0.3], [0.0, 1.0, 0.6], [0.0, 0.0, 1.0]])
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.7 + RNG.normal(scale=0.5, size=60)
LABELS = (X @ np.array([1.5, -1.0, 0.5]) + RNG.logistic(size=60) > 0).astype(float)
SHARDS = [(X[:20], Y[:20]), (X[20:35], Y[20:35]), (X[35:], Y[35:])]
LABELLED = [(X[part], LABELS[part]) for part in (slice(0, 20), slice(20, 35), slice(35, 60))]
SCHEDULES = {
    "synchronous": pt.schedules.Synchronous(rounds=150),
    "sequential": pt.schedules.Sequential(passes=150),
    "asynchronous": pt.schedules.Asynchronous(updates=450),
}
LINEAR = pt.models.LinearRegression(features=3, noise=0.5, prior_scale=2.0)


def prior(sizes: tuple[int, ...]) -> BlockGaussian:
    """The models' own prior, with blocks of these sizes."""
    scale = np.array([2.0, 2.0, 2.0, 10.0])
    blocks = [np.diag(part**2) for part in np.split(scale, np.cumsum(sizes)[:-1])]
    return BlockGaussian.from_moments(np.zeros(4), blocks)


def lower_triangles(numbers: np.ndarray, sizes: tuple[int, ...]) -> list[np.ndarray]:
    found = []
    for size in sizes:
        L = np.zeros((size, size))
        count = size * (size + 1) // 2
        L[np.tril_indices(size)], numbers = numbers[:count], numbers[count:]
        found.append(L)
    return found


def best_of_scipy(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, covariance and ELBO of the best Gaussian with these blocks, from nothing but the ELBO's formula."""
    A = np.column_stack([X, np.ones(len(X))])
    prior_variance = np.array([4.0, 4.0, 4.0, 100.0])

    def negative_elbo(numbers: np.ndarray) -> float:
        m, L = numbers[:4], block_diag(*lower_triangles(numbers[4:], sizes))
        V = L @ L.T
        residuals = Y - A @ m
        spread = np.sum((A @ V) * A)
        log_likelihood = -0.5 * (residuals @ residuals + spread) / 0.25 - len(Y) * np.log(0.5 * np.sqrt(2 * np.pi))
        kl = 0.5 * np.sum((np.diag(V) + m**2) / prior_variance - 1 + np.log(prior_variance))
        return kl - 0.5 * np.linalg.slogdet(V)[1] - log_likelihood

    start = np.concatenate([np.zeros(4), *(0.1 * np.eye(size)[np.tril_indices(size)] for size in sizes)])
    found = minimize(negative_elbo, start, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    L = block_diag(*lower_triangles(found.x[4:], sizes))
    return found.x[:4], L @ L.T, -found.fun


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_finds_the_best_gaussian_with_blocks(schedule):
    result = pt.fit(LINEAR.with_prior(prior((2, 2))), SHARDS, schedule=SCHEDULES[schedule], seed=1)
    location, covariance, elbo = best_of_scipy((2, 2))
    assert isinstance(result.posterior, BlockGaussian)
    assert result.posterior.sizes == (2, 2)
    assert_allclose(result.posterior.location, location, atol=1e-5)
    assert_allclose(result.posterior.covariance, covariance, rtol=1e-4, atol=1e-6)
    assert_allclose(result.log_evidence, elbo, atol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("sizes", "posterior"), [((4,), "full"), ((1, 1, 1, 1), "mean-field")])
def test_one_block_is_a_full_gaussian_and_blocks_of_one_are_mean_field(schedule, sizes, posterior):
    settings = {"schedule": SCHEDULES[schedule], "seed": 1}
    blocks = pt.fit(LINEAR.with_prior(prior(sizes)), SHARDS, **settings)
    model = pt.models.LinearRegression(features=3, noise=0.5, prior_scale=2.0, posterior=posterior)
    known = pt.fit(model, SHARDS, **settings)
    assert_allclose(blocks.posterior.location, known.posterior.location, rtol=1e-10, atol=1e-10)
    assert_allclose(blocks.posterior.covariance, known.posterior.covariance, rtol=1e-10, atol=1e-10)
    assert_allclose(blocks.log_evidence, known.log_evidence, rtol=1e-10)
    assert_allclose(blocks.predict(X), known.predict(X), atol=1e-10)
    assert_allclose(blocks.predict(X, return_std=True)[1], known.predict(X, return_std=True)[1], atol=1e-10)


SOLVERS = {
    "fixed point": {"solver": pt.solvers.FixedPoint()},
    "gradient": {"solver": pt.solvers.Gradient(optimiser="lbfgs", steps=100), "damping": 0.5},
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("sizes", "posterior"), [((4,), "full"), ((1, 1, 1, 1), "mean-field")])
def test_a_likelihood_without_a_closed_form(solver, sizes, posterior):
    model, settings = pt.models.LogisticRegression(features=3, prior_scale=2.0), SOLVERS[solver]
    schedule = pt.schedules.Synchronous(rounds=60)
    blocks = pt.fit(model.with_prior(prior(sizes)), LABELLED, schedule=schedule, **settings)
    own = pt.models.LogisticRegression(features=3, prior_scale=2.0, posterior=posterior)
    known = pt.fit(own, LABELLED, schedule=schedule, **settings)
    assert_allclose(blocks.posterior.location, known.posterior.location, atol=1e-6)
    assert_allclose(blocks.posterior.covariance, known.posterior.covariance, atol=1e-6)
    assert_allclose(blocks.predict_proba(X), known.predict_proba(X), atol=1e-7)


def test_any_log_likelihood():
    """Of a function that is only known by its values: gradients at points around the mean."""

    def log_prob(theta, data):
        rows, y = data
        return -0.5 * ((y - rows @ theta[:3] - theta[3]) / 0.5) ** 2 - 0.5 * np.log(2 * np.pi * 0.25)

    result = pt.fit(pt.Model(prior((2, 2)), log_prob), SHARDS, schedule=pt.schedules.Synchronous(rounds=150))
    location, covariance, elbo = best_of_scipy((2, 2))
    assert_allclose(result.posterior.location, location, atol=1e-4)
    assert_allclose(result.posterior.covariance, covariance, rtol=1e-3, atol=1e-5)
    assert_allclose(result.log_evidence, elbo, atol=1e-4)


def test_moments_are_matched_block_by_block():
    """Expectation propagation, a row at each site, against the full Gaussian where there is one block."""
    rows = [(X[i : i + 1], LABELS[i : i + 1]) for i in range(8)]
    settings = {"solver": pt.solvers.MomentMatching(), "schedule": pt.schedules.Sequential(passes=20), "damping": 1.0}
    model = pt.models.LogisticRegression(features=3, prior_scale=2.0)
    one = pt.fit(model.with_prior(prior((4,))), rows, **settings)
    full = pt.fit(model, rows, **settings)
    assert_allclose(one.posterior.location, full.posterior.location, atol=1e-7)
    assert_allclose(one.posterior.covariance, full.posterior.covariance, atol=1e-7)
    two = pt.fit(model.with_prior(prior((2, 2))), rows, **settings)
    assert isinstance(two.posterior, BlockGaussian)
    assert two.posterior.is_proper()


@pytest.fixture(scope="module")
def fitted() -> pt.Result:
    return pt.fit(LINEAR.with_prior(prior((2, 2))), SHARDS, schedule=pt.schedules.Synchronous(rounds=30))


def test_a_result_is_saved_and_loaded(fitted, tmp_path):
    fitted.save(tmp_path / "result.safetensors")
    again = pt.load(tmp_path / "result.safetensors")
    assert again.fingerprint == fitted.fingerprint
    assert isinstance(again.posterior, BlockGaussian)
    assert again.model.given_prior.sizes == (2, 2)
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))


def test_a_file_whose_prior_is_over_something_else_is_refused(fitted, tmp_path):
    wrong = BlockGaussian.from_moments(np.zeros(5), [np.eye(5)])
    dataclasses.replace(fitted, prior=wrong, posterior=wrong, factors=(wrong,)).save(tmp_path / "wrong.safetensors")
    with pytest.raises(pt.PartitaError):
        pt.load(tmp_path / "wrong.safetensors")


def test_a_run_is_resumed_and_has_a_report(tmp_path, fitted):
    model, schedule = LINEAR.with_prior(prior((2, 2))), pt.schedules.Synchronous(rounds=30)
    first = pt.fit(model, SHARDS, schedule=schedule, run_dir=tmp_path / "run")
    again = pt.fit(model, SHARDS, schedule=schedule, run_dir=tmp_path / "run", resume=True)
    assert first.fingerprint == again.fingerprint == fitted.fingerprint
    again.save(tmp_path / "run" / "result.safetensors")
    follower = Follower(tmp_path / "run")
    follower.read()
    page = write_report(tmp_path / "report.html", follower.report()).read_text()
    assert "intercept" in page


def test_the_report_shows_intervals(fitted):
    picture = draw_intervals(find_intervals(fitted))
    assert picture is not None
    full = pt.fit(LINEAR, SHARDS, schedule=pt.schedules.Synchronous(rounds=3))
    assert "intercept" in str(picture)
    assert str(picture) != str(draw_intervals(find_intervals(full)))


def test_arviz_has_its_draws(fitted):
    pytest.importorskip("arviz")
    data = fitted.to_arviz(SHARDS, draws=4000)
    drawn = np.asarray(data.posterior["coef"]).reshape(-1, 3)
    assert_allclose(drawn.mean(axis=0), fitted.posterior.location[:3], atol=0.02)
    assert_allclose(np.cov(drawn.T), fitted.posterior.covariance[:3, :3], atol=0.002)
    assert data.log_likelihood["y"].shape[-1] == len(Y)


def test_predictions_are_those_of_draws(fitted):
    draws = fitted.posterior.sample(jax.random.key(0), (50_000,))
    f = draws @ np.column_stack([X, np.ones(len(X))]).T
    mean, deviation = fitted.predict(X, return_std=True)
    assert_allclose(mean, f.mean(axis=0), atol=0.01)
    assert_allclose(deviation, np.sqrt(f.var(axis=0) + 0.25), rtol=0.01)


def test_a_prior_of_another_structure_has_to_be_over_the_same_numbers():
    assert LINEAR.with_prior(MeanField.from_moments(np.zeros(4), 1.0)).conjugate is False
    assert LINEAR.with_prior(Gaussian.from_moments(np.zeros(4), np.eye(4))).conjugate is True
    with pytest.raises(pt.errors.InputError, match="prior: expected a proper Gaussian"):
        LINEAR.with_prior(BlockGaussian.from_moments(np.zeros(3), [np.eye(3)]))


def test_blocks_are_not_mixed_by_other_coordinates():
    q = prior((2, 2))
    mixed = np.eye(4)
    mixed[3, 0] = 0.5
    with pytest.raises(pt.errors.InputError, match="independent blocks"):
        q.substituted(pt.families.Substitution(mixed, np.zeros(4)))
    with pytest.raises(pt.errors.InputError, match="location: blocks of sizes"):
        BlockGaussian.from_moments(np.zeros(3), [np.eye(2)])


def test_other_coordinates_are_those_of_a_full_gaussian():
    A, B = np.array([[1.0, 0.3], [0.0, 2.0]]), np.array([[0.5, 0.0], [0.2, 1.0]])
    covariance = [np.array([[2.0, 0.3], [0.3, 1.0]]), np.array([[1.0, -0.2], [-0.2, 0.5]])]
    blocks = BlockGaussian.from_moments(np.arange(4.0), covariance)
    full = Gaussian.from_moments(np.arange(4.0), block_diag(*covariance))
    new = pt.families.Substitution(block_diag(A, B), np.array([0.1, -0.2, 0.3, 1.0]))
    (changed, constant), (wanted, same) = blocks.substituted(new), full.substituted(new)
    assert_allclose(changed.location, wanted.location, atol=1e-12)
    assert_allclose(changed.covariance, wanted.covariance, atol=1e-12)
    assert_allclose(constant, same, rtol=1e-12)


@pytest.mark.parametrize(
    "blocks", [[], [np.ones(2)], [np.ones((2, 3))], [np.float64(1.0)], [np.eye(2), np.ones((1, 2))]]
)
def test_blocks_that_are_no_square_matrices_are_refused(blocks):
    with pytest.raises(pt.errors.InputError, match="covariances: "):
        BlockGaussian.from_moments(np.zeros(2), blocks)
