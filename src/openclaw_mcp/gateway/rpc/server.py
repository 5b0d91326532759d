"""The intercom: every connection to this gateway, the methods they may call, the events they hear."""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Protocol

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from ...core.model import Json
from ...core.rpc import READ, Event, Fault, Method
from ...core.signal import Bell
from ...net.gateway_client.acting_headers import TOOLS_CHANGED, read_place
from ...net.gateway_client.handshake import EPHEMERAL_MODES
from ...net.websocket_server import Accepted, strangers
from ...protocol import gateway_frames
from ...protocol.gateway_frames import Announcement
from .authenticator import PROXY_HEADERS, Door, Visitor
from .connection import Connection, presence_of
from .grants import HEARS
from .health import health_for
from .pairing import Cut, now_ms
from .throttle import Allowance

PATHS: Final = frozenset({"/", "/ws"})
PING_EVERY: Final = 25.0  # seconds between pings, and the time a peer has to answer one
MOST_CONNECTIONS: Final = 10_000  # in all; the next is turned away before it costs anything
IN_A_TURN: Final = 2  # requests of one read that begin before others get their turn: some take milliseconds
STOP_GRACE: Final = 5.0  # seconds running requests get when the house closes

EVENTS: Final = (
    "connect.challenge", "agent", "chat", "chat.metadata.changed", "config.changed", "session.message",
    "session.operation", "session.tool", "sessions.changed", "presence", "tick", "shutdown", "health", "heartbeat",
    "cron", "task", "node.pair.requested", "node.pair.resolved", "node.presence", "node.hostStats",
    "node.invoke.cancel", "node.invoke.input", "node.invoke.request", "device.pair.changed", "device.pair.requested",
    "device.pair.resolved", "skills.changed", "exec.approval.requested", "exec.approval.resolved",
    "local.message", TOOLS_CHANGED,
)  # fmt: skip
"""Names announced in `hello-ok`; some come only once the room that sends them is there."""

logger = logging.getLogger(__name__)


class House(Protocol):
    """What the intercom says about the gateway it belongs to."""

    @property
    def version(self) -> str: ...

    def health(self) -> Json:
        """The `health` object, cheap: it is part of every hello."""

    def snapshot(self, scopes: frozenset[str]) -> Json:
        """Further keys of hello's `snapshot`, by what the newcomer may see."""

    def presence(self) -> Json:
        """The gateway's own presence entry."""

    def refusal(self, client: Any, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """Why whoever asks so, from a page or under a name that is not ours, may not even knock."""


class Intercom:
    """`async with` it while sockets are served. Its `socket` is what uvicorn takes as WebSocket protocol."""

    def __init__(self, door: Door, house: House, *, tick_every: float = gateway_frames.TICK_EVERY) -> None:
        self.door = door
        self.boot_id = str(uuid.uuid4())
        self.came: Bell[Connection] = Bell()
        self.went: Bell[Connection] = Bell()
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.seconds: dict[str, float] = {}
        self._house = house
        self._tick_every = tick_every
        self._begun = time.monotonic()
        self._methods: dict[str, Method] = {}
        self._guests: dict[str, Connection] = {}
        self.strangers = strangers()
        self._waiting: dict[str, Connection] = {}
        self._allowance = Allowance()
        self._tasks: set[asyncio.Task[None]] = set()
        self._versions = {"presence": 1, "health": 1}
        self._timers: list[asyncio.Task[None]] = []
        self._stopping = False
        door.grants.ended.listen(self._grant_ended)

    async def __aenter__(self) -> "Intercom":
        loop = asyncio.get_running_loop()
        self._timers = [loop.create_task(self._tick()), loop.create_task(self._ping())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say goodbye to everybody, let running requests end, stop the clocks."""
        self.shut("gateway stopping")
        for timer in self._timers:
            timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_GRACE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._timers, *self._tasks, return_exceptions=True)

    # ---- for the caretaker and the rooms ---------------------------------------------------------------------------

    def offer(self, methods: Iterable[Method]) -> None:
        for method in methods:
            if method.name in self._methods:
                raise ValueError(f"two rooms offer the method {method.name}")
            self._methods[method.name] = method

    def find(self, name: str) -> Method | None:
        return self._methods.get(name)

    @property
    def methods(self) -> Sequence[Method]:
        return tuple(self._methods.values())

    @property
    def guests(self) -> Mapping[str, Connection]:
        """Everybody who is in, by connection id."""
        return self._guests

    @property
    def uptime_ms(self) -> int:
        return int((time.monotonic() - self._begun) * 1000)

    def publish(self, event: Event) -> None:
        """Tell everybody who may hear it. Never blocks."""
        hearers = [
            guest
            for guest in self._guests.values()
            if guest.may_hear(event.scope, event.name)
            and (event.topic is None or event.topic in guest.topics or event.also in guest.topics)
        ]
        if not hearers:
            return
        announcement = Announcement(event.name, event.payload, state_version=event.state_version)
        for guest in hearers:
            guest.announce(announcement)
        self.counts["events", event.name] += len(hearers)

    def tell_tools(self) -> None:
        """The rules about tools have changed: tell those who use tools which they have now."""
        for guest in self._guests.values():
            bound = guest.admitted.bound if guest.admitted else None
            if bound is not None:
                guest.tell(TOOLS_CHANGED, {"tools": self.door.grants.menu(bound)})

    def presence(self) -> list[Json]:
        own = self._house.presence()
        return [own] + [presence_of(guest) for guest in self._guests.values() if _is_present(guest)]

    def publish_health(self) -> None:
        self._versions["health"] += 1
        event = Event(name="health", payload=self._house.health(), scope=READ, state_version=dict(self._versions))
        self.publish(event)

    def cut(self, cut: Cut) -> None:
        """A device lost its standing: its connections end."""
        for guest in list(self._guests.values()):
            connect = guest.admitted.connect if guest.admitted else None
            if connect is None or connect.device is None or connect.device.id != cut.device_id:
                continue
            if cut.role is None or cut.role == connect.role:
                guest.socket.close(4001, "device removed")

    def shut(self, reason: str, *, restart_expected_ms: int | None = None) -> None:
        """Tell everybody that we go, and close. Newcomers are turned away from here on."""
        if self._stopping:
            return
        self._stopping = True
        payload: Json = {"reason": reason}
        if restart_expected_ms is not None:
            payload["restartExpectedMs"] = restart_expected_ms
        self.publish(Event(name="shutdown", payload=payload, scope=None))
        for connection in [*self._guests.values(), *self._waiting.values()]:
            connection.socket.close(1012, "service restart")

    def socket(
        self, config: Any, server_state: Any, app_state: Any, _loop: asyncio.AbstractEventLoop | None = None
    ) -> asyncio.Protocol:
        """A fresh socket in uvicorn's manner."""
        return ServerSocket(self, server_state.connections)

    # ---- for sockets and connections ------------------------------------------------------------------------------

    def turn_away(self, client: Any, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """Why a visitor is not heard at all; None: it is."""
        refusal = self._house.refusal(client, headers)
        if refusal is not None:
            self.refused("source-not-allowed")
        return refusal

    def welcome(self, socket: Accepted, visitor: Visitor) -> Connection | str:
        """A connection for this visitor, or the reason why there is no room."""
        if self._stopping:
            return "the gateway is stopping; try again shortly"
        if len(self._guests) + len(self._waiting) >= MOST_CONNECTIONS:
            self.refused("full")
            return "the gateway has as many connections as it takes"
        connection = Connection(self, socket, visitor)
        self._waiting[connection.id] = connection
        return connection

    def joined(self, connection: Connection) -> Json:
        """The connection is in: its hello."""
        self._waiting.pop(connection.id, None)
        self._guests[connection.id] = connection
        assert connection.admitted is not None
        # What a client says it understands is a topic: rooms send the richer events only to those.
        connection.topics.update(f"cap:{cap}" for cap in connection.admitted.connect.caps)
        self.counts["handshakes", "ok"] += 1
        if _is_present(connection):
            # After the hello, which holds the presence list: this is news for the others.
            asyncio.get_running_loop().call_soon(self._presence_changed)
        self.came.ring(connection)
        return self._hello(connection)

    def left(self, connection: Connection) -> None:
        self._waiting.pop(connection.id, None)
        if self._guests.pop(connection.id, None) is None:
            return
        if _is_present(connection):
            self._presence_changed()
        self.went.ring(connection)

    def own(self, work: Coroutine[Any, Any, None]) -> None:
        """Run to its end; the house waits for it when it closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def spend(self, method: Method, address: str, name: str) -> None:
        """Count a call against its allowance. Raises Fault."""
        assert method.per_minute is not None
        wait = self._allowance.take((method.name, address, name), method.per_minute, time.monotonic())
        if wait > 0:
            raise Fault(
                f"rate limit exceeded for {method.name}; retry after {wait:.0f}s",
                kind="UNAVAILABLE",
                retryable=True,
                retry_after_ms=int(wait * 1000) + 1,
                details={"method": method.name, "limit": f"{method.per_minute} per 60s"},
            )

    def refused(self, code: str) -> None:
        self.counts["handshakes", code] += 1

    def count(self, what: str) -> None:
        self.counts[(what,)] += 1

    def answered(self, method: str, outcome: str, seconds: float) -> None:
        known = method if method in self._methods else "unknown"
        self.counts["requests", known, outcome] += 1
        self.seconds[known] = self.seconds.get(known, 0.0) + seconds

    # ---- within --------------------------------------------------------------------------------------------------

    def _hello(self, connection: Connection) -> Json:
        admitted = connection.admitted
        assert admitted is not None
        auth: Json = {"method": admitted.method, "role": admitted.connect.role, "scopes": admitted.connect.scopes}
        if admitted.device_token is not None:
            auth |= {"deviceToken": admitted.device_token, "issuedAtMs": admitted.issued_at_ms}
        snapshot: Json = {"stateVersion": dict(self._versions), "uptimeMs": self.uptime_ms}
        features: Json = {"methods": self._advertised(), "events": EVENTS, "capabilities": []}
        if admitted.grant is None:
            snapshot |= {"presence": self.presence(), "health": health_for(admitted.caller, self._house.health())}
            snapshot |= self._house.snapshot(admitted.caller.scopes)
        else:  # a program of a run is told nothing of who else is there
            snapshot |= {"presence": [], "health": {"ok": True}}
            features["events"] = sorted(HEARS)
        if admitted.bound is not None:
            features["tools"] = self.door.grants.menu(admitted.bound)
        return {
            "type": "hello-ok",
            "protocol": gateway_frames.PROTOCOL,
            "server": {"version": self._house.version, "bootId": self.boot_id, "connId": connection.id},
            "features": features,
            "snapshot": snapshot,
            "auth": auth,
            "policy": {
                "maxPayload": gateway_frames.LARGEST_FRAME,
                "maxBufferedBytes": gateway_frames.LARGEST_BACKLOG,
                "tickIntervalMs": int(self._tick_every * 1000),
            },
        }

    def _advertised(self) -> Sequence[str]:
        return [method.name for method in self._methods.values() if method.advertised]

    def _grant_ended(self, id: str) -> None:
        for guest in list(self._guests.values()):
            if guest.admitted is not None and guest.admitted.grant == id:
                guest.socket.close(4001, "the run is over")

    def _presence_changed(self) -> None:
        self._versions["presence"] += 1
        if self._stopping or not any(guest.may_hear(READ) for guest in self._guests.values()):
            return
        payload = {"presence": self.presence()}
        self.publish(Event(name="presence", payload=payload, state_version=dict(self._versions)))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_every)
            self.publish(Event(name="tick", payload={"ts": now_ms()}, scope=None))

    async def _ping(self) -> None:
        """Who has not answered since the last round is gone."""
        while True:
            await asyncio.sleep(PING_EVERY)
            for guest in list(self._guests.values()):
                if not guest.is_idle_reader:
                    continue
                if not guest.socket.alive:
                    logger.info("connection %s answered no ping: cut off", guest.id)
                    guest.socket.cut()
                    continue
                guest.socket.alive = False
                guest.socket.ping()


class ServerSocket(Accepted):
    """One visitor's socket: nobody is known before the handshake."""

    _in_a_turn = IN_A_TURN

    def __init__(self, intercom: Intercom, connections: set[Any]) -> None:
        super().__init__(ServerProtocol(max_size=gateway_frames.LARGEST_FRAME), connections, intercom.strangers)
        self._intercom = intercom

    def make_way(self) -> None:
        self._intercom.refused("too-many-strangers")
        super().make_way()

    def shutdown(self) -> None:
        self._intercom.shut("gateway stopping")
        super().shutdown()

    def _refuse_frames(self) -> None:
        self._intercom.refused("too-many-frames")
        super()._refuse_frames()

    def _refuse_size(self) -> None:
        self._intercom.refused("preauth-payload-too-large")
        self.close(1009, "preauth payload too large")

    def _opening(self, event: Request | Response) -> None:
        assert isinstance(event, Request)
        given = [
            (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in event.headers.raw_items()
        ]
        refusal = self._intercom.turn_away(self.address, given)
        if refusal is not None:
            self.answer(self._server_codec.reject(403, f"{refusal}\n"))
            return
        if event.path.partition("?")[0] not in PATHS:
            self.answer(self._server_codec.reject(404, "the gateway's WebSocket is at /\n"))
            return
        response = self._server_codec.accept(event)
        if response.status_code != 101:
            self.answer(response)
            return
        welcome = self._intercom.welcome(self, self._visitor(event.headers))
        if isinstance(welcome, str):
            self.answer(self._server_codec.reject(503, f"{welcome}\n"))
            return
        self.answer(response)
        self.listener = welcome
        welcome.opened()

    def _visitor(self, headers: Headers) -> Visitor:
        peer = self.address
        origins = headers.get_all("Origin")
        return Visitor(
            address=str(peer[0]) if peer else "unknown",
            origin=",".join(origins) if origins else None,  # two origins are none we allow
            proxied=any(name in headers for name in PROXY_HEADERS),
            place=read_place({name.lower(): headers.get_all(name) for name in headers}),
        )


def _is_present(connection: Connection) -> bool:
    assert connection.admitted is not None
    return connection.admitted.connect.client.mode not in EPHEMERAL_MODES
