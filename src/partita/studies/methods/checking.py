"""Rows of the table of methods: found by name, explained, run, and compared with their references."""

import time
from collections.abc import Callable, Iterator, Sequence

from partita.errors import InputError, MissingData, MissingExtra
from partita.fitting import fit
from partita.foundation.plain import Row, to_json
from partita.report.terminal import print_table
from partita.result import Result
from partita.studies.methods.problems import Problem
from partita.studies.methods.table import TABLE, Method
from partita.telemetry import Progress


def find_method(name: str) -> Method:
    for row in TABLE:
        if row.name == name:
            return row
    raise InputError(f"method {name!r} is not known: use one of {', '.join(row.name for row in TABLE)}")


def summarise(row: Method) -> Row:
    """A row for a narrow table."""
    return {
        "method": row.name,
        "optimisation": row.optimisation,
        "partition": row.partition.__name__.replace("_", " "),
        "solver": type(row.solver).__name__,
        "schedule": type(row.schedule).__name__,
    }


def explain(row: Method) -> Row:
    """A row in words."""
    return {
        **summarise(row),
        "family": row.family,
        "solver": repr(row.solver),
        "schedule": repr(row.schedule),
        "citation": row.citation,
        "words": row.words,
    }


def run_method(row: Method) -> tuple[Problem, Result]:
    """Fit the small problem of a row."""
    problem = row.problem()
    result = fit(
        problem.model,
        row.partition(problem.data),
        solver=row.solver,
        schedule=row.schedule,
        damping=row.damping,
        start=problem.start,
        custody=row.custody,
        expectation=row.expectation,
    )
    return problem, result


def check_methods(rows: Sequence[Method] = TABLE) -> Iterator[Row]:
    """Run rows with their checks: how far each is from its reference.

    A row whose data file or package is not here says so instead.
    """
    for row in rows:
        began = time.perf_counter()
        try:
            problem, result = run_method(row)
            compared = row.check(problem, result)
        except (MissingData, MissingExtra) as error:
            status = "no data" if isinstance(error, MissingData) else "no package"
            yield {"method": row.name, "status": status, "words": str(error)}
            continue
        good = compared.difference <= row.tolerance
        yield {
            "method": row.name,
            "status": "good" if good else "off",
            "difference": float(compared.difference),
            "tolerance": row.tolerance,
            "words": compared.words,
            "seconds": time.perf_counter() - began,
        }


def show_methods(say: Callable[[str], None], json: bool) -> None:
    """Say the whole table, a family of methods after the other."""
    for family in dict.fromkeys(row.family for row in TABLE):
        shown = [row for row in TABLE if row.family == family]
        if json:
            say("\n".join(to_json(explain(row)) for row in shown))
        else:
            print_table(family, [summarise(row) for row in shown])


def show_checks(rows: Sequence[Method], say: Callable[[str], None], json: bool, quiet: bool) -> bool:
    """Say what the check of each row found, under a progress bar; return whether none is off."""
    statuses = []
    with Progress(rows[0].name, quiet=quiet or json) as bar:
        for result in check_methods(rows):
            statuses.append(result["status"])
            say(to_json(result) if json else _line(result))
            following = rows[min(len(statuses), len(rows) - 1)].name
            bar.show(len(statuses), len(rows), "", following)
    return "off" not in statuses


def _line(result: Row) -> str:
    figure = f"{result['difference']:.2g} (at most {result['tolerance']:.2g}) " if "difference" in result else ""
    return f"{result['method']:24s} {result['status']:8s} {figure}{result['words']}"
