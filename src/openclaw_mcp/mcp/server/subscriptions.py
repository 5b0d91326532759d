"""Who wants to hear of changes: `subscriptions/listen` streams and handshake-era connections."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct

from ...core.model import Json
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import Id
from .exchange import Peer, invalid_params

UPDATED: Final = "notifications/resources/updated"
MOST_SUBSCRIPTIONS: Final = 1000  # resources one listener may watch
MOST_NAMED: Final = 65_536  # characters of their addresses together: each stream keeps them
MOST_UNHEARD: Final = 1000  # notifications waiting for a listener that does not read

Push = Callable[[bytes], None]


class Wish(Struct, frozen=True):
    """What a listen request asked to hear of."""

    methods: frozenset[str]
    resources: frozenset[str]
    tasks: frozenset[str]
    shape: Json
    """The accepted part, as it is acknowledged."""

    @classmethod
    def read(cls, params: Json, *, offers: Iterable[str]) -> "Wish":
        """`offers` are the list changes this server can announce. Raises RpcError."""
        asked = params.get("notifications")
        if type(asked) is not dict:
            raise invalid_params("`notifications` must be an object")
        lists = [key for key in offers if asked.get(key) is True]
        resources = _strings(asked, "resourceSubscriptions")
        tasks = _strings(asked, "taskIds")
        shape: Json = dict.fromkeys(lists, True)
        if resources:
            shape["resourceSubscriptions"] = resources
        if tasks:
            shape["taskIds"] = tasks
        methods = frozenset(mcp.LIST_CHANGES[key] for key in lists)
        return cls(methods, frozenset(resources), frozenset(tasks), shape)

    def narrowed(self, tasks: frozenset[str]) -> "Wish":
        """The same wish, about these tasks only."""
        if tasks == self.tasks:
            return self
        shape = {**self.shape, "taskIds": sorted(tasks)}
        return Wish(self.methods, self.resources, tasks, shape)


class Listener:
    """One open `subscriptions/listen` stream."""

    __slots__ = ("_id", "_queue", "wish")

    def __init__(self, id: Id, wish: Wish) -> None:
        self.wish = wish
        self._id = id
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(MOST_UNHEARD)
        self.tell("notifications/subscriptions/acknowledged", {"notifications": wish.shape})

    def tell(self, method: str, params: Json) -> bool:
        """Queue a notification; False: one too many is dropped, each only says *look again*."""
        if self._queue.full():
            return False
        meta = {**params.get("_meta", {}), mcp.SUBSCRIPTION_ID: self._id}
        self._queue.put_nowait(jsonrpc.notification(method, {**params, "_meta": meta}))
        return True

    async def next(self) -> bytes:
        return await self._queue.get()


class Subscriptions:
    """Fans each change out to every stream that wants it."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._peers: dict[Peer, Push] = {}

    @contextmanager
    def opened(self, listener: Listener) -> Iterator[None]:
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def connect(self, peer: Peer, push: Push) -> Callable[[], None]:
        """A handshake-era connection hears every list change, and the resources it subscribed to."""
        self._peers[peer] = push
        return lambda: self._peers.pop(peer, None) and None

    def list_changed(self, method: str) -> None:
        for listener in list(self._listeners):
            if method in listener.wish.methods:
                listener.tell(method, {})
        message = jsonrpc.notification(method, {})
        for push in list(self._peers.values()):
            push(message)

    def resource_updated(self, uri: str) -> None:
        if not self._listeners and not self._peers:
            return
        for listener in list(self._listeners):
            if uri in listener.wish.resources:
                listener.tell(UPDATED, {"uri": uri})
        message = jsonrpc.notification(UPDATED, {"uri": uri})
        for peer, push in list(self._peers.items()):
            if uri in peer.subscriptions:
                push(message)

    def task_changed(self, task: str, params: Json) -> bool:
        """Whether anybody hears of it."""
        watching = [listener for listener in self._listeners if task in listener.wish.tasks]
        heard = [listener.tell("notifications/tasks", params) for listener in watching]
        return any(heard)


def _strings(asked: Json, key: str) -> list[str]:
    values: Any = asked.get(key) or []
    if type(values) is not list or not all(type(value) is str for value in values):
        raise invalid_params(f"`{key}` must be a list of strings")
    if len(values) > MOST_SUBSCRIPTIONS:
        raise invalid_params(f"`{key}` may name at most {MOST_SUBSCRIPTIONS}")
    if sum(map(len, values)) > MOST_NAMED:
        raise invalid_params(f"`{key}` may take at most {MOST_NAMED} characters in all")
    return values
