"""Reads attachments: text from documents and speech, a line about what can't be read."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from ....core.agent import Attachment, Turn
from ....core.chat_messages import ChatBlock, ChatMessage
from ....core.config.tools import MediaSettings
from ....core.text_encoding import decode_text
from . import pdf, plain_text, transcription

logger = logging.getLogger(__name__)

CACHED_TEXTS: Final = 64  # files whose text is kept: each later turn of a conversation needs it again
CONCURRENT_READS: Final = 2  # documents and recordings read at the same time
RECALLED_TEXT: Final = 20_000  # characters of a file of an earlier message

TEXT_TYPES: Final = ("text/", "application/json", "application/xml", "application/x-yaml", "application/javascript")

FetchAttachment = Callable[[str, str], Awaitable[bytes | None]]
"""The bytes of an attachment, by session key and SHA-256."""


class AttachmentReader:
    """Prepares turns. `settings` is the config's `tools.media`."""

    def __init__(self, settings: Callable[[], MediaSettings], fetch: FetchAttachment) -> None:
        self._settings = settings
        self._fetch = fetch
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._slots = asyncio.Semaphore(CONCURRENT_READS)

    async def prepare(self, turn: Turn, accepted_types: tuple[str, ...]) -> Turn:
        """The turn with the attachments the runtime can read; the others are text after the prompt, in history too."""
        seen = tuple(item for item in turn.attachments if item.mime_type.startswith(accepted_types))
        unseen = [item for item in turn.attachments if item not in seen]
        prompt = "\n\n".join([turn.prompt, *[await self._describe(item) for item in unseen]])
        turn = msgspec.structs.replace(turn, prompt=prompt, attachments=seen)
        if (load := turn.load_history) is None:
            return turn

        async def load_history(most: int) -> tuple[ChatMessage, ...]:
            messages = await load(most)
            return tuple([await self._add_file_texts(turn.session_key, each, accepted_types) for each in messages])

        return msgspec.structs.replace(turn, load_history=load_history)

    async def _add_file_texts(self, session: str, message: ChatMessage, accepted_types: tuple[str, ...]) -> ChatMessage:
        """A message of the transcript, with the texts of its files."""
        texts = []
        for file in message.attachments or ():
            if file.mime_type.startswith(accepted_types):
                continue
            item = Attachment(mime_type=file.mime_type, name=file.file_name)
            if file.sha256 in self._texts:
                texts.append(self._wrap_text(item, self._texts[file.sha256], RECALLED_TEXT))
            else:
                data = await self._fetch(session, file.sha256)
                texts.append(await self._describe(msgspec.structs.replace(item, data=data), RECALLED_TEXT))
        blocks = [ChatBlock(type="text", text=text) for text in texts]
        return msgspec.structs.replace(message, content=(*message.blocks, *blocks)) if texts else message

    async def _describe(self, item: Attachment, most: int = plain_text.MAX_TEXT) -> str:
        if item.data is None:
            return f"[attached: {_display_name(item)} ({item.mime_type}); its contents are not here]"
        digest = hashlib.sha256(item.data).hexdigest()
        text = self._texts.get(digest)
        if text is None:
            try:
                async with self._slots:
                    text = await self._extract_text(item, item.data)
            except (pdf.UnreadableFile, transcription.TranscriptionFailed) as exc:
                return _unread_note(item, item.data, str(exc))
            except Exception:  # no file may end this turn, and every later one that loads it
                logger.exception("attachments: a file of type %s can't be read", item.mime_type)
                return _unread_note(item, item.data, "an internal error, see the gateway's log")
            self._texts[digest] = text
            while len(self._texts) > CACHED_TEXTS:
                self._texts.popitem(last=False)
        return self._wrap_text(item, text, most)

    def _wrap_text(self, item: Attachment, text: str, most: int) -> str:
        # The text of a file must not end the element around it and pass for the person's own.
        inside = plain_text.truncate_text(text, most).replace("</file", "<\u200b/file")
        return f'<file name="{_escape(_display_name(item))}" type="{_escape(item.mime_type)}">\n{inside}\n</file>'

    async def _extract_text(self, item: Attachment, data: bytes) -> str:
        kind = item.mime_type
        if kind == "application/pdf":
            return await pdf.extract_text(data)
        if kind in ("text/html", "application/xhtml+xml"):
            from . import html  # here for start-up: most messages carry no page

            return await asyncio.to_thread(html.extract_text, data)
        if kind.startswith(TEXT_TYPES) or kind.endswith(("+json", "+xml")):
            return decode_text(data)
        if kind.startswith("audio/"):
            audio = self._settings().audio
            return await transcription.transcribe(item, data, audio.models if audio.enabled else [])
        raise pdf.UnreadableFile("files of this kind are stored, not opened")


def _display_name(item: Attachment) -> str:
    return item.name or f"a file without a name ({item.kind})"


def _unread_note(item: Attachment, data: bytes, reason: str) -> str:
    return f"[attached: {_display_name(item)} ({item.mime_type}, {len(data)} bytes); it was not read: {reason}]"


def _escape(text: str) -> str:
    """Safe in a quoted attribute. Not `html.escape`, whose module loads a table of all entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
