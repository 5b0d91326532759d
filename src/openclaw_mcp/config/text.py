"""The config file's text: JSON or JSON5, read into values; secrets taken out of it and put back in place."""

import json
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import msgspec

from ..core.errors import BadRequest
from ..core.model import Json
from .key_permissions import SECRET, class_of
from .secret_addresses import has_random_step, shown_part, tells_behind_host
from .secret_arguments import MOST_VARIABLES, is_secret_argument, variable_set
from .secret_names import VALUES, holds_secrets, names_auth, names_many, names_secret, names_webhook
from .secret_texts import IN_JSON, SECRET_FLAG, SECRET_TEXT, TELLING

REDACTED: Final = "__OPENCLAW_REDACTED__"
NOT_PLAIN: Final = (
    f"{REDACTED} stands for a stored secret: write it in quotes, alone or as it was shown, and nowhere else"
)
MASK: Final = "***"
"""Stands for a secret where people read it and nobody writes it back."""
NUMBERED: Final = re.compile(rf"{REDACTED}[0-9a-f]{{16}}_\d+")
LARGEST: Final = 5 * 1024 * 1024  # bytes; a config beyond this is not one
DEEPEST: Final = 64
REFERENCE: Final = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")
ONLY_REFERENCE: Final = re.compile(rf"(Bearer )?{REFERENCE.pattern}")
NAMING: Final = frozenset(
    {"servers", "providers", "channels", "accounts", "groups", "entries", "identityLinks", "byProvider"}
)
"""What stands under these is named by people: a server called `monkey` is no key."""
KEY_SOURCES: Final = ("env", "file", "keyring")
KEY_PLACE: Final = frozenset({"source", "provider", "service", "path", "id"})
"""The names that tell where a key is kept: `apiKey: {source: "env", id: "A_KEY"}` holds none."""
COMMAND_LINES: Final = frozenset({"command", "args", "cmd", "argv"})
"""Names whose value may be a whole command line in one text."""
STRUCTURED: Final = re.compile(r"(?P<option>--?[\w.-]+=)?\s*(?P<json>[\[{].*)", re.DOTALL)
"""An argument that may be JSON."""
ASSIGNED: Final = re.compile(r"(?P<name>[\w.\"'-]+\s*=).+", re.DOTALL)
"""An argument that may be TOML."""
COMMENT: Final = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(//[^\n\r\u2028\u2029]*|/\*.*?\*/)""", re.DOTALL)
"""A comment, its first group; or a text, so that what looks like a comment inside of one is none."""
Path = tuple[str | int, ...]


def parse(text: str) -> Json:
    """The object `text` says. Raises BadRequest naming line and column."""
    if len(text.encode()) > LARGEST:
        raise BadRequest(f"the config is larger than {LARGEST} bytes")
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        value = _json5(text)
    if not isinstance(value, dict):
        raise BadRequest("the config must be an object: { ... }")
    for path, _ in walk(value):
        if len(path) > DEEPEST:
            raise BadRequest(f"the config is nested deeper than {DEEPEST} levels")
    return value


def _json5(text: str) -> Any:
    import pyjson5  # here for start-up: a plain JSON file needs it not

    try:
        return pyjson5.decode(text, maxdepth=DEEPEST * 2)
    except pyjson5.Json5Exception as exc:
        where = getattr(exc, "args", ("",))[0]
        offset = next((int(n) for n in re.findall(r"near (\d+)", str(where))), None)
        place = "" if offset is None else _line_and_column(text, offset)
        raise BadRequest(f"the config is not valid JSON5{place}") from None


def _line_and_column(text: str, offset: int) -> str:
    before = text[: max(0, offset - 1)]
    return f" (line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))})"


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value that holds no others, with its path."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from walk(inner, (*path, key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from walk(inner, (*path, index))
    else:
        yield path, value


def at(value: Any, path: Path) -> Any:
    """What stands at `path`, None when nothing does."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def dotted(path: Path) -> str:
    return ".".join(str(step) for step in path)


def is_secret(whole: Any, path: Path) -> bool:
    """Whether a text or number in `whole` is secret by where it stands or what it says.

    A text that is merely `${A_REFERENCE}` to the environment is not.
    """
    return _shown_as(whole, path, at(whole, path)) is not None


def _shown_as(whole: Any, path: Path, value: Any) -> str | None:
    """What is shown in place of `value`, were it at `path` of `whole`, with `REDACTED` for what is left out; None: it
    is no secret there."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return None
    if isinstance(value, str) and ONLY_REFERENCE.fullmatch(value):
        return None
    holder = at(whole, path[:-1])
    if _stands_secret(path, holder, value) or _follows_flag(path, holder):
        return REDACTED
    if not isinstance(value, str):
        return None
    part = _part_of_argument(whole, path, holder, value) or _part_of_address(path, holder, value)
    if part is None and (_says_secret(value) or _is_secret_word(path, holder, value)):
        return REDACTED
    return part


def _part_of_argument(whole: Any, path: Path, holder: Any, value: str) -> str | None:
    """What is shown of an argument that sets a variable, or is JSON or TOML with secrets in it."""
    if not isinstance(holder, list) or value.isalnum():
        return None
    name = variable_set(REFERENCE.sub("\0", value), _words_before(whole, path, holder)) if "=" in value else None
    if name is not None:
        return name + REDACTED
    json_in, toml_in = STRUCTURED.fullmatch(value), ASSIGNED.fullmatch(value)
    if json_in is not None:
        return _part_of_json(json_in["option"] or "", json_in["json"])
    if toml_in is not None and _is_secret_toml(value):
        return toml_in["name"] + REDACTED
    return None


def _words_before(whole: Any, path: Path, holder: list[Any]) -> list[str]:
    here = int(path[-1])
    program = at(whole, (*path[:-2], "command")) if here < MOST_VARIABLES else None
    words = holder[max(0, here - MOST_VARIABLES) : here]
    return [str(word) for word in ([program, *words] if isinstance(program, str) else words)]


def _part_of_json(option: str, text: str) -> str | None:
    """The JSON with its secrets hidden as in a config; what can't be read is hidden whole if it names a secret."""
    try:
        value = msgspec.json.decode(text)
        shown = redacted(value)
        return None if shown == value else option + json.dumps(shown, ensure_ascii=False)
    except (msgspec.DecodeError, RecursionError):
        return REDACTED if TELLING.search(REFERENCE.sub("", text)) else None


def _is_secret_toml(text: str) -> bool:
    import tomllib  # here for start-up: few configs hold any

    try:
        value = tomllib.loads(text)
        return bool(redacted(value) != value)
    except (tomllib.TOMLDecodeError, RecursionError):
        return False


def _part_of_address(path: Path, holder: Any, value: str) -> str | None:
    """What is shown of an address of the web that is secret, or holds a secret: its host."""
    shown = shown_part(value)
    if shown is None:
        return None
    plain = REFERENCE.sub("\0", value)
    by_name = "\0" not in plain and _is_known_to_few(path, holder) and tells_behind_host(plain)
    return shown + REDACTED if by_name or has_random_step(plain) or _says_secret(value) else None


def _is_known_to_few(path: Path, holder: Any) -> bool:
    """Whether the address here may be all that it takes to use what it leads to: an MCP server's, a webhook's."""
    if isinstance(holder, list):
        before = holder[int(path[-1]) - 1] if path[-1] else None
        return isinstance(before, str) and before.startswith("-") and names_webhook(before)
    name = str(path[-1]) if path else ""
    return name == "to" or names_webhook(name) or (path[-3:-2] == ("servers",) and name == "url")


def _stands_secret(path: Path, holder: Any, value: str | float) -> bool:
    last = len(path) - 1
    named = {place for place in range(1, last) if path[place - 1] in NAMING}  # names of things, not of values
    names = [step for place, step in enumerate(path) if isinstance(step, str) and place not in named]
    if not names:
        return False
    secret = [name for name in names if names_secret(name) and (isinstance(value, str) or not names_many(name))]
    if holds_secrets(names) or names[-1] == "auth" or names[-1] in secret:
        return True
    if names[-1] in VALUES and any(map(names_auth, names)):
        return True
    is_place = isinstance(holder, dict) and holder.get("source") in KEY_SOURCES and path[-1] in KEY_PLACE
    is_file = names[-1].endswith("File")  # names the file a secret is in
    return not is_place and (bool(secret) or (class_of(path) == SECRET and not is_file))


def _follows_flag(path: Path, holder: Any) -> bool:
    if not isinstance(holder, list) or not path[-1]:
        return False
    before = holder[int(path[-1]) - 1]
    if not isinstance(before, str):
        return False
    return before.startswith(REDACTED) or SECRET_FLAG.fullmatch(before) is not None  # a hidden one may have said so


def _is_secret_word(path: Path, holder: Any, value: str) -> bool:
    """One of a program's arguments, or a command line in one text."""
    if isinstance(holder, list):
        before = holder[int(path[-1]) - 1] if path[-1] else None
        plain = REFERENCE.sub("\0", value)
        return is_secret_argument(plain, before if isinstance(before, str) else None) or has_random_step(plain)
    if not path or path[-1] not in COMMAND_LINES:
        return False
    plain = REFERENCE.sub("\0", value)
    words = plain.split()
    return (
        any(is_secret_argument(word, before) for before, word in pairwise(["", *words]))
        or any(variable_set(word, words[max(0, place - MOST_VARIABLES) : place]) for place, word in enumerate(words))
        or IN_JSON.search(plain) is not None
        or has_random_step(plain)
    )


def _says_secret(value: str) -> bool:
    return SECRET_TEXT.search(REFERENCE.sub("\0", value)) is not None


def redacted(value: Any, mark: str = REDACTED) -> Any:
    """A copy whose secrets read `mark`. Of what is not resolved: a value from the environment looks like any other."""

    def change(path: Path, inner: Any) -> Any:
        shown = _shown_as(value, path, inner)
        return inner if shown is None else shown.replace(REDACTED, mark)

    return _mapped(value, (), change)


def _mapped(value: Any, path: Path, change: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(inner, (*path, key), change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_mapped(inner, (*path, index), change) for index, inner in enumerate(value)]
    return change(path, value)


def redacted_text(text: str, value: Json) -> str:
    """`text` with its secrets replaced, comments and layout kept where that is certain to hide them all."""
    shown = redacted(value)
    found = [(inner, _shown_as(value, path, inner)) for path, inner in walk(value)]
    # A number can't be told from others by its text.
    texts = {inner: form for inner, form in found if isinstance(inner, str) and form is not None}
    text = COMMENT.sub(_harmless, text)
    for secret in sorted(texts, key=len, reverse=True):
        for quote in ('"', "'"):
            for written in (_inner(secret), json.dumps(secret)[1:-1], secret):
                text = text.replace(f"{quote}{written}{quote}", f"{quote}{_inner(texts[secret])}{quote}")
    try:
        hidden = parse(text) == shown
    except BadRequest:
        hidden = False
    if hidden and not any(secret in text or _inner(secret) in text for secret in texts if len(secret) > 3):
        return text
    return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


def _harmless(match: "re.Match[str]") -> str:
    """A comment that can't hold a secret, or a space instead of it; what is no comment stays."""
    comment = match[1]
    return " " if comment and _may_tell(comment) else match[0]


def _may_tell(comment: str) -> bool:
    return TELLING.search(comment) is not None or _says_secret(comment) or has_random_step(comment)


def restored(text: str, stored: Json) -> str:
    """`text` with each `REDACTED` replaced by the secret stored at the same place. Raises BadRequest when none is."""
    pieces = text.split(REDACTED)
    if len(pieces) == 1:
        return text
    # Numbered, so that parsing tells which place each one has; the layout of the text is kept. No text that was written
    # before knows the marks, so none can pass for one by how it is spelt.
    marks = [f"{REDACTED}{os.urandom(8).hex()}_{number}" for number in range(len(pieces) - 1)]
    marked = "".join(piece + mark for piece, mark in zip(pieces, marks, strict=False)) + pieces[-1]
    parsed = parse(marked)
    values = [(path, value) for path, value in walk(parsed) if isinstance(value, str) and REDACTED in value]
    if sorted(mark for _, value in values for mark in NUMBERED.findall(value)) != sorted(marks):
        raise BadRequest(NOT_PLAIN)
    for path, value in values:
        secret = _kept(parsed, stored, path, NUMBERED.sub(REDACTED, value))
        for quote in ('"', "'"):
            new = f"{quote}{_inner(secret)}{quote}" if isinstance(secret, str) else json.dumps(secret)
            for written in (_inner(value), json.dumps(value)[1:-1], value):
                marked = marked.replace(f"{quote}{written}{quote}", new)
    if _is_other(marked, keep_secrets(parse(text), stored)):
        raise BadRequest(NOT_PLAIN)
    return marked


def _is_other(text: str, wanted: Json) -> bool:
    """Whether `text` says anything else than `wanted`, of which alone it was judged what it changes."""
    try:
        return parse(text) != wanted
    except BadRequest:
        return True


def _kept(value: Any, stored: Any, path: Path, given: str) -> str | int | float:
    """The secret stored where `path` leads in `value`, where `given` stands. Raises BadRequest when none is."""
    whole, new, place = stored, value, []
    for step in path:
        value, held, there = value[step], at(stored, (step,)), step
        name = value.get("id") if isinstance(value, dict) and isinstance(step, int) else None
        named = isinstance(name, str) and REDACTED not in name
        if named and at(held, ("id",)) != name and isinstance(stored, list):
            # Things that have ids may have changed places: nobody must get another's secret.
            there = next((index for index, item in enumerate(stored) if at(item, ("id",)) == name), len(stored))
            held = at(stored, (there,))
        stored = held
        place.append(there)
    refers = isinstance(stored, str) and REFERENCE.search(stored)
    shown = _shown_as(whole, tuple(place), stored)
    if not refers and shown is None:
        raise BadRequest(f"{dotted(path)}: nothing is stored to keep there; write the value itself")
    if given not in (REDACTED, shown):
        raise BadRequest(f"{dotted(path)}: {NOT_PLAIN}")
    if not refers and _shown_as(new, path, stored) is None:
        # The argument before it is another now, one that would not hide it.
        raise BadRequest(f"{dotted(path)}: what is stored there would be shown from now on; write the value itself")
    return stored  # type: ignore[no-any-return]  # a secret is a text or a number


def _inner(secret: str) -> str:
    """A text as it stands between quotes, single or double."""
    return json.dumps(secret, ensure_ascii=False)[1:-1].replace("'", "\\u0027")


def keep_secrets(value: Any, stored: Any) -> Any:
    """A copy of `value` in which each `REDACTED` is the secret stored at the same place."""

    def change(path: Path, inner: Any) -> Any:
        return _kept(value, stored, path, inner) if isinstance(inner, str) and REDACTED in inner else inner

    return _mapped(value, (), change)


def resolved(value: Json, environment: Any) -> tuple[Json, list[Json]]:
    """`${NAME}` replaced from the environment; and an issue for each name that is not set."""
    issues: list[Json] = []

    def change(path: Path, inner: Any) -> Any:
        if not isinstance(inner, str) or "${" not in inner:
            return inner

        def look_up(match: "re.Match[str]") -> str:
            found: str | None = environment.get(match[1])
            if found is None:
                issues.append({"path": dotted(path), "message": f"environment variable {match[1]} is not set"})
                return match[0]
            return found

        return REFERENCE.sub(look_up, inner)

    return _mapped(value, (), change), issues
