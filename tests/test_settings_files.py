"""What a settings file says becomes what code takes, or is refused with the file's and the key's name."""

from pathlib import Path

import pytest

import partita as pt
from partita.errors import ConfigError
from partita.foundation.settings_files import SettingsFile

FILE = SettingsFile(Path("run.toml"))


@pytest.mark.parametrize("value", [[1, 2], [], ["adam"], {"init": 1, "update": 2}, 3, [[1], [2]], "newton"])
def test_an_optimiser_in_a_file_is_a_name(value):
    with pytest.raises(ConfigError, match=r"run.toml: \[solver\] .*optimiser .*(expected text in quotes|is not known)"):
        FILE.build("solver", pt.solvers.Gradient, {"optimiser": value})
    assert FILE.build("solver", pt.solvers.Gradient, {"optimiser": "lbfgs"}).optimiser == "lbfgs"
