"""Sites of a federation in this process: all of it but Flower's network."""

import threading
from types import SimpleNamespace

import numpy as np

from partita.engines import flower
from partita.federation.folders import read_server
from partita.federation.new import make_federation
from partita.federation.server import run
from partita.foundation.keys import read_own_public_key
from partita.site.gate import Site
from partita.site.settings import read_site
from partita.site.signing import sign_answers
from partita.wire.questions import RECORD

FEATURES = ["age", "bmi"]


def make(path, sites=("a", "b", "c"), rows=30, **changes):
    """The folder of a server, with sites that have data; `changes` are of its file."""
    make_federation(path, sites, "127.0.0.1:9092", FEATURES, "ill", "logistic-regression")
    for name in sites:
        write_data(path / "for-sites" / name, rows)
    text = (path / "federation.toml").read_text()
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    (path / "federation.toml").write_text(text)
    return read_server(path)


def table(name, rows=30):
    generator = np.random.default_rng([ord(letter) for letter in name])
    X = generator.normal(size=(rows, 2)) + 0.3 * (ord(name[0]) % 3)
    return X, (X[:, 0] - 0.5 * X[:, 1] + generator.normal(size=rows) > 0).astype(float)


def write_data(folder, rows=30):
    X, y = table(folder.name, rows)
    lines = [f"{age!r},{bmi!r},{ill!r}" for (age, bmi), ill in zip(X.tolist(), y.tolist(), strict=True)]
    (folder / "data.csv").write_text("\n".join(["age,bmi,ill", *lines]) + "\n")


class Fleet:
    """What Flower's grid is to a server, over sites whose answers are computed when they are fetched.

    Args:
        before: is given the kind of each question, and the number of tasks that were answered, before it is answered.
        change: what becomes of a site's reply: given its name, the kind, and the reply.
    """

    def __init__(self, server, names, before=lambda kind, done: None, change=lambda name, kind, reply: reply):
        self._server, self._before, self._change = server, before, change
        self.nodes, self._messages, self._lock = {}, {}, threading.Lock()
        self.done, self._next_node = 0, 100
        for name in names:
            self.come(name)

    def come(self, name):
        folder = self._server.path / "for-sites" / name
        site = Site(folder, accepts=True)
        key = read_own_public_key(read_site(folder).key)
        self._next_node += 1
        about = SimpleNamespace(name=name, node_id=self._next_node, public_key=key)
        self.nodes[name] = (about, sign_answers(site, site.answer))

    def leave(self, name):
        del self.nodes[name]

    def get_nodes(self):
        return [about for about, _ in self.nodes.values()]

    def push_messages(self, messages):
        numbers = [f"m{len(self._messages) + i}" for i in range(len(messages))]
        self._messages.update(zip(numbers, messages, strict=True))
        return numbers

    def pull_messages(self, numbers):
        with self._lock:
            return [reply for number in numbers if (reply := self._reply(number)) is not None]

    def _reply(self, number):
        message = self._messages[number]
        kind = message.metadata.message_type.removeprefix("query.")
        self._before(kind, self.done)
        found = [one for one in self.nodes.values() if one[0].node_id == message.metadata.dst_node_id]
        if not found:
            return None
        about, answer = found[0]
        record = self._change(about.name, kind, answer(kind, dict(message.content[RECORD])))
        self.done += kind == "refine"
        return SimpleNamespace(
            metadata=SimpleNamespace(reply_to_message_id=number),
            content={RECORD: record},
            has_error=lambda: False,
            has_content=lambda: True,
        )


def serve(server, fleet, monkeypatch):
    """Run the server's app over a fleet, as Flower would; gives its state in the end."""
    from flwr.supercore.task_identity import TaskIdentity

    from partita.federation.state import read_state

    monkeypatch.setattr(flower, "LOOK", 0.05)
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    run(fleet, server.path, "")
    return read_state(server)
