"""What of an answer is sent: tags read, silence kept, nothing said twice. Pure."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from ...core.agent import Attachment
from ...core.channel import ChatAddress

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


class ToolSentMessage(Struct, frozen=True, kw_only=True):
    """Something a tool sent while the run went. `address` None: it is not known where to."""

    text: str = ""
    media: tuple[str, ...] = ()
    address: ChatAddress | None = None


class ReplyEffects(Struct, frozen=True, kw_only=True):
    """What a run did besides answering."""

    sent: tuple[ToolSentMessage, ...] = ()
    cron_adds: int = 0


class AgentReply(Struct, frozen=True, kw_only=True):
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    reply_to: str | None = None
    """A message it answers; an empty text stands for the one that was asked with."""


def filter_reply(
    reply: AgentReply, origin: ChatAddress, effects: ReplyEffects, *, drop_after_send: bool = True
) -> AgentReply | None:
    """What is left to send to the conversation the question came from; None = nothing.

    A tool that sent to this very conversation has answered: with `drop_after_send` the rest is dropped, else only what
    repeats it. A send elsewhere takes nothing away.
    """
    reply = _parse_reply_tag(reply)
    here = [sent for sent in effects.sent if sent.address == origin]
    if here and drop_after_send:
        return None
    if here or not any(sent.address is not None for sent in effects.sent):
        reply = _drop_duplicates(reply, here or list(effects.sent))
    text = _strip_silent_marker(reply.text)
    if effects.cron_adds == 0 and REMINDER_PROMISE.search(text):
        text = f"{text}\n\n{NO_REMINDER_NOTE}"
    reply = msgspec.structs.replace(reply, text=text)
    return reply if reply.text or reply.attachments else None


def _parse_reply_tag(reply: AgentReply) -> AgentReply:
    """A tag at the very beginning says which message is answered."""
    found = REPLY_TAG.match(reply.text)
    if found is None:
        return reply
    return msgspec.structs.replace(reply, text=reply.text[found.end() :], reply_to=found["id"] or "")


def _strip_silent_marker(text: str) -> str:
    text = text.strip()
    if text == SILENT_REPLY:
        return ""
    lines = text.splitlines()
    if lines and lines[-1].strip() == SILENT_REPLY:
        return "\n".join(lines[:-1]).strip()
    return text


def _drop_duplicates(reply: AgentReply, sent: Sequence[ToolSentMessage]) -> AgentReply:
    said = [plain for one in sent if (plain := _normalize_text(one.text))]
    media = {_normalize_url(url) for one in sent for url in one.media}
    mine = _normalize_text(reply.text)
    repeats = len(mine) >= MIN_DUPLICATE_LENGTH and any(
        len(other) >= MIN_DUPLICATE_LENGTH and (mine in other or other in mine) for other in said
    )
    left = tuple(a for a in reply.attachments if not (a.url and _normalize_url(a.url) in media))
    return msgspec.structs.replace(reply, text="" if repeats else reply.text, attachments=left)


def _normalize_text(text: str) -> str:
    """For comparing: lower case, no pictures, single spaces."""
    letters = "".join(c for c in text.lower() if unicodedata.category(c) not in ("So", "Sk", "Cf", "Mn"))
    return " ".join(letters.split())


def _normalize_url(url: str) -> str:
    return unquote(url.removeprefix("file://"))
