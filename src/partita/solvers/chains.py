"""Markov chains: draws from a density that is known up to scale, near a Gaussian that is known."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from partita.families import Family
from partita.foundation.checks import check_count, check_positive, check_share
from partita.foundation.runtime import Array, ravel
from partita.foundation.shapes import Scalar


class _Whereabouts(NamedTuple):
    """Where chains are, the log density there, and its gradient."""

    place: Array
    value: Array
    gradient: Array


class Chains(eqx.Module):
    """Hamiltonian Monte Carlo (Neal, 2011): `number` chains side by side, each of which makes `moves`.

    Chains begin at draws of a Gaussian q, and numbers are in units of its deviations. A move is of `leaps` steps of
    `step_size`, with a random number between a half and one of it; where a chain would not go it stays. Draws are
    what chains are at after the first `warm_up` share of moves.
    """

    number: int = 100
    moves: int = 20
    leaps: int = 5
    step_size: float = 0.2
    warm_up: float = 0.5

    def __check_init__(self) -> None:
        check_count("Chains: ", number=self.number, moves=self.moves, leaps=self.leaps)
        check_positive("Chains: ", step_size=self.step_size)
        check_share("Chains: ", warm_up=self.warm_up)

    def draw(self, log_density: Callable[[Any], Scalar], q: Family, key: Array) -> Any:
        """Parameters along one leading axis."""
        gaussian = q.as_gaussian("Chains")
        start_key, move_key = jax.random.split(key)
        unit = ravel(gaussian.scale)[0]
        whole = ravel(gaussian.location)[1]
        slope = jax.vmap(jax.value_and_grad(lambda place: log_density(whole(place * unit))))
        start = jax.vmap(lambda theta: ravel(theta)[0] / unit)(q.sample(start_key, (self.number,)))

        def move(now: Any, key: Array) -> tuple[Any, Array]:
            pushed, how_far, chance = jax.random.split(key, 3)
            momentum = jax.random.normal(pushed, now.place.shape, now.place.dtype)
            step = self.step_size * jax.random.uniform(how_far, (self.number, 1), now.place.dtype, 0.5, 1.0)

            def leap(_: Array, state: tuple[_Whereabouts, Array]) -> tuple[_Whereabouts, Array]:
                at, momentum = state
                half = momentum + 0.5 * step * at.gradient
                place = at.place + step * half
                at = _Whereabouts(place, *slope(place))
                return at, half + 0.5 * step * at.gradient

            reached, end = jax.lax.fori_loop(0, self.leaps, leap, (now, momentum))
            gain = reached.value - now.value - 0.5 * jnp.sum(end**2 - momentum**2, axis=1)
            # A comparison with a value that is not a number is false.
            taken = jnp.log(jax.random.uniform(chance, (self.number,), now.place.dtype)) < gain
            now = _Whereabouts(
                jnp.where(taken[:, None], reached.place, now.place),
                jnp.where(taken, reached.value, now.value),
                jnp.where(taken[:, None], reached.gradient, now.gradient),
            )
            return now, now.place

        begun = _Whereabouts(start, *slope(start))
        _, places = jax.lax.scan(move, begun, jax.random.split(move_key, self.moves))
        left_out = int(self.warm_up * (self.moves - 1))
        return jax.vmap(lambda place: whole(place * unit))(places[left_out:].reshape(-1, len(unit)))
