"""NUTS, the sampler of NumPyro: every study that compares with it samples here."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from partita.foundation.checks import import_extra


@dataclass(frozen=True)
class Plan:
    """How NUTS runs: how long it warms up, how much it draws in how many chains, from which seed, and how it moves.

    Steps are adapted until a share `accept` of them is accepted; a path doubles at most `depth` times. With `dense` the
    mass matrix has all its entries, and with `from_median` a chain begins at the medians of a program's priors.
    """

    warm_up: int
    draws: int
    chains: int = 1
    seed: int = 0
    accept: float = 0.8
    depth: int = 10
    dense: bool = False
    from_median: bool = False


def import_numpyro() -> tuple[Any, Any]:
    """NumPyro and its distributions, or an error that says how to get them."""
    numpyro = import_extra("numpyro", "NumPyro", "numpyro")
    return numpyro, import_extra("numpyro.distributions", "NumPyro", "numpyro")


def sample_program(
    program: Callable[..., Any], plan: Plan, data: dict[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """Draws of every variable of a NumPyro program, by name."""
    sampler = _sampler(plan, program=program)
    sampler.run(jax.random.key(plan.seed), **(data or {}))
    return {name: np.asarray(values) for name, values in sampler.get_samples().items()}


def sample_density(energy: Callable[[Any], Any], plan: Plan, start: Any) -> np.ndarray:
    """Draws of a vector whose negative log density is `energy`, one row each."""
    sampler = _sampler(plan, energy=energy)
    sampler.run(jax.random.key(plan.seed), init_params=start)
    return np.asarray(sampler.get_samples())


def sample_until(
    energy: Callable[[Any], Any], plan: Plan, size: int, is_precise: Callable[[np.ndarray], bool], most: int
) -> np.ndarray:
    """Draws until they are precise enough, as chains × draws × `size`: at most `most` times those of the plan."""
    sampler = _sampler(plan, energy=energy)
    keys = jax.random.split(jax.random.key(plan.seed), most)
    sampler.run(keys[0], init_params=0.1 * jax.random.normal(keys[0], (plan.chains, size)))
    drawn = [np.asarray(sampler.get_samples(group_by_chain=True))]
    while not is_precise(np.concatenate(drawn, axis=1)) and len(drawn) < most:
        sampler.post_warmup_state = sampler.last_state
        sampler.run(keys[len(drawn)])
        drawn.append(np.asarray(sampler.get_samples(group_by_chain=True)))
    return np.concatenate(drawn, axis=1)


def _sampler(plan: Plan, program: Callable[..., Any] | None = None, energy: Callable[[Any], Any] | None = None) -> Any:
    import_numpyro()
    from numpyro.infer import MCMC, NUTS, init_to_median, init_to_uniform

    kernel = NUTS(
        program,
        potential_fn=energy,
        dense_mass=plan.dense,
        target_accept_prob=plan.accept,
        max_tree_depth=plan.depth,
        init_strategy=init_to_median if plan.from_median else init_to_uniform,
    )
    return MCMC(
        kernel,
        num_warmup=plan.warm_up,
        num_samples=plan.draws,
        num_chains=plan.chains,
        chain_method="vectorized",
        progress_bar=False,
    )


def load_or_sample(
    folder: Path, about: str, arrays: Sequence[np.ndarray], sample: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What `sample` finds, unless a file in the folder has it: of the same words and the same numbers."""
    digest = hashlib.sha256(about.encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    path = folder / f"{digest.hexdigest()[:32]}.npz"
    if path.exists():
        with np.load(path) as stored:
            values = {name: stored[name] for name in stored.files}
        return {name: value if value.ndim else float(value) for name, value in values.items()}
    found = {name: value for name, value in sample().items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(path, **found)
    return found
