"""One record for each task that was handed out and whose update has not been folded yet."""

import numpy as np
import pytest

import partita as pt
from partita.errors import NotOutstanding
from partita.families import MeanField
from partita.server.flights import Flight, Flights
from partita.server.ledger import Ledger
from partita.server.loop import dispatch
from partita.server.run import Run
from partita.server.settings import Settings
from partita.wire.naming import SiteNames
from partita.wire.tasks import Task, Update

PRIOR = MeanField(np.zeros(2), np.ones(2))


def test_the_oldest_task_is_known():
    assert Flights().oldest is None
    flights = Flights({site: Flight(Task(site, version, PRIOR, PRIOR, {})) for site, version in ((0, 5), (1, 3))})
    assert flights.oldest == 3
    assert flights.versions == {0: 5, 1: 3}


def test_a_task_is_outstanding_until_its_update_is_folded():
    ledger = Ledger(PRIOR, 3)
    ledger.dispatch([0, 2], {})
    assert ledger.outstanding == {0: 0, 2: 0}
    ledger.fold([Update(2, 0, PRIOR, 0.0)])
    assert ledger.outstanding == {0: 0}
    with pytest.raises(NotOutstanding, match="no task of version 0 is outstanding"):
        ledger.fold([Update(2, 0, PRIOR, 0.0)])


def test_a_site_that_is_divided_out_has_no_task_any_more():
    ledger = Ledger(PRIOR, 3)
    ledger.dispatch([0, 2], {})
    ledger.retire(0)
    assert ledger.outstanding == {2: 0}


def test_all_that_look_at_outstanding_tasks_see_the_same_record():
    model = pt.models.LogisticRegression(features=2)
    run = Run(model, 3, Settings().choose(model), pt.engines.InProcess(), SiteNames())
    tasks = dispatch(run, [0, 2])
    assert run.flights is run.ledger.flights is run.board.flights
    assert [flight.task for flight in run.flights.values()] == tasks
    assert all(flight.begin.density is run.ledger.posterior for flight in run.flights.values())
    assert run.accounts.tally.bytes_down == sum(task.nbytes for task in tasks)
