"""`python -m partita.federation.link FOLDER PORT`: Flower's SuperLink behind two doors.

Flower serves what sites need and what starts, lists and changes runs on one port, the latter to whoever asks. Here the
federation's address has the few routes that sites need, for those who sign with the key of one of its sites; everything
else is at a port of this machine, and runs are in the hands of whoever can read the server's secret.
"""

import asyncio
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
from partita.federation.post import Post, asks_for, own_answers
from partita.foundation.keys import canonical_key, read_key
from partita.foundation.network import split_address
from partita.models import prior_of
from partita.wire.messages import largest
from partita.wire.recipe import Recipe

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PULL, PUSH, LEAVE = "/v1/fleet/pull-messages", "/v1/fleet/push-messages", "/v1/fleet/deactivate-node"
# What `partita.site.node` calls: a site neither registers itself nor fetches apps.
FOR_SITES = frozenset({"/v1/fleet/activate-node", LEAVE, "/v1/fleet/send-node-heartbeat", PULL, PUSH})
CONTROL, RUNTIME = "/v1/control/", "/v1/runtime/"
# What the server's own run calls, and the header that says which run it is.
SEND, FETCH, RUN = "/v1/partita/send", "/v1/partita/fetch", "partita-run"
HERE = "127.0.0.1"
# The most bytes of a request that has no answer in it.
LARGEST_HEAD = 2**20
# The most of an answer, where it is not known yet how large the model is: 4,000 coefficients with all covariances.
LARGEST_UNKNOWN = 2**27
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
        post: takes and hands out messages, at the routes that are not left to Flower.
        port: of the door that is for this machine.
        token: what the operator shows there.
        keys: of sites as they are now, as `canonical_key` writes them, by name.
        largest: the most bytes of an answer, without what Flower says about it.
    """

    app: App
    post: Post
    port: int
    token: str = field(repr=False)
    keys: Callable[[], Mapping[str, bytes]]
    largest: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        status = self._status(scope)
        if status != 200:
            await _respond(scope, send, status)
        elif scope["path"] in (PULL, PUSH):
            await _respond(scope, send, *await self._serve_site(scope, receive))
        elif scope["path"] in (SEND, FETCH):
            await _respond(scope, send, *await self._serve_run(scope, receive))
        else:
            await self.app(scope, receive, send)
            if scope["path"] == LEAVE and (node := self._node(scope)) is not None:
                self.post.release(node)

    def _node(self, scope: Scope) -> int | None:
        """The number of the node whose key has signed a request, if that key may still come in."""
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

        key = base64.b64decode(_headers(scope)[FLEET_HTTP_PUBLIC_KEY_HEADER.lower()])
        return self.post.node_of(key) if canonical_key(key) in self.keys().values() else None

    async def _serve_site(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        """A message for a site, or its answer: status and body of what it hears."""
        node = self._node(scope)
        if node is None:
            return 401, b""
        body = await _read(receive)
        if scope["path"] == PUSH:
            answers = own_answers(body, node)
            return (403, b"") if answers is None else (200, self.post.take(answers))
        if not asks_for(body, node):
            return 403, b""
        gone = asyncio.ensure_future(receive())
        try:
            message = await self.post.hand_out(node, gone)
            # It may have been revoked meanwhile.
            return (200, message) if self._node(scope) == node else (401, b"")
        finally:
            gone.cancel()

    async def _serve_run(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        """What the server's own run sends and fetches."""
        body = await _read(receive)
        if scope["path"] == SEND:
            return 200, self.post.send(body)
        gone = asyncio.ensure_future(receive())
        try:
            return 200, await self.post.fetch(body, int(_headers(scope)[RUN]), gone)
        finally:
            gone.cancel()

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
        most = LARGEST_HEAD + (self.largest if scope["path"] == PUSH else 0)
        is_number = size.isascii() and size.isdigit() and len(size) <= MOST_DIGITS
        return 200 if is_number and int(size) <= most else 413

    def _status_here(self, scope: Scope) -> int:
        if scope["path"].startswith(RUNTIME):
            return 200  # Flower asks for the secret itself, or for a token that it has given out
        if not scope["path"].startswith(CONTROL) and scope["path"] not in (SEND, FETCH):
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


async def _respond(scope: Scope, send: Send, status: int, body: bytes = b"") -> None:
    if scope["type"] != "http":
        return
    headers = [(b"content-length", str(len(body)).encode())]
    headers += [(b"content-type", b"application/protobuf")] if status == 200 else [(b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _read(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        event = await receive()
        parts.append(event.get("body", b""))
        more = event.get("more_body", False)
    return b"".join(parts)


def flower_app(folder: ServerFolder) -> Any:
    """Flower's own. What it knows is kept in memory: what a run knows is in its journal, and the rest is asked anew."""
    from flwr.common.constant import ISOLATION_MODE_PROCESS, TRANSPORT_TYPE_GRPC_RERE
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
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
        database=FLWR_IN_MEMORY_DB_NAME,
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
    )
    return create_app(config, SuperLinkLifespan)


def build_gate(folder: ServerFolder, port: int) -> Gate:
    """Flower's app behind the doors of a server's folder."""
    token = operator_token(read_key(folder.keys / "secret"))
    folder.members.check()
    model = folder.recipe.settled if isinstance(folder.recipe, Recipe) else None
    most = LARGEST_UNKNOWN if model is None else largest(prior_of(model, model.hyper))
    app = flower_app(folder)
    post = Post(app.state.linkstate_factory.state())
    return Gate(app, post, port, token, folder.members.current, most)


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
        # Longer than sites wait between requests: none must meet a connection that is being closed.
        timeout_keep_alive=75,
        # Requests of sites that are being held do not hold up an end.
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[_listen(*split_address(folder.server.address)), _listen(HERE, port)])


if __name__ == "__main__":
    main()
