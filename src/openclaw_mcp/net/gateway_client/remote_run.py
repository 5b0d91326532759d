"""One message to an agent of a gateway elsewhere: `chat.send`, then the events of its run until it ends."""

import asyncio
import base64
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence, Set
from contextlib import suppress
from typing import Any, Final

from ...core.agent import Attachment
from ...core.chat_messages import ChatBlock, ChatHistoryReply, ChatMessage
from ...core.errors import OpenClawError
from ...core.gateway_events import RemoteApproval, RemoteRunEvent, RunWaitReply
from ...core.gateway_port import EventGateway, MethodGateway
from ...core.lenient import read_struct
from ...core.model import Json
from ..tasks import finish

SUPPRESS_COMMANDS: Final = "suppressCommandInterpretation"
ADMIT_TIMEOUT: Final = 60.0  # seconds from sending a message to its admission
POLL_INTERVAL: Final = 1.0  # seconds between two looks at a message that waits its turn; no event announces it
HISTORY_LIMIT: Final = 200  # messages of a transcript in which the answer to such a message is looked for
MOST_QUEUED_EVENTS: Final = 1000  # events of one run waiting to be read, after which partial texts are dropped
MOST_QUEUED_IN_ALL: Final = 10_000  # after which all are dropped but its end, and after twice as many that too

APPROVAL_EVENTS: Final = frozenset({"exec.approval.requested", "exec.approval.resolved"})
"""Only clients that may answer receive them."""


def chat_send_params(key: str, message: str, attachments: Sequence[Attachment], contents: Sequence[Any]) -> Json:
    """A message for the session of this key. `contents` are those of the attachments: bytes within one process, base64
    on a wire."""
    # A busy session finishes its run first: this is a turn of its own, not a remark on another's.
    params: Json = {"sessionKey": key, "message": message, "queueMode": "followup"}
    if message.lstrip().startswith("/"):  # for the agent too, not a command to the gateway; a right of admins elsewhere
        params[SUPPRESS_COMMANDS] = True
    if attachments:
        params["attachments"] = [
            {"type": item.kind, "mimeType": item.mime_type, "fileName": item.name or item.kind, "content": content}
            for item, content in zip(attachments, contents, strict=True)
        ]
    return params


def encode_contents(attachments: Sequence[Attachment]) -> list[str]:
    return [base64.b64encode(item.data or b"").decode() for item in attachments]


async def follow_remote_run(
    gateway: EventGateway, params: Json, *, streams: Set[str], timeout: float, stop_timeout: float
) -> AsyncGenerator[RemoteRunEvent, None]:
    """Send a message (`params` of `chat.send`) and yield the events of its run, the end last: `chat` events, `agent`
    events of these streams, and questions about its commands. Closing the iterator early stops the run. An end that was
    lost with the connection is waited for up to `timeout` seconds, the acknowledgement of a stop up to `stop_timeout`.
    Raises OpenClawError."""
    run_id = str(uuid.uuid4())
    events = _RunEventQueue(run_id, streams)
    unsubscribe = gateway.subscribe(events.on_event)
    ended = False
    try:
        await gateway.call("chat.send", {**params, "idempotencyKey": run_id}, within=ADMIT_TIMEOUT)
        while not ended:
            event = await events.queue.get()
            if event is None:
                event = (await _wait_run(gateway, run_id, timeout)).to_event()
            elif event.is_queued:
                event = await _wait_for_turn(gateway, str(params["sessionKey"]), run_id)
            ended = event.is_end
            yield event
    finally:
        unsubscribe()
        if not ended:
            await stop_remote_run(gateway, str(params["sessionKey"]), run_id, stop_timeout)


class _RunEventQueue:
    """The events of one run, out of all that a gateway sends."""

    def __init__(self, run_id: str, streams: Set[str]) -> None:
        self.queue: asyncio.Queue[RemoteRunEvent | None] = asyncio.Queue()
        """None: the connection was lost and is back."""
        self._run_id, self._streams = run_id, streams

    def on_event(self, event: str, payload: Any) -> None:
        if event == "hello":
            self.queue.put_nowait(None)
        elif event == "gone":
            self.queue.put_nowait(RemoteRunEvent(state="gone", error_message=str(payload)))
        elif event in ("chat", "agent") and type(payload) is dict and payload.get("runId") == self._run_id:
            read = read_struct(payload, RemoteRunEvent)
            # A later event contains the text of a dropped one; an end, or what a tool made, comes only once.
            most = MOST_QUEUED_EVENTS if read.is_partial_text else MOST_QUEUED_IN_ALL * (2 if read.is_end else 1)
            if event == "chat" or read.stream in self._streams:
                self._put(read, most)
        elif event in APPROVAL_EVENTS:
            approval = read_struct(payload, RemoteApproval)
            if approval.id and approval.request.run_id == self._run_id:
                self._put(RemoteRunEvent(approval=approval), MOST_QUEUED_IN_ALL)

    def _put(self, event: RemoteRunEvent, most: int) -> None:
        if self.queue.qsize() < most:
            self.queue.put_nowait(event)


async def stop_remote_run(gateway: MethodGateway, session_key: str, run_id: str, timeout: float) -> None:
    """Have a run stopped whose caller has left; a cancellation meanwhile waits for that."""
    with suppress(OpenClawError):
        await finish(gateway.call("chat.abort", {"sessionKey": session_key, "runId": run_id}, within=timeout))


async def _wait_run(gateway: MethodGateway, run_id: str, seconds: float) -> RunWaitReply:
    params = {"runId": run_id, "timeoutMs": int(seconds * 1000)}
    return read_struct(await gateway.call("agent.wait", params, within=seconds + ADMIT_TIMEOUT), RunWaitReply)


async def _wait_for_turn(gateway: MethodGateway, session_key: str, run_id: str) -> RemoteRunEvent:
    """The end of a run that had to wait: its answer is in the transcript, after the message."""
    end = await _wait_run(gateway, run_id, POLL_INTERVAL)
    while end.status in ("pending", "timeout"):
        await asyncio.sleep(POLL_INTERVAL)
        end = await _wait_run(gateway, run_id, POLL_INTERVAL)
    if end.status != "ok":
        return end.to_event()
    params = {"sessionKey": session_key, "limit": HISTORY_LIMIT}
    history = read_struct(await gateway.call("chat.history", params, within=ADMIT_TIMEOUT), ChatHistoryReply)
    return end.to_event(ChatMessage(content=tuple(_answer_blocks(history.messages, f"{run_id}:user"))))


def _answer_blocks(messages: tuple[ChatMessage, ...], key: str) -> Iterator[ChatBlock]:
    """The content of the answers to the message of this idempotency key; without it, of the last message."""
    mine = [at for at, message in enumerate(messages) if message.idempotency_key == key]
    for message in messages[mine[-1] + 1 :] if mine else messages[-1:]:
        if message.role == "user":
            return
        if message.role == "assistant":
            yield from message.blocks
