"""Streams against exact Gaussian processes, batch fits, quadrature and each other."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import integrate, stats

import partita as pt
from partita.errors import ImproperDensity, InputError
from partita.foundation.moments import Affine
from partita.gp import Learning, SparseGP, Stream, kernels, likelihoods
from partita.gp.padding import pad_batch

FIXED = Learning("fixed", points_per_batch=100)
KERNEL = kernels.Matern32(variance=1.3, lengthscale=0.8)


def one_dimensional(rows=24, noise=0.2, seed=0):
    generator = np.random.default_rng(seed)
    X = np.linspace(0, 6, rows)[:, None] + 0.02 * generator.normal(size=(rows, 1))
    return X, np.sin(2 * X[:, 0]) + noise * generator.normal(size=rows)


def streamed(batches, learning=FIXED, kernel=KERNEL, likelihood=None, **settings):
    stream = Stream.begin(SparseGP(kernel, likelihood or likelihoods.Normal(0.2)), learning, 1, **settings)
    for X, y in batches:
        stream = stream.absorb(X, y[None])
    return stream


def cut(data, parts, order=None):
    X, y = data
    order = np.arange(len(y)) if order is None else order
    return [(X[part], y[part]) for part in np.array_split(order, parts)]


def exact(X, y, places, noise=0.2):
    """By scikit-learn, with the same kernel: mean, variance of the function, log evidence."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    gp = GaussianProcessRegressor(1.3 * Matern(0.8, nu=1.5), alpha=noise**2, optimizer=None).fit(X, y)
    mean, std = gp.predict(places, return_std=True)
    return mean, std**2, gp.log_marginal_likelihood_value_


@pytest.mark.parametrize("parts", [1, 3, 24])
@pytest.mark.parametrize("shuffled", [False, True])
def test_points_at_all_rows_give_the_exact_process_whatever_the_batches(parts, shuffled):
    data = one_dimensional()
    order = np.random.default_rng(1).permutation(24) if shuffled else None
    stream = streamed(cut(data, parts, order))
    places = np.linspace(-1, 7, 50)[:, None]
    mean, variance, evidence = exact(*data, places)
    m, v, _ = stream.latent(places)
    np.testing.assert_allclose(m[0, 0], mean, atol=1e-6)
    np.testing.assert_allclose(v[0, 0], variance, atol=1e-6)
    assert stream.log_evidence == pytest.approx(evidence, abs=1e-5)


def test_with_few_points_the_bound_is_the_collapsed_one():
    """Titsias's (2009), by hand."""
    X, y = one_dimensional()
    stream = streamed([(X, y)], dataclasses.replace(FIXED, points_per_batch=5))
    Z, params = stream.points, KERNEL.initial(1)
    with pt.foundation.runtime.precision(np.float64):
        Kzz, Kzx = (np.asarray(KERNEL.cross(params, Z, other)) for other in (Z, X))
    Q = Kzx.T @ np.linalg.solve(Kzz, Kzx)
    bound = (
        stats.multivariate_normal(np.zeros(24), Q + 0.04 * np.eye(24)).logpdf(y) - 0.5 * (24 * 1.3 - Q.trace()) / 0.04
    )
    assert stream.log_evidence == pytest.approx(bound, rel=1e-6)


def test_fixed_points_and_hyperparameters_make_batches_exchangeable():
    """The first batch places all points that there will be: what follows is one pass of PVI on a conjugate model."""
    X, y = one_dimensional(60)
    first, *others = cut((X, y), 4)
    learning = dataclasses.replace(FIXED, points_per_batch=15, max_points=15)
    kept = Stream.begin(SparseGP(KERNEL, likelihoods.Normal(0.2)), learning, 1).absorb(first[0], first[1][None])
    none = dataclasses.replace(learning, variance_threshold=2.0)
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        stream = dataclasses.replace(kept, learning=none)
        for number in order:
            stream = stream.absorb(others[number][0], others[number][1][None])
        results.append(stream)
    assert len(results[0].points) == 15
    np.testing.assert_allclose(results[0].factor.precision, results[1].factor.precision, rtol=1e-8, atol=1e-8)
    assert results[0].log_evidence == pytest.approx(results[1].log_evidence, rel=1e-9)


def test_a_forgotten_batch_was_never_there():
    data = one_dimensional()
    batches = cut(data, 3)
    stream = streamed(batches, keep_parts=True).without(1)
    places = np.linspace(-1, 7, 50)[:, None]
    rest = [np.concatenate(arrays) for arrays in zip(batches[0], batches[2], strict=True)]
    mean, variance, _ = exact(*rest, places)
    m, v, _ = stream.latent(places)
    np.testing.assert_allclose(m[0, 0], mean, atol=1e-5)
    np.testing.assert_allclose(v[0, 0], variance, atol=1e-5)
    assert np.isnan(stream.log_evidence)


def test_a_batch_that_is_visited_again_with_its_data_stays_as_it_is():
    batches = cut(one_dimensional(), 3)
    stream = streamed(batches, keep_parts=True)
    again = stream.refine(1, batches[1][0], batches[1][1][None])
    places = np.linspace(-1, 7, 30)[:, None]
    for a, b in zip(stream.latent(places)[:2], again.latent(places)[:2], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    # With other targets it is as if those had come in the first place.
    other = streamed([batches[0], (batches[1][0], -batches[1][1]), batches[2]])
    changed = stream.refine(1, batches[1][0], -batches[1][1][None])
    np.testing.assert_allclose(changed.latent(places)[0], other.latent(places)[0], atol=1e-5)


def test_factors_of_batches_are_those_of_a_ledger():
    batches = cut(one_dimensional(), 3)
    stream = streamed(batches, keep_parts=True)
    ledger = stream.ledger()
    assert ledger.sites == 3
    whitened = stream.gp
    with pt.foundation.runtime.precision(np.float64):
        q = whitened.posterior(stream.params, stream.factor, np.asarray(stream.jitter))
    B = np.asarray(q.L_B[0]) @ np.asarray(q.L_B[0]).T
    np.testing.assert_allclose(ledger.posterior.precision, B, rtol=1e-7, atol=1e-7)
    shift = np.asarray(q.L_B[0]) @ np.asarray(q.half[0])
    np.testing.assert_allclose(ledger.posterior.precision_times_location, shift, rtol=1e-6, atol=1e-6)
    # Its cavity is what the stream is without that batch.
    with pt.foundation.runtime.precision(np.float64):
        left = whitened.posterior(stream.params, stream.without(2).factor, np.asarray(stream.jitter))
    np.testing.assert_allclose(
        ledger.cavity(2).precision, np.asarray(left.L_B[0]) @ np.asarray(left.L_B[0]).T, rtol=1e-6, atol=1e-6
    )


def test_what_was_not_kept_cannot_be_forgotten():
    batches = cut(one_dimensional(), 2)
    with pytest.raises(InputError, match="keep_factors"):
        streamed(batches).without(0)
    with pytest.raises(InputError, match="there are batches 0 to 1"):
        streamed(batches, keep_parts=True).without(2)
    with pytest.raises(InputError, match="keep_factors: needs private"):
        streamed(batches, dataclasses.replace(FIXED, max_points=9), keep_parts=True)
    stream = streamed(batches, keep_parts=True)
    part = stream.parts[0]
    broken = dataclasses.replace(stream, parts=(part._replace(precision=1e6 * np.eye(len(part.present))[None]),) * 2)
    with pytest.raises(ImproperDensity, match="batch 0"):
        broken.without(0)


def test_other_units_change_nothing():
    X, y = one_dimensional()
    stream = streamed([(X, y)], keep_parts=True)
    before, after = Affine(np.zeros(1), np.ones(1)), Affine(np.array([2.0]), np.array([3.0]))
    targets = Affine(np.zeros(1), np.ones(1)), Affine(np.zeros(1), np.array([0.5]))
    moved = stream.rescale(before, after, targets)
    logs = dict(moved.hyper.location)
    logs["kernel.lengthscale"] = logs["kernel.lengthscale"] - np.log(3)
    logs["kernel.variance"] = logs["kernel.variance"] + 2 * np.log(2)
    moved = dataclasses.replace(moved, hyper=moved.hyper._replace(location=logs))
    places = np.linspace(0, 6, 20)[:, None]
    m, v, _ = stream.latent(places)
    n, w, _ = moved.latent((places - 2) / 3)
    np.testing.assert_allclose(m, n * 0.5, atol=1e-7)
    np.testing.assert_allclose(v, w * 0.25, atol=1e-7)


def test_hyperparameters_that_were_learnt_are_about_the_data():
    """Converted when units change, as far as batches have told of them; before, they are relative to the units."""
    X, y = one_dimensional()
    before, after = Affine(np.zeros(1), np.ones(1)), Affine(np.array([2.0]), np.array([3.0]))
    targets = Affine(np.zeros(1), np.ones(1)), Affine(np.zeros(1), np.array([0.5]))
    places = np.linspace(0, 6, 20)[:, None]
    stream = streamed([(X, y)], dataclasses.replace(FIXED, hyperparameters="ml", steps=1))
    m, v, _ = stream.latent(places)
    moved = stream.rescale(before, after, targets)
    n, w, _ = moved.latent((places - 2) / 3)
    np.testing.assert_allclose(m, n * 0.5, atol=1e-7)
    np.testing.assert_allclose(v, w * 0.25, atol=1e-7)
    assert moved.params["likelihood.noise"] == pytest.approx(2 * stream.params["likelihood.noise"])
    # A prior of precision 1 times a factor of precision 3: three quarters of the way.
    believed = dataclasses.replace(stream, learning=dataclasses.replace(FIXED, hyperparameters="variational"))
    believed = dataclasses.replace(believed, hyper=stream.hyper._replace(scale=dict.fromkeys(stream.params, 0.5)))
    noise = believed.rescale(before, after, targets).params["likelihood.noise"]
    assert noise == pytest.approx(2**0.75 * stream.params["likelihood.noise"])


def test_a_new_mean_of_targets_moves_the_factor_with_it():
    """t(u) stands for the same data: what it says about y does not change, only the prior's mean does."""
    X, y = one_dimensional()
    stream = streamed([(X, y)])
    units = Affine(np.zeros(1), np.ones(1)), Affine(np.array([5.0]), np.ones(1))
    same = Affine(np.zeros(1), np.ones(1))
    moved = stream.rescale(same, same, units)
    expected = streamed([(X, y - 5.0)])
    places = np.linspace(0, 6, 20)[:, None]
    np.testing.assert_allclose(moved.latent(places)[0], expected.latent(places)[0], atol=1e-6)


@pytest.mark.parametrize(
    "likelihood", [likelihoods.Probit(), likelihoods.Logit(), likelihoods.Poisson(), likelihoods.StudentT()]
)
def test_one_row_against_quadrature(likelihood):
    """The best Gaussian for one row: the bound is below the evidence, and close; moments are close too."""
    y = 1.0
    learning = dataclasses.replace(FIXED, points_per_batch=1)
    stream = streamed([(np.zeros((1, 1)), np.array([y]))], learning, likelihood=likelihood)

    def joint(f, power=0):
        with pt.foundation.runtime.precision(np.float64):
            log = float(likelihood.log_prob(likelihood.initial(), np.asarray(f), np.asarray(y)))
        return f**power * np.exp(log) * stats.norm.pdf(f, 0, np.sqrt(1.3))

    moments = [integrate.quad(joint, -8, 8, args=(power,), epsabs=1e-6)[0] for power in range(3)]
    mean, second = moments[1] / moments[0], moments[2] / moments[0]
    m, v, _ = stream.latent(np.zeros((1, 1)))
    assert stream.log_evidence <= np.log(moments[0]) + 1e-6
    assert stream.log_evidence == pytest.approx(np.log(moments[0]), abs=0.03)
    assert m[0, 0, 0] == pytest.approx(mean, abs=0.06)
    assert np.sqrt(v[0, 0, 0]) == pytest.approx(np.sqrt(second - mean**2), rel=0.1)


HARD = [
    (likelihoods.StudentT(0.1), 1.0),
    (likelihoods.Poisson(), 4.0),
    (likelihoods.Logit(), 400.0),
]


@pytest.mark.parametrize(("likelihood", "variance"), HARD, ids=["student-t", "poisson", "logit"])
def test_the_bound_never_falls_while_terms_settle(likelihood, variance):
    """And ends where it no longer moves: large counts, outliers, a prior that is almost flat."""
    X, y = one_dimensional(40)
    y = {likelihoods.Poisson: np.round(300 * np.exp(y)), likelihoods.StudentT: y + 5.0 * (np.arange(40) % 13 == 0)}.get(
        type(likelihood), (y > 0).astype(float)
    )
    gp, batch = SparseGP(kernels.Matern32(variance, 0.8), likelihood), pad_batch(X, y[None])
    stream = Stream.begin(gp, dataclasses.replace(FIXED, points_per_batch=20), 1)
    with pt.foundation.runtime.precision(np.float64):
        step, _ = stream.placement.place(batch)
        step = step._replace(jitter=np.asarray(1e-9))

        @jax.jit
        def turn(terms, share):
            def bound(terms):
                return gp.free_energy(stream.params, step, terms)

            return gp.improve_terms(terms, share, bound), bound(terms)[0]

        state, totals = (gp.first_terms(batch), np.ones(())), []
        for _ in range(40):
            state, total = turn(*state)
            totals.append(float(total))
    assert np.all(np.diff(totals) >= -1e-6 * np.abs(totals[0]))
    assert totals[-1] - totals[-10] < 1e-2 * abs(totals[-1]) + 0.1
    settled = stream.absorb(X, y[None])
    assert settled.log_evidence == pytest.approx(totals[-1], abs=0.1 + 1e-3 * abs(totals[-1]))


def test_a_bounded_stream_with_white_noise_does_not_forget():
    X, y = one_dimensional(24)
    kernel = KERNEL + kernels.White(0.05)
    learning = dataclasses.replace(FIXED, points_per_batch=24, max_points=24, variance_threshold=0.5)
    stream = streamed([(X, y)], learning, kernel)
    before = stream.latent(X)[0]
    for number in range(20):
        stream = stream.absorb(np.array([[20.0 + 0.001 * number]]), np.zeros((1, 1)))
    assert np.abs(stream.latent(X)[0] - before).max() < 0.2


def test_logistic_processes_are_logistic_regressions_on_whitened_features():
    """f = L v with v ~ N(0, I): the same model, by another part of the library."""
    X, y = one_dimensional(20)
    labels = (y > 0).astype(float)
    stream = streamed([(X, labels)], likelihood=likelihoods.Logit())
    params = KERNEL.initial(1)
    with pt.foundation.runtime.precision(np.float64):
        L = np.linalg.cholesky(np.asarray(KERNEL.gram(params, X)) + 1e-9 * np.eye(20))
    model = pt.models.LogisticRegression(features=20, intercept=False, prior_scale=1.0)
    result = pt.fit(model, [(L, labels)], schedule=pt.schedules.Synchronous(rounds=30))
    m, v, _ = stream.latent(X)
    np.testing.assert_allclose(m[0, 0], L @ result.posterior.location, atol=2e-3)
    np.testing.assert_allclose(v[0, 0], np.diag(L @ result.posterior.covariance @ L.T), atol=2e-3)
    assert stream.log_evidence == pytest.approx(result.log_evidence, abs=2e-3)


@pytest.mark.parametrize(("points", "hyperparameters"), [("private", "ml"), ("shared", "variational")])
def test_all_variants_learn_a_function_from_a_stream(points, hyperparameters):
    X, y = one_dimensional(90)
    learning = Learning(hyperparameters, points, points_per_batch=8, max_points=24, moves=True, steps=80)
    stream = streamed(cut((X, y), 3), learning, kernels.SquaredExponential(lengthscale=2.0))
    places = np.linspace(0.2, 5.8, 60)[:, None]
    m, _, _ = stream.latent(places)
    assert np.sqrt(np.mean((m.mean(axis=0)[0] - np.sin(2 * places[:, 0])) ** 2)) < 0.15
    assert 0.1 < stream.params["likelihood.noise"] < 0.4
    assert (np.max(stream.hyper.scale["kernel.lengthscale"]) > 0) == (hyperparameters == "variational")


def test_beliefs_narrow_as_data_come_and_the_evidence_is_below_the_exact_one():
    X, y = one_dimensional(60)
    learning = Learning(points_per_batch=20)
    streams = [Stream.begin(SparseGP(KERNEL, likelihoods.Normal(0.2)), learning, 1)]
    for part in cut((X, y), 3):
        streams.append(streams[-1].absorb(part[0], part[1][None]))
    widths = [stream.hyper.scale["likelihood.noise"] for stream in streams]
    assert widths[0] > widths[1] > widths[3]
    _, _, at_truth = exact(X, y, X)
    assert at_truth - 12 < streams[-1].log_evidence < at_truth + 1


def test_points_are_bounded_and_shapes_stay():
    generator = np.random.default_rng(0)
    learning = Learning("fixed", points_per_batch=4, max_points=12)
    stream = Stream.begin(SparseGP(KERNEL, likelihoods.Normal(0.2)), learning, 1)
    shapes = set()
    for _ in range(12):
        X = generator.uniform(0, 6, (10, 1))
        stream = stream.absorb(X, np.sin(2 * X[:, 0])[None])
        shapes.add(stream.factor.precision.shape)
    assert len(stream.points) == 12
    assert len(shapes) <= 2
    m, _, _ = stream.latent(np.linspace(0.5, 5.5, 30)[:, None])
    assert np.abs(m[0, 0] - np.sin(2 * np.linspace(0.5, 5.5, 30))).max() < 0.5


def test_jitter_grows_only_where_it_has_to(monkeypatch):
    X, y = one_dimensional()
    assert streamed([(X, y)]).jitter == 1e-9
    smooth = kernels.SquaredExponential(lengthscale=50.0)
    monkeypatch.setattr("partita.gp.stream.JITTER", 1e-18)
    learning = dataclasses.replace(FIXED, selection="k-means", points_per_batch=24)
    stream = dataclasses.replace(
        Stream.begin(SparseGP(smooth, likelihoods.Normal(0.2)), learning, 1), jitter=1e-18
    ).absorb(X, y[None])
    assert stream.jitter > 1e-18
    assert np.all(np.isfinite(stream.latent(X)[0]))


def test_settings_are_checked():
    for wrong in ({"hyperparameters": "map"}, {"pseudo_points": "both"}, {"selection": "random"}, {"steps": 0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Learning(**wrong)


def test_one_row_first_does_not_use_up_the_first_batch():
    """Beside the same rows as one batch, whose deviations an exact process has."""
    t = np.arange(100.0)[:, None]
    y = 2 * np.sin(t[:, 0] / 15) + np.random.default_rng(0).normal(0, 0.5, 100)
    whole, parted = (pt.StreamingGPRegressor(points_per_batch=10, quiet=True) for _ in range(2))
    whole.partial_fit(t, y)
    parted.partial_fit(t[:1], y[:1]).partial_fit(t[1:], y[1:])
    deviations = [np.median(model.predict(t, return_std=True)[1]) for model in (whole, parted)]
    assert deviations[1] == pytest.approx(deviations[0], rel=0.15)
    assert deviations[1] == pytest.approx(0.5, rel=0.2)
