"""What sites are called: a run counts them, people call them by name."""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.errors import InputError, SiteError
from partita.foundation.text import clean


@dataclass
class SiteNames:
    """The names of sites in their order; without any, they are called by their numbers. Sites may join.

    >>> SiteNames(("north", "south")).of(1), SiteNames().of(1)
    ('site south', 'site 1')
    """

    names: tuple[str, ...] = ()
    # The number of the first of them: a site that knows no other has a number all the same.
    first: int = 0

    def add(self, site: int, name: str) -> None:
        """A site has joined, as the next one."""
        if name and len(self.names) == site:
            self.names = (*self.names, clean(name))

    def of(self, site: int) -> str:
        """How a site is called in a text."""
        return f"site {self.name(site)}"

    def name(self, site: int) -> str:
        """A site's name alone."""
        place = site - self.first
        return self.names[place] if 0 <= place < len(self.names) else str(site)

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


def name_sources(sites: Any, folder: Path | None = None) -> dict[str, Any]:
    """Where each site's table comes from, by the site's name; nothing is read.

    Args:
        sites: a frame, a file, or a function that loads one, by name; a list of files; or a pattern such as data/*.csv.
        folder: where relative files lie; here, if not given.
    """
    if isinstance(sites, str):
        found = sorted(glob.glob(str((folder or Path()) / sites)))
        if not found:
            raise InputError(f"sites: no file matches {sites}")
        sites = found
    if isinstance(sites, Sequence):
        sites = _name_files(sites, folder)
    if not isinstance(sites, Mapping) or not sites:
        raise InputError("sites: expected a table with one file or frame per site")
    names = [str(name) for name in sites]
    if len(set(names)) < len(names):
        raise InputError(f"sites: two are called {max(names, key=names.count)!r}: give each a name of its own")
    return {
        str(name): (folder or Path()) / source if isinstance(source, str | os.PathLike) else source
        for name, source in sites.items()
    }


def _name_files(files: Sequence[Any], folder: Path | None) -> dict[str, Path]:
    """Files by their names without suffixes."""
    if not all(isinstance(path, str | os.PathLike) for path in files):
        raise InputError("sites: a list has to be of files; give frames by name, {name: frame}")
    paths = [(folder or Path()) / path for path in files]
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        raise InputError("sites: two files have the same name; give a table of names and files")
    return dict(zip(names, paths, strict=True))


def check_site_names(names: Sequence[str]) -> None:
    """Check that sites have names that can be those of folders and keys."""
    for name in names:
        if len(name) > 40 or not all(c.isalnum() or c in "-_" for c in name) or not name[:1].isalnum():
            raise InputError(f"site {name!r}: use letters, digits, - and _, at most 40 of them")
        if not name.isascii():
            # One that looks like another one would be another site.
            raise InputError(f"site {name!a}: of letters, use a to z and A to Z alone")
    if len(set(names)) < len(names):
        raise InputError("sites: a name is there twice")
    if not names:
        raise InputError("sites: expected at least one name")
