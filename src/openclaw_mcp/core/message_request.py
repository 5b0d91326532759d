"""A message action's parameters, under the many names clients use, and the tools it counts as. Pure."""

import json
from collections.abc import Collection, Iterable
from typing import Any, Final

from msgspec import Struct

from .channel import ChannelRefused, ChatAddress
from .claw_methods import TOOLS_BY_ACTION
from .model import Json
from .numbers import parse_whole_number

MAX_TARGETS: Final = 100  # conversations of one broadcast
MAX_ID_LENGTH: Final = 256  # characters of a thread's id; no messenger has longer ones
MAX_READ: Final = 200  # messages of one read
EXTRA_PARAMS: Final = ("buttons", "card", "components", "presentation")

ACTION_ALIASES: Final = {
    "send": "send", "reply": "reply", "thread-reply": "thread-reply", "threadreply": "thread-reply",
    "broadcast": "broadcast", "react": "react", "delete": "delete", "unsend": "delete",
    "sendattachment": "sendAttachment", "sendwitheffect": "sendWithEffect", "pin": "pin", "unpin": "unpin",
    "read": "read", "readmessages": "read", "edit": "edit", "poll": "poll",
}  # fmt: skip
"""An action as clients write it, in lower case, to its name here."""
SEND_ACTIONS: Final = ("send", "reply", "thread-reply", "sendAttachment", "sendWithEffect")
_WRITE_ACTIONS: Final = frozenset({*SEND_ACTIONS, "broadcast", "poll"})


class ActionRequest(Struct, frozen=True, kw_only=True):
    """One message action, parsed."""

    action: str
    channel: str | None = None
    account: str | None = None
    target: str | None = None
    targets: tuple[str, ...] = ()
    text: str = ""
    media: tuple[str, ...] = ()
    file_name: str | None = None
    reply_to: str | None = None
    thread: str | None = None
    message_id: str | None = None
    emoji: str | None = None
    effect: str | None = None
    remove: bool = False
    silent: bool = False
    limit: int = 20
    before: str | None = None
    question: str | None = None
    options: tuple[str, ...] = ()
    many: bool = False
    dry_run: bool = False
    extra: Json = {}


def parse_action(action: str, params: Json) -> ActionRequest:
    """Raises ChannelRefused naming the parameter that is wrong or missing."""
    name = ACTION_ALIASES.get(action.strip().removeprefix("message:").lower())
    if name is None:
        raise ChannelRefused(
            f"unknown message action {action!r}; there are {', '.join(sorted(set(ACTION_ALIASES.values())))}"
        )
    read = _ParamReader(params)
    text = read.text("message", "text", "content") or read.text("caption") or ""
    target = read.text("target", "to", "channelId", "chatId")
    request = ActionRequest(
        action=name,
        channel=read.text("channel"),
        account=read.text("accountId", "account"),
        target=target,
        targets=read.text_list("targets"),
        text=text,
        media=read.media(),
        file_name=read.text("filename", "fileName"),
        reply_to=read.text("replyTo", "replyToId"),
        thread=read.text("threadId"),
        message_id=read.text("messageId"),
        emoji=read.text("emoji"),
        effect=read.text("effectId", "effect"),
        remove=params.get("remove") is True or name == "unpin",
        silent=params.get("silent") is True,
        limit=read.number("limit", 20, maximum=MAX_READ),
        before=read.text("before"),
        question=read.text("pollQuestion", "question"),
        options=read.text_list("pollOption", "options"),
        many=params.get("pollMulti") is True or read.number("maxSelections", 1, maximum=12) > 1,
        dry_run=read.boolean("dryRun"),
        extra={key: _parse_json(key, params[key]) for key in EXTRA_PARAMS if params.get(key) is not None},
    )
    _check_required_params(request)
    return request


def _check_required_params(request: ActionRequest) -> None:
    action = request.action
    if action in ("send", "reply", "thread-reply", "broadcast", "sendWithEffect") and not (
        request.text.strip() or request.media or request.extra
    ):
        raise ChannelRefused("message required")
    needs = {
        "sendAttachment": ("file", request.media),
        "sendWithEffect": ("effectId", request.effect),
        "thread-reply": ("threadId", request.thread),
        "broadcast": ("targets", request.targets),
        "poll": ("question", request.question),
        **dict.fromkeys(("react", "delete", "pin", "unpin", "edit"), ("messageId", request.message_id)),
    }
    name, value = needs.get(action, ("", True))
    if not value:
        raise ChannelRefused(f"{name} required for {action}")
    if action == "react" and not request.emoji:
        raise ChannelRefused("emoji required for react")
    if action == "edit" and not request.text.strip():
        raise ChannelRefused("message required")
    if action == "poll" and not 2 <= len(request.options) <= 12:
        raise ChannelRefused("a poll has 2 to 12 options")
    if len(request.thread or "") > MAX_ID_LENGTH:
        raise ChannelRefused(f"threadId has at most {MAX_ID_LENGTH} characters")
    if len(request.targets) > MAX_TARGETS:
        raise ChannelRefused(f"a broadcast has at most {MAX_TARGETS} targets")


class _ParamReader(Struct, frozen=True):
    """Reads parameters. Raises ChannelRefused naming one of another type."""

    params: Json

    def text(self, *names: str) -> str | None:
        """The first of these parameters that is not empty; models like to write numbers for ids."""
        for name in names:
            value = self.params.get(name)
            if isinstance(value, bool) or value is None:
                continue
            if isinstance(value, int | float):
                value = str(value)
            if not isinstance(value, str):
                raise ChannelRefused(f"{name} must be a text")
            if value.strip():
                return value
        return None

    def text_list(self, *names: str) -> tuple[str, ...]:
        for name in names:
            value = self.params.get(name)
            if isinstance(value, str) and value.strip():
                return (value,)
            if isinstance(value, list) and value:
                if not all(isinstance(item, str | int) for item in value):
                    raise ChannelRefused(f"{name} must be a list of texts")
                return tuple(map(str, value))
        return ()

    def media(self) -> tuple[str, ...]:
        single = self.text("media", "mediaUrl", "file", "path", "filePath", "buffer")
        return tuple(dict.fromkeys((*((single,) if single else ()), *self.text_list("mediaUrls"))))

    def number(self, name: str, default: int, *, maximum: int) -> int:
        value = self.params.get(name)
        if isinstance(value, str):
            value = parse_whole_number(value.strip()) or 0
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
            raise ChannelRefused(f"{name} must be a number from 1 to {maximum}")
        return min(int(value), maximum)

    def boolean(self, name: str) -> bool:
        """Only true or false: a dry run that is misread would be executed."""
        value = self.params.get(name)
        if value is None or isinstance(value, bool):
            return value is True
        raise ChannelRefused(f"{name} must be true or false")


def _parse_json(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ChannelRefused(f"{name} is not valid JSON") from None


# ---- tools -------------------------------------------------------------------------------------------------------


def tools_for_action(
    request: ActionRequest, addresses: Iterable[ChatAddress], own_addresses: Collection[ChatAddress]
) -> list[str]:
    """The tools that an action at these addresses counts as, under any name; first the one of its name."""
    named = TOOLS_BY_ACTION["message"][request.action]
    if request.action not in _WRITE_ACTIONS:
        return [named]
    by_content = {
        "message_send_attachment": request.media,
        "message_send_with_effect": request.effect,
        "message_reply": request.reply_to,
    }
    has_text = bool(request.text.strip() or request.question or request.extra)
    by_address = tools_for_addresses(addresses, own_addresses, has_text=has_text)
    return [named, *(tool for tool, value in by_content.items() if value), *by_address]


def tools_for_addresses(
    addresses: Iterable[ChatAddress], own_addresses: Collection[ChatAddress], *, has_text: bool = True
) -> list[str]:
    """The tools that writing to these addresses counts as, where they are not the caller's own.

    `own_addresses`: the conversations, and the threads in them, that the caller is in. `has_text`: not only a file.
    """
    targets, own = set(addresses), {address.conversation for address in own_addresses}
    tools = []
    if any(target.thread and target not in own_addresses for target in targets):
        tools.append("message_thread_reply")
    if has_text and any(target.conversation not in own for target in targets):
        tools.append("message_send")
    return tools
