"""The runtime `openclaw`: another gateway's agent answers in this one's place, with that gateway's tools."""

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from functools import partial
from typing import Any, Final

from ....core import agent
from ....core.agent import AgentEvent, Turn
from ....core.agents import AgentProfile, AgentRoster
from ....core.chat_messages import ChatMessage
from ....core.config.config import Config
from ....core.errors import BadRequest, OpenClawError
from ....core.gateway_events import AgentEventData, RemoteRunEvent
from ....core.gateway_port import EventGateway
from ....core.model import Json
from ....core.numbers import parse_whole_number
from ....core.providers import model_choices, split_model_name
from ....net.gateway_client.remote_run import chat_send_params, encode_contents, follow_remote_run
from .api_keys import KeyRing
from .event_stream import EmitEvent, stream_events
from .settings import KeySource, ModelProvider, read_providers

RUN_TIMEOUT: Final = 24 * 3600.0  # seconds an end that was lost is waited for; the run's own limit comes first
STOP_TIMEOUT: Final = 3.0  # seconds a gateway gets to acknowledge that a run is to stop; our own abort waits for it
STREAMS: Final = frozenset({"lifecycle", "thinking", "usage", "tool"})
"""The streams of `agent` events that become events of the turn."""
MEDIA_TYPES: Final = frozenset({"image", "audio", "video", "file"})
"""The types of content blocks that are attachments of the answer."""
MAX_HOPS: Final = 3  # times a message is passed on: a gateway that passes on to itself must come to an end

FAILURES: Final = {
    "aborted": "The other gateway stopped the run.",
    "error": "The agent of the other gateway failed: {}",
    "gone": "The other gateway went away: {}",
}

_HOP = re.compile(r":hop([0-9]+):")

RemoteGatewayConnector = Callable[[str, str | None], AbstractAsyncContextManager[EventGateway]]
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
        self._connections: dict[tuple[str, str | None], EventGateway] = {}
        self._connect_lock = asyncio.Lock()

    async def aclose(self) -> None:
        self._connections.clear()
        await self._stack.aclose()

    def run(self, turn: Turn) -> AsyncGenerator[AgentEvent, None]:
        return stream_events(partial(self._run_turn, turn))

    async def _run_turn(self, turn: Turn, emit: EmitEvent) -> AgentEvent:
        profile = self._roster().get_agent(turn.agent_id)
        try:
            return await self._delegate(turn, profile, emit)
        except OpenClawError as exc:
            return agent.TurnFailed(message=f"The agent of the other gateway did not answer: {exc}")

    async def _delegate(self, turn: Turn, profile: AgentProfile, emit: EmitEvent) -> AgentEvent:
        provider, target = _target(self._config(), turn, profile)
        gateway = await self._gateway(provider)
        key = turn.resume or _new_key(turn, target)
        emit(agent.ModelSelected(provider.name, target))
        params = _params(turn, profile, key)
        run = follow_remote_run(gateway, params, streams=STREAMS, timeout=RUN_TIMEOUT, stop_timeout=STOP_TIMEOUT)
        async with aclosing(run) as events:
            async for event in events:
                if (end := _handle_event(event, key, emit)) is not None:
                    return end
        raise OpenClawError("its run ended without a result")

    async def _gateway(self, provider: ModelProvider) -> EventGateway:
        ring = KeyRing(provider)
        token = await ring.read(ring.sort_sources()[0])
        place = provider.base_url, token
        async with self._connect_lock:
            if place not in self._connections:
                self._connections[place] = await self._stack.enter_async_context(self._connect(*place))
        return self._connections[place]


def _target(config: Config, turn: Turn, profile: AgentProfile) -> tuple[ModelProvider, str]:
    """Which gateway and which of its agents: by the agent's model, else `gateway.remote` and `main`."""
    providers: Mapping[str, ModelProvider] = read_providers(config.models)
    first = turn.model or model_choices(profile.settings.model)[0]
    if first:
        name, target = split_model_name(first, providers)
        if name in providers and providers[name].api == "openclaw":
            return providers[name], target or "main"
    remote = config.gateway.remote
    if not remote.url:
        remedy = 'set gateway.remote.url, or a provider with api "openclaw" and the model provider/agent'
        raise BadRequest(f"no gateway is named; {remedy}")
    keys = (KeySource("value", remote.token),) if remote.token else ()
    return ModelProvider(name="gateway.remote", api="openclaw", base_url=remote.url, keys=keys), "main"


def _new_key(turn: Turn, target: str) -> str:
    passed = _HOP.search(turn.session_key)
    hops = parse_whole_number(passed[1], maximum=MAX_HOPS - 1) if passed else 0
    if hops is None:
        raise BadRequest(f"the message was passed on {MAX_HOPS} times; does a gateway pass on to itself?")
    return f"agent:{target}:hop{hops + 1}:{uuid.uuid4()}"


def _params(turn: Turn, profile: AgentProfile, key: str) -> Json:
    """Instructions go with the first message: the other gateway's agent has a prompt of its own."""
    instructions = [profile.settings.system_prompt, turn.system_prompt] if turn.resume is None else []
    message = "\n\n".join(part for part in (*instructions, turn.prompt) if part)
    params = chat_send_params(key, message, turn.attachments, encode_contents(turn.attachments))
    return {**params, "thinking": turn.thinking} if turn.thinking else params


def _handle_event(event: RemoteRunEvent, key: str, emit: EmitEvent) -> AgentEvent | None:
    """Emit what the other agent does; the end of the turn is returned."""
    message = event.message
    match event.state:
        case None if event.data is not None:
            for each in _agent_events(event.stream, event.data):
                emit(each)
        case "delta" if event.delta_text is not None and not event.replace:
            emit(agent.PartialAnswer(event.delta_text))
        case "delta":
            emit(agent.PartialAnswer(_text(message), replace=True))
        case "final":
            for block in message.blocks if message is not None else ():
                attachment = block.to_attachment() if block.type in MEDIA_TYPES else None
                if attachment is not None and attachment.data is not None:
                    emit(agent.MediaAttached(attachment))
            text = None if message is None else _text(message)
            return agent.TurnCompleted(text=text, stop_reason=event.stop_reason or "stop", resume=key)
        case "aborted" | "error" | "gone":
            return agent.TurnFailed(message=FAILURES[event.state].format(event.error_message))
    return None


def _agent_events(stream: str | None, data: AgentEventData) -> Iterator[AgentEvent]:
    id, name = data.tool_call_id, data.name
    match stream, data.phase:
        case "lifecycle", "model" if data.provider and data.model:
            yield agent.ModelSelected(data.provider, data.model)
        case "thinking", _ if data.delta is not None:
            yield agent.ThinkingText(data.delta)
        case "usage", _:
            yield agent.Usage.from_report(output=data.output_tokens or 0)
        case "tool", "start":
            yield agent.ToolUse(id, name, data.args if isinstance(data.args, dict) else {})
        case "tool", "update":
            yield agent.ToolUpdate(id, name, _content(data.partial_result))
        case "tool", "result":
            yield agent.ToolOutcome(id, name, _content(data.result), data.is_error)


def _content(result: Any) -> tuple[Json, ...]:
    content = result.get("content") if isinstance(result, dict) else None
    return tuple(block for block in content or () if isinstance(block, dict))


def _text(message: ChatMessage | None) -> str:
    """The text of an answer, without that of blocks of other types."""
    blocks = message.blocks if message is not None else ()
    return "\n\n".join(block.text for block in blocks if block.type in ("text", "") and block.text is not None)
