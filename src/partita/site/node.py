"""A site's side of Flower's wire: it takes messages and answers them, and never runs what somebody sent.

Flower's own SuperNode fetches an app from the server and starts it for every message: whoever speaks for the server
has the site's data then. This speaks the same protocol and hands every message to a function of Partita's.
"""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from partita.errors import EngineError, StorageError, reason
from partita.foundation.keys import read_key
from partita.foundation.signals import IsEnding
from partita.foundation.text import clean
from partita.wire.questions import FOREIGN, KINDS, RECORD
from partita.wire.signing import RUN

Record = dict[str, Any]
Answer = Callable[[Any, Record], Record]
# Seconds between signs of life; the server waits for two of what is promised.
PROMISED, BEAT = 30.0, 20.0
# Seconds for which a site that comes again is away: long enough for the server to look.
AWAY = 3.0
# How often a call is tried, when the connection breaks; seconds before the second time, doubled each time.
TRIES, WAIT = 4, 0.5
# Seconds after which somebody who waits for a message looks whether it is to end.
GLANCE = 0.2
# What Flower answers to a key that it does not know, or takes for connected.
NOT_ACTIVATED = 2004


class Refused(EngineError):
    """The server does not know this site's key, or takes it for connected already."""


class Disconnected(EngineError):
    """The server cannot be reached, or cannot answer."""


class Node:
    """A connection to a server, from `with` to its end.

    Args:
        address: host:port of the server.
        certificate: whom it is believed with.
        key: the site's private key.
        answer: what is answered to a question of a kind, as records of plain values and one payload.
    """

    def __init__(self, address: str, certificate: Path, key: Path, answer: Answer):
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        try:
            private: Any = load_ssh_private_key(read_key(key), None)
            public = private.public_key()
            self._key = public_key_to_bytes(public)
            signed = NodeAuthHttpInterceptor(private, public)
        except (StorageError, ValueError, TypeError) as error:
            raise EngineError(f"{key}: is no private key ({error}): use the one that came with this folder") from None
        self._client = FleetHttpClient.from_server_address(address, False, read_key(certificate), [signed])
        self._answer = answer
        self._ended = threading.Event()
        # The server holds a request until there is a message; somebody else waits for it, so that a site can end.
        self._waiter = ThreadPoolExecutor(1, "pull")
        self._node: Any = None
        self._is_known = True

    def __enter__(self) -> Self:
        try:
            self._activate()
        except EngineError:
            self._client.close()
            raise
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def _activate(self) -> None:
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.proto.node_pb2 import Node as Identity

        request = ActivateNodeRequest(public_key=self._key, heartbeat_interval=PROMISED)
        self._node = Identity(node_id=_call(self._client.ActivateNode, request).node_id)
        self._is_known = True

    def rejoin(self) -> None:
        """Go, and come again. What was asked when the connection broke may be lost, and the server waits for it: of a
        site that has gone it hears so, and asks anew."""
        self._deactivate()
        time.sleep(AWAY)
        self._activate()

    def _deactivate(self) -> None:
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest

        with suppress(Refused):
            _call(self._client.DeactivateNode, DeactivateNodeRequest(node_id=self._node.node_id))

    def _beat(self) -> None:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        while not self._ended.wait(BEAT):
            # What is wrong with the connection is noticed, and told, where messages are fetched.
            with suppress(EngineError):
                request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=PROMISED)
                self._is_known = _call(self._client.SendNodeHeartbeat, request).success

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        with suppress(EngineError):
            # What is being held at the server is let go there.
            self._deactivate()
        self._waiter.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def work(self, is_ending: IsEnding) -> None:
        """Wait for a message, for as long as the server holds the request, and answer it."""
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest

        if not self._is_known:
            raise Refused("the server does not know this connection any more")
        # Once: a message whose delivery was interrupted does not come a second time.
        pulled = self._waiter.submit(_call, self._client.PullMessages, PullMessagesRequest(node=self._node), 1)
        if not _finish(pulled, is_ending):
            return
        for one in pulled.result().messages_list:
            reply = _reply_to(_open(one), self._answer)
            reply.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            _call(
                self._client.PushMessages,
                PushMessagesRequest(node=self._node, messages_list=[message_to_proto(reply)]),
            )


def _finish(pulled: Future[Any], is_ending: IsEnding) -> bool:
    """Wait for somebody; whether it is done, and not to be left alone because this process is to end."""
    while not is_ending():
        with suppress(TimeoutError):
            pulled.exception(GLANCE)
            return True
    return False


def _open(message: Any) -> Any:
    """A message as it came."""
    from flwr.common.serde import message_from_proto

    try:
        return message_from_proto(message)
    except Exception as error:
        # Whatever somebody else's code makes of bytes from a server; the site goes on.
        raise Disconnected(clean(reason(error))) from None


def _reply_to(message: Any, answer: Answer) -> Any:
    """Reply to any message at all, with what `answer` gives and nothing else: that is what the site's audit log has."""
    from flwr.app import ConfigRecord, Message, RecordDict

    kind = message.metadata.message_type.removeprefix("query.")
    record = message.content.get(RECORD) if message.has_content() else None
    if kind in KINDS and isinstance(record, ConfigRecord):
        reply = answer(kind, {RUN: str(message.metadata.run_id), **record})
    else:
        reply = answer(FOREIGN, {})
    return Message(RecordDict({RECORD: ConfigRecord(reply)}), reply_to=message)


def _call(call: Callable[[Any], Any], request: Any, tries: int = TRIES) -> Any:
    """Call the server, several times if the connection breaks; what goes wrong is an error of ours."""
    import httpx
    from flwr.supercore.error import FlowerError

    try:
        for number in range(tries - 1):
            with suppress(httpx.TransportError):
                return call(request)
            time.sleep(WAIT * 2**number)
        return call(request)
    except httpx.HTTPStatusError as error:
        problem = FlowerError.from_json(error.response.text)
        if error.response.status_code in (401, 403) or (problem is not None and problem.code == NOT_ACTIVATED):
            raise Refused("the server does not take this site's key") from None
        raise Disconnected(f"the server answers {error.response.status_code}") from None
    except Exception as error:
        # Whatever somebody else's code makes of bytes from a server; the site goes on.
        raise Disconnected(clean(reason(error))) from None
