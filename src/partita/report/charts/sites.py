"""Pictures of sites: bars of what each did and contributed, and the labels that each holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.foundation.text import clean
from partita.report.charts.base import COLOURS, Findings, Picture, escape_for_plotly, style_figure

# The most sites that have a bar each.
MOST_BARS = 40
CONTRIBUTION = "How far the posterior would be without a site"


def draw_contributions(findings: Findings) -> Picture | None:
    """What each site contributed to the posterior, in nats."""
    if not findings.contributions:
        return None
    names, nats = zip(*findings.contributions, strict=True)
    words = f"{CONTRIBUTION}, in nats: KL(posterior ‖ posterior / factor)."
    return draw_bars("Contribution of sites", words, "nats", names, nats)


def compare_contributions(values: Mapping[str, Sequence[float] | None]) -> Picture:
    """What each site contributed with each of several methods, in the colours of their lines.

    A method whose value is None has a line but no bars.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for number, (name, numbers) in enumerate(values.items()):
        if numbers is not None:
            sites = [f"site {m}" for m in range(len(numbers))]
            colour = COLOURS[number % len(COLOURS)]
            figure.add_bar(x=sites, y=list(numbers), name=escape_for_plotly(name), marker={"color": colour})
    figure.update_yaxes(title="nats", rangemode="tozero")
    style_figure(figure).update_layout(showlegend=False)
    return Picture("Contribution of sites", f"{CONTRIBUTION}: KL(posterior ‖ posterior / factor).", figure)


@dataclass(frozen=True)
class SiteBars:
    """Bars of one number in the sites' rows; no picture where it is the same for all sites."""

    name: str
    title: str
    words: str

    def __call__(self, findings: Findings) -> Picture | None:
        values = [row[self.name] for row in findings.sites]
        if not values or not max(values) > min(values):
            return None
        return draw_bars(self.title, self.words, self.name, [row["site"] for row in findings.sites], values)


def draw_bars(title: str, words: str, unit: str, names: Sequence[str], values: Sequence[float]) -> Picture:
    """One bar for every name; where there are many, for the largest values."""
    import plotly.graph_objects as go

    numbers = np.nan_to_num(np.asarray(values, float))
    shown = np.sort(np.argsort(-numbers, kind="stable")[:MOST_BARS])
    more = f" The {MOST_BARS} largest of {len(names)}." if len(names) > MOST_BARS else ""
    labels = [escape_for_plotly(names[i]) for i in shown]
    figure = go.Figure(go.Bar(x=labels, y=numbers[shown].tolist(), marker={"color": COLOURS[0]}, name=unit))
    figure.update_xaxes(type="category")
    figure.update_yaxes(title=unit, rangemode="tozero")
    top = int(np.argmax(numbers))
    return Picture(title, f"{words} Most: {clean(names[top])}, {numbers[top]:.3g}.{more}", style_figure(figure))


def draw_labels(shards: Sequence[tuple[np.ndarray, ...]]) -> Picture:
    """How many rows of which label every site has."""
    import plotly.graph_objects as go

    labels = np.unique(np.concatenate([shard[1] for shard in shards]))
    counts = np.array([[np.sum(shard[1] == label) for shard in shards] for label in labels])
    figure = go.Figure(
        go.Heatmap(
            z=counts,
            x=[f"site {m}" for m in range(len(shards))],
            y=[f"{label:g}" for label in labels],
            colorscale="Viridis",
            colorbar={"title": {"text": "rows"}, "thickness": 14},
        )
    )
    figure.update_yaxes(title="label", type="category")
    rows = ", ".join(str(len(shard[1])) for shard in shards)
    return Picture("Labels at each site", f"Rows per site: {rows}.", style_figure(figure))
