"""The command line: a thin layer over the library."""

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

# XLA reports every program that it takes from its cache on standard error, and on some processors calls it a danger at
# the length of a page (openxla/xla#44565). What really fails is raised.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import typer

from partita._version import __version__
from partita.federation.commands import federation

app = typer.Typer(
    name="partita",
    help="Partitioned variational inference: one posterior from data in many places, or over time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # Click says so already.
    suggest_commands=False,
)
app.add_typer(federation)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line, the last a summary.")]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, or of a federation's server.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing before the end.")]


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"partita {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Partitioned variational inference."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html.")] = Path(),
    seed: Annotated[int, typer.Option(help="Of the split and of all randomness.")] = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Fit digits spread over ten sites, six ways, and write report.html."""
    from partita.demo import report, run_demo
    from partita.report import write_report
    from partita.report.terminal import print_table
    from partita.runtime import cache_compilation
    from partita.telemetry import JsonLines, Progress, to_json

    cache_compilation()

    def watch(method: Any) -> Any:
        return JsonLines(sys.stdout, {"method": method.name}) if json else Progress(method.name, quiet=quiet)

    with suppress_interrupt("nothing was kept; begin again with: partita demo") as look:
        outcomes, digits = run_demo(seed, lambda method: (watch(method), look))
    page = write_report(out / "report.html", report(outcomes, digits))
    rows = [outcome.row for outcome in outcomes]
    if json:
        typer.echo(to_json({"event": "summary", "rows": rows, "report": str(page)}))
    else:
        print_table("Digits over ten sites: test set of 359", rows)
        typer.echo(f"curves: {page}")


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Take precedence over the file."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME if not given.")] = None,
    resume: Annotated[bool, typer.Option(help="Carry on with the run in that folder.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Fit the model that a file describes, keep the run in a folder, and write its report."""
    from partita.config import build_model, feature_names, load_data, read_config
    from partita.datasets import split
    from partita.predictive import expected_response
    from partita.report.measures import write_measures
    from partita.run import fit
    from partita.runtime import cache_compilation
    from partita.telemetry import Every, JsonLines, Progress

    cache_compilation()
    wanted = read_config(config, settings or ())
    if wanted.regression is not None:
        return run_regression(config, wanted, settings or (), out or Path("runs") / config.stem, resume, quiet, json)
    (X, y), test, design = load_data(wanted, config.parent)
    model: Any = build_model(wanted, X, y)
    parts = wanted.partition
    shards = split((X, y), parts.sites, parts.how, concentration=parts.concentration, seed=wanted.seed)  # type: ignore[arg-type]
    folder = out or Path("runs") / config.stem

    def metrics(posterior: Any) -> dict[str, float]:
        return model.score(expected_response(model, posterior, test[0]), test[1])

    assert wanted.schedule is not None
    every = Every(metrics, folds=1 if wanted.schedule.waits and wanted.schedule.parallel else parts.sites)
    progress = JsonLines(sys.stdout) if json else Progress(config.stem, quiet=quiet)
    with suppress_interrupt(going_on(config, folder, settings or ())) as look:
        result = fit(
            model,
            shards,
            solver=wanted.solver,
            schedule=wanted.schedule,
            damping=wanted.damping,
            hyper=wanted.hyper,
            seed=wanted.seed,
            run_dir=folder,
            resume=resume,
            callbacks=(every, progress, look),
        )
        # First, because whoever watches looks for them when there is a result.
        write_measures(folder, result, test, feature_names(wanted, config.parent))
        replace(result, design=design).save(folder / "result.safetensors")
    finish(folder, json)


def going_on(config: Path, folder: Path, settings: Sequence[str]) -> str:
    changed = [f"--set={one}" for one in settings]
    again = shlex.join(["partita", "run", str(config), *changed, "--out", str(folder), "--resume"])
    return f"every finished update is kept. Go on with: {again}"


def run_regression(
    config: Path, wanted: Any, settings: Sequence[str], folder: Path, resume: bool, quiet: bool, json: bool
) -> None:
    """A formula on one table per site, and the formulas that it is compared with."""
    from partita.formulas import regress
    from partita.formulas.fitting import check_comparable
    from partita.formulas.regression import check_level
    from partita.formulas.tables import read_sites
    from partita.report.regression import described, tables, write_regression
    from partita.report.terminal import print_table
    from partita.telemetry import JsonLines, Progress, to_json

    asked = wanted.regression
    sites = read_sites(wanted.data.sites, config.parent)
    check_level(asked.level)
    formulas = (asked.formula, *asked.compare)
    check_comparable(
        formulas, sites, family=asked.family, held_out=asked.held_out, weights=asked.weights, seed=wanted.seed
    )
    found = []
    with suppress_interrupt(going_on(config, folder, settings)) as look:
        for number, formula in enumerate(formulas):
            place = folder / f"compare-{number}" if number else folder
            spoken = Progress(formula, quiet=quiet, patient=True)
            progress = JsonLines(sys.stdout, {"formula": formula}) if json else spoken
            fitted = regress(
                formula,
                sites,
                family=asked.family,
                prior_scale=asked.prior_scale,
                held_out=asked.held_out,
                weights=asked.weights,
                schedule=wanted.schedule,
                damping=wanted.damping,
                seed=wanted.seed,
                run_dir=place,
                resume=resume,
                callbacks=(progress, look),
                quiet=quiet or json or number > 0,
            )
            fitted.save(place / "result.safetensors")
            found.append(fitted)
        row = described(found, asked.level)
        write_regression(folder, row)
    if json:
        typer.echo(to_json({"event": "regression", **row}))
    else:
        for caption, rows in tables(row).items():
            print_table(caption, list(rows))
    finish(folder, json)


@app.command()
def report(folder: RunFolder, json: Json = False) -> None:
    """Write DIR/report.html from what DIR holds."""
    finish(folder, json)


@app.command()
def watch(
    folder: RunFolder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; any that is free, if not given.")] = 0,
    terminal: Annotated[bool, typer.Option("--terminal", help="Here, until the run is finished.")] = False,
    json: Json = False,
) -> None:
    """Look at a run while it goes on: its report, live, in a browser on this machine or here."""
    from partita.report.live import served
    from partita.report.terminal import watch as watch_here
    from partita.telemetry import to_json

    follower = followed(folder)
    if not follower.has_begun:
        typer.echo(f"{folder}: no run there yet; waiting for one to begin", err=True)
    with suppress(KeyboardInterrupt):
        if terminal:
            watch_here(follower)
            return
        with served(follower, port) as url:
            told = f"{folder}: {url} (only from this machine; Ctrl-C ends watching, not the run)"
            typer.echo(to_json({"event": "watching", "run": str(folder), "url": url}) if json else told)
            sys.stdout.flush()
            threading.Event().wait()


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One of them: explain it and run it on small real data.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Run with comparisons; fails if one is off.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """The paper's table of published methods, as triples of partition, solver and schedule."""
    from partita.methods import TABLE, checked, explained, in_short, method
    from partita.report.terminal import print_table
    from partita.runtime import cache_compilation
    from partita.telemetry import Progress, to_json

    cache_compilation()
    rows = TABLE if name is None else (method(name),)
    if not check and name is None:
        for family in dict.fromkeys(row.family for row in rows):
            shown = [row for row in rows if row.family == family]
            if json:
                typer.echo("\n".join(to_json(explained(row)) for row in shown))
            else:
                print_table(family, [in_short(row) for row in shown])
        return
    if name is not None and not json:
        for key, value in explained(rows[0]).items():
            typer.echo(f"{key}: {value}")
    results = []
    bar = Progress(rows[0].name, quiet=quiet or json)
    with suppress_interrupt("begin again with the same command"), bar:
        for result in checked(rows):
            results.append(result)
            if json:
                typer.echo(to_json(result))
            else:
                figure = (
                    f"{result['difference']:.2g} (at most {result['tolerance']:.2g}) " if "difference" in result else ""
                )
                typer.echo(f"{result['method']:24s} {result['status']:8s} {figure}{result['words']}")
            following = rows[min(len(results), len(rows) - 1)].name
            bar.show(len(results), len(rows), "", following)
    if any(result["status"] == "off" for result in results):
        raise typer.Exit(1)


reproduction = typer.Typer(help="The paper's experiments, with its plots.", no_args_is_help=True)
app.add_typer(reproduction, name="reproduce")
Out = Annotated[Path, typer.Option(help="Folder for results; what is finished there is not run again.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small data from a wheel, in under 3 minutes.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds.")]
Names = Annotated[str | None, typer.Option("--method", help="Only these, separated by commas.")]
Data = Annotated[Path | None, typer.Option(help="The folder that holds the data files.")]
Validate = Annotated[
    bool, typer.Option("--validate", help="Measure on a sixth of the training data, not the test set.")
]
Sweep = Annotated[bool, typer.Option("--sweep", help="Other rates and settings, too.")]


@reproduction.command()
def federated(
    setting: Annotated[str, typer.Option(help="iid, non-iid or both.")] = "both",
    method: Names = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    rounds: Annotated[int | None, typer.Option(min=6, help="Of synchronous PVI; others follow.")] = None,
    sweep: Sweep = False,
    validate: Validate = False,
    data: Data = None,
    quiet: Quiet = False,
    out: Out = Path("federated"),
    json: Json = False,
) -> None:
    """Bayesian networks on MNIST over ten sites: global VI, committee machines and PVI, six ways."""
    from partita.reproduce import federated as study

    settings = study.SETTINGS if setting == "both" else (checked("--setting", setting, study.SETTINGS),)
    scale = study.QUICK if quick else study.FULL
    scale = scale if rounds is None else replace(scale, rounds=rounds)
    names = chosen_names(method, [*study.methods("iid", scale), *(study.sweeps(scale) if sweep else {})])
    images = load_images(quick, data, validate)
    cells = study.cells(images, settings, names, seeds, scale, sweep)
    title = Study("Federated Bayesian networks", reach=scale.reach)
    reproduce(title, cells, network_speed(images, scale.hidden), out, json, quiet)


@reproduction.command()
def sngd(
    method: Names = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    sweep: Sweep = False,
    validate: Validate = False,
    data: Data = None,
    quiet: Quiet = False,
    out: Out = Path("sngd"),
    json: Json = False,
) -> None:
    """Global VI on MNIST: Adam, stochastic natural gradients, and natural gradients with momentum and curvature."""
    from partita.reproduce import sngd as study

    names = chosen_names(method, list(study.RATES))
    images = load_images(quick, data, validate)
    widths, epochs = ((50,), (5, 20)) if quick else ((200, 500), (5, 20))
    cells = study.cells(images, names, seeds, widths, epochs, sweep)
    reproduce(
        Study("Solvers for global VI"), cells, network_speed(images, (50,) if quick else (200,)), out, json, quiet
    )


@reproduction.command()
def vcl(
    method: Names = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    validate: Validate = False,
    data: Data = None,
    quiet: Quiet = False,
    out: Out = Path("vcl"),
    json: Json = False,
) -> None:
    """Continual learning on permuted and split MNIST: one pass of PVI, with and without coresets."""
    from partita.reproduce import vcl as study

    names = chosen_names(method, list(study.METHODS))
    images = load_images(quick, data, validate)
    cells = study.cells(quick, seeds, images, names)
    speed = network_speed(images, (50,) if quick else (100, 100))
    reproduce(Study("Variational continual learning"), cells, speed, out, json, quiet)


@reproduction.command()
def banana(
    method: Names = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    data: Data = None,
    quiet: Quiet = False,
    out: Out = Path("banana"),
    json: Json = False,
) -> None:
    """Classify two crescents from a stream, with points or distributions for hyperparameters, and with NUTS."""
    from partita.reproduce import banana as study
    from partita.reproduce.pictures import beliefs, surfaces
    from partita.reproduce.study import flops

    names = chosen_names(method, study.methods())
    if method is None and "nuts" not in study.methods():
        typer.echo("NUTS is left out: it needs NumPyro, of the extra numpyro", err=True)
    cells = study.cells(study.load(quick, data), study.QUICK if quick else study.FULL, names, seeds)
    charts = ["error", "nll", "variance"]
    shown = Study("Banana", keys=study.KEYS, charts=charts, pictures=lambda rows: [surfaces(rows), beliefs(rows)])
    reproduce(shown, cells, flops, out, json, quiet)


@reproduction.command("robot-arm")
def robot_arm(
    method: Names = None,
    quick: Quick = False,
    orders: Annotated[
        int | None, typer.Option(min=1, help="How many joints to sort by; all of them, if left out.")
    ] = None,
    outputs: Annotated[
        str | None, typer.Option(help="Which torques, counted from 1 and separated by commas, or all.")
    ] = None,
    data: Data = None,
    quiet: Quiet = False,
    out: Out = Path("robot-arm"),
    json: Json = False,
) -> None:
    """Torques of a robot arm from a stream sorted by a joint's position: private and shared points, limited memory."""
    from partita.reproduce import robot_arm as study
    from partita.reproduce.study import flops

    names = chosen_names(method, study.METHODS)
    arm = study.load(quick, data)
    joints, torques = arm[0][0].shape[1] // 3, arm[0][1].shape[1]
    known = [str(number) for number in range(1, torques + 1)]
    wanted = known if outputs == "all" else (outputs or ("1" if quick else "3")).split(",")
    chosen = [int(checked("--outputs", number.strip(), known)) - 1 for number in wanted]
    scale = study.QUICK if quick else study.FULL
    cells = study.cells(arm, scale, names, range(joints if orders is None else min(orders, joints)), chosen)
    charts = ["smse", "nlpd", "coverage", "points"]
    shown = Study("Robot arm", ("smse", "nlpd", "coverage"), charts, study.KEYS)
    reproduce(shown, cells, flops, out, json, quiet)


@reproduction.command("streaming-1d")
def streaming_1d(
    method: Names = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    quiet: Quiet = False,
    out: Out = Path("streaming-1d"),
    json: Json = False,
) -> None:
    """A function of one input learnt batch after batch, as a sequence of pictures."""
    from partita.reproduce import streaming_1d as study
    from partita.reproduce.pictures import frames
    from partita.reproduce.study import flops

    cells = study.cells(chosen_names(method, study.METHODS), 1 if quick else seeds)
    shown = Study(
        "A stream in one dimension", ("smse", "nlpd", "coverage"), ["smse"], study.KEYS,
        pictures=lambda rows: [frames(rows, study.truth)],
    )  # fmt: skip
    reproduce(shown, cells, flops, out, json, quiet)


def network_speed(images: Any, hidden: Sequence[int]) -> Callable[[], float]:
    from partita.reproduce.study import speed_of

    return lambda: speed_of(images.network(hidden))


def load_images(quick: bool, data: Path | None, validate: bool) -> Any:
    from partita.reproduce.study import Images

    return Images.load("digits" if quick else "mnist", data, validate=validate)


def checked(option: str, value: str, known: Sequence[str]) -> str:
    from partita.errors import InputError

    if value not in known:
        raise InputError(f"{option}: expected one of {', '.join(known)}, got {value!r}")
    return value


def chosen_names(given: str | None, known: Sequence[str]) -> list[str] | None:
    return None if given is None else [checked("--method", name.strip(), known) for name in given.split(",")]


@dataclass(frozen=True)
class Study:
    """What is shown of an experiment's rows: numbers of the table, charts, keys of JSON rows, pictures of a setting."""

    title: str
    names: Sequence[str] = ("error", "nll", "ece")
    charts: Sequence[str] | None = None
    keys: Sequence[str] | None = None
    reach: float | None = None
    pictures: Callable[[list[dict]], Sequence[Any]] = lambda rows: ()


def reproduce(
    study: Study, cells: Sequence[Any], speed: Callable[[], float], out: Path, json: bool, quiet: bool
) -> None:
    """Run a study with a progress bar or JSON lines, then write its tables and pages."""
    from partita.report import Chart, Report, write_report
    from partita.report.terminal import print_table
    from partita.reproduce.study import CHARTS, KEYS, curves, run_study, summary
    from partita.reproduce.watch import Bar, Lines
    from partita.runtime import cache_compilation
    from partita.telemetry import to_json

    cache_compilation()
    watch = Lines(sys.stdout, study.keys or KEYS) if json else Bar(quiet)
    with suppress_interrupt("finished runs are kept. Go on with the same command"):
        rows = run_study(cells, out, speed, watch)
    table = summary(rows, study.names, study.reach)
    notes = {cell.method: cell.words for cell in cells if cell.words}
    charts = CHARTS if study.charts is None else [Chart(y, log=y in ("smse", "variance")) for y in study.charts]
    pages = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        here = [line for line in table if line["setting"] == setting]
        first = [row for curve in curves(rows, setting) for row in curve.rows]
        words = "Mean ± half the range over seeds; errors in percent. Curves and pictures are the first seed's."
        report = Report(
            title=f"{study.title}: {setting}",
            words=words,
            table=here,
            curves=curves(rows, setting),
            pictures=study.pictures(first),
            charts=charts,
            notes=notes,
            # As in the paper, if the study has no charts of its own.
            against="seconds" if study.charts is None else "round",
            log_axis=study.charts is None,
        )
        pages.append(str(write_report(out / f"{setting.replace(' ', '-')}.html", report)))
    if json:
        typer.echo(to_json({"event": "summary", "rows": table, "pages": pages}))
    else:
        print_table(study.title, table)
        typer.echo(f"curves: {', '.join(pages)}")


def followed(folder: Path) -> Any:
    """The run of a folder, with the names of its sites if they have some."""
    from partita.federation.folders import FEDERATION, read_server
    from partita.report.follower import Follower
    from partita.storage import read_names

    if not (folder / FEDERATION).is_file():
        return Follower(folder, read_names(folder))
    server = read_server(folder)
    features = server.recipe.columns.features
    return Follower(server.run, server.sites, f"Federation {server.path.name}", features)


def finish(folder: Path, json: bool) -> None:
    """The page of one run, and its summary."""
    from partita.errors import StorageError
    from partita.report import write_report
    from partita.report.terminal import print_table
    from partita.telemetry import to_json

    follower = followed(folder)
    if not follower.read():
        raise StorageError(f"{follower.folder / 'journal.sqlite'}: no such run, or nothing in it yet")
    shown, row = follower.report(), follower.summary()
    page = write_report(folder / "report.html", shown)
    if json:
        typer.echo(to_json({"event": "summary", **row, "report": str(page)}))
    else:
        print_table(shown.words, [row])
        typer.echo(f"curves: {page}")


@contextmanager
def suppress_interrupt(kept: str) -> Iterator[Any]:
    """Ctrl-C ends a run in good order: everything acknowledged is on disk.

    Gives a callback that ends it at the next event, should the exception have got lost in somebody's destructor.
    """
    pressed = []

    def press(number: int, frame: Any) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    def look(event: Any) -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield look
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; {kept}", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGINT, before)


def main() -> None:
    """Errors that were foreseen are one line and exit code 2."""
    from partita.errors import PartitaError

    try:
        app()
    except PartitaError as error:
        typer.echo(f"partita: {error}", err=True)
        raise SystemExit(2) from None
    except BrokenPipeError:
        with suppress(OSError):
            sys.stdout.close()
        raise SystemExit(141) from None
