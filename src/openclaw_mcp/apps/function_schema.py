"""A function as a tool: schema from type hints, descriptions from the docstring, arguments as typed values. Pure."""

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ..core.errors import BadRequest, ToolArguments
from ..core.model import Json, ToolResult
from .results import BLOCK_TYPES

_ARGUMENTS_SECTION: Final = re.compile(r"^(args|arguments|parameters|params):\s*$", re.IGNORECASE)
_OTHER_SECTION: Final = re.compile(r"^(returns|raises|yields|examples?|notes?):\s*$", re.IGNORECASE)
_GOOGLE_PARAMETER: Final = re.compile(r"^\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")
MAX_EXACT_INTEGER: Final = 2**53  # from here on a float in JSON means more than one integer
_SPHINX_PARAMETER: Final = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")


class FunctionTool(Struct, frozen=True, kw_only=True):
    """A function ready to be lent."""

    name: str
    definition: Json
    """As it is registered: name, description, schemas."""
    function: Callable[..., Any]
    is_async: bool
    call_parameter: str | None
    """The parameter that takes the `Call`, if the function has one."""
    decode: Callable[[bytes | Raw], Any]

    def decode_arguments(self, raw: bytes | Raw) -> Json:
        """The keyword arguments of one call. Raises ToolArguments."""
        try:
            read = self._decode_lenient(raw)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise ToolArguments(f"The arguments of {self.name} do not fit: {exc}") from None
        values = ((name, getattr(read, name)) for name in read.__struct_fields__)
        return {name: value for name, value in values if value is not UNSET}

    def _decode_lenient(self, raw: bytes | Raw) -> Any:
        try:
            return self.decode(raw)
        except msgspec.ValidationError:
            # To JSON Schema 1.0 is an integer, and some write all their numbers so.
            return self.decode(_encode(_decode_with_integers(raw)))


def _parse_number(text: str) -> int | Raw:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < MAX_EXACT_INTEGER else Raw(text.encode())


_encode = msgspec.json.Encoder().encode
_decode_with_integers = msgspec.json.Decoder(float_hook=_parse_number).decode


def make_tool(function: Callable[..., Any], overrides: Mapping[str, Any]) -> FunctionTool:
    """The function as a tool; `more` overrides or adds what is registered. Raises BadRequest saying what to change."""
    name = str(overrides.get("name") or getattr(function, "__name__", ""))
    if not name:
        raise BadRequest(f"{function!r} has no name of its own; give the tool one with name=…")
    summary, words = _parse_docstring(inspect.getdoc(function) or "")
    hints = _type_hints(function, name)
    call_parameter = None
    fields: list[Any] = []
    defaults: Json = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if _wants_call(hint):
            call_parameter = parameter.name
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise BadRequest(f"{name}: `{parameter.name}` can't be filled by name; write plain named parameters")
        _check_encodable(hint, f"{name}: `{parameter.name}`")
        hint = _add_description(hint, words.get(parameter.name))
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            # Left unset rather than filled in here, so that the function's own default is the one that counts.
            fields.append((parameter.name, hint | UnsetType, UNSET))
            defaults[parameter.name] = parameter.default
    taken = _arguments_type(name, fields)
    described: Json = {"name": name, "description": summary, "input_schema": _input_schema(taken, defaults)}
    output = _output_schema(name, hints.get("return"))
    if output is not None:
        described["output_schema"] = output
    return FunctionTool(
        name=name,
        definition={**described, **{key: value for key, value in overrides.items() if value is not None}},
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        call_parameter=call_parameter,
        decode=msgspec.json.Decoder(taken).decode,
    )


def _type_hints(function: Callable[..., Any], name: str) -> Json:
    try:
        # A partial and an object with __call__ have no hints of their own, but what they call has.
        inner = getattr(function, "func", function)
        plain = inner if inspect.isroutine(inner) else type(inner).__call__
        return typing.get_type_hints(plain, include_extras=True)
    except NameError as exc:
        raise BadRequest(f"{name}: the type hint {exc.name!r} is not known where the function is defined") from None


def _arguments_type(name: str, fields: list[Any]) -> type[Struct]:
    # In the order given: optional ones may come before required ones among keyword-only parameters.
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, module=name)


def _wants_call(hint: Any) -> bool:
    return isinstance(hint, type) and getattr(hint, "is_call", False) is True


def _add_description(hint: Any, description: str | None) -> Any:
    """The hint with its description: text in `Annotated` first, else the docstring's."""
    if typing.get_origin(hint) is Annotated:
        inner, *notes = typing.get_args(hint)
        noted = [Meta(description=note) if isinstance(note, str) else note for note in notes]
        hint = _annotate(inner, [note for note in noted if isinstance(note, Meta)])
        if any(isinstance(note, Meta) and note.description for note in noted):
            return hint
    return _annotate(hint, [Meta(description=description)]) if description else hint


def _annotate(hint: Any, notes: list[Meta]) -> Any:
    for note in notes:
        hint = Annotated[hint, note]
    return hint


def _input_schema(arguments_type: type[Struct], defaults: Json) -> Json:
    schema = _json_schema(arguments_type)
    for parameter, value in defaults.items():
        try:
            plain = msgspec.to_builtins(value, order=None)
        except (TypeError, ValueError):  # a default JSON can't carry is still the function's own
            continue
        schema["properties"][parameter].setdefault("default", plain)
    schema.setdefault("properties", {})
    return schema


def _output_schema(name: str, return_type: Any) -> Json | None:
    if not _is_record(return_type):
        return None
    _check_encodable(return_type, f"{name}: what it returns")
    schema = _json_schema(return_type)
    return schema if schema.get("type") == "object" else None  # a struct may be written as an array


def _check_encodable(hint: Any, subject: str) -> None:
    """Raises BadRequest when JSON can't carry values of this type."""
    try:
        msgspec.json.schema_components([hint])
        msgspec.json.Decoder(hint)
    except TypeError as exc:
        shown = hint.__qualname__ if isinstance(hint, type) else str(hint)
        *_, why = str(exc).split("\n")
        raise BadRequest(f"{subject} is of type {shown}, which JSON can't carry ({why}); use a plain one") from None


def _json_schema(hint: Any) -> Json:
    (top,), parts = msgspec.json.schema_components([hint], ref_template="#/$defs/{name}")
    if "$ref" in top:
        name = top["$ref"].rpartition("/")[2]
        whole = parts.pop(name)
        schema = {key: value for key, value in whole.items() if key != "title"}
        if _encode(top["$ref"]) in _encode([schema, parts]):  # it holds others of its own kind
            parts[name] = whole
    else:
        schema = dict(top)
    return {**schema, "$defs": parts} if parts else schema


def _is_record(hint: Any) -> bool:
    """Whether values of this type are JSON objects of known fields, which is what an output schema can promise."""
    if not isinstance(hint, type) or hint in BLOCK_TYPES or hint is ToolResult:
        return False
    return is_dataclass(hint) or typing.is_typeddict(hint) or issubclass(hint, Struct)


def _parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, and what is said of each parameter: `Args:` with indented lines, or `:param name:`."""
    summary: list[str] = []
    words: dict[str, str] = {}
    inside, latest = False, ""
    for line in text.splitlines():
        if _ARGUMENTS_SECTION.match(line):
            inside = True
        elif _OTHER_SECTION.match(line):
            inside, latest = False, ""
            summary.append(line)
        elif sphinx := _SPHINX_PARAMETER.match(line):
            latest, words[sphinx[1]] = sphinx[1], sphinx[2]
        elif inside and (google := _GOOGLE_PARAMETER.match(line)):
            latest, words[google[1]] = google[1], google[2]
        elif latest and line.startswith(" "):
            words[latest] = f"{words[latest]} {line.strip()}".strip()
        elif not inside or (line and not line.startswith(" ")):
            inside, latest = False, ""
            summary.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(summary)).strip(), words
