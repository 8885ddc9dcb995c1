"""A run's way to its sites: it knows from Flower who is there, and hands messages to the gate as they are."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partita.errors import EngineError
from partita.federation.link import FETCH, HERE, RUN, SEND, operator_token
from partita.foundation.keys import read_key


class LinkLost(EngineError):
    """The server's own SuperLink cannot be reached any more; another one may be started."""


class Messenger:
    """What `partita.engines.Flower` needs of a grid, with whole messages.

    Args:
        grid: what Flower gives a ServerApp.
        keys: the folder with the server's keys.
        port: of the gate's inner door.
    """

    def __init__(self, grid: Any, keys: Path, port: int):
        from flwr.supercore.protobuf.client import ProtobufClient

        self._grid, self._run = grid, grid.run.run_id
        shown = ShownToken(operator_token(read_key(keys / "secret")), self._run)
        self._client: Any = ProtobufClient.from_server_address(
            f"{HERE}:{port}", False, read_key(keys / "ca.crt"), [shown]
        )

    def get_nodes(self) -> Sequence[Any]:
        """Nodes that are connected, with their names and keys."""
        with _explain_loss():
            return list(self._grid.get_nodes())

    def push_messages(self, messages: Sequence[Any]) -> list[str]:
        """Send messages to sites; a number for each, which its answer will have, or nothing where it was not taken."""
        from flwr.common.serde import message_to_proto
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest, PushAppMessagesResponse

        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
        request = PushAppMessagesRequest(messages_list=map(message_to_proto, messages))
        return list(self._call(SEND, request, PushAppMessagesResponse).message_ids)

    def pull_messages(self, numbers: Sequence[str]) -> list[Any]:
        """Answers to some messages; this waits a little, until there is one."""
        from flwr.common.serde import message_from_proto
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse

        found = self._call(FETCH, PullAppMessagesRequest(message_ids=numbers), PullAppMessagesResponse)
        return [message_from_proto(one) for one in found.messages_list]

    def _call(self, path: str, request: Any, response: Any) -> Any:
        with _explain_loss():
            return self._client._unary_unary(path=path, rpc_method=path, request=request, response_type=response)


class ShownToken:
    """Shows the operator's token with every request, and which run it is about."""

    def __init__(self, token: str, run: int | None = None):
        self._headers = {"authorization": f"Bearer {token}", **({} if run is None else {RUN: str(run)})}

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers.update(self._headers)
        return call_next(context)


@contextmanager
def _explain_loss() -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise LinkLost(f"Flower's SuperLink does not answer: {error}") from None
