"""What the server promises of folds, by number: one site cannot freeze or steer the others, or end a run in vain."""

import dataclasses
import math
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import partita as pt
from partita.engines import InProcess
from partita.errors import Stalled
from partita.families import Dirichlet, Gamma, Gaussian, Independent, MeanField, NormalGamma, NormalWishart, Product
from partita.fitting import events
from partita.server.journals import read_notices
from partita.server.ledger import Ledger
from partita.server.rules.limits import STRIKE, Limits, divergence
from partita.server.schedules import Asynchronous, OnePass, Priority, RandomOrder, Sequential, Synchronous
from partita.server.shared_ledger import SharedLedger
from partita.studies.faults.chaos import Chaos
from partita.wire.messages import Notice
from partita.wire.questions import RECORD
from partita.wire.tasks import Update

# For tests in which a site is quarantined, which they look for in results, events and journals.
EXPECTS_QUARANTINE = pytest.mark.filterwarnings("ignore::partita.errors.QuarantineWarning")

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 2))
Y = (X[:, 0] + 0.5 * GENERATOR.normal(size=60) > 0).astype(float)
SHARDS = [(X[i::5], Y[i::5]) for i in range(5)]
MODEL = pt.models.LogisticRegression(features=2)
BAD = 2
OTHERS = [0, 1, 3, 4]

PRIORS = {
    "Gaussian": Gaussian.from_moments(np.zeros(3), np.eye(3)),
    "MeanField": MeanField.from_moments(np.zeros(4), np.ones(4)),
    "Gamma": Gamma.from_shape_rate(np.array([2.0, 3.0]), np.array([1.0, 2.0])),
    "Dirichlet": Dirichlet.from_concentration(np.array([2.0, 3.0, 4.0])),
    "NormalGamma": NormalGamma.from_parameters(np.zeros(2), 2 * np.eye(2), 3.0, 2.0),
    "NormalWishart": NormalWishart.from_parameters(np.zeros(2), 2.0, np.eye(2), 5.0),
    "Independent": Independent(Gamma.from_shape_rate(np.full((3, 2), 2.0), np.ones((3, 2)))),
    "Product": Product({"a": Dirichlet.from_concentration(np.array([2.0, 2.0])), "b": Gamma(np.ones(2), np.ones(2))}),
}
SCHEDULES = {
    "synchronous": Synchronous(rounds=15),
    "sequential": Sequential(passes=15),
    "random order": RandomOrder(passes=15),
    "priority": Priority(updates=75),
    "asynchronous": Asynchronous(updates=75),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
every_family = pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)


def fit(engine=None, schedule=SCHEDULES["synchronous"], model=MODEL, shards=SHARDS, **others):
    return pt.fit(model, shards, schedule=schedule, engine=engine or InProcess(), **others)


def lying(**lies):
    """An engine on which one site's updates say something else; each lie is a function of the update."""

    def lie(update):
        return dataclasses.replace(update, **{name: value(update) for name, value in lies.items()})

    return Chaos(corrupt={BAD: lie})


def sunk(change, size=-1e8, place=0):
    """A change that is that large in one coordinate of its last array: on the diagonal, if it is a matrix."""
    leaves, structure = jax.tree.flatten(jax.tree.map(np.array, change))
    last = leaves[-1]
    last.flat[place * (last.shape[-1] + 1 if last.ndim > 1 else 1) if last.ndim else 0] += size
    return jax.tree.unflatten(structure, leaves)


def folded(ledger, changes, **settings):
    tasks = ledger.dispatch(list(range(len(changes))), {})
    return ledger.fold([Update(t.site, t.version, c, 0.0) for t, c in zip(tasks, changes, strict=True)], **settings)


@every_family
@pytest.mark.parametrize("kind", [Ledger, SharedLedger])
@pytest.mark.parametrize("size", [-1e2, -1e8, -1e200])
def test_21_the_share_of_the_others_does_not_fall(prior, kind, size):
    honest = jax.tree.map(lambda a: 0.05 * a, prior)
    ledger = kind(prior, 5)
    changes = [honest] * 4 + [sunk(honest, size)]
    shares = folded(ledger, changes, least=STRIKE)
    assert np.all(shares[:4] == 1)
    assert shares[4] < 0.2
    assert ledger.posterior.is_proper()
    assert all(ledger.cavity(site).is_proper() for site in range(5))
    # And afterwards nothing is in the way of what follows.
    assert np.all(folded(ledger, [honest] * 4) == 1)


@every_family
@pytest.mark.parametrize("kind", [Ledger, SharedLedger])
@pytest.mark.parametrize("times", [1.2, 2.0, 4.0, 16.0, 19.0])
def test_21_nor_by_a_site_that_is_a_little_in_the_way(prior, kind, times):
    """Together, all five could take a share between 0.05 and 1; without the one, the others take everything."""
    honest = jax.tree.map(lambda a: 0.05 * a, prior)
    shares = folded(kind(prior, 5), [honest] * 4 + [jax.tree.map(lambda a: -times * a, prior)], least=STRIKE)
    assert np.all(shares[:4] == 1)
    assert (0.9 if times <= 1.2 else 0.02) < shares[4] <= 1


@every_family
@pytest.mark.parametrize("kind", [Ledger, SharedLedger])
def test_21_where_nobody_alone_is_in_the_way_all_have_the_same_share(prior, kind):
    shares = folded(kind(prior, 5), [jax.tree.map(lambda a: -0.4 * a, prior)] * 5, least=STRIKE)
    assert 0.2 < shares[0] < 1
    assert np.all(shares == shares[0])


@every_family
@pytest.mark.parametrize("kind", [Ledger, SharedLedger])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("size", [1e13, 1e15, 1e20, 1e300, -1e20])
def test_21_nothing_is_buried_beside_numbers_that_are_very_large(prior, kind, together, size):
    """Beside them, all that others say of other coordinates would be lost in rounding, and could not be taken."""
    honest = jax.tree.map(lambda a: 0.05 * a, prior)
    ledger = kind(prior, 5)
    if together:
        assert np.all(folded(ledger, [honest] * 4 + [sunk(honest, size)], least=STRIKE)[:4] == 1)
    else:
        for site, change in enumerate([honest, sunk(honest, size), honest]):
            (task,) = ledger.dispatch([site], {})
            ledger.fold([Update(task.site, task.version, change, 0.0)], least=STRIKE)
    down = jax.tree.map(lambda a: -0.2 * a, honest)
    before = ledger.posterior
    assert np.all(folded(ledger, [down] * 4, least=STRIKE) == 1)
    first = [jax.tree.leaves(density)[-1].flat[-1] for density in (before, ledger.posterior, prior)]
    if len(jax.tree.leaves(prior)[-1].flat) > 1:
        assert first[0] - first[1] == pytest.approx(0.04 * first[2], rel=1e-6)


def test_21_large_honest_sites_bury_nobody():
    """Sites of very different scales are taken whole: a wide prior, and data in unusual units."""
    prior = Gaussian.from_moments(np.zeros(2), 1e6 * np.eye(2))
    wide = Gaussian(np.zeros(2), np.diag([1e14, 1e2]))
    ledger = Ledger(prior, 3)
    assert np.all(folded(ledger, [wide, wide**0.001, wide**1000.0], least=STRIKE) == 1)


@EXPECTS_QUARANTINE
@every_schedule
@pytest.mark.parametrize("size", [-1e8, 1e20])
@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_21_whoever_would_make_the_posterior_improper_is_named_struck_and_quarantined(
    schedule, posterior, size, tmp_path
):
    """Or whoever would bury what the others know."""
    model = pt.models.LogisticRegression(features=2, posterior=posterior)
    engine = lying(change=lambda update: sunk(update.change, size, place=1))
    run = {"schedule": schedule, "model": model, "run_dir": tmp_path}
    found = []
    result = fit(engine, callbacks=[found.append], **run)
    for event in found:
        assert all(share == 1 for site, share in zip(event.sites, event.shares, strict=True) if site != BAD)
    named = [words for event in found for words in event.problems if words.startswith(f"site {BAD}: its update")]
    assert named
    # Nor are they asked for less: what could not be taken says nothing of the free energy.
    truth = []
    fit(schedule=schedule, model=model, callbacks=[truth.append])
    assert found[-1].wanted >= 0.5 * truth[-1].wanted
    assert all(event.free_energy_error is None or np.isfinite(event.free_energy) for event in found)
    assert all(row["limited_by"] == BAD for row in result.history if row["limited_by"] is not None)
    assert [(notice.site, notice.kind) for notice in read_notices(tmp_path)] == [(BAD, "quarantined")]
    # The others end where they would have ended without it; resumed, it is the same run.
    without = fit(schedule=Synchronous(rounds=40), model=model, shards=[SHARDS[site] for site in OTHERS])
    if not isinstance(schedule, Priority):  # which asks others seldom
        np.testing.assert_allclose(result.posterior.location, without.posterior.location, atol=0.02)
    assert fit(engine, resume=True, **run).fingerprint == result.fingerprint
    assert len(read_notices(tmp_path)) == 1


@EXPECTS_QUARANTINE
@pytest.mark.parametrize("size", [-1e300, 1e300, -1e12])
@pytest.mark.parametrize("schedule", [Synchronous(rounds=8), Sequential(passes=8), Asynchronous(updates=40)])
def test_21_numbers_near_the_largest_that_there_are_do_no_harm(schedule, size):
    engine = lying(change=lambda update: sunk(update.change, size))
    result = fit(engine, schedule, limits=Limits(change=20.0))
    without = fit(schedule=Synchronous(rounds=40), shards=[SHARDS[site] for site in OTHERS])
    assert np.all(np.abs(result.posterior.location - without.posterior.location) < without.posterior.scale)


@EXPECTS_QUARANTINE
def test_21_a_run_killed_before_its_verdict_was_written_gives_it_again(tmp_path):
    engine = lying(change=lambda update: sunk(update.change))
    run = {"schedule": Sequential(passes=6), "run_dir": tmp_path}

    class Killed(Exception):
        pass

    def kill(event):
        if any("quarantined" in words for words in event.problems):
            raise Killed

    whole = fit(engine, Sequential(passes=6))
    with pytest.raises(Killed):
        fit(engine, callbacks=[kill], **run)
    assert fit(engine, resume=True, **run).fingerprint == whole.fingerprint
    assert [notice.kind for notice in read_notices(tmp_path)] == ["quarantined"]


NUMBERS = ("expected_log_prob", "expected_log_factor", "expected_log_change", "seconds", "finished_at")


@EXPECTS_QUARANTINE
@every_schedule
@pytest.mark.parametrize("name", NUMBERS)
def test_22_numbers_that_are_none_are_refused(schedule, name):
    value, words = {"expected_log_factor": -math.inf, "expected_log_change": 1e300}.get(name, math.nan), []
    small = dataclasses.replace(schedule, **{f: 3 if f != "updates" else 15 for f in vars(schedule) if f in BUDGETS})
    result = fit(lying(**{name: lambda _: value}), small, callbacks=[lambda event: words.extend(event.refused)])
    assert [one for one in words if name in one and one.startswith(f"site {BAD}: ")]
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(result.factors[BAD]))
    assert all(np.isfinite(row["clock"]) for row in result.history)


BUDGETS = ("rounds", "passes", "updates")


def reports(kind):
    """What a site says of its log likelihood, beside the truth."""
    times = iter(range(1, 10**6))
    return {
        "falling": lambda update: update.expected_log_prob - 50.0 * next(times),
        "a fall each second time": lambda update: update.expected_log_prob - 50.0 * (next(times) % 2),
        "inflated": lambda update: update.expected_log_prob + 50.0 * next(times),
        "far away": lambda update: update.expected_log_prob + 1e60,
        "chaos": lambda update: (-1e8) ** (next(times) % 7),
    }[kind]


@EXPECTS_QUARANTINE
@every_schedule
@pytest.mark.filterwarnings("ignore:the last round had a problem")
@pytest.mark.parametrize("kind", ["falling", "a fall each second time", "inflated", "far away", "chaos"])
def test_22_false_reports_of_a_site_do_not_hold_back_the_others(schedule, kind):
    """Automatic damping goes on as without the lies; who contradicts itself is named."""
    lies, truth = [], []
    fit(lying(expected_log_prob=reports(kind)), schedule, callbacks=[lies.append])
    fit(Chaos(), schedule, callbacks=[truth.append])
    assert lies[-1].wanted >= 0.5 * truth[-1].wanted
    assert min(event.wanted for event in lies if not event.taken_back) >= 0.5 * min(
        event.wanted for event in truth if not event.taken_back
    )
    assert any("does not follow from its updates" in words for event in lies for words in event.problems)
    assert all(words.startswith(f"site {BAD}: ") for event in lies for words in event.problems)


WIGGLES = {
    "alternating": lambda time: 1 if time % 2 else -1,
    "three that cancel": lambda time: [1, 1, -2][time % 3],
    "at random": lambda time: np.random.default_rng(time).normal(),
    "honest for long": lambda time: 0 if time < 8 else 1 if time % 2 else -1,
    "each fourth time": lambda time: 0 if time % 4 else 3,
    "less each second time": lambda time: -0.9 if time % 2 else 0,
}


def wiggled(wiggle, size, leaf=-1):
    """An honest change, and more or less of something on top of it: of the identity, if it is a matrix."""
    times = iter(range(1, 10**6))

    def change(update):
        leaves, structure = jax.tree.flatten(jax.tree.map(np.array, update.change))
        leaves[leaf] += size * wiggle(next(times)) * (np.eye(len(leaves[leaf])) if leaves[leaf].ndim > 1 else 1.0)
        return jax.tree.unflatten(structure, leaves)

    return change


@EXPECTS_QUARANTINE
@pytest.mark.filterwarnings("ignore:the last round had a problem")
@pytest.mark.parametrize("leaf", [0, -1], ids=["locations", "precisions"])
@pytest.mark.parametrize("wiggle", WIGGLES.values(), ids=WIGGLES)
def test_22_changes_that_vary_do_not_hold_back_the_others(wiggle, leaf):
    """The free energy falls by what one site's value is short of what it proposed: that one is held back alone."""
    found, truth = [], []
    engine = lying(change=wiggled(wiggle, 1.0, leaf))
    result = fit(engine, Synchronous(rounds=40), callbacks=[found.append])
    fit(schedule=Synchronous(rounds=40), callbacks=[truth.append])
    assert sum(event.taken_back for event in found) <= 5
    asked = [[event.wanted for event in events if not event.taken_back] for events in (found, truth)]
    assert min(asked[0]) >= 0.5 * min(asked[1])
    assert asked[0][-1] >= 0.5 * asked[1][-1]
    assert all(words.startswith(f"site {BAD}: ") for event in found for words in event.problems)
    assert any("quarantined: its updates alone" in words for event in found for words in event.problems)
    # The others have ended where they do beside its factor as it is.
    assert found[-1].change < 1e-4
    assert np.all(np.abs(result.posterior.location - truth[-1].posterior.location) < 2 * truth[-1].posterior.scale)


@EXPECTS_QUARANTINE
@pytest.mark.parametrize("size", [0.3, 5.0])
@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_22_nor_do_larger_and_smaller_ones(size, posterior):
    model, found = pt.models.LogisticRegression(features=2, posterior=posterior), []
    engine = lying(change=wiggled(WIGGLES["alternating"], size))
    fit(engine, Synchronous(rounds=40), model=model, callbacks=[found.append])
    assert min(event.wanted for event in found if not event.taken_back) >= 0.1
    assert any("quarantined: its updates alone" in words for event in found for words in event.problems)


@pytest.mark.parametrize("sizes", [[12] * 5, [5, 12, 50, 500, 5000], [5000, 5, 5, 5]])
def test_22_nobody_is_blamed_where_honest_steps_go_too_far(sizes):
    """Counts overshoot: all are asked for less, whoever has most of the data."""
    generator, shards = np.random.default_rng(5), []
    for rows in sizes:
        x = generator.normal(size=(rows, 4))
        shards.append((x, generator.poisson(np.exp(np.clip(0.7 * x.sum(axis=1), -8, 8))).astype(float)))
    model = pt.models.PoissonRegression(features=4)
    result = fit(model=model, shards=shards, schedule=Synchronous(rounds=40))
    assert not any(row["problem"] for row in result.history)


@every_schedule
def test_22_honest_sites_are_not_doubted(schedule):
    for model in (MODEL, pt.models.LogisticRegression(features=2, posterior="mean-field")):
        result = fit(schedule=schedule, model=model)
        assert not any(row["problem"] for row in result.history)


LINEAR = pt.models.LinearRegression(features=2, noise=1.0)
LINES = [(x, x @ [1.0, -0.5] + 0.2 * np.random.default_rng(i).normal(size=12)) for i, (x, _) in enumerate(SHARDS)]


@EXPECTS_QUARANTINE
@pytest.mark.parametrize("schedule", [Synchronous(rounds=30), Sequential(passes=30), Asynchronous(updates=150)])
@pytest.mark.parametrize("lie", [1e300, -1e300, 1e12, -1e12, 1e5, -1e5, "flipped"])
def test_23_hyperparameters_move_no_further_than_honest_sites_take_them(schedule, lie):
    def gradient(update):
        return {n: -30 * v if lie == "flipped" else lie for n, v in update.hyper_gradient.items()}

    learn = {"hyper": pt.LearnHyper("noise"), "model": LINEAR, "shards": LINES}
    steered = fit(lying(hyper_gradient=gradient), schedule, **learn)
    honest = fit(None, schedule, **(learn | {"shards": [LINES[site] for site in OTHERS]}))
    where, wanted = (math.log(result.hyper["noise"]) for result in (steered, honest))
    # On the way that the others take, from log 1 = 0; but for first steps, before anything is known of the site.
    ways = [math.log(row["hyper.noise"]) for row in steered.history]
    lowest = min(math.log(row["hyper.noise"]) for row in honest.history)
    assert lowest - 0.2 <= min(ways)
    assert max(ways) <= 0.15
    if not isinstance(schedule, Asynchronous):  # where all have to report for a step, and there were fewer of them
        assert where == pytest.approx(wanted, abs=0.2)


def in_turn(slope):
    """Gradients that change from one time to the next, as a function of the time and of the truth."""
    times = iter(range(1, 10**6))

    def gradient(update):
        time = next(times)
        return {name: slope(time, value) for name, value in update.hyper_gradient.items()}

    return gradient


ADAPTIVE = {
    "two sizes": lambda time, true: 1e3 if time % 2 else 1e2,
    "two sizes, downwards": lambda time, true: -1e3 if time % 2 else -1e2,
    "large, then nothing": lambda time, true: 1e3 if time % 2 else 0.0,
    "large, then honest": lambda time, true: 1e3 if time % 2 else true,
    "far down, then honest": lambda time, true: -1e3 if time % 2 else true,
    "around the truth": lambda time, true: true + (1e3 if time % 2 else -1e3),
    "three sizes that cancel": lambda time, true: [1e3, 1e3, -2e3][time % 3],
    "falling": lambda time, true: 1e4 * 0.9**time,
    "growing": lambda time, true: 1.3**time,
    "growing downwards": lambda time, true: -(1.3**time),
    "honest for long": lambda time, true: true if time < 15 else 1e3,
    "honest for long, then two sizes": lambda time, true: true if time < 15 else 1e3 if time % 2 else 1e2,
    "three times honest, three times not": lambda time, true: true if (time // 3) % 2 else 3e2,
    "at random": lambda time, true: true + 1e3 * np.random.default_rng(time).normal(),
    "off by the same": lambda time, true: true + 50,
    "the other way": lambda time, true: -3 * true,
}


@EXPECTS_QUARANTINE
@pytest.mark.parametrize("schedule", [Synchronous(rounds=30), Sequential(passes=30), Asynchronous(updates=150)])
@pytest.mark.parametrize("slope", ADAPTIVE.values(), ids=ADAPTIVE)
def test_23_nor_by_gradients_that_change_from_one_time_to_the_next(schedule, slope):
    """With honest log likelihoods: slopes that values do not follow, or that move without a cause, do not count."""
    learn, found = {"hyper": pt.LearnHyper("noise"), "model": LINEAR, "shards": LINES}, []
    steered = fit(lying(hyper_gradient=in_turn(slope)), schedule, callbacks=[found.append], **learn)
    honest = fit(None, schedule, **(learn | {"shards": [LINES[site] for site in OTHERS]}))
    ways = [math.log(row["hyper.noise"]) for row in steered.history]
    wanted = [math.log(row["hyper.noise"]) for row in honest.history]
    assert min(wanted) - 0.2 <= min(ways)
    assert max(ways) <= 0.15
    if not isinstance(schedule, Asynchronous):  # where all have to report for a step, and there were fewer of them
        assert ways[-1] == pytest.approx(wanted[-1], abs=0.2)
    problems = [words for event in found for words in event.problems]
    assert problems
    assert all(words.startswith(f"site {BAD}: ") for words in problems)
    assert any("quarantined" in words for words in problems)


@EXPECTS_QUARANTINE
@pytest.mark.filterwarnings("ignore:the last round had a problem")
@pytest.mark.parametrize("schedule", [Synchronous(rounds=30), Sequential(passes=30), Asynchronous(updates=150)])
def test_23_gradients_that_swing_by_little_slow_down_but_do_not_steer(schedule):
    """So much could be true of a site of its size for a while; nothing goes where the others would not have gone."""
    slope = in_turn(lambda time, true: true + (1e2 if time % 2 else -1e2))
    steered = fit(lying(hyper_gradient=slope), schedule, hyper=pt.LearnHyper("noise"), model=LINEAR, shards=LINES)
    ways = [math.log(row["hyper.noise"]) for row in steered.history]
    assert -2.1 <= min(ways) < -0.5  # the others alone go down to -1.98
    assert max(ways) <= 0.15


@EXPECTS_QUARANTINE
def test_23_a_hyperparameter_of_the_prior_alone_has_no_gradient_at_a_site():
    """One that is made up would let another be made up beside it, so that both together agree with the values."""

    def gradient(update):
        return update.hyper_gradient | {"prior_scale": 30.0}

    learn, found = {"hyper": pt.LearnHyper(), "model": LINEAR, "shards": LINES}, []
    fit(lying(hyper_gradient=gradient), Synchronous(rounds=10), callbacks=[found.append], **learn)
    assert any("one of which the others have none" in words for event in found for words in event.problems)


SIZES = [5, 12, 50, 500, 5000]


@pytest.mark.parametrize("schedule", [Synchronous(rounds=20), Sequential(passes=12), Asynchronous(updates=60)])
@pytest.mark.parametrize("start", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("noisy", [None, 0, 4])
def test_23_honest_sites_of_all_sizes_are_not_doubted(schedule, start, noisy):
    """From 5 rows to 5000, one with ten times the noise; what is learnt is learnt from all of them."""
    generator, lines = np.random.default_rng(3), []
    for site, rows in enumerate(SIZES):
        x = generator.normal(size=(rows, 2))
        lines.append((x, x @ [1.0, -0.5] + (2.0 if site == noisy else 0.2) * generator.normal(size=rows)))
    model = pt.models.LinearRegression(features=2, noise=start)
    result = fit(None, schedule, model=model, shards=lines, hyper=pt.LearnHyper("noise"))
    assert not any(row["problem"] for row in result.history)


def test_23_a_site_that_is_away_still_counts_with_its_latest_share():
    """Its factor is in the posterior, so its data count; the others alone would make the noise 0.21."""
    lines = [(x, y + (GENERATOR.normal(size=12) if site == BAD else 0.0)) for site, (x, y) in enumerate(LINES)]
    learn = {"hyper": pt.LearnHyper("noise"), "model": LINEAR, "schedule": Synchronous(rounds=60)}
    everybody = fit(shards=lines, **learn).hyper["noise"]
    others = fit(shards=[lines[site] for site in OTHERS], **learn).hyper["noise"]
    engine = Chaos()

    def leave(event):
        if event.fold == 30:
            engine.notices.append(Notice(BAD, "away", "asleep"))

    away = fit(engine, shards=lines, callbacks=[leave], **learn).hyper["noise"]
    assert everybody > 1.5 * others
    assert away == pytest.approx(everybody, rel=0.05)


def random_change(prior, seed, size):
    """Noise of that size; symmetric where matrices are."""
    generator = np.random.default_rng(seed)
    noise = jax.tree.map(lambda a: size * generator.normal(size=np.shape(a)), prior)
    return jax.tree.map(lambda a: 0.5 * (a + np.swapaxes(a, -1, -2)) if _is_matrix(a) else a, noise)


def _is_matrix(array):
    return array.ndim >= 2 and array.shape[-1] == array.shape[-2]


@every_family
@pytest.mark.parametrize("size", [0.5, 5.0, 1e3, 1e9])
def test_24_the_divergence_of_a_fold_is_within_the_limit(prior, size):
    """Measured afterwards, for one site and for several at once."""
    if isinstance(prior, Independent):
        prior = PRIORS["Gamma"]
    for seed in range(4):
        for number in (1, 4):
            trust, ledger = pt.server.rules.limits.Trust(Limits(change=1.0)), Ledger(prior, 4)
            changes = [random_change(prior, 10 * seed + i, size) for i in range(number)]

            def temper(stack, _, trust=trust, ledger=ledger, number=number):
                return stack.scale_rows(trust.shares(list(range(number)), ledger.posterior, stack))

            before = ledger.posterior
            allowed = lambda new, before=before, trust=trust: trust.allows(before, new)  # noqa: E731
            folded(ledger, changes, temper=temper, allowed=allowed)
            assert ledger.posterior.is_proper()
            assert divergence(ledger.posterior, before) <= 1.0


def test_24_what_is_improper_is_not_near():
    """The formula of the divergence gives small and even negative numbers there."""
    prior = PRIORS["Gamma"]
    assert divergence(Gamma(prior.shape_minus_one - 9.5, prior.rate), prior) == np.inf
    assert divergence(prior, prior) == pytest.approx(0.0, abs=1e-12)


@EXPECTS_QUARANTINE
@every_schedule
@pytest.mark.filterwarnings("ignore:the last round had a problem")
def test_24_a_limit_over_a_run_holds_for_each_site(schedule, tmp_path):
    """A site that drifts, never so far at once that it is struck, is stopped; where it had got to is known."""
    engine = lying(change=lambda update: jax.tree.map(lambda a: a + 2.0 * np.sign(a), update.change))
    limits = Limits(change=3.0, total=6.0)
    found = []
    result = fit(engine, schedule, damping=0.3, limits=limits, run_dir=tmp_path, callbacks=[found.append])
    assert max(event.change for event in found) <= 3.0
    assert sum(event.change for event in found if event.sites == (BAD,)) <= 6.0
    (notice,) = read_notices(tmp_path)
    assert (notice.site, notice.kind) == (BAD, "quarantined")
    assert "all of 6 nats" in notice.reason
    again = fit(engine, schedule, damping=0.3, limits=limits, run_dir=tmp_path, resume=True)
    assert again.fingerprint == result.fingerprint


@pytest.mark.parametrize("schedule", [Synchronous(rounds=12), Sequential(passes=12), Asynchronous(updates=60)])
@pytest.mark.filterwarnings("ignore:the last round had a problem")
@pytest.mark.parametrize("custody", ["open", "shared"])
@pytest.mark.parametrize("largest", [0.5, 5.0])
def test_24_a_fold_is_within_the_limit_with_its_step_of_hyperparameters(schedule, custody, largest):
    """The prior's own scale is learnt, and moves the posterior too."""
    found = []
    learn = {"hyper": pt.LearnHyper(first_step=largest, largest_step=largest), "model": LINEAR, "shards": LINES}
    fit(None, schedule, limits=Limits(change=0.2), custody=custody, callbacks=[found.append], **learn)
    ways = [event.change for event in found]
    assert max(ways) <= 0.2
    assert sum(ways) > 0.2
    assert found[-1].hyper != LINEAR.hyper


@dataclasses.dataclass
class Failing(InProcess):
    """Some sites say that they can work, and fail every task."""

    failing: tuple[int, ...] = tuple(range(5))

    def open(self, job, shards):
        super().open(job, shards)
        self.told = []

    def submit(self, tasks, at):
        for task in tasks:
            if task.site in self.failing:
                self.told += [Notice(task.site, "away", "cannot read its table"), Notice(task.site, "back")]
        super().submit([task for task in tasks if task.site not in self.failing], at)

    def collect(self):
        told, self.told = self.told, []
        return told or super().collect()


SHORT = (
    Synchronous(rounds=3),
    Sequential(passes=3),
    Sequential(passes=3, together=True),
    RandomOrder(passes=3),
    Priority(updates=9),
    Asynchronous(updates=9),
)


@pytest.mark.parametrize("schedule", SHORT)
def test_25_sites_that_fail_every_task_stall_a_run(schedule, monkeypatch):
    monkeypatch.setattr(pt.server.inbox, "FRUITLESS", 20)
    with pytest.raises(Stalled, match="tasks in a row came to nothing.*cannot read its table"):
        fit(Failing(), schedule)


def test_25_no_run_finishes_without_a_fold():
    with pytest.raises(Stalled, match="without a single update"):
        fit(Failing(), OnePass())


@pytest.mark.parametrize("schedule", [Synchronous(rounds=20), Sequential(passes=20), Asynchronous(updates=80)])
def test_25_rounds_that_nobody_answered_do_not_count(schedule):
    """One site always fails: the others have all their rounds. All fail at first: nothing is lost."""
    some = fit(Failing(failing=(BAD,)), schedule)
    without = fit(shards=[SHARDS[site] for site in OTHERS], schedule=schedule)
    np.testing.assert_allclose(some.posterior.location, without.posterior.location, atol=1e-3)


def test_25_a_round_in_which_all_fail_is_asked_for_again():
    class Mended(InProcess):
        failed = False

        def collect(self):
            if self.failed:
                return super().collect()
            self.failed, self._queue = True, []
            return [Notice(site, "dropped", "was restarted") for site in range(5)]

    assert fit(Mended(), Synchronous(rounds=3)).fingerprint == fit(None, Synchronous(rounds=3)).fingerprint


def test_25_an_update_of_a_site_that_was_just_retired_is_refused():
    """Both come at once, as they may from an operator and a network."""

    class Both(Chaos):
        def collect(self):
            found = super().collect()
            if isinstance(found[0], Update) and found[0].site == 3 and found[0].version == 0:
                return [Notice(3, "retired"), *found]
            return found

    words = []
    result = fit(Both(), Synchronous(rounds=4), callbacks=[lambda event: words.extend(event.refused)])
    assert "site 3: its task had been withdrawn" in words
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(result.factors[3]))


def test_events_say_when_a_run_has_settled():
    found = list(events(MODEL, SHARDS, schedule=Synchronous(rounds=48, settled=1e-6)))
    assert len(found) < 48
    assert [event.settled for event in found] == [False] * (len(found) - 1) + [True]


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    time = monotonic

    def sleep(self, seconds):
        self.now += seconds


class Fleet:
    """Sites of a federation that say they can work, and fail every task."""

    def __init__(self):
        self.sent = {}

    def get_nodes(self):
        return [SimpleNamespace(name=name, node_id=i + 1) for i, name in enumerate("ab")]

    def push_messages(self, messages):
        numbers = [f"{len(self.sent) + i}" for i in range(len(messages))]
        self.sent.update(zip(numbers, [m.metadata.message_type for m in messages], strict=True))
        return numbers

    def pull_messages(self, numbers):
        return [
            SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=number),
                has_content=lambda: True,
                has_error=lambda: False,
                content={RECORD: {"payload": np.float64(20).tobytes()} if "about" in self.sent[number] else FAILED},
            )
            for number in numbers
        ]


FAILED = {"error": "cannot read its table"}


def test_25_patience_counts_good_updates_alone(monkeypatch):
    from partita.engines import flower, peers

    def message(content, dst_node_id, message_type, ttl):
        return SimpleNamespace(metadata=SimpleNamespace(message_type=message_type))

    clock, fleet = Clock(), Fleet()
    monkeypatch.setattr(flower, "time", clock)
    monkeypatch.setattr(peers, "time", clock)
    monkeypatch.setitem(sys.modules, "flwr", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "flwr.app", SimpleNamespace(ConfigRecord=dict, RecordDict=dict, Message=message))
    with pytest.raises(Stalled, match="no update for 60 s.*cannot read its table"):
        pt.fit(MODEL, ["a", "b"], engine=flower.Flower(fleet, patience=60.0), schedule=Synchronous(rounds=3))
    # They were asked again and again, and said each time that they could work.
    assert sum("about" in kind for kind in fleet.sent.values()) > 4
    assert clock.now < 120


@EXPECTS_QUARANTINE
@pytest.mark.parametrize("learn", [None, pt.LearnHyper("noise")], ids=["nothing", "noise"])
def test_11_gradients_that_nobody_asked_for_are_refused(learn, tmp_path):
    """They would be looked up among the model's hyperparameters, and be in the journal for ever."""
    engine = lying(hyper_gradient=lambda update: {**update.hyper_gradient, "\x1b[31mother": 1.0})
    run = {"schedule": Synchronous(rounds=4), "model": LINEAR, "shards": LINES, "hyper": learn, "run_dir": tmp_path}
    words = []
    result = fit(engine, callbacks=[lambda event: words.extend(event.refused)], **run)
    assert [f"site {BAD}: hyper: has gradients of hyperparameters that are not asked for"] == words
    assert fit(engine, resume=True, **run).fingerprint == result.fingerprint


@pytest.mark.filterwarnings("ignore:the last round had a problem")
@pytest.mark.parametrize("schedule", [Synchronous(rounds=40), Sequential(passes=20)])
@pytest.mark.parametrize("size", [0.5, 5.0, 50.0])
def test_22_nothing_is_taken_of_a_site_that_says_it_found_no_number(schedule, size):
    """Its changes could be anything: nothing that it says can be compared with them."""
    wiggle = wiggled(WIGGLES["alternating"], size, 0)
    engine = lying(change=wiggle, outcome=lambda _: 3, expected_log_prob=lambda _: math.nan)
    found = []
    result = fit(engine, schedule, callbacks=[found.append])
    without = fit(schedule=schedule, shards=[SHARDS[site] for site in OTHERS])
    np.testing.assert_allclose(result.posterior.location, without.posterior.location, atol=1e-3)
    assert sum(event.taken_back for event in found) <= 2
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(result.factors[BAD]))


@EXPECTS_QUARANTINE
@pytest.mark.filterwarnings("ignore:the last round had a problem")
@pytest.mark.parametrize("size", [1e20, 1e160])
@pytest.mark.parametrize("schedule", [Synchronous(rounds=15), Sequential(passes=8), Asynchronous(updates=60)])
def test_21_nor_is_anything_buried_beside_a_location(schedule, size):
    """The posterior is the prior times all factors, to a small part of its deviation."""
    for model, shards in ((LINEAR, LINES), (MODEL, SHARDS)):

        def far(update):
            leaves, structure = jax.tree.flatten(jax.tree.map(np.array, update.change))
            leaves[0] += size
            return jax.tree.unflatten(structure, leaves)

        result = fit(lying(change=far), schedule, model=model, shards=shards)
        product = result.prior
        for factor in result.factors:
            product = product * factor
        assert np.all(np.abs(result.posterior.location - product.location) < 1e-2 * product.scale)
        without = fit(schedule=Synchronous(rounds=40), model=model, shards=[shards[site] for site in OTHERS])
        assert np.all(np.abs(result.posterior.location - without.posterior.location) < without.posterior.scale)


def test_04_gradients_are_read_in_one_order():
    from partita.wire.messages import decode_update, encode_update

    prior = PRIORS["MeanField"]
    sent = Update(0, 0, prior, 0.0, hyper_gradient=dict.fromkeys("dacbfe", 1.0))
    orders = {tuple(decode_update(0, 0, encode_update(sent), prior).hyper_gradient) for _ in range(30)}
    assert orders == {tuple("abcdef")}


LIES = {
    "ten times as much": lambda change: change**10.0,
    "the contrary": lambda change: change**-3.0,
    "elsewhere": lambda change: type(change)(change.precision_times_location + 100.0, change.precision),
}


@EXPECTS_QUARANTINE
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize(
    "schedule",
    [Synchronous(rounds=60), Sequential(passes=60), Asynchronous(updates=400)],
    ids=lambda s: type(s).__name__,
)
def test_22_messages_that_are_lies_cost_rounds_and_nothing_else(schedule, lie):
    """The server goes where messages lead: whoever's are not borne out by its values has no say in the end."""
    model = pt.models.LogisticRegression(features=2, posterior="mean-field")
    result = fit(lying(change=lambda update: lie(update.change)), schedule, model=model)
    assert set(result.quarantined) == {BAD}
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(result.factors[BAD]))
    without = fit(schedule=Synchronous(rounds=40), model=model, shards=[SHARDS[site] for site in OTHERS])
    assert np.all(np.abs(result.posterior.location - without.posterior.location) < 0.1 * without.posterior.scale)
