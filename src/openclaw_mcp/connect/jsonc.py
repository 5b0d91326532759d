"""Edits to JSON that a person keeps by hand: a member goes in or out, every other byte stays as it was."""

import json
from typing import Any, Final, NamedTuple

import pyjson5

from ..core.errors import OpenClawError

STEP: Final = "  "
SPACE: Final = " \t\r\n\ufeff"


class CannotEdit(OpenClawError):
    """The file is not what it should be; it is left alone."""

    code = "cannot_edit"


class Member(NamedTuple):
    name: str
    start: int
    """Where its name begins."""
    value: int
    end: int
    """Just after its value."""


class Braces(NamedTuple):
    """An object in the text."""

    start: int
    """Where its `{` stands."""
    end: int
    """Where its `}` stands."""
    members: tuple[Member, ...]


def put(text: str, path: tuple[str, ...], name: str, value: Any) -> str:
    """`text` with `name: value` in the object at `path`, in place of what is there under that name. Missing objects on
    the way are made. Raises CannotEdit."""
    if not text.strip(SPACE):
        text = text.rstrip(SPACE) + "{}\n"
    here = _object(text, _skip(text, 0))
    for depth, step in enumerate(path):
        found = _find(here, step)
        if found is None:
            for missing in reversed(path[depth + 1 :]):
                name, value = missing, {name: value}
            return _insert(text, here, step, {name: value})
        here = _object(text, found.value)
    found = _find(here, name)
    if found is None:
        return _insert(text, here, name, value)
    return text[: found.value] + _written(value, _indent(text, found.start), _newline(text)) + text[found.end :]


def drop(text: str, path: tuple[str, ...], name: str) -> str:
    """`text` without that member, and without the comma and line it leaves; the same text when it is not there."""
    here = _object(text, _skip(text, 0))
    for step in path:
        found = _find(here, step)
        if found is None:
            return text
        here = _object(text, found.value)
    for place, member in enumerate(here.members):
        if member.name == name:
            return _cut(text, here, place)
    return text


def read(text: str) -> dict[str, Any]:
    """What the text says; nothing at all is an empty object. Raises CannotEdit."""
    if not text.strip(SPACE):
        return {}
    try:
        value = pyjson5.decode(text.lstrip(SPACE))
    except pyjson5.Json5DecoderException as exc:
        raise CannotEdit("it is not JSON; correct it by hand first") from exc
    if not isinstance(value, dict):
        raise CannotEdit("it holds no JSON object")
    return value


def _find(braces: Braces, name: str) -> Member | None:
    return next((member for member in braces.members if member.name == name), None)


def _insert(text: str, braces: Braces, name: str, value: Any) -> str:
    newline = _newline(text)
    if braces.members:
        last = braces.members[-1]
        indent = _indent(text, last.start)
        member = f"{json.dumps(name, ensure_ascii=False)}: {_written(value, indent, newline)}"
        return f"{text[: last.end]},{newline}{indent}{member}{text[last.end :]}"
    outer = _indent(text, braces.start)
    indent = outer + ("\t" if "\n\t" in text else STEP)
    member = f"{json.dumps(name, ensure_ascii=False)}: {_written(value, indent, newline)}"
    return f"{text[: braces.start + 1]}{newline}{indent}{member}{newline}{outer}{text[braces.end :]}"


def _cut(text: str, braces: Braces, place: int) -> str:
    member = braces.members[place]
    if place:  # with the comma before it: what `_insert` wrote
        comma = _skip(text, braces.members[place - 1].end)
        between = text[comma + 1 : member.start]
        return text[:comma] + (between.rstrip(SPACE) if between.strip(SPACE) else "") + text[member.end :]
    if len(braces.members) > 1:
        return text[: member.start] + text[braces.members[1].start :]
    rest = _skip(text, member.end)
    rest = rest + 1 if text[rest] == "," else member.end
    if text[braces.start + 1 : member.start].strip(SPACE) or text[rest : braces.end].strip(SPACE):
        return text[: member.start] + text[rest:]  # somebody's comment stays
    return text[: braces.start + 1] + text[braces.end :]


def _written(value: Any, indent: str, newline: str) -> str:
    step = "\t" if indent.startswith("\t") else STEP
    return json.dumps(value, indent=step, ensure_ascii=False).replace("\n", newline + indent)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent(text: str, at: int) -> str:
    """The white space that begins the line of `at`."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


# ---- reading -------------------------------------------------------------------------------------------------------


def _skip(text: str, at: int) -> int:
    """The next place that is neither white space nor comment."""
    while at < len(text):
        if text[at] in SPACE:
            at += 1
        elif text.startswith("//", at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end + 1
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            if end < 0:
                raise CannotEdit("a comment in it never ends")
            at = end + 2
        else:
            return at
    raise CannotEdit("it ends too early")


def _object(text: str, at: int) -> Braces:
    if text[at] != "{":
        raise CannotEdit(f"line {text.count(chr(10), 0, at) + 1} should begin an object")
    members, place = [], _skip(text, at + 1)
    while text[place] != "}":
        name, after = _string(text, place)
        colon = _skip(text, after)
        if text[colon] != ":":
            raise CannotEdit(f"line {text.count(chr(10), 0, colon) + 1} lacks a colon")
        value = _skip(text, colon + 1)
        end = _past(text, value)
        members.append(Member(name, place, value, end))
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
        elif text[place] != "}":
            raise CannotEdit(f"line {text.count(chr(10), 0, place) + 1} lacks a comma")
    return Braces(at, place, tuple(members))


def _string(text: str, at: int) -> tuple[str, int]:
    if text[at] != '"':
        raise CannotEdit(f"line {text.count(chr(10), 0, at) + 1} has a name without double quotes")
    end = at + 1
    while end < len(text) and text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    try:
        return json.loads(text[at : end + 1]), end + 1
    except ValueError as exc:
        raise CannotEdit(f"line {text.count(chr(10), 0, at) + 1} has a broken string") from exc


def _past(text: str, at: int) -> int:
    """Just after the value that begins at `at`."""
    if text[at] == '"':
        return _string(text, at)[1]
    if text[at] == "{":
        return _object(text, at).end + 1
    if text[at] == "[":
        at = _skip(text, at + 1)
        while text[at] != "]":
            at = _skip(text, _past(text, at))
            at = _skip(text, at + 1) if text[at] == "," else at
        return at + 1
    end = at
    while end < len(text) and text[end] not in ",]}" and text[end] not in SPACE and text[end] != "/":
        end += 1
    if end == at:
        raise CannotEdit(f"line {text.count(chr(10), 0, at) + 1} lacks a value")
    return end
