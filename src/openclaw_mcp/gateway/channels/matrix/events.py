"""Matrix events: what we write into one, and what one of anybody's says. Pure, and doubtful of everything it reads."""

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from ....core.agent import Attachment
from ....core.model import Json
from ..markup import to_html

POLL: Final = "org.matrix.msc3381.poll.start"
"""The name every client in use writes and shows; the stable one, `m.poll.start`, is read as well."""
MESSAGE_TYPES: Final = ("m.room.message", "m.sticker", POLL, "m.poll.start")
MSGTYPES: Final = {"image": "m.image", "audio": "m.audio", "video": "m.video", "file": "m.file"}
MEDIA_TYPES: Final = (*MSGTYPES.values(), "m.sticker")  # no set: what a stranger puts there may not be hashable
USER_ID: Final = re.compile(r"(?<![\w/])@[a-z0-9._=/+-]+:[A-Za-z0-9.-]+(?::\d{1,5})?(?<![.:-])")
FALLBACK_LENGTH: Final = 500  # characters of an edit that clients without edits are shown; the event has a size limit
REPLY_QUOTE: Final = re.compile(r"\A(?:> ?.*\n)+\n?")


class MatrixFile(Struct, frozen=True, kw_only=True):
    """A file in an event. `sealed` holds the key when it lies encrypted on the server."""

    name: str
    mime_type: str
    size: int
    uri: str
    sealed: Json | None = None

    @property
    def summary(self) -> Json:
        return {"name": self.name, "mimeType": self.mime_type, "size": self.size}


# ---- what we write ----


def text_content(text: str, *, silent: bool = False) -> Json:
    """A text message. A silent one is a notice: clients show it and ring for nobody."""
    content: Json = {"msgtype": "m.notice" if silent else "m.text", "body": text}
    return content | _html_fields(text) | {"m.mentions": _mentions(text)}


def file_content(attachment: Attachment, uri: str, *, caption: str, encryption_info: Json | None) -> Json:
    name = attachment.name or attachment.kind
    info = {"mimetype": attachment.mime_type, "size": len(attachment.data or b"")}
    content: Json = {"msgtype": MSGTYPES[attachment.kind], "body": caption or name, "filename": name, "info": info}
    content |= {"url": uri} if encryption_info is None else {"file": {**encryption_info, "url": uri}}
    return content | (_html_fields(caption) if caption else {}) | {"m.mentions": _mentions(caption)}


def relation_content(*, thread: str | None, reply_to: str | None) -> Json:
    """The part of a content that places it in a thread, or after the message it answers."""
    if thread is not None:
        inside = {"rel_type": "m.thread", "event_id": thread, "is_falling_back": reply_to is None}
        return {"m.relates_to": {**inside, "m.in_reply_to": {"event_id": reply_to or thread}}}
    return {"m.relates_to": {"m.in_reply_to": {"event_id": reply_to}}} if reply_to is not None else {}


def edit_content(message_id: str, text: str) -> Json:
    new = text_content(text)
    shown = {"msgtype": "m.text", "body": f"* {text[:FALLBACK_LENGTH]}", "m.mentions": {}}
    return {**shown, "m.new_content": new, "m.relates_to": {"rel_type": "m.replace", "event_id": message_id}}


def reaction_content(message_id: str, emoji: str) -> Json:
    return {"m.relates_to": {"rel_type": "m.annotation", "event_id": message_id, "key": emoji}}


def poll_content(question: str, options: Sequence[str], *, many: bool) -> Json:
    listed = "\n".join([question, *(f"{number}. {option}" for number, option in enumerate(options, 1))])
    text = "org.matrix.msc1767.text"
    start = {
        "question": {text: question, "body": question, "msgtype": "m.text"},
        "kind": "org.matrix.msc3381.poll.disclosed",
        "max_selections": len(options) if many else 1,
        "answers": [{"id": str(number), text: option} for number, option in enumerate(options, 1)],
    }
    return {POLL: start, text: listed}


def _html_fields(text: str) -> Json:
    html = to_html(text)
    return {} if html is None else {"format": "org.matrix.custom.html", "formatted_body": html}


def _mentions(text: str) -> Json:
    people = list(dict.fromkeys(USER_ID.findall(text)))
    return {"user_ids": people} if people else {}


# ---- what we read ----


def content_of(event: Json) -> Json:
    return _dict(event.get("content"))


def latest_content(event: Json) -> tuple[Json, bool]:
    """The content as last edited, and whether it ever was."""
    replaced = _dict(_dict(_dict(event.get("unsigned")).get("m.relations")).get("m.replace"))
    new = _dict(content_of(replaced).get("m.new_content"))
    return (new, True) if new else (content_of(event), False)


def timestamp_ms(event: Json) -> int:
    """When the server says it was, Unix milliseconds."""
    at = event.get("origin_server_ts")
    return at if isinstance(at, int) else 0


def relation(event: Json) -> Json:
    return _dict(content_of(event).get("m.relates_to"))


def is_edit(event: Json) -> bool:
    return relation(event).get("rel_type") == "m.replace"


def thread_of(event: Json) -> str | None:
    place = relation(event)
    return _text(place.get("event_id")) if place.get("rel_type") == "m.thread" else None


def reply_of(event: Json) -> str | None:
    """The message it answers; not the one a thread names for clients without threads."""
    place = relation(event)
    if place.get("rel_type") == "m.thread" and place.get("is_falling_back") is True:
        return None
    return _text(_dict(place.get("m.in_reply_to")).get("event_id"))


def text_of(event: Json, content: Json) -> str:
    """What it says, as a person would read it."""
    if event.get("type") in (POLL, "m.poll.start"):
        return _poll_text(content)
    body = _text(content.get("body")) or ""
    if event.get("type") == "m.sticker":
        return body
    if content.get("msgtype") in MEDIA_TYPES:
        name = _text(content.get("filename"))
        return body if name is not None and name != body else ""
    if reply_of(event) is not None and body.startswith("> <"):
        body = REPLY_QUOTE.sub("", body)  # older clients repeat what they answer
    return f"/me {body}" if content.get("msgtype") == "m.emote" else body


def media_of(event: Json, content: Json) -> MatrixFile | None:
    kind = "m.sticker" if event.get("type") == "m.sticker" else content.get("msgtype")
    sealed = _dict(content.get("file"))
    uri = _text(sealed.get("url")) or _text(content.get("url"))
    if kind not in MEDIA_TYPES or uri is None:
        return None
    info, size = _dict(content.get("info")), _dict(content.get("info")).get("size")
    return MatrixFile(
        name=_text(content.get("filename")) or _text(content.get("body")) or "file",
        mime_type=_text(info.get("mimetype")) or "application/octet-stream",
        size=size if isinstance(size, int) else 0,
        uri=uri,
        sealed=sealed or None,
    )


def mentions_user(content: Json, user: str, display_name: str | None) -> bool:
    """Whether a message speaks to `user`: as it declares, or else as its words do."""
    declared = content.get("m.mentions")
    if isinstance(declared, dict):
        people = declared.get("user_ids")
        return isinstance(people, list) and user in people
    said = " ".join(_text(content.get(key)) or "" for key in ("body", "formatted_body"))
    called = [user, user.partition(":")[0], *([display_name] if display_name else [])]
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said, re.IGNORECASE) for name in called)


def poll_of(content: Json) -> Json | None:
    """`{question, options}` of a poll, in any of its spellings."""
    start = _dict(content.get(POLL)) or _dict(content.get("m.poll.start")) or _dict(content.get("m.poll"))
    answers = start.get("answers")
    options = [_extensible_text(one) for one in answers] if isinstance(answers, list) else []
    return {"question": _extensible_text(start.get("question")), "options": options} if start else None


def _poll_text(content: Json) -> str:
    asked = poll_of(content) or {"question": "", "options": []}
    return "\n".join([asked["question"], *(f"{number}. {text}" for number, text in enumerate(asked["options"], 1))])


def _extensible_text(part: Any) -> str:
    """The text of an extensible part, in either of its spellings."""
    found = _dict(part).get("org.matrix.msc1767.text", _dict(part).get("m.text"))
    if isinstance(found, list) and found:
        found = _dict(found[0]).get("body")
    return _text(found) or ""


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
