"""What Flower runs: `server`, with the ledger. Sites run `partita.site.node`, and nothing that they are sent."""

from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()
# Flower asks for one; it is never started.
nobody = ClientApp()


@server.main()
def run_server(grid: Grid, context: Context) -> None:
    from partita.federation.messenger import Messenger
    from partita.federation.server import run

    folder, port = Path(str(context.run_config["folder"])), int(str(context.run_config["port"]))
    run(Messenger(grid, folder / "keys", port), folder, str(context.run_config["attempt"]))
