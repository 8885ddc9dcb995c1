"""The reference for Gaussian process classification: NUTS over the function at all rows and the hyperparameters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.foundation.moments import Affine
from partita.foundation.runtime import precision
from partita.gaussian_processes.kernels import SquaredExponential
from partita.studies.nuts import Plan, import_numpyro, sample_program

JITTER = 1e-6


class NutsClassifier:
    """A probit GP with log-normal priors as those of `StreamingGPClassifier`, sampled with NumPyro."""

    def __init__(self, draws: int, seed: int):
        self.draws, self.seed = draws, seed
        self.log_evidence_ = None
        self.pseudo_points_ = np.empty((0, 2))

    def partial_fit(self, X: np.ndarray, y: np.ndarray, classes: Any = None) -> "NutsClassifier":
        numpyro, distributions = import_numpyro()
        self.inputs = Affine.of_rows(X)
        self.Z = self.inputs.standardise(X)
        features = X.shape[1]

        def model() -> None:
            middle = 0.5 * jnp.log(float(features))
            variance = numpyro.sample("variance", distributions.LogNormal(0.0, 1.0))
            lengthscale = numpyro.sample(
                "lengthscale", distributions.LogNormal(jnp.full(features, middle), 1.0).to_event(1)
            )
            v = numpyro.sample("v", distributions.Normal(0, 1).expand([len(y)]).to_event(1))
            f = cholesky({"variance": variance, "lengthscale": lengthscale}, self.Z) @ v
            numpyro.factor("labels", jnp.sum(jax.scipy.special.log_ndtr((2 * y - 1) * f)))

        with precision(np.float64):
            self.samples = sample_program(model, Plan(self.draws, self.draws, seed=self.seed, depth=6))
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Probabilities of both classes, averaged over every third draw."""
        with precision(np.float64):
            thinned = {name: value[::3] for name, value in self.samples.items()}
            p = np.asarray(_probabilities(thinned, self.Z, self.inputs.standardise(X)))
        return np.stack([1 - p, p], axis=1)

    def hyperparameter_draws(self, number: int) -> dict[str, np.ndarray]:
        return {
            "variance": self.samples["variance"][:number],
            "lengthscale": self.samples["lengthscale"][:number] * self.inputs.scale,
        }


def cholesky(params: dict[str, Any], Z: Any) -> Any:
    return jnp.linalg.cholesky(SquaredExponential().gram(params, Z) + JITTER * params["variance"] * jnp.eye(len(Z)))


@jax.jit
def _probabilities(samples: dict[str, Any], Z: Any, X: Any) -> Any:
    def one(sample: dict[str, Any]) -> Any:
        params = {"variance": sample["variance"], "lengthscale": sample["lengthscale"]}
        V = jax.scipy.linalg.solve_triangular(cholesky(params, Z), SquaredExponential().cross(params, Z, X), lower=True)
        mean, variance = sample["v"] @ V, jnp.maximum(params["variance"] - jnp.sum(V**2, axis=0), 0)
        return jax.scipy.special.ndtr(mean / jnp.sqrt(1 + variance))

    return jnp.mean(jax.lax.map(one, samples), axis=0)
