"""Builds and parses Matrix events. Pure, and trusts no field of what it parses."""

import re
from typing import Any, Final

from msgspec import Struct

from ....core.agent import Attachment
from ....core.channel import Poll
from ....core.mime import OCTET_STREAM
from ....core.model import Json
from ..json_values import as_dict, as_dicts, as_int, as_text
from ..markup import to_html

POLL_TYPE: Final = "org.matrix.msc3381.poll.start"
"""The type that every client in use writes and shows; the stable one, `m.poll.start`, is read too."""
MESSAGE_TYPES: Final = ("m.room.message", "m.sticker", POLL_TYPE, "m.poll.start")
MSGTYPES: Final = {"image": "m.image", "audio": "m.audio", "video": "m.video", "file": "m.file"}
MEDIA_TYPES: Final = (*MSGTYPES.values(), "m.sticker")  # not a set: an unknown sender's value may not be hashable
USER_ID: Final = re.compile(r"(?<![\w/])@[a-z0-9._=/+-]+:[A-Za-z0-9.-]+(?::\d{1,5})?(?<![.:-])")
FALLBACK_LENGTH: Final = 500  # characters of an edit for clients without edits; events have a size limit
REPLY_QUOTE: Final = re.compile(r"\A(?:> ?.*\n)+\n?")


class MatrixFile(Struct, frozen=True, kw_only=True):
    """A file in an event. `sealed` holds the key when the file is encrypted on the server."""

    name: str
    mime_type: str
    size: int
    uri: str
    sealed: Json | None = None

    @property
    def summary(self) -> Json:
        return {"name": self.name, "mimeType": self.mime_type, "size": self.size}


# ---- built ----


def text_content(text: str, *, silent: bool = False) -> Json:
    """A text message. A silent one is a notice: clients show it without a notification."""
    content: Json = {"msgtype": "m.notice" if silent else "m.text", "body": text}
    return content | _html_fields(text) | {"m.mentions": _mentions(text)}


def file_content(attachment: Attachment, uri: str, *, caption: str, encryption_info: Json | None) -> Json:
    name = attachment.name or attachment.kind
    info = {"mimetype": attachment.mime_type, "size": len(attachment.data or b"")}
    content: Json = {"msgtype": MSGTYPES[attachment.kind], "body": caption or name, "filename": name, "info": info}
    content |= {"url": uri} if encryption_info is None else {"file": {**encryption_info, "url": uri}}
    return content | (_html_fields(caption) if caption else {}) | {"m.mentions": _mentions(caption)}


def relation_content(*, thread: str | None, reply_to: str | None) -> Json:
    """The part of a content that names its thread, or the message it answers."""
    if thread is not None:
        relation = {"rel_type": "m.thread", "event_id": thread, "is_falling_back": reply_to is None}
        return {"m.relates_to": {**relation, "m.in_reply_to": {"event_id": reply_to or thread}}}
    return {"m.relates_to": {"m.in_reply_to": {"event_id": reply_to}}} if reply_to is not None else {}


def edit_content(message_id: str, text: str) -> Json:
    fallback = {"msgtype": "m.text", "body": f"* {text[:FALLBACK_LENGTH]}", "m.mentions": {}}
    relation = {"rel_type": "m.replace", "event_id": message_id}
    return {**fallback, "m.new_content": text_content(text), "m.relates_to": relation}


def reaction_content(message_id: str, emoji: str) -> Json:
    return {"m.relates_to": {"rel_type": "m.annotation", "event_id": message_id, "key": emoji}}


def poll_content(poll: Poll) -> Json:
    text = "org.matrix.msc1767.text"
    start = {
        "question": {text: poll.question, "body": poll.question, "msgtype": "m.text"},
        "kind": "org.matrix.msc3381.poll.disclosed",
        "max_selections": len(poll.options) if poll.many else 1,
        "answers": [{"id": str(number), text: option} for number, option in enumerate(poll.options, 1)],
    }
    return {POLL_TYPE: start, text: poll.text}


def _html_fields(text: str) -> Json:
    html = to_html(text)
    return {} if html is None else {"format": "org.matrix.custom.html", "formatted_body": html}


def _mentions(text: str) -> Json:
    users = list(dict.fromkeys(USER_ID.findall(text)))
    return {"user_ids": users} if users else {}


# ---- parsed ----


def event_list(part: Any) -> list[Json]:
    """The events of a part of a sync."""
    return as_dicts(part.get("events") if isinstance(part, dict) else part)


def content_of(event: Json) -> Json:
    return as_dict(event.get("content"))


def latest_content(event: Json) -> tuple[Json, bool]:
    """The content as last edited, and whether it was edited."""
    replaced = as_dict(as_dict(as_dict(event.get("unsigned")).get("m.relations")).get("m.replace"))
    new = as_dict(content_of(replaced).get("m.new_content"))
    return (new, True) if new else (content_of(event), False)


def timestamp_ms(event: Json) -> int:
    """The server's time of the event, Unix milliseconds."""
    return as_int(event.get("origin_server_ts"))


def relation(event: Json) -> Json:
    return as_dict(content_of(event).get("m.relates_to"))


def is_edit(event: Json) -> bool:
    return relation(event).get("rel_type") == "m.replace"


def thread_of(event: Json) -> str | None:
    related = relation(event)
    return as_text(related.get("event_id")) if related.get("rel_type") == "m.thread" else None


def reply_of(event: Json) -> str | None:
    """The message it answers; not the one a thread names for clients without threads."""
    related = relation(event)
    if related.get("rel_type") == "m.thread" and related.get("is_falling_back") is True:
        return None
    return as_text(as_dict(related.get("m.in_reply_to")).get("event_id"))


def text_of(event: Json, content: Json) -> str:
    """Its text as a person would read it."""
    if event.get("type") in (POLL_TYPE, "m.poll.start"):
        return (poll_of(content) or Poll(question="", options=())).text
    body = as_text(content.get("body")) or ""
    if event.get("type") == "m.sticker":
        return body
    if content.get("msgtype") in MEDIA_TYPES:
        name = as_text(content.get("filename"))
        return body if name is not None and name != body else ""
    if reply_of(event) is not None and body.startswith("> <"):
        body = REPLY_QUOTE.sub("", body)  # older clients quote what they answer
    return f"/me {body}" if content.get("msgtype") == "m.emote" else body


def media_of(event: Json, content: Json) -> MatrixFile | None:
    kind = "m.sticker" if event.get("type") == "m.sticker" else content.get("msgtype")
    sealed = as_dict(content.get("file"))
    uri = as_text(sealed.get("url")) or as_text(content.get("url"))
    if kind not in MEDIA_TYPES or uri is None:
        return None
    info = as_dict(content.get("info"))
    return MatrixFile(
        name=as_text(content.get("filename")) or as_text(content.get("body")) or "file",
        mime_type=as_text(info.get("mimetype")) or OCTET_STREAM,
        size=as_int(info.get("size")),
        uri=uri,
        sealed=sealed or None,
    )


def mentions_user(content: Json, user: str, display_name: str | None) -> bool:
    """Whether a message mentions `user`: as it declares, else by its text."""
    declared = content.get("m.mentions")
    if isinstance(declared, dict):
        users = declared.get("user_ids")
        return isinstance(users, list) and user in users
    text = " ".join(as_text(content.get(key)) or "" for key in ("body", "formatted_body"))
    names = [user, user.partition(":")[0], *([display_name] if display_name else [])]
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) for name in names)


def poll_of(content: Json) -> Poll | None:
    """The poll in a content, under any of its names; not how many options one may choose."""
    start = as_dict(content.get(POLL_TYPE)) or as_dict(content.get("m.poll.start")) or as_dict(content.get("m.poll"))
    answers = start.get("answers")
    options = tuple(_extensible_text(answer) for answer in answers) if isinstance(answers, list) else ()
    return Poll(question=_extensible_text(start.get("question")), options=options) if start else None


def _extensible_text(part: Any) -> str:
    """The text of an extensible part, in either of its forms."""
    found = as_dict(part).get("org.matrix.msc1767.text", as_dict(part).get("m.text"))
    if isinstance(found, list) and found:
        found = as_dict(found[0]).get("body")
    return as_text(found) or ""
