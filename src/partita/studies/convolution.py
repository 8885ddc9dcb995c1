"""A convolutional network with one class per site, by what `fit` does where nothing is chosen.

`partita study convolution` says error, NLL and calibration as rounds go by, and writes them as lines of JSON.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from typer import Option

from partita.datasets import split
from partita.fitting import events
from partita.foundation.plain import Row
from partita.foundation.runtime import Array
from partita.models import Network
from partita.server.schedules import Synchronous
from partita.studies.images import Images
from partita.studies.options import Folder, Say, Seeds, Validate

SITES, EVERY = 10, 10
Quick = Annotated[bool, Option("--quick", help="Digits of 8 × 8 from a wheel, in a minute.")]


class Convolutional(eqx.Module):
    """Two convolutions, each with rectified units and pooling by two, and two dense layers."""

    convolutions: list[eqx.nn.Conv2d]
    dense: list[eqx.nn.Linear]
    pool: eqx.nn.MaxPool2d
    side: int = eqx.field(static=True)

    def __init__(self, side: int = 28, kernels: tuple[int, int] = (5, 5), hidden: int = 100, seed: int = 0):
        first, second = kernels
        left = ((side - first + 1) // 2 - second + 1) // 2
        keys = jax.random.split(jax.random.key(seed), 4)
        convolutions = [eqx.nn.Conv2d(1, 8, first, key=keys[0]), eqx.nn.Conv2d(8, 16, second, key=keys[1])]
        dense = [eqx.nn.Linear(16 * left**2, hidden, key=keys[2]), eqx.nn.Linear(hidden, 10, key=keys[3])]
        generator = np.random.default_rng(seed)
        self.convolutions = [_with_scale(layer, generator) for layer in convolutions]
        self.dense = [_with_scale(layer, generator) for layer in dense]
        self.pool, self.side = eqx.nn.MaxPool2d(2, 2), side

    def __call__(self, row: Array) -> Array:
        x: Any = row.reshape(1, self.side, self.side)
        for layer in self.convolutions:
            x = self.pool(jax.nn.relu(layer(x)))
        first, last = self.dense
        outputs: Array = last(jax.nn.relu(first(jnp.ravel(x))))
        return outputs


def _with_scale(layer: Any, generator: np.random.Generator) -> Any:
    """He et al.'s (2015) weights, and no bias."""
    shape = layer.weight.shape
    weights = generator.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
    return eqx.tree_at(
        lambda one: (one.weight, one.bias), layer, (jnp.asarray(weights, jnp.float32), jnp.zeros_like(layer.bias))
    )


def make_network(quick: bool, seed: int) -> Network:
    """The network for MNIST, or for digits of 8 × 8."""
    return Network(Convolutional(8, (3, 2), 50, seed) if quick else Convolutional(seed=seed))


def trace_rounds(images: Images, model: Network, shuffled: bool, rounds: int, seed: int) -> Iterator[Row]:
    """What is found every few rounds, and how long a round took."""
    sites = split(images.train, SITES, "iid" if shuffled else "whole-labels", seed=seed)
    before, began = 0, time.perf_counter()
    for number, event in enumerate(events(model, sites, schedule=Synchronous(rounds), seed=seed), start=1):
        if number % EVERY == 0 or number == rounds:
            taken = (time.perf_counter() - began) / (number - before)
            score = images.score(model, event.posterior)
            yield {"shuffled": shuffled, "seed": seed, "round": number, "seconds_a_round": taken, **score}
            before, began = number, time.perf_counter()


def measure_convolution(
    say: Say,
    rounds: Annotated[int, Option(min=1, help="How many rounds.")] = 150,
    seeds: Seeds = 1,
    rows: Annotated[int | None, Option(min=100, help="Only so many training rows.")] = None,
    shuffled: Annotated[bool, Option("--shuffled", help="Rows shuffled over sites, not one class at each.")] = False,
    quick: Quick = False,
    validate: Validate = False,
    folder: Folder = None,
    out: Annotated[Path, Option(help="The file of lines of JSON to write.")] = Path("convolution.jsonl"),
) -> None:
    images = Images.load("digits" if quick else "mnist", folder, rows, validate)
    lines = []
    for seed in range(seeds):
        for row in trace_rounds(images, make_network(quick, seed), shuffled, rounds, seed):
            lines.append(json.dumps(row))
            say(
                f"seed {seed}, round {row['round']}: error {100 * row['error']:.2f} %, NLL {row['nll']:.4f}, "
                f"{row['seconds_a_round']:.2f} s a round"
            )
            out.write_text("\n".join(lines) + "\n")
