"""Matrix events: what we write in them and read of them. Pure."""

import re
from typing import Final

from msgspec import Struct, structs

from ....core.agent import Attachment
from ....core.channel import Poll
from ....core.mime import OCTET_STREAM
from ..markup import to_html

POLL_TYPE: Final = "org.matrix.msc3381.poll.start"
"""The type that every client in use writes and shows; the stable one, `m.poll.start`, is read too."""
MESSAGE_TYPES: Final = frozenset({"m.room.message", "m.sticker", POLL_TYPE, "m.poll.start"})
MSGTYPES: Final = {"image": "m.image", "audio": "m.audio", "video": "m.video", "file": "m.file"}
MEDIA_TYPES: Final = frozenset({*MSGTYPES.values(), "m.sticker"})
UNSTABLE_TEXT: Final = "org.matrix.msc1767.text"
USER_ID: Final = re.compile(r"(?<![\w/])@[a-z0-9._=/+-]+:[A-Za-z0-9.-]+(?::\d{1,5})?(?<![.:-])")
FALLBACK_LENGTH: Final = 500  # characters of an edit for clients without edits; events have a size limit
REPLY_QUOTE: Final = re.compile(r"\A(?:> ?.*\n)+\n?")


class AttachmentKey(Struct, frozen=True, kw_only=True, omit_defaults=True):
    k: str
    kty: str | None = None
    alg: str | None = None
    ext: bool | None = None
    key_ops: list[str] | None = None


class EncryptedFile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that is encrypted on the server, with what decrypts it."""

    url: str | None = None
    key: AttachmentKey | None = None
    iv: str = ""
    hashes: dict[str, str] = {}
    v: str | None = None


class MatrixFile(Struct, frozen=True, kw_only=True):
    """A file in an event, as the inbox stores it."""

    name: str
    mime_type: str
    size: int
    uri: str
    sealed: EncryptedFile | None = None


class FileInfo(Struct, frozen=True):
    mimetype: str | None = None
    size: int = 0


class Mentions(Struct, frozen=True, omit_defaults=True):
    user_ids: list[str] = []


class AnsweredEvent(Struct, frozen=True, omit_defaults=True):
    event_id: str | None = None


class Relation(Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"in_reply_to": "m.in_reply_to"}):
    """The thread an event is in, the message it answers or replaces or reacts to."""

    rel_type: str | None = None
    event_id: str | None = None
    key: str | None = None
    is_falling_back: bool | None = None
    in_reply_to: AnsweredEvent | None = None


class PlainText(Struct, frozen=True):
    body: str = ""


class ExtensibleText(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"unstable": UNSTABLE_TEXT, "stable": "m.text"}
):
    """A text, under either of its names and in either of its forms."""

    id: str | None = None
    unstable: str | list[PlainText] | None = None
    stable: str | list[PlainText] | None = None
    body: str | None = None
    msgtype: str | None = None

    @property
    def text(self) -> str:
        found = self.stable if self.unstable is None else self.unstable
        return found if isinstance(found, str) else found[0].body if found else ""


class PollStart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    question: ExtensibleText = ExtensibleText()
    kind: str | None = None
    max_selections: int | None = None
    answers: list[ExtensibleText] = []


class EventContent(
    Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False,
    rename={
        "mentions": "m.mentions", "relates_to": "m.relates_to", "new_content": "m.new_content",
        "extensible_text": UNSTABLE_TEXT, "unstable_poll": POLL_TYPE, "stable_poll": "m.poll.start", "poll": "m.poll",
    },
):  # fmt: skip
    """The content of an event of any type: the fields that we read or write. Its sender fills them with any value:
    convert it leniently."""

    # messages, reactions, polls
    msgtype: str | None = None
    body: str | None = None
    format: str | None = None
    formatted_body: str | None = None
    filename: str | None = None
    info: FileInfo | None = None
    url: str | None = None
    file: EncryptedFile | None = None
    mentions: Mentions | None = None
    relates_to: Relation | None = None
    new_content: "EventContent | None" = None
    extensible_text: str | None = None
    unstable_poll: PollStart | None = None
    stable_poll: PollStart | None = None
    poll: PollStart | None = None
    # encrypted events
    algorithm: str | None = None
    sender_key: str | None = None
    device_id: str | None = None
    session_id: str | None = None
    ciphertext: str | None = None
    # state of a room
    membership: str | None = None
    displayname: str | None = None
    is_direct: bool = False
    name: str | None = None
    alias: str | None = None
    pinned: list[str] | None = None

    @property
    def relation(self) -> Relation:
        return self.relates_to or NO_RELATION

    def find_poll(self) -> Poll | None:
        """The poll, under any of its names; not how many options one may choose."""
        start = self.unstable_poll or self.stable_poll or self.poll
        if start is None:
            return None
        return Poll(question=start.question.text, options=tuple(answer.text for answer in start.answers))

    def mentions_user(self, user: str, display_name: str | None) -> bool:
        """Whether a message mentions `user`: as it declares, else by its text."""
        if self.mentions is not None:
            return user in self.mentions.user_ids
        text = f"{self.body or ''} {self.formatted_body or ''}"
        names = [user, user.partition(":")[0], *([display_name] if display_name else [])]
        return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) for name in names)


NO_RELATION: Final = Relation()
EMPTY_CONTENT: Final = EventContent()
"""As redacted events have it."""


class Replacements(Struct, frozen=True, rename={"replace": "m.replace"}):
    replace: "MatrixEvent | None" = None


class Unsigned(Struct, frozen=True, rename={"relations": "m.relations"}):
    """What the server adds to an event."""

    relations: Replacements | None = None


# Without garbage collection: a sync has thousands of them, and they can't refer to themselves.
class MatrixEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    type: str = ""
    event_id: str = ""
    sender: str = ""
    state_key: str | None = None
    """None: it is no state of the room."""
    origin_server_ts: int = 0
    """Unix milliseconds."""
    content: EventContent = EMPTY_CONTENT
    unsigned: Unsigned | None = None

    @property
    def is_message(self) -> bool:
        return self.type in MESSAGE_TYPES and self.content != EMPTY_CONTENT and not self.is_edit

    @property
    def is_edit(self) -> bool:
        return self.content.relation.rel_type == "m.replace"

    @property
    def thread(self) -> str | None:
        relation = self.content.relation
        return relation.event_id if relation.rel_type == "m.thread" else None

    @property
    def reply_to(self) -> str | None:
        """The message it answers; not the one a thread names for clients without threads."""
        relation = self.content.relation
        if relation.in_reply_to is None or (relation.rel_type == "m.thread" and relation.is_falling_back is True):
            return None
        return relation.in_reply_to.event_id

    def latest_content(self) -> tuple[EventContent, bool]:
        """The content as last edited, and whether it was edited."""
        relations = self.unsigned and self.unsigned.relations
        new = relations.replace.content.new_content if relations and relations.replace else None
        return (new, True) if new else (self.content, False)

    def text_of(self, content: EventContent) -> str:
        """The text of one of its contents, as a person would read it."""
        if self.type in (POLL_TYPE, "m.poll.start"):
            return (content.find_poll() or Poll(question="", options=())).text
        body = content.body or ""
        if self.type == "m.sticker":
            return body
        if content.msgtype in MEDIA_TYPES:
            return body if content.filename is not None and content.filename != body else ""
        if self.reply_to is not None and body.startswith("> <"):
            body = REPLY_QUOTE.sub("", body)  # older clients quote what they answer
        return f"/me {body}" if content.msgtype == "m.emote" else body

    def file_of(self, content: EventContent) -> MatrixFile | None:
        uri = (content.file.url if content.file else None) or content.url
        if uri is None or (self.type != "m.sticker" and content.msgtype not in MEDIA_TYPES):
            return None
        info = content.info or FileInfo()
        return MatrixFile(
            name=content.filename or content.body or "file", mime_type=info.mimetype or OCTET_STREAM, size=info.size,
            uri=uri, sealed=content.file,
        )  # fmt: skip


# ---- contents that we write ----


def text_content(text: str, *, silent: bool = False) -> EventContent:
    """A text message. A silent one is a notice: clients show it without a notification."""
    return _with_text(EventContent(msgtype="m.notice" if silent else "m.text", body=text), text)


def file_content(attachment: Attachment, file: EncryptedFile, *, caption: str) -> EventContent:
    """`file` has a URL alone when it is not encrypted."""
    name, is_plain = attachment.name or attachment.kind, file.key is None
    content = EventContent(
        msgtype=MSGTYPES[attachment.kind], body=caption or name, filename=name,
        info=FileInfo(mimetype=attachment.mime_type, size=len(attachment.data or b"")),
        url=file.url if is_plain else None, file=None if is_plain else file,
    )  # fmt: skip
    return _with_text(content, caption)


def _with_text(content: EventContent, text: str) -> EventContent:
    """With the text's markup and the people it mentions."""
    html = to_html(text) if text else None
    return structs.replace(
        content, format=None if html is None else "org.matrix.custom.html", formatted_body=html,
        mentions=Mentions(list(dict.fromkeys(USER_ID.findall(text)))),
    )  # fmt: skip


def relation_to(*, thread: str | None, reply_to: str | None) -> Relation | None:
    """The relation of a message in this thread that answers this message."""
    if thread is None:
        return None if reply_to is None else Relation(in_reply_to=AnsweredEvent(reply_to))
    answered = AnsweredEvent(reply_to or thread)
    return Relation(rel_type="m.thread", event_id=thread, is_falling_back=reply_to is None, in_reply_to=answered)


def edit_content(message_id: str, text: str) -> EventContent:
    return EventContent(
        msgtype="m.text", body=f"* {text[:FALLBACK_LENGTH]}", mentions=Mentions(), new_content=text_content(text),
        relates_to=Relation(rel_type="m.replace", event_id=message_id),
    )  # fmt: skip


def reaction_content(message_id: str, emoji: str) -> EventContent:
    return EventContent(relates_to=Relation(rel_type="m.annotation", event_id=message_id, key=emoji))


def poll_content(poll: Poll, relation: Relation | None) -> EventContent:
    answers = [ExtensibleText(id=str(number), unstable=option) for number, option in enumerate(poll.options, 1)]
    start = PollStart(
        question=ExtensibleText(unstable=poll.question, body=poll.question, msgtype="m.text"),
        kind="org.matrix.msc3381.poll.disclosed", max_selections=len(poll.options) if poll.many else 1,
        answers=answers,
    )  # fmt: skip
    return EventContent(unstable_poll=start, extensible_text=poll.text, relates_to=relation)
