"""Do the arguments fit? JSON Schema, compiled once per tool, at its first call."""

from functools import lru_cache
from typing import Any, Final

import jsonschema_rs
import msgspec

from ..core.errors import ToolArguments, ToolUnavailable
from ..core.model import Json

MOST_REASONS: Final = 3  # enough to act on; a long list buries the first mistake
LONGEST_REASON: Final = 300
KEPT_VALIDATORS: Final = 4096  # compiled schemas kept; equal schemas share one

_encode = msgspec.json.Encoder(order="deterministic").encode


class Form:
    """The check for one input schema. Raises ToolUnavailable when the schema itself is no JSON Schema."""

    __slots__ = ("_validator",)

    def __init__(self, schema: Json) -> None:
        self._validator = _compiled(_encode(schema))

    def check(self, arguments: Json) -> None:
        """Raise ToolArguments naming each field at fault. Values are never repeated: they may be secret."""
        if self._validator.is_valid(arguments):
            return
        reasons = []
        for error in self._validator.iter_errors(arguments):
            field = ".".join(str(step) for step in error.instance_path)
            text = error.message[:LONGEST_REASON]
            reasons.append(f"{field}: {text}" if field else text)
            if len(reasons) == MOST_REASONS:
                break
        raise ToolArguments(f"The arguments do not fit the tool's schema: {'; '.join(reasons)}")


@lru_cache(maxsize=KEPT_VALIDATORS)
def _compiled(schema: bytes) -> Any:
    try:
        return jsonschema_rs.validator_for(schema.decode(), mask="the value", retriever=_never_fetch)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as exc:
        raise ToolUnavailable(
            f"The tool's own schema can't be used: {str(exc).splitlines()[0][:LONGEST_REASON]}"
        ) from exc


def _never_fetch(uri: str) -> Any:
    raise ValueError(f"a schema may not refer to {uri}: references outside the schema are not followed")
