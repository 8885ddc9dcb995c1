"""Section 6.2: private points of a new batch, found as a factor, or as a conditional density that is optimised."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from partita.foundation.runtime import precision

OLD, NEW, ROWS = 2, 3, 8
# Of a conditional density q(b | a) = N(A a + m, S): A, m and the lower half of a root of S.
PARTS = np.cumsum([NEW * OLD, NEW])


class Batch(NamedTuple):
    """A second batch, y ~ Poisson(exp f(x)) with f(x) = v·(a, b) + N(0, left); a are the points of the first batch."""

    y: np.ndarray
    v: np.ndarray
    left: np.ndarray
    mean: np.ndarray  # of q(a), which stays
    covariance: np.ndarray
    gain: np.ndarray  # p(b | a) = N(gain a, conditional)
    conditional: np.ndarray


class Conditional(NamedTuple):
    """q(b | a) = N(A a + m, S)."""

    A: np.ndarray
    m: np.ndarray
    S: np.ndarray


def make_batch(seed: int) -> Batch:
    generator = np.random.default_rng(seed)
    inputs = generator.uniform(-2, 2, OLD + NEW + ROWS)
    K = np.exp(-np.square(inputs[:, None] - inputs) / 2) + 1e-3 * np.eye(len(inputs))
    points, rows = slice(0, OLD + NEW), slice(OLD + NEW, None)
    v = np.linalg.solve(K[points, points], K[points, rows]).T
    gain = np.linalg.solve(K[:OLD, :OLD], K[:OLD, OLD : OLD + NEW]).T
    root = generator.normal(size=(OLD, OLD)) / 3
    return Batch(
        y=generator.poisson(2.0, ROWS).astype(float),
        v=v,
        left=1 - np.sum(v * K[rows, points], axis=1),
        mean=generator.normal(size=OLD),
        covariance=root @ root.T + 0.1 * np.eye(OLD),
        gain=gain,
        conditional=K[OLD : OLD + NEW, OLD : OLD + NEW] - gain @ K[:OLD, OLD : OLD + NEW],
    )


def moments(batch: Batch, q: Conditional):
    """Means and variances of f(x) under q(a) q(b | a), for every row."""
    of_a = batch.v[:, :OLD] + batch.v[:, OLD:] @ q.A
    mean = of_a @ batch.mean + batch.v[:, OLD:] @ q.m
    spread = jnp.sum(of_a @ batch.covariance * of_a, axis=1)
    return mean, batch.left + spread + jnp.sum(batch.v[:, OLD:] @ q.S * batch.v[:, OLD:], axis=1)


def free_energy(batch: Batch, q: Conditional):
    """E_q[log p(y | f)] - E_q(a)[KL(q(b | a) ‖ p(b | a))], without what does not depend on q."""
    mean, variance = moments(batch, q)
    off, inverse = q.A - batch.gain, np.linalg.inv(batch.conditional)
    shift = off @ batch.mean + q.m
    squares = jnp.trace(inverse @ (q.S + off @ batch.covariance @ off.T)) + shift @ inverse @ shift
    divergence = (squares - jnp.linalg.slogdet(q.S)[1]) / 2
    return jnp.sum(batch.y * mean - jnp.exp(mean + variance / 2)) - divergence


def optimise(batch: Batch) -> Conditional:
    """The global parametrisation: SciPy climbs the free energy in A, m and a root of S."""

    def unpack(numbers):
        A, m, half = jnp.split(numbers, PARTS)
        root = jnp.zeros((NEW, NEW)).at[np.tril_indices(NEW)].set(half)
        return Conditional(A.reshape(NEW, OLD), m, root @ root.T)

    half = np.linalg.cholesky(batch.conditional)[np.tril_indices(NEW)]
    start = np.concatenate([batch.gain.ravel(), np.zeros(NEW), half])
    slope = jax.jit(jax.value_and_grad(lambda numbers: -free_energy(batch, unpack(numbers))))
    found = minimize(slope, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    return Conditional(*map(np.asarray, unpack(jnp.asarray(found.x))))


def send_message(batch: Batch, q: Conditional) -> tuple[np.ndarray, ...]:
    """Property 4: slopes of E_q[log p(y | f)] in E[b], E[b bᵀ] and E[b aᵀ]."""
    mean, variance = map(np.asarray, moments(batch, q))
    rate, (v_a, v_b) = np.exp(mean + variance / 2), np.split(batch.v, [OLD], axis=1)
    first, second = batch.y - (1 - mean) * rate, -rate / 2
    return v_b.T @ first, v_b.T @ (second[:, None] * v_b), 2 * v_b.T @ (second[:, None] * v_a)


def refine(batch: Batch, rounds: int = 400, damping: float = 0.2) -> Conditional:
    """PVI: the batch's factor in b, b bᵀ and b aᵀ becomes its message, by a damped fixed point; q(a) stays."""
    prior = np.linalg.inv(batch.conditional)
    factor: tuple[np.ndarray, ...] = (np.zeros(NEW), np.zeros((NEW, NEW)), np.zeros((NEW, OLD)))
    for _ in range(rounds):
        S = np.linalg.inv(prior - 2 * factor[1])
        q = Conditional(S @ (prior @ batch.gain + factor[2]), S @ factor[0], S)
        factor = tuple(old + damping * (new - old) for old, new in zip(factor, send_message(batch, q), strict=True))
    return q


@pytest.mark.parametrize("seed", range(2))
def test_a_factor_of_private_points_and_a_conditional_that_is_optimised_have_the_same_fixed_point(seed):
    batch = make_batch(seed)
    with precision(np.float64):
        climbed, refined = optimise(batch), refine(batch)
        for first, second in zip(climbed, refined, strict=True):
            np.testing.assert_allclose(first, second, atol=2e-6)
        # The old factor alone is not the answer: the batch has something to say.
        before = Conditional(batch.gain, np.zeros(NEW), batch.conditional)
        assert free_energy(batch, refined) > free_energy(batch, before) + 0.5
        assert abs(float(free_energy(batch, refined) - free_energy(batch, climbed))) < 1e-9
