"""What sites are called: a run counts them, people call them by name."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from partita.errors import InputError, SiteError
from partita.foundation.text import clean


@dataclass(frozen=True)
class SiteNames:
    """The names of sites in their order; without any, they are called by their numbers.

    >>> SiteNames(("north", "south")).of(1), SiteNames().of(1)
    ('site south', 'site 1')
    """

    names: tuple[str, ...] = ()

    def of(self, site: int) -> str:
        """How a site is called in a text."""
        return f"site {self.names[site] if site < len(self.names) else site}"

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors about a site that come from here call it by its name."""
        try:
            yield
        except SiteError as error:
            error.call(self.of)
            raise


def choose_names(names: Any, shards: Sequence[Any]) -> SiteNames:
    """Those that were given; or what stands for the data of sites that are elsewhere, which are names."""
    if names is None:
        names = shards if all(isinstance(shard, str) for shard in shards) else ()
        return SiteNames(tuple(map(clean, names)))
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) != len(shards):
        raise InputError(f"names: expected a list of {len(shards)}, one for each site, got {names!r}")
    return SiteNames(tuple(clean(str(name)) for name in names))


def check_site_names(names: Sequence[str]) -> None:
    """That sites have names that can be those of folders and keys."""
    for name in names:
        if len(name) > 40 or not all(c.isalnum() or c in "-_" for c in name) or not name[:1].isalnum():
            raise InputError(f"site {name!r}: use letters, digits, - and _, at most 40 of them")
    if len(set(names)) < len(names):
        raise InputError("sites: a name is there twice")
    if not names:
        raise InputError("sites: expected at least one name")
