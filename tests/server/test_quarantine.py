"""A site that is quarantined: who is told, what its data count for, and when the run is finished."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.engines import InProcess
from partita.errors import QuarantineWarning
from partita.report.follower import Follower
from partita.server.storage import read_finished

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 2))
Y = X @ [1.0, -1.0] + 0.3 * GENERATOR.normal(size=60)
SHARDS = [(X[site::3], Y[site::3]) for site in range(3)]
MODEL = pt.models.LinearRegression(features=2, noise=0.5)


@dataclass
class Spoilt(InProcess):
    """The second site answers with updates of another shape, from some version on."""

    since: int = 0

    def collect(self):
        return [
            replace(update, change=type(update.change)(np.zeros(7), np.zeros((7, 7))))
            if update.site == 1 and update.version >= self.since
            else update
            for update in super().collect()
        ]


def fit(since=0, shards=SHARDS, engine=None, rounds=3, **settings):
    engine = Spoilt(since=since) if engine is None else engine
    return pt.fit(
        MODEL, shards, schedule=pt.schedules.Synchronous(rounds=rounds), damping=1.0, engine=engine, **settings
    )


def test_whoever_fits_is_told_once_and_the_result_and_its_file_know(tmp_path):
    with pytest.warns(
        QuarantineWarning, match="site b was quarantined, and the run went on without it: .*shape"
    ) as told:
        found = fit(names=["a", "b", "c"])
    assert len(told) == 1
    assert list(found.quarantined) == [1]
    assert found.history[0]["problem"].startswith("site b: quarantined: ")
    found.save(tmp_path / "found.safetensors")
    assert pt.load(tmp_path / "found.safetensors").quarantined == found.quarantined


@pytest.mark.filterwarnings("ignore::partita.errors.QuarantineWarning")
def test_the_evidence_is_that_of_the_data_in_the_posterior():
    """All data, if the site has contributed before; those of the others, if it never has."""
    others = fit(shards=[SHARDS[0], SHARDS[2]], engine=InProcess())
    without, late, plain = fit(), fit(since=3), fit(engine=InProcess())
    assert without.log_evidence == pytest.approx(others.log_evidence, abs=1e-9)
    assert without.expected_log_probs[1] == 0.0
    assert late.log_evidence == pytest.approx(plain.log_evidence, abs=1e-9)


@pytest.mark.filterwarnings("ignore::partita.errors.QuarantineWarning")
def test_a_run_that_has_ended_is_finished_whoever_was_missing(tmp_path):
    fit(run_dir=tmp_path)
    follower = Follower(tmp_path)
    follower.read()
    assert follower.last["version"] < follower.last["total"]
    assert follower.is_finished
    assert follower.state()["words"] == "Finished: round 2."
    assert follower.report().words == "Finished."
    shown = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert shown.exit_code == 0
    assert "Not finished" not in shown.output
    assert read_finished(tmp_path) == 3
    # With more rounds the same run goes on, and ends later.
    fit(run_dir=tmp_path, resume=True, rounds=5)
    assert read_finished(tmp_path) == 5


def test_a_run_that_was_stopped_is_not_finished(tmp_path):
    for _ in pt.events(MODEL, SHARDS, schedule=pt.schedules.Synchronous(rounds=5), run_dir=tmp_path):
        break
    follower = Follower(tmp_path)
    follower.read()
    assert read_finished(tmp_path) is None
    assert not follower.is_finished
