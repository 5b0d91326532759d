"""The config file's text: JSON or JSON5, read into values; secrets taken out of it and put back in place."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from ..core.errors import BadRequest
from ..core.model import Json

REDACTED: Final = "__OPENCLAW_REDACTED__"
LARGEST: Final = 5 * 1024 * 1024  # bytes; a config beyond this is not one
DEEPEST: Final = 64
REFERENCE: Final = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")
SECRET_NAME: Final = re.compile(r"(token|password|passwd|secret|key|credentials?|authorization)$", re.IGNORECASE)
"""Names whose values are secret wherever they stand."""
PLAIN_NAME: Final = re.compile(r"(main|session|idempotency|declaration|public)[-_]?key$", re.IGNORECASE)
"""Keys that open nothing: names of sessions, of jobs, of what was sent already."""
SECRET_HOLDERS: Final = frozenset({"env", "runtimeEnv", "headers"})
"""What stands under these goes to programs and servers, whatever its name: most of it is there to prove who we are."""
URL_SECRET: Final = re.compile(
    r"://[^/@\s]*:[^@\s]+@|(^|[?&])[^=&\s]*(token|password|passwd|secret|key|credentials?)=[^&\s]", re.IGNORECASE
)
"""An address with a password in it, before the host or among its parameters; an argument such as `--token=…`."""

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


def names_secret(name: str) -> bool:
    return SECRET_NAME.search(name) is not None and PLAIN_NAME.search(name) is None


def is_secret(path: Path, value: Any) -> bool:
    """A text that is secret by where it stands or what it says, and not merely `${A_REFERENCE}` to the environment."""
    names = [step for step in path if isinstance(step, str)]
    if not names or not isinstance(value, str) or not value or REFERENCE.fullmatch(value):
        return False
    if names_secret(names[-1]) or not SECRET_HOLDERS.isdisjoint(names[:-1]):
        return True
    return URL_SECRET.search(REFERENCE.sub("", value)) is not None


def redacted(value: Any) -> Any:
    """A copy whose secrets read `REDACTED`."""
    return _mapped(value, (), lambda path, inner: REDACTED if is_secret(path, inner) else inner)


def _mapped(value: Any, path: Path, change: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(inner, (*path, key), change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_mapped(inner, (*path, index), change) for index, inner in enumerate(value)]
    return change(path, value)


def redacted_text(text: str, value: Json) -> str:
    """`text` with its secrets replaced, comments and layout kept where that is certain to hide them all."""
    shown = redacted(value)
    secrets = {inner for path, inner in walk(value) if is_secret(path, inner)}
    for secret in sorted(secrets, key=len, reverse=True):
        for quote in ('"', "'"):
            for written in (_inner(secret), json.dumps(secret)[1:-1], secret):
                text = text.replace(f"{quote}{written}{quote}", f"{quote}{REDACTED}{quote}")
    try:
        hidden = parse(text) == shown
    except BadRequest:
        hidden = False
    if hidden and not any(secret in text or _inner(secret) in text for secret in secrets if len(secret) > 3):
        return text
    return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


def restored(text: str, stored: Json) -> str:
    """`text` with each `REDACTED` replaced by the secret stored at the same place. Raises BadRequest when none is."""
    pieces = text.split(REDACTED)
    if len(pieces) == 1:
        return text
    # Numbered, so that parsing tells which place each one has; the layout of the text is kept.
    marked = "".join(f"{piece}{REDACTED}{number}#" for number, piece in enumerate(pieces[:-1])) + pieces[-1]
    secrets = {}
    parsed = parse(marked)
    for path, value in walk(parsed):
        if isinstance(value, str) and (found := re.fullmatch(rf"{REDACTED}(\d+)#", value)):
            secrets[found[1]] = _kept(parsed, stored, path)
    return re.sub(
        rf"{REDACTED}(\d+)#", lambda match: _inner(secrets[match[1]]) if match[1] in secrets else REDACTED, marked
    )


def _kept(value: Any, stored: Any, path: Path) -> str:
    """The secret stored where `path` leads in `value`. Raises BadRequest when none is."""
    for step in path:
        value, held = value[step], at(stored, (step,))
        name = value.get("id") if isinstance(value, dict) and isinstance(step, int) else None
        named = isinstance(name, str) and not name.startswith(REDACTED)
        if named and at(held, ("id",)) != name and isinstance(stored, list):
            # Things that have ids may have changed places: nobody must get another's secret.
            held = next((item for item in stored if at(item, ("id",)) == name), None)
        stored = held
    if not isinstance(stored, str) or not (is_secret(path, stored) or REFERENCE.search(stored)):
        raise BadRequest(f"{dotted(path)}: nothing is stored to keep there; write the value itself")
    return stored


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
