"""A run's answer back to whoever asked: waited for while we type, filtered, and put into the outbox once."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from ...core import effects
from ...core.agent import Attachment
from ...core.channel import Address, Channel, ChannelError, Letter
from ...core.mail import Arrival, Mail, Outbox
from ...core.model import Json
from ...core.ports import Runner
from ...core.repositories import SessionBook
from ...core.sessions import Run
from .reply_text import Effects, Reply, Sent, filtered
from .settings import Rules

WAIT: Final = 60.0  # seconds of one wait for a run; it is waited for again as long as it lasts
TYPING_EVERY: Final = 4.0  # seconds; messengers forget sooner than six
TYPING_MOST: Final = 600.0  # seconds: whoever still reads "typing" after ten minutes has stopped believing it
LOOK_BACK: Final = 20  # messages of the transcript among which a run's answer is


class Deps(Struct, frozen=True, kw_only=True):
    """What answering needs of the house."""

    outbox: Outbox
    sessions: SessionBook
    runner: Runner
    config: Callable[[], Json]
    find: Callable[[Address], Channel | None]
    rules: Callable[[Address], Rules | None]
    reply: Callable[[Address, Letter, str, str], Awaitable[None]]
    """Put an answer into the outbox: address, letter, key, run id."""


class Answers:
    """Answers what arrived once its run is over."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    async def answer(self, arrival: Arrival, before: asyncio.Event | None = None) -> None:
        """`before` is set when the answer to the question before this one is on its way."""
        assert arrival.run_id is not None
        heard = arrival.heard
        run = await self._ended(arrival.run_id, arrival.session or "", heard.address)
        if run is None or run.merged_into is not None:
            return  # deleted with its session; or another run answers for it
        letter = await self._letter(run, arrival)
        if before is not None:
            await before.wait()
        if letter is not None:
            await self._deps.reply(heard.address, letter, f"reply:{run.run_id}", run.run_id)

    async def _ended(self, run_id: str, session: str, address: Address) -> Run | None:
        typing = asyncio.get_running_loop().create_task(self._typing(address))
        try:
            while True:
                run = await self._deps.runner.wait(run_id, seconds=WAIT)
                if run is not None:
                    return run
                active = await self._deps.sessions.active([session])
                if run_id not in active.get(session, ()):
                    return await self._deps.runner.wait(run_id, seconds=0)
        finally:
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)

    async def _typing(self, address: Address) -> None:
        channel = self._deps.find(address)
        if channel is None or "typing" not in channel.abilities.can:
            return
        try:
            async with asyncio.timeout(TYPING_MOST):
                while True:
                    await _politely(channel.typing(address, on=True))
                    await asyncio.sleep(TYPING_EVERY)
        except TimeoutError:
            return
        finally:
            await _politely(channel.typing(address, on=False))

    # ---- what is said --------------------------------------------------------------------------------------------

    async def _letter(self, run: Run, arrival: Arrival) -> Letter | None:
        heard = arrival.heard
        reply = await self._said(run)
        if reply is None:
            return None
        messages = self._deps.config().get("messages", {})
        keep = messages.get("afterToolSend", "drop") == "dedupe"
        left = filtered(reply, heard.address, await self._effects(run, heard.address), drop_after_send=not keep)
        if left is None:
            return None
        reply_to = left.reply_to
        rules = self._deps.rules(heard.address)
        if reply_to == "" or (reply_to is None and rules is not None and rules.reply_to_mode != "off"):
            reply_to = heard.id
        return Letter(text=left.text, attachments=left.attachments, reply_to=reply_to)

    async def _said(self, run: Run) -> Reply | None:
        if run.stop_reason == "restart":  # doing it again might do twice what it did
            return Reply(text="⚠️ The gateway restarted before the answer was ready. Please ask again.")
        if run.status == "aborted":
            return None
        if run.status != "ok":
            return Reply(text=f"⚠️ Agent failed before reply: {run.error or 'no reason was given'}")
        result = run.result or {}
        files = await self._files(run) if result.get("media") else ()
        return Reply(text=str(result.get("text") or ""), attachments=files)

    async def _files(self, run: Run) -> tuple[Attachment, ...]:
        """The transcript holds the bytes of what the answer shows."""
        page = await self._deps.sessions.history(run.session_key, limit=LOOK_BACK)
        for message in reversed(page.messages):
            if message.run_id == run.run_id and message.role == "assistant":
                blocks = message.body.get("content")
                return tuple(_attachment(b) for b in blocks if "mimeType" in b) if isinstance(blocks, list) else ()
        return ()

    async def spoke(self, run: Run, address: Address) -> bool:
        """Whether it has itself written there."""
        return any(sent.address == address for sent in (await self._effects(run, address)).sent)

    async def _effects(self, run: Run, origin: Address) -> Effects:
        """What it sent and planned: by the gateway's own hand, and by programs it started, as they wrote it down."""
        since = run.started_at or run.accepted_at
        sent = tuple(_sent(mail) for mail in await self._deps.outbox.said(run.session_key, since=since))
        tools = (run.result or {}).get("tools", [])
        planned = sum(name == "cron_add" or name.endswith("__cron_add") or name == "cron" for name in tools)
        noted = msgspec.convert((run.result or {}).get("effects", {}), effects.Effects)
        more = tuple(self._noted(one, origin) for one in noted.sent)
        return Effects(sent=(*sent, *more), cron_adds=planned + len(noted.cron_added))

    def _noted(self, sent: effects.Sent, origin: Address) -> Sent:
        media = (sent.media_url,) if sent.media_url else ()
        where = Address(
            channel=sent.provider or origin.channel, account=sent.account or origin.account, to=sent.to or origin.to,
            thread=sent.thread,
        )  # fmt: skip
        channel = self._deps.find(where)
        if channel is None:
            return Sent(text=sent.text, media=media)
        try:
            where = msgspec.structs.replace(where, to=channel.canonical(where.to))
        except ChannelError:
            return Sent(text=sent.text, media=media)
        return Sent(text=sent.text, media=media, address=where)


async def _politely(saying: Awaitable[None]) -> None:
    """Typing is a courtesy: what goes wrong with it must not reach the answer."""
    try:
        await saying
    except ChannelError:
        return


def _sent(mail: Mail) -> Sent:
    text = "\n".join(letter.text for letter in mail.letters)
    media = tuple(a.url for letter in mail.letters for a in letter.attachments if a.url)
    return Sent(text=text, media=media, address=mail.address)


def _attachment(block: Any) -> Attachment:
    data = block.get("data")
    return Attachment(
        mime_type=block["mimeType"],
        name=block.get("fileName"),
        data=base64.b64decode(data) if data else None,
        url=block.get("url"),
    )
