"""What a federation promises against strangers, and what sites promise against their server: `test_NN` is row NN."""

import asyncio
import json
import os
import time
import warnings
from base64 import b64encode

import numpy as np
import pytest
from typer.testing import CliRunner

import partita as pt
from partita.cli import app as commands
from partita.errors import ConfigError, InputError, StorageError
from partita.families import Family
from partita.federation import link
from partita.federation.folders import read_server
from partita.federation.new import make_federation
from partita.federation.state import request
from partita.foundation.locks import hold_lock, private_folder
from partita.foundation.logs import open_log
from partita.models import prior_of
from partita.server.ledger import Ledger
from partita.server.rules import FreeEnergy, Proposal, Setup, as_damping
from partita.site.consent import Consent
from partita.site.gate import Site
from partita.site.process import log_answers
from partita.site.settings import read_site
from partita.wire.codec import encode_question
from partita.wire.messages import encode_task
from partita.wire.questions import FOREIGN, RECORD, Evaluate

PORT = 40_000  # of the inner door; nothing listens in these tests
GENERATOR = np.random.default_rng(0)
AGES = GENERATOR.normal(size=40) + 7.123456
SECRETS = GENERATOR.normal(size=40) * 1e3


def made(path):
    pytest.importorskip("cryptography")
    make_federation(path, ["a", "b"], "127.0.0.1:9092", ["age"], "ill", "linear-regression")
    return read_server(path)


@pytest.fixture
def server(tmp_path):
    return made(tmp_path / "server")


@pytest.fixture
def folder(server):
    """A site's, whose table has a column that is not in the federation."""
    folder = server.path / "for-sites" / "a"
    write_table(folder, 40)
    return folder


def write_table(folder, rows):
    ill = (AGES[:rows] + GENERATOR.normal(size=rows)).tolist()
    lines = [f"{age!r},{secret!r},{y!r}" for age, secret, y in zip(AGES.tolist(), SECRETS.tolist(), ill, strict=False)]
    (folder / "data.csv").write_text("\n".join(["age,secret,ill", *lines]) + "\n")


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def question(recipe, kind="evaluate"):
    model = recipe.model
    prior = prior_of(model, model.hyper)
    payload = encode_question(Evaluate(prior, model.hyper)) if kind == "evaluate" else b""
    if kind == "refine":
        (task,) = Ledger(prior, 2).dispatch([0], model.hyper)
        payload = encode_task(task)
    return {**recipe.greeting, "site": 0, "payload": payload}


# 2: an answer is lost, or sent again while the first is under way.


def test_02_a_site_tries_again_when_a_connection_breaks_and_says_what_was_wrong(monkeypatch):
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("flwr")
    from partita.site import node

    monkeypatch.setattr(node, "WAIT", 0.0)
    tried = []

    def broken(request):
        tried.append(request)
        if len(tried) % 3:
            raise httpx.ReadError("reset")
        return "yes"

    assert node._call(broken, 1) == "yes"
    assert len(tried) == 3
    # What was under way may be lost, and the server has to hear of it.
    with pytest.raises(node.Disconnected, match="ReadError: reset"):
        node._call(broken, 1, tries=1)

    def answers(status, code):
        def call(request):
            made = httpx.Request("POST", "https://x")
            body = {"code": code, "detail": "words"}
            raise httpx.HTTPStatusError("", request=made, response=httpx.Response(status, json=body, request=made))

        return call

    for status, code, error in (
        (401, 0, node.Refused),
        (400, node.NOT_ACTIVATED, node.Refused),
        (403, 0, node.Refused),
        (500, 0, node.Disconnected),
    ):
        with pytest.raises(error):
            node._call(answers(status, code), 1)


# 7: a site is killed, and comes back.


def test_07_a_step_of_others_is_not_taken_back_when_a_site_is_back():
    """Automatic damping takes a step back by its own changes: those of two sites say nothing of three."""
    model = pt.models.LinearRegression(features=1, noise=1.0)
    prior = prior_of(model, model.hyper)

    def proposal(sites):
        changes = Family.stack([prior**0.1 for _ in sites])
        return Proposal(sites, changes, changes, prior, prior, 0, None)

    damping = as_damping("auto").init(Setup(3, parallel=True))
    damping.observe(FreeEnergy(-10.0, 0.0))
    damping.apply(proposal([0, 2]))
    damping.observe(FreeEnergy(-20.0, 0.0))
    asked = damping.apply(proposal([0, 1, 2])).changes
    assert damping.share == pytest.approx(1 / 6)
    np.testing.assert_allclose(asked.precision, (Family.stack([prior] * 3) ** (0.1 / 6)).precision)
    # The same sites again: half of the step is taken back.
    damping.observe(FreeEnergy(-30.0, 0.0))
    back = damping.apply(proposal([0, 1, 2])).changes
    assert damping.share == 0
    np.testing.assert_allclose(back.precision, -0.5 * asked.precision)


def test_12_a_new_federation_has_limits(server):
    assert server.limits.change == 100
    assert server.limits.staleness == 100


# 15: a site never returns.


class Phone:
    """One request at the gate of a server that is not started, of which the test sends as much as it likes."""

    def __init__(self, gate, path, headers, body=b""):
        self.said, self.parts = [], asyncio.Queue()
        about = {**headers, "content-length": str(len(body)), "content-type": "application/protobuf"}
        scope = {"type": "http", "method": "POST", "path": path, "server": ("127.0.0.1", 9092)}
        scope["headers"] = [(name.lower().encode(), value.encode()) for name, value in about.items()]
        self.task = asyncio.ensure_future(gate(scope, self.parts.get, self.hear))

    async def hear(self, event):
        self.said.append(event)

    def say(self, body, more=False):
        self.parts.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def hang_up(self):
        self.parts.put_nowait({"type": "http.disconnect"})

    async def answer(self):
        """Status and body."""
        await asyncio.wait_for(self.task, 10)
        return self.said[0]["status"], self.said[1]["body"]


class Office:
    """A gate with two sites that are connected and a run, as `partita serve` has them; and what each may say."""

    def __init__(self, folder):
        from flwr.supercore.constant import TaskType

        from partita.federation.link import build_gate
        from partita.foundation.keys import read_public_key, write_pem

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "No path_separator found", DeprecationWarning)
            self.gate = build_gate(folder, PORT)
        self.state, self.folder = self.gate.app.state.linkstate_factory.state(), folder
        self.nodes = {}
        for name in folder.sites:
            key = write_pem(read_public_key(folder.public_key(name)))
            self.nodes[name] = self.state.create_node("nobody", "nobody", key, 0, name=name)
            assert self.state.activate_node(self.nodes[name], 30.0)
        self.run = self.state.create_run(None, None, None, {}, "@none/default", None, "nobody", TaskType.SERVER_APP)
        task = self.state.get_run_info(run_ids=[self.run])[0].primary_task_id
        self.state.claim_task(task)
        self.state.activate_task(task)

    def signed(self, site):
        return signed(self.folder.path / "for-sites" / site / "site.key")

    def pull(self, site, node=None):
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.proto.node_pb2 import Node

        body = PullMessagesRequest(node=Node(node_id=node or self.nodes[site])).SerializeToString()
        phone = Phone(self.gate, link.PULL, self.signed(site), body)
        phone.say(body)
        return phone

    def answer_to(self, site, message, **changes):
        """The body with which a site answers a message that it got."""
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.proto.node_pb2 import Node

        from partita.site.node import _open, _reply_to

        reply = _reply_to(_open(message), lambda kind, asked: {"payload": b"yes", **changes})
        reply.metadata.__dict__["_message_id"] = f"answer of {site}"
        node = Node(node_id=self.nodes[site])
        return PushMessagesRequest(node=node, messages_list=[message_to_proto(reply)]).SerializeToString()

    def push(self, site, body):
        phone = Phone(self.gate, link.PUSH, self.signed(site), body)
        phone.say(body)
        return phone

    def send(self, *sites):
        from flwr.common.serde import message_to_proto
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest, PushAppMessagesResponse

        messages = [message_to_proto(self.question(site)) for site in sites]
        body = PushAppMessagesRequest(messages_list=messages).SerializeToString()
        return list(PushAppMessagesResponse.FromString(self.gate.post.send(body)).message_ids)

    def question(self, site):
        from flwr.app import ConfigRecord, Metadata, RecordDict
        from flwr.app.message import make_message

        about = Metadata(
            run_id=self.run, message_id=f"question for {site}", src_node_id=1, dst_node_id=self.nodes[site],
            reply_to_message_id="", group_id="", created_at=time.time(), ttl=60.0, message_type="query.about",
        )  # fmt: skip
        return make_message(about, content=RecordDict({RECORD: ConfigRecord({"payload": b"how are you"})}))

    async def fetch(self, numbers):
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse

        body = PullAppMessagesRequest(message_ids=numbers).SerializeToString()
        nobody = asyncio.get_running_loop().create_future()
        return PullAppMessagesResponse.FromString(await self.gate.post.fetch(body, self.run, nobody)).messages_list


def pulled(answer):
    from flwr.proto.fleet_pb2 import PullMessagesResponse

    status, body = answer
    assert status == 200
    return list(PullMessagesResponse.FromString(body).messages_list)


@pytest.fixture
def office(server):
    pytest.importorskip("flwr")
    server.run.mkdir()
    return Office(server)


def test_15_half_an_answer_holds_up_nobody_else(office):
    """A site that sends the head of an answer and never the rest; the other asks, is asked, and answers meanwhile."""

    async def talk():
        waiting = [office.pull("a"), office.pull("b")]
        await asyncio.sleep(0.05)
        assert not any(one.task.done() for one in waiting)
        numbers = office.send("a", "b")
        (mine,), (its) = [pulled(await one.answer()) for one in waiting]
        slow = Phone(office.gate, link.PUSH, office.signed("b"), office.answer_to("b", its[0]))
        slow.say(office.answer_to("b", its[0])[:20], more=True)
        assert (await office.push("a", office.answer_to("a", mine)).answer())[0] == 200
        (found,) = await office.fetch(numbers)
        assert found.metadata.reply_to_message_id == "question for a"
        assert not slow.task.done()
        # Who waits for the slow one waits a little, and is told that there is nothing.
        began = time.monotonic()
        assert len(await office.fetch(numbers[1:])) == 0
        assert time.monotonic() - began < 5
        slow.task.cancel()

    asyncio.run(talk())


def test_15_nonsense_is_no_answer(office):
    """Nothing of it comes to where answers are read, and the site can still answer."""

    async def talk():
        from flwr.proto.fleet_pb2 import PushMessagesRequest

        numbers = office.send("a", "b")
        (asked,) = pulled(await office.pull("b").answer())
        good = PushMessagesRequest.FromString(office.answer_to("b", asked))
        bad = [b"\xff\xff", b"", good.SerializeToString()[:-3]]
        for spoil in (
            lambda one: one.content.items[0].config_record.items[0].value.ClearField("value"),
            lambda one: one.content.items.add(key="more"),
            lambda one: one.content.items[0].ClearField("value"),
            lambda one: one.content.ClearField("items"),
            lambda one: setattr(one.content.items[0].config_record.items[0], "key", "other"),
            lambda one: setattr(one.metadata, "src_node_id", office.nodes["a"]),
            lambda one: setattr(one.metadata, "reply_to_message_id", ""),
            lambda one: setattr(one.error, "code", 3),
        ):
            spoilt = PushMessagesRequest.FromString(good.SerializeToString())
            spoil(spoilt.messages_list[0])
            bad.append(spoilt.SerializeToString())
        for body in bad:
            assert (await office.push("b", body).answer())[0] == 403, body
        # To what another was asked: Flower does not take it.
        stolen = PushMessagesRequest.FromString(good.SerializeToString())
        stolen.messages_list[0].metadata.reply_to_message_id = "question for a"
        assert (await office.push("b", stolen.SerializeToString()).answer())[0] == 200
        assert len(await office.fetch(numbers)) == 0
        assert (await office.push("b", good.SerializeToString()).answer())[0] == 200
        # Twice is once.
        assert (await office.push("b", good.SerializeToString()).answer())[0] == 200
        (found,) = await office.fetch(numbers)
        assert found.content.items[0].config_record.items[0].value.bytes == b"yes"
        assert len(await office.fetch(numbers[:1])) == 0

    asyncio.run(talk())


def test_15_a_message_is_for_whom_it_is_and_for_who_is_still_there(office):
    async def talk():
        assert (await office.pull("a", office.nodes["b"]).answer())[0] == 403
        # A connection that has broken: what comes next is not lost on it, whether that was heard of or not.
        heard_of, unheard_of = office.pull("a"), office.pull("b")
        await asyncio.sleep(0.05)
        heard_of.hang_up()
        assert pulled(await heard_of.answer()) == []
        again = [office.pull("a"), office.pull("b")]
        assert pulled(await unheard_of.answer()) == []
        office.send("a", "b")
        found = [pulled(await one.answer()) for one in again]
        assert [one.metadata.dst_node_id for (one,) in found] == [office.nodes["a"], office.nodes["b"]]
        # A site that goes is let go.
        going = office.pull("a")
        await asyncio.sleep(0.05)
        office.gate.post.release(office.nodes["a"])
        assert pulled(await going.answer()) == []
        assert not office.gate.post._waiting

    asyncio.run(talk())


# 17: a stranger reaches the server's port.


def ask(gate, port, path, method="POST", headers=None):
    """The status of one request at a door of a server that is not started."""
    import httpx

    async def send():
        transport = httpx.ASGITransport(app=gate, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=f"https://127.0.0.1:{port}") as client:
            # As Flower's own clients send it; the content of a message that is empty.
            about = {"content-type": "application/protobuf", "accept": "application/protobuf", **(headers or {})}
            return (await client.request(method, path, headers=about, content=b"")).status_code

    return asyncio.run(send())


def signed(private):
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    key, moment = load_ssh_private_key(private.read_bytes(), None), now().isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
        TIMESTAMP_HEADER: moment,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, moment.encode())).decode(),
    }


def routes(app):
    """Every route of Flower's own app, with its method; variables in paths as a number."""
    from fastapi.routing import iter_route_contexts

    found = {
        (method, context.path)
        for context in iter_route_contexts(app.routes)
        for method in (getattr(context.route, "methods", None) or ())
    }
    assert ("POST", "/v1/control/start-run") in found
    assert ("POST", "/v1/fleet/get-fab") in found
    assert len(found) > 60
    return sorted(found)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server's folder and its gate."""
    pytest.importorskip("flwr")
    from partita.federation.link import build_gate

    server = made(tmp_path_factory.mktemp("guarded") / "server")
    server.run.mkdir()
    with warnings.catch_warnings():
        # Flower's own database tool.
        warnings.filterwarnings("ignore", "No path_separator found", DeprecationWarning)
        return server, build_gate(server, PORT)


def test_17_only_sites_get_answers_and_only_at_their_routes(guarded, tmp_path):
    from partita.federation.link import FOR_SITES
    from partita.foundation.keys import write_site_key

    server, gate = guarded
    write_site_key(tmp_path / "stranger.key", tmp_path / "stranger.pub")
    stranger, own = signed(tmp_path / "stranger.key"), signed(server.path / "for-sites" / "a" / "site.key")
    for method, path in routes(gate.app):
        is_for_sites = path in FOR_SITES and method == "POST"
        for headers in ({}, stranger):
            assert ask(gate, 9092, path, method, headers) == (401 if is_for_sites else 404), path
            assert ask(gate, PORT, path, method, headers) >= 400, path
        if not is_for_sites:
            assert ask(gate, 9092, path, method, own) == 404
            assert ask(gate, PORT, path, method, own) >= 400
    # An empty message of a site: its key is known here, and no node has come with it.
    assert ask(gate, 9092, "/v1/fleet/activate-node", headers=own) == 401
    assert ask(gate, 9092, "/v1/fleet/push-messages", headers=own) == 401


def test_17_whoever_has_the_secret_starts_runs_on_the_servers_own_machine_alone(guarded):
    from partita.federation.link import operator_token

    server, gate = guarded
    token = operator_token((server.keys / "secret").read_bytes())
    operator = {"authorization": f"Bearer {token}"}
    assert ask(gate, PORT, "/v1/control/list-runs", headers=operator) == 200
    assert ask(gate, 9092, "/v1/control/list-runs", headers=operator) == 404
    assert ask(gate, PORT, "/v1/control/list-runs", headers={"authorization": f"Bearer {token[:-1]}"}) == 401
    for path in ("//v1/control/list-runs", "/v1/fleet/../control/list-runs", "/v1/control/list-runs/", "/"):
        assert ask(gate, 9092, path, headers=operator) == 404, path


def test_17_signatures_of_other_times_and_large_requests_are_refused(guarded):
    from partita.federation.link import LARGEST_HEAD, is_signed

    server, gate = guarded
    own = {name.lower(): value for name, value in signed(server.path / "for-sites" / "b" / "site.key").items()}
    assert is_signed(own, gate.keys)
    assert not is_signed({**own, "flwr-timestamp": "2020-01-01T00:00:00+00:00"}, gate.keys)
    assert not is_signed({**own, "flwr-timestamp": "yesterday"}, gate.keys)
    assert not is_signed({name: value for name, value in own.items() if name != "flwr-timestamp"}, gate.keys)
    large = {**own, "content-length": str(LARGEST_HEAD + 1)}
    assert ask(gate, 9092, "/v1/fleet/pull-messages", headers=large) == 413


# 18: a foreign app is sent to a site.


def test_18_a_site_answers_questions_and_runs_nothing():
    pytest.importorskip("flwr")
    from flwr.app import ConfigRecord, Metadata, RecordDict
    from flwr.app.message import make_message

    from partita.site.node import _reply_to

    asked = []

    def answer(kind, record):
        asked.append((kind, record))
        return {"error": "nothing else"} if kind == FOREIGN else {"payload": b"yes"}

    def reply(kind, records):
        about = Metadata(
            run_id=1, message_id="m", src_node_id=1, dst_node_id=5, reply_to_message_id="", group_id="",
            created_at=time.time(), ttl=60.0, message_type=kind,
        )  # fmt: skip
        message = make_message(about, content=RecordDict(records))
        return dict(_reply_to(message, answer).content[RECORD])

    ours = {RECORD: ConfigRecord({"payload": b"x"})}
    assert reply("query.about", ours) == {"payload": b"yes"}
    assert asked == [("about", {"payload": b"x", "run": "1"})]
    for kind, records in (("train", ours), ("query", ours), ("query.steal", ours), ("query.about", {})):
        assert reply(kind, records) == {"error": "nothing else"}
    # Nothing of such a message is handed on; and nothing is sent that did not come from there.
    assert asked[1:] == [(FOREIGN, {})] * 4


# 19: the server asks beyond the accepted recipe.


def test_19_another_column_model_or_solver_is_refused_at_the_site_and_logged_there(server, folder):
    accepted = server.recipe
    site = Site(folder, accepts=True)
    log = open_log(folder / "run", "log")
    answer = log_answers(site, log, print)
    assert "payload" in answer("evaluate", question(accepted))
    before = (folder / "run" / "accepted.json").read_text()
    for old, new in (
        ('features = ["age"]', 'features = ["secret"]'),
        ('features = ["age"]', 'features = ["age", "secret"]'),
        ('target = "ill"', 'target = "secret"'),
        ("# centre = [0.0]", "centre = [7.0]"),
        ('name = "linear-regression"', 'name = "logistic-regression"'),
        ('name = "linear-regression"', 'name = "linear-regression"\nprior_scale = 1e-9'),
        ("[schedule]", "[solver]\nsteps = 7\n[schedule]"),
    ):
        text = (server.path / "federation.toml").read_text()
        change(server.path / "federation.toml", old, new)
        other = read_server(server.path).recipe
        (server.path / "federation.toml").write_text(text)
        for kind in ("about", "refine", "evaluate"):
            told = answer(kind, question(other, kind))["error"]
            assert told.startswith("its policy refuses this (approval): the server asks under another recipe")
            assert site.problem.startswith("PolicyRefusal: the server asks under another recipe")
            # Where the site's folder is stays there.
            assert str(folder) in site.problem
            assert str(folder) not in told
        # Somebody has to look at it.
        assert Consent(folder).proposed != Consent(folder).accepted
    assert (folder / "run" / "accepted.json").read_text() == before
    assert "payload" in answer("evaluate", question(accepted))
    written = (folder / "run" / "log.jsonl").read_text()
    assert written.count("PolicyRefusal") == 21
    for number in (*AGES, *SECRETS):
        assert repr(float(number)) not in written
    assert (folder / "run" / "accepted.json").stat().st_mode & 0o777 == 0o600
    log.handlers[0].close()


def test_19_more_rounds_are_the_same_recipe(server, folder):
    site = Site(folder, accepts=True)
    assert "payload" in site.answer("about", question(server.recipe, "about"))
    change(server.path / "federation.toml", "rounds = 20", "rounds = 21")
    assert "payload" in site.answer("about", question(read_server(server.path).recipe, "about"))


def test_19_questions_and_tasks_are_counted_for_as_long_as_a_recipe_is_accepted(server, folder):
    change(folder / "site.toml", "most_questions = 50", "most_questions = 3")
    change(folder / "site.toml", "most_tasks = 1000", "most_tasks = 2")
    recipe = server.recipe
    site = Site(folder, accepts=True)
    assert all("payload" in site.answer("evaluate", question(recipe)) for _ in range(3))
    assert all("payload" in site.answer("refine", question(recipe, "refine")) for _ in range(2))
    for kind, key in (("evaluate", "most_questions"), ("refine", "most_tasks")):
        # A site that is started again remembers; so does one that is asked for a new run.
        for one in (site, Site(folder)):
            told = one.answer(kind, question(recipe, kind))["error"]
            assert told.startswith(f"its policy refuses this ({key}): the server has asked")
            assert f"raise {key}" in one.problem
    assert "payload" in site.answer("about", question(recipe, "about"))
    change(folder / "site.toml", "most_questions = 3", "most_questions = 4")
    assert "payload" in site.answer("evaluate", question(recipe))
    assert "(most_questions)" in site.answer("evaluate", question(recipe))["error"]
    Consent(folder).accept(Consent(folder).accepted)
    assert "payload" in site.answer("evaluate", question(recipe))


def test_19_nothing_is_answered_before_a_person_has_accepted_it(server, folder):
    site, runner = Site(folder), CliRunner()
    nothing = runner.invoke(commands, ["accept", str(folder)])
    assert isinstance(nothing.exception, InputError)
    assert "no server has proposed anything" in str(nothing.exception)
    nothing_yet = {"error": "its policy refuses this (approval): nothing has been approved here yet"}
    assert site.answer("about", question(server.recipe, "about")) == nothing_yet
    assert site.problem.startswith("PolicyRefusal: nothing has been approved here yet: to look at")
    shown = runner.invoke(commands, ["accept", str(folder)], input="n\n")
    assert 'columns: {"features": ["age"], "target": "ill"}' in shown.output
    assert site.answer("about", question(server.recipe, "about")) == nothing_yet
    assert runner.invoke(commands, ["accept", str(folder), "--yes"]).exit_code == 0
    assert "payload" in site.answer("about", question(server.recipe, "about"))


def test_19_what_is_kept_of_an_acceptance_cannot_be_half_read(server, folder):
    site = Site(folder, accepts=True)
    assert "payload" in site.answer("about", question(server.recipe, "about"))
    (folder / "run" / "accepted.json").write_text('{"recipe": {')
    told = site.answer("about", question(server.recipe, "about"))["error"]
    assert told == "its policy refuses this (approval): what was approved cannot be read at the site"
    assert "approve the recipe again" in site.problem
    assert CliRunner().invoke(commands, ["accept", str(folder), "--yes"]).exit_code == 0
    assert "payload" in site.answer("about", question(server.recipe, "about"))
    recipe = json.dumps({"columns": "x" * 200_000})
    assert "longer than" in site.answer("about", {**question(server.recipe, "about"), "recipe": recipe})["error"]


# 20: a site with too few rows, or more parameters than its policy allows.


@pytest.mark.parametrize("rows", [1, 9])
def test_20_a_site_with_too_few_rows_only_says_that_it_has(server, folder, rows):
    write_table(folder, rows)
    site = Site(folder, accepts=True)
    why = "the table has fewer rows than the policy asks for (fewest_rows = 10)"
    for kind in ("about", "refine", "evaluate"):
        assert site.answer(kind, question(server.recipe, kind)) == {
            "error": f"its policy refuses this (fewest_rows): {why}"
        }
        assert site.problem == f"PolicyRefusal: {why}"
    write_table(folder, 10)
    assert "payload" in site.answer("refine", question(server.recipe, "refine"))


def test_20_more_parameters_than_the_policy_allows_are_refused(server, folder):
    change(folder / "site.toml", "most_parameters = 10000", "most_parameters = 3")
    site = Site(folder, accepts=True)
    told = site.answer("refine", question(server.recipe, "refine"))["error"]
    assert told.startswith("its policy refuses this (most_parameters): the model has 12 natural parameters, and")
    assert "natural parameters, and the policy allows 3: write most_parameters = 12 in" in site.problem
    change(folder / "site.toml", "most_parameters = 3", "most_parameters = 12")
    assert "payload" in site.answer("refine", question(server.recipe, "refine"))
    change(folder / "site.toml", "fewest_rows = 10", "fewest_rows = 0")
    with pytest.raises(ConfigError, match=r"\[policy\] fewest_rows: expected"):
        read_site(folder)


# 28: other users on the machine.


def test_28_folders_are_their_owners_alone(tmp_path):
    pytest.importorskip("cryptography")
    before = os.umask(0)
    try:
        server = made(tmp_path / "server")
        request(server, "a", "retired")
        assert server.run.stat().st_mode & 0o777 == 0o700
        with private_folder(server.run), hold_lock(server.run / "serve.lock"):
            open_log(server.run, "log").info("hello")
            assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    found = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "server").rglob("*")}
    assert {"site.key", "secret", "ca.crt", "federation.toml", "serve.lock", "log.jsonl", "requests"} <= found.keys()
    assert set(found.values()) == {0o700, 0o600}
    assert (tmp_path / "server").stat().st_mode & 0o777 == 0o700


def test_28_no_link_is_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "run").mkdir()
    for name in ("lock", "run/accepted.json"):
        (tmp_path / name).symlink_to(target)
    with pytest.raises(StorageError), hold_lock(tmp_path / "lock"):
        pass
    Consent(tmp_path).accept({"seed": 0})
    assert target.read_text() == "precious"


@pytest.mark.parametrize("size", ["0" * 20 + "99999999", "9" * 30, "-1", "1e3", ""])
def test_17_lengths_that_are_none_or_too_long_are_refused(size, monkeypatch):
    monkeypatch.setattr(link, "is_signed", lambda headers, keys: True)
    gate = link.Gate(None, None, 1, "token", dict, 1000)
    scope = {"type": "http", "method": "POST", "path": link.PULL, "server": ("127.0.0.1", 2)}
    assert gate._status({**scope, "headers": [(b"content-length", size.encode())]}) == 413
    assert gate._status({**scope, "headers": [(b"content-length", b"1000")]}) == 200


@pytest.mark.parametrize("key", [b"ssh-foo AAAA", b"\x30\x05garbage", b""])
def test_17_keys_of_unknown_kinds_are_no_keys(key):
    pytest.importorskip("flwr")
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now

    values = (b64encode(key).decode(), "AAAA", now().isoformat())
    names = (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)
    assert not link.is_signed({n.lower(): v for n, v in zip(names, values, strict=True)}, dict)
