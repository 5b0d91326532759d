"""Clients that are notified of changes: `subscriptions/listen` streams and handshake-era connections."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Any, Final

from msgspec import Struct

from ...core.model import Json
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import JsonRpcId
from .exchange import Peer, invalid_params

RESOURCE_UPDATED: Final = "notifications/resources/updated"
MAX_SUBSCRIPTIONS: Final = 1000  # resources one listener may watch
MOST_ADDRESS_CHARACTERS: Final = 65_536  # characters of their addresses together: each stream keeps them
MOST_QUEUED: Final = 1000  # notifications waiting for a listener that does not read

Push = Callable[[bytes], None]


class ListenFilter(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a listener is notified of, as it asks for it and as it is acknowledged."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] | None = None
    task_ids: list[str] | None = None


def read_listen_filter(asked: Any, *, list_changes: Iterable[str]) -> ListenFilter:
    """The part of `notifications` that this server can announce; of lists, `list_changes`. Raises JsonRpcError."""
    if type(asked) is not dict:
        raise invalid_params("`notifications` must be an object")
    lists = {key for key in list_changes if asked.get(key) is True}
    return ListenFilter(
        tools_list_changed="toolsListChanged" in lists,
        prompts_list_changed="promptsListChanged" in lists,
        resources_list_changed="resourcesListChanged" in lists,
        resource_subscriptions=_read_strings(asked, "resourceSubscriptions") or None,
        task_ids=_read_strings(asked, "taskIds") or None,
    )


class _Notification(mcp.McpResult):
    """The parameters of a notification to a listener."""

    uri: str | None = None
    notifications: ListenFilter | None = None


class ListenStream:
    """One open `subscriptions/listen` stream."""

    __slots__ = ("_id", "_queue", "methods", "resources", "tasks")

    def __init__(self, id: JsonRpcId, wanted: ListenFilter) -> None:
        lists = (wanted.tools_list_changed, wanted.prompts_list_changed, wanted.resources_list_changed)
        self.methods = frozenset(compress(mcp.LIST_CHANGE_NOTIFICATIONS.values(), lists))
        self.resources = frozenset(wanted.resource_subscriptions or ())
        self.tasks = frozenset(wanted.task_ids or ())
        self._id = id
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(MOST_QUEUED)
        self.notify("notifications/subscriptions/acknowledged", _Notification(notifications=wanted))

    def notify(self, method: str, params: mcp.McpResult) -> bool:
        """Queue a notification; False when the queue is full and it is dropped: each only says *look again*."""
        if self._queue.full():
            return False
        params.meta = {mcp.SUBSCRIPTION_ID: self._id}
        self._queue.put_nowait(jsonrpc.encode_notification(method, params))
        return True

    async def next(self) -> bytes:
        return await self._queue.get()


class Subscriptions:
    """Sends each change to every stream that asked for it."""

    def __init__(self) -> None:
        self._listeners: set[ListenStream] = set()
        self._peers: dict[Peer, Push] = {}

    @contextmanager
    def register(self, listener: ListenStream) -> Iterator[None]:
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def connect(self, peer: Peer, push: Push) -> Callable[[], None]:
        """A handshake-era connection gets every list change, and updates of the resources it subscribed to."""
        self._peers[peer] = push

        def disconnect() -> None:
            self._peers.pop(peer, None)

        return disconnect

    def notify_list_change(self, method: str) -> None:
        for listener in list(self._listeners):
            if method in listener.methods:
                listener.notify(method, _Notification())
        message = jsonrpc.encode_notification(method, {})
        for push in list(self._peers.values()):
            push(message)

    def notify_resource_update(self, uri: str) -> None:
        if not self._listeners and not self._peers:
            return
        for listener in list(self._listeners):
            if uri in listener.resources:
                listener.notify(RESOURCE_UPDATED, _Notification(uri))
        message = jsonrpc.encode_notification(RESOURCE_UPDATED, {"uri": uri})
        for peer, push in list(self._peers.items()):
            if uri in peer.subscriptions:
                push(message)

    def notify_task_change(self, task: str, params: mcp.McpResult) -> bool:
        """Whether any stream gets it."""
        watching = [listener for listener in self._listeners if task in listener.tasks]
        notified = [listener.notify("notifications/tasks", params) for listener in watching]
        return any(notified)


def _read_strings(requested: Json, key: str) -> list[str]:
    values: Any = requested.get(key) or []
    if type(values) is not list or not all(type(value) is str for value in values):
        raise invalid_params(f"`{key}` must be a list of strings")
    if len(values) > MAX_SUBSCRIPTIONS:
        raise invalid_params(f"`{key}` may name at most {MAX_SUBSCRIPTIONS}")
    if sum(map(len, values)) > MOST_ADDRESS_CHARACTERS:
        raise invalid_params(f"`{key}` may take at most {MOST_ADDRESS_CHARACTERS} characters in all")
    return values
