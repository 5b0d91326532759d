"""The config file's text, JSON or JSON5, read into values; values found and replaced by their path."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypedDict

import msgspec

from ..core.errors import BadRequest
from ..core.model import Json

LARGEST_CONFIG: Final = 5 * 1024 * 1024  # bytes; a config beyond this is not one
DEEPEST_NESTING: Final = 64
REFERENCE: Final = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")
"""`${NAME}`: replaced from the environment."""
ConfigPath = tuple[str | int, ...]


class ConfigIssue(TypedDict):
    """Something wrong with a config, or to know about it."""

    path: str
    message: str


def parse(text: str) -> Json:
    """The object in `text`. Raises BadRequest naming line and column."""
    if len(text.encode()) > LARGEST_CONFIG:
        raise BadRequest(f"the config is larger than {LARGEST_CONFIG} bytes")
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        value = _parse_json5(text)
    if not isinstance(value, dict):
        raise BadRequest("the config must be an object: { ... }")
    for path, _ in walk_values(value):
        if len(path) > DEEPEST_NESTING:
            raise BadRequest(f"the config is nested deeper than {DEEPEST_NESTING} levels")
    return value


def _parse_json5(text: str) -> Any:
    import pyjson5  # here for start-up: a plain JSON file needs it not

    try:
        return pyjson5.decode(text, maxdepth=DEEPEST_NESTING * 2)
    except pyjson5.Json5Exception as exc:
        reason = str(exc.args[0] if exc.args else "")
        found = re.search(r"near (\d+)", reason)
        place = "" if found is None else f" ({_format_position(text, int(found[1]))})"
        if found and (unclosed := re.match(r"Unclosed b'(\w+)'", reason)):  # the place is where it begins
            place = f": the {unclosed[1]} that begins at {_format_position(text, int(found[1]))} is not closed"
        raise BadRequest(f"the config is not valid JSON5{place}") from None


def _format_position(text: str, offset: int) -> str:
    before = text[: max(0, offset - 1)]
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def walk_values(value: Any, path: ConfigPath = ()) -> Iterator[tuple[ConfigPath, Any]]:
    """Every value that holds no others, with its path."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from walk_values(inner, (*path, key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from walk_values(inner, (*path, index))
    else:
        yield path, value


def value_at(value: Any, path: ConfigPath) -> Any:
    """The value at `path`, None when there is none."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def join_path(path: ConfigPath) -> str:
    return ".".join(str(step) for step in path)


def map_values(value: Any, path: ConfigPath, change: Callable[[ConfigPath, Any], Any]) -> Any:
    """A copy; `change` makes each value that holds no others from its path and itself."""
    if isinstance(value, dict):
        return {key: map_values(inner, (*path, key), change) for key, inner in value.items()}
    if isinstance(value, list):
        return [map_values(inner, (*path, index), change) for index, inner in enumerate(value)]
    return change(path, value)


def resolve_environment(value: Json, environment: Mapping[str, str]) -> tuple[Json, list[ConfigIssue]]:
    """`${NAME}` replaced from the environment; and an issue for each name that is not set."""
    issues: list[ConfigIssue] = []

    def change(path: ConfigPath, inner: Any) -> Any:
        if not isinstance(inner, str) or "${" not in inner:
            return inner

        def look_up(match: "re.Match[str]") -> str:
            found: str | None = environment.get(match[1])
            if found is None:
                issues.append({"path": join_path(path), "message": f"environment variable {match[1]} is not set"})
                return match[0]
            return found

        return REFERENCE.sub(look_up, inner)

    return map_values(value, (), change), issues
