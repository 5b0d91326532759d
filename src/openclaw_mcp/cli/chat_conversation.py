"""The conversation a chat is about, as a gateway keeps it: one of its local channel, or a session of an agent.

Our gateway has a local channel, with its access rules and named conversations. A real OpenClaw has none; there, and for
a named agent, the chat speaks in a session: `chat.send`, `chat.history`, `chat.abort` and `chat` events.
"""

import uuid
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec import Struct

from ..core.chat_commands import COMMAND_HELP, command_word, unknown_command_text
from ..core.chat_messages import ChatMessage
from ..core.errors import BadRequest
from ..core.lenient import read_struct
from ..core.model import Json
from ..net.gateway_client.client import GatewayClient
from ..protocol.gateway_frames import EventFrame
from .chat_questions import REQUESTED, RESOLVED, SessionQuestions
from .gateway_connection import read_reply

READ_LIMIT: Final = 200  # messages that are read at once: more than a chat misses while its gateway restarts
MAX_SESSION_TEXT: Final = 200_000  # characters of one message of a transcript; what is longer is cut
END_GRACE: Final = 30.0  # seconds a gateway has to answer after the time it may wait for a run
REMEMBERED_RUNS: Final = 500  # runs of a conversation that are known; older ones have ended long ago

QueueMode = Literal["collect", "followup", "steer", "interrupt"]
RunOutcome = Literal["ok", "error", "aborted", "merged", "queued"]
"""`merged`: another run replies for it. `queued`: it waits, and will run under another id."""


class ChatFile(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str | None = None
    mime_type: str | None = None
    size: int | None = None


class ShownMessage(Struct, frozen=True, kw_only=True):
    """A message of the conversation. `by_agent`: a reply, or a notice of the gateway."""

    id: str
    text: str
    by_agent: bool
    name: str
    files: tuple[ChatFile, ...] = ()
    is_notice: bool = False
    """Whether it answers no message: a question about a command, or how one ended."""
    run_id: str | None = None
    """The run whose reply it is, or the id of the message that it answers; None: the gateway does not say."""
    is_last: bool = True
    """Whether no further part of the reply comes."""


class SendReceipt(Struct, frozen=True, kw_only=True):
    run_id: str
    message_id: str | None = None
    queue_mode: str | None = None
    """What a message does that comes while the agent works."""


# ---- what may happen in a conversation -------------------------------------------------------------------------------


class ReplyStarted(Struct, frozen=True):
    run_id: str


class ReplyText(Struct, frozen=True):
    """The text of a run's reply so far."""

    run_id: str
    text: str


class ReplyEnded(Struct, frozen=True):
    run_id: str
    outcome: RunOutcome


class MessageAdded(Struct, frozen=True):
    message: ShownMessage


class TypingShown(Struct, frozen=True):
    """Whether the agent is at work for anyone in this conversation."""

    on: bool


class NoticeAdded(Struct, frozen=True):
    """A text of the gateway's that is no message of the conversation: a question about a command, or its end."""

    text: str


ChatUpdate = ReplyStarted | ReplyText | ReplyEnded | MessageAdded | TypingShown | NoticeAdded


class Conversation(Protocol):
    title: str

    @property
    def questions(self) -> SessionQuestions | None:
        """Where `/approve` is answered; None: by the gateway, as a message."""

    async def open(self) -> Sequence[NoticeAdded]:
        """Have the events of this conversation sent on this connection; what waits for an answer. Again after each
        reconnect."""

    async def read(self) -> Sequence[ShownMessage]:
        """Its newest messages, oldest first."""

    async def send(self, text: str, key: str) -> SendReceipt:
        """Send it once, however often it is called with this key."""

    async def stop(self) -> str | SendReceipt:
        """Stop what the agent does; what to show of it, or what was sent, when the gateway replies to that."""

    async def wait_for_end(self, run_id: str, seconds: float) -> Sequence[ChatUpdate]:
        """How a run ended that no event may tell of, with what no message tells of it; nothing while it runs, or for a
        command, which has no run."""

    def refuse(self, text: str) -> str | None:
        """Why a text is not sent, when the gateway itself would not say it."""

    def read_event(self, event: EventFrame) -> Sequence[ChatUpdate]:
        """What an event of the gateway means for this conversation. Raises msgspec.ValidationError."""


def open_conversation(
    client: GatewayClient, name: str, *, agent: str | None = None, sender: str | None = None
) -> Conversation:
    """The conversation of that name on this gateway. Raises BadRequest."""
    if agent is None and "local.send" in gateway_methods(client):
        return LocalConversation(client, name, sender)
    if sender is not None:
        reason = "with --agent you" if agent else "this gateway has no local channel, so you"
        raise BadRequest(f"{reason} write as yourself; leave out --as")
    return SessionConversation(client, name, agent)


def gateway_methods(client: GatewayClient) -> Sequence[str]:
    """The methods that the gateway says it has."""
    return ((client.hello or {}).get("features") or {}).get("methods") or ()


# ---- the local channel -----------------------------------------------------------------------------------------------


class _LocalSender(Struct, frozen=True):
    id: str | None = None
    name: str | None = None


class _LocalMessage(Struct, frozen=True, kw_only=True, rename="camel"):
    """A message as `local.read` and the event `local.message` have it."""

    id: str
    sender: _LocalSender = _LocalSender()
    text: str = ""
    from_me: bool = False
    attachments: tuple[ChatFile, ...] = ()
    extra: Json = {}

    def to_shown(self) -> ShownMessage:
        name = self.sender.name or self.sender.id or "unknown"
        extra = self.extra if self.from_me else {}
        return ShownMessage(
            id=self.id, text=self.text, by_agent=self.from_me, name=name, files=self.attachments,
            is_notice=extra.get("notice") is True, run_id=extra.get("runId"), is_last=extra.get("more") is not True,
        )  # fmt: skip


class _LocalEvent(Struct, frozen=True, kw_only=True, rename="camel"):
    conversation: str | None = None
    kind: str | None = None
    message: _LocalMessage | None = None
    run_id: str | None = None
    on: bool = False


class _LocalPage(Struct, frozen=True):
    messages: list[_LocalMessage] = []


class _LocalSent(Struct, frozen=True, kw_only=True, rename="camel"):
    run_id: str
    message_id: str | None = None
    queue_mode: str | None = None


class LocalConversation:
    questions = None

    def __init__(self, client: GatewayClient, name: str, sender: str | None) -> None:
        self.title = name
        self._client = client
        self._sender = sender
        self._runs: dict[str, None] = {}
        """Runs that answer messages of this conversation, the oldest first."""

    async def open(self) -> Sequence[NoticeAdded]:
        """What waits is among its messages."""
        self.title = (await self._client.call("local.subscribe", {"conversation": self.title}))["conversation"]
        return ()

    async def read(self) -> Sequence[ShownMessage]:
        page = await self._client.call("local.read", {"conversation": self.title, "limit": READ_LIMIT})
        return [message.to_shown() for message in read_reply(page, _LocalPage).messages]

    async def send(self, text: str, key: str) -> SendReceipt:
        sender = {} if self._sender is None else {"sender": {"id": self._sender}}
        params = {"conversation": self.title, "text": text, "idempotencyKey": key, "mentioned": True, **sender}
        sent = read_reply(await self._client.call("local.send", params), _LocalSent)
        _remember(self._runs, sent.run_id)
        return SendReceipt(run_id=sent.run_id, message_id=sent.message_id, queue_mode=sent.queue_mode)

    async def stop(self) -> SendReceipt:
        """As a message: the channel's rules say who may."""
        return await self.send("/stop", str(uuid.uuid4()))

    async def wait_for_end(self, run_id: str, seconds: float) -> Sequence[ChatUpdate]:
        """A message tells of a failure."""
        ended = await _wait_for_end(self._client, run_id, seconds)
        return () if ended.outcome is None else (ReplyEnded(run_id, ended.outcome),)

    def refuse(self, text: str) -> str | None:
        return None

    def read_event(self, event: EventFrame) -> Sequence[ChatUpdate]:
        if event.event == "chat":
            chat = msgspec.convert(event.payload, _ChatEvent)
            return chat.to_updates() if chat.run_id in self._runs else ()
        if event.event != "local.message":
            return ()
        change = msgspec.convert(event.payload, _LocalEvent)
        if change.conversation != self.title:
            return ()
        if change.run_id is not None:
            _remember(self._runs, change.run_id)
        if change.kind == "typing":
            return (TypingShown(change.on),)
        return (MessageAdded(change.message.to_shown()),) if change.kind == "added" and change.message else ()


# ---- a session -------------------------------------------------------------------------------------------------------


class _ChatEvent(Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of a `chat` event that are shown."""

    run_id: str = ""
    session_key: str = ""
    spawned_by: str | None = None
    state: str | None = None
    stop_reason: str | None = None
    error_message: str | None = None
    replace: bool = False
    message: Any = None

    @property
    def text(self) -> str:
        return read_struct(self.message, ChatMessage).text if isinstance(self.message, dict) else ""

    @property
    def outcome(self) -> RunOutcome | None:
        match self.state:
            case "final" if self.message is None and self.stop_reason is None:
                return "queued"
            case "final":
                return "merged" if self.stop_reason == "steered" else "ok"
            case "error":
                return "error"
            case "aborted":
                return "aborted"
        return None

    def to_updates(self) -> list[ChatUpdate]:
        """Without the reply: a channel delivers it as a message."""
        outcome = self.outcome
        if outcome is not None:
            return [ReplyEnded(self.run_id, outcome)]
        if self.state == "delta" and not self.replace:
            return [ReplyText(self.run_id, self.text)]
        return [ReplyStarted(self.run_id)]


class _Position(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str = ""
    seq: int = 0
    run_id: str = ""


class _SessionInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    key: str = ""
    effective_queue_mode: str | None = None


class _Command(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str = ""
    text_aliases: tuple[str, ...] = ()


class _CommandList(Struct, frozen=True):
    commands: tuple[_Command, ...] = ()


class SessionConversation:
    """A session of an agent. Its replies come with the end of their runs."""

    def __init__(self, client: GatewayClient, name: str, agent: str | None) -> None:
        self.title = name if agent is None else f"{agent}, {name}"
        self._client = client
        self._name = name
        self._agent = agent
        self._key = name if agent is None or name.startswith("agent:") else f"agent:{agent}:{name}"
        self._queue_mode: str | None = None
        self._commands: tuple[str, ...] = ()
        self._finished: dict[str, None] = {}
        """Runs whose end was shown, the oldest first."""
        self.questions = SessionQuestions(client)

    async def open(self) -> Sequence[NoticeAdded]:
        if self._agent is not None:
            await self._check_agent(self._agent)
        self._commands = await self._list_commands()
        page = await self._history(1)
        info = read_struct(page.get("sessionInfo") or {}, _SessionInfo)
        self._key, self._queue_mode = info.key or self._key, info.effective_queue_mode
        return [NoticeAdded(text) for text in await self.questions.fetch(self._key)]

    async def _list_commands(self) -> tuple[str, ...]:
        if "commands.list" not in gateway_methods(self._client):
            return tuple(COMMAND_HELP)
        listed = read_struct(await self._client.call("commands.list", {}), _CommandList)
        return tuple(alias for command in listed.commands for alias in command.text_aliases or (f"/{command.name}",))

    async def _check_agent(self, agent: str) -> None:
        listed = await self._client.call("agents.list")
        ids = [each["id"] for each in listed["agents"]]
        if agent not in ids:
            raise BadRequest(f"there is no agent {agent!r}; there are: {', '.join(ids)}")

    async def _history(self, limit: int) -> Json:
        params = {"sessionKey": self._key, "limit": limit, "maxChars": MAX_SESSION_TEXT}
        page: Json = await self._client.call("chat.history", params)
        return page

    async def read(self) -> Sequence[ShownMessage]:
        page = await self._history(READ_LIMIT)
        found = []
        for raw in page.get("messages") or ():
            message, at = read_struct(raw, ChatMessage), read_struct(raw.get("__openclaw") or {}, _Position)
            if message.role in ("user", "assistant") and message.text:
                found.append(_shown(message, id=self._message_id(message, at)))
        return found

    def _message_id(self, message: ChatMessage, at: _Position) -> str:
        """A reply that came with the end of its run has the run's id, and a message that was sent, its key's."""
        if message.role == "user":
            return _sent_id(message.idempotency_key.removesuffix(":user")) if message.idempotency_key else at.id
        return at.run_id if at.run_id in self._finished else at.id

    async def send(self, text: str, key: str) -> SendReceipt:
        if text.startswith("//") and self.refuse(text[1:]) is not None:
            text = text[1:]
        params = {"sessionKey": self._key, "message": text, "idempotencyKey": key}
        sent = await self._client.call("chat.send", params)
        return SendReceipt(run_id=str(sent["runId"]), message_id=_sent_id(key), queue_mode=self._queue_mode)

    async def stop(self) -> str:
        stopped = await self._client.call("chat.abort", {"sessionKey": self._key})
        return "Stopped." if stopped.get("aborted") else "Nothing was going on."

    async def wait_for_end(self, run_id: str, seconds: float) -> Sequence[ChatUpdate]:
        ended = await _wait_for_end(self._client, run_id, seconds)
        if ended.outcome is None:
            return ()
        if ended.outcome != "error":
            return (ReplyEnded(run_id, ended.outcome),)
        _remember(self._finished, run_id)
        return (MessageAdded(_failure(run_id, ended.error)), ReplyEnded(run_id, ended.outcome))

    def refuse(self, text: str) -> str | None:
        name = command_word(text)
        return None if name is None or name in self._commands else unknown_command_text(name, self._commands)

    def read_event(self, event: EventFrame) -> Sequence[ChatUpdate]:
        if event.event in (REQUESTED, RESOLVED):
            return [NoticeAdded(text) for text in self.questions.read_event(event, self._key)]
        if event.event != "chat":
            return ()
        chat = msgspec.convert(event.payload, _ChatEvent)
        if chat.session_key != self._key or chat.spawned_by or chat.run_id in self._finished:
            return ()
        updates = chat.to_updates()
        if not isinstance(updates[0], ReplyEnded):
            return updates
        _remember(self._finished, chat.run_id)
        if chat.state == "error":
            return [MessageAdded(_failure(chat.run_id, chat.error_message)), *updates]
        if not chat.text or chat.state == "aborted":
            return updates
        return [MessageAdded(ShownMessage(id=chat.run_id, text=chat.text, by_agent=True, name="agent")), *updates]


class _RunEnd(Struct, frozen=True):
    """What `agent.wait` answers."""

    status: str = ""
    error: str | None = None

    @property
    def outcome(self) -> RunOutcome | None:
        if self.status == "error":
            return "aborted" if self.error == "aborted" else "error"
        return "ok" if self.status == "ok" else None


async def _wait_for_end(client: GatewayClient, run_id: str, seconds: float) -> _RunEnd:
    params = {"runId": run_id, "timeoutMs": int(seconds * 1000)}
    return read_struct(await client.call("agent.wait", params, within=seconds + END_GRACE), _RunEnd)


def _failure(run_id: str, error: str | None) -> ShownMessage:
    text = f"⚠️ {(error or 'the agent failed').removeprefix('⚠️ ')}"
    return ShownMessage(id=run_id, text=text, by_agent=True, name="agent", run_id=run_id)


def _sent_id(key: str) -> str:
    return f"{key}:user"


def _remember(runs: dict[str, None], run_id: str) -> None:
    runs[run_id] = None
    if len(runs) > REMEMBERED_RUNS:
        del runs[next(iter(runs))]


def _shown(message: ChatMessage, *, id: str) -> ShownMessage:
    files = tuple(ChatFile(name=each.name, mime_type=each.mime_type) for each in message.media)
    by_agent = message.role == "assistant"
    return ShownMessage(id=id, text=message.text, by_agent=by_agent, name="agent" if by_agent else "user", files=files)
