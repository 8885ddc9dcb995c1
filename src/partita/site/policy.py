"""What a site is willing to answer, however the server asks; the limits are in the site's own file."""

from dataclasses import dataclass, fields

from partita.errors import PolicyRefusal
from partita.foundation.checks import check_count


@dataclass(frozen=True)
class Policy:
    """The limits of a site, in the section [policy] of its own file.

    Args:
        fewest_rows: a site whose table has fewer answers nothing: what it would send tells too much of each.
        most_parameters: natural parameters of the model, which are the numbers that an answer holds.
        most_tasks: tasks under one accepted recipe.
        most_questions: questions beside tasks: what the data's log likelihood is at a posterior that the server sends.
    """

    fewest_rows: int = 10
    most_parameters: int = 10_000
    most_tasks: int = 1000
    most_questions: int = 50

    def __post_init__(self) -> None:
        check_count("", **{field.name: getattr(self, field.name) for field in fields(self)})

    def check_rows(self, rows: int) -> None:
        # Without the number: what is said here ends in logs.
        if rows < self.fewest_rows:
            raise PolicyRefusal(f"the table has fewer rows than the policy asks for (fewest_rows = {self.fewest_rows})")

    def check_parameters(self, number: int) -> None:
        if number > self.most_parameters:
            raise PolicyRefusal(
                f"the model has {number} natural parameters, and the policy allows {self.most_parameters}: "
                "raise most_parameters in [policy] of site.toml, if that is right"
            )
