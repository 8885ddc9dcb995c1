"""Loaders and partitioners."""

import numpy as np
import pytest

import partita as pt

X, Y = np.arange(40.0).reshape(20, 2), np.arange(20) % 4


@pytest.mark.parametrize("how", ["iid", "by-label", "dirichlet"])
@pytest.mark.parametrize("sites", [1, 3, 20])
def test_every_row_goes_to_exactly_one_site(how, sites):
    shards = pt.datasets.split((X, Y, X[:, 0]), sites, how, seed=3)
    assert len(shards) == sites
    assert all(len(shard[1]) > 0 for shard in shards)
    assert sorted(np.concatenate([shard[2] for shard in shards])) == sorted(X[:, 0])
    assert all(np.array_equal(shard[0][:, 0], shard[2]) for shard in shards)


def test_by_label_gives_each_site_few_labels():
    assert [np.unique(y).tolist() for _, y in pt.datasets.split((X, Y), 4, "by-label")] == [[0], [1], [2], [3]]


def test_a_small_concentration_skews_labels_more():
    y = np.arange(3000) % 10

    def largest_share(concentration):
        shards = pt.datasets.split((y, y), 10, "dirichlet", concentration=concentration, seed=0)
        return np.mean([np.bincount(labels).max() / len(labels) for _, labels in shards])

    assert largest_share(0.1) > 0.4 > 0.2 > largest_share(100.0)


def test_sizes_are_relative():
    assert [len(y) for _, y in pt.datasets.split((X, Y), 2, sizes=[1, 3])] == [5, 15]


def test_same_seed_same_split():
    first, again, other = (pt.datasets.split((X, Y), 3, "dirichlet", seed=seed)[0][0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"sites": 0}, "sites"),
        ({"sites": 21}, "sites: expected a number from 1 to 20"),
        ({"sites": 2.0}, "sites"),
        ({"sites": 2, "how": "sorted"}, "how"),
        ({"sites": 2, "concentration": 0}, "concentration"),
        ({"sites": 2, "sizes": [1]}, "sizes"),
    ],
    ids=str,
)
def test_impossible_splits_are_refused(settings, complaint):
    with pytest.raises(pt.errors.InputError, match=complaint):
        pt.datasets.split((X, Y), **settings)


def test_constant_columns_become_zero():
    Z = np.column_stack([np.full(50, 0.1), np.arange(50.0)])
    scaled = pt.datasets.standardised(Z)
    assert np.array_equal(scaled[:, 0], np.zeros(50))
    assert scaled[:, 1].std() == pytest.approx(1)
    assert pt.datasets.standardised([[1.0], [3.0]]).tolist() == [[-1.0], [1.0]]


def test_names_are_those_that_load():
    for name in pt.datasets.NAMES:
        features, targets = pt.datasets.load(name)
        assert len(features) == len(targets) > 100
    with pytest.raises(pt.errors.InputError, match="'iris' is not known: use one of breast-cancer"):
        pt.datasets.load("iris")


def test_a_short_row_of_a_csv_file_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2\n")
    with pytest.raises(pt.errors.InputError, match=r"t.csv:3: expected 2 numbers \(it has 1 cells\)"):
        pt.datasets.read_csv(tmp_path / "t.csv", "y")
