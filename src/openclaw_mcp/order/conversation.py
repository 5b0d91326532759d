"""One order carried to a gateway and back: `chat.send`, then its run's events until the run ends.

The gateway may be ours, a real OpenClaw, or the rooms of this very process: whoever answers methods and tells events.
"""

import asyncio
import base64
import uuid
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from ..core.agent import AgentEvent, Attachment, Block, Failed, Media, Partial, ToolUse
from ..core.agent import Final as Done
from ..core.errors import OpenClawError
from ..core.gateway_port import Gateway
from ..core.model import Json

RUN_WITHIN: Final = 3600.0  # seconds the agent may take
ADMIT_WITHIN: Final = 60.0  # seconds from sending an order to its admission
STOP_WITHIN: Final = 10.0  # seconds a gateway gets to acknowledge that a run is to stop
LOOK_EVERY: Final = 1.0  # seconds between two looks at an order that waits its turn; nobody tells when it comes
MOST_AFTER: Final = 200  # messages of a transcript in which the answer to such an order is looked for
MOST_UNHEARD: Final = 1000  # events of one run waiting to be read, after which pieces of text are passed over


class Order(Struct, frozen=True, kw_only=True):
    message: str
    session_key: str
    attachments: tuple[Attachment, ...] = ()


async def carried(gateway: Gateway, order: Order) -> AsyncGenerator[AgentEvent, None]:
    """What the agent says, ending with `Final` or `Failed`. Closing the iterator early stops the run."""
    run_id = str(uuid.uuid4())
    unheard: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def hear(event: str, payload: Any) -> None:
        mine = type(payload) is dict and payload.get("runId") == run_id and _telling(event, payload)
        # The next snapshot says what a lost one said; an end, or what a tool made, is told once.
        lost = mine and unheard.qsize() >= MOST_UNHEARD and _is_piece(payload)
        if event in ("hello", "gone") or (mine and not lost):
            unheard.put_nowait((event, payload))

    deaf = gateway.listen(hear)
    ended = False
    try:
        await gateway.call("chat.send", _params(order, run_id, near=gateway.near), within=ADMIT_WITHIN)
        reader = _Reader()
        while not ended:
            event, payload = await unheard.get()
            if event == "gone":
                ended = True
                yield Failed(message=f"the gateway went away: {payload}")
                break
            if event == "hello":
                payload = await _missed(gateway, run_id)
                event = "chat"
            elif _waits(event, payload):
                payload = await _in_its_turn(gateway, order, run_id)
            for said in reader.read(event, payload):
                ended = isinstance(said, Done | Failed)
                yield said
                if ended:
                    break
    finally:
        deaf()
        if not ended:
            stop = {"sessionKey": order.session_key, "runId": run_id}
            with suppress(OpenClawError):
                await asyncio.shield(gateway.call("chat.abort", stop, within=STOP_WITHIN))


def _telling(event: str, payload: Json) -> bool:
    """Whether the reader reads it."""
    return event == "chat" or (event == "agent" and payload.get("stream") in ("tool", "assistant"))


def _is_piece(payload: Json) -> bool:
    data = payload.get("data")
    silent = payload.get("stream") == "assistant" and not (type(data) is dict and data.get("mediaUrls"))
    return silent or payload.get("state") == "delta"


async def _missed(gateway: Gateway, run_id: str) -> Json:
    """How a run ended whose events may have been lost with the connection; waits if it has not."""
    wait = {"runId": run_id, "timeoutMs": int(RUN_WITHIN * 1000)}
    end = await gateway.call("agent.wait", wait, within=RUN_WITHIN + ADMIT_WITHIN)
    if end.get("status") == "ok":
        text = (end.get("terminalReply") or {}).get("text") or ""
        return {"state": "final", "message": {"content": [{"type": "text", "text": text}]}}
    return {"state": "error", "errorMessage": end.get("error") or f"the run ended as {end.get('status')!r}"}


def _waits(event: str, payload: Json) -> bool:
    """A real OpenClaw ends a run that has to wait for another with an empty `final`, and does it under another id."""
    return event == "chat" and payload.get("state") == "final" and not {"message", "stopReason"} & payload.keys()


async def _in_its_turn(gateway: Gateway, order: Order, run_id: str) -> Json:
    """What came of a run that had to wait: the answer stands in the transcript, after the order."""
    look = {"runId": run_id, "timeoutMs": int(LOOK_EVERY * 1000)}
    end = await gateway.call("agent.wait", look, within=ADMIT_WITHIN)
    while end.get("status") in ("pending", "timeout"):
        await asyncio.sleep(LOOK_EVERY)
        end = await gateway.call("agent.wait", look, within=ADMIT_WITHIN)
    if end.get("status") != "ok":
        return {"state": "error", "errorMessage": end.get("error") or f"the run ended as {end.get('status')!r}"}
    asked = {"sessionKey": order.session_key, "limit": MOST_AFTER}
    history = await gateway.call("chat.history", asked, within=ADMIT_WITHIN)
    messages = [message for message in history.get("messages", ()) if type(message) is dict]
    mine = [at for at, message in enumerate(messages) if message.get("idempotencyKey") == f"{run_id}:user"]
    blocks: list[Json] = []
    for message in messages[mine[-1] + 1 :] if mine else messages[-1:]:
        if message.get("role") == "user":
            break
        blocks += _blocks(message) if message.get("role") == "assistant" else []
    return {"state": "final", "message": {"content": blocks}}


class _Reader:
    """Turns a run's events into what was said. Snapshots grow; one that starts anew ends the part before it."""

    def __init__(self) -> None:
        self._text = ""

    def read(self, event: str, payload: Json) -> list[AgentEvent]:
        if event == "chat":
            return self._chat(payload)
        data = payload.get("data") or {}
        return _tool(data) if payload.get("stream") == "tool" else _named(data)

    def _chat(self, payload: Json) -> list[AgentEvent]:
        match payload.get("state"):
            case "delta":
                return self._grown(_text(payload.get("message")), replace=payload.get("replace") is True)
            case "final":
                return [*self._part(), *_parts(payload.get("message")), Done(text=_text(payload.get("message")))]
            case "aborted":
                return [*self._part(), Failed(message="the order was stopped before the agent had finished")]
            case "error":
                reason = payload.get("errorMessage")
                return [*self._part(), Failed(message=reason if type(reason) is str else "the agent failed")]
        return []

    def _grown(self, text: str, *, replace: bool) -> list[AgentEvent]:
        part = [] if replace or text.startswith(self._text) else self._part()
        self._text = text
        return [*part, Partial(text=text, replace=True)]

    def _part(self) -> list[AgentEvent]:
        return [Block(text=self._text)] if self._text else []


def _params(order: Order, run_id: str, *, near: bool) -> Json:
    params: Json = {
        "sessionKey": order.session_key,
        "message": order.message,
        "idempotencyKey": run_id,
        # A busy session finishes what it does first: an order is a turn of its own, not a remark on another's.
        "queueMode": "followup",
    }
    if order.attachments:
        params["attachments"] = [
            {
                "type": item.kind,
                "mimeType": item.mime_type,
                "fileName": item.name,
                "content": item.data if near else base64.b64encode(item.data or b"").decode(),
            }
            for item in order.attachments
        ]
    return params


def _blocks(message: Any) -> list[Json]:
    content = message.get("content") if type(message) is dict else None
    return [block for block in content if type(block) is dict] if type(content) is list else []


def _text(message: Any) -> str:
    if type(message) is dict and type(message.get("content")) is str:
        return str(message["content"])
    texts = [block["text"] for block in _blocks(message) if type(block.get("text")) is str]
    return "\n\n".join(texts)


def _parts(message: Any) -> list[AgentEvent]:
    return [Media(attachment=item) for block in _blocks(message) if (item := _attachment(block)) is not None]


def _tool(data: Json) -> list[AgentEvent]:
    id, name = str(data.get("toolCallId", "")), str(data.get("name", ""))
    if data.get("phase") == "start":
        return [ToolUse(id=id, name=name, arguments={})]
    if data.get("phase") == "result":
        return _parts(data.get("result"))
    return []


def _named(data: Json) -> list[AgentEvent]:
    """What an agent showed by its address alone, as a real OpenClaw tells it; only it knows what is there."""
    places = data.get("mediaUrls")
    named = [place for place in places if type(place) is str] if type(places) is list else []
    return [Media(attachment=_pointer(place)) for place in named]


def _pointer(place: str) -> Attachment:
    url = place if place.startswith(("https://", "http://")) else None
    return Attachment(mime_type="application/octet-stream", name=place.rpartition("/")[2] or None, url=url)


def _attachment(block: Json) -> Attachment | None:
    """The picture, sound or file in a block, however it is spelt; without its bytes when the gateway left them out."""
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
