"""The paper's ninth figure: the free energy over a hyperparameter and a variational one, and the collapsed bound."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.expectations import GaussHermite
from partita.families import Gaussian
from partita.foundation.runtime import Array, precision
from partita.free_energy import LocalProblem
from partita.report.charts import COLOURS
from partita.shards import Shard
from partita.site.worker import load_shards
from partita.studies.pictures.drawing import import_pyplot
from partita.studies.pictures.one_weight import MODEL, draw_rows, find_optimum

ROWS = draw_rows(24, seed=8)
# Deviations of the prior, and locations of q; and where gradients are drawn.
SCALES, LOCATIONS, SHOWN = np.geomspace(0.5, 20, 120), np.linspace(0.2, 4.0, 120), (0.9, 1.6, 5.0)
NEWTON_STEPS = 30


@dataclass(frozen=True)
class Landscape:
    """F(ε, q) with all rows at one site, where ε is the deviation of the prior, and q has a fixed variance."""

    shard: Shard
    variance: float

    @classmethod
    def of_rows(cls) -> "Landscape":
        """With the variance that global VI finds under the model's own prior."""
        best: Any = find_optimum([ROWS])
        return cls(load_shards(MODEL, [ROWS])[0], float(best.scale[0]) ** 2)

    def bound(self, scale: Array, location: Array) -> Array:
        """E_q[log p(y | θ)] - KL(q ‖ p(θ | ε))."""
        prior = Gaussian(jnp.zeros(1), jnp.reshape(scale**-2, (1, 1)))
        q = Gaussian(jnp.reshape(location / self.variance, (1,)), jnp.full((1, 1), 1 / self.variance))
        problem = LocalProblem(MODEL, GaussHermite(64), prior, self.shard, {"prior_scale": scale})
        found: Array = problem.free_energy(q, jax.random.key(0))
        return found

    def values(self, scales: np.ndarray, locations: np.ndarray) -> np.ndarray:
        """F at pairs of both."""
        with precision(np.float64):
            return np.asarray(jax.jit(jax.vmap(self.bound))(jnp.asarray(scales), jnp.asarray(locations)))

    def slopes(self, scales: np.ndarray, locations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """dF/dε and dF/dψ there, each with the other fixed."""
        with precision(np.float64):
            gradient = jax.jit(jax.vmap(jax.grad(self.bound, argnums=(0, 1))))
            first, second = gradient(jnp.asarray(scales), jnp.asarray(locations))
        return np.asarray(first), np.asarray(second)

    def collapse(self, scales: np.ndarray) -> np.ndarray:
        """Locations where F is highest, by Newton's steps."""
        slope = jax.grad(self.bound, argnums=1)

        def climb(scale: Array) -> Array:
            def step(_: int, location: Array) -> Array:
                return location - slope(scale, location) / jax.grad(slope, argnums=1)(scale, location)

            found: Array = jax.lax.fori_loop(0, NEWTON_STEPS, step, jnp.ones((), scale.dtype))
            return found

        with precision(np.float64):
            return np.asarray(jax.jit(jax.vmap(climb))(jnp.asarray(scales)))


def draw(path: Path) -> None:
    """Left: contours of F, and where q is best; right: the collapsed bound, with slopes of F at the best q."""
    figure, (left, right) = import_pyplot().subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    landscape = Landscape.of_rows()
    across, along = np.meshgrid(SCALES, LOCATIONS)
    values = landscape.values(across.ravel(), along.ravel()).reshape(across.shape)
    levels = np.sort(values.max() - np.geomspace(0.03, 30, 14))
    left.contour(SCALES, LOCATIONS, values, levels, colors=COLOURS[2], linewidths=1, linestyles="solid")
    best = landscape.collapse(SCALES)
    collapsed = landscape.values(SCALES, best)
    left.plot(SCALES, best, color=COLOURS[0], linewidth=2)
    right.plot(SCALES, collapsed, color=COLOURS[0], linewidth=2)
    _draw_slopes(left, right, landscape)
    left.set(ylabel="ψ: location of q", title="free energy F(ε, ψ), and where it is highest for each ε")
    right.set(ylabel="nats", title="collapsed bound, and slopes of F by ε with ψ fixed")
    right.set_ylim(collapsed.min() - 0.3, collapsed.max() + 0.5)
    for axis in (left, right):
        axis.set(xscale="log", xlabel="ε: deviation of the prior", xlim=(SCALES[0], SCALES[-1]))
        axis.set_xticks((0.5, 1, 2, 5, 10, 20), ("0.5", "1", "2", "5", "10", "20"))
        axis.minorticks_off()
        axis.title.set_fontsize(10)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)


def _draw_slopes(left: Any, right: Any, landscape: Landscape) -> None:
    """Gradients at the best q, which have nothing along ψ, and the lines that they make of the bound."""
    scales = np.array(SHOWN)
    locations = landscape.collapse(scales)
    slopes, heights = landscape.slopes(scales, locations)[0] * scales, landscape.values(scales, locations)
    for scale, location, slope, height in zip(scales, locations, slopes, heights, strict=True):
        away = np.array([-0.45, 0.45])
        right.plot(scale * np.exp(away), height + slope * away, color=COLOURS[1], linewidth=1.5)
        right.plot(scale, height, "o", color=COLOURS[1], markersize=5)
        left.plot(scale, location, "o", color=COLOURS[1], markersize=5)
        arrow = {"arrowstyle": "-|>", "color": COLOURS[1], "lw": 2}
        left.annotate("", (scale * np.exp(0.5 * np.sign(slope)), location), (scale, location), arrowprops=arrow)
