"""A federation by a plan in one process: the server's own run, and sites that keep their tables in their own ways."""

from functools import partial

import polars

from local_fleet import Fleet, serve
from partita.engines.flower import Flower
from partita.federation import server as federation_server
from partita.federation.folders import read_server
from partita.federation.new import make_planned


class MemoryFederation:
    """The folders of a federation with a plan, and its run; `sent` is all that its server has asked."""

    def __init__(self, folder, plan, names, monkeypatch):
        monkeypatch.setattr(federation_server, "Flower", partial(Flower, poll=0.001))
        make_planned(folder, names, "127.0.0.1:9092", plan)
        self.folder, self.names, self._monkeypatch = folder, names, monkeypatch
        self.sent = []

    def site_folder(self, name):
        return self.folder / "for-sites" / name

    def write_table(self, name, table, said="", file="data.csv"):
        """A site's table, and what its own file says beside what a new one does: `section: key = value`."""
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
            text = "\n".join(kept).replace(f"[{section}]\n", "\n".join([f"[{section}]", *lines, ""])) + "\n"
        path.write_text(text)

    def run(self):
        """Run the server to its end, with sites that accept what comes first; the state then."""
        server = read_server(self.folder)
        server.run.mkdir(mode=0o700, exist_ok=True)
        self.fleet = Fleet(server, self.names)
        push = self.fleet.push_messages

        def record(messages):
            self.sent += [dict(message.content["partita"]) for message in messages]
            return push(messages)

        self.fleet.push_messages = record
        return serve(server, self.fleet, self._monkeypatch)

    @property
    def result(self):
        return read_server(self.folder).result
