"""What the operator of a server asks of its SuperLink: that it knows the sites, and runs Partita's own app."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from partita.errors import EngineError
from partita.federation.folders import ServerFolder
from partita.federation.link import HERE, operator_token
from partita.federation.messenger import ShownToken
from partita.foundation.keys import read_key, write_pem

APP = b"""\
[project]
name = "partita-federation"
version = "1.0.0"
description = "The server of a federation is part of Partita"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "partita"

[tool.flwr.app.components]
serverapp = "partita.federation.apps:server"
clientapp = "partita.federation.apps:nobody"

[tool.flwr.app.config]
folder = ""
attempt = ""
port = 0
"""


class Control:
    """The door of a SuperLink that is for its operator."""

    def __init__(self, folder: ServerFolder, port: int):
        from flwr.supercore.control import ControlHttpClient

        self._folder, self._port, self.address = folder, port, f"{HERE}:{port}"
        token = operator_token(read_key(folder.keys / "secret"))
        certificate = read_key(folder.keys / "ca.crt")
        self._client = ControlHttpClient.from_server_address(self.address, False, certificate, [ShownToken(token)])

    def close(self) -> None:
        self._client.close()

    def register(self, site: str, key: bytes) -> None:
        """Tell Flower the key of a site; one that it knows already is left as it is."""
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.error import ApiErrorCode

        with _explain_errors(f"site {site}", ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE):
            self._client.RegisterNode(RegisterNodeRequest(public_key=write_pem(key), name=site))

    def connected(self) -> frozenset[str]:
        """Names of sites that are connected; nobody's, if that cannot be found out."""
        from flwr.proto.control_pb2 import ListNodesRequest
        from flwr.supercore.constant import NodeStatus

        with suppress(EngineError), _explain_errors("a question"):
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
            return frozenset(node.name for node in nodes if node.status == NodeStatus.ONLINE)
        return frozenset()

    def start_run(self, attempt: str) -> None:
        """Have Partita's own app run at the server."""
        from flwr.cli.build import build_fab_from_files
        from flwr.common.config import parse_config_args
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        content, _ = build_fab_from_files({"pyproject.toml": APP})
        settings = f"folder={json.dumps(str(self._folder.path))} attempt={json.dumps(attempt)} port={self._port}"
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {})),
            override_config=user_config_to_proto(parse_config_args([settings])),
        )
        with _explain_errors("the run"):
            self._client.StartRun(request)


@contextmanager
def _explain_errors(what: str, expected_code: int | None = None) -> Iterator[None]:
    """Turn what Flower says is wrong into an error of ours; the expected code is no error."""
    import httpx
    from flwr.supercore.error import FlowerError

    try:
        yield
    except httpx.HTTPStatusError as error:
        problem = FlowerError.from_json(error.response.text)
        if problem is None or problem.code != expected_code:
            words = error if problem is None else f"{problem.message} {problem.public_details or ''}".strip()
            raise EngineError(f"Flower's SuperLink does not take {what}: {words}") from None
    except httpx.HTTPError as error:
        raise EngineError(f"Flower's SuperLink does not answer: {error}") from None
