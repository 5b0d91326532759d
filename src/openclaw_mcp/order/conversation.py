"""One order carried to a gateway elsewhere, ours or a real OpenClaw: its run's events as those of an agent."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from msgspec import Struct

from ..core import agent
from ..core.agent import AgentEvent, Attachment, MediaAttached
from ..core.chat_messages import ChatMessage
from ..core.gateway_events import AgentEventData, RemoteRunEvent
from ..core.gateway_port import EventGateway
from ..core.lenient import read_struct
from ..net.gateway_client.remote_run import chat_send_params, encode_contents, follow_remote_run
from .approvals import OrderEvent, RemoteApprovals

RUN_TIMEOUT: Final = 3600.0  # seconds the agent may take
STOP_TIMEOUT: Final = 10.0  # seconds a gateway gets to acknowledge that a run is to stop
STREAMS: Final = frozenset({"tool", "assistant", "lifecycle"})
"""The streams of `agent` events that an order reads."""
STOPPED: Final = "the order was stopped before the agent had finished"


class AgentOrder(Struct, frozen=True, kw_only=True):
    message: str
    session_key: str
    attachments: tuple[Attachment, ...] = ()


async def run_remote_order(gateway: EventGateway, order: AgentOrder) -> AsyncGenerator[OrderEvent, None]:
    """The agent's events and its questions, ending with `TurnCompleted` or `TurnFailed`. Closing the iterator early
    stops the run."""
    contents = encode_contents(order.attachments)
    params = chat_send_params(order.session_key, order.message, order.attachments, contents)
    reader = _EventReader(RemoteApprovals(gateway))
    run = follow_remote_run(gateway, params, streams=STREAMS, timeout=RUN_TIMEOUT, stop_timeout=STOP_TIMEOUT)
    async with aclosing(run) as events:
        async for event in events:
            for read in reader.read(event):
                yield read


class _EventReader:
    """Turns a run's events into an order's. Snapshots grow; one that starts again ends the block before it."""

    def __init__(self, approvals: RemoteApprovals) -> None:
        self._approvals = approvals
        self._text = ""

    def read(self, event: RemoteRunEvent) -> Sequence[OrderEvent]:
        if event.approval is not None:
            return self._approvals.read(event.approval)
        if event.stream == "lifecycle" and event.data is not None:
            return self._approvals.read_phase(event.data.phase)
        message = event.message or ChatMessage()
        match event.state:
            case "delta":
                return self._update_text(message.text, replace=event.replace)
            case "final":
                return [*self._finish_block(), *_media_events(message), agent.TurnCompleted(text=message.text)]
            case "aborted":
                return [*self._finish_block(), agent.TurnFailed(message=STOPPED)]
            case "error":
                return [*self._finish_block(), agent.TurnFailed(message=event.error_message or "the agent failed")]
            case "gone":
                return [agent.TurnFailed(message=f"the gateway went away: {event.error_message}")]
        return [] if event.data is None else _agent_events(event.stream, event.data)

    def _update_text(self, text: str, *, replace: bool) -> list[AgentEvent]:
        part = [] if replace or text.startswith(self._text) else self._finish_block()
        self._text = text
        return [*part, agent.PartialAnswer(text=text, replace=True)]

    def _finish_block(self) -> list[AgentEvent]:
        return [agent.AnswerBlock(text=self._text)] if self._text else []


def _agent_events(stream: str | None, data: AgentEventData) -> list[AgentEvent]:
    if stream == "assistant":
        # Media that an agent showed by address alone, as a real OpenClaw reports it; only that one has the bytes.
        return [MediaAttached(attachment=_link_attachment(place)) for place in data.media_urls]
    if data.phase == "start":
        return [agent.ToolUse(id=data.tool_call_id, name=data.name, arguments={})]
    if data.phase != "result":
        return []
    result = read_struct(data.result, ChatMessage)
    said = agent.ToolOutcome(data.tool_call_id, data.name, ({"type": "text", "text": result.text},))
    return [said, *_media_events(result)]


def _media_events(message: ChatMessage) -> list[AgentEvent]:
    return [MediaAttached(attachment=item) for item in message.media]


def _link_attachment(location: str) -> Attachment:
    name = location.rpartition("/")[2] or None
    return Attachment(mime_type="application/octet-stream", name=name, url=agent.web_address(location))
