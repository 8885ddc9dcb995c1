"""What holds of files, pages and terminals when they meet strangers, by number as in `docs/server.md`."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

import partita as pt
from partita import storage
from partita.errors import RunMismatch
from partita.ledger import Ledger
from partita.schedules import Asynchronous, Synchronous

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 2))
Y = (X[:, 0] + 0.5 * GENERATOR.normal(size=40) > 0).astype(float)
SHARDS = [(X[i::4], Y[i::4]) for i in range(4)]
MODEL = pt.models.LogisticRegression(features=2)


def fit(folder=None, rounds=3, shards=SHARDS, resume=False, **others):
    return pt.fit(MODEL, shards, schedule=Synchronous(rounds=rounds), run_dir=folder, resume=resume, **others)


def execute(folder, *queries):
    with closing(sqlite3.connect(folder / "journal.sqlite")) as database, database:
        for query in queries:
            database.execute(query)


# 26: resumed by another version, other code, other data


def test_26_a_patched_rule_is_noticed_at_the_first_fold_that_differs(tmp_path, monkeypatch):
    fit(tmp_path)
    fold, seen, folds = Ledger.fold, [], iter(range(100))

    def patched(self, updates, temper, **others):
        number = next(folds)
        share = 1.0 if number < 1 else 0.5
        return fold(self, updates, lambda *given: temper(*given) ** share, **others)

    monkeypatch.setattr(Ledger, "fold", patched)
    with pytest.raises(RunMismatch, match="fold 2 leads to another posterior.*what differs is code"):
        fit(tmp_path, rounds=5, resume=True, callbacks=[lambda event: seen.append(event.fold)])
    assert seen == [1]
    monkeypatch.undo()
    assert fit(tmp_path, rounds=5, resume=True).fingerprint == fit(rounds=5).fingerprint


def test_26_what_changed_beside_the_code_is_named(tmp_path, monkeypatch):
    fit(tmp_path)
    monkeypatch.setattr(storage, "made_with", lambda: {"jax": "0.0.1"})
    monkeypatch.setattr(storage, "posterior_digest", lambda posterior: b"other")
    with pytest.raises(RunMismatch, match=r"what differs is .*jax \(.* there, 0.0.1 here\)"):
        fit(tmp_path, resume=True)


def test_26_another_version_is_refused_before_anything_is_done(tmp_path, monkeypatch):
    fit(tmp_path)
    monkeypatch.setattr(storage, "__version__", "9.9.9")
    with pytest.raises(RunMismatch, match=r"version \(.* there, 9.9.9 here\)"):
        fit(tmp_path, resume=True)


def test_26_other_data_are_refused_and_their_site_is_named(tmp_path):
    fit(tmp_path)
    others = [*SHARDS[:2], (SHARDS[2][0] + 1e-9, SHARDS[2][1]), SHARDS[3]]
    with pytest.raises(RunMismatch, match=r"differs in shards\[2\] \(") as caught:
        fit(tmp_path, shards=others, resume=True)
    assert "shards[1]" not in str(caught.value)


def test_26_a_journal_of_an_earlier_format_is_refused_in_words_and_can_still_be_reported(tmp_path):
    result = fit(tmp_path)
    execute(tmp_path, "UPDATE meta SET value = '2' WHERE key = 'format'", "DROP TABLE posteriors")
    with pytest.raises(RunMismatch, match="format 2, .* go on with the version that wrote it"):
        fit(tmp_path, resume=True)
    assert storage.read_history(tmp_path) == json.loads(json.dumps(result.history))


def test_26_every_fold_is_witnessed_and_a_changed_digest_is_noticed(tmp_path):
    settings = {"schedule": Asynchronous(updates=9), "run_dir": tmp_path}
    pt.fit(MODEL, SHARDS, **settings)
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database:
        folds = [fold for (fold,) in database.execute("SELECT fold FROM posteriors")]
    assert folds == list(range(1, 10))
    execute(tmp_path, "UPDATE posteriors SET digest = x'00' WHERE fold = 7")
    with pytest.raises(RunMismatch, match="fold 7 leads"):
        pt.fit(MODEL, SHARDS, **settings, resume=True)
