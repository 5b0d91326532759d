"""A gateway's invocations of this node, answered through its toolbox. Knows the messages, not the wire."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, field

from ..core.errors import OpenClawError, ToolBusy, ToolNotFound, ToolTimeout
from ..core.model import Caller, Json, Text, ToolCall, ToolResult
from ..core.ports import CallContext, NullCallContext, Toolbox
from ..net.tasks import Tasks

MAX_INVOCATIONS: Final = 8  # invocations at once; others are refused as busy
LONGEST_INVOCATION: Final = 3600.0  # seconds, when the gateway names no limit of its own
MAX_CHUNK_LENGTH: Final = 16_384  # characters of progress in one message: the gateway's own bound
MAX_PAYLOAD_BYTES: Final = 24 << 20  # bytes of JSON; a gateway's frames end at 25 MiB
GATEWAY_CALLER: Final = Caller(kind="operator", name="gateway", scopes=frozenset({"*"}))
"""A gateway this node is paired with; which of its people and agents may invoke what is the gateway's to decide."""

FAILED: Final = "the node failed to carry it out; its log says why"
_COMMAND_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")

logger = logging.getLogger(__name__)

CallGateway = Callable[[str, Json], Awaitable[Any]]
"""Call a method of the gateway."""


class _InvokeRequest(Struct, frozen=True, rename="camel"):
    """The event `node.invoke.request`, whose fields gateways spell and fill in various ways."""

    id: Any = None
    request_id: Any = None
    node_id: Any = None
    command: Any = None
    timeout_ms: Any = None
    params_json: Any = field(default=UNSET, name="paramsJSON")
    args: Any = None


class Invocations:
    """`on_event` for each event of the connection; `cancel_all` when it is gone. Owns one task per invocation."""

    def __init__(self, toolbox: Toolbox, call_gateway: CallGateway, *, caller: Caller = GATEWAY_CALLER) -> None:
        self._toolbox, self._call_gateway, self._caller = toolbox, call_gateway, caller
        self._tasks = Tasks("node invocations")
        self._running: dict[str, asyncio.Task[None]] = {}

    def on_event(self, event: str, payload: Any) -> None:
        """Take an event of the gateway; those that are not for a node are ignored."""
        if type(payload) is not dict:
            return
        if event == "node.invoke.request":
            self._start(msgspec.convert(payload, _InvokeRequest))
        elif event == "node.invoke.cancel":
            running = self._running.get(str(payload.get("invokeId") or payload.get("requestId") or payload.get("id")))
            if running is not None:
                running.cancel()

    def cancel_all(self) -> None:
        """The connection is gone: the gateway does not wait for these any more."""
        for task in self._running.values():
            task.cancel()

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def _start(self, request: _InvokeRequest) -> None:
        id = str(request.id or request.request_id or "")
        if not id or id in self._running:  # asked twice is answered once
            return
        answer = self._respond(id, request, busy=len(self._running) >= MAX_INVOCATIONS)
        self._running[id] = task = self._tasks.spawn(answer, name=str(request.command))
        task.add_done_callback(lambda _: self._running.pop(id, None))

    async def _respond(self, id: str, request: _InvokeRequest, *, busy: bool) -> None:
        answer: Json = {"id": id, **_node_field(request)}
        try:
            if busy:
                raise ToolBusy("node busy, retry")
            answer |= {"ok": True, "payload": await self._invoke(id, request)}
        except OpenClawError as exc:
            answer |= {"ok": False, "error": {"code": exc.code.upper(), "message": str(exc)}}
        except Exception:  # without an answer the gateway would wait until its time is up
            logger.exception("node: invocation %s of %s failed, answering with an error", id, request.command)
            answer |= {"ok": False, "error": {"code": OpenClawError.code.upper(), "message": FAILED}}
        try:
            await self._call_gateway("node.invoke.result", answer)
        except OpenClawError:
            return  # the gateway has gone or has stopped waiting

    async def _invoke(self, id: str, request: _InvokeRequest) -> Any:
        command, limit = request.command, request.timeout_ms
        if type(command) is not str or not _COMMAND_NAME.fullmatch(command):
            raise ToolNotFound("Invalid command format")
        context: CallContext = _InvocationContext(self._call_gateway, id, request)
        call = ToolCall(caller=self._caller, name=command, arguments=_parse_arguments(request), context=context)
        seconds = limit / 1000 if isinstance(limit, int | float) and limit > 0 else LONGEST_INVOCATION
        try:
            async with asyncio.timeout(min(seconds, LONGEST_INVOCATION)):
                return _result_payload(await self._toolbox.call(call))
        except TimeoutError:
            raise ToolTimeout(f"{command} took longer than the {seconds:g} s the gateway waits") from None


class _InvocationContext(NullCallContext):
    """Progress as the gateway streams it. No person can be asked over this connection."""

    def __init__(self, call_gateway: CallGateway, id: str, request: _InvokeRequest) -> None:
        self._call_gateway = call_gateway
        self.id = id
        self._base_message = {"invokeId": id, **_node_field(request)}
        self._sequence = 0

    async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
        if not message:
            return
        chunk = {**self._base_message, "seq": self._sequence, "chunk": message[:MAX_CHUNK_LENGTH]}
        self._sequence += 1
        try:
            await self._call_gateway("node.invoke.progress", chunk)
        except OpenClawError:
            return  # an older gateway takes no progress


def invocation_id(call: ToolCall) -> str:
    """The gateway's id of the invocation that a call serves; empty for a call that came another way."""
    return call.context.id if isinstance(call.context, _InvocationContext) else ""


def _node_field(request: _InvokeRequest) -> dict[str, str]:
    return {"nodeId": request.node_id} if request.node_id else {}


def _parse_arguments(request: _InvokeRequest) -> Json:
    """Arguments that can't be parsed count as none, as with other nodes."""
    given = request.args if request.params_json is UNSET else request.params_json
    if type(given) is str:
        try:
            given = msgspec.json.decode(given)
        except msgspec.DecodeError:
            return {}
    return given if type(given) is dict else {}


def _result_payload(result: ToolResult) -> Any:
    texts = [block.text for block in result.content if isinstance(block, Text)]
    if result.failed:
        raise OpenClawError(texts[0] if texts else "tool execution failed")
    value = texts[0] if result.structured is msgspec.UNSET and texts else result.structured
    if len(msgspec.json.encode(value)) > MAX_PAYLOAD_BYTES:
        raise OpenClawError("the answer is larger than a gateway takes; ask for a smaller picture or a shorter film")
    return value
