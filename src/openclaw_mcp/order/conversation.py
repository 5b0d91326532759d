"""One order carried to a gateway elsewhere, ours or a real OpenClaw: `chat.send`, then its run's events as JSON."""

import asyncio
import base64
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from ..core.agent import (
    AgentEvent,
    AnswerBlock,
    Attachment,
    MediaAttached,
    PartialAnswer,
    ToolUse,
    TurnCompleted,
    TurnFailed,
)
from ..core.errors import OpenClawError
from ..core.gateway_port import NetworkGateway, OrderGateway
from ..core.model import Json
from ..net.tasks import finish

RUN_TIMEOUT: Final = 3600.0  # seconds the agent may take
ADMIT_TIMEOUT: Final = 60.0  # seconds from sending an order to its admission
STOP_TIMEOUT: Final = 10.0  # seconds a gateway gets to acknowledge that a run is to stop
POLL_INTERVAL: Final = 1.0  # seconds between two looks at an order that waits its turn; no event announces it
HISTORY_LIMIT: Final = 200  # messages of a transcript in which the answer to such an order is looked for
MOST_QUEUED_EVENTS: Final = 1000  # events of one run waiting to be read, after which partial texts are dropped
STOPPED: Final = "the order was stopped before the agent had finished"


class AgentOrder(Struct, frozen=True, kw_only=True):
    message: str
    session_key: str
    attachments: tuple[Attachment, ...] = ()


async def run_remote_order(gateway: NetworkGateway, order: AgentOrder) -> AsyncGenerator[AgentEvent, None]:
    """The agent's events, ending with `TurnCompleted` or `TurnFailed`. Closing the iterator early stops the run."""
    run_id = str(uuid.uuid4())
    events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def on_event(event: str, payload: Any) -> None:
        mine = type(payload) is dict and payload.get("runId") == run_id and _is_relevant(event, payload)
        # The next snapshot contains the text of a dropped one; an end, or what a tool made, comes only once.
        dropped = mine and events.qsize() >= MOST_QUEUED_EVENTS and _is_partial_text(payload)
        if event in ("hello", "gone") or (mine and not dropped):
            events.put_nowait((event, payload))

    unsubscribe = gateway.subscribe(on_event)
    ended = False
    try:
        contents = [base64.b64encode(item.data or b"").decode() for item in order.attachments]
        await gateway.call("chat.send", chat_send_params(order, run_id, contents), within=ADMIT_TIMEOUT)
        reader = _EventReader()
        while not ended:
            event, payload = await events.get()
            if event == "gone":
                ended = True
                yield TurnFailed(message=f"the gateway went away: {payload}")
                break
            if event == "hello":
                payload = await _wait_for_end(gateway, run_id)
                event = "chat"
            elif _is_queued(event, payload):
                payload = await _wait_for_turn(gateway, order, run_id)
            for read in reader.read(event, payload):
                ended = isinstance(read, TurnCompleted | TurnFailed)
                yield read
                if ended:
                    break
    finally:
        unsubscribe()
        if not ended:
            await stop_run(gateway, order, run_id)


async def stop_run(gateway: OrderGateway, order: AgentOrder, run_id: str) -> None:
    """Have a run stopped whose order is over; a cancellation meanwhile waits for that."""
    stop = {"sessionKey": order.session_key, "runId": run_id}
    with suppress(OpenClawError):
        await finish(gateway.call("chat.abort", stop, within=STOP_TIMEOUT))


def chat_send_params(order: AgentOrder, run_id: str, contents: Sequence[Any]) -> Json:
    """`contents` are those of the attachments: bytes within one process, base64 on a wire."""
    params: Json = {
        "sessionKey": order.session_key,
        "message": order.message,
        "idempotencyKey": run_id,
        # A busy session finishes its run first: an order is a turn of its own, not a remark on another's.
        "queueMode": "followup",
    }
    if order.attachments:
        params["attachments"] = [
            {"type": item.kind, "mimeType": item.mime_type, "fileName": item.name, "content": content}
            for item, content in zip(order.attachments, contents, strict=True)
        ]
    return params


def _is_relevant(event: str, payload: Json) -> bool:
    """Whether `_EventReader` reads it."""
    return event == "chat" or (event == "agent" and payload.get("stream") in ("tool", "assistant"))


def _is_partial_text(payload: Json) -> bool:
    data = payload.get("data")
    silent = payload.get("stream") == "assistant" and not (type(data) is dict and data.get("mediaUrls"))
    return silent or payload.get("state") == "delta"


async def _wait_for_end(gateway: OrderGateway, run_id: str) -> Json:
    """The end of a run whose events may have been lost with the connection, as a `chat` event; waits for it."""
    wait = {"runId": run_id, "timeoutMs": int(RUN_TIMEOUT * 1000)}
    end = await gateway.call("agent.wait", wait, within=RUN_TIMEOUT + ADMIT_TIMEOUT)
    if end.get("status") == "ok":
        text = (end.get("terminalReply") or {}).get("text") or ""
        return {"state": "final", "message": {"content": [{"type": "text", "text": text}]}}
    return {"state": "error", "errorMessage": end.get("error") or f"the run ended as {end.get('status')!r}"}


def _is_queued(event: str, payload: Json) -> bool:
    """A real OpenClaw ends a run that has to wait for another with an empty `final`, and runs it under another id."""
    return event == "chat" and payload.get("state") == "final" and not {"message", "stopReason"} & payload.keys()


async def _wait_for_turn(gateway: OrderGateway, order: AgentOrder, run_id: str) -> Json:
    """The end of a run that had to wait, as a `chat` event: the answer is in the transcript, after the order."""
    look = {"runId": run_id, "timeoutMs": int(POLL_INTERVAL * 1000)}
    end = await gateway.call("agent.wait", look, within=ADMIT_TIMEOUT)
    while end.get("status") in ("pending", "timeout"):
        await asyncio.sleep(POLL_INTERVAL)
        end = await gateway.call("agent.wait", look, within=ADMIT_TIMEOUT)
    if end.get("status") != "ok":
        return {"state": "error", "errorMessage": end.get("error") or f"the run ended as {end.get('status')!r}"}
    asked = {"sessionKey": order.session_key, "limit": HISTORY_LIMIT}
    history = await gateway.call("chat.history", asked, within=ADMIT_TIMEOUT)
    messages = [message for message in history.get("messages", ()) if type(message) is dict]
    mine = [at for at, message in enumerate(messages) if message.get("idempotencyKey") == f"{run_id}:user"]
    blocks: list[Json] = []
    for message in messages[mine[-1] + 1 :] if mine else messages[-1:]:
        if message.get("role") == "user":
            break
        blocks += _content_blocks(message) if message.get("role") == "assistant" else []
    return {"state": "final", "message": {"content": blocks}}


class _EventReader:
    """Turns a run's JSON events into typed ones. Snapshots grow; one that starts again ends the block before it."""

    def __init__(self) -> None:
        self._text = ""

    def read(self, event: str, payload: Json) -> list[AgentEvent]:
        if event == "chat":
            return self._read_chat(payload)
        data = payload.get("data") or {}
        return _tool_events(data) if payload.get("stream") == "tool" else _linked_media_events(data)

    def _read_chat(self, payload: Json) -> list[AgentEvent]:
        match payload.get("state"):
            case "delta":
                return self._update_text(message_text(payload.get("message")), replace=payload.get("replace") is True)
            case "final":
                return [
                    *self._finish_block(),
                    *media_events(payload.get("message")),
                    TurnCompleted(text=message_text(payload.get("message"))),
                ]
            case "aborted":
                return [*self._finish_block(), TurnFailed(message=STOPPED)]
            case "error":
                reason = payload.get("errorMessage")
                return [
                    *self._finish_block(),
                    TurnFailed(message=reason if type(reason) is str else "the agent failed"),
                ]
        return []

    def _update_text(self, text: str, *, replace: bool) -> list[AgentEvent]:
        part = [] if replace or text.startswith(self._text) else self._finish_block()
        self._text = text
        return [*part, PartialAnswer(text=text, replace=True)]

    def _finish_block(self) -> list[AgentEvent]:
        return [AnswerBlock(text=self._text)] if self._text else []


def _content_blocks(message: Any) -> list[Json]:
    content = message.get("content") if type(message) is dict else None
    return [block for block in content if type(block) is dict] if type(content) is list else []


def message_text(message: Any) -> str:
    if type(message) is dict and type(message.get("content")) is str:
        return str(message["content"])
    texts = [block["text"] for block in _content_blocks(message) if type(block.get("text")) is str]
    return "\n\n".join(texts)


def media_events(message: Any) -> list[AgentEvent]:
    return [
        MediaAttached(attachment=item)
        for block in _content_blocks(message)
        if (item := _read_attachment(block)) is not None
    ]


def _tool_events(data: Json) -> list[AgentEvent]:
    id, name = str(data.get("toolCallId", "")), str(data.get("name", ""))
    if data.get("phase") == "start":
        return [ToolUse(id=id, name=name, arguments={})]
    if data.get("phase") == "result":
        return media_events(data.get("result"))
    return []


def _linked_media_events(data: Json) -> list[AgentEvent]:
    """Media that an agent showed by address alone, as a real OpenClaw reports it; only that one has the bytes."""
    places = data.get("mediaUrls")
    named = [place for place in places if type(place) is str] if type(places) is list else []
    return [MediaAttached(attachment=_link_attachment(place)) for place in named]


def _link_attachment(location: str) -> Attachment:
    url = location if location.startswith(("https://", "http://")) else None
    return Attachment(mime_type="application/octet-stream", name=location.rpartition("/")[2] or None, url=url)


def _read_attachment(block: Json) -> Attachment | None:
    """The picture, sound or file in a block, in any spelling; without its bytes when the gateway left them out."""
    source: Json = block["resource"] if type(block.get("resource")) is dict else block
    if type(block.get("source")) is dict:
        source = block["source"]
    encoded = source.get("data") or source.get("blob") or source.get("content")
    mime_type = source.get("mimeType") or source.get("media_type") or source.get("mime_type")
    omitted = encoded is None and True in (source.get("omitted"), block.get("omitted"))
    if block.get("type") == "text" or type(mime_type) is not str or not (omitted or type(encoded) is str):
        return None
    try:
        data = base64.b64decode(encoded, validate=True) if type(encoded) is str else None
    except ValueError:
        return None
    name = block.get("fileName") or block.get("name") or str(source.get("uri", "")).rpartition("/")[2] or None
    name = name if type(name) is str else None
    if data is None and type(size := source.get("bytes")) is int:
        name = f"{name or mime_type} of {size / (1 << 20):.1f} MB"
    return Attachment(mime_type=mime_type, name=name, data=data)
