"""Networks over sites that know few classes: how they are dealt, and quick forms of both studies, on digits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from partita.datasets import split
from partita.errors import InputError
from partita.server.schedules import Asynchronous, Synchronous
from partita.studies.few_classes import Course, deal_two_classes, follow, run_one_class, run_two_class
from partita.studies.images import Images

THREE = ("round 1", "round 2", "round 3")


def test_sites_that_take_turns_neither_jump_nor_lag():
    """One site at a time, each with one class: an earlier rule had 12 and 18 % validation error after fifty rounds."""
    images = Images.load("digits")
    shards = split(images.train, 10, "whole-labels", seed=0)
    course = follow(images, images.network([50]), shards, Asynchronous(400), seed=0)
    assert len(course.errors) == 40
    assert course.errors[-1] < 8
    assert course.jump(after=35) < 3


def test_the_first_rounds_count():
    """Twenty sites of two classes each: an earlier rule had 5 and 8 % validation error then, with one class each."""
    images = Images.load("digits")
    course = follow(images, images.network([50]), deal_two_classes(images.train, 20, seed=0), Synchronous(20), seed=0)
    assert course.errors[19] < 5


def test_every_row_is_dealt_once_and_few_classes_to_each():
    y = np.repeat(np.arange(10), 40)
    shards = deal_two_classes((np.arange(400.0)[:, None], y), 20, seed=3)
    assert_allclose(np.sort(np.concatenate([X[:, 0] for X, _ in shards])), np.arange(400.0))
    assert all(len(labels) == 20 and len(np.unique(labels)) <= 2 for _, labels in shards)


def test_a_jump_is_the_largest_rise():
    course = Course(np.array([9.0, 3.0, 2.0, 2.5, 1.0, 2.2, 0.9]), 0.9, 0.1)
    assert_allclose([course.jump(after=1), course.jump(after=6), course.jump(after=9)], [1.2, 0.0, 0.0])


def test_the_studies_tell_what_they_find():
    said: list[str] = []
    run_one_class(said.append, rounds=2, seeds=1, quick=True)
    run_two_class(said.append, rounds=3, seeds=1, quick=True, validate=True)
    names = [line.split(":")[0] for line in said]
    assert names == [f"seed 0, {part}" for part in ("round 1", "round 2", "at the end", *THREE, "at the end")]
    with pytest.raises(InputError, match="--schedule"):
        run_one_class(said.append, schedule="sequential", quick=True)


def test_data_of_ones_own_are_read_from_a_file(tmp_path):
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(60, 3)), np.arange(60) % 3
    path = tmp_path / "own.npz"
    np.savez(path, y_test=y[:6], X_test=X[:6], y=y, X=X)
    assert_allclose(Images.read(path).train[0], X, rtol=1e-6)
    assert len(Images.read(path, validate=True).test[1]) == 10
    said: list[str] = []
    run_one_class(said.append, rounds=2, seeds=1, table=path)
    assert "seed 0, at the end" in said[-1]


@pytest.mark.parametrize("wrong", [{"y": np.zeros(60)}, {"y_test": np.zeros(5, int)}, {"X": np.zeros(60)}, {"y": None}])
def test_other_files_are_refused(tmp_path, wrong):
    arrays = {"X": np.zeros((60, 3)), "y": np.zeros(60, int), "X_test": np.zeros((6, 3)), "y_test": np.zeros(6, int)}
    path = tmp_path / "own.npz"
    np.savez(path, **{name: array for name, array in {**arrays, **wrong}.items() if array is not None})
    with pytest.raises(InputError, match="own.npz"):
        run_one_class(print, table=path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere.npz"):
        run_one_class(print, table=tmp_path / "nowhere.npz")
