"""The runtime `openclaw`: another gateway's agent answers in this one's place, with that gateway's tools."""

import asyncio
import base64
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, Final, Protocol

from ....core.agent import (
    AgentEvent,
    Attachment,
    MediaAttached,
    ModelSelected,
    PartialAnswer,
    ThinkingText,
    ToolOutcome,
    ToolUpdate,
    ToolUse,
    Turn,
    TurnFailed,
    Usage,
)
from ....core.agent import TurnCompleted as Answered
from ....core.agents import AgentProfile, AgentRoster
from ....core.config.config import Config
from ....core.errors import BadRequest, OpenClawError
from ....core.model import Json
from ....core.numbers import parse_whole_number, read_count
from ....core.providers import model_choices, split_model_name
from .api_keys import KeyRing
from .event_stream import EmitEvent, stream_events
from .settings import KeySource, ModelProvider, read_providers

ADMIT_TIMEOUT: Final = 60.0  # seconds from sending a message to its admission
STOP_TIMEOUT: Final = 3.0  # seconds a gateway gets to acknowledge that a run is to stop; our own abort waits for it
MOST_QUEUED_EVENTS: Final = 10_000  # events of one run waiting to be read
MAX_HOPS: Final = 3  # times a message is passed on: a gateway that passes on to itself must come to an end

_HOP = re.compile(r":hop([0-9]+):")


class RemoteGateway(Protocol):
    """Whoever answers methods and tells events."""

    async def call(self, method: str, params: Json, *, within: float) -> Any: ...

    def subscribe(self, handler: Callable[[str, Any], None]) -> Callable[[], None]:
        """Hear every event, `hello` each time a lost connection is back, `gone` with the reason if it does not come
        back, until the returned function is called."""


RemoteGatewayConnector = Callable[[str, str | None], AbstractAsyncContextManager[RemoteGateway]]
"""Reach a gateway: its address and token. Entering raises OpenClawError when it can't be reached."""


class OpenClawRuntime:
    """An `AgentRuntime`. Connections are made when first needed and kept until `aclose`."""

    id = "openclaw"
    media_types: tuple[str, ...] = ("",)

    def __init__(
        self, connect: RemoteGatewayConnector, *, config: Callable[[], Config], roster: Callable[[], AgentRoster]
    ) -> None:
        self._connect = connect
        self._config = config
        self._roster = roster
        self._stack = AsyncExitStack()
        self._connections: dict[tuple[str, str | None], RemoteGateway] = {}
        self._connect_lock = asyncio.Lock()

    async def aclose(self) -> None:
        self._connections.clear()
        await self._stack.aclose()

    async def run(self, turn: Turn) -> AsyncGenerator[AgentEvent, None]:
        async def work(tell: EmitEvent) -> AgentEvent:
            card = self._roster().get_agent(turn.agent_id)
            try:
                return await self._delegate(turn, card, tell)
            except OpenClawError as exc:
                return TurnFailed(message=f"The agent of the other gateway did not answer: {exc}")

        events = stream_events(work)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def _delegate(self, turn: Turn, profile: AgentProfile, emit: EmitEvent) -> AgentEvent:
        provider, agent = _target(self._config(), turn, profile)
        gateway = await self._gateway(provider)
        key = turn.resume or _new_key(turn, agent)
        emit(ModelSelected(provider.name, agent))
        return await _RemoteRun(gateway, key, emit).run(_params(turn, profile, key))

    async def _gateway(self, provider: ModelProvider) -> RemoteGateway:
        ring = KeyRing(provider)
        token = await ring.read(ring.sort_sources()[0])
        place = provider.base_url, token
        async with self._connect_lock:
            if place not in self._connections:
                self._connections[place] = await self._stack.enter_async_context(self._connect(*place))
        return self._connections[place]


def _target(config: Config, turn: Turn, profile: AgentProfile) -> tuple[ModelProvider, str]:
    """Which gateway and which of its agents: the agent's model says, else `gateway.remote` and `main`."""
    providers: Mapping[str, ModelProvider] = read_providers(config.models)
    first = turn.model or model_choices(profile.settings.model)[0]
    if first:
        name, agent = split_model_name(first, providers)
        if name in providers and providers[name].api == "openclaw":
            return providers[name], agent or "main"
    remote = config.gateway.remote
    if not remote.url:
        words = 'set gateway.remote.url, or a provider with api "openclaw" and the model provider/agent'
        raise BadRequest(f"no gateway is named; {words}")
    keys = (KeySource("value", remote.token),) if remote.token else ()
    return ModelProvider(name="gateway.remote", api="openclaw", base_url=remote.url, keys=keys), "main"


def _new_key(turn: Turn, agent: str) -> str:
    passed = _HOP.search(turn.session_key)
    hops = parse_whole_number(passed[1], maximum=MAX_HOPS - 1) if passed else 0
    if hops is None:
        raise BadRequest(f"the message was passed on {MAX_HOPS} times; does a gateway pass on to itself?")
    return f"agent:{agent}:hop{hops + 1}:{uuid.uuid4()}"


def _params(turn: Turn, profile: AgentProfile, key: str) -> Json:
    """Instructions go with the first message: the other gateway's agent has a prompt of its own."""
    told = [profile.settings.system_prompt, turn.system_prompt] if turn.resume is None else []
    message = "\n\n".join(part for part in (*told, turn.prompt) if part)
    params: Json = {"sessionKey": key, "message": message, "queueMode": "followup"}
    if turn.thinking:
        params["thinking"] = turn.thinking
    if turn.attachments:
        params["attachments"] = [
            {
                "type": item.kind,
                "mimeType": item.mime_type,
                "fileName": item.name or item.kind,
                "content": base64.b64encode(item.data or b"").decode(),
            }
            for item in turn.attachments
        ]
    return params


class _RemoteRun:
    """One message to a far agent, and its answer."""

    def __init__(self, gateway: RemoteGateway, key: str, emit: EmitEvent) -> None:
        self._gateway = gateway
        self._key = key
        self._emit = emit
        self._run_id = str(uuid.uuid4())
        self._events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(MOST_QUEUED_EVENTS)
        self._usage: Usage | None = None

    async def run(self, params: Json) -> AgentEvent:
        deaf = self._gateway.subscribe(self._on_event)
        ended = False
        try:
            await self._gateway.call("chat.send", {**params, "idempotencyKey": self._run_id}, within=ADMIT_TIMEOUT)
            end = await self._wait_end()
            ended = True
            return end
        finally:
            deaf()
            if not ended:
                await self._stop()

    async def _stop(self) -> None:
        stop = self._gateway.call("chat.abort", {"sessionKey": self._key, "runId": self._run_id}, within=STOP_TIMEOUT)
        with suppress(OpenClawError):
            await asyncio.shield(stop)

    def _on_event(self, event: str, payload: Any) -> None:
        ours = event in ("hello", "gone") or (isinstance(payload, dict) and payload.get("runId") == self._run_id)
        if ours and not self._events.full():
            self._events.put_nowait((event, payload))

    async def _wait_end(self) -> AgentEvent:
        while True:
            event, payload = await self._events.get()
            if event == "gone":
                return TurnFailed(message=f"The other gateway went away: {payload}")
            if event == "hello":
                event, payload = "chat", await self._recover_end()
            if event == "agent":
                for said in _agent_events(payload):
                    self._emit(said)
            elif event == "chat" and (end := self._handle_chat(payload)) is not None:
                return end

    async def _recover_end(self) -> Json:
        """How the run ended, if its end was lost with the connection; waits until it does."""
        wait = {"runId": self._run_id, "timeoutMs": 24 * 3_600_000}
        end = await self._gateway.call("agent.wait", wait, within=24 * 3600.0)  # the run's own limit comes first
        if end.get("status") == "ok":
            text = (end.get("terminalReply") or {}).get("text") or ""
            return {"state": "final", "message": {"content": [{"type": "text", "text": text}]}}
        return {"state": "error", "errorMessage": end.get("error") or f"the run ended as {end.get('status')!r}"}

    def _handle_chat(self, payload: Json) -> AgentEvent | None:
        message = payload.get("message")
        match payload.get("state"):
            case "delta":
                added = payload.get("deltaText")
                if isinstance(added, str) and not payload.get("replace"):
                    self._emit(PartialAnswer(added))
                else:
                    self._emit(PartialAnswer(_text(message), replace=True))
            case "final":
                for attachment in _media(message):
                    self._emit(MediaAttached(attachment))
                reason = str(payload.get("stopReason") or "stop")
                return Answered(text=_text(message) if message else None, stop_reason=reason, resume=self._key)
            case "aborted":
                return TurnFailed(message="The other gateway stopped the run.")
            case "error":
                return TurnFailed(message=f"The agent of the other gateway failed: {payload.get('errorMessage')}")
        return None


def _agent_events(payload: Json) -> Iterator[AgentEvent]:
    data = payload.get("data")
    if not isinstance(data, dict):
        return
    match payload.get("stream"):
        case "lifecycle" if data.get("phase") == "model" and data.get("provider") and data.get("model"):
            yield ModelSelected(str(data["provider"]), str(data["model"]))
        case "thinking" if isinstance(data.get("delta"), str):
            yield ThinkingText(data["delta"])
        case "usage":
            yield Usage(output=read_count(data.get("outputTokens")))
        case "tool":
            yield from _tool_events(data)


def _tool_events(data: Json) -> Iterator[AgentEvent]:
    id, name = str(data.get("toolCallId", "")), str(data.get("name", ""))
    match data.get("phase"):
        case "start":
            arguments = data.get("args")
            yield ToolUse(id, name, arguments if isinstance(arguments, dict) else {})
        case "update":
            yield ToolUpdate(id, name, _content(data.get("partialResult")))
        case "result":
            yield ToolOutcome(id, name, _content(data.get("result")), bool(data.get("isError")))


def _content(result: Any) -> tuple[Json, ...]:
    content = result.get("content") if isinstance(result, dict) else None
    return tuple(block for block in content or () if isinstance(block, dict))


def _text(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    blocks = [block for block in content or () if isinstance(block, dict)]
    return "\n\n".join(b["text"] for b in blocks if b.get("type", "text") == "text" and isinstance(b.get("text"), str))


def _media(message: Any) -> Iterator[Attachment]:
    for block in _content(message):
        if block.get("type") in ("image", "audio", "video", "file") and isinstance(block.get("data"), str):
            with suppress(ValueError):
                data, name = base64.b64decode(block["data"], validate=True), block.get("fileName")
                name = name if isinstance(name, str) else None  # a message with another one could not be read again
                yield Attachment(mime_type=str(block.get("mimeType")), name=name, data=data)
