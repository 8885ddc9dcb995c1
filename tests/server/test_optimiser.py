"""The server's optimiser: its algebra in NumPy, and runs of networks whose optimum is known."""

from functools import cache

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import partita as pt
from partita.errors import InputError
from partita.expectations import ClosedForm, GaussHermite, GaussNewton
from partita.models import Network
from partita.server.rules import Auto, Fixed, FreeEnergy, Optimiser, Setup
from partita.server.rules.optimiser import Pairs
from partita.server.rules.places import MOST_OPEN, Places
from partita.server.rules.preconditioning import Preconditioner
from partita.server.schedules import Asynchronous, Synchronous
from partita.solvers import FixedPoint, Gradient

NOISE = 0.5


def two_loops(moves, changes, scaling, gradient):
    """Nocedal and Wright (2006), Algorithm 7.4, from γ × diag(scaling)."""
    q, alphas = gradient.copy(), []
    for s, y in zip(reversed(moves), reversed(changes), strict=True):
        alphas.append(s @ q / (s @ y))
        q = q - alphas[-1] * y
    s, y = moves[-1], changes[-1]
    r = (s @ y) / (y @ (scaling * y)) * scaling * q
    for s, y, alpha in zip(moves, changes, reversed(alphas), strict=True):
        r = r + s * (alpha - y @ r / (s @ y))
    return r


def test_gradients_are_those_of_one_place_whatever_the_speed():
    """Quadratic log likelihoods, each with a Hessian of its own: sites that miss a place are taken to lie between."""
    generator = np.random.default_rng(0)
    hessians = [np.diag(generator.uniform(0.1, 5, 4)) for _ in range(3)]
    way, start = generator.normal(size=4), generator.normal(size=4)
    places = Places(3)
    there = [start + length * way for length in (0.0, 0.3, 1.2, 2.0)]
    for location in there:
        places.begin(location)
    seen = {0: (0, 1, 2, 3), 1: (0, 2, 3), 2: (0, 3)}
    for site, numbers in seen.items():
        for number in numbers:
            places.hear(site, number, there[number], -hessians[site] @ there[number])
    done = places.finish()
    assert len(done) == 4
    assert not places.open
    for place, location in zip(done, there, strict=True):
        assert_allclose(place.location, location)
        assert_allclose(place.gradient, -sum(hessians) @ location)
    assert_allclose(places.total(), -sum(hessians) @ there[3])


def test_a_place_is_known_by_the_updates_since():
    places = Places(3)
    for location in np.eye(4):
        places.begin(location)
        places.version += 3
    assert [places.number_at(staleness) for staleness in (0, 2, 3, 4, 6, 9, 12)] == [3, 3, 3, 2, 2, 1, 0]


def test_what_was_sent_is_current_once_all_have_answered_from_where_locations_are():
    places = Places(2)
    places.begin(np.zeros(2))
    for site in (0, 1):
        assert not places.is_current
        places.hear(site, 0, np.zeros(2), np.ones(2))
    assert places.is_current
    places.begin(np.ones(2))
    places.hear(0, 1, np.ones(2), np.ones(2))
    assert not places.is_current


def test_places_that_nobody_answers_from_are_given_up():
    places = Places(2)
    for number in range(3 * MOST_OPEN):
        places.begin(np.full(2, float(number)))
        places.hear(0, number, np.full(2, float(number)), np.ones(2))
    assert sorted(places.open) == list(range(2 * MOST_OPEN, 3 * MOST_OPEN))
    assert places.finish() == []
    assert not places.is_complete


def inverse_root(moments: np.ndarray, ridge: float) -> np.ndarray:
    """With a mean of one on the diagonal."""
    values, vectors = np.linalg.eigh(moments)
    root = vectors @ np.diag((values + ridge * values.max()) ** -0.5) @ vectors.T
    return root / np.diag(root).mean()


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (4, 3, 2)])
def test_the_metric_is_a_product_of_roots(shape):
    generator, ridge = np.random.default_rng(0), 0.1
    rows, columns = (4, 6) if shape == (4, 3, 2) else (6, 4) if shape == (2, 3, 4) else shape
    bias, preconditioner = 2, Preconditioner([shape, (2,)], ridge)
    gradients = generator.normal(size=(7, rows * columns + bias))
    for gradient in gradients:
        preconditioner.learn(gradient)
    matrices = [g[:-bias].reshape(rows, columns) / np.linalg.norm(g[:-bias]) for g in gradients]
    left = inverse_root(sum(m @ m.T for m in matrices), ridge)
    right = inverse_root(sum(m.T @ m for m in matrices), ridge)
    scaling = generator.uniform(1, 2, rows * columns + bias)
    given = generator.normal(size=(2, rows * columns + bias))
    for found, one in zip(preconditioner.metric(scaling)(given), given, strict=True):
        matrix = scaling.mean() * left @ one[:-bias].reshape(rows, columns) @ right
        assert_allclose(found, np.concatenate([matrix.ravel(), scaling[-bias:] * one[-bias:]]), rtol=1e-4, atol=1e-5)


def test_without_gradients_the_metric_is_the_diagonal():
    preconditioner, scaling = Preconditioner([(3, 2)], 0.1), np.arange(1.0, 7.0)
    preconditioner.learn(np.zeros(6))
    assert_allclose(preconditioner.metric(scaling)(np.ones((1, 6)))[0], scaling)


@pytest.mark.parametrize("number", [1, 2, 7])
def test_pairs_are_the_two_loop_recursion(number):
    generator = np.random.default_rng(number)
    A = generator.normal(size=(30, 30))
    A = A @ A.T + np.eye(30)
    pairs, moves = Pairs(memory=7), list(generator.normal(size=(number, 30)))
    changes = [A @ move for move in moves]
    for move, change in zip(moves, changes, strict=True):
        pairs.add(move, change)
    scaling, gradient = generator.uniform(0.1, 3, 30), generator.normal(size=30)
    step = pairs.apply(lambda stack: stack * scaling, gradient)
    assert_allclose(step, two_loops(moves, changes, scaling, gradient), rtol=1e-8, atol=1e-10)
    # The secant equation of the newest pair.
    assert_allclose(pairs.apply(lambda stack: stack * scaling, changes[-1]), moves[-1], rtol=1e-8, atol=1e-10)


def test_pairs_are_the_newest_ones_with_positive_curvature():
    generator, pairs = np.random.default_rng(0), Pairs(memory=3)
    moves = generator.normal(size=(5, 4))
    for number, move in enumerate(moves):
        pairs.add(move, (2 + number) * move)
        pairs.add(move, -move)
    assert np.array_equal(pairs.moves, moves[2:])
    assert np.array_equal(pairs.changes, [4 * moves[2], 5 * moves[3], 6 * moves[4]])
    pairs.forget()
    assert pairs.moves == pairs.changes == []


def test_a_fall_of_the_free_energy_shrinks_the_trust():
    tempering = Optimiser(trust=0.2, margin=0.05).init(Setup(3, parallel=True))
    tempering.observe(FreeEnergy(-100.0, 0.0))
    tempering.pairs.add(np.ones(2), np.ones(2))
    tempering.observe(FreeEnergy(-104.0, 0.0))  # within the margin
    assert (tempering.trust, len(tempering.pairs.moves)) == (0.2, 1)
    tempering.observe(FreeEnergy(-110.0, 0.0))
    assert (tempering.trust, len(tempering.pairs.moves)) == (0.05, 0)
    tempering.observe(FreeEnergy(-105.0, 0.0))
    assert_allclose(tempering.trust, 0.055)
    for value in range(-104, -60):
        tempering.observe(FreeEnergy(float(value), 0.0))
    assert tempering.trust == 0.2


@pytest.mark.parametrize(
    "settings",
    [{"memory": 0}, {"precision_rate": 0.0}, {"first_step": 2.0}, {"trust": 0.0}, {"margin": -1.0}, {"floor": -0.1}],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(InputError, match=f"^Optimiser: {next(iter(settings))}"):
        Optimiser(**settings)


def test_full_gaussians_are_refused():
    X = np.random.default_rng(0).normal(size=(8, 2))
    with pytest.raises(InputError, match="damping: Optimiser: needs a mean-field Gaussian, not a Gaussian"):
        pt.fit(pt.models.LogisticRegression(features=2), [(X, (X[:, 0] > 0) * 1.0)], damping=Optimiser())


def test_what_is_left_open_fits_the_expectation():
    network, regression = pt.models.Network([2, 2]), pt.models.LogisticRegression(features=2)
    linear = pt.models.LinearRegression(features=2, noise=1.0)
    models = {GaussNewton: network, GaussHermite: regression, ClosedForm: linear}

    def choose_rest(expectation, solver, damping):
        settings = pt.Settings(solver=solver, damping=damping, expectation=expectation)
        chosen = settings.choose(models[type(expectation)])
        return chosen.solver, chosen.damping

    solver, damping = choose_rest(GaussNewton(), None, "auto")
    assert (solver, damping) == (FixedPoint(steps=1, step_size=1.0), Optimiser())
    for expectation in (GaussHermite(), ClosedForm()):
        assert choose_rest(expectation, None, "auto") == (FixedPoint(), Auto())
    # Local problems that are solved, more or less, are destinations.
    for solver in (FixedPoint(steps=3), Gradient("adam", steps=2)):
        assert choose_rest(GaussNewton(), solver, "auto") == (solver, Auto())
    assert choose_rest(GaussNewton(), None, 0.3)[1] == Fixed(0.3)
    own = Optimiser(memory=3)
    assert choose_rest(GaussNewton(), None, own)[1] is own


def regression(rows: int = 600) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    X = (generator.normal(size=(rows, 3)) * [1.0, 0.5, 2.0]).astype(np.float32)
    X[:, 1] += 0.4 * X[:, 0]
    return X, (X @ [1.0, -2.0, 0.5] + 0.7 + NOISE * generator.normal(size=rows)).astype(np.float32)


def flat(tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(float)


LINEAR = Network([3, 1], likelihood="gaussian", noise=NOISE, prior_scale=0.3)
SCHEDULES = {"synchronous": Synchronous(rounds=150), "asynchronous": Asynchronous(updates=450)}


def shards() -> list[tuple[np.ndarray, np.ndarray]]:
    """Sites that see different inputs."""
    X, y = regression()
    order = np.argsort(X[:, 0])
    return [(X[part], y[part]) for part in np.split(order, [100, 300])]


@cache
def linear(schedule: str) -> pt.Result:
    return pt.fit(LINEAR, shards(), schedule=SCHEDULES[schedule], damping=Optimiser(precision_rate=0.05, trust=1.0))


def exact() -> tuple[np.ndarray, np.ndarray]:
    """The mean of the posterior, and the diagonal of its precision."""
    X, y = regression()
    A = np.column_stack([X, np.ones(len(X))]).astype(float)
    P = np.eye(4) / 0.3**2 + A.T @ A / NOISE**2
    return np.linalg.solve(P, A.T @ y / NOISE**2), np.diag(P)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_exact_mean_field_optimum_is_reached(schedule):
    location, precision = exact()
    q = linear(schedule).posterior
    assert_allclose(flat(q.precision), precision, rtol=0.15)
    assert np.all(np.abs(flat(q.location) - location) < 0.4 / np.sqrt(precision))


def test_a_site_that_is_ten_times_as_slow_is_neither_waited_for_nor_forgotten():
    location, precision = exact()
    schedule, engine = Asynchronous(updates=1000), pt.engines.InProcess(speeds=[1.0, 1.0, 0.1])
    settings = Optimiser(precision_rate=0.05, trust=1.0)
    q = pt.fit(LINEAR, shards(), schedule=schedule, damping=settings, engine=engine).posterior
    assert np.all(np.abs(flat(q.location) - location) < 0.4 / np.sqrt(precision))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_posterior_is_the_prior_times_all_factors(schedule):
    result = linear(schedule)
    total = result.prior
    for factor in result.factors:
        total = total * factor
    for name in ("precision", "precision_times_location"):
        parts = sum(np.abs(flat(getattr(factor, name))) for factor in result.factors)
        difference = flat(getattr(total, name)) - flat(getattr(result.posterior, name))
        assert np.all(np.abs(difference) <= 1e-5 * parts)
    assert all(result.cavity(site).is_proper() for site in range(3))
    # Not by leaving factors where they were.
    assert all(np.abs(flat(factor.precision)).min() > 1 for factor in result.factors)


def test_no_move_of_the_locations_is_larger_than_the_trust():
    X, y = regression(90)
    model, trust = Network([3, 1], likelihood="gaussian", noise=NOISE), 1e-3
    shards = [(X[:40], y[:40]), (X[40:], y[40:])]
    before, sizes = flat(model.start.location), []
    for event in pt.events(model, shards, schedule=Synchronous(15), damping=Optimiser(trust=trust, first_step=1.0)):
        now = flat(event.posterior.location)
        sizes.append(0.5 * np.sum(flat(event.posterior.precision) * (now - before) ** 2))
        before = now
    assert max(sizes) <= 4 * trust * 1.01
    assert max(sizes) >= 4 * trust * 0.9


def classes() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(2)
    y = np.arange(900) % 3
    centres = np.array([[1.0, 0, 0, 0.5], [0, 1, 0, -0.5], [0, 0, 1, 0]])
    return centres[y] + generator.normal(size=(900, 4)), y


def test_the_partition_does_not_matter():
    """The same data at one site, at three at random, at three by label: what they send adds up to the same."""
    X, y = classes()
    model = Network([4, 3], start_scale=0.02)
    # First steps that are long enough for the change of the gradient to be more than noise.
    damping = Optimiser(first_trust=0.1)
    parts = {
        "pooled": [np.arange(900)],
        "iid": np.array_split(np.random.default_rng(3).permutation(900), 3),
        "by label": [np.flatnonzero(y == label) for label in range(3)],
    }
    rounds, ends = {}, {}
    for name, sites in parts.items():
        events = pt.events(model, [(X[rows], y[rows]) for rows in sites], schedule=Synchronous(12), damping=damping)
        trajectory = [event.posterior for event in events]
        rounds[name] = np.array([flat(q.location) for q in trajectory])
        ends[name] = trajectory[-1]
    start = flat(model.start.location)
    moved = np.linalg.norm(rounds["pooled"] - start, axis=1)
    assert np.all(np.diff(moved[:4]) > 0)
    for name in ("iid", "by label"):
        distance = np.linalg.norm(rounds[name] - rounds["pooled"], axis=1)
        assert distance[0] < 0.02 * moved[0]  # before there are pairs
        # Another seed of the pooled run is as far off.
        assert np.all(distance < 0.3 * moved)
        assert distance[-1] < 0.1 * moved[-1]
        assert_allclose(flat(ends[name].precision), flat(ends["pooled"].precision), rtol=0.1)
    # Each label alone leads somewhere else, so the agreement above is that of sums.
    alone = pt.fit(model, [(X[y == 0], y[y == 0])], schedule=Synchronous(12), damping=damping).posterior
    assert np.linalg.norm(flat(alone.location) - rounds["pooled"][-1]) > 0.8 * moved[-1]
