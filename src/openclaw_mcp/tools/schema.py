"""Do the arguments fit? JSON Schema, compiled once per tool, at its first call.

Whoever wrote the schema and the arguments, both reading the one and checking by it end soon: what would take long is
refused before it is begun, the schema by `schema_nodes`, the arguments by `schema_work`.
"""

from collections import OrderedDict
from itertools import islice
from typing import Any, Final

import jsonschema_rs
import msgspec

from ..core.errors import ToolArguments
from ..core.model import Json
from . import schema_nodes
from .schema_cost import CheckCost
from .schema_nodes import unusable_schema

MOST_ERRORS: Final = 3  # enough to act on; a long list buries the first mistake
LONGEST_ERROR: Final = 300
MOST_ERROR_MEMORY: Final = (
    16 << 20
)  # bytes of memory to name mistakes in: all are found to name three, each with its value
FEW_VALUES: Final = 16  # plain values that need no counting where the schema is flat: most calls
_CHEAP_TYPES: Final = frozenset({str, bool, float, type(None)})
MAX_SCHEMA_BYTES: Final = 256 << 10  # bytes of a schema
LARGEST_LIST_SCHEMAS: Final = 512 << 10  # bytes of the schemas of one list of tools
MOST_LIST_PATTERN_BYTES: Final = 16 << 20  # of their patterns, compiled
KEPT_BYTES: Final = 64 << 20  # of memory for compiled schemas; the one not used for longest gives way
MEMORY_PER_BYTE: Final = 32  # bytes of memory that a byte of a schema takes when compiled, about

_encode = msgspec.json.Encoder(order="deterministic").encode


class ArgumentValidator:
    """The check for one input schema; made by `form_of`."""

    __slots__ = ("__weakref__", "_cost", "_flat", "_validator", "pattern_bytes", "text")

    def __init__(self, text: bytes) -> None:
        schema = msgspec.json.decode(text)
        shape = schema_nodes.read_schema(schema)
        self.text = text
        self.pattern_bytes = shape.pattern_bytes
        self._flat = shape.root.is_flat
        self._cost = CheckCost(shape.root, shape.longest_name)
        self._validator = _compile_schema(text)

    def check(self, arguments: Json) -> None:
        """Raise ToolArguments naming each field at fault. Values are never repeated: they may be secret."""
        few = self._flat and len(arguments) <= FEW_VALUES and _CHEAP_TYPES.issuperset(map(type, arguments.values()))
        if not few:
            self._cost.count_steps(arguments)
        if not self._validator.is_valid(arguments):
            raise ToolArguments(f"The arguments do not fit the tool's schema{self._describe_errors(arguments)}")

    def _describe_errors(self, arguments: Json) -> str:
        """As many as can be named in little memory."""
        if self._cost.can_name_errors(arguments, MOST_ERROR_MEMORY, all_errors=True):
            errors = islice(self._validator.iter_errors(arguments), MOST_ERRORS)
            return f": {'; '.join(map(_format_error, errors))}"
        if self._cost.can_name_errors(arguments, MOST_ERROR_MEMORY, all_errors=False):
            try:
                self._validator.validate(arguments)
            except jsonschema_rs.ValidationError as error:
                return f": {_format_error(error)}; there may be more mistakes"
        return ", and are too many or too long to say where; send less"

    @property
    def cost(self) -> int:
        """Bytes of memory it takes, about."""
        return MEMORY_PER_BYTE * len(self.text) + self.pattern_bytes


class SchemaListBudget:
    """Checks the schemas of one list of tools: a list is read at one go, however many tools are in it."""

    def __init__(self) -> None:
        self._bytes = 0
        self._pattern_bytes = 0

    def check(self, schema: Json) -> None:
        """Raises ToolUnavailable when a schema can't be used, or not with those before it."""
        form = validator_for(schema)
        self._bytes += len(form.text)
        self._pattern_bytes += form.pattern_bytes
        if self._bytes > LARGEST_LIST_SCHEMAS:
            raise unusable_schema(
                f"with it, the schemas of this list take more than {LARGEST_LIST_SCHEMAS} bytes; offer fewer tools"
            )
        if self._pattern_bytes > MOST_LIST_PATTERN_BYTES:
            raise unusable_schema(
                f"with it, the patterns of this list take more than {MOST_LIST_PATTERN_BYTES} bytes when compiled;"
                " use fewer or simpler ones"
            )


class _ValidatorCache:
    """Forms by the text of their schemas; equal schemas share one. The only one to hold them for long."""

    def __init__(self) -> None:
        self._validators: OrderedDict[bytes, ArgumentValidator] = OrderedDict()
        self.bytes = 0

    def find(self, text: bytes) -> ArgumentValidator:
        form = self._validators.get(text)
        if form is None:
            form = ArgumentValidator(text)
            self._validators[text] = form
            self.bytes += form.cost
            while self.bytes > KEPT_BYTES and len(self._validators) > 1:
                self.bytes -= self._validators.popitem(last=False)[1].cost
        else:
            self._validators.move_to_end(text)
        return form

    def mark_recent(self, validator: ArgumentValidator) -> None:
        if validator.text in self._validators:
            self._validators.move_to_end(validator.text)


validator_cache = _ValidatorCache()


def validator_for(schema: Json) -> ArgumentValidator:
    """The check for an input schema. Raises ToolUnavailable when it is no JSON Schema, or costs too much to check by.

    Hold it weakly: forms give way to others, and are made again when they are needed.
    """
    try:
        text = _encode(schema)
    except RecursionError:
        raise unusable_schema("it is nested too deeply; flatten it") from None
    if len(text) > MAX_SCHEMA_BYTES:
        raise unusable_schema(f"it takes {len(text)} bytes, and may take {MAX_SCHEMA_BYTES}; describe less")
    return validator_cache.find(text)


def _format_error(error: jsonschema_rs.ValidationError) -> str:
    field = ".".join(str(step)[:LONGEST_ERROR] for step in error.instance_path)[:LONGEST_ERROR]
    text = error.message[:LONGEST_ERROR]
    return f"{field}: {text}" if field else text


def _compile_schema(schema: bytes) -> Any:
    options = schema_nodes.pattern_options()
    try:
        return jsonschema_rs.validator_for(
            schema.decode(), mask="the value", retriever=_never_fetch, pattern_options=options
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as exc:
        raise unusable_schema(str(exc).splitlines()[0][:LONGEST_ERROR]) from exc


def _never_fetch(uri: str) -> Any:
    raise ValueError(f"a schema may not refer to {uri}: references outside the schema are not followed")
