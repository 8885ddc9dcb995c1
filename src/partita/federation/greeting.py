"""What `partita serve` says at once, before anything is imported that takes seconds."""

from pathlib import Path

from partita.errors import ConfigError
from partita.foundation.settings_files import read_settings_file

FEDERATION = "federation.toml"


def describe_start(path: Path) -> str:
    """Where a server is going to be, and whom it is going to wait for; nothing, where its file is not as it should be:
    that is told by whoever reads all of it."""
    try:
        _, tables = read_settings_file(path / FEDERATION)
        server = tables["server"]
        return f"server at {server['address']}, starting; it waits for {', '.join(server['sites'])}; Ctrl-C ends it"
    except (ConfigError, KeyError, TypeError):
        return ""
