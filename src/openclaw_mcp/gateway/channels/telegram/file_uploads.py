"""Files to send to Telegram: the kind of each, and which are sent together as an album. Pure."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ....core.agent import Attachment
from ....core.mime import suffix_of

ALBUM_LIMIT: Final = 10  # files Telegram shows as one
PHOTO_LIMIT: Final = 10 << 20  # bytes; a larger picture is sent as a document
KINDS: Final = {
    "image/jpeg": "photo", "image/png": "photo", "image/webp": "photo", "image/gif": "animation", "video/mp4": "video",
    "audio/mpeg": "audio", "audio/mp4": "audio", "audio/x-m4a": "audio", "audio/ogg": "voice", "audio/opus": "voice",
}  # fmt: skip
"""MIME type to the name Telegram has for such files; all others are documents."""
ALBUM_GROUPS: Final = {"photo": "pictures", "video": "pictures", "document": "documents", "audio": "audio"}
"""Kinds with the same value may share an album; other kinds are sent alone."""


class TelegramUpload(Struct, frozen=True, kw_only=True):
    kind: str
    attachment: Attachment

    @property
    def name(self) -> str:
        return self.attachment.name or f"{self.kind}{suffix_of(self.attachment.mime_type)}"


Album = list[TelegramUpload]


def group_albums(attachments: Sequence[Attachment]) -> list[Album]:
    """In order; neighbours that fit are one album."""
    groups: list[Album] = []
    for attachment in attachments:
        upload = TelegramUpload(kind=_kind(attachment), attachment=attachment)
        album = ALBUM_GROUPS.get(upload.kind)
        last = groups[-1] if groups else []
        if last and album is not None and ALBUM_GROUPS.get(last[0].kind) == album and len(last) < ALBUM_LIMIT:
            last.append(upload)
        else:
            groups.append([upload])
    return groups


def _kind(attachment: Attachment) -> str:
    kind = KINDS.get(attachment.mime_type, "document")
    return "document" if kind == "photo" and len(attachment.data or b"") > PHOTO_LIMIT else kind
