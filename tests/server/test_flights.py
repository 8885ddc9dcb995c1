"""One record for each task that was handed out and whose update has not been folded yet."""

import numpy as np

from partita.families import MeanField
from partita.server.flights import Flights
from partita.server.ledger import Ledger
from partita.wire.tasks import Task, Update

PRIOR = MeanField(np.zeros(2), np.ones(2))


def depart(*sites, version=0):
    flights = Flights()
    flights.depart([Task(site, version, PRIOR, PRIOR, {}) for site in sites])
    return flights


def test_only_the_answer_to_the_task_that_is_out_is_expected():
    flights = depart(1, 2, version=3)
    assert flights.is_expected(Update(1, 3, PRIOR, 0.0))
    assert not flights.is_expected(Update(1, 2, PRIOR, 0.0))
    assert not flights.is_expected(Update(0, 3, PRIOR, 0.0))


def test_updates_are_folded_by_site_whatever_order_they_came_in():
    flights = depart(0, 1, 2)
    for site in (2, 0):
        flights.arrive(Update(site, 0, PRIOR, 0.0))
    assert flights.any_arrived
    assert not flights.all_arrived
    flights.arrive(Update(1, 0, PRIOR, 0.0))
    assert flights.all_arrived
    assert [update.site for update in flights.next_arrived()] == [0, 1, 2]
    # They are outstanding until they have been folded.
    assert len(flights) == 3
    flights.land([0, 1, 2])
    assert not flights


def test_one_by_one_whoever_came_first_is_first():
    flights = depart(0, 1, 2)
    for site in (2, 0, 1):
        flights.arrive(Update(site, 0, PRIOR, 0.0))
    assert [flights.next_arrived(1)[0].site for _ in range(3)] == [2, 0, 1]


def test_what_came_of_a_site_that_goes_away_is_dropped():
    flights = depart(0, 1)
    flights.arrive(Update(0, 0, PRIOR, 0.0))
    assert flights.cancel(0)
    assert not flights.cancel(0)
    assert not flights.has_arrived(0)
    assert flights.versions == {1: 0}


def test_the_oldest_task_is_known():
    assert Flights().oldest is None
    flights = depart(0, version=5)
    flights.depart([Task(1, 3, PRIOR, PRIOR, {})])
    assert flights.oldest == 3


def test_a_ledger_hands_out_tasks_and_takes_back_flights():
    ledger = Ledger(PRIOR, 3)
    ledger.dispatch([0, 2], {})
    assert ledger.outstanding == {0: 0, 2: 0}
    ledger.fold([Update(2, 0, PRIOR, 0.0)])
    assert ledger.outstanding == {0: 0}
