"""Secrets taken out of a config, and put back in place."""

import json
import os
import re
from itertools import pairwise
from typing import Any, Final

import msgspec

from ..core.config.keys import SECRET
from ..core.errors import BadRequest
from ..core.model import Json
from .key_permissions import class_of
from .parsing import REFERENCE, ConfigPath, join_path, map_values, parse, value_at, walk_values
from .secrets.addresses import address_origin, has_private_path, has_random_segment
from .secrets.arguments import LOOKBACK_LIMIT, is_secret_argument, variable_prefix
from .secrets.names import VALUE_NAMES, has_secret_holder, is_auth_name, is_plural_name, is_secret_name, is_webhook_name
from .secrets.patterns import SECRET_HINT, SECRET_IN_JSON, SECRET_OPTION, SECRET_TEXT

REDACTED: Final = "__OPENCLAW_REDACTED__"
BAD_PLACEHOLDER: Final = (
    f"{REDACTED} stands for a stored secret: write it in quotes, alone or as it was shown, and nowhere else"
)
MASK: Final = "***"
"""Replaces a secret in texts that are only read, never written back."""
NUMBERED_MARK: Final = re.compile(rf"{REDACTED}[0-9a-f]{{16}}_\d+")
ONLY_REFERENCE: Final = re.compile(rf"(Bearer )?{REFERENCE.pattern}")
USER_NAMED_SECTIONS: Final = frozenset(
    {"servers", "providers", "channels", "accounts", "groups", "entries", "identityLinks", "byProvider"}
)
"""Entries below these have names that people chose: a server called `monkey` is no key."""
KEY_SOURCES: Final = ("env", "file", "keyring")
KEY_SOURCE_FIELDS: Final = frozenset({"source", "provider", "service", "path", "id"})
"""The names that tell where a key is kept: `apiKey: {source: "env", id: "A_KEY"}` holds none."""
COMMAND_LINES: Final = frozenset({"command", "args", "cmd", "argv"})
"""Names whose value may be a command line in one text."""
JSON_ARGUMENT: Final = re.compile(r"(?P<option>--?[\w.-]+=)?\s*(?P<json>[\[{].*)", re.DOTALL)
"""An argument that may be JSON."""
TOML_ARGUMENT: Final = re.compile(r"(?P<name>[\w.\"'-]+\s*=).+", re.DOTALL)
"""An argument that may be TOML."""
COMMENT: Final = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(//[^\n\r\u2028\u2029]*|/\*.*?\*/)""", re.DOTALL)
"""A comment, its first group; or a text, so that what looks like a comment inside of one is none."""


def is_secret(root: Any, path: ConfigPath) -> bool:
    """Whether a text or number in `root` is secret by its path or by itself.

    A text that is merely `${A_REFERENCE}` to the environment is not.
    """
    return _redact_value(root, path, value_at(root, path)) is not None


def _redact_value(root: Any, path: ConfigPath, value: Any) -> str | None:
    """The text that replaces `value` at `path` of `root`, with `REDACTED` for what is hidden; None: it is no secret
    there."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return None
    if isinstance(value, str) and ONLY_REFERENCE.fullmatch(value):
        return None
    holder = value_at(root, path[:-1])
    if _is_secret_path(path, holder, value) or _follows_secret_option(path, holder):
        return REDACTED
    if not isinstance(value, str):
        return None
    part = _redact_argument(root, path, holder, value) or _redact_address(path, holder, value)
    if part is None and (_contains_secret(value) or _is_secret_in_command(path, holder, value)):
        return REDACTED
    return part


def _redact_argument(root: Any, path: ConfigPath, holder: Any, value: str) -> str | None:
    """The same for an argument that sets a variable, or is JSON or TOML with secrets in it."""
    if not isinstance(holder, list) or value.isalnum():
        return None
    name = variable_prefix(REFERENCE.sub("\0", value), _preceding_words(root, path, holder)) if "=" in value else None
    if name is not None:
        return name + REDACTED
    json_in, toml_in = JSON_ARGUMENT.fullmatch(value), TOML_ARGUMENT.fullmatch(value)
    if json_in is not None:
        return _redact_json(json_in["option"] or "", json_in["json"])
    if toml_in is not None and _is_secret_toml(value):
        return toml_in["name"] + REDACTED
    return None


def _preceding_words(root: Any, path: ConfigPath, holder: list[Any]) -> list[str]:
    here = int(path[-1])
    program = value_at(root, (*path[:-2], "command")) if here < LOOKBACK_LIMIT else None
    words = holder[max(0, here - LOOKBACK_LIMIT) : here]
    return [str(word) for word in ([program, *words] if isinstance(program, str) else words)]


def _redact_json(option: str, text: str) -> str | None:
    """The JSON with its secrets hidden as in a config; what can't be parsed is hidden if it names a secret."""
    try:
        value = msgspec.json.decode(text)
        redacted = redact_secrets(value)
        return None if redacted == value else option + json.dumps(redacted, ensure_ascii=False)
    except (msgspec.DecodeError, RecursionError):
        return REDACTED if SECRET_HINT.search(REFERENCE.sub("", text)) else None


def _is_secret_toml(text: str) -> bool:
    import tomllib  # here for start-up: few configs hold any

    try:
        value = tomllib.loads(text)
        return bool(redact_secrets(value) != value)
    except (tomllib.TOMLDecodeError, RecursionError):
        return False


def _redact_address(path: ConfigPath, holder: Any, value: str) -> str | None:
    """The same for a web address that is secret or holds a secret: its host stays."""
    origin = address_origin(value)
    if origin is None:
        return None
    plain = REFERENCE.sub("\0", value)
    by_name = "\0" not in plain and _is_private_address(path, holder) and has_private_path(plain)
    return origin + REDACTED if by_name or has_random_segment(plain) or _contains_secret(value) else None


def _is_private_address(path: ConfigPath, holder: Any) -> bool:
    """Whether the address here may be all that it takes to use what it leads to: an MCP server's, a webhook's."""
    if isinstance(holder, list):
        before = holder[int(path[-1]) - 1] if path[-1] else None
        return isinstance(before, str) and before.startswith("-") and is_webhook_name(before)
    name = str(path[-1]) if path else ""
    return name == "to" or is_webhook_name(name) or (path[-3:-2] == ("servers",) and name == "url")


def _is_secret_path(path: ConfigPath, holder: Any, value: str | float) -> bool:
    last = len(path) - 1
    named = {
        place for place in range(1, last) if path[place - 1] in USER_NAMED_SECTIONS
    }  # names of things, not of values
    names = [step for place, step in enumerate(path) if isinstance(step, str) and place not in named]
    if not names:
        return False
    secret = [name for name in names if is_secret_name(name) and (isinstance(value, str) or not is_plural_name(name))]
    if has_secret_holder(names) or names[-1] == "auth" or names[-1] in secret:
        return True
    if names[-1] in VALUE_NAMES and any(map(is_auth_name, names)):
        return True
    is_place = isinstance(holder, dict) and holder.get("source") in KEY_SOURCES and path[-1] in KEY_SOURCE_FIELDS
    is_file = names[-1].endswith("File")  # names the file a secret is in
    return not is_place and (bool(secret) or (class_of(path) == SECRET and not is_file))


def _follows_secret_option(path: ConfigPath, holder: Any) -> bool:
    if not isinstance(holder, list) or not path[-1]:
        return False
    before = holder[int(path[-1]) - 1]
    if not isinstance(before, str):
        return False
    return (
        before.startswith(REDACTED) or SECRET_OPTION.fullmatch(before) is not None
    )  # a hidden option may have been one


def _is_secret_in_command(path: ConfigPath, holder: Any, value: str) -> bool:
    """One of a program's arguments, or a command line in one text."""
    if isinstance(holder, list):
        before = holder[int(path[-1]) - 1] if path[-1] else None
        plain = REFERENCE.sub("\0", value)
        return is_secret_argument(plain, before if isinstance(before, str) else None) or has_random_segment(plain)
    if not path or path[-1] not in COMMAND_LINES:
        return False
    plain = REFERENCE.sub("\0", value)
    words = plain.split()
    return (
        any(is_secret_argument(word, before) for before, word in pairwise(["", *words]))
        or any(variable_prefix(word, words[max(0, place - LOOKBACK_LIMIT) : place]) for place, word in enumerate(words))
        or SECRET_IN_JSON.search(plain) is not None
        or has_random_segment(plain)
    )


def _contains_secret(value: str) -> bool:
    return SECRET_TEXT.search(REFERENCE.sub("\0", value)) is not None


def redact_secrets(value: Any, mark: str = REDACTED) -> Any:
    """A copy whose secrets are replaced by `mark`. For configs as written: a resolved `${NAME}` looks like any text."""

    def change(path: ConfigPath, inner: Any) -> Any:
        redacted = _redact_value(value, path, inner)
        return inner if redacted is None else redacted.replace(REDACTED, mark)

    return map_values(value, (), change)


def redact_text(text: str, value: Json) -> str:
    """`text` with its secrets replaced, comments and layout kept where that is certain to hide them all."""
    redacted = redact_secrets(value)
    found = [(inner, _redact_value(value, path, inner)) for path, inner in walk_values(value)]
    # Not numbers: a number may occur elsewhere in the text.
    texts = {inner: form for inner, form in found if isinstance(inner, str) and form is not None}
    text = COMMENT.sub(_filter_comment, text)
    for secret in sorted(texts, key=len, reverse=True):
        for quote in ('"', "'"):
            for written in (_escape_text(secret), json.dumps(secret)[1:-1], secret):
                text = text.replace(f"{quote}{written}{quote}", f"{quote}{_escape_text(texts[secret])}{quote}")
    try:
        hidden = parse(text) == redacted
    except BadRequest:
        hidden = False
    if hidden and not any(secret in text or _escape_text(secret) in text for secret in texts if len(secret) > 3):
        return text
    return json.dumps(redacted, indent=2, ensure_ascii=False) + "\n"


def _filter_comment(match: "re.Match[str]") -> str:
    """A comment that can't hold a secret, or a space instead of it; what is no comment stays."""
    comment = match[1]
    return " " if comment and _may_hold_secret(comment) else match[0]


def _may_hold_secret(comment: str) -> bool:
    return SECRET_HINT.search(comment) is not None or _contains_secret(comment) or has_random_segment(comment)


def restore_text(text: str, stored: Json) -> str:
    """`text` with each `REDACTED` replaced by the secret stored at the same place. Raises BadRequest when none is."""
    pieces = text.split(REDACTED)
    if len(pieces) == 1:
        return text
    # Numbered, so that parsing tells which place each one has; the layout of the text is kept. No text that was written
    # before knows the marks, so none can pass for one by how it is spelt.
    marks = [f"{REDACTED}{os.urandom(8).hex()}_{number}" for number in range(len(pieces) - 1)]
    marked = "".join(piece + mark for piece, mark in zip(pieces, marks, strict=False)) + pieces[-1]
    parsed = parse(marked)
    values = [(path, value) for path, value in walk_values(parsed) if isinstance(value, str) and REDACTED in value]
    if sorted(mark for _, value in values for mark in NUMBERED_MARK.findall(value)) != sorted(marks):
        raise BadRequest(BAD_PLACEHOLDER)
    for path, value in values:
        secret = _find_stored_secret(parsed, stored, path, NUMBERED_MARK.sub(REDACTED, value))
        for quote in ('"', "'"):
            new = f"{quote}{_escape_text(secret)}{quote}" if isinstance(secret, str) else json.dumps(secret)
            for written in (_escape_text(value), json.dumps(value)[1:-1], value):
                marked = marked.replace(f"{quote}{written}{quote}", new)
    if _is_different(marked, restore_secrets(parse(text), stored)):
        raise BadRequest(BAD_PLACEHOLDER)
    return marked


def _is_different(text: str, wanted: Json) -> bool:
    """Whether `text` says anything else than `wanted`, of which alone it was judged what it changes."""
    try:
        return parse(text) != wanted
    except BadRequest:
        return True


def _find_stored_secret(value: Any, stored: Any, path: ConfigPath, placeholder: str) -> str | int | float:
    """The secret stored at `path` of `value`, which holds `placeholder`. Raises BadRequest when there is none."""
    root, new, place = stored, value, []
    for step in path:
        value, held, there = value[step], value_at(stored, (step,)), step
        name = value.get("id") if isinstance(value, dict) and isinstance(step, int) else None
        named = isinstance(name, str) and REDACTED not in name
        if named and value_at(held, ("id",)) != name and isinstance(stored, list):
            # Entries with ids may have changed places: none may get another's secret.
            there = next((index for index, item in enumerate(stored) if value_at(item, ("id",)) == name), len(stored))
            held = value_at(stored, (there,))
        stored = held
        place.append(there)
    refers = isinstance(stored, str) and REFERENCE.search(stored)
    redacted = _redact_value(root, tuple(place), stored)
    if not refers and redacted is None:
        raise BadRequest(f"{join_path(path)}: nothing is stored to keep there; write the value itself")
    if placeholder not in (REDACTED, redacted):
        raise BadRequest(f"{join_path(path)}: {BAD_PLACEHOLDER}")
    if not refers and _redact_value(new, path, stored) is None:
        # The argument before it is another now, one that would not hide it.
        raise BadRequest(f"{join_path(path)}: what is stored there would be shown from now on; write the value itself")
    return stored  # type: ignore[no-any-return]  # a secret is a text or a number


def _escape_text(secret: str) -> str:
    """A text as it is written between quotes, single or double."""
    return json.dumps(secret, ensure_ascii=False)[1:-1].replace("'", "\\u0027")


def restore_secrets(value: Any, stored: Any) -> Any:
    """A copy of `value` in which each `REDACTED` is the secret stored at the same place."""

    def change(path: ConfigPath, inner: Any) -> Any:
        return (
            _find_stored_secret(value, stored, path, inner) if isinstance(inner, str) and REDACTED in inner else inner
        )

    return map_values(value, (), change)
