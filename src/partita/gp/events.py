"""What a stream tells of each batch: the same events as a run's, with one batch for a fold.

A batch is to a stream what a site is to a run that goes once through all sites, so an event names one site, the
batch, whose change was taken whole. Nothing travels: messages and bytes are zero, and no site's work is told apart.
"""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from scipy.linalg import solve_triangular as solve_on_host

from partita.families import Family
from partita.families.gaussian import Gaussian
from partita.families.independent import Independent
from partita.foundation.plain import Row
from partita.foundation.runtime import compile_quickly, on_host, precision
from partita.foundation.shapes import Scalar
from partita.gaussian_processes.shapes import OutputByPlace, Squares
from partita.gp.sparse import Factor, SparseGP, Whitened
from partita.gp.whitened import for_each
from partita.models import Hyper
from partita.server.events import Event

if TYPE_CHECKING:
    from partita.gp.stream import Stream


def describe_batch(before: "Stream", after: "Stream", rows: int, seconds: float, total: int | None) -> Event:
    """The event of one batch, from the streams before and after it.

    Args:
        before: in the units of the stream after it.
        after: with everything that the batch has taught.
        rows: of the batch.
        seconds: that learning took.
        total: how many batches there will be, if that is known.
    """
    last: Row = before.history[-1] if before.history else {"fold": before.batches, "seconds": 0.0}
    fold, spent = last["fold"] + 1, last["seconds"] + seconds
    whitened = after.whiten(after.factor)
    return Event(
        fold=fold,
        version=fold,
        round=float(fold),
        sites=(before.batches,),
        shares=(1.0,),
        wanted=1.0,
        taken_back=False,
        staleness=0,
        free_energy=after.log_evidence if np.isfinite(after.log_evidence) else None,
        free_energy_error=None,
        change=measure_change(before, after, whitened),
        problems=(),
        seconds=spent,
        clock=spent,
        messages=0,
        bytes_down=0,
        bytes_up=0,
        work=(),
        hyper=name_numbers(after.params),
        posterior=posterior_of(whitened, len(after.points)),
        total=fold if total is None else max(total, fold),
        step="batch",
        metrics={"points": len(after.points), "rows": rows},
    )


def name_numbers(params: dict[str, np.ndarray]) -> Hyper:
    """Every hyperparameter by a name of its own: several lengthscales are counted from 0."""
    named: Hyper = {}
    for name, value in params.items():
        numbers = np.ravel(value).tolist()
        several = {f"{name}.{place}": number for place, number in enumerate(numbers)}
        named |= several if len(numbers) > 1 else {name: numbers[0]}
    return named


def posterior_of(whitened: Whitened, points: int) -> Family:
    """Over v = L⁻¹ f(points), whose prior is N(0, I), as `Stream.ledger` has it; of several outputs, side by side."""
    each = [
        Gaussian((L_B @ half)[:points], (L_B @ L_B.T)[:points, :points])
        for L_B, half in zip(whitened.L_B, whitened.half, strict=True)
    ]
    return each[0] if len(each) == 1 else Independent.of(each)


def measure_change(before: "Stream", after: "Stream", whitened: Whitened) -> float:
    """KL(after ‖ before) in nats, of the function's values at today's points and of the hyperparameters.

    Both functions are seen with today's hyperparameters; of those there is a divergence where they have a distribution.
    """
    size, old = len(after.points), before.factor
    have, L = int(old.present.sum()), whitened.L[:size, :size]
    if have <= size and np.array_equal(after.factor.points[:have], old.points[:have]):
        seen = L[:have]
        precisions = [np.eye(size) + seen.T @ matrix[:have, :have] @ seen for matrix in old.precision]
        means = [np.linalg.solve(B, g[:have] @ seen) for B, g in zip(precisions, old.shift, strict=True)]
    else:
        with precision(np.float64):
            m, S = on_host(look_back(after.gp, after.params, old, after.factor, np.asarray(after.jitter)))
        means, precisions = list(m[:, :size]), [np.linalg.inv(one[:size, :size]) for one in S]
    parts = zip(whitened.L_B[:, :size, :size], whitened.half[:, :size], means, precisions, strict=True)
    moved = sum(_divergence(*part) for part in parts)
    return moved + (after.hyper.kl(before.hyper) if after.learning.is_variational else 0.0)


@compile_quickly
def look_back(gp: SparseGP, params: Any, old: Factor, new: Factor, jitter: Scalar) -> tuple[OutputByPlace, Squares]:
    """Mean and covariance, for each output, of v = L⁻¹ f(new points) as the old factor has it."""
    L = gp.cholesky(params, new.points, new.present, jitter)
    q = gp.posterior(params, old, jitter)
    C = solve_triangular(L, gp.cross_points(params, new.points, new.present, old), lower=True)
    C = solve_triangular(q.L, C.T, lower=True).T  # L⁻¹ K L_old⁻ᵀ
    seen = for_each(lambda L_B: solve_triangular(L_B, C.T, lower=True), q.L_B)  # L_B⁻¹ Cᵀ
    left = jnp.eye(len(L), dtype=L.dtype) - C @ C.T
    return jnp.einsum("oc,ocn->on", q.half, seen), for_each(lambda W: W.T @ W, seen) + left


def _divergence(L_B: np.ndarray, half: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> float:
    """KL(N(μ, B⁻¹) ‖ N(mean, precision⁻¹)), with B = L_B L_Bᵀ and μ = L_B⁻ᵀ half; not a number, where that is none."""
    try:
        root = np.linalg.cholesky(precision)
    except np.linalg.LinAlgError:
        return float("nan")
    apart = root.T @ (solve_on_host(L_B, half, lower=True, trans="T") - mean)
    ratio = solve_on_host(L_B, root, lower=True)
    logs = np.log(np.diag(root)).sum() - np.log(np.diag(L_B)).sum()
    return float(0.5 * (np.sum(ratio**2) + apart @ apart - len(mean)) - logs)
