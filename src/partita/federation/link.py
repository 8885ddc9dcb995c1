"""`python -m partita.federation.link FOLDER PORT`: Flower's SuperLink behind two doors.

Flower serves what sites need and what starts, lists and changes runs on one port, the latter to whoever asks. Here the
federation's address has the few routes that sites need, for those who sign with the key of one of its sites; everything
else is at a port of this machine, and runs are in the hands of whoever can read the server's secret.
"""

import base64
import datetime
import hashlib
import hmac
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partita.federation.folders import ServerFolder, read_server
from partita.foundation.keys import canonical_key, read_key
from partita.foundation.network import split_address
from partita.models import prior_of
from partita.wire.messages import largest

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PUSH, OBJECT = "/v1/fleet/push-messages", "/v1/fleet/push-object"
# What `partita.site.node` calls: a site neither registers itself nor fetches apps.
FOR_SITES = frozenset(
    {
        "/v1/fleet/activate-node",
        "/v1/fleet/deactivate-node",
        "/v1/fleet/send-node-heartbeat",
        "/v1/fleet/pull-messages",
        "/v1/fleet/pull-object",
        "/v1/fleet/confirm-message-received",
        PUSH,
        OBJECT,
    }
)
CONTROL, RUNTIME = "/v1/control/", "/v1/runtime/"
HERE = "127.0.0.1"
# The most bytes of a request that has no answer in it.
LARGEST_HEAD = 2**20
# Digits of a request's length.
MOST_DIGITS = 15


def operator_token(secret: bytes) -> str:
    """What the operator shows; made of the secret that SuperExec signs with, and does not tell it."""
    return hashlib.sha256(b"partita operator" + secret).hexdigest()


@dataclass(frozen=True)
class Gate:
    """Lets requests through that are for the door at which they came; to all others nothing is there.

    Args:
        app: Flower's.
        port: of the door that is for this machine.
        token: what the operator shows there.
        keys: of sites as they are now, as `canonical_key` writes them, by name.
        largest: the most bytes of an answer, without what Flower says about it.
    """

    app: App
    port: int
    token: str = field(repr=False)
    keys: Callable[[], Mapping[str, bytes]]
    largest: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        status = self._status(scope)
        if status == 200 and scope["path"] == PUSH:
            body = await _read(receive)
            receive = _replay(body, receive)
            status = 200 if is_own_answer(body) else 403
        if status == 200:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": status, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body"})

    def _status(self, scope: Scope) -> int:
        if scope["type"] != "http":
            return 404
        if tuple(scope.get("server") or ()) == (HERE, self.port):
            return self._status_here(scope)
        if scope["method"] != "POST" or scope["path"] not in FOR_SITES:
            return 404
        if not is_signed(_headers(scope), self.keys):
            return 401
        size = _headers(scope).get("content-length", "")
        most = LARGEST_HEAD + (self.largest if scope["path"] == OBJECT else 0)
        is_number = size.isascii() and size.isdigit() and len(size) <= MOST_DIGITS
        return 200 if is_number and int(size) <= most else 413

    def _status_here(self, scope: Scope) -> int:
        if scope["path"].startswith(RUNTIME):
            return 200  # Flower asks for the secret itself, or for a token that it has given out
        if not scope["path"].startswith(CONTROL):
            return 404
        shown = _headers(scope).get("authorization", "")
        return 200 if hmac.compare_digest(shown.encode(), f"Bearer {self.token}".encode()) else 401


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def is_signed(headers: dict[str, str], keys: Callable[[], Mapping[str, bytes]]) -> bool:
    """Whether a key of ours has signed a time that is now; looked at before anything of the request is read."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    try:
        key = base64.b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.lower()], validate=True)
        signature = base64.b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.lower()], validate=True)
        time = headers[TIMESTAMP_HEADER.lower()]
        age = (now() - datetime.datetime.fromisoformat(time)).total_seconds()
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE or canonical_key(key) not in keys().values():
            return False
        return verify_signature(bytes_to_public_key(key), time.encode("ascii"), signature)
    except Exception:
        # Whatever somebody else's code makes of a stranger's bytes.
        return False


def is_own_answer(body: bytes) -> bool:
    """Whether what is pushed are answers of the site that pushes: Flower would take a site's task for another site."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from google.protobuf.message import DecodeError

    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    about = [message.metadata for message in request.messages_list]
    return bool(about) and all(one.reply_to_message_id and one.src_node_id == request.node.node_id for one in about)


async def _read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    return body


def _replay(body: bytes, receive: Receive) -> Receive:
    events = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def again() -> MutableMapping[str, Any]:
        return next(events, None) or await receive()

    return again


def flower_app(folder: ServerFolder) -> Any:
    """Flower's own, with its database in the server's folder."""
    from flwr.common.constant import ISOLATION_MODE_PROCESS, TRANSPORT_TYPE_GRPC_RERE
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.config_loader import SuperLinkLifespanConfig
    from flwr.superlink.main import create_app

    host, port = split_address(folder.server.address)
    keys = folder.keys
    config = SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host=host,
        port=port,
        insecure=False,
        certificates=None,
        superexec_auth_secret=read_key(keys / "secret"),
        # Who may ask at all is settled at the gate.
        authn_plugin=NoOpControlAuthnPlugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=str(keys / "ca.crt"),
        ssl_certfile=str(keys / "server.pem"),
        ssl_keyfile=str(keys / "server.key"),
        database=str(folder.run / "superlink.db"),
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
    )
    return create_app(config, SuperLinkLifespan)


def build_gate(folder: ServerFolder, port: int) -> Gate:
    """Flower's app behind the doors of a server's folder."""
    token = operator_token(read_key(folder.keys / "secret"))
    folder.members.check()
    model = folder.recipe.model
    return Gate(flower_app(folder), port, token, folder.members.current, largest(prior_of(model, model.hyper)))


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener


def main() -> None:
    import uvicorn
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler

    folder, port = read_server(Path(sys.argv[1])), int(sys.argv[2])
    config = uvicorn.Config(
        build_gate(folder, port),
        ssl_certfile=str(folder.keys / "server.pem"),
        ssl_keyfile=str(folder.keys / "server.key"),
        log_config=get_uvicorn_log_config(console_handler.level),
        access_log=False,
        ws="none",
        proxy_headers=False,
        server_header=False,
        # Longer than sites wait between looks: a request must not meet a connection that is being closed.
        timeout_keep_alive=75,
    )
    uvicorn.Server(config).run(sockets=[_listen(*split_address(folder.server.address)), _listen(HERE, port)])


if __name__ == "__main__":
    main()
