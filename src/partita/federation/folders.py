"""A federation's folders: what lies in that of a server, what its file says, and how new ones are made."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

from partita.config import read_damping, read_hyper, read_schedule
from partita.errors import ConfigError, InputError
from partita.federation.greeting import FEDERATION
from partita.federation.register import Members
from partita.foundation.checks import check_count, check_one_of, check_positive
from partita.foundation.files import is_file
from partita.foundation.network import split_address
from partita.foundation.settings_files import SettingsFile, Table, read_settings_file
from partita.server.rules.limits import Limits
from partita.server.settings import Settings
from partita.wire.base_recipe import SECTIONS as SHARED
from partita.wire.base_recipe import BaseRecipe
from partita.wire.messages import Compression
from partita.wire.naming import check_site_names
from partita.wire.program_recipe import ProgramRecipe
from partita.wire.recipes import read_recipe
from partita.wire.summary_recipe import SummaryRecipe

SECTIONS, KEYS = (*SHARED, "schedule", "limits", "server"), ("damping", "seed")


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens, and how long it waits.

    Args:
        address: host:port, one for all.
        sites: their names, in the order in which the run counts them.
        minimum: sites that have to be there before the run begins; all of them, if not given.
        timeout: seconds that a site may take for one task.
        patience: seconds without any answer, after which the run stops, to be resumed.
        gather: seconds that are waited for all sites once the minimum is there.
        compression: "float16" halves what is sent of float32 densities, and keeps three digits of them.
    """

    address: str = "127.0.0.1:9092"
    sites: tuple[str, ...] = ()
    minimum: int | None = None
    timeout: float = 600.0
    patience: float = 1800.0
    gather: float = 60.0
    compression: Compression = "none"

    def __post_init__(self) -> None:
        check_positive("", timeout=self.timeout, patience=self.patience, gather=self.gather)
        if self.minimum is not None:
            check_count("", minimum=self.minimum)
            if self.minimum > len(self.sites):
                raise InputError(f"minimum: {self.minimum}, and there are {len(self.sites)} sites")
        if self.patience <= self.timeout:
            raise InputError(f"patience: expected more than the timeout, {self.timeout:g} s, got {self.patience:g}")
        check_one_of("", get_args(Compression), compression=self.compression)
        split_address(self.address)
        check_site_names(self.sites)


@dataclass(frozen=True)
class ServerFolder:
    """A server's folder, read."""

    path: Path
    recipe: BaseRecipe
    settings: Settings
    server: ServerSettings

    @property
    def sites(self) -> tuple[str, ...]:
        return self.server.sites

    @property
    def limits(self) -> Limits | None:
        return self.settings.limits

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def requests(self) -> Path:
        return self.run / "requests"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def public_keys(self) -> Path:
        return self.path / "sites"

    @cached_property
    def members(self) -> Members:
        """Who may come in now."""
        return Members(self.public_keys, self.server.sites)

    def public_key(self, site: str) -> Path:
        return self.public_keys / f"{site}.pub"

    @property
    def result(self) -> Path:
        return self.run / ("summary.json" if isinstance(self.recipe, SummaryRecipe) else "result.safetensors")

    @property
    def has_run(self) -> bool:
        return (self.run / "journal.sqlite").exists()


def read_server(path: Path) -> ServerFolder:
    """A server's folder, with every complaint naming file, line and key."""
    # What is there, but is no file, is for whoever reads it to tell.
    if not os.path.lexists(path / FEDERATION):
        raise ConfigError(f"{path}: has no {FEDERATION}: partita new-federation makes one")
    file, tables = read_settings_file(path / FEDERATION)
    file.check_sections(tables, SECTIONS, KEYS)
    if not isinstance(tables.get("server", {}).get("sites"), list):
        raise file.error("server", "sites", 'expected a list of names, such as ["a", "b"]')
    recipe, settings = read_plan(file, tables)
    server = file.build("server", ServerSettings, tables["server"])
    folder = ServerFolder(path.resolve(), recipe, settings, server)
    # Said now rather than when all sites have come.
    if not isinstance(recipe, ProgramRecipe):
        _ = recipe.settled
    for site in folder.sites:
        if not is_file(folder.public_key(site)):
            raise file.error("server", "sites", f"{site}: its public key is missing: {folder.public_key(site)}")
    return folder


def read_plan(file: SettingsFile, tables: Table) -> tuple[BaseRecipe, Settings]:
    """What a server and its sites agree on; and how the run is done, which the server alone needs to know.

    Without a schedule, a formula and a program have rounds until nothing moves.
    """
    is_open = "schedule" not in tables and ("regression" in tables or "program" in tables)
    schedule = None if is_open else read_schedule(file, tables)
    waits, once = (True, False) if schedule is None else (schedule.waits, schedule.once)
    recipe = read_recipe(file, tables, file.path.parent, waits, once)
    settings = Settings(
        solver=recipe.solver,
        schedule=schedule,
        damping=read_damping(file, tables),
        hyper=read_hyper(file, tables),
        limits=file.build("limits", Limits, tables.get("limits", {})),
        seed=recipe.seed,
    )
    return recipe, settings
