"""Questions and answers: every one as bytes and back, bounded, and refused where bytes are not what they should be."""

import os
import sys
import traceback
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import partita as pt
from partita.engines import InProcess
from partita.errors import EngineError, InputError, MalformedMessage, ShardError
from partita.fitting import prepare
from partita.models import prior_of
from partita.server.settings import Settings
from partita.wire import questions as q
from partita.wire.codec import (
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
    largest_message,
)
from partita.wire.engine import address
from partita.wire.messages import HEADER, pack

pytest.importorskip("formulaic")
RNG = np.random.default_rng(5)
TABLE = pd.DataFrame(
    {
        "age": RNG.normal(50, 9, 90),
        "arm": RNG.choice(["drug", "none", "Ω"], 90),
        "ward": np.arange(90) % 9,
        "n": RNG.integers(1, 3, 90),
        "visits": RNG.poisson(2.0, 90),
    }
)
TABLE["y"] = 0.1 * TABLE.age + (TABLE.arm == "drug") + RNG.normal(size=90)
TABLE.loc[::11, "age"] = np.nan
SITES = {f"s{m}": TABLE[TABLE.ward % 3 == m] for m in range(3)}


class Wired(InProcess):
    """Sites in this process, behind the bytes that a network would carry."""

    def connect(self, shards, names=None, model=None):
        super().connect(shards, names, model)
        self.like, self.payloads = None, {}

    def open(self, job, shards):
        super().open(job, shards)
        self.like = prior_of(job.model, job.model.hyper)

    def ask(self, question):
        asked = address(question, len(self._holder.sources))
        kind = type(next(iter(asked.values())))
        sent = {site: encode_question(one) for site, one in asked.items()}
        answers = super().ask({site: decode_question(kind.name, payload, self.like) for site, payload in sent.items()})
        received = {site: encode_answer(kind, one) for site, one in answers.items()}
        assert max(map(len, sent.values())) <= largest_message(kind, self.like)
        assert max(map(len, received.values())) <= largest_message(q.ANSWERS[kind], self.like)
        self.payloads[kind] = sent[0], received[0]
        return {site: decode_answer(kind, payload, self.like) for site, payload in received.items()}


@pytest.mark.filterwarnings("ignore:the run has not settled")
@pytest.mark.parametrize(
    ("formula", "settings"),
    [
        ("y ~ age * C(arm)", {"weights": "n", "held_out": 0.3, "seed": 3}),
        ("visits ~ arm + (1 | ward)", {"family": "poisson"}),
    ],
)
def test_regressions_are_the_same_through_bytes_to_the_last_bit(formula, settings):
    wired, settings = Wired(), {"schedule": pt.schedules.Synchronous(rounds=3), "quiet": True, **settings}
    there = pt.regress(formula, SITES, engine=wired, **settings)
    asked = set(wired.payloads)
    here = pt.regress(formula, SITES, **settings)
    assert there.result.fingerprint == here.result.fingerprint
    assert (there.log_evidence, there.digest) == (here.log_evidence, here.digest)
    assert_array_equal(there.design.unit, here.design.unit)
    assert there.calibration() == here.calibration()
    assert asked == {q.Levels, q.Rows, q.Moments, q.Products, q.Evaluate}
    assert set(wired.payloads) == {q.Rows, q.Predict}


def grouped(x, g, y):
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    slope, spread = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("spread", dist.HalfNormal(1))
    with numpyro.plate("groups", 4):
        own = numpyro.sample("own", dist.Normal(0, spread))
    numpyro.sample("y", dist.Normal(slope * x + jnp.take(own, g), 0.5), obs=y)


def group_shards(groups):
    g = np.arange(40) % 4
    x = np.linspace(-1, 1, 40)
    parts = [np.isin(g, some) for some in groups]
    return [(x[part], g[part].astype(np.int32), x[part] + 0.1 * g[part]) for part in parts]


def test_programs_are_laid_out_and_their_groups_counted_where_the_rows_are():
    shards, wired = group_shards(([0], [1, 2, 3])), Wired()
    model = pt.models.from_numpyro(grouped, ("x", "g", "y"), local={"groups": "g"})
    schedule = pt.schedules.Synchronous(rounds=2)
    there = pt.fit(model, [lambda s=s: s for s in shards], schedule=schedule, engine=wired)
    assert there.fingerprint == pt.fit(model, shards, schedule=schedule).fingerprint
    assert {q.Layout, q.Groups, q.ColumnNames} <= set(wired.payloads)
    # A group that is at two sites is found out, too, where sites load their own rows.
    with pytest.raises(ShardError, match="site 1: g: group 1 is at another site too"):
        pt.fit(model, [lambda s=s: s for s in group_shards(([0, 1], [1, 2, 3]))], schedule=schedule)


def test_bytes_that_are_no_answer_are_refused():
    wired = Wired()
    found = pt.regress("y ~ age + arm", SITES, engine=wired, quiet=True)
    payloads = dict(wired.payloads)
    found.calibration()
    payloads |= wired.payloads
    for kind, (question, answer) in payloads.items():
        like = found.result.prior if kind is q.Evaluate else None
        for torn in (question[:-3], question[: len(question) // 2], b"x" * 40, question + b"\0"):
            with pytest.raises(MalformedMessage):
                decode_question(kind.name, torn, like)
        for torn in (answer[:-3], b"", answer + b"\0", bytes(answer[:-1]) + bytes([answer[-1] ^ 1]) + b"\0"):
            with pytest.raises(MalformedMessage):
                decode_answer(kind, torn, like)
        with pytest.raises(MalformedMessage):
            decode_question(kind.name, bytes(largest_message(kind, like) + 1), like)
        # One question's bytes are not another's.
        with pytest.raises(MalformedMessage):
            decode_question("levels" if kind is not q.Levels else "rows", question, like)
    with pytest.raises(MalformedMessage, match="question 'everything': is not known here"):
        decode_question("everything", b"")
    with pytest.raises(MalformedMessage, match="no model is known here yet"):
        decode_question("evaluate", payloads[q.Evaluate][0])


@pytest.mark.parametrize(
    ("kind", "plain", "arrays"),
    [
        (q.Levels, b'{"rows": -1, "alike_groups": 0, "columns": []}', {}),
        (q.Levels, b'{"rows": 1, "alike_groups": 0, "columns": [["x", [3]]]}', {}),
        (q.Levels, b'{"rows": 1, "alike_groups": 0}', {}),
        (q.Levels, b"[" * 10_000, {}),
        (q.Products, b"{}", {"products": np.full((2, 2), np.nan)}),
        (q.Products, b"{}", {"products": np.zeros(4)}),
        (q.Products, b"{}", {"products": np.zeros((2, 2), np.float32)}),
        (q.Groups, b'{"largest": 3}', {"codes": np.zeros(2)}),
    ],
)
def test_fields_are_what_they_are_declared_to_be(kind, plain, arrays):
    payload = pack(kind.name, {}, {**arrays, "plain": np.frombuffer(plain, np.uint8)})
    with pytest.raises(MalformedMessage, match=f"{kind.name}: cannot be read"):
        decode_answer(kind, payload)


def test_every_question_has_a_name_and_an_answer():
    assert len(q.QUESTIONS) == len(q.ANSWERS) == len({kind.name for kind in q.ANSWERS})
    assert {"about", "refine", "evaluate", "levels", "rows", "moments", "predict", "digest"} <= q.KINDS
    assert largest_message(q.AboutAnswer, None) == 8
    assert largest_message(q.About, None) == 8 + HEADER


# The wall, in one process.


def nearest(stack):
    """The file of Partita's from which a function was called."""
    own = [frame.filename for frame in stack if f"{os.sep}partita{os.sep}" in frame.filename]
    return own[-1].split(f"{os.sep}partita{os.sep}")[1]


def test_tables_are_loaded_and_read_on_the_side_of_sites_alone():
    callers = []

    class Watched(pd.DataFrame):
        """A table that notes who looks at it."""

        def __getitem__(self, key):
            callers.append(nearest(traceback.extract_stack()))
            return super().__getitem__(key)

        def __len__(self):
            callers.append(nearest(traceback.extract_stack()))
            return super().__len__()

    def load(name):
        callers.append(nearest(traceback.extract_stack()))
        return Watched(SITES[name])

    sites = {name: lambda name=name: load(name) for name in SITES}
    found = pt.regress("y ~ age + arm", sites, held_out=0.2, quiet=True)
    assert found.calibration()["on"] == "rows that were held out"
    assert len(callers) > 20
    assert {caller.split(os.sep)[0] for caller in callers} == {"site"}, set(callers)


def test_what_a_regression_keeps_of_sites_is_where_their_tables_come_from():
    table = SITES["s0"].copy()
    found = pt.regress("y ~ age", {"a": table, "b": SITES["s1"]}, quiet=True)
    assert found.silos.engine._holder is None
    table["y"] = table["y"] + 1
    with pytest.raises(InputError, match="not those that were fitted"):
        found.calibration()


def test_an_engine_says_what_it_needs_before_it_can_ask():
    engine = InProcess()
    with pytest.raises(EngineError, match="connect it to sites"):
        engine.ask(q.Digest())
    engine.connect([(np.zeros((3, 2)), np.zeros(3))])
    with pytest.raises(EngineError, match="have no job yet"):
        engine.ask(q.Digest())
    with pytest.raises(EngineError, match="know no model yet"):
        engine.ask(q.Layout())
    (answer,) = engine.ask(q.Moments()).values()
    assert answer.count == 3


class Fleet:
    """A federation's grid with two sites that can work, of which the second tears its answers, or both refuse."""

    def __init__(self):
        self.sent, self.refuses = {}, False

    def get_nodes(self):
        return [SimpleNamespace(name=name, node_id=number) for number, name in enumerate(("north", "south"), 1)]

    def push_messages(self, messages):
        numbers = [f"{len(self.sent) + i}" for i in range(len(messages))]
        self.sent.update(zip(numbers, messages, strict=True))
        return numbers

    def pull_messages(self, numbers):
        return [
            SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=number),
                has_content=lambda: True,
                has_error=lambda: False,
                content={q.RECORD: self.answer(**self.sent[number])},
            )
            for number in numbers
        ]

    def answer(self, kind, site):
        if kind == "query.about":
            return {"payload": np.float64(20).tobytes()}
        if self.refuses:
            return {"error": "cannot answer"}
        answer = encode_answer(q.Levels, q.LevelsAnswer((), 20, 0))
        return {"payload": answer if site == 1 else answer[:-4]}


def test_a_federation_says_who_does_not_answer_a_question(monkeypatch):
    """And counts on it all the same."""

    def message(content, dst_node_id, message_type, ttl):
        return {"kind": message_type, "site": dst_node_id}

    monkeypatch.setitem(sys.modules, "flwr", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "flwr.app", SimpleNamespace(ConfigRecord=dict, RecordDict=dict, Message=message))
    fleet = Fleet()
    engine = pt.engines.Flower(fleet, poll=0.01)
    run, shards = prepare(
        pt.models.LinearRegression(features=1, noise=1.0), ["north", "south"], Settings(engine=engine)
    )
    engine.open(run.job(), shards)
    # What tells sites apart is known without asking them.
    assert [answer.digest for answer in engine.ask(q.Digest()).values()] == ["north", "south"]
    fleet.refuses = True
    with pytest.raises(EngineError, match="'levels' was refused: site north: cannot answer; site south: cannot answer"):
        engine.ask(q.Levels(("age",)))
    fleet.refuses = False
    words = "site south: the answer to the question 'levels' could not be decoded .* compare Partita versions"
    with pytest.raises(EngineError, match=words):
        engine.ask(q.Levels(("age",)))
    assert all(peer.can_work for peer in engine.peers)
    engine.close()
