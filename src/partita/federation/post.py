"""Whole messages between a server's run and its sites: one request each way, held until there is something to answer.

Flower's own routes carry a message in pieces. With its replies that is seventeen requests for each task, each through
a stack of middleware, and whoever waits has to ask again and again. Here a message is the body of one request. Who is
there, who was asked what and who may answer that is in the state of Flower's SuperLink, as ever.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from partita.wire.questions import RECORD
from partita.wire.signing import SIGNATURE

# Seconds that a site's request is held while there is nothing for it: less than its client and most proxies wait; and
# the same for the server's run, which has other things to look after.
HOLD, HOLD_HERE = 15.0, 0.25
# What Flower calls the server's side of a run, among the numbers of nodes.
SERVER = 1
# What an answer consists of: its payload, or words that say why there is none, and its signature.
VALUES = {"payload": "bytes", "error": "string", SIGNATURE: "bytes"}


class Post:
    """What passes between a run and its sites. All calls come from one event loop.

    Args:
        state: Flower's: nodes, runs and messages.
    """

    def __init__(self, state: Any):
        self._state = state
        # Who is waited for at the moment, by the number of the node; one request each.
        self._waiting: dict[int, asyncio.Event] = {}

    def node_of(self, key: bytes) -> int | None:
        """The number of the node that a key was registered for, as Flower's clients write it."""
        found: int | None = self._state.get_node_id_by_public_key(key)
        return found

    def send(self, body: bytes) -> bytes:
        """Take messages of the run, for sites; what Flower calls each of them, or nothing where it takes it not."""
        from flwr.common.serde import message_from_proto
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest, PushAppMessagesResponse

        messages = [message_from_proto(one) for one in PushAppMessagesRequest.FromString(body).messages_list]
        numbers = [self._state.store_message_ins(message) or "" for message in messages]
        for message in messages:
            self._wake(message.metadata.dst_node_id)
        return bytes(PushAppMessagesResponse(message_ids=numbers).SerializeToString())

    async def fetch(self, body: bytes, run: int, gone: asyncio.Future[Any]) -> bytes:
        """What sites have answered to some messages of a run, as soon as there is anything."""
        from flwr.common.serde import message_to_proto
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse

        numbers = frozenset(PullAppMessagesRequest.FromString(body).message_ids)
        # Flower takes numbers out of the set that it is given.
        found = await self._wait(SERVER, HOLD_HERE, gone, lambda: self._state.get_message_res(set(numbers), run))
        self._state.delete_messages({message.metadata.reply_to_message_id for message in found})
        return bytes(PullAppMessagesResponse(messages_list=map(message_to_proto, found)).SerializeToString())

    async def hand_out(self, node: int, gone: asyncio.Future[Any]) -> bytes:
        """One message for a site, as soon as there is one; none, when it has waited for long enough."""
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PullMessagesResponse

        found = await self._wait(node, HOLD, gone, lambda: self._look_for(node))
        return bytes(PullMessagesResponse(messages_list=map(message_to_proto, found)).SerializeToString())

    def _look_for(self, node: int) -> list[Any]:
        """One message for a site. What a run has left behind that is over is forgotten."""
        from flwr.common.constant import Status
        from flwr.server.superlink.utils import check_abort

        found: list[Any] = self._state.get_message_ins(node_id=node, limit=1)
        over = [Status.PENDING, Status.STARTING, Status.FINISHED]
        return [one for one in found if not check_abort(one.metadata.run_id, over, self._state)]

    def take(self, messages: Any) -> bytes:
        """Take a site's answers; Flower looks whether it was asked. One that nobody waits for any more is dropped."""
        from flwr.common.serde import message_from_proto
        from flwr.proto.fleet_pb2 import PushMessagesResponse

        for message in messages:
            self._state.store_message_res(message_from_proto(message))
        self._wake(SERVER)
        return bytes(PushMessagesResponse().SerializeToString())

    def release(self, node: int) -> None:
        """A site goes: what it waits for is answered with nothing."""
        if (waiting := self._waiting.pop(node, None)) is not None:
            waiting.set()

    def _wake(self, node: int) -> None:
        if (waiting := self._waiting.get(node)) is not None:
            waiting.set()

    async def _wait(
        self, who: int, seconds: float, gone: asyncio.Future[Any], look: Callable[[], list[Any]]
    ) -> list[Any]:
        """What there is for somebody, looked for again at every sign. Who asks twice is answered once, the second time:
        of a connection that has broken nothing may have been heard here."""
        self.release(who)
        sign = self._waiting[who] = asyncio.Event()
        until = asyncio.get_running_loop().time() + seconds
        try:
            while not gone.done() and self._waiting.get(who) is sign:
                sign.clear()
                if found := look():
                    return found
                coming = asyncio.ensure_future(sign.wait())
                left = until - asyncio.get_running_loop().time()
                done, _ = await asyncio.wait({coming, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                coming.cancel()
                if not done:
                    break
            return []
        except asyncio.CancelledError:
            # The server ends: it waits for nobody, and whoever waits for it hears so.
            return []
        finally:
            if self._waiting.get(who) is sign:
                del self._waiting[who]


def asks_for(body: bytes, node: int) -> bool:
    """Whether it is for a node's own messages that a site asks."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from google.protobuf.message import DecodeError

    try:
        return bool(PullMessagesRequest.FromString(body).node.node_id == node)
    except DecodeError:
        return False


def own_answers(body: bytes, node: int) -> Sequence[Any] | None:
    """What a site pushes, if those are answers of its own, and of the shape that answers have; else nothing.

    Flower would take a site's task for another site, and whatever its own records can hold.
    """
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from google.protobuf.message import DecodeError

    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return None
    is_own = request.node.node_id == node and bool(request.messages_list)
    return (
        list(request.messages_list) if is_own and all(_is_answer(one, node) for one in request.messages_list) else None
    )


def _is_answer(message: Any, node: int) -> bool:
    about, records = message.metadata, message.content.items
    if not about.reply_to_message_id or about.src_node_id != node or message.HasField("error"):
        return False
    shape = [(record.key, record.WhichOneof("value")) for record in records]
    return shape == [(RECORD, "config_record")] and all(
        item.value.WhichOneof("value") == VALUES.get(item.key, "") for item in records[0].config_record.items
    )
