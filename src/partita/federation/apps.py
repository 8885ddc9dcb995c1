"""The two apps that Flower runs: `server`, with the ledger, and `site`, which refines."""

from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from partita.wire import RECORD, Question

server = ServerApp()
site = ClientApp()


@server.main()
def run_server(grid: Grid, context: Context) -> None:
    from partita.federation.server import run

    run(grid, Path(str(context.run_config["folder"])), str(context.run_config["attempt"]))


def _reply(kind: Question, message: Message, context: Context) -> Message:
    request: dict[str, Any] = dict(message.content[RECORD])
    resident, folder = context.node_config.get("socket"), Path(str(context.node_config["folder"]))
    if resident is not None:
        from partita.federation.resident import ask

        answer = ask(Path(str(resident)), kind, request)
    else:
        from partita.federation.site import Site
        from partita.runtime import cache_compilation

        cache_compilation()
        answer = Site(folder).answer(kind, request)
    return Message(RecordDict({RECORD: ConfigRecord(answer)}), reply_to=message)


@site.query("about")
def about(message: Message, context: Context) -> Message:
    return _reply("about", message, context)


@site.query("refine")
def refine(message: Message, context: Context) -> Message:
    return _reply("refine", message, context)


@site.query("evaluate")
def evaluate(message: Message, context: Context) -> Message:
    return _reply("evaluate", message, context)
