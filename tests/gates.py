"""A federation without its network: a server's folder, sites' folders, and an engine that calls their gates."""

import time
from dataclasses import dataclass, field, replace

import numpy as np

from partita.federation.folders import read_server
from partita.federation.new import federation_file_text
from partita.fitting import fit
from partita.models import prior_of
from partita.server.completion import read_answer
from partita.site.gate import Site
from partita.site.settings import site_file_text
from partita.wire import questions as q
from partita.wire.codec import decode_answer, encode_question
from partita.wire.engine import address
from partita.wire.messages import encode_task

ADDRESS = "127.0.0.1:9092"


def write_folders(path, model, features, target, tables, sections=(), policy=()):
    """A server's folder and those of its sites, with their tables, as `partita new-federation` makes them.

    Args:
        path: where.
        model: its name, or the lines of the section [model] with it.
        features, target: names of columns.
        tables: one for each site, the target last.
        sections: lines of federation.toml in the place of others, such as `{"classes": "classes = 3"}`.
        policy: the same for keys of each site's [policy].
    """
    names = [f"site{number}" for number in range(len(tables))]
    lines = model.splitlines()
    text = federation_file_text(names, ADDRESS, features, target, lines[0])
    text = "\n".join(dict(sections).get(_key(line), line) for line in text.splitlines()) + "\n"
    if lines[1:]:
        head, rest = text.split("[model]\n")[0], text[text.index("[schedule]") :]
        text = "\n".join([f"{head}[model]", f'name = "{lines[0]}"', *lines[1:], rest])
    server = path / "server"
    (server / "sites").mkdir(parents=True)
    (server / "federation.toml").write_text(text)
    for name, table in zip(names, tables, strict=True):
        (server / "sites" / f"{name}.pub").write_text("a key")
        folder = path / name
        folder.mkdir()
        for file in ("ca.crt", "site.key"):
            (folder / file).write_text("")
        own = site_file_text(name, ADDRESS, features, target)
        own = "\n".join(
            f"{_key(line)} = {dict(policy)[_key(line)]}" if _key(line) in dict(policy) else line
            for line in own.splitlines()
        )
        (folder / "site.toml").write_text(own + "\n")
        header = ",".join([*features, *([] if target is None else [target])])
        rows = [",".join(map(repr, row)) for row in np.asarray(table, float).tolist()]
        (folder / "data.csv").write_text("\n".join([header, *rows]) + "\n")
    return server, [path / name for name in names]


def _key(line):
    return line.removeprefix("# ").partition(" =")[0]


@dataclass
class Gates:
    """An engine whose sites are gates: all that passes is bytes, as over Flower."""

    greeting: dict
    folders: list
    compression: str = "none"
    sites: list = field(init=False)
    arrivals: list = field(default_factory=list)

    def __post_init__(self):
        self.sites = [Site(folder, accepts=True) for folder in self.folders]

    def connect(self, shards, names=None, model=None):
        self.like = None

    def open(self, job, shards):
        self.like = prior_of(job.model, job.model.hyper)

    def call(self, site, kind, payload):
        request = {**self.greeting, "site": site, "payload": payload, "compression": self.compression}
        answer = self.sites[site].answer(kind, request)
        assert "error" not in answer, (answer, self.sites[site].problem)
        return answer["payload"]

    def ask(self, question):
        asked = address(question, len(self.sites))
        kind = type(next(iter(asked.values())))
        if kind is q.ColumnNames:
            return dict.fromkeys(asked, q.ColumnNamesAnswer(None))
        return {
            site: decode_answer(kind, self.call(site, kind.name, encode_question(one)), self.like)
            for site, one in asked.items()
        }

    def submit(self, tasks, at):
        for task in tasks:
            payload = self.call(task.site, "refine", encode_task(task))
            self.arrivals.append(read_answer(task, payload, self.like, time.monotonic()))

    def collect(self):
        arrivals, self.arrivals = self.arrivals, []
        return arrivals

    def close(self):
        self.arrivals = []


def run_through_gates(server, folders, compression="none", **changes):
    """What the server of a federation finds."""
    given = read_server(server)
    engine = Gates(given.recipe.greeting, folders, compression)
    settings = replace(given.settings, engine=engine, **changes)
    result = fit(given.recipe.model, given.sites, settings)
    return replace(result, design=given.recipe.columns.design)
