"""The check of arguments by JSON Schema, with the library that knows all of it. Loaded when a schema needs it.

Reading a schema and checking by it both end soon, for any schema and arguments: work that would take long is
refused before it begins, the schema by `schema_nodes`, the arguments by `schema_cost`.
"""

from itertools import islice
from typing import Any, Final

import jsonschema_rs
import msgspec

from ..core.errors import ToolArguments
from ..core.model import Json
from . import schema_nodes
from .schema import unusable_schema
from .schema_cost import CheckCost

MOST_ERRORS: Final = 3  # enough to act on; a long list buries the first mistake
LONGEST_ERROR: Final = 300
MOST_ERROR_MEMORY: Final = 16 << 20  # bytes to name mistakes in: all are found to name three, each with its value
FEW_VALUES: Final = 16  # plain values that need no counting where the schema is flat: most calls
_CHEAP_TYPES: Final = frozenset({str, bool, float, type(None)})


class SchemaCheck:
    """One schema, compiled. Making it raises ToolUnavailable when the schema can't be used."""

    def __init__(self, text: bytes) -> None:
        parsed = schema_nodes.read_schema(msgspec.json.decode(text))
        self.pattern_bytes = parsed.pattern_bytes
        self._is_flat = parsed.root.is_flat
        self._cost = CheckCost(parsed.root, parsed.longest_name)
        self._validator = _compile_schema(text)

    def check(self, arguments: Json) -> None:
        """Raise ToolArguments naming each field at fault. Values are never repeated: they may be secret."""
        few = self._is_flat and len(arguments) <= FEW_VALUES and _CHEAP_TYPES.issuperset(map(type, arguments.values()))
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
