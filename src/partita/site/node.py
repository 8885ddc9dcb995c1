"""A site's side of Flower's wire: it takes messages and answers them, and never runs what somebody sent.

Flower's own SuperNode fetches an app from the server and starts it for every message: whoever speaks for the server
has the site's data then. This speaks the same protocol and hands every message to a function of Partita's.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from partita.errors import EngineError, StorageError, reason
from partita.foundation.keys import read_key
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
# What Flower answers to a key that it does not know, or takes for connected; and where nobody waits for an answer.
NOT_ACTIVATED, NOT_RUNNING = 2004, 2007


class Refused(EngineError):
    """The server does not know this site's key, or takes it for connected already."""


class Disconnected(EngineError):
    """The server cannot be reached, or cannot answer."""


class Unwanted(EngineError):
    """The run that a message is of has ended meanwhile."""


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
            self._deactivate()
        self._client.close()

    def work(self) -> bool:
        """Answer one message, if there is one; whether there was."""
        from flwr.proto.fleet_pb2 import PullMessagesRequest

        if not self._is_known:
            raise Refused("the server does not know this connection any more")
        # Once: a message whose delivery was interrupted does not come a second time.
        found = _call(self._client.PullMessages, PullMessagesRequest(node=self._node), tries=1)
        if not found.messages_list:
            return False
        with suppress(Unwanted):
            message = self._fetch(found.messages_list[0], found.message_object_trees[0])
            began = time.monotonic()
            reply = _reply_to(message, self._answer)
            self._send(reply, time.monotonic() - began)
        return True

    def _fetch(self, head: Any, tree: Any) -> Any:
        """Fetch the whole of a message, of which only the head came."""
        from flwr.app import Message
        from flwr.supercore.inflatable.inflatable_protobuf_utils import (
            make_confirm_message_received_fn_protobuf,
            make_pull_object_fn_protobuf,
        )
        from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

        run = head.metadata.run_id
        message = _call(
            lambda _: pull_and_inflate_object_from_tree(
                tree,
                make_pull_object_fn_protobuf(self._client.PullObject, self._node, run),
                make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run),
                return_type=Message,
            ),
            None,
        )
        message.metadata.__dict__["_message_id"] = head.metadata.message_id
        return message

    def _send(self, reply: Any, seconds: float) -> None:
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import push_objects

        reply.metadata.__dict__["_message_id"] = reply.object_id
        request = PushMessagesRequest(
            node=self._node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
            clientapp_runtime_list=[seconds],
        )
        taken = _call(self._client.PushMessages, request)
        push = make_push_object_fn_protobuf(
            self._client.PushObject, self._node, reply.metadata.run_id, taken.session_id
        )
        wanted = set(taken.objects_to_push)
        _call(lambda objects: push_objects(objects, push, object_ids_to_push=wanted), get_all_nested_objects(reply))


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
        if problem is not None and problem.code == NOT_RUNNING:
            raise Unwanted("the run has ended") from None
        if error.response.status_code in (401, 403) or (problem is not None and problem.code == NOT_ACTIVATED):
            raise Refused("the server does not take this site's key") from None
        raise Disconnected(f"the server answers {error.response.status_code}") from None
    except Exception as error:
        # Whatever somebody else's code makes of bytes from a server; the site goes on.
        raise Disconnected(clean(reason(error))) from None
