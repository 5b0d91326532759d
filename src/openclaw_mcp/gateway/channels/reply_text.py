"""What of an answer is sent: tags read, silence kept, nothing said twice. Pure."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from ...core.agent import Attachment
from ...core.channel import Address

SILENT: Final = "NO_REPLY"
LEAST_SAME: Final = 10  # characters: shorter texts are alike by chance
TAG: Final = re.compile(
    r"\s*\[\[\s*(?:rc:reply|reply_to_current|reply_to)(?:\s*:\s*(?P<id>[^\]\s]+))?\s*\]\]\s*", re.IGNORECASE
)
PROMISE: Final = re.compile(
    r"\bI(?:'|\u2019)?(?:ll| will| am going to|'m going to)\s+(?:make sure to\s+)?"
    r"(?:remind|ping|nudge|alert|notify)\s+you\b"
    r"|\b(?:reminder|alarm)\s+(?:is\s+|has been\s+)?(?:set|scheduled|created)\b"
    r"|\bI(?:'|\u2019)?(?:ve| have)\s+(?:set|scheduled|created)\s+(?:up\s+)?(?:a|the|your)\s+(?:reminder|alarm)\b"
    r"|\bI(?:'|\u2019)?ll\s+(?:check back|follow up|get back to you)\b.{0,40}\b(?:in|at|on|tomorrow|tonight|later)\b",
    re.IGNORECASE | re.DOTALL,
)
NOT_SCHEDULED: Final = "Note: no reminder was scheduled in this turn, so nothing will come by itself."


class Sent(Struct, frozen=True, kw_only=True):
    """Something a tool sent while the run went. `address` None: it is not known where to."""

    text: str = ""
    media: tuple[str, ...] = ()
    address: Address | None = None


class Effects(Struct, frozen=True, kw_only=True):
    """What a run did besides answering."""

    sent: tuple[Sent, ...] = ()
    cron_adds: int = 0


class Reply(Struct, frozen=True, kw_only=True):
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    reply_to: str | None = None
    """A message it answers; an empty text stands for the one that was asked with."""


def filtered(reply: Reply, origin: Address, effects: Effects, *, drop_after_send: bool = True) -> Reply | None:
    """What is left to send to the conversation the question came from; None = nothing.

    A tool that sent to this very conversation has answered: with `drop_after_send` the rest is dropped, else only what
    repeats it. A send elsewhere takes nothing away.
    """
    reply = _tagged(reply)
    here = [sent for sent in effects.sent if sent.address == origin]
    if here and drop_after_send:
        return None
    if here or not any(sent.address is not None for sent in effects.sent):
        reply = _not_again(reply, here or list(effects.sent))
    text = _audible(reply.text)
    if effects.cron_adds == 0 and PROMISE.search(text):
        text = f"{text}\n\n{NOT_SCHEDULED}"
    reply = msgspec.structs.replace(reply, text=text)
    return reply if reply.text or reply.attachments else None


def _tagged(reply: Reply) -> Reply:
    """A tag at the very beginning says which message is answered."""
    found = TAG.match(reply.text)
    if found is None:
        return reply
    return msgspec.structs.replace(reply, text=reply.text[found.end() :], reply_to=found["id"] or "")


def _audible(text: str) -> str:
    text = text.strip()
    if text == SILENT:
        return ""
    lines = text.splitlines()
    if lines and lines[-1].strip() == SILENT:
        return "\n".join(lines[:-1]).strip()
    return text


def _not_again(reply: Reply, sent: Sequence[Sent]) -> Reply:
    said = [plain for one in sent if (plain := _plain(one.text))]
    media = {_place(url) for one in sent for url in one.media}
    mine = _plain(reply.text)
    repeats = len(mine) >= LEAST_SAME and any(
        len(other) >= LEAST_SAME and (mine in other or other in mine) for other in said
    )
    left = tuple(a for a in reply.attachments if not (a.url and _place(a.url) in media))
    return msgspec.structs.replace(reply, text="" if repeats else reply.text, attachments=left)


def _plain(text: str) -> str:
    """For comparing: lower case, no pictures, single spaces."""
    letters = "".join(c for c in text.lower() if unicodedata.category(c) not in ("So", "Sk", "Cf", "Mn"))
    return " ".join(letters.split())


def _place(url: str) -> str:
    return unquote(url.removeprefix("file://"))
