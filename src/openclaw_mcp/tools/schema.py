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
from .schema_cost import Work
from .schema_nodes import refused

MOST_REASONS: Final = 3  # enough to act on; a long list buries the first mistake
LONGEST_REASON: Final = 300
MOST_NAMING: Final = 16 << 20  # bytes of memory to name mistakes in: all are found to name three, each with its value
FEW: Final = 16  # plain values that need no counting where the schema is flat: most calls
_SOON_CHECKED: Final = frozenset({str, bool, float, type(None)})
LARGEST_SCHEMA: Final = 256 << 10  # bytes of a schema
LARGEST_TOGETHER: Final = 512 << 10  # bytes of the schemas of one list of tools
MOST_PATTERN_BYTES_TOGETHER: Final = 16 << 20  # of their patterns, compiled
KEPT_BYTES: Final = 64 << 20  # of memory for compiled schemas; the one not used for longest gives way
GROWTH: Final = 32  # bytes of memory that a byte of a schema takes when compiled, about

_encode = msgspec.json.Encoder(order="deterministic").encode


class Form:
    """The check for one input schema; made by `form_of`."""

    __slots__ = ("__weakref__", "_flat", "_validator", "_work", "pattern_bytes", "text")

    def __init__(self, text: bytes) -> None:
        schema = msgspec.json.decode(text)
        shape = schema_nodes.read(schema)
        self.text = text
        self.pattern_bytes = shape.pattern_bytes
        self._flat = shape.root.is_flat
        self._work = Work(shape.root, shape.longest_name)
        self._validator = _compiled(text)

    def check(self, arguments: Json) -> None:
        """Raise ToolArguments naming each field at fault. Values are never repeated: they may be secret."""
        few = self._flat and len(arguments) <= FEW and _SOON_CHECKED.issuperset(map(type, arguments.values()))
        if not few:
            self._work.count(arguments)
        if not self._validator.is_valid(arguments):
            raise ToolArguments(f"The arguments do not fit the tool's schema{self._mistakes(arguments)}")

    def _mistakes(self, arguments: Json) -> str:
        """As many as can be named in little memory."""
        if self._work.naming(arguments, MOST_NAMING, every=True):
            errors = islice(self._validator.iter_errors(arguments), MOST_REASONS)
            return f": {'; '.join(map(_said, errors))}"
        if self._work.naming(arguments, MOST_NAMING, every=False):
            try:
                self._validator.validate(arguments)
            except jsonschema_rs.ValidationError as error:
                return f": {_said(error)}; there may be more mistakes"
        return ", and are too many or too long to say where; send less"

    @property
    def cost(self) -> int:
        """Bytes of memory it takes, about."""
        return GROWTH * len(self.text) + self.pattern_bytes


class Together:
    """Checks the schemas of one list of tools: a list is read at one go, however many tools are in it."""

    def __init__(self) -> None:
        self._bytes = 0
        self._pattern_bytes = 0

    def check(self, schema: Json) -> None:
        """Raises ToolUnavailable when a schema can't be used, or not with those before it."""
        form = form_of(schema)
        self._bytes += len(form.text)
        self._pattern_bytes += form.pattern_bytes
        if self._bytes > LARGEST_TOGETHER:
            raise refused(
                f"with it, the schemas of this list take more than {LARGEST_TOGETHER} bytes; offer fewer tools"
            )
        if self._pattern_bytes > MOST_PATTERN_BYTES_TOGETHER:
            raise refused(
                f"with it, the patterns of this list take more than {MOST_PATTERN_BYTES_TOGETHER} bytes when compiled;"
                " use fewer or simpler ones"
            )


class _Kept:
    """Forms by the text of their schemas; equal schemas share one. The only one to hold them for long."""

    def __init__(self) -> None:
        self._forms: OrderedDict[bytes, Form] = OrderedDict()
        self.bytes = 0

    def find(self, text: bytes) -> Form:
        form = self._forms.get(text)
        if form is None:
            form = Form(text)
            self._forms[text] = form
            self.bytes += form.cost
            while self.bytes > KEPT_BYTES and len(self._forms) > 1:
                self.bytes -= self._forms.popitem(last=False)[1].cost
        else:
            self._forms.move_to_end(text)
        return form

    def use(self, form: Form) -> None:
        if form.text in self._forms:
            self._forms.move_to_end(form.text)


kept = _Kept()


def form_of(schema: Json) -> Form:
    """The check for an input schema. Raises ToolUnavailable when it is no JSON Schema, or costs too much to check by.

    Hold it weakly: forms give way to others, and are made again when they are needed.
    """
    try:
        text = _encode(schema)
    except RecursionError:
        raise refused("it is nested too deeply; flatten it") from None
    if len(text) > LARGEST_SCHEMA:
        raise refused(f"it takes {len(text)} bytes, and may take {LARGEST_SCHEMA}; describe less")
    return kept.find(text)


def _said(error: jsonschema_rs.ValidationError) -> str:
    field = ".".join(str(step)[:LONGEST_REASON] for step in error.instance_path)[:LONGEST_REASON]
    text = error.message[:LONGEST_REASON]
    return f"{field}: {text}" if field else text


def _compiled(schema: bytes) -> Any:
    options = schema_nodes.pattern_options()
    try:
        return jsonschema_rs.validator_for(
            schema.decode(), mask="the value", retriever=_never_fetch, pattern_options=options
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as exc:
        raise refused(str(exc).splitlines()[0][:LONGEST_REASON]) from exc


def _never_fetch(uri: str) -> Any:
    raise ValueError(f"a schema may not refer to {uri}: references outside the schema are not followed")
