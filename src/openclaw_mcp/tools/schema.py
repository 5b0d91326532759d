"""Do the arguments fit? One check for each input schema, made at the first call and kept."""

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from ..core.errors import ToolUnavailable
from ..core.model import Json
from .flat_schema import compile_flat

if TYPE_CHECKING:
    from .schema_check import SchemaCheck

MAX_SCHEMA_BYTES: Final = 256 << 10  # bytes of a schema
LARGEST_LIST_SCHEMAS: Final = 512 << 10  # bytes of the schemas of one list of tools
MOST_LIST_PATTERN_BYTES: Final = 16 << 20  # of their patterns, compiled
KEPT_BYTES: Final = 64 << 20  # of memory for compiled schemas; the one not used for longest gives way
MEMORY_PER_BYTE: Final = 32  # bytes of memory that a byte of a schema takes when compiled, about

_encode = msgspec.json.Encoder(order="deterministic").encode


class ArgumentValidator:
    """The check for one input schema; made by `validator_for`."""

    __slots__ = ("__weakref__", "_accepts", "_full", "pattern_bytes", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._accepts = compile_flat(msgspec.json.decode(text))
        self._full = _load_check(text) if self._accepts is None else None
        self.pattern_bytes = 0 if self._full is None else self._full.pattern_bytes

    def check(self, arguments: Json) -> None:
        """Raise ToolArguments naming each field at fault. Values are never repeated: they may be secret."""
        if self._accepts is not None and self._accepts(arguments):
            return
        if self._full is None:
            self._full = _load_check(self.text)
        self._full.check(arguments)

    @property
    def cost(self) -> int:
        """Bytes of memory it takes, about."""
        return MEMORY_PER_BYTE * len(self.text) + self.pattern_bytes


def _load_check(text: bytes) -> "SchemaCheck":
    from .schema_check import SchemaCheck  # here for start-up: most first calls fit a flat schema

    return SchemaCheck(text)


def unusable_schema(reason: str) -> ToolUnavailable:
    return ToolUnavailable(f"The tool's own schema can't be used: {reason}")


class SchemaListBudget:
    """Checks the schemas of one list of tools together: a list is read at once, however many tools it has."""

    def __init__(self) -> None:
        self._bytes = 0
        self._pattern_bytes = 0

    def check(self, schema: Json) -> None:
        """Raises ToolUnavailable when a schema can't be used, or not with those before it."""
        validator = validator_for(schema)
        self._bytes += len(validator.text)
        self._pattern_bytes += validator.pattern_bytes
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
    """Validators by the text of their schemas; equal schemas share one. The only one to hold them for long."""

    def __init__(self) -> None:
        self._validators: OrderedDict[bytes, ArgumentValidator] = OrderedDict()
        self.bytes = 0

    def find(self, text: bytes) -> ArgumentValidator:
        validator = self._validators.get(text)
        if validator is None:
            validator = self._validators[text] = ArgumentValidator(text)
            self.bytes += validator.cost
            while self.bytes > KEPT_BYTES and len(self._validators) > 1:
                self.bytes -= self._validators.popitem(last=False)[1].cost
        else:
            self._validators.move_to_end(text)
        return validator

    def mark_recent(self, validator: ArgumentValidator) -> None:
        if validator.text in self._validators:
            self._validators.move_to_end(validator.text)


validator_cache = _ValidatorCache()


def validator_for(schema: Json) -> ArgumentValidator:
    """The check for an input schema. Raises ToolUnavailable when it is no JSON Schema, or costs too much to check by.

    Hold it weakly: validators are dropped for others, and made again when they are needed.
    """
    try:
        text = _encode(schema)
    except RecursionError:
        raise unusable_schema("it is nested too deeply; flatten it") from None
    if len(text) > MAX_SCHEMA_BYTES:
        raise unusable_schema(f"it takes {len(text)} bytes, and may take {MAX_SCHEMA_BYTES}; describe less")
    return validator_cache.find(text)
