"""A run's reply back to its conversation: awaited while we show typing, filtered, and put into the outbox once."""

import asyncio
import base64
import re
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from ...core.agent import Attachment
from ...core.channel import ChannelError, ChatAddress, InboundMessage, OutboundMessage
from ...core.config.config import Config
from ...core.effects import SentMessage
from ...core.mail import Outbox
from ...core.ports import RunExecutor
from ...core.repositories import SessionRepository
from ...core.sessions import Run
from ...net.tasks import Tasks
from .accounts import ChannelAccounts
from .message_sender import MessageSender

RUN_WAIT: Final = 60.0  # seconds of one wait for a run; repeated as long as the run lasts
TYPING_INTERVAL: Final = 4.0  # seconds; messengers forget sooner than six
TYPING_LIMIT: Final = 600.0  # seconds: after ten minutes of "typing" no person believes it
HISTORY_LIMIT: Final = 20  # messages of the transcript among which a run's reply is
SILENT_REPLY: Final = "NO_REPLY"
MIN_DUPLICATE_LENGTH: Final = 10  # characters: shorter texts are alike by chance
REPLY_TAG: Final = re.compile(
    r"\s*\[\[\s*(?:rc:reply|reply_to_current|reply_to)(?:\s*:\s*(?P<id>[^\]\s]+))?\s*\]\]\s*", re.IGNORECASE
)
REMINDER_PROMISE: Final = re.compile(
    r"\bI(?:'|\u2019)?(?:ll| will| am going to|'m going to)\s+(?:make sure to\s+)?"
    r"(?:remind|ping|nudge|alert|notify)\s+you\b"
    r"|\b(?:reminder|alarm)\s+(?:is\s+|has been\s+)?(?:set|scheduled|created)\b"
    r"|\bI(?:'|\u2019)?(?:ve| have)\s+(?:set|scheduled|created)\s+(?:up\s+)?(?:a|the|your)\s+(?:reminder|alarm)\b"
    r"|\bI(?:'|\u2019)?ll\s+(?:check back|follow up|get back to you)\b.{0,40}\b(?:in|at|on|tomorrow|tonight|later)\b",
    re.IGNORECASE | re.DOTALL,
)
NO_REMINDER_NOTE: Final = "Note: no reminder was scheduled in this turn, so nothing will come by itself."


class PendingReply(Struct, frozen=True, kw_only=True):
    """An inbox entry whose message was submitted to an agent as `run_id`."""

    entry_id: int
    message: InboundMessage
    run_id: str
    session: str


class ToolSentMessage(Struct, frozen=True, kw_only=True):
    """A message that a tool sent during the run. `address` None: its conversation is unknown."""

    text: str = ""
    media: tuple[str, ...] = ()
    address: ChatAddress | None = None


class ReplyEffects(Struct, frozen=True, kw_only=True):
    """What a run sent and scheduled besides its reply."""

    sent: tuple[ToolSentMessage, ...] = ()
    cron_adds: int = 0


class ReplySender(Struct, frozen=True, kw_only=True):
    """Sends the reply of a run once the run has ended."""

    outbox: Outbox
    sessions: SessionRepository
    runner: RunExecutor
    accounts: ChannelAccounts
    sender: MessageSender
    config: Callable[[], Config]

    async def send(self, pending: PendingReply, after: asyncio.Event | None) -> None:
        """Returns when the reply is in the outbox. `after` is set when the session's reply before this one is."""
        async with Tasks("replies") as tasks:
            tasks.spawn(self._show_typing(pending.message.address), name="typing indicator")
            run = await self._wait_for_run(pending)
        if run is None or run.merged_into is not None:
            return  # deleted with its session; or another run replies for it
        reply = await self._build_reply(run, pending.message)
        if after is not None:
            await after.wait()
        if reply is not None:
            await self.sender.send_reply(pending.message.address, reply, run_id=run.run_id)

    async def has_run_message(self, run: Run, address: ChatAddress) -> bool:
        """Whether the run has itself written to that conversation."""
        return any(sent.address == address for sent in (await self._run_effects(run, address)).sent)

    async def _wait_for_run(self, pending: PendingReply) -> Run | None:
        while True:
            run = await self.runner.wait(pending.run_id, seconds=RUN_WAIT)
            if run is not None:
                return run
            active = await self.sessions.active_runs([pending.session])
            if pending.run_id not in active.get(pending.session, ()):
                return await self.runner.wait(pending.run_id, seconds=0)

    async def _show_typing(self, address: ChatAddress) -> None:
        channel = self.accounts.find_channel(address)
        if channel is None or "typing" not in channel.abilities.can:
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(TYPING_LIMIT):
                    while True:
                        await _ignore_channel_errors(channel.set_typing(address, on=True))
                        await asyncio.sleep(TYPING_INTERVAL)
        finally:
            await _ignore_channel_errors(channel.set_typing(address, on=False))

    # ---- the reply -----------------------------------------------------------------------------------------------

    async def _build_reply(self, run: Run, message: InboundMessage) -> OutboundMessage | None:
        reply = await self._run_reply(run)
        if reply is None:
            return None
        effects = await self._run_effects(run, message.address)
        drop = self.config().messages.after_tool_send != "dedupe"
        left = filter_reply(reply, message.address, effects, drop_after_send=drop)
        if left is None:
            return None
        rules = self.accounts.rules_for(message.address)
        if left.reply_to == "" or (left.reply_to is None and rules is not None and rules.reply_to_mode != "off"):
            return msgspec.structs.replace(left, reply_to=message.id)
        return left

    async def _run_reply(self, run: Run) -> OutboundMessage | None:
        if run.stop_reason == "restart":  # running it again might repeat what it did
            return OutboundMessage(text="⚠️ The gateway restarted before the answer was ready. Please ask again.")
        if run.status == "aborted":
            return None
        if run.status != "ok":
            return OutboundMessage(text=f"⚠️ Agent failed before reply: {run.error or 'no reason was given'}")
        result = run.result
        files = await self._reply_attachments(run) if result.media else ()
        return OutboundMessage(text=result.text or "", attachments=files)

    async def _reply_attachments(self, run: Run) -> tuple[Attachment, ...]:
        """The transcript holds the bytes of the reply's files."""
        page = await self.sessions.history(run.session_key, limit=HISTORY_LIMIT)
        for message in reversed(page.messages):
            if message.run_id == run.run_id and message.role == "assistant":
                blocks = message.body.get("content")
                return tuple(_attachment(b) for b in blocks if "mimeType" in b) if isinstance(blocks, list) else ()
        return ()

    async def _run_effects(self, run: Run, origin: ChatAddress) -> ReplyEffects:
        """What the run sent and scheduled: through the gateway itself, and through programs it started, as they
        recorded it."""
        since = run.started_at or run.accepted_at
        direct = tuple(
            ToolSentMessage(
                text="\n".join(part.text for part in message.parts),
                media=tuple(a.url for part in message.parts for a in part.attachments if a.url),
                address=message.address,
            )
            for message in await self.outbox.list_direct_sends(run.session_key, since=since)
        )
        result = run.result
        scheduled = sum(name in ("cron", "cron_add") or name.endswith("__cron_add") for name in result.tools)
        recorded = tuple(self._from_effect(sent, origin) for sent in result.effects.sent)
        return ReplyEffects(sent=(*direct, *recorded), cron_adds=scheduled + len(result.effects.cron_added))

    def _from_effect(self, sent: SentMessage, origin: ChatAddress) -> ToolSentMessage:
        found = ToolSentMessage(text=sent.text, media=(sent.media_url,) if sent.media_url else ())
        address = ChatAddress(
            channel=sent.provider or origin.channel, account=sent.account or origin.account, to=sent.to or origin.to,
            thread=sent.thread,
        )  # fmt: skip
        channel = self.accounts.find_channel(address)
        if channel is None:
            return found
        try:
            address = msgspec.structs.replace(address, to=channel.normalize_target(address.to))
        except ChannelError:
            return found
        return msgspec.structs.replace(found, address=address)


async def _ignore_channel_errors(request: Awaitable[None]) -> None:
    """The typing indicator is optional: a channel that fails to show it is no failure of the reply."""
    with suppress(ChannelError):
        await request


def _attachment(block: Any) -> Attachment:
    data = block.get("data")
    return Attachment(
        mime_type=block["mimeType"],
        name=block.get("fileName"),
        data=base64.b64decode(data) if data else None,
        url=block.get("url"),
    )


def filter_reply(
    reply: OutboundMessage, origin: ChatAddress, effects: ReplyEffects, *, drop_after_send: bool = True
) -> OutboundMessage | None:
    """The part of the reply to send to `origin`, the conversation of the question; None when nothing is left.

    A tool that sent to `origin` has answered: with `drop_after_send` the reply is dropped, else only what repeats the
    tool's message. Messages sent elsewhere take nothing away.
    """
    reply = _parse_reply_tag(reply)
    sent_here = [sent for sent in effects.sent if sent.address == origin]
    if sent_here and drop_after_send:
        return None
    if sent_here or not any(sent.address is not None for sent in effects.sent):
        reply = _drop_duplicates(reply, sent_here or effects.sent)
    text = _strip_silent_marker(reply.text)
    if effects.cron_adds == 0 and REMINDER_PROMISE.search(text):
        text = f"{text}\n\n{NO_REMINDER_NOTE}"
    reply = msgspec.structs.replace(reply, text=text)
    return reply if reply.text or reply.attachments else None


def _parse_reply_tag(reply: OutboundMessage) -> OutboundMessage:
    """A tag at the very beginning names the message that is answered; an empty id is the one that started the run."""
    found = REPLY_TAG.match(reply.text)
    if found is None:
        return reply
    return msgspec.structs.replace(reply, text=reply.text[found.end() :], reply_to=found["id"] or "")


def _strip_silent_marker(text: str) -> str:
    lines = text.strip().splitlines()
    is_silent = bool(lines) and lines[-1].strip() == SILENT_REPLY
    return ("\n".join(lines[:-1]) if is_silent else text).strip()


def _drop_duplicates(reply: OutboundMessage, sent: Sequence[ToolSentMessage]) -> OutboundMessage:
    texts = [_normalize_text(each.text) for each in sent]
    media = {_normalize_url(url) for each in sent for url in each.media}
    own = _normalize_text(reply.text)
    repeats = len(own) >= MIN_DUPLICATE_LENGTH and any(
        len(text) >= MIN_DUPLICATE_LENGTH and (own in text or text in own) for text in texts
    )
    left = tuple(a for a in reply.attachments if not (a.url and _normalize_url(a.url) in media))
    return msgspec.structs.replace(reply, text="" if repeats else reply.text, attachments=left)


def _normalize_text(text: str) -> str:
    """For comparing: lower case, no emoji, single spaces."""
    letters = "".join(c for c in text.lower() if unicodedata.category(c) not in ("So", "Sk", "Cf", "Mn"))
    return " ".join(letters.split())


def _normalize_url(url: str) -> str:
    return unquote(url.removeprefix("file://"))
