"""Files to send to Telegram: the method for each, and which are sent together as an album. Pure."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ....core.agent import Attachment
from ....core.mime import suffix_of

ALBUM_LIMIT: Final = 10  # files Telegram shows as one
PHOTO_LIMIT: Final = 10 << 20  # bytes; a larger picture is sent as a document
METHODS: Final = {
    "photo": "sendPhoto", "video": "sendVideo", "audio": "sendAudio", "voice": "sendVoice",
    "animation": "sendAnimation", "document": "sendDocument",
}  # fmt: skip
ALBUM_GROUPS: Final = {"photo": "pictures", "video": "pictures", "document": "documents", "audio": "audio"}
"""Kinds with the same value may share an album; other kinds are sent alone."""


class TelegramUpload(Struct, frozen=True, kw_only=True):
    kind: str
    attachment: Attachment

    @property
    def name(self) -> str:
        return self.attachment.name or f"{self.kind}{suffix_of(self.attachment.mime_type)}"


def as_document(upload: TelegramUpload) -> TelegramUpload:
    return TelegramUpload(kind="document", attachment=upload.attachment)


def group_albums(attachments: Sequence[Attachment]) -> list[list[TelegramUpload]]:
    """In order; neighbours that fit are one album."""
    groups: list[list[TelegramUpload]] = []
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
    size = len(attachment.data or b"")
    match attachment.mime_type:
        case "image/jpeg" | "image/png" | "image/webp" if size <= PHOTO_LIMIT:
            return "photo"
        case "image/gif":
            return "animation"
        case "video/mp4":
            return "video"
        case "audio/mpeg" | "audio/mp4" | "audio/x-m4a":
            return "audio"
        case "audio/ogg" | "audio/opus":
            return "voice"
    return "document"
