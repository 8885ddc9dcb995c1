"""Invariants 1 to 3: the posterior is the product, everything stays proper, refusals change nothing."""

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from partita.errors import (
    FamilyMismatch,
    ImproperDensity,
    InputError,
    MalformedUpdate,
    NotOutstanding,
    PartitaError,
)
from partita.families import Dirichlet, Gamma, Gaussian, MeanField
from partita.families.cone import REACH
from partita.server import groups
from partita.server.ledger import Ledger
from partita.server.room import TOGETHER
from partita.server.shared_ledger import SharedLedger
from partita.wire.tasks import Update

SITES = 4
PRIORS = {
    "MeanField": MeanField(np.array([0.3, -1.0, 0.0]), np.array([1.0, 0.5, 2.0])),
    "Gaussian": Gaussian(np.array([0.3, -1.0, 0.0]), np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 1.5]])),
    "Gamma": Gamma.from_shape_rate(np.array([2.0, 0.7]), np.array([1.0, 3.0])),
    "Dirichlet": Dirichlet.from_concentration(np.array([1.0, 0.5, 4.0])),
}
every_family = pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
QUICK = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)


def margin(q):
    """How far inside its domain a density is, without Partita: the smallest number or eigenvalue."""
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(q)):
        return -np.inf
    match q:
        case MeanField():
            return q.precision.min()
        case Gaussian():
            return np.linalg.eigvalsh(0.5 * q.precision + 0.5 * q.precision.T)[0]
        case Gamma():
            return min((q.shape_minus_one + 1).min(), q.rate.min())
        case Dirichlet():
            return (q.concentration_minus_one + 1).min()


def everything(ledger):
    return [ledger.posterior, *(ledger.cavity(site) for site in range(ledger.sites))]


def random_change(prior, seed, size, sign=0):
    """Noise of that size in every parameter; with a sign, only up or only down (definite, for a matrix)."""
    generator = np.random.default_rng(seed)
    change = jax.tree.map(lambda a: generator.normal(size=a.shape), prior)
    if isinstance(prior, Gaussian):
        half = generator.normal(size=prior.precision.shape)
        change = Gaussian(change.precision_times_location, half @ half.T * sign if sign else half + half.T)
    elif sign:
        change = jax.tree.map(lambda a: sign * abs(a), change)
    return jax.tree.map(lambda a: a * size, change)


def scaled(prior, power):
    """A prior that is surer, or less sure; always proper."""
    match prior:
        case Gamma():
            return Gamma.from_shape_rate(prior.shape * power, prior.rate * power)
        case Dirichlet():
            return Dirichlet.from_concentration(prior.concentration * power)
    return prior**power


def filled(prior, seed=0, sites=SITES, size=3.0):
    """A ledger whose factors are all different."""
    ledger = Ledger(prior, sites)
    for site in range(sites):
        answer(ledger, site, random_change(prior, seed + site, size, 1))
    return ledger


def answer(ledger, site, change):
    task = ledger.dispatch([site], {})[0]
    return ledger.fold([Update(site, task.version, change, 0.0)])


def state(ledger):
    """Every bit that a refusal must leave alone."""
    factors = [ledger.factor(site) for site in range(ledger.sites)]
    leaves = jax.tree.leaves((ledger.prior, ledger.posterior, factors))
    return [np.asarray(leaf).tobytes() for leaf in leaves], ledger.version, dict(ledger.outstanding)


def spoiled(change, how):
    first, *rest = jax.tree.leaves(change)
    if how in ("nan", "inf", "-inf"):
        first = first.copy()
        first.flat[-1] = float(how)
    elif how == "shape":
        first = np.append(first, 1.0)
    elif how == "dtype":
        first = first.astype(np.float32)
    elif how == "integers":
        first = first.astype(np.int64)
    elif how == "number":
        first = 1.0
    elif how == "family":
        return Dirichlet(first) if not isinstance(change, Dirichlet) else MeanField(first, first)
    return jax.tree.unflatten(jax.tree.structure(change), [first, *rest])


DEFECTS = ("nan", "inf", "-inf", "shape", "dtype", "integers", "number", "family")
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.sampled_from([1e-6, 0.1, 1.0, 10.0, 1e4])


class LedgerMachine(RuleBasedStateMachine):
    """Whatever messages come, in whatever order."""

    prior = PRIORS["MeanField"]

    @initialize(sites=st.integers(1, 5))
    def begin(self, sites):
        self.ledger = Ledger(self.prior, sites)
        self.delivered = []
        self.largest = 10.0

    def make(self, site, change):
        return Update(site, self.ledger.outstanding[site], change, 0.0)

    def deliver(self, updates):
        version = self.ledger.version
        shares = self.ledger.fold(updates)
        assert np.all((shares >= 0) & (shares <= 1))
        assert self.ledger.version == version + len(updates)
        assert not {update.site for update in updates} & set(self.ledger.outstanding)
        self.delivered += updates
        self.largest += sum(
            abs(leaf).max()
            for update, share in zip(updates, shares, strict=True)
            for leaf in jax.tree.leaves(update.change**share)
        )

    @rule(choice=SEEDS)
    def dispatch(self, choice):
        site = choice % self.ledger.sites
        task = self.ledger.dispatch([site], {})[0]
        assert (task.site, task.version) == (site, self.ledger.version)
        assert margin(task.begin / task.factor) > 0

    @precondition(lambda self: self.ledger.outstanding)
    @rule(choice=SEEDS, size=SIZES, sign=st.sampled_from([-1, 0, 1]))
    def fold_one(self, choice, size, sign):
        site = sorted(self.ledger.outstanding)[choice % len(self.ledger.outstanding)]
        self.deliver([self.make(site, random_change(self.prior, choice, size, sign))])

    @precondition(lambda self: self.ledger.outstanding)
    @rule(choice=SEEDS, exponent=st.integers(10, 300))
    def fold_huge_negative(self, choice, exponent):
        site = sorted(self.ledger.outstanding)[choice % len(self.ledger.outstanding)]
        self.deliver([self.make(site, random_change(self.prior, choice, 10.0**exponent, -1))])

    @precondition(lambda self: len(self.ledger.outstanding) > 1)
    @rule(data=st.data(), size=SIZES, seed=SEEDS)
    def fold_batch(self, data, size, seed):
        sites = data.draw(st.lists(st.sampled_from(sorted(self.ledger.outstanding)), min_size=2, unique=True))
        signs = data.draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=len(sites), max_size=len(sites)))
        changes = [random_change(self.prior, seed + s, size, sign) for s, sign in zip(sites, signs, strict=True)]
        self.deliver([self.make(site, change) for site, change in zip(sites, changes, strict=True)])

    @rule()
    def dispatch_all(self):
        for site in range(self.ledger.sites):
            self.ledger.dispatch([site], {})[0]

    @precondition(lambda self: self.delivered)
    @rule(choice=SEEDS)
    def duplicate(self, choice):
        update = self.delivered[choice % len(self.delivered)]
        if self.ledger.outstanding.get(update.site) != update.version:
            self.refused(NotOutstanding, [update])

    @rule(site=st.integers(-1, 6), lag=st.integers(-2, 3))
    def stale_or_unknown(self, site, lag):
        update = Update(site, self.ledger.version - lag, self.prior, 0.0)
        if self.ledger.outstanding.get(site) != update.version:
            self.refused(NotOutstanding, [update])

    @precondition(lambda self: self.ledger.outstanding)
    @rule(choice=SEEDS, how=st.sampled_from([how for how in DEFECTS if how != "number"]))
    def malformed_among_good_ones(self, choice, how):
        sites = sorted(self.ledger.outstanding)
        bad = sites[choice % len(sites)]
        change = random_change(self.prior, choice, 1.0)
        updates = [self.make(s, spoiled(change, how) if s == bad else change) for s in sites]
        assert self.refused(MalformedUpdate, updates).site == bad

    def refused(self, error, updates):
        before = state(self.ledger)
        with pytest.raises(error) as caught:
            self.ledger.fold(updates)
        assert state(self.ledger) == before
        return caught.value

    @rule(power=st.floats(0.2, 5.0))
    def replace_prior(self, power):
        self.ledger.replace_prior(scaled(self.prior, power))
        assert margin(self.ledger.prior) > 0

    @invariant()
    def posterior_is_the_product(self):
        factors = [self.ledger.factor(site) for site in range(self.ledger.sites)]
        product = jax.tree.map(lambda *leaves: sum(leaves), self.ledger.prior, *factors)
        for kept, exact in zip(jax.tree.leaves(self.ledger.posterior), jax.tree.leaves(product), strict=True):
            np.testing.assert_allclose(kept, exact, rtol=0, atol=1e-13 * self.largest)
        same = jax.tree.map(lambda a, b: abs(a - b).max(), self.ledger.recomputed_posterior(), product)
        assert max(jax.tree.leaves(same)) <= 1e-13 * self.largest

    @invariant()
    def all_is_proper(self):
        assert min(margin(q) for q in everything(self.ledger)) > 0


# 12,000 steps in all. Without shrinking, which takes minutes: add Phase.shrink to look into a failure.
MACHINE = settings(
    QUICK,
    max_examples=60,
    stateful_step_count=50,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.filter_too_much],
)
for _name, _prior in PRIORS.items():
    _machine = type(f"{_name}Machine", (LedgerMachine,), {"prior": _prior})
    _machine.TestCase.settings = MACHINE
    globals()[f"Test{_name}"] = type(f"Test{_name}", (_machine.TestCase,), {})


@pytest.mark.parametrize("sites", [0, -1])
def test_a_ledger_needs_a_site(sites):
    with pytest.raises(InputError, match="at least one site"):
        Ledger(PRIORS["Gamma"], sites)


@every_family
def test_a_ledger_needs_a_proper_prior(prior):
    with pytest.raises(ImproperDensity, match="prior"):
        Ledger(prior**-3.0, 2)


@every_family
def test_an_update_replaces_the_factor_and_nothing_else(prior):
    ledger = filled(prior)
    change, before = random_change(prior, 99, 0.1, 1), [ledger.factor(site) for site in range(SITES)]
    assert answer(ledger, 2, change) == 1
    for site in range(SITES):
        expected = before[site] * change if site == 2 else before[site]
        assert jax.tree.all(jax.tree.map(np.array_equal, ledger.factor(site), expected))


@every_family
def test_damping_is_applied_before_the_fold(prior):
    ledger, change = Ledger(prior, 3), random_change(prior, 1, 1.0, 1)
    task = ledger.dispatch([1], {})[0]
    assert ledger.fold([Update(1, task.version, change, 0.0)], lambda changes, factors: changes**0.25) == 1
    assert jax.tree.all(jax.tree.map(np.allclose, ledger.factor(1), change**0.25))


@every_family
@pytest.mark.parametrize("how", DEFECTS)
def test_malformed_updates_name_site_and_field(prior, how):
    ledger = filled(prior)
    version = ledger.dispatch([3], {})[0].version
    before = state(ledger)
    with pytest.raises(MalformedUpdate, match="site 3") as caught:
        ledger.fold([Update(3, version, spoiled(random_change(prior, 0, 1.0), how), 0.0)])
    first = next(iter(vars(prior)))
    assert (type(prior).__name__ if how == "family" else f"change.{first}") in str(caught.value)
    assert state(ledger) == before


def test_a_matrix_that_is_not_symmetric_cannot_make_the_posterior_improper():
    """NumPy reads one triangle, JAX the average of both: both have to see a proper density."""
    prior = PRIORS["Gaussian"]
    ledger, skewed = Ledger(prior, 2), np.zeros((3, 3))
    skewed[0, 2] = 100.0
    before, version = state(ledger), ledger.dispatch([0], {})[0].version
    try:
        ledger.fold([Update(0, version, Gaussian(np.zeros(3), skewed), 0.0)])
    except MalformedUpdate:
        assert state(ledger)[0] == before[0]
    assert all(q.is_proper() and margin(q) > 0 for q in everything(ledger))


def test_several_updates_of_one_site_in_one_fold_are_refused():
    prior = PRIORS["MeanField"]
    ledger = filled(prior)
    updates = [Update(s, ledger.dispatch([s], {})[0].version, random_change(prior, s, 0.1), 0.0) for s in (0, 1)]
    before = state(ledger)
    with pytest.raises(NotOutstanding, match="site 1") as caught:
        ledger.fold([*updates, updates[1]])
    assert caught.value.site == 1
    assert state(ledger) == before


def test_an_update_without_a_version_answers_nothing():
    prior = PRIORS["MeanField"]
    ledger = filled(prior)
    before = state(ledger)
    with pytest.raises(NotOutstanding, match="site 2"):
        ledger.fold([Update(2, None, random_change(prior, 0, 0.1), 0.0)])
    assert state(ledger) == before


def test_a_second_task_supersedes_the_first():
    prior = PRIORS["MeanField"]
    ledger, change = filled(prior), random_change(prior, 0, 0.1, 1)
    old = ledger.dispatch([0], {})[0]
    answer(ledger, 1, change)
    new = ledger.dispatch([0], {})[0]
    with pytest.raises(NotOutstanding, match="site 0"):
        ledger.fold([Update(0, old.version, change, 0.0)])
    assert ledger.fold([Update(0, new.version, change, 0.0)]) == 1


@pytest.mark.parametrize("site", [-1, SITES])
def test_only_sites_that_exist_are_asked(site):
    """A site that is an alias of another would count its data twice."""
    ledger = Ledger(PRIORS["MeanField"], SITES)
    with pytest.raises((PartitaError, IndexError)):
        ledger.dispatch([site], {})[0]
    assert ledger.outstanding == {}


@every_family
@pytest.mark.parametrize("exponent", [10, 15, 17, 20, 100, 307])
@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_huge_finite_changes_leave_everything_proper(prior, exponent, sign):
    """Also where the prior is too small to be seen beside them: taken in part, or refused."""
    ledger = filled(prior)
    for round_ in range(3):
        for site in range(SITES):
            change = random_change(prior, 10 * round_ + site, 10.0**exponent, sign)
            version, before = ledger.dispatch([site], {})[0].version, state(ledger)
            try:
                assert 0 <= ledger.fold([Update(site, version, change, 0.0)]) <= 1
            except PartitaError:
                assert state(ledger) == before
            assert min(margin(q) for q in everything(ledger)) > 0


@every_family
@pytest.mark.parametrize("together", [1, 2, SITES])
def test_many_attacks_at_the_boundary_leave_everything_proper(prior, together):
    """Each takes nine tenths of what is left, until rounding is all that is left."""
    ledger = filled(prior)
    for number in range(40):
        sites = [(number + i) % SITES for i in range(together)]
        updates = [
            Update(s, ledger.dispatch([s], {})[0].version, random_change(prior, number + s, 100.0, -1), 0.0)
            for s in sites
        ]
        before = state(ledger)
        try:
            ledger.fold(updates)
        except PartitaError:
            assert state(ledger) == before
        assert min(margin(q) for q in everything(ledger)) > 0, f"after {number + 1} folds"


def test_cavities_that_all_but_vanish_leave_nothing_to_bound():
    """Noisy matrices of both signs, whole, for long: rounding then makes a common bound indefinite."""
    generator, size = np.random.default_rng(14), 4
    ledger = Ledger(Gaussian.from_moments(np.zeros(size), np.eye(size)), 4)
    for _ in range(200):
        site = int(generator.integers(4))
        A = generator.normal(size=(size, size)) * 10 ** generator.uniform(-1, 3)
        matrix = A @ A.T * (1 if generator.random() < 0.5 else -1)
        version = ledger.dispatch([site], {})[0].version
        ledger.fold([Update(site, version, Gaussian(generator.normal(size=size), matrix), 0.0)])
    assert min(margin(q) for q in everything(ledger)) > 0


def moved(ledger, changes, share):
    """Posterior and cavities after that share of the changes, by site, computed afresh."""
    total = jax.tree.map(lambda *leaves: sum(leaves), *changes.values())
    posterior = ledger.posterior * total**share
    factors = {s: ledger.factor(s) * changes[s] ** share if s in changes else ledger.factor(s) for s in range(SITES)}
    return [posterior, *(posterior / factor for factor in factors.values())]


def boundary(ledger, changes):
    """The share at which something becomes improper, by bisection; at most 2."""
    low, high = 0.0, 2.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        inside = min(margin(q) for q in moved(ledger, changes, middle)) > 0
        low, high = (middle, high) if inside else (low, middle)
    return low


@every_family
@settings(QUICK, max_examples=40)
@given(seed=SEEDS, size=st.sampled_from([0.3, 3.0, 30.0, 1e5]), site=st.integers(0, SITES - 1))
def test_the_largest_possible_share_is_accepted(prior, seed, size, site):
    ledger = filled(prior, seed % 1000)
    changes = {site: random_change(prior, seed + site, size, -1 if site % 2 else 0)}
    expected = min(1.0, REACH * boundary(ledger, changes))
    version = ledger.dispatch([site], {})[0].version
    assert ledger.fold([Update(site, version, changes[site], 0.0)]) == pytest.approx(expected, rel=1e-6)


@every_family
@settings(QUICK, max_examples=40)
@given(seed=SEEDS, size=st.sampled_from([0.3, 3.0, 30.0, 1e5]), together=st.integers(2, SITES))
def test_where_next_to_nothing_can_be_taken_of_all_each_site_has_a_share_of_its_own(prior, seed, size, together):
    """What could be taken of it as often as there are sites; one share of all, where that is not tiny."""
    ledger = filled(prior, seed % 1000)
    sites = np.random.default_rng(seed).permutation(SITES)[:together].tolist()
    changes = {s: random_change(prior, seed + s, size, -1 if s % 2 else 0) for s in sites}
    of_all = min(1.0, REACH * boundary(ledger, changes))
    own = [min(1.0, REACH * boundary(ledger, {s: changes[s] ** together})) for s in sites]
    updates = [Update(s, ledger.dispatch([s], {})[0].version, changes[s], 0.0) for s in sites]
    shares = ledger.fold(updates)
    assert shares == pytest.approx(of_all if of_all >= TOGETHER else own, rel=1e-6)
    assert margin(ledger.posterior) > 0


@every_family
@QUICK
@given(seed=SEEDS, size=st.sampled_from([1e-3, 1.0, 1e5]), together=st.integers(1, SITES))
def test_all_is_accepted_where_nothing_is_in_the_way(prior, seed, size, together):
    ledger = filled(prior, seed % 1000)
    versions = {site: ledger.dispatch([site], {})[0].version for site in range(together)}
    updates = [Update(s, v, random_change(prior, seed + s, size, 1), 0.0) for s, v in versions.items()]
    assert np.all(ledger.fold(updates) == 1)


@every_family
def test_a_prior_that_leaves_something_improper_is_not_taken(prior):
    ledger = Ledger(prior, 2)
    answer(ledger, 0, random_change(prior, 0, 50.0, -1))
    before = state(ledger)
    assert not ledger.replace_prior(scaled(prior, 0.01))
    assert state(ledger) == before


@every_family
def test_replacing_the_prior_is_whole_where_nothing_is_in_the_way(prior):
    ledger = filled(prior)
    assert ledger.replace_prior(scaled(prior, 1.5))
    assert jax.tree.all(jax.tree.map(np.allclose, ledger.prior, scaled(prior, 1.5)))
    assert jax.tree.all(jax.tree.map(np.allclose, ledger.posterior, ledger.recomputed_posterior()))


@every_family
def test_an_improper_prior_never_gets_in(prior):
    ledger = filled(prior, size=50.0)
    before = state(ledger)
    with pytest.raises(ImproperDensity, match="prior"):
        ledger.replace_prior(prior**-3.0)
    assert state(ledger) == before


def test_a_prior_of_another_family_is_refused():
    ledger = filled(PRIORS["MeanField"])
    before = state(ledger)
    with pytest.raises(FamilyMismatch):
        ledger.replace_prior(PRIORS["Gaussian"])
    assert state(ledger) == before


class CountingLedger(Ledger):
    """Counts the cavities that are looked at."""

    counted = 0

    def cavity(self, site):
        self.counted += 1
        return Ledger.cavity(self, site)


def cavities_per_fold(prior, sites):
    ledger, counts = CountingLedger(prior, sites), []
    for number in range(30):
        before = ledger.counted
        answer(ledger, number % 10, random_change(prior, number, 0.01 if number >= 10 else 5.0, number < 10))
        counts.append(ledger.counted - before)
    return counts


@every_family
def test_a_fold_costs_the_same_however_many_sites_there_are(prior):
    assert cavities_per_fold(prior, 10) == cavities_per_fold(prior, 2000)


@every_family
def test_a_shared_ledger_keeps_one_factor_however_many_sites_there_are(prior):
    ledger, expected = SharedLedger(prior, 2000), prior
    for number in range(5):
        change = random_change(prior, number, 0.3, True)
        expected = expected * change ** answer(ledger, 399 * number, change)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(ledger._factors)) == 0
    for a, b in zip(jax.tree.leaves(ledger.posterior), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    factors = ledger.factors()
    assert factors[0] is factors[1999]
    for q, c, t in zip(*map(jax.tree.leaves, (ledger.posterior, ledger.cavity(7), ledger.factor(7))), strict=True):
        np.testing.assert_allclose(c + t, q, rtol=1e-9, atol=1e-9)
    assert ledger.cavity(7).is_proper()


def test_a_shared_ledger_follows_its_prior():
    prior = PRIORS["Gaussian"]
    ledger = SharedLedger(prior, 3)
    answer(ledger, 0, prior**0.5)
    assert ledger.replace_prior(prior**0.25)
    np.testing.assert_allclose(ledger.posterior.precision, 0.75 * prior.precision)


@every_family
def test_a_shared_ledger_takes_what_keeps_its_posterior_proper(prior):
    ledger = SharedLedger(prior, 3)
    task = ledger.dispatch([0], {})[0]
    share = ledger.fold([Update(0, task.version, prior**-5.0, 0.0)])
    assert 0 < share < 1
    assert ledger.posterior.is_proper()
    assert ledger.cavity(1).is_proper()


def test_a_fold_of_many_honest_sites_under_a_wide_prior_looks_at_none_of_them_alone(monkeypatch):
    """Its cost would grow with the square of their number."""
    prior = Gaussian.from_moments(np.zeros(2), 1e10 * np.eye(2))
    ledger = Ledger(prior, 60)
    tasks = ledger.dispatch(range(60), {})
    change = Gaussian(np.ones(2), 5 * np.eye(2))
    looks = []
    monkeypatch.setattr(Ledger, "cavity", lambda self, site: looks.append(site))
    shares = ledger.fold([Update(task.site, task.version, change, 0.0) for task in tasks], least=1e-3)
    assert np.all(shares == 1)
    assert looks == []


@every_family
@pytest.mark.parametrize("scale", [0.01, 0.3, 30.0, 1e9])
@pytest.mark.parametrize("number", [1, 2, SITES])
def test_large_densities_are_folded_row_by_row_to_the_same_bits(monkeypatch, prior, scale, number):
    def fold_some(largest):
        monkeypatch.setattr(groups, "LARGE", largest)
        ledger, generator, shares = Ledger(prior, SITES), np.random.default_rng(0), []
        for first in range(6):
            sites = sorted({(first + i) % SITES for i in range(number)})
            ledger.dispatch(sites, {})
            changes = [jax.tree.map(lambda a: scale * generator.normal() * np.asarray(a), prior) for _ in sites]
            updates = [Update(site, ledger.version, change, 0.0) for site, change in zip(sites, changes, strict=True)]
            shares.append(ledger.fold(updates, least=1e-3))
        return [*jax.tree.leaves(ledger.posterior), *jax.tree.leaves(ledger.factors()), *shares]

    for one, other in zip(fold_some(1), fold_some(2**20), strict=True):
        assert np.array_equal(one, other)
