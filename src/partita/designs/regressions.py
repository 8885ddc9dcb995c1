"""The model of a regression, from what sites have agreed on: no row is looked at."""

from functools import lru_cache
from typing import Any

import numpy as np

from partita.designs.design import Design
from partita.designs.responses import Response
from partita.models import AbstractModel, NumPyroModel, from_numpyro


def rebuild_model(design: Design) -> AbstractModel:
    """The model of a design, for as many columns as it has."""
    model = _model(design)
    if not isinstance(model, NumPyroModel):
        return model
    return model.sized((np.zeros((1, len(design.names))), np.zeros(1, np.int32), np.full(1, design.response.example)))


def _model(design: Design) -> AbstractModel:
    features, intercept, grouped = len(design.names), design.intercept, design.group is not None
    if not grouped and (features or intercept):
        model = design.response.make_model(features, intercept, design.prior_scale, design.noise_scale)
        if model is not None:
            return model
    program = _program(design.response, intercept, grouped, design.prior_scale, design.noise_scale)
    return from_numpyro(program, ("X", "group", "y"), local={"group": "group"} if grouped else None)


@lru_cache(maxsize=64)
def _program(response: Response, intercept: bool, grouped: bool, prior_scale: float, noise_scale: float) -> Any:
    """The same regressions as a NumPyro program: with a negative binomial's size, noise, and groups.

    The same function for the same arguments: what is compiled for one regression serves the next.
    """
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def program(X: Any, group: Any, y: Any) -> None:
        f = jnp.zeros(X.shape[0])
        if X.shape[1]:
            weights = numpyro.sample("weights", dist.Normal(0, prior_scale).expand([X.shape[1]]).to_event(1))
            f = X @ weights
        if intercept:
            f = f + numpyro.sample("intercept", dist.Normal(0, 10))
        if grouped:
            spread = numpyro.sample("spread", dist.HalfNormal(1))
            with numpyro.plate("group", 1):
                f = f + numpyro.sample("own", dist.Normal(0, spread))
        numpyro.sample("y", response.distribution(f, noise_scale), obs=y)

    return program
