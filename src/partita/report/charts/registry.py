"""The registry of charts. The page walks through it from top to bottom and draws whatever has something to show.

A new line is one entry of LINES. A new picture is one function in a file beside this one, and one entry of PICTURES.
"""

from collections.abc import Callable

from partita.report.charts.base import AXES, Chart, Findings, Picture
from partita.report.charts.calibration import draw_calibration
from partita.report.charts.intervals import draw_coefficients, draw_posterior
from partita.report.charts.sites import SiteBars, draw_contributions

# Lines over a history. A name that stands on no page has a label here, for the pages of studies.
LINES = (
    Chart("error", label="test error"),
    Chart("nll", label="test NLL"),
    Chart("rmse", log=False, label="test RMSE"),
    Chart(
        "free_energy",
        log=False,
        words="A lower bound of the log evidence; the diamond is that of the result.",
        label="free energy",
    ),
    Chart("accepted", log=False, words="How much of the proposed changes was taken.", label="accepted share"),
    Chart(
        "staleness",
        log=False,
        words="How many updates were folded while a site was at work.",
        if_zero=False,
        label="staleness of updates",
    ),
    Chart("change", words="How far the posterior moved, in nats.", label="KL from before"),
    Chart("smse", label="test SMSE", pages=("history",)),
    Chart("nlpd", log=False, label="test NLPD", pages=("history",)),
    Chart("coverage", log=False, label="share in 95 % intervals", pages=("history",)),
    Chart("points", log=False, label="pseudo-points", pages=("history",)),
    Chart("ece", label="calibration error", pages=()),
    Chart("variance", label="variance of the process", pages=()),
    Chart("train_error", label="training error", pages=()),
    Chart("train_nll", label="training NLL", pages=()),
)
# What axes and lines are called on a page.
LABELS = {name: label for name, (_, label) in AXES.items()} | {chart.y: chart.label for chart in LINES}

# Pictures of a run. Each returns None where nothing is known that it could draw.
PICTURES: tuple[Callable[[Findings], Picture | None], ...] = (
    draw_coefficients,
    draw_contributions,
    SiteBars("updates", "Updates of sites", "How often each site has contributed."),
    SiteBars("staleness", "Staleness of sites", "Updates that were folded while a site was at work, on average."),
    SiteBars("accepted", "Accepted share of sites", "How much of a site's proposed changes was taken, on average."),
    draw_calibration,
    draw_posterior,
)


def choose_lines(page: str) -> tuple[Chart, ...]:
    """The lines of a kind of page, "run" or "history", in the order of the registry."""
    return tuple(chart for chart in LINES if page in chart.pages)


def draw_pictures(findings: Findings) -> list[Picture]:
    """All pictures for which enough is known, in the order of the registry."""
    return [picture for draw in PICTURES if (picture := draw(findings)) is not None]
