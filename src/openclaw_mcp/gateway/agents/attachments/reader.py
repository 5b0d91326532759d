"""Reads what comes with a message: text out of documents and speech, a line about what can't be read."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from ....core.agent import Attachment, Turn
from ....core.model import Json
from . import pdf, plain_text, transcription

logger = logging.getLogger(__name__)

KEPT: Final = 64  # files whose text is remembered: a conversation comes back to them turn after turn
AT_ONCE: Final = 2  # documents and recordings read at the same time
RECALLED_TEXT: Final = 20_000  # characters of a file of an earlier message that go with it

TEXT: Final = ("text/", "application/json", "application/xml", "application/x-yaml", "application/javascript")

Fetch = Callable[[str, str], Awaitable[bytes | None]]
"""The bytes of an attachment, by session key and SHA-256."""


class Reader:
    """Prepares turns. `settings` is the config's `tools.media`."""

    def __init__(self, settings: Callable[[], Json], fetch: Fetch) -> None:
        self._settings = settings
        self._fetch = fetch
        self._read: OrderedDict[str, str] = OrderedDict()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def prepare(self, turn: Turn, takes: tuple[str, ...]) -> Turn:
        """The turn with the attachments the runtime sees, the others as words after the prompt; its memory likewise."""
        seen = tuple(item for item in turn.attachments if item.mime_type.startswith(takes))
        unseen = [item for item in turn.attachments if item not in seen]
        told = [await self._told(item) for item in unseen]
        prompt = "\n\n".join([turn.prompt, *told]) if told else turn.prompt
        recall = turn.recall

        async def remembering(most: int) -> tuple[Json, ...]:
            bodies = await recall(most) if recall is not None else ()
            return tuple(
                [
                    await self._recalled(turn.session_key, body, takes) if body.get("attachments") else body
                    for body in bodies
                ]
            )

        return msgspec.structs.replace(
            turn, prompt=prompt, attachments=seen, recall=remembering if recall is not None else None
        )

    async def _recalled(self, session: str, body: Json, takes: tuple[str, ...]) -> Json:
        """A message of the transcript, with what its files said."""
        stored = [item for item in body["attachments"] if not str(item.get("mimeType", "")).startswith(takes)]
        if not stored:
            return body
        told = []
        for item in stored:
            kind, name, digest = str(item.get("mimeType", "")), item.get("fileName"), str(item.get("sha256", ""))
            if digest not in self._read:
                data = await self._fetch(session, digest)
                told.append(await self._told(Attachment(mime_type=kind, name=name, data=data), RECALLED_TEXT))
            else:
                told.append(self._framed(Attachment(mime_type=kind, name=name), self._read[digest], RECALLED_TEXT))
        return {**body, "content": [*_blocks(body), *({"type": "text", "text": text} for text in told)]}

    async def _told(self, item: Attachment, most: int = plain_text.MOST_TEXT) -> str:
        if item.data is None:
            return f"[attached: {_name(item)} ({item.mime_type}); its contents are not here]"
        digest = hashlib.sha256(item.data).hexdigest()
        text = self._read.get(digest)
        if text is None:
            try:
                async with self._slots:
                    text = await self._text(item, item.data)
            except (pdf.Unreadable, transcription.NotTranscribed) as exc:
                return _unread(item, item.data, str(exc))
            except Exception:  # whatever a file is, it must not end this turn and every later one that recalls it
                logger.exception("a file of type %s can't be read", item.mime_type)
                return _unread(item, item.data, "an internal error, see the gateway's log")
            self._read[digest] = text
            while len(self._read) > KEPT:
                self._read.popitem(last=False)
        return self._framed(item, text, most)

    def _framed(self, item: Attachment, text: str, most: int) -> str:
        # The words of a file must not be able to end the frame they stand in and speak as the person.
        inside = plain_text.cut(text, most).replace("</file", "<\u200b/file")
        return f'<file name="{_quoted(_name(item))}" type="{_quoted(item.mime_type)}">\n{inside}\n</file>'

    async def _text(self, item: Attachment, data: bytes) -> str:
        kind = item.mime_type
        if kind == "application/pdf":
            return await pdf.text(data)
        if kind in ("text/html", "application/xhtml+xml"):
            from . import html  # here for start-up: most messages carry no page

            return await asyncio.to_thread(html.text, data)
        if kind.startswith(TEXT) or kind.endswith(("+json", "+xml")):
            return plain_text.decoded(data)
        if kind.startswith("audio/"):
            audio = self._settings().get("audio", {})
            models = audio.get("models", []) if audio.get("enabled", True) else []
            return await transcription.transcript(item, data, models)
        raise pdf.Unreadable("files of this kind are kept, not opened")


def _name(item: Attachment) -> str:
    return item.name or f"a file without a name ({item.kind})"


def _unread(item: Attachment, data: bytes, why: str) -> str:
    return f"[attached: {_name(item)} ({item.mime_type}, {len(data)} bytes); it was not read: {why}]"


def _blocks(body: Json) -> list[Json]:
    content = body.get("content", [])
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _quoted(text: str) -> str:
    """Fit to stand between quotation marks. Not `html.escape`, which brings a table of every entity there is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
