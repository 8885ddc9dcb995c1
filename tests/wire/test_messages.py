"""Tasks and updates that are well-formed bytes, and yet not what they should be."""

import dataclasses

import numpy as np
import pytest
from safetensors import numpy as safetensors

from partita.errors import MalformedMessage, MalformedUpdate
from partita.families import Gaussian
from partita.wire.messages import decode_task, decode_update, encode_task, encode_update, pack, update_parts
from partita.wire.tasks import Task, Update

LIKE = Gaussian.from_moments(np.zeros(2), np.eye(2))
NOT_FINITE = Gaussian(np.array([np.nan, 0.0]), np.eye(2))
TASK = Task(1, 5, LIKE, LIKE, {"noise": 2.0}, start=LIKE, anchor=LIKE)


@pytest.mark.parametrize("name", ["cavity", "factor", "start", "anchor"])
def test_densities_of_a_task_are_finite(name):
    with pytest.raises(MalformedMessage, match=f"task: cannot be read: {name}: is not finite"):
        decode_task(encode_task(dataclasses.replace(TASK, **{name: NOT_FINITE})), LIKE)


@pytest.mark.parametrize(
    "about",
    [
        {"hyper": {"noise": "2.0"}},
        {"hyper": {"noise": True}},
        {"hyper": [2.0]},
        {"site": 0.5},
        {"site": -1},
        {"site": "1"},
        {"version": True},
        {"version": None},
    ],
)
def test_plain_values_of_a_task_are_what_they_should_be(about):
    plain = {"site": 1, "version": 5, "message_only": True, "hyper": {}} | about
    arrays = {f"start.{number}": leaf for number, leaf in enumerate((LIKE.precision_times_location, LIKE.precision))}
    assert decode_task(pack("task", plain | {"site": 1, "version": 5, "hyper": {}}, arrays), LIKE).site == 1
    with pytest.raises(MalformedMessage, match=f"task: cannot be read: {next(iter(about))}"):
        decode_task(pack("task", plain, arrays), LIKE)


@pytest.mark.parametrize(
    "wrong", [{"outcome": 0.5}, {"outcome": np.nan}, {"outcome": 99}, {"steps": 1.5}, {"steps": np.inf}, {"steps": -1}]
)
def test_outcome_and_steps_of_an_update_are_whole_numbers(wrong):
    update = dataclasses.replace(Update(1, 5, LIKE, 1.0), **wrong)
    with pytest.raises(MalformedUpdate, match="site 1: cannot be read"):
        decode_update(1, 5, encode_update(update), LIKE)


@pytest.mark.parametrize("compression", ["none", "float16"])
def test_an_update_is_the_file_that_safetensors_write_and_its_arrays_are_not_copied(compression):
    update = Update(1, 5, LIKE, 1.0, hyper_gradient={"noise": 2.0, "größe": 3.0})
    payload = encode_update(update, compression)
    arrays = safetensors.load(payload)
    assert payload == safetensors.save(
        {**arrays, **{name: arrays[name].reshape(()) for name in arrays if "hyper" in name or "scale" in name}}
    )
    views = [np.frombuffer(part, np.uint8) for part in update_parts(update)[1:]]
    assert any(np.shares_memory(view, LIKE.precision) for view in views)
