"""Formulas across the wall: the same result as in one process, from tables that are kept as sites keep them."""

import json

import numpy as np
import pandas as pd
import pytest

import partita as pt
from memory_federation import MemoryFederation
from partita.federation import fits
from partita.federation.folders import read_server
from partita.federation.membership import invite
from partita.federation.new import plan_formula
from partita.federation.signatures import Verifier
from partita.federation.state import read_run_names

pytest.importorskip("flwr")
pytest.importorskip("cryptography")
NAMES = ("a", "b", "c", "d")
GENERATOR = np.random.default_rng(3)


def make_table(rows, wards, number):
    generator = np.random.default_rng(number)
    age, weight = generator.normal(50, 12, rows), generator.normal(70, 9, rows)
    ward = np.resize(wards, rows)
    effect = pd.Series(ward).map({"east": 0.3, "north": -0.5, "south": 0.8, "west": 0.0}).to_numpy()
    f = 0.05 * (age - 50) - 0.04 * (weight - 70) + effect
    table = pd.DataFrame({"ill": np.where(generator.random(rows) < 1 / (1 + np.exp(-f)), "yes", "no"),
                          "age": age, "weight": weight, "ward": ward,
                          "falls": generator.poisson(np.exp(0.02 * (age - 50) + 0.3 * effect)),
                          "pressure": 120 + 5 * f + generator.normal(0, 8, rows),
                          "patient": np.repeat(np.arange(rows // 4 + 1), 4)[:rows] + 100})  # fmt: skip
    table.loc[generator.choice(rows, 4, replace=False), "age"] = np.nan
    table.loc[generator.choice(rows, 2, replace=False), "weight"] = np.nan
    return table


TABLES = {
    "a": make_table(60, ["east", "north", "south", "west"], 1),
    "b": make_table(48, ["east", "north", "south"], 2),
    "c": make_table(72, ["east", "north"], 3),
    "d": make_table(56, ["west", "east", "south"], 4),
}


@pytest.fixture
def federate(tmp_path, monkeypatch):
    """A federation by a formula, whose sites keep the same tables each in its own way."""

    def make(formula, family, tables=TABLES, more=""):
        ours = MemoryFederation(
            tmp_path / "ours", plan_formula(formula, family, list(tables)), tuple(tables), monkeypatch
        )
        for number, (name, table) in enumerate(tables.items()):
            kept, said = table, more
            if number == 1:
                kept = table[list(reversed(table.columns))].rename(columns={"age": "YEARS"})
                said += '\ncolumns: age = "YEARS"' * ("age" in formula)
            if number == 2 and "weight" in formula:
                kept = table.assign(weight=table["weight"] * 1024)
                said += f"\nunits: weight = {1 / 1024!r}"
            ours.write_table(name, kept, said, "data.parquet" if number == 3 else "data.csv")
        return ours

    return make


def check_same(ours, there):
    here = pt.Regression.load(ours.result)
    for one, other in zip(here.coefficients(), there.coefficients(), strict=True):
        assert one["name"] == other["name"]
        for key in ("mean", "sd", "low", "high"):
            np.testing.assert_allclose(one[key], other[key], rtol=1e-8, atol=1e-8, err_msg=f"{one['name']} {key}")
    np.testing.assert_allclose(here.log_evidence, there.log_evidence, rtol=1e-8)
    assert len(here.result.history) == len(there.result.history)
    for one, other in zip(here.spreads(), there.spreads(), strict=True):
        np.testing.assert_allclose(one["median"], other["median"], rtol=1e-8)
    rows = TABLES["a"].head(20)
    np.testing.assert_allclose(here.predict(rows), there.predict(rows), rtol=1e-8)
    assert here.counts == there.counts
    return here


@pytest.mark.parametrize(
    ("formula", "family"),
    [
        ("ill ~ age + weight + C(ward)", "bernoulli"),
        ("falls ~ age + (1 | patient)", "poisson"),
        ("pressure ~ age * ward + np.log(weight)", "gaussian"),
    ],
)
def test_a_formula_across_the_wall_is_the_same_as_in_one_process(federate, formula, family):
    # Programs with groups are slow to compile, once for each number of rows.
    tables = {name: TABLES[name] for name in NAMES[:2]} if "|" in formula else TABLES
    ours = federate(formula, family, tables)
    state = ours.run()
    assert state["state"] == "finished", state["reason"]
    there = pt.regress(formula, tables, family=family, quiet=True)
    check_same(ours, there)
    # Updates are signed by their sites; those of the prior, where it is no Gaussian, are the server's own.
    verdicts = list(Verifier(read_server(ours.folder)).verdicts())
    assert verdicts
    assert all(verdict.fits for verdict in verdicts)


def test_a_run_goes_on_with_what_its_sites_have_agreed_on(federate):
    """Without asking again: tables may have changed since, or sites may be away."""
    formula, family = "ill ~ age + weight + C(ward)", "bernoulli"
    ours = federate(formula, family)
    file = ours.folder / "federation.toml"
    plain = file.read_text()
    file.write_text(plain.replace("[limits]", '[schedule]\nname = "synchronous"\nrounds = 3\n[limits]'))
    assert ours.run()["state"] == "finished"
    agreed = (ours.folder / "run" / "agreed.json").read_bytes()
    used = [(ours.site_folder(name) / "run" / "used.json").read_text() for name in NAMES]
    file.write_text(plain.replace("[limits]", '[schedule]\nname = "synchronous"\nrounds = 40\n[limits]'))
    ours.sent.clear()
    state = ours.run()
    assert state["state"] == "finished", state["reason"]
    assert (ours.folder / "run" / "agreed.json").read_bytes() == agreed
    # One question more: the log likelihood at the end.
    assert [json.loads(one)["questions"] + 1 for one in used] == [
        json.loads((ours.site_folder(name) / "run" / "used.json").read_text())["questions"] for name in NAMES
    ]
    check_same_numbers(ours, pt.regress(formula, TABLES, family=family, quiet=True))
    # Of another formula, it is another run.
    file.write_text(plain.replace("age + weight", "age"))
    state = ours.run()
    assert state["state"] == "failed"
    assert "sites have agreed on something else" in state["reason"]


def check_same_numbers(ours, there):
    here = pt.Regression.load(ours.result)
    for one, other in zip(here.coefficients(), there.coefficients(), strict=True):
        np.testing.assert_allclose([one["mean"], one["sd"]], [other["mean"], other["sd"]], rtol=1e-6)


def test_a_site_whose_tables_do_not_fit_together_is_told_apart(federate):
    """A column that holds numbers at one site and words at another cannot be agreed on: it is said, with both names."""
    tables = {name: TABLES[name] for name in ("a", "b")}
    tables["b"] = tables["b"].assign(weight="heavy")
    state = federate("ill ~ weight", "bernoulli", tables).run()
    assert state["state"] == "failed"
    assert "column 'weight': is numbers at site a, text at site b: make them alike" in state["reason"]


def test_a_site_that_joins_has_no_say_in_the_design_and_one_with_other_levels_is_told(federate, monkeypatch):
    """The design is that of the sites that began: who has its levels joins, whoever has others says that it cannot."""
    ours = federate("ill ~ age + C(ward)", "bernoulli", {name: TABLES[name] for name in NAMES[:2]})
    server = read_server(ours.folder)
    strange = TABLES["d"].replace({"ward": {"west": "moon"}})
    for name, table in (("c", TABLES["c"]), ("e", strange)):
        invite(ours.folder, name)
        ours.write_table(name, table)
    ours.names = (*ours.names, "c", "e")
    state = ours.run()
    assert state["state"] == "finished", state["reason"]
    rows = {row["site"]: row for row in state["sites"]}
    assert read_run_names(server) == ("a", "b", "c")
    assert rows["c"]["updates"] > 0
    assert rows["e"]["updates"] == 0
    assert rows["e"]["problem"]
    assert "moon" not in rows["e"]["problem"]
    found = pt.load(server.result)
    assert len(found.factors) == 3
    assert all(one.fits for one in Verifier(read_server(ours.folder)).verdicts())


def test_weights_and_rows_that_are_held_out_are_the_same_at_every_site(federate):
    """Which rows are held out follows from the seed and the site's name, there as here."""
    tables = {name: TABLES[name].assign(n=np.arange(len(TABLES[name])) % 3) for name in NAMES[:2]}
    ours = federate("pressure ~ age + ward", "gaussian", tables)
    file = ours.folder / "federation.toml"
    more = 'weights = "n"\nheld_out = 0.45\nnoise_scale = 2\nprior_scale = 3\n'
    file.write_text(
        file.read_text().replace("prior_scale = 2.5\n", more).replace("# Sites are told", "seed = 5\n# Sites are told")
    )
    state = ours.run()
    assert state["state"] == "finished", state["reason"]
    options = {"weights": "n", "held_out": 0.45, "noise_scale": 2, "prior_scale": 3, "seed": 5}
    check_same(ours, pt.regress("pressure ~ age + ward", tables, family="gaussian", quiet=True, **options))


def test_a_run_whose_sites_are_all_quarantined_has_no_result(federate, monkeypatch):
    """Nothing moves any more where nobody is left, and yet nothing has settled."""
    ours = federate("pressure ~ age", "gaussian", {name: TABLES[name] for name in NAMES[:2]})
    everybody = dict.fromkeys(NAMES[:2], "quarantined: its update would leave a density improper")
    monkeypatch.setattr(fits, "read_barred", lambda folder: everybody)
    state = ours.run()
    assert state["state"] == "stalled"
    assert "nobody is left who could be asked" in state["reason"]
    assert not (ours.folder / "run" / "result.safetensors").exists()
    monkeypatch.setattr(fits, "read_barred", lambda folder: {NAMES[0]: everybody[NAMES[0]]})
    assert ours.run()["state"] == "finished"
    assert (ours.folder / "run" / "result.safetensors").exists()
