"""Models by name: the same tables in one process, and through the gates of a federation's sites."""

import json
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.decomposition import LatentDirichletAllocation

import partita as pt
from gates import run_through_gates, write_folders
from partita.errors import ConfigError, InputError
from partita.federation.folders import read_server
from partita.models import prior_of
from partita.predictive import expected_response
from partita.server.ledger import Ledger
from partita.server.schedules import Synchronous
from partita.site.approval import describe_proposal
from partita.site.consent import PINNED
from partita.site.gate import Site
from partita.studies.methods.comparisons import variational_mixture
from partita.wire.messages import encode_task

GENERATOR = np.random.default_rng(0)
ROUNDS = Synchronous(rounds=6)
# So that no default of a site's policy is in the way.
OPEN = {"most_parameters": 100_000, "most_parameters_per_row": 100.0, "fewest_per_cell": 1, "most_tasks": 100}


def standardised(X):
    return (X - X.mean(axis=0)) / X.std(axis=0)


FLOWERS = standardised(load_iris().data)[GENERATOR.permutation(150)]
WINE = standardised(load_wine().data[:, :6])[GENERATOR.permutation(178)]
COUNTS = load_digits().data[:120, 10:30]
FLOWERS_WITH_CLASS = np.column_stack([load_iris().data, load_iris().target])[GENERATOR.permutation(150)]

# A name and the settings of [model], the table, whether its last column is a target, and what predictions are.
CASES = {
    "mixture": ("gaussian-mixture\ncomponents = 4", FLOWERS, False),
    "factors": ("factor-analysis\nfactors = 2", WINE, False),
    "topics": ("latent-dirichlet-allocation\ntopics = 4", COUNTS, False),
    "counts": ("poisson-factorisation\npatterns = 3", COUNTS, False),
    "process": (
        "sparse-process\npoints = 16\nlow = -2.5\nhigh = 2.5\nlengthscale = 2.0\nnoise = 0.4",
        WINE[:, 2:],
        True,
    ),
    "process of classes": (
        "sparse-process\npoints = [[-1.0, -1.0], [-0.5, 0.0], [0.0, 0.5], [0.5, 1.0], [1.0, 1.5]]\n"
        'kernel = "matern-32"\nlikelihood = "probit"',
        np.column_stack([FLOWERS[:, 2:], FLOWERS[:, 0] > 0]),
        True,
    ),
    "network": (
        'network\nhidden = [5, 4]\nactivation = "tanh"\nprior_scale = 0.7\nstart_scale = 0.05\ninit_seed = 3',
        FLOWERS_WITH_CLASS,
        True,
    ),
}


def federated(tmp_path, name, model, table, has_target):
    features = [f"x{number}" for number in range(table.shape[1] - has_target)]
    # Sites of unequal size: they are padded each by itself, and all together. What rounding makes of that is far more
    # than 1e-8 in the float32 of networks, so that those are compared on sites of one size.
    cuts = [50, 100, 150] if "network" in name else [len(table) // 4, len(table) // 2, len(table)]
    tables = np.split(table[: cuts[-1]], cuts[:-1])
    sections = {"classes": "classes = 3"} if name == "network" else {}
    return write_folders(tmp_path, model, features, "y" if has_target else None, tables, sections, OPEN), tables


@pytest.mark.parametrize("name", CASES)
def test_the_same_table_in_one_process_and_through_the_gates(tmp_path, name):
    (server, folders), tables = federated(tmp_path, name, *CASES[name])
    has_target = CASES[name][2]
    across = run_through_gates(server, folders, schedule=ROUNDS)
    given = read_server(server)
    assert given.recipe.model.takes_target == has_target
    shards = [(table[:, :-1], table[:, -1]) if has_target else table for table in tables]
    here = pt.fit(given.recipe.model, shards, given.settings, schedule=ROUNDS)
    for one, other in zip(*(jax.tree.leaves(found.posterior) for found in (across, here)), strict=True):
        assert_allclose(one, other, rtol=1e-8, atol=1e-8 * np.abs(other).max())
    assert across.log_evidence == pytest.approx(here.log_evidence, rel=1e-8)
    # What the server writes predicts, as far as the model does.
    across.save(tmp_path / "result")
    loaded = pt.load(tmp_path / "result")
    if not has_target:
        with pytest.raises(InputError, match="does not say how it predicts"):
            loaded.predict(tables[0])
        return
    inputs, y = shards[0]
    predicted = loaded.predict(inputs)
    assert_allclose(predicted, here.predict(inputs), rtol=1e-6, atol=1e-8)
    found = loaded.model.score(expected_response(loaded.model, loaded.posterior, inputs), y)
    # Six rounds are few for networks.
    assert given.recipe.model.drawn or found.get("error", found.get("smse", 1.0)) < 0.9
    if "error" not in found:
        std = loaded.predict(inputs, return_std=True)[1]
        interval = loaded.predict_interval(inputs)
        assert np.all(std > 0)
        assert given.recipe.model.drawn or 0.8 < np.mean((interval[:, 0] <= y) & (y <= interval[:, 1])) <= 1


def test_mixtures_and_topics_are_those_of_scikit_learn(tmp_path):
    blobs = np.concatenate([GENERATOR.normal(size=(40, 2)) + centre for centre in ([0, 0], [9, 0], [0, 9])])
    table = standardised(blobs)[GENERATOR.permutation(120)]
    case = ("gaussian-mixture\ncomponents = 3\ndegrees = 4.0", table, False)
    (server, folders), _ = federated(tmp_path / "mixture", "mixture", *case)
    found = run_through_gates(server, folders, schedule=Synchronous(rounds=30))
    other = variational_mixture(replace(found.model, degrees=4.0), table)
    weights = found.posterior.parts["weights"].concentration
    assert_allclose(np.sort(weights), np.sort(other.weight_concentration_), rtol=1e-5)
    each = found.posterior.parts["components"].each
    means = each.strength_times_location / each.strength[:, None]
    order, theirs = np.argsort(means @ [1.0, 3.0]), np.argsort(other.means_ @ [1.0, 3.0])
    assert_allclose(means[order], other.means_[theirs], atol=1e-5)

    case = ("latent-dirichlet-allocation\ntopics = 4\niterations = 2000\ntolerance = 1e-9", COUNTS, False)
    (server, folders), _ = federated(tmp_path / "topics", "topics", *case)
    found = run_through_gates(server, folders, schedule=Synchronous(rounds=2))
    priors = {"topic_word_prior": 0.1, "doc_topic_prior": 0.1}
    reference = LatentDirichletAllocation(4, **priors, mean_change_tol=1e-9, max_doc_update_iter=2000, max_iter=1)
    reference.fit(COUNTS)
    reference.components_ = found.posterior.concentration
    reference.exp_dirichlet_component_ = np.exp(found.posterior.mean().expected_log)
    assert found.log_evidence == pytest.approx(reference.score(COUNTS), rel=1e-8)


# Of two features: means, precisions and shares of components; topics by words; two loadings, a level and a noise for
# each; patterns; and weights of one hidden layer.
LEARNT = {
    "gaussian-mixture": 3 * (2 + 4) + 3,
    "latent-dirichlet-allocation": 10 * 2,
    "factor-analysis": 2 * (2 + 1 + 1),
    "poisson-factorisation": 5 * 2,
    "network": 50 * 2 + 50 + 2 * 50 + 2,
}


def test_a_network_has_all_its_settings_from_a_file(tmp_path):
    given = {"activation": "silu", "likelihood": "gaussian", "noise": 0.3, "prior_scale": 0.7, "start_scale": 0.05}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"hidden": [7, 3], **given, "init_seed": 5}.items()]
    server, _ = write_folders(tmp_path, "\n".join(["network", *lines]), ["a", "b"], "y", [np.ones((3, 3))])
    assert read_server(server).recipe.model == pt.models.Network([2, 7, 3, 1], **given, init_seed=5)


@pytest.mark.parametrize("name", pt.models.REGISTRY)
def test_a_new_federation_of_every_model_can_be_read_and_shown(tmp_path, name):
    kind = pt.models.REGISTRY[name]
    table = np.ones((3, 2 + kind.takes_target))
    server, (folder,) = write_folders(tmp_path, name, ["age", "bmi"], "ill" if kind.takes_target else None, [table])
    recipe = read_server(server).recipe
    assert type(recipe.model) is kind
    assert all(f"\n{key} = " in (server / "federation.toml").read_text() for key in kind.suggested)
    proposed = {key: value for key, value in json.loads(recipe.text).items() if key in PINNED}
    shown = describe_proposal(folder, proposed)
    predicted = '"ill"' if kind.takes_target else "nothing"
    assert shown[1] == f'reads of each row: "age", "bmi", to predict {predicted}; no other column'
    prior = prior_of(recipe.model, recipe.model.hyper)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(prior))
    learnt = LEARNT.get(name, prior.size if prior.is_gaussian else 4)
    assert f'computes: "{name}", {learnt} parameters, with the solver that suits it' in shown
    assert any(line.startswith(f"leaves: updates of {numbers} numbers") for line in shown)


TARGETS = [
    ("gaussian-mixture", "y", "target is not for gaussian-mixture, which predicts nothing: leave it out"),
    ("network", None, "target is missing: name the column that network predicts"),
]


@pytest.mark.parametrize(("model", "target", "complaint"), TARGETS)
def test_a_target_is_named_where_there_is_one(tmp_path, model, target, complaint):
    server, _ = write_folders(tmp_path, model, ["a", "b"], target, [np.ones((3, 3))])
    with pytest.raises(ConfigError, match=complaint):
        read_server(server)


SETTINGS = [
    ("gaussian-mixture\ncovariance = 'full'", "components is missing: how many there are at most; components = 3, for"),
    ("gaussian-mixture\ncomponents = -1", "components: expected a whole number of at least 1"),
    ("gaussian-mixture\ncomponents = 2000000000", "components: these make 18,000,000,000 natural parameters, and at"),
    ("factor-analysis\nfactors = 2000000000", "factors: these make"),
    ("latent-dirichlet-allocation\ntopics = 2000000000", "topics: these make"),
    ("poisson-factorisation\npatterns = 2000000000", "patterns: these make"),
    ("poisson-factorisation\npatterns = 2\ninit_seed = -1", "init_seed: expected a whole number from 0"),
    ("poisson-factorisation\npatterns = 2.5", "patterns expected a whole number, got 2.5"),
    ("sparse-process\npoints = 5", "low, high: with a number of points"),
    ("sparse-process\npoints = 0\nlow = 0\nhigh = 1", "points: expected a whole number of at least 1"),
    ("sparse-process\npoints = 2000000000\nlow = 0\nhigh = 1", "points: these make"),
    ("sparse-process\npoints = 5\nlow = 1\nhigh = 0", "low, high: expected a box"),
    ("sparse-process\npoints = 5\nlow = [1, 2, 3]\nhigh = 0", "low: expected a number, or 2 of them"),
    ("sparse-process\npoints = []", "points: expected finite rows"),
    ("sparse-process\npoints = [[1.0], [2.0, 3.0]]", "points"),
    ("sparse-process\npoints = [[1.0], [2.0]]", "points: expected 2 numbers each, one per feature, got 1"),
    ("sparse-process\npoints = 'many'", "points expected"),
    ("sparse-process\npoints = 5\nlow = 0\nhigh = 1\nkernel = 'cubic'", "kernel: expected one of squared-exponential"),
    ("sparse-process\npoints = 5\nlow = 0\nhigh = 1\nlengthscale = [1, 2, 3]", "lengthscale: expected 2 of them"),
    ("sparse-process\npoints = 5\nlow = 0\nhigh = 1\nlikelihood = 'probit'\nnoise = 1", "noise: the likelihood probit"),
    ("sparse-process\npoints = 5\nlow = 0\nhigh = 1\nlikelihood = 'normal'", "likelihood: expected one of gaussian"),
    ("network\nhidden = 5", "hidden expected a list, got 5"),
    ("network\nhidden = [2000000000]", "layers: expected at most"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "complaint"), SETTINGS, ids=lambda value: value[:60].replace("\n", " "))
def test_settings_that_cannot_be_are_told_before_anything_is_made_of_them(tmp_path, model, complaint):
    target = "y" if pt.models.REGISTRY[model.splitlines()[0]].takes_target else None
    server, _ = write_folders(tmp_path, model, ["a", "b"], target, [np.ones((3, 3))])
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        read_server(server)


def test_rows_without_words_do_not_count_as_rows(tmp_path):
    table = np.zeros((12, 3))
    table[:6] = 1
    policy = {"most_parameters_per_row": 100.0}
    model = "latent-dirichlet-allocation\ntopics = 2"
    server, folders = write_folders(tmp_path, model, ["a", "b", "c"], None, [table], policy=policy)
    site, greeting = Site(folders[0], accepts=True), read_server(server).recipe.greeting
    answer = site.answer("about", {**greeting, "site": 0, "payload": b""})
    assert "(fewest_rows)" in answer["error"]


def test_a_large_network_is_allowed_by_whoever_writes_the_number_that_its_refusal_says(tmp_path):
    """784-200-10, 159,010 weights, each with a mean and a precision."""
    features = [f"p{number}" for number in range(784)]
    table = np.column_stack([GENERATOR.normal(size=(40, 784)), np.arange(40) % 10])
    sections = {"classes": "classes = 10"}
    server, (folder,) = write_folders(tmp_path, "network\nhidden = [200]", features, "y", [table], sections)
    recipe = read_server(server).recipe
    site = Site(folder, accepts=True)

    def ask(kind="about", payload=b""):
        return site.answer(kind, {**recipe.greeting, "site": 0, "payload": payload, "compression": "float16"})

    for number in ("most_parameters = 318020", "most_parameters_per_row = 4000.0"):
        answer = ask()
        assert number.split(" =")[0] in answer["error"]
        assert re.search(r"write (most_parameters = 318020|159010 divided by the number of your rows)", site.problem)
        path = folder / "site.toml"
        path.write_text(re.sub(rf"{number.split(' =')[0]} = .*", number, path.read_text()))
    assert "payload" in ask()
    model = recipe.model
    (task,) = Ledger(prior_of(model, model.hyper), 1).dispatch([0], model.hyper, model.start, message_only=True)
    answer = ask("refine", encode_task(task, "float16"))
    assert 2 * 318_020 < len(answer["payload"]) < 2.1 * 318_020
