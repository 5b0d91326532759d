"""A run's answer back to whoever asked: waited for while we type, filtered, and put into the outbox once."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from ...core import effects
from ...core.agent import Attachment
from ...core.channel import Channel, ChannelError, ChatAddress, OutboundMessage
from ...core.config.channels import ChannelRules
from ...core.config.config import Config
from ...core.mail import InboxEntry, Outbox, OutboxMessage
from ...core.ports import RunExecutor
from ...core.repositories import SessionRepository
from ...core.sessions import Run
from .reply_text import AgentReply, ReplyEffects, ToolSentMessage, filter_reply

RUN_WAIT: Final = 60.0  # seconds of one wait for a run; it is waited for again as long as it lasts
TYPING_INTERVAL: Final = 4.0  # seconds; messengers forget sooner than six
TYPING_LIMIT: Final = 600.0  # seconds: whoever still reads "typing" after ten minutes has stopped believing it
HISTORY_LIMIT: Final = 20  # messages of the transcript among which a run's answer is


class ReplyDependencies(Struct, frozen=True, kw_only=True):
    """What answering needs of the house."""

    outbox: Outbox
    sessions: SessionRepository
    runner: RunExecutor
    config: Callable[[], Config]
    find_channel: Callable[[ChatAddress], Channel | None]
    rules_for: Callable[[ChatAddress], ChannelRules | None]
    send_reply: Callable[[ChatAddress, OutboundMessage, str, str], Awaitable[None]]
    """Put an answer into the outbox: address, letter, key, run id."""


class ReplySender:
    """Answers what arrived once its run is over."""

    def __init__(self, dependencies: ReplyDependencies) -> None:
        self._dependencies = dependencies

    async def send_reply(self, entry: InboxEntry, previous_reply: asyncio.Event | None = None) -> None:
        """`before` is set when the answer to the question before this one is on its way."""
        assert entry.run_id is not None
        heard = entry.message
        run = await self._wait_for_run(entry.run_id, entry.session or "", heard.address)
        if run is None or run.merged_into is not None:
            return  # deleted with its session; or another run answers for it
        letter = await self._build_reply(run, entry)
        if previous_reply is not None:
            await previous_reply.wait()
        if letter is not None:
            await self._dependencies.send_reply(heard.address, letter, f"reply:{run.run_id}", run.run_id)

    async def _wait_for_run(self, run_id: str, session: str, address: ChatAddress) -> Run | None:
        typing = asyncio.get_running_loop().create_task(self._show_typing_indicator(address))
        try:
            while True:
                run = await self._dependencies.runner.wait(run_id, seconds=RUN_WAIT)
                if run is not None:
                    return run
                active = await self._dependencies.sessions.active_runs([session])
                if run_id not in active.get(session, ()):
                    return await self._dependencies.runner.wait(run_id, seconds=0)
        finally:
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)

    async def _show_typing_indicator(self, address: ChatAddress) -> None:
        channel = self._dependencies.find_channel(address)
        if channel is None or "typing" not in channel.abilities.can:
            return
        try:
            async with asyncio.timeout(TYPING_LIMIT):
                while True:
                    await _ignore_channel_errors(channel.set_typing(address, on=True))
                    await asyncio.sleep(TYPING_INTERVAL)
        except TimeoutError:
            return
        finally:
            await _ignore_channel_errors(channel.set_typing(address, on=False))

    # ---- what is said --------------------------------------------------------------------------------------------

    async def _build_reply(self, run: Run, entry: InboxEntry) -> OutboundMessage | None:
        heard = entry.message
        reply = await self._run_reply(run)
        if reply is None:
            return None
        keep = self._dependencies.config().messages.after_tool_send == "dedupe"
        left = filter_reply(reply, heard.address, await self._run_effects(run, heard.address), drop_after_send=not keep)
        if left is None:
            return None
        reply_to = left.reply_to
        rules = self._dependencies.rules_for(heard.address)
        if reply_to == "" or (reply_to is None and rules is not None and rules.reply_to_mode != "off"):
            reply_to = heard.id
        return OutboundMessage(text=left.text, attachments=left.attachments, reply_to=reply_to)

    async def _run_reply(self, run: Run) -> AgentReply | None:
        if run.stop_reason == "restart":  # doing it again might do twice what it did
            return AgentReply(text="⚠️ The gateway restarted before the answer was ready. Please ask again.")
        if run.status == "aborted":
            return None
        if run.status != "ok":
            return AgentReply(text=f"⚠️ Agent failed before reply: {run.error or 'no reason was given'}")
        files = await self._reply_attachments(run) if run.result.media else ()
        return AgentReply(text=run.result.text or "", attachments=files)

    async def _reply_attachments(self, run: Run) -> tuple[Attachment, ...]:
        """The transcript holds the bytes of what the answer shows."""
        page = await self._dependencies.sessions.history(run.session_key, limit=HISTORY_LIMIT)
        for message in reversed(page.messages):
            if message.run_id == run.run_id and message.role == "assistant":
                blocks = message.body.get("content")
                return tuple(_attachment(b) for b in blocks if "mimeType" in b) if isinstance(blocks, list) else ()
        return ()

    async def has_run_message(self, run: Run, address: ChatAddress) -> bool:
        """Whether it has itself written there."""
        return any(sent.address == address for sent in (await self._run_effects(run, address)).sent)

    async def _run_effects(self, run: Run, origin: ChatAddress) -> ReplyEffects:
        """What it sent and planned: by the gateway's own hand, and by programs it started, as they wrote it down."""
        since = run.started_at or run.accepted_at
        sent = tuple(
            _from_outbox_message(mail)
            for mail in await self._dependencies.outbox.list_direct_sends(run.session_key, since=since)
        )
        tools, noted = run.result.tools, run.result.effects
        planned = sum(name == "cron_add" or name.endswith("__cron_add") or name == "cron" for name in tools)
        more = tuple(self._from_effect(one, origin) for one in noted.sent)
        return ReplyEffects(sent=(*sent, *more), cron_adds=planned + len(noted.cron_added))

    def _from_effect(self, sent: effects.SentMessage, origin: ChatAddress) -> ToolSentMessage:
        media = (sent.media_url,) if sent.media_url else ()
        where = ChatAddress(
            channel=sent.provider or origin.channel, account=sent.account or origin.account, to=sent.to or origin.to,
            thread=sent.thread,
        )  # fmt: skip
        channel = self._dependencies.find_channel(where)
        if channel is None:
            return ToolSentMessage(text=sent.text, media=media)
        try:
            where = msgspec.structs.replace(where, to=channel.normalize_target(where.to))
        except ChannelError:
            return ToolSentMessage(text=sent.text, media=media)
        return ToolSentMessage(text=sent.text, media=media, address=where)


async def _ignore_channel_errors(request: Awaitable[None]) -> None:
    """Typing is a courtesy: what goes wrong with it must not reach the answer."""
    try:
        await request
    except ChannelError:
        return


def _from_outbox_message(message: OutboxMessage) -> ToolSentMessage:
    text = "\n".join(letter.text for letter in message.parts)
    media = tuple(a.url for letter in message.parts for a in letter.attachments if a.url)
    return ToolSentMessage(text=text, media=media, address=message.address)


def _attachment(block: Any) -> Attachment:
    data = block.get("data")
    return Attachment(
        mime_type=block["mimeType"],
        name=block.get("fileName"),
        data=base64.b64decode(data) if data else None,
        url=block.get("url"),
    )
