"""Pages and pictures of the documentation that studies write."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from partita.errors import InputError
from partita.foundation.checks import check_one_of
from partita.studies.options import Say


class Gap(NamedTuple):
    """How far means are from a reference's, in its standard deviations; and deviations, relative to the reference's."""

    means: np.ndarray
    ratios: np.ndarray

    def describe(self, unit: str, others: str) -> str:
        """Both in words: `unit` is what means are measured in, `others` whose deviations ours are relative to."""
        return (
            f"means differ by at most {self.means.max():.2f} {unit} (median {np.median(self.means):.2f}), standard "
            f"deviations are {self.ratios.min():.2f} to {self.ratios.max():.2f} of {others}"
        )


def compare_moments(mean: Any, sd: Any, reference_mean: Any, reference_sd: Any) -> Gap:
    """Compare means and standard deviations with those of a reference, number by number."""
    return Gap(np.abs((np.asarray(mean) - reference_mean) / reference_sd), np.asarray(sd) / reference_sd)


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of a page, with an empty line after it."""
    body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", *body, ""])


def check_place(path: Path | None) -> None:
    """Complain before a long study begins if there is no folder for what it will write."""
    if path is not None and not path.parent.is_dir():
        raise InputError(
            f"{path}: there is no folder {path.parent} here: run this in Partita's repository, or say --out"
        )


def choose(makers: Sequence[Callable[[], Any]], names: Sequence[str] | None) -> list[Callable[[], Any]]:
    """The functions that are named, or all of them without names."""
    for name in names or ():
        check_one_of("", [maker.__name__ for maker in makers], name=name)
    return [maker for maker in makers if not names or maker.__name__ in names]


def write_sections(head: Sequence[str], sections: Iterable[str], path: Path | None, say: Say) -> None:
    """Say every section when it is ready; write all of them below the head, if there is a file to write."""
    check_place(path)
    said = []
    for section in sections:
        say(section)
        said.append(section)
    if path is not None:
        path.write_text("\n".join([*head, *said]), encoding="utf-8")
