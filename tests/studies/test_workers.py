"""The paper's workers: warm optimisers, damping at the server, clocks, and its experiments as a command."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita.expectations import LocalReparameterisation
from partita.families import MeanField
from partita.foundation.runtime import on_host
from partita.free_energy import LocalProblem
from partita.models import Network
from partita.site.worker import load_shards
from partita.solvers import Gradient
from partita.studies.images import Images
from partita.studies.paper import recipes
from partita.studies.paper.panels import choose_best, draw_panels, share_budgets
from partita.studies.paper.recipes import QUICK, Recipe, deal_rows, follow
from partita.studies.paper.workers import FLOOR, Crew, Server

SOLVER = Gradient("adam", 0.01, 1, batch_size=20, tolerance=0.0)


@pytest.fixture(scope="module")
def images() -> Images:
    return Images.load("digits", rows=200)


@pytest.fixture(scope="module")
def model(images) -> Network:
    return images.network([10], start_scale=0.05)


def crew_of(model, images, sites, solver=SOLVER) -> Crew:
    raw = [tuple(part[site::sites] for part in images.train) for site in range(sites)]
    return Crew.gather(model, load_shards(model, raw), solver, 0)


def test_a_worker_alone_is_adam_without_interruption(model, images):
    """Four epochs of global VI, stopped after each, are `refine` with four: to the last digit but for exp and log."""
    crew = crew_of(model, images, 1)
    *_, last = crew.alone(4)
    (shard,) = load_shards(model, [images.train])
    problem = LocalProblem(
        model, LocalReparameterisation(samples=1, fixed=False), crew.prior, jax.device_put(shard), model.hyper
    )
    start = jax.tree.map(jnp.asarray, crew.start)
    whole, info = replace(SOLVER, epochs=4).refine(problem, start, start / problem.cavity, key=crew.workers[0].key)
    assert int(info.steps) == 40
    assert distance(last.posterior, on_host(whole)) < 1e-5
    # A worker that forgets its moments after every epoch comes to another place.
    forgetful = crew_of(model, images, 1)
    posterior = forgetful.start
    for _ in range(4):
        forgetful.workers[0].carried = forgetful.workers[0].carried._replace(
            memory=jax.tree.map(jnp.zeros_like, forgetful.workers[0].carried.memory)
        )
        posterior, _ = forgetful.workers[0].work(posterior, forgetful.prior)
    assert distance(posterior, on_host(whole)) > 0.1


@pytest.mark.parametrize("schedule", ["synchronous", "asynchronous"])
def test_with_one_site_and_no_damping_both_schedules_are_global_vi(model, images, schedule):
    *_, alone = crew_of(model, images, 1).alone(3)
    crew = crew_of(model, images, 1)
    stages = crew.synchronous(3, 0.0) if schedule == "synchronous" else crew.asynchronous(3, 0.0, 0)
    *_, last = stages
    assert last.passes == 3
    assert last.messages == 6
    assert distance(last.posterior, alone.posterior) < 1e-3


def distance(q, other) -> float:
    """The largest difference of means and of logarithms of scales, in standard deviations."""
    a, b = (
        [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(part)]) for part in one]
        for one in ((q.location, q.scale), (other.location, other.scale))
    )
    return float(max(np.max(np.abs(a[0] - b[0]) / b[1]), np.max(np.abs(np.log(a[1] / b[1])))))


def test_a_server_takes_the_share_that_damping_leaves():
    """t ← t^damping t_new^(1 - damping), the paper's linear combination of natural parameters."""
    prior = MeanField.from_moments(np.zeros(3), np.ones(3))
    start = MeanField.from_moments(np.arange(3.0), np.full(3, 0.5))
    server = Server(prior, start, 2)
    proposals = {site: MeanField.independent(np.array([1.0, 2, 3]), np.array([2.0, 3, 1 + site])) for site in range(2)}
    old = server.factors[0]
    server.take({site: proposal / server.factors[site] for site, proposal in proposals.items()}, damping=0.75)
    for site, proposal in proposals.items():
        expected = 0.75 * old.precision + 0.25 * proposal.precision
        np.testing.assert_allclose(server.factors[site].precision, expected)
        np.testing.assert_allclose(
            server.factors[site].precision_times_location,
            0.75 * old.precision_times_location + 0.25 * proposal.precision_times_location,
        )
    product = prior * server.factors[0] * server.factors[1]
    np.testing.assert_allclose(server.posterior.precision, product.precision)
    assert server.held == 0


def test_a_number_that_would_be_improper_stays_alone():
    prior = MeanField.from_moments(np.zeros(2), np.ones(2))
    server = Server(prior, MeanField.from_moments(np.ones(2), np.full(2, 0.5)), 2)
    before = server.posterior
    # The first number's precision would be 4 - 3.5, and the cavity of the other site less than zero.
    server.take({0: MeanField(np.array([1.0, 1.0]), np.array([-3.5, 1.0]))}, damping=0.0)
    assert server.held == 1
    np.testing.assert_allclose(server.posterior.precision, [4.0, 5.0])
    np.testing.assert_allclose(
        server.posterior.precision_times_location, before.precision_times_location + np.array([0.0, 1.0])
    )
    assert all(np.all(server.cavity(site).precision > FLOOR) for site in range(2))


def test_clocks_count_the_slowest_worker_and_not_the_sum(model, images, monkeypatch):
    """Work that is made to take 1 and 3 seconds: rounds take 3, a pass in turn takes 4, and a committee 3 a poll."""

    def timed(crew):
        for worker, seconds in zip(crew.workers, (1.0, 3.0), strict=True):
            work = worker.work
            monkeypatch.setattr(worker, "work", lambda *a, work=work, s=seconds: (work(*a)[0], s))
        return crew

    def crew():
        return timed(crew_of(model, images, 2))

    assert [(s.seconds, s.messages) for s in crew().synchronous(2, 0.5)] == [(3, 4), (6, 8)]
    assert [(s.seconds, s.messages) for s in crew().one_pass(1)] == [(1, 2), (4, 4)]
    one = crew()
    assert [(s.seconds, s.messages) for s in one.committee(2, [one.prior] * 2)] == [(3, 4), (6, 4)]
    # Without waiting, both work all the time: two epochs each take about twice the mean.
    *_, last = crew().asynchronous(2, 0.5, 0)
    assert last.messages == 8
    assert 3 < last.seconds < 5


def test_asynchronous_workers_answer_to_posteriors_that_others_have_moved(model, images):
    """The first to finish is alone; the second began beside it, and its change is added to what the first has made."""
    crew = crew_of(model, images, 2)
    server = Server(crew.prior, crew.start, 2)
    begun = server.posterior
    changes = [worker.work(begun, server.cavity(site))[0] / begun for site, worker in enumerate(crew.workers)]
    runs = [list(crew_of(model, images, 2).asynchronous(1, 0.5, seed)) for seed in (0, 0)]
    for server_of_order in ((0, 1), (1, 0)):
        server = Server(crew.prior, crew.start, 2)
        for site in server_of_order:
            server.take({site: changes[site]}, 0.5)
        # Paces differ by less than twofold: whoever is first, the other finishes next.
        assert distance(server.posterior, runs[0][0].posterior) < 1e-3
    np.testing.assert_array_equal(runs[0][0].posterior.precision[0].weights, runs[1][0].posterior.precision[0].weights)


def test_a_committee_of_one_is_global_vi_whatever_its_prior(model, images):
    *_, alone = crew_of(model, images, 1).alone(2)
    crew = crew_of(model, images, 1)
    *_, polled = crew.committee(2, [crew.prior])
    assert distance(polled.posterior, alone.posterior) < 1e-3


def test_rows_are_dealt_in_proportion(images):
    X, _ = images.train
    shards = [(X[:30], np.zeros(30, int)), (X[:90], np.ones(90, int))]
    _, dealt = deal_rows(shards)
    for first in range(0, 120, 20):
        assert dealt[first : first + 20].sum() == 15


@pytest.mark.parametrize("setting", recipes.SETTINGS)
def test_panels_and_budgets_of_rows(images, setting):
    """Cells of four schemes on digits, their panels, and a table with what was within the budget."""
    plan = replace(QUICK, rounds=5, hidden=10)
    chosen = [Recipe("default", 5), Recipe("gvi", 5, 0.01), Recipe("gvi", 5, 0.001), Recipe("pvi-sync", 5, 0.01, 0.8)]
    chosen.append(Recipe("over-fitting", 6, 0.01, 0.8))
    rows = [
        {"method": recipe.name, "setting": setting, "seed": 0, **row}
        for recipe in chosen
        for row in follow(images, recipe, setting, 0, plan)
    ]
    assert all(np.isfinite(row["error"]) and np.isfinite(row["nll"]) for row in rows)
    best = choose_best(rows)
    assert set(best) == {"default", "gvi-1", "gvi-10", "pvi-sync"}
    ends = {row["method"]: row["error"] for row in rows}
    assert ends[best["gvi-1"]] == min(ends[f"gvi-1 rate {rate}"] for rate in ("0.01", "0.001"))
    one, ten = ([row for row in rows if row["method"] == f"{name} rate 0.01"] for name in ("gvi-1", "gvi-10"))
    assert [row["error"] for row in one] == [row["error"] for row in ten]
    assert [10 * row["messages"] for row in one] == [row["messages"] for row in ten]
    table = share_budgets(rows, 3, 0.5)
    (line,) = (line for line in table if line["method"].startswith("pvi-sync"))
    third = next(row for row in rows if row["method"] == line["method"] and row["round"] == 3)
    assert line["error after 3 passes"] == line["error after 60 messages"] == f"{100 * third['error']:.2f}"
    titles = [picture.title for picture in draw_panels(rows)]
    assert titles[-1] == "Over-fitting"
    assert {"gvi-1", "gvi-10", "pvi-sync"} < set(titles)


def test_the_command_finds_cells_by_scheme_and_by_name(images):
    made = recipes.paper_experiment(images, ("iid",), "pvi-one-pass,pvi-sync rate 0.005 damping 0.9", 2, QUICK, 0.06)
    assert [(cell.method, cell.seed) for cell in made.cells] == [
        (name, seed)
        for seed in range(2)
        for name in (
            "pvi-one-pass rate 0.005 epochs 1",
            "pvi-one-pass rate 0.005 epochs 3",
            "pvi-sync rate 0.005 damping 0.9",
        )
    ]
    assert len({cell.path for cell in made.cells}) == len(made.cells)
    assert all(json.dumps(cell.settings) for cell in made.cells)
