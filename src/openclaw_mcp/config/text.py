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
from .arguments import KNOWN_SHAPES, is_secret_argument
from .classes import SECRET, class_of
from .secret_names import SHORT_WORD, VALUES, WORD, names_auth, names_many, names_secret

REDACTED: Final = "__OPENCLAW_REDACTED__"
NOT_PLAIN: Final = f"{REDACTED} stands for a stored secret: write it as a whole value, in quotes, and nowhere else"
MASK: Final = "***"
"""Stands for a secret where people read it and nobody writes it back."""
LARGEST: Final = 5 * 1024 * 1024  # bytes; a config beyond this is not one
DEEPEST: Final = 64
REFERENCE: Final = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")
ONLY_REFERENCE: Final = re.compile(rf"(Bearer )?{REFERENCE.pattern}")
_WORD: Final = f"({WORD}|credentials)"
SECRET_HOLDERS: Final = frozenset({"env", "runtimeEnv", "headers"})
"""What stands under these goes to programs and servers, whatever its name: most of it is there to prove who we are."""
NAMING: Final = frozenset(
    {"servers", "providers", "channels", "accounts", "groups", "entries", "identityLinks", "byProvider"}
)
"""What stands under these is named by people: a server called `monkey` is no key."""
KEY_SOURCES: Final = ("env", "file", "keyring")
KEY_PLACE: Final = frozenset({"source", "provider", "service", "path", "id"})
"""The names that tell where a key is kept: `apiKey: {source: "env", id: "A_KEY"}` holds none."""
COUNTS: Final = (
    r"(max|min|most|total|context|input|output|prompt|completion|budget|reserve|num|n)[-_]([\w-]*[-_])?tokens"
)
SECRET_FLAG: Final = re.compile(
    rf"(?!--?{COUNTS})--?[\w-]*{_WORD}s?|(?!--?no-)--?([\w-]*[-_])?({SHORT_WORD}s?|auth)|{REDACTED}.*", re.IGNORECASE
)
"""An argument that says: the next one is secret. A hidden one may have said so."""
COMMAND_LINES: Final = frozenset({"command", "args", "cmd", "argv"})
"""Names whose value may be a whole command line in one text."""
LONGEST_PASSWORD: Final = 256  # characters, when it holds a slash; unbounded, a long text would be searched for minutes
SECRET_TEXT: Final = re.compile(
    r"//(?!\0@|[^:/@\s]*:\0@)"  # an address with a user or a password before the host
    rf"([^/@\s]+|[^/@\s]*:[^@\s]{{1,{LONGEST_PASSWORD}}})@"
    rf"|{_WORD}[\"']?\s*=\s*[\"']?+[^&\s\0]"  # a parameter, an argument, a part of a data source's name
    rf"|(?<![a-z])({SHORT_WORD}s?|access_?code)=[\"']?+[^&\s\0]"
    rf"|(?<![a-z]){WORD}s=[\"']?+(?!\d+\b)[^&\s\0]"  # many; a number of them is a limit
    rf"|(^|\s)--?[\w-]*{_WORD}\s+[^\s\0]"  # a command line in one text
    rf"|(^|=|[\"'])[\w-]*({_WORD}|cookie|x-auth)\s*:\s*(?!(bearer|basic)\s+\0)[^\s\0]"  # a header
    r"|\bbearer\s+[^\s\0]"
    rf"|{KNOWN_SHAPES}",
    re.IGNORECASE,
)
"""A text with a secret in it, `\0` standing for each `${NAME}`."""
COMMENT: Final = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(//[^\n\r\u2028\u2029]*|/\*.*?\*/)""", re.DOTALL)
"""A comment, its first group; or a text, so that what looks like a comment inside of one is none."""
TELLING: Final = re.compile(rf"""{_WORD}|auth|\b{SHORT_WORD}s?\b|"|[:,\[]\s*'""", re.IGNORECASE)
"""In a comment: a secret's name, or a text, as where settings are commented out."""

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
    value, holder = at(whole, path), at(whole, path[:-1])
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return False
    if isinstance(value, str) and ONLY_REFERENCE.fullmatch(value):
        return False
    if _stands_secret(path, holder, value) or _follows_flag(path, holder):
        return True
    return isinstance(value, str) and (_says_secret(value) or _is_secret_word(path, holder, value))


def _stands_secret(path: Path, holder: Any, value: str | float) -> bool:
    last = len(path) - 1
    named = {place for place in range(1, last) if path[place - 1] in NAMING}  # names of things, not of values
    names = [step for place, step in enumerate(path) if isinstance(step, str) and place not in named]
    if not names:
        return False
    secret = [name for name in names if names_secret(name) and (isinstance(value, str) or not names_many(name))]
    if not SECRET_HOLDERS.isdisjoint(names) or names[-1] == "auth" or names[-1] in secret:
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
    return isinstance(before, str) and SECRET_FLAG.fullmatch(before) is not None


def _is_secret_word(path: Path, holder: Any, value: str) -> bool:
    """One of a program's arguments, or a command line in one text."""
    if isinstance(holder, list):
        before = holder[int(path[-1]) - 1] if path[-1] else None
        return is_secret_argument(REFERENCE.sub("\0", value), before if isinstance(before, str) else None)
    if not path or path[-1] not in COMMAND_LINES:
        return False
    words = REFERENCE.sub("\0", value).split()
    return any(is_secret_argument(word, before) for before, word in pairwise(["", *words]))


def _says_secret(value: str) -> bool:
    return SECRET_TEXT.search(REFERENCE.sub("\0", value)) is not None


def redacted(value: Any, mark: str = REDACTED) -> Any:
    """A copy whose secrets read `mark`. Of what is not resolved: a value from the environment looks like any other."""
    return _mapped(value, (), lambda path, inner: mark if is_secret(value, path) else inner)


def _mapped(value: Any, path: Path, change: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(inner, (*path, key), change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_mapped(inner, (*path, index), change) for index, inner in enumerate(value)]
    return change(path, value)


def redacted_text(text: str, value: Json) -> str:
    """`text` with its secrets replaced, comments and layout kept where that is certain to hide them all."""
    shown = redacted(value)
    found = [inner for path, inner in walk(value) if is_secret(value, path)]
    texts = {inner for inner in found if isinstance(inner, str)}  # a number can't be told from others by its text
    text = COMMENT.sub(_harmless, text)
    for secret in sorted(texts, key=len, reverse=True):
        for quote in ('"', "'"):
            for written in (_inner(secret), json.dumps(secret)[1:-1], secret):
                text = text.replace(f"{quote}{written}{quote}", f"{quote}{REDACTED}{quote}")
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
    return " " if comment and (TELLING.search(comment) or _says_secret(comment)) else match[0]


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
    places = {value: path for path, value in walk(parsed) if isinstance(value, str) and value.startswith(REDACTED)}
    if set(places) != set(marks):
        raise BadRequest(NOT_PLAIN)
    for mark, path in places.items():
        secret = _kept(parsed, stored, path)
        written = json.dumps(secret) if not isinstance(secret, str) else None
        for quote in ('"', "'"):
            new = written or f"{quote}{_inner(str(secret))}{quote}"
            marked = marked.replace(f"{quote}{mark}{quote}", new)
    if _is_other(marked, keep_secrets(parse(text), stored)):
        raise BadRequest(NOT_PLAIN)
    return marked


def _is_other(text: str, wanted: Json) -> bool:
    """Whether `text` says anything else than `wanted`, of which alone it was judged what it changes."""
    try:
        return parse(text) != wanted
    except BadRequest:
        return True


def _kept(value: Any, stored: Any, path: Path) -> str | int | float:
    """The secret stored where `path` leads in `value`. Raises BadRequest when none is."""
    whole, new, place = stored, value, []
    for step in path:
        value, held, there = value[step], at(stored, (step,)), step
        name = value.get("id") if isinstance(value, dict) and isinstance(step, int) else None
        named = isinstance(name, str) and not name.startswith(REDACTED)
        if named and at(held, ("id",)) != name and isinstance(stored, list):
            # Things that have ids may have changed places: nobody must get another's secret.
            there = next((index for index, item in enumerate(stored) if at(item, ("id",)) == name), len(stored))
            held = at(stored, (there,))
        stored = held
        place.append(there)
    refers = isinstance(stored, str) and REFERENCE.search(stored)
    if not refers and not is_secret(whole, tuple(place)):
        raise BadRequest(f"{dotted(path)}: nothing is stored to keep there; write the value itself")
    hides_itself = _says_secret(str(stored)) or _is_secret_word(path, at(new, path[:-1]), str(stored))
    if not refers and not is_secret(new, path) and not hides_itself:
        # The argument before it is another now, one that would not hide it.
        raise BadRequest(f"{dotted(path)}: what is stored there would be shown from now on; write the value itself")
    return stored  # type: ignore[no-any-return]  # a secret is a text or a number


def _inner(secret: str) -> str:
    """A text as it stands between quotes, single or double."""
    return json.dumps(secret, ensure_ascii=False)[1:-1].replace("'", "\\u0027")


def keep_secrets(value: Any, stored: Any) -> Any:
    """A copy of `value` in which each `REDACTED` is the secret stored at the same place."""

    def change(path: Path, inner: Any) -> Any:
        return _kept(value, stored, path) if inner == REDACTED else inner

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
