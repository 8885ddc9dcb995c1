"""The loop: many sites, streams, events, bad calls."""

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from partita.models import prior_of
from partita.site import worker
from partita.studies.faults.chaos import Chaos


@pytest.fixture(scope="module")
def many():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(6000, 5))
    y = (generator.random(6000) < 1 / (1 + np.exp(-X @ np.arange(5)))).astype(float)
    return pt.datasets.split((X, y), sites=300)


MODEL = pt.models.LogisticRegression(features=5, intercept=False)


@pytest.mark.slow
def test_memory_does_not_grow_with_rounds(many):
    """It grows with the factors, not with sites × rounds."""

    def peak(rounds):
        tracemalloc.start()
        pt.fit(MODEL, many, schedule=pt.schedules.Synchronous(rounds=rounds))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak(2)
    assert peak(16) < 1.2 * peak(4)


def test_a_history_row_has_as_many_entries_for_three_hundred_sites_as_for_two(many):
    rows = [
        pt.fit(MODEL, shards, schedule=pt.schedules.Synchronous(rounds=1)).history[0] for shards in (many, many[:2])
    ]
    assert rows[0].keys() == rows[1].keys()
    assert all(np.ndim(value) == 0 for value in rows[0].values() if value is not None)


def test_messages_and_bytes_are_those_of_the_arrays(many):
    row = pt.fit(MODEL, many[:4], schedule=pt.schedules.Synchronous(rounds=3)).history[-1]
    density = 8 * (5 + 25)
    task, update = 2 * density + 8, density + 8 * 4
    assert row["messages"] == 2 * 3 * 4
    assert row["bytes"] == 3 * 4 * (task + update)


def test_the_free_energy_of_a_synchronous_round_is_that_of_the_posterior_it_began_with(many):
    seen = []
    result = pt.fit(
        MODEL,
        many[:6],
        schedule=pt.schedules.Synchronous(rounds=6),
        callbacks=[lambda event: seen.append((event.free_energy, event.posterior))],
    )
    for (_, posterior), (free_energy, _) in pairwise(seen):
        assert free_energy == pytest.approx(pt.evidence(MODEL, many[:6], posterior), abs=1e-8)
    assert result.log_evidence == pytest.approx(pt.evidence(MODEL, many[:6], result.posterior), abs=1e-8)


def test_a_synchronous_run_ends_higher_than_it_was_after_any_fall(many):
    """Falls are taken back: the free energy may dip once, and is then restored."""
    result = pt.fit(
        MODEL, many[:20], solver=pt.solvers.FixedPoint(steps=10), schedule=pt.schedules.Synchronous(rounds=40)
    )
    energies = [row["free_energy"] for row in result.history]
    assert max(energies) - energies[-1] < 1e-6


def test_a_stream_is_one_pass(many):
    """`partial_fit` batch by batch equals `OnePass` over the same batches, when the local problem is conjugate."""
    generator = np.random.default_rng(1)
    X = generator.normal(size=(60, 3))
    batches = pt.datasets.split((X, X @ np.array([1.0, 2.0, 3.0]) + generator.normal(size=60)), sites=4)
    model = pt.models.LinearRegression(features=3)
    whole = pt.fit(model, batches, schedule=pt.schedules.OnePass())
    state = model
    for batch in batches:
        state = pt.partial_fit(state, batch)
    np.testing.assert_allclose(state.posterior.location, whole.posterior.location, rtol=1e-10)
    assert state.log_evidence == pytest.approx(whole.log_evidence, abs=1e-8)
    assert len(state.factors) == 4
    np.testing.assert_allclose(state.cavity(2).precision, whole.cavity(2).precision, rtol=1e-8)


def test_a_vague_prior_is_no_obstacle():
    """The posterior is eighteen orders of magnitude sharper than the prior, and still exact."""
    X = np.random.default_rng(2).normal(size=(50, 2))
    y = X @ np.array([1.0, -1.0])
    for sites in (1, 3):
        model = pt.models.LinearRegression(features=2, noise=1e-3, prior_scale=1e6, intercept=False)
        result = pt.fit(model, pt.datasets.split((X, y), sites=sites), schedule=pt.schedules.Sequential(passes=3))
        np.testing.assert_allclose(result.posterior.location, [1.0, -1.0], rtol=1e-9)
        np.testing.assert_allclose(result.posterior.covariance, 1e-6 * np.linalg.inv(X.T @ X), rtol=1e-8)


def test_same_seed_same_result_other_seed_another(many):
    def run(seed):
        solver = pt.solvers.FixedPoint(steps=2, batch_size=5, step_size=0.3)
        return pt.fit(MODEL, many[:3], solver=solver, schedule=pt.schedules.Sequential(passes=2), seed=seed).fingerprint

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"seed": -1}, "seed: expected a whole number"),
        ({"seed": 1.5}, "seed: expected a whole number"),
        ({"damping": 0}, "damping: expected a number in"),
        ({"damping": "half"}, "damping: expected a number in"),
        ({"engine": pt.engines.InProcess(speeds=[1.0])}, "speeds: expected 2, one per site, got 1"),
        ({"expectation": pt.expectations.ClosedForm()}, "ClosedForm does not fit LogisticRegression"),
        ({"hyper": pt.LearnHyper(names=("noise",))}, "LogisticRegression has no noise"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(many, settings, complaint):
    with pytest.raises(pt.errors.InputError, match=complaint):
        pt.fit(MODEL, many[:2], **settings)


@pytest.mark.parametrize("shards", [[], "abc", {"a": 1}, np.ones((3, 3))], ids=["none", "text", "mapping", "array"])
def test_shards_that_are_not_a_list_of_sites_are_refused(shards):
    with pytest.raises(pt.errors.InputError, match="shards"):
        pt.fit(MODEL, shards)


def test_predictions_check_their_input(many):
    result = pt.fit(MODEL, many[:2], schedule=pt.schedules.OnePass())
    with pytest.raises(pt.errors.InputError, match=r"^X: expected 5 features"):
        result.predict(np.ones((2, 4)))
    with pytest.raises(pt.errors.InputError, match=r"^X: is not finite at \[1, 0\]"):
        result.predict_proba(np.array([[0.0] * 5, [np.nan] * 5]))
    with pytest.raises(pt.errors.InputError, match="return_std"):
        result.predict(np.ones((2, 5)), return_std=True)
    assert result.predict_proba(np.ones((2, 5))).sum(axis=1) == pytest.approx([1, 1])
    assert result.sample(0, 1000).shape == (1000, 5)


def test_a_start_far_from_the_prior_is_used_and_not_held_against_the_first_step():
    """The optimum is the same; only the first round's reports, which are about the start, are left out."""
    model = pt.models.LogisticRegression(features=2, intercept=False)
    generator = np.random.default_rng(3)
    X = generator.normal(size=(80, 2))
    shards = pt.datasets.split((X, (X[:, 0] > 0).astype(float)), sites=4)
    prior = pt.families.Gaussian(np.zeros(2), np.eye(2))
    near = pt.families.Gaussian.from_moments(np.array([2.0, 0.0]), 0.01 * np.eye(2))

    def log_prob(w, data):
        X, y = data
        return y * (X @ w) - jnp.logaddexp(0.0, X @ w)

    results = [
        pt.fit(
            pt.Model(prior, log_prob, init=init),
            shards,
            schedule=pt.schedules.Synchronous(rounds=30),
            expectation=pt.expectations.MonteCarlo(256),
        )
        for init in (None, near)
    ]
    reference = pt.fit(model, shards, schedule=pt.schedules.Synchronous(rounds=60))
    assert reference.history[0]["free_energy"] is not None
    assert results[1].history[0]["free_energy"] is None
    for result in results:
        np.testing.assert_allclose(result.posterior.location, reference.posterior.location, atol=0.15)


def test_a_start_can_be_given_with_the_run(many):
    """A refinement of no more than one step ends near where it started; the wrong kind of density is refused."""
    start = pt.families.Gaussian.from_moments(np.arange(5.0), 1e-3 * np.eye(5))
    settings = {"schedule": pt.schedules.OnePass(), "solver": pt.solvers.Gradient(learning_rate=1e-6, steps=1)}
    there = pt.fit(MODEL, many[:1], start=start, **settings)
    np.testing.assert_allclose(there.posterior.location, start.location, atol=1e-4)
    stream = pt.partial_fit(there, many[1], start=start, **settings)
    np.testing.assert_allclose(stream.posterior.location, start.location, atol=1e-4)
    for wrong in (pt.families.Gaussian(np.zeros(4), np.eye(4)), pt.families.Gaussian(np.zeros(5), -np.eye(5))):
        with pytest.raises(pt.errors.InputError, match="start: expected a proper Gaussian"):
            pt.fit(MODEL, many[:1], start=wrong)


@pytest.mark.parametrize("rate", [0.5, 3.0, 5.0])
@pytest.mark.parametrize("sites", [1, 3])
def test_poisson_regression_with_default_settings(rate, sites):
    """From a prior whose expected rates are astronomical, by any schedule's first step."""
    generator = np.random.default_rng(4)
    X = generator.normal(size=(200, 3))
    truth = np.array([0.5, -0.3, 0.2, rate])
    y = generator.poisson(np.exp(X @ truth[:3] + rate))
    result = pt.fit(pt.models.PoissonRegression(features=3), pt.datasets.split((X, y), sites))
    np.testing.assert_allclose(result.posterior.location, truth, atol=0.2)
    assert -2000 < result.log_evidence < 0


@pytest.mark.parametrize(
    "solver", [pt.solvers.FixedPoint(), pt.solvers.FixedPoint(batch_size=20, step_size=0.05)], ids=str
)
def test_noisy_reports_do_not_freeze_automatic_damping(solver):
    """The README's model of any log likelihood, by Monte Carlo, beside quadrature."""
    X, y = pt.datasets.load("wine")
    data = pt.datasets.standardised(X)[:, :3], (y == 0).astype(float)
    prior = pt.families.Gaussian(np.zeros(3), np.eye(3))
    model = pt.Model(prior, lambda w, d: d[1] * (d[0] @ w) - jnp.logaddexp(0.0, d[0] @ w))
    shards = pt.datasets.split(data, 3)
    result = pt.fit(model, shards, solver=solver, schedule=pt.schedules.Synchronous(rounds=120))
    exact = pt.fit(pt.models.LogisticRegression(features=3, intercept=False), shards)
    assert float(result.posterior.kl(exact.posterior)) < 0.3
    assert np.mean([row["accepted"] for row in result.history[-20:]]) > 0.02


@pytest.mark.parametrize(
    "wrong", [jnp.sum, lambda rows: rows[:, None], lambda rows: rows[:-1]], ids=["sum", "n,1", "n-1"]
)
def test_a_log_prob_of_the_wrong_shape_is_refused(wrong):
    prior = pt.families.Gaussian(np.zeros(2), np.eye(2))
    model = pt.Model(prior, lambda w, d: wrong(-0.5 * (d[1] - d[0] @ w) ** 2))
    with pytest.raises(pt.errors.InputError, match="log_prob: expected one number per row"):
        pt.fit(model, [(np.ones((4, 2)), np.ones(4))])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda w, d: d @ w[:1], "does not run: .* same shape"),
        (lambda w, d: np.exp(w[0]) * d[:, 0], "JAX operations"),
        (lambda w, d: d[:, 0] if w[0] > 0 else d[:, 1], "JAX operations"),
        (lambda w, d: None, "one number per row"),
    ],
    ids=["shapes", "numpy", "if", "nothing"],
)
def test_a_log_prob_that_does_not_run_is_refused(wrong, words):
    prior = pt.families.Gaussian(np.zeros(2), np.eye(2))
    with pytest.raises(pt.errors.ShardError, match=f"site 0: log_prob: .*{words}"):
        pt.fit(pt.Model(prior, wrong), [np.ones((5, 2))])


def test_a_problem_in_the_last_round_is_said_aloud():
    prior = pt.families.Gaussian(np.zeros(1), np.eye(1))
    model = pt.Model(prior, lambda w, y: -(y**2) - jnp.sqrt(0.0 * w[0] ** 2))
    with pytest.warns(RuntimeWarning, match="site 0: solver met a value that is not finite"):
        result = pt.fit(model, [np.ones(3)], schedule=pt.schedules.OnePass())
    assert result.log_evidence == pytest.approx(-3)


def test_a_fit_that_learns_nothing_from_a_site_is_no_fit():
    prior = pt.families.Gaussian(np.zeros(1), np.eye(1))
    model = pt.Model(prior, lambda w, y: jnp.log(2.0 - y) * w[0] ** 2)
    with pytest.raises(pt.errors.NotFinite, match="site 1: its log likelihood is nan"):
        pt.fit(model, [np.ones(3), np.array([1.0, 3.0])], schedule=pt.schedules.OnePass())
    with pytest.raises(pt.errors.NotFinite, match="site 1"):
        pt.evidence(model, [np.ones(3), np.array([1.0, 3.0])], prior)
    assert pt.fit(model, [np.ones(3)], schedule=pt.schedules.OnePass()).log_evidence == 0


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_likelihood_of_ones_own_under_a_wide_prior(scale):
    """Counts at four sites, where exponentials are huge under the prior; beside the closed form."""
    generator = np.random.default_rng(3)
    X = generator.normal(size=(400, 3))
    y = generator.poisson(np.exp(X @ [0.5, 0.7, -0.4])).astype(float)
    shards = pt.datasets.split((X, y), 4)
    prior = pt.families.Gaussian.from_moments(np.zeros(3), scale**2 * np.eye(3))
    ours = pt.fit(pt.Model(prior, lambda w, d: d[1] * (d[0] @ w) - jnp.exp(d[0] @ w)), shards)
    exact = pt.fit(pt.models.PoissonRegression(features=3, intercept=False, prior_scale=scale), shards)
    assert np.all(np.abs(ours.posterior.location - exact.posterior.location) < 0.5 * exact.posterior.scale)
    assert np.all(np.abs(ours.posterior.scale / exact.posterior.scale - 1) < 0.3)


def test_a_run_that_is_stuck_says_so_and_is_not_settled():
    """Where nothing that sites propose can be taken, the posterior does not move, and that is no end."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(400, 3))
    y = 7 + X @ [1.0, -1.0, 0.5] + generator.normal(size=400) * np.exp(-1 + 0.5 * X[:, 0])
    model = pt.models.HeteroscedasticRegression(features=3)
    shards = [(X[:200], y[:200]), (X[200:], y[200:])]
    schedule = pt.schedules.Synchronous(rounds=30, settled=1e-6)
    corrupt = {site: lambda update: replace(update, change=update.change**-1e12) for site in range(2)}
    with pytest.warns(RuntimeWarning, match="site 0, site 1: nothing .* would leave the posterior improper"):
        stuck = pt.fit(model, shards, engine=Chaos(corrupt=corrupt), schedule=schedule)
    assert len(stuck.history) == 30
    # From the prior itself, and so wide, first steps lead to the edge of what is proper: each site is held back alone.
    for start in (None, prior_of(model, model.hyper)):
        result = pt.fit(model, shards, start=start, schedule=schedule)
        assert len(result.history) < 30
        assert np.all(np.abs(result.posterior.location[:4] - [1, -1, 0.5, 7]) < 4 * result.posterior.scale[:4])


def test_numbers_too_large_to_be_squared_are_refused():
    model = pt.models.LinearRegression(features=1)
    with pytest.raises(pt.errors.ShardError, match=r"site 1: X: is too large .*-2e\+200 at \[1, 0\]"):
        pt.fit(model, [(np.ones((2, 1)), np.ones(2)), (np.array([[1.0], [-2e200]]), np.ones(2))])
    pt.fit(model, [(np.array([[1e100], [2e100]]), np.ones(2))])


def test_a_stream_goes_on_with_learnt_hyperparameters():
    prior = pt.families.Gaussian(np.zeros(1), np.eye(1))

    def log_prob(w, y, hyper):
        return -0.5 * ((y - w[0]) / hyper["noise"]) ** 2 - jnp.log(hyper["noise"])

    y = np.random.default_rng(5).normal(1.0, 0.1, size=60)
    first = pt.fit(pt.Model(prior, log_prob, hyper={"noise": 1.0}), [y[:30]], hyper=pt.LearnHyper())
    assert first.hyper["noise"] < 0.3
    assert pt.partial_fit(first, y[30:]).posterior.scale[0] < first.posterior.scale[0]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"solver": "lbfgs"}, "solver: expected a Solver, got 'lbfgs'"),
        ({"schedule": pt.schedules.Synchronous}, r"schedule: .* the class Synchronous: make one"),
        ({"expectation": "mc"}, "expectation: expected a Expectation"),
        ({"hyper": True}, "hyper: expected a LearnHyper"),
        ({"callbacks": print}, "callbacks: expected a list of functions"),
        ({"run_dir": 3}, "run_dir: expected"),
        ({"resume": True}, "resume: needs the run_dir"),
    ],
    ids=str,
)
def test_arguments_of_another_kind_are_refused(many, settings, complaint):
    with pytest.raises(pt.errors.InputError, match=complaint):
        pt.fit(MODEL, many[:2], **settings)


def test_the_evidence_of_something_improper_is_refused(many):
    result = pt.fit(MODEL, many[:2], schedule=pt.schedules.OnePass())
    with pytest.raises(pt.errors.InputError, match="posterior: expected a proper Gaussian"):
        pt.evidence(MODEL, many[:2], result.posterior**-1)
    with pytest.raises(pt.errors.InputError, match="site 7: there are sites 0 to 1"):
        result.cavity(7)


@pytest.mark.parametrize("schedule", [pt.schedules.Synchronous(rounds=4), pt.schedules.Asynchronous(updates=12)])
def test_large_sites_are_worked_on_one_by_one_with_the_same_result(many, monkeypatch, schedule):
    """Sites of three sizes, two of which are padded alike."""
    shards = [*many[:4], (many[4][0][:9], many[4][1][:9]), tuple(np.concatenate([a] * 300) for a in many[5])]
    stacked = pt.fit(MODEL, shards, schedule=schedule)
    monkeypatch.setattr(worker, "LARGE", 0)
    sizes, refine = [], worker.Worker._refine_stack
    monkeypatch.setattr(
        worker.Worker,
        "_refine_stack",
        lambda self, shape, tasks: sizes.append(len(tasks)) or refine(self, shape, tasks),
    )
    alone = pt.fit(MODEL, shards, schedule=schedule)
    assert sizes == [1] * (24 if isinstance(schedule, pt.schedules.Synchronous) else 12)
    for name in ("posterior", "factors"):
        for a, b in zip(jax.tree.leaves(getattr(stacked, name)), jax.tree.leaves(getattr(alone, name)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(alone.expected_log_probs, stacked.expected_log_probs, rtol=1e-12)
    np.testing.assert_allclose(alone.log_evidence, stacked.log_evidence, rtol=1e-12)
    assert alone.history[-1]["bytes"] == stacked.history[-1]["bytes"]


@pytest.mark.parametrize("schedule", [pt.schedules.Synchronous(rounds=4), pt.schedules.Sequential(passes=3)])
def test_free_energies_of_a_shared_factor_are_exact_where_the_likelihood_is_conjugate(schedule):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(12, 2))
    shards = [(X[i::3], X[i::3] @ [1.0, -1.0]) for i in range(3)]
    model = pt.models.LinearRegression(features=2, noise=1.0)
    seen = []
    for event in pt.events(model, shards, schedule=schedule, custody="shared"):
        seen.append((event.free_energy, pt.evidence(model, shards, event.posterior)))
    known = [(reported, before) for (_, before), (reported, _) in pairwise(seen) if reported is not None]
    assert len(known) >= 3
    for reported, before in known:
        assert reported == pytest.approx(before, abs=1e-8)


def test_batches_of_counts_are_solved_under_a_wide_prior():
    """Exponentials make whole steps overshoot there, so they are halved: what moves little then is not settled."""
    wool, tension = np.repeat([0.0, 1.0], 27), np.tile(np.repeat(np.arange(3), 9), 2)
    low, middle = (tension == 0).astype(float), (tension == 1).astype(float)
    inputs = np.column_stack([wool, low, middle, wool * low, wool * middle])
    # Breaks of yarn in weaving (Tippett, 1950).
    counts = np.array([
        26, 30, 54, 25, 70, 52, 51, 26, 67, 18, 21, 29, 17, 12, 18, 35, 30, 36, 36, 21, 24, 18, 10, 43, 28,
        15, 26, 27, 14, 29, 19, 29, 31, 41, 20, 44, 42, 26, 19, 16, 39, 28, 21, 39, 29, 20, 21, 24, 17, 13,
        15, 15, 16, 28,
    ], float)  # fmt: skip
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    once = rounds = pt.models.PoissonRegression(features=5, prior_scale=2.5)
    for part in (slice(0, 27), slice(27, 35), slice(35, 54)):
        once = pt.partial_fit(once, (inputs[part], counts[part]))
        rounds = pt.partial_fit(rounds, (inputs[part], counts[part]), schedule=pt.schedules.Synchronous(rounds=60))
    assert len(once.history) < 30
    assert once.log_evidence == pytest.approx(rounds.log_evidence, abs=1e-5)
    assert once.posterior.kl(rounds.posterior) < 1e-8
