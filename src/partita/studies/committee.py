"""The Bayesian committee machine with its prior split: what inference without any exchange comes to."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from partita.fitting import evidence, fit
from partita.models import AbstractModel, prior_of
from partita.result import Result
from partita.server.schedules import Synchronous
from partita.server.settings import check_seed
from partita.solvers import Solver

COUNTED = ("seconds", "messages", "bytes", "bytes_down", "bytes_up")


def split_prior(model: AbstractModel, shards: Sequence[Any], solver: Solver, seed: int = 0) -> Result:
    """∏ q_k(θ), where q_k ≈ p(θ)^(N_k / N) p(y_k | θ) is what site k finds alone (Tresp, 2000; Section 7.1).

    N_k of the N rows are at site k, so that shares of the prior add up to one; rows count as often as they weigh. As a
    result of one round: its factors are q_k / p^(N_k / N). With the prior whole at every site, and its surplus divided
    out, a committee is one undamped round of PVI: `fit(…, schedule=Synchronous(1), damping=1.0)`.
    """
    prior = prior_of(model, model.hyper)
    rows = [float(np.sum(model.shard(site, shard).weights)) for site, shard in enumerate(shards)]
    shares = [prior ** (count / math.fsum(rows)) for count in rows]
    members = [
        fit(
            model.with_prior(share),
            [shard],
            solver=solver,
            schedule=Synchronous(1),
            damping=1.0,
            start=model.start,
            # Sites draw differently, as they do in one run.
            seed=(check_seed(seed) * len(rows) + site) % 2**32,
        )
        for site, (share, shard) in enumerate(zip(shares, shards, strict=True))
    ]
    posterior = reduce(mul, (member.posterior for member in members))
    divergence = float(posterior.kl(prior))
    expected = tuple(evidence(model, [shard], posterior, seed=seed) + divergence for shard in shards)
    last = [member.history[-1] for member in members]
    row = {**last[0], "version": len(rows), "total": len(rows), "site": None, "sites": len(rows), "free_energy": None}
    return replace(
        members[0],
        model=model,
        posterior=posterior,
        prior=prior,
        factors=tuple(member.posterior / share for member, share in zip(members, shares, strict=True)),
        log_evidence=math.fsum(expected) - divergence,
        expected_log_probs=expected,
        history=[{**row, **{name: sum(one[name] for one in last) for name in COUNTED}}],
        seed=seed,
    )
