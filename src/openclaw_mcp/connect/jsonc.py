"""Edits of JSON that a person maintains: a member is added or removed, every other byte stays."""

import json
from typing import Any, Final, NamedTuple

import pyjson5

from ..core.errors import OpenClawError

INDENT: Final = "  "
SPACE: Final = " \t\r\n\ufeff"


class CannotEdit(OpenClawError):
    """The file has not the expected form; it is not changed."""

    code = "cannot_edit"


class MemberSpan(NamedTuple):
    name: str
    start: int
    """The position of its name."""
    value: int
    end: int
    """Just after its value."""


class ObjectSpan(NamedTuple):
    """An object in the text."""

    start: int
    """The position of its `{`."""
    end: int
    """The position of its `}`."""
    members: tuple[MemberSpan, ...]


def put(text: str, path: tuple[str, ...], name: str, value: Any) -> str:
    """`text` with `name: value` in the object at `path`, replacing a member of that name. Missing objects are
    created. Raises CannotEdit."""
    if not text.strip(SPACE):
        text = text.rstrip(SPACE) + "{}\n"
    here = _parse_object(text, _skip_space(text, 0))
    for depth, step in enumerate(path):
        found = _find_member(here, step)
        if found is None:
            for missing in reversed(path[depth + 1 :]):
                name, value = missing, {name: value}
            return _insert_member(text, here, step, {name: value})
        here = _parse_object(text, found.value)
    found = _find_member(here, name)
    if found is None:
        return _insert_member(text, here, name, value)
    new = _format_value(value, _indent_at(text, found.start), _newline_of(text))
    return text[: found.value] + new + text[found.end :]


def drop(text: str, path: tuple[str, ...], name: str) -> str:
    """`text` without that member and its comma and line; the same text when there is no such member."""
    here = _parse_object(text, _skip_space(text, 0))
    for step in path:
        found = _find_member(here, step)
        if found is None:
            return text
        here = _parse_object(text, found.value)
    for place, member in enumerate(here.members):
        if member.name == name:
            return _remove_member(text, here, place)
    return text


def read(text: str) -> dict[str, Any]:
    """The object in the text; empty text is an empty object. Raises CannotEdit."""
    if not text.strip(SPACE):
        return {}
    try:
        value = pyjson5.decode(text.lstrip(SPACE))
    except pyjson5.Json5DecoderException as exc:
        raise CannotEdit("it is not JSON; correct it by hand first") from exc
    if not isinstance(value, dict):
        raise CannotEdit("it holds no JSON object")
    return value


def _find_member(span: ObjectSpan, name: str) -> MemberSpan | None:
    return next((member for member in span.members if member.name == name), None)


def _insert_member(text: str, span: ObjectSpan, name: str, value: Any) -> str:
    newline, last = _newline_of(text), span.members[-1] if span.members else None
    outer = _indent_at(text, span.start)
    indent = outer + ("\t" if "\n\t" in text else INDENT) if last is None else _indent_at(text, last.start)
    member = f"{json.dumps(name, ensure_ascii=False)}: {_format_value(value, indent, newline)}"
    if last is not None:
        return f"{text[: last.end]},{newline}{indent}{member}{text[last.end :]}"
    return f"{text[: span.start + 1]}{newline}{indent}{member}{newline}{outer}{text[span.end :]}"


def _remove_member(text: str, span: ObjectSpan, index: int) -> str:
    member = span.members[index]
    if index:  # with the comma before it, as `_insert_member` wrote it
        comma = _skip_space(text, span.members[index - 1].end)
        between = text[comma + 1 : member.start]
        return text[:comma] + (between.rstrip(SPACE) if between.strip(SPACE) else "") + text[member.end :]
    if len(span.members) > 1:
        return text[: member.start] + text[span.members[1].start :]
    rest = _skip_space(text, member.end)
    rest = rest + 1 if text[rest] == "," else member.end
    if text[span.start + 1 : member.start].strip(SPACE) or text[rest : span.end].strip(SPACE):
        return text[: member.start] + text[rest:]  # a comment stays
    return text[: span.start + 1] + text[span.end :]


def _format_value(value: Any, indent: str, newline: str) -> str:
    step = "\t" if indent.startswith("\t") else INDENT
    return json.dumps(value, indent=step, ensure_ascii=False).replace("\n", newline + indent)


def _newline_of(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent_at(text: str, at: int) -> str:
    """The white space that begins the line of `at`."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


# ---- reading -------------------------------------------------------------------------------------------------------


def _skip_space(text: str, at: int) -> int:
    """The next position that is neither white space nor comment."""
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


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _parse_object(text: str, at: int) -> ObjectSpan:
    if text[at] != "{":
        raise CannotEdit(f"line {_line(text, at)} should begin an object")
    members, place = [], _skip_space(text, at + 1)
    while text[place] != "}":
        name, after = _parse_string(text, place)
        colon = _skip_space(text, after)
        if text[colon] != ":":
            raise CannotEdit(f"line {_line(text, colon)} lacks a colon")
        value = _skip_space(text, colon + 1)
        end = _skip_value(text, value)
        members.append(MemberSpan(name, place, value, end))
        place = _skip_space(text, end)
        if text[place] == ",":
            place = _skip_space(text, place + 1)
        elif text[place] != "}":
            raise CannotEdit(f"line {_line(text, place)} lacks a comma")
    return ObjectSpan(at, place, tuple(members))


def _parse_string(text: str, at: int) -> tuple[str, int]:
    if text[at] != '"':
        raise CannotEdit(f"line {_line(text, at)} has a name without double quotes")
    end = at + 1
    while end < len(text) and text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    try:
        return json.loads(text[at : end + 1]), end + 1
    except ValueError as exc:
        raise CannotEdit(f"line {_line(text, at)} has a broken string") from exc


def _skip_value(text: str, at: int) -> int:
    """Just after the value that begins at `at`."""
    if text[at] == '"':
        return _parse_string(text, at)[1]
    if text[at] == "{":
        return _parse_object(text, at).end + 1
    if text[at] == "[":
        at = _skip_space(text, at + 1)
        while text[at] != "]":
            at = _skip_space(text, _skip_value(text, at))
            at = _skip_space(text, at + 1) if text[at] == "," else at
        return at + 1
    end = at
    while end < len(text) and text[end] not in ",]}" and text[end] not in SPACE and text[end] != "/":
        end += 1
    if end == at:
        raise CannotEdit(f"line {_line(text, at)} lacks a value")
    return end
