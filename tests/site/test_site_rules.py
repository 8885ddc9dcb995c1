"""Rules at a site: what an update passes before it leaves."""

from dataclasses import dataclass, replace

import numpy as np

import partita as pt
from partita.models import prior_of
from partita.server.ledger import Ledger
from partita.server.settings import Settings
from partita.site.rules import SiteRule
from partita.site.worker import Worker
from partita.wire.naming import SiteNames

MODEL = pt.models.LogisticRegression(features=2)
X = np.random.default_rng(0).normal(size=(12, 2))


@dataclass(frozen=True)
class Power:
    """Lets a power of each change out, and is its own state."""

    power: float

    def init(self, job):
        assert job.model is MODEL
        return self

    def apply(self, task, update):
        assert (task.site, task.version) == (update.site, update.version)
        return replace(update, change=update.change**self.power)


def refine(*rules: SiteRule):
    job = Settings().choose(MODEL).job(MODEL, SiteNames())
    shards = {site: MODEL.shard(site, (X[site::2], (X[site::2, 0] > 0).astype(float))) for site in (0, 1)}
    tasks = Ledger(prior_of(MODEL, MODEL.hyper), 2).dispatch([0, 1], MODEL.hyper)
    return Worker(job, shards, rules).refine(tasks)


def test_every_update_passes_all_rules_in_order():
    for plain, changed in zip(refine(), refine(Power(0.5), Power(0.25)), strict=True):
        np.testing.assert_array_equal(changed.change.precision, plain.change.precision * 0.125)
        assert changed.expected_log_prob == plain.expected_log_prob
