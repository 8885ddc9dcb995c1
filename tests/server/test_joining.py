"""Sites that join during a run: nothing changes by that, and it ends where a run with all of them does."""

from dataclasses import dataclass, field

import jax
import numpy as np
import pytest

import partita as pt
from partita.engines import InProcess
from partita.errors import CorruptStorage, EngineError
from partita.fitting import events
from partita.models import prior_of
from partita.server.ledger import Ledger
from partita.server.schedules import Asynchronous, OnePass, Priority, RandomOrder, Sequential, Synchronous
from partita.server.shared_ledger import SharedLedger
from partita.server.storage import read_history
from partita.solvers import Gradient
from partita.wire.engine import address
from partita.wire.messages import Notice

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(160, 2)) + np.repeat([[0.0], [0.5], [-0.5], [0.2]], 40, axis=0)
Y = (X @ [1.0, -0.7] + 0.5 * GENERATOR.logistic(size=160) > 0).astype(float)
SHARDS = [(X[40 * site : 40 * (site + 1)], Y[40 * site : 40 * (site + 1)]) for site in range(4)]
FIRST = 2


@dataclass
class Joining(InProcess):
    """The real engine, at which sites come when tasks of these versions have been handed out."""

    later: list = field(default_factory=list)
    at: tuple[int, ...] = ()
    sites: int = 0
    seen: int = 0

    def connect(self, shards, names=None, model=None):
        self.sites, self.joined, self.seen = len(shards), 0, 0
        super().connect([*shards, *self.later], names, model)

    def ask(self, question):
        return super().ask(address(question, self.sites))

    def submit(self, tasks, at):
        self.seen = max([self.seen, *(task.version for task in tasks)])
        super().submit(tasks, at)

    def collect(self):
        if self.joined < len(self.at) and self.seen >= self.at[self.joined]:
            return [Notice(self.sites, "joined", "de"[self.joined])]
        return super().collect()

    def join(self, site, name):
        assert (site, name) == (self.sites, "de"[self.joined])
        self.sites, self.joined = self.sites + 1, self.joined + 1


def engine(**settings):
    return Joining(later=SHARDS[FIRST:], at=(4, 9), **settings)


def model(posterior="full"):
    return pt.models.LogisticRegression(features=2, posterior=posterior)


RUNS = {
    "synchronous": {"schedule": Synchronous(rounds=60)},
    "1/M": {"schedule": Synchronous(rounds=90), "damping": "1/M"},
    "half": {"schedule": Synchronous(rounds=60), "damping": 0.3},
    "participation": {"schedule": Synchronous(rounds=150, participation=0.5)},
    "sequential": {"schedule": Sequential(passes=30)},
    "random order": {"schedule": RandomOrder(passes=30)},
    "priority": {"schedule": Priority(updates=120)},
    "asynchronous": {"schedule": Asynchronous(updates=300)},
    "asynchronous, damped": {"schedule": Asynchronous(updates=400), "damping": 0.3},
    "limits": {"schedule": Synchronous(rounds=60), "limits": pt.Limits(change=100.0, total=1e4, staleness=100)},
    "secants": {"posterior": "mean-field", "schedule": Synchronous(rounds=60)},
    "secants, nobody waits": {"posterior": "mean-field", "schedule": Asynchronous(updates=400)},
    "optimiser": {
        "posterior": "mean-field",
        "schedule": Synchronous(rounds=300),
        "damping": pt.rules.Optimiser(precision_rate=0.3),
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_it_ends_where_a_run_with_all_from_the_start_does(name):
    settings = dict(RUNS[name])
    kind = model(settings.pop("posterior", "full"))
    joined = pt.fit(kind, SHARDS[:FIRST], engine=engine(), **settings)
    whole = pt.fit(kind, SHARDS, **settings)
    assert len(joined.factors) == 4
    means = (jax.tree.leaves(found.posterior.mean()) for found in (joined, whole))
    for ours, theirs in zip(*means, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    assert joined.log_evidence == pytest.approx(whole.log_evidence, abs=1e-5)
    # Rounds are counted on, whatever their size.
    rounds = [row["round"] for row in joined.history]
    assert rounds == sorted(rounds)


def run(folder, resume, stop=None, **settings):
    posterior = settings.pop("posterior", "full")
    found = []
    for event in events(model(posterior), SHARDS[:FIRST], engine=engine(), run_dir=folder, resume=resume, **settings):
        found.append(event)
        if event.fold == stop:
            break
    return found


SHORT = {
    "synchronous": {"schedule": Synchronous(rounds=8)},
    "sequential": {"schedule": Sequential(passes=4)},
    "asynchronous": {"schedule": Asynchronous(updates=20)},
    "secants": {"posterior": "mean-field", "schedule": Synchronous(rounds=8)},
    "limits": {"schedule": Synchronous(rounds=8), "limits": pt.Limits(change=1.0, total=1e4, staleness=100)},
}


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5, 6])
def test_a_run_that_is_resumed_ends_in_the_same_bits(name, stop, tmp_path):
    """Stopped before a site joins, while it does, and after."""
    whole = run(tmp_path / "whole", False, **SHORT[name])
    run(tmp_path / "run", False, stop, **SHORT[name])
    rest = run(tmp_path / "run", True, **SHORT[name])
    assert len(rest) == len(whole)
    for ours, theirs in zip(rest, whole, strict=True):
        for a, b in zip(jax.tree.leaves(ours.posterior), jax.tree.leaves(theirs.posterior), strict=True):
            np.testing.assert_array_equal(a, b)
        assert (ours.sites, ours.round, ours.total) == (theirs.sites, theirs.round, theirs.total)
    assert max(site for event in whole for site in event.sites) == 3


def test_a_site_that_joins_after_the_last_fold_is_in_the_result(tmp_path):
    late = Joining(later=SHARDS[2:3], at=(4,))

    def fit(rounds, resume=False):
        return pt.fit(
            model(), SHARDS[:2], engine=late, schedule=Synchronous(rounds=rounds), run_dir=tmp_path, resume=resume
        )

    found = fit(3)
    assert len(found.factors) == 3
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(found.factors[2]))
    # It is asked when there are more rounds.
    assert any(np.any(leaf) for leaf in jax.tree.leaves(fit(5, resume=True).factors[2]))


@pytest.mark.parametrize("kind", [Ledger, SharedLedger])
def test_a_posterior_does_not_change_when_a_site_joins(kind):
    from partita.wire.tasks import Update

    here = model()
    prior = prior_of(here, here.hyper)
    ledger = kind(prior, 2)
    for number in (1.0, 2.0):
        ledger.dispatch([0, 1], {})
        changes = [prior**number, prior ** (0.5 * number)]
        ledger.fold([Update(site, ledger.version, change, 0.0) for site, change in enumerate(changes)])
    before = ledger.posterior
    # Also while somebody is at work.
    (task,) = ledger.dispatch([0], {})
    ledger.join()
    assert ledger.sites == 3
    assert ledger.posterior is before
    np.testing.assert_allclose(ledger.recomputed_posterior().precision, before.precision)
    if kind is Ledger:
        assert ledger.holds_nothing_of(2)
        np.testing.assert_array_equal(ledger.cavity(2).precision, before.precision)
    ledger.fold([Update(0, task.version, prior**0.5, 0.0)])
    ledger.dispatch([2], {})
    ledger.fold([Update(2, ledger.version, prior**2.0, 0.0)])
    product = ledger.prior
    for factor in ledger.factors():
        product = product * factor
    np.testing.assert_allclose(product.precision, ledger.posterior.precision)


def test_each_site_is_asked_once_also_one_that_joins():
    late = Joining(later=SHARDS[2:3], at=(0,))
    once = pt.fit(model(), SHARDS[:2], engine=late, schedule=OnePass(), solver=Gradient())
    assert [row["site"] for row in once.history] == [0, 1, 2]


def test_a_site_joins_as_the_next_one_and_nowhere_else():
    @dataclass
    class Wrong(Joining):
        def collect(self):
            return [Notice(7, "joined", "x")]

    with pytest.raises(EngineError, match="a notice of kind 'joined' for site 7"):
        pt.fit(model(), SHARDS[:2], engine=Wrong(), schedule=Synchronous(rounds=2))
    with pytest.raises(EngineError, match="sites that come during a run are of federations"):
        InProcess().join(2, "x")


def test_one_site_that_was_alone_is_not_any_more():
    """With one site, any share of an update is taken; with two, small ones are held against the site."""
    found = pt.fit(model(), SHARDS[:1], engine=Joining(later=SHARDS[1:2], at=(2,)), schedule=Synchronous(rounds=40))
    whole = pt.fit(model(), SHARDS[:2], schedule=Synchronous(rounds=40))
    np.testing.assert_allclose(found.posterior.location, whole.posterior.location, rtol=1e-6, atol=1e-6)


def test_a_run_does_not_settle_before_a_site_that_joined_was_heard():
    """Not even by one that comes in the last round but for it."""
    settings = {"schedule": Synchronous(rounds=200, settled=1e-8)}
    last = pt.fit(model(), SHARDS[:2], **settings).history[-1]["version"]
    late = Joining(later=SHARDS[2:3], at=(last - 2,))
    found = pt.fit(model(), SHARDS[:2], engine=late, **settings)
    whole = pt.fit(model(), SHARDS[:3], **settings)
    np.testing.assert_allclose(found.posterior.location, whole.posterior.location, rtol=1e-4, atol=1e-5)
    assert last < found.history[-1]["version"] < 400


def test_a_journal_whose_site_joins_out_of_turn_is_refused(tmp_path):
    import sqlite3

    run(tmp_path, False, **SHORT["synchronous"])
    assert len(read_history(tmp_path)) == 8
    with sqlite3.connect(tmp_path / "journal.sqlite") as database:
        database.execute("UPDATE arrivals SET site = 5 WHERE kind = 'joined'")
    with pytest.raises(CorruptStorage):
        run(tmp_path, True, **SHORT["synchronous"])
