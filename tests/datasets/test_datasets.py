"""Loaders and partitioners."""

import hashlib
import io
import pickle
import urllib.error
import urllib.request

import numpy as np
import pytest

import partita as pt
from partita.config import load_data, read_config
from partita.datasets import mnist

X, Y = np.arange(40.0).reshape(20, 2), np.arange(20) % 4


@pytest.mark.parametrize("how", ["iid", "by-label", "whole-labels", "dirichlet"])
@pytest.mark.parametrize("sites", [1, 3, 20])
def test_every_row_goes_to_exactly_one_site(how, sites):
    shards = pt.datasets.split((X, Y, X[:, 0]), sites, how, seed=3)
    assert len(shards) == sites
    assert all(len(shard[1]) > 0 for shard in shards)
    assert sorted(np.concatenate([shard[2] for shard in shards])) == sorted(X[:, 0])
    assert all(np.array_equal(shard[0][:, 0], shard[2]) for shard in shards)


def test_by_label_gives_each_site_few_labels():
    assert [np.unique(y).tolist() for _, y in pt.datasets.split((X, Y), 4, "by-label")] == [[0], [1], [2], [3]]


def test_whole_labels_are_never_cut_while_there_are_enough_of_them():
    y = np.repeat(np.arange(10), np.arange(1, 11) * 3)
    held = [labels for _, labels in pt.datasets.split((y, y), 10, "whole-labels")]
    assert [np.unique(labels).tolist() for labels in held] == [[label] for label in range(10)]
    assert [len(labels) for labels in held] == [3, 6, 9, 12, 15, 18, 21, 24, 27, 30]
    fewer = [np.unique(labels).tolist() for _, labels in pt.datasets.split((y, y), 4, "whole-labels")]
    assert fewer == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


def test_more_sites_than_labels_share_each_label_evenly():
    y = np.array(["a"] * 30 + ["b"] * 9)
    held = [labels for _, labels in pt.datasets.split((y, y), 5, "whole-labels")]
    assert [(set(labels), len(labels)) for labels in held] == [
        ({"a"}, 10),
        ({"b"}, 5),
        ({"a"}, 10),
        ({"b"}, 4),
        ({"a"}, 10),
    ]
    with pytest.raises(pt.errors.InputError, match="label b has 1 rows for 2 sites: use fewer sites"):
        pt.datasets.split((y[:31], y[:31]), 4, "whole-labels")


def test_a_small_concentration_skews_labels_more():
    y = np.arange(3000) % 10

    def largest_share(concentration):
        shards = pt.datasets.split((y, y), 10, "dirichlet", concentration=concentration, seed=0)
        return np.mean([np.bincount(labels).max() / len(labels) for _, labels in shards])

    assert largest_share(0.1) > 0.4 > 0.2 > largest_share(100.0)


def test_sizes_are_relative():
    assert [len(y) for _, y in pt.datasets.split((X, Y), 2, sizes=[1, 3])] == [5, 15]


@pytest.mark.parametrize("how", ["iid", "by-label"])
def test_one_size_is_the_ratio_of_the_last_site_to_the_first(how):
    y = np.arange(15_000) % 10
    rows = [len(labels) for _, labels in pt.datasets.split((y, y), 4, how, sizes=8)]
    assert rows == pytest.approx([1000, 2000, 4000, 8000], abs=1)
    assert [len(labels) for _, labels in pt.datasets.split((y, y), 1, how, sizes=8)] == [15_000]


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
        ({"sites": 2, "sizes": [1, np.nan]}, "sizes: expected 2 positive numbers"),
        ({"sites": 2, "sizes": 0}, "sizes: expected a positive number"),
        ({"sites": 2, "sizes": "unbalanced"}, "sizes: expected a positive number"),
        ({"sites": 2, "how": "whole-labels", "sizes": 2}, "sizes: follow from the labels"),
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
    for name in set(pt.datasets.NAMES) - set(pt.datasets.WITH_SPLIT):
        features, targets = pt.datasets.load(name)
        assert len(features) == len(targets) > 100
    with pytest.raises(pt.errors.InputError, match="'iris' is not known: use one of breast-cancer.*, mnist"):
        pt.datasets.load("iris")
    with pytest.raises(pt.errors.InputError, match=r"\['digits'\] is not known"):
        pt.datasets.load(["digits"])
    with pytest.raises(pt.errors.InputError, match="'iris' is not known"):
        pt.datasets.load_split("iris")


def test_a_short_row_of_a_csv_file_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2\n")
    with pytest.raises(pt.errors.InputError, match="t.csv:3: expected 2 cells, got 1"):
        pt.datasets.read_csv(tmp_path / "t.csv", "y")


def images(rows, seed=0):
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
    return pixels, (np.arange(rows) % 10).astype(np.uint8)


def archive(**changes):
    (x_train, y_train), (x_test, y_test) = images(60), images(20, seed=1)
    arrays = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test, **changes}
    stream = io.BytesIO()
    np.savez_compressed(stream, **{name: array for name, array in arrays.items() if array is not None})
    return stream.getvalue()


@pytest.fixture
def online(monkeypatch, tmp_path):
    """No data anywhere yet, and a source that answers with what is put into the list."""
    answers = []

    def answer(url, timeout):
        assert url == mnist.SOURCE
        assert 0 < timeout <= 60
        if not answers:
            raise urllib.error.URLError("no network")
        return io.BytesIO(answers.pop(0))

    monkeypatch.delenv("PARTITA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(urllib.request, "urlopen", answer)
    return answers


@pytest.fixture
def folder(online, tmp_path):
    place = tmp_path / "given"
    place.mkdir()
    (place / "mnist.npz").write_bytes(archive())
    return place


def test_mnist_by_the_published_split(folder):
    (X, y), (X_test, y_test) = pt.datasets.load_split("mnist", folder)
    pixels, labels = images(60)
    assert X.dtype == X_test.dtype == np.float32
    assert y.dtype == y_test.dtype == np.int64
    assert np.array_equal(np.round(X * 255).reshape(-1, 28, 28), pixels)
    assert 0 == X.min() < X.max() == 1
    assert np.array_equal(y, labels)
    assert X_test.shape == (20, 784)
    both = pt.datasets.load("mnist", str(folder))
    assert np.array_equal(both[0], np.concatenate([X, X_test]))
    assert np.array_equal(both[1], np.concatenate([y, y_test]))


def test_sets_without_a_published_split_say_what_to_use():
    with pytest.raises(pt.errors.InputError, match=r"'wine' has no published split: use train_test\(load\('wine'\)\)"):
        pt.datasets.load_split("wine")


def test_the_folder_comes_before_the_variable_and_that_before_the_cache(folder, tmp_path, monkeypatch):
    for place, rows in (("named", 30), ("cache/partita/data", 10)):
        (tmp_path / place).mkdir(parents=True)
        x, y = images(rows)
        (tmp_path / place / "mnist.npz").write_bytes(archive(x_train=x, y_train=y))

    def training_rows(*arguments):
        return len(pt.datasets.load_split("mnist", *arguments)[0][1])

    assert training_rows() == 10
    monkeypatch.setenv("PARTITA_DATA", str(tmp_path / "named"))
    assert training_rows() == 30
    assert training_rows(folder) == 60
    assert training_rows(tmp_path) == 30


def test_without_file_and_network_it_says_what_to_put_where(online, tmp_path):
    with pytest.raises(pt.errors.InputError, match="no network") as told:
        pt.datasets.load("mnist")
    for hint in (mnist.SOURCE, str(tmp_path / "cache" / "partita" / "data"), "PARTITA_DATA"):
        assert hint in str(told.value)
    assert not (tmp_path / "cache").exists()


def test_a_download_is_checked_kept_and_used_again(online, tmp_path, monkeypatch):
    content = archive()
    monkeypatch.setattr(mnist, "SHA256", hashlib.sha256(content).hexdigest())
    online.append(content)
    first, again = pt.datasets.load("mnist"), pt.datasets.load("mnist")
    assert np.array_equal(first[0], again[0])
    assert [path.name for path in (tmp_path / "cache" / "partita" / "data").iterdir()] == ["mnist.npz"]


@pytest.mark.parametrize("content", [archive(), archive()[:-1], b"<html>"], ids=["other", "cut short", "page"])
def test_a_download_with_another_checksum_is_refused(online, tmp_path, content):
    online.append(content)
    with pytest.raises(pt.errors.InputError, match="SHA-256 differs"):
        pt.datasets.load("mnist")
    assert not (tmp_path / "cache").exists()


def test_no_more_than_the_largest_size_is_read(online, monkeypatch):
    content = archive()
    monkeypatch.setattr(mnist, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(mnist, "LARGEST", len(content) - 2)
    online.append(content)
    with pytest.raises(pt.errors.InputError, match="SHA-256 differs"):
        pt.datasets.load("mnist")


def test_a_failed_write_leaves_nothing(online, tmp_path, monkeypatch):
    content = archive()
    monkeypatch.setattr(mnist, "SHA256", hashlib.sha256(content).hexdigest())
    online.append(content)

    def full(source, target):
        assert source != target
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(
        pt.errors.InputError, match=r"mnist.npz: cannot be written \(No space left on device\).*PARTITA_DATA"
    ):
        pt.datasets.load("mnist")
    assert list((tmp_path / "cache" / "partita" / "data").iterdir()) == []


def single(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


class Malicious:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize(
    "content",
    [
        archive(y_test=np.array([Malicious()], dtype=object)),
        pickle.dumps(Malicious()),
        single(np.zeros((60, 28, 28), np.uint8)),
        b"not an archive",
        b"",
        archive()[:5000],
        archive()[:2000] + bytes(100) + archive()[2100:],
    ],
    ids=["pickled array", "pickle", "npy", "text", "empty", "cut short", "damaged"],
)
def test_files_that_are_not_plain_arrays_are_refused(folder, content):
    (folder / "mnist.npz").write_bytes(content)
    with pytest.raises(pt.errors.InputError, match="mnist.npz: not an .npz file of plain arrays"):
        pt.datasets.load("mnist", folder)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"x_test": None, "images": np.zeros(1)}, "no array 'x_test'; it has x_train, y_train, y_test, images"),
        ({"x_train": np.zeros((60, 28, 28))}, r"x_train: expected uint8 of shape \(rows, 28, 28\), got float64"),
        ({"x_train": np.zeros((60, 784), np.uint8)}, r"x_train: expected .* got uint8 of shape \(60, 784\)"),
        ({"x_train": images(0)[0], "y_train": images(0)[1]}, r"x_train: expected .* got uint8 of shape \(0, 28, 28\)"),
        ({"y_train": np.zeros(60)}, r"y_train: expected whole numbers of shape \(60,\), got float64"),
        ({"y_test": np.zeros(19, int)}, r"y_test: expected whole numbers of shape \(20,\), got int64 of shape \(19,\)"),
        ({"y_test": np.full(20, 10)}, "y_test: expected labels from 0 to 9, got 10 to 10"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_arrays_are_refused_by_name(folder, changes, complaint):
    (folder / "mnist.npz").write_bytes(archive(**changes))
    with pytest.raises(pt.errors.InputError, match=f"mnist.npz: {complaint}"):
        pt.datasets.load("mnist", folder)


@pytest.mark.parametrize(("share", "rows"), [("", 60), ("test_share = 0.5", 40)])
def test_a_configuration_takes_the_published_split_unless_a_share_is_given(folder, tmp_path, monkeypatch, share, rows):
    monkeypatch.setenv("PARTITA_DATA", str(folder))
    path = tmp_path / "mnist.toml"
    path.write_text(f'[data]\nname = "mnist"\nstandardise = false\n{share}\n[model]\nname = "softmax-regression"\n')
    (X, _), (X_test, _), _ = load_data(read_config(path), tmp_path)
    assert (len(X), len(X_test)) == (rows, 80 - rows)


def test_documents_are_read_and_checked(tmp_path, monkeypatch):
    monkeypatch.delenv("PARTITA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "ap"
    place.mkdir()
    (place / "vocab.txt").write_text("i\nyou\nthey\n")
    (place / "ap.dat").write_text("2 0:3 2:1\n1 1:4\n")
    counts, words = pt.datasets.load_documents("ap", tmp_path)
    assert words == ["i", "you", "they"]
    assert np.array_equal(counts.toarray(), [[3, 0, 1], [0, 4, 0]])
    for bad in ("2 0:3", "1 3:1", "1 0:-2", "1 0", "x"):
        (place / "ap.dat").write_text(f"{bad}\n")
        with pytest.raises(pt.errors.InputError, match=r"ap.dat:1: not a document"):
            pt.datasets.load_documents("ap", tmp_path)
    (place / "ap.dat").write_text("")
    with pytest.raises(pt.errors.InputError, match="no documents"):
        pt.datasets.load_documents("ap", tmp_path)
    (place / "ap.dat").write_bytes(b"\xff")
    with pytest.raises(pt.errors.InputError, match="cannot be read"):
        pt.datasets.load_documents("ap", tmp_path)
    with pytest.raises(pt.errors.InputError, match="PARTITA_DATA"):
        pt.datasets.load_documents("ap", tmp_path / "nowhere")


def test_tables_are_read_by_column(tmp_path):
    (tmp_path / "tables").mkdir()
    file = tmp_path / "tables" / "epil.csv"
    file.write_text("rownames,y,trt\n1,5,placebo\n2,,progabide\n")
    table = pt.datasets.load_table("epil", tmp_path)
    assert list(table) == ["y", "trt"]
    assert table["y"][0] == 5
    assert np.isnan(table["y"][1])
    assert list(table["trt"]) == ["placebo", "progabide"]
    file.write_text("rownames,y\n1\n")
    with pytest.raises(pt.errors.InputError, match="as many cells"):
        pt.datasets.load_table("epil", tmp_path)
    with pytest.raises(pt.errors.InputError, match="use one of bacteria"):
        pt.datasets.load_table("nobody", tmp_path)


def test_a_column_whose_name_stands_there_twice_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,y,y\n1,2,3\n")
    with pytest.raises(pt.errors.InputError, match="two columns are called 'y'"):
        pt.datasets.read_csv(path, "y")
