"""A federation in one process: the server's own run, real sites with their gates, and a grid that carries messages."""

from functools import partial
from types import SimpleNamespace

import polars

from partita.engines.flower import Flower
from partita.federation import server as federation_server
from partita.federation.folders import read_server
from partita.federation.new import make_planned
from partita.federation.state import read_state
from partita.site.gate import Site
from partita.wire.questions import RECORD


class MemoryGrid:
    """What Flower gives a server's app, with sites that answer at once; `sent` is all that the server has asked."""

    def __init__(self, sites):
        self.sites, self.replies, self.sent = sites, {}, []

    def get_nodes(self):
        return [SimpleNamespace(name=name, node_id=n, public_key=b"") for n, name in enumerate(self.sites, 10)]

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            kind = message.metadata.message_type.removeprefix("query.")
            record = dict(message.content[RECORD])
            self.sent.append((kind, record))
            site = list(self.sites.values())[message.metadata.dst_node_id - 10]
            numbers.append(f"m{len(self.sent)}")
            self.replies[numbers[-1]] = site.answer(kind, {**record, "run": "1"})
        return numbers

    def pull_messages(self, numbers):
        return [self._reply(number) for number in numbers if number in self.replies]

    def _reply(self, number):
        about = SimpleNamespace(reply_to_message_id=number)
        content = {RECORD: self.replies.pop(number)}
        return SimpleNamespace(metadata=about, content=content, has_error=lambda: False, has_content=lambda: True)


class MemoryFederation:
    """The folders of a federation with a plan, and its run."""

    def __init__(self, folder, plan, names, monkeypatch):
        from flwr.supercore.task_identity import TaskIdentity

        for name in ("_run_id", "_node_id", "_task_id"):
            monkeypatch.setattr(TaskIdentity, name, 1)
        # Everybody is believed to be who they say, and nobody waits.
        monkeypatch.setattr(federation_server, "Flower", partial(Flower, poll=0.001))
        monkeypatch.setattr(federation_server, "canonical_key", lambda key: None)
        monkeypatch.setattr(federation_server, "read_public_key", lambda path: None)
        make_planned(folder, names, "127.0.0.1:9092", plan)
        self.folder, self.names = folder, names

    def site_folder(self, name):
        return self.folder / "for-sites" / name

    def write_table(self, name, table, said="", file="data.csv"):
        """A site's table, and what its own file says beside what a new one does."""
        folder = self.site_folder(name)
        if file.endswith(".parquet"):
            polars.DataFrame({name: table[name].tolist() for name in table}).write_parquet(folder / file)
        else:
            table.to_csv(folder / file, index=False)
        path = folder / "site.toml"
        text = path.read_text().replace('data = "data.csv"', f'data = "{file}"')
        for section in ("policy", "units", "columns"):
            lines = [line.partition(": ")[2] for line in said.splitlines() if line.startswith(f"{section}: ")]
            keys = [line.partition(" =")[0] for line in lines]
            kept = [line for line in text.splitlines() if line.partition(" =")[0] not in keys]
            text = "\n".join(kept).replace(f"[{section}]", "\n".join([f"[{section}]", *lines])) + "\n"
        path.write_text(text)

    def run(self):
        """Run the server to its end, with sites that accept what comes first; the state then."""
        self.gates = {name: Site(self.site_folder(name), accepts=True) for name in self.names}
        self.grid = MemoryGrid(self.gates)
        folder = read_server(self.folder)
        folder.run.mkdir(mode=0o700, exist_ok=True)
        federation_server.run(self.grid, self.folder, "")
        return read_state(folder)

    @property
    def result(self):
        return read_server(self.folder).result
