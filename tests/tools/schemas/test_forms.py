"""What ordinary schemas may do, how much is kept of those that were used, and what a list of tools may hold."""

import asyncio
import gc
import json
import weakref
from typing import Any

import pytest

from openclaw_mcp.core.errors import ToolArguments, ToolUnavailable
from openclaw_mcp.core.model import ToolSpec
from openclaw_mcp.gateway.agents.subagents.tool_specs import SPECS
from openclaw_mcp.node import system
from openclaw_mcp.tools import schema as schemas
from openclaw_mcp.tools.registry import RegisteredTool
from openclaw_mcp.tools.schema import SchemaListBudget, validator_for
from tests.conversation import Tools
from tests.proxy.proxies import proxy

from .bombs import BOMBS, DRAFT_7, Json, fields, items, nested

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
PASSWORD = r"^(?=.*[A-Z])(?=.*\d)(?=.*[^\w]).{8,}$"
LONG = "x" * 1_000_000
NODE = {"type": "object", "properties": {"left": {"$ref": "#/$defs/n"}, "right": {"$ref": "#/$defs/n"}}}
ANY_JSON = {
    "anyOf": [{"type": ["string", "integer"]}, {"type": "object", "additionalProperties": {"$ref": "#/$defs/j"}}]
}


def costly(number: int) -> str:
    """A pattern of nearly a megabyte, when compiled."""
    return f"^.{{1,200}}{number}$"


def tree(depth: int) -> Json:
    return {"left": tree(depth - 1), "right": tree(depth - 1)} if depth else {}


def wide(count: int) -> Json:
    """Every second parameter may be null, as Python's models describe it."""
    optional = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    return fields(**{f"p{number}": optional for number in range(count)})


ORDINARY: dict[str, tuple[Json, Json, Json]] = {
    "an address of mail": (fields(a={"pattern": EMAIL}), {"a": f"{'a' * 200}@example.org"}, {"a": "a..b@example.org"}),
    "a password": (fields(a={"pattern": PASSWORD}), {"a": "Secret-123" * 10}, {"a": "secret"}),
    "at most 255 characters": (fields(a={"pattern": "^.{1,255}$"}), {"a": "é" * 255}, {"a": "é" * 256}),
    "a megabyte of base64": (fields(a={"pattern": "^[A-Za-z0-9+/]*={0,2}$"}), {"a": LONG}, {"a": LONG + "!"}),
    "a long text beside a pattern": (
        fields(path={"pattern": r"^[^\x00]{1,200}$"}, content={"type": "string"}),
        {"path": "a/b", "content": LONG * 3},
        {"path": "", "content": LONG * 3},
    ),
    "a tree": ({**fields(a={"$ref": "#/$defs/n"}), "$defs": {"n": NODE}}, {"a": tree(9)}, {"a": {"left": 1}}),
    "any JSON": ({**fields(a={"$ref": "#/$defs/j"}), "$defs": {"j": ANY_JSON}}, {"a": nested(200)}, {"a": []}),
    "the whole of itself": ({"type": "object", "additionalProperties": {"$ref": "#"}}, {"a": {"b": {}}}, {"a": 1}),
    "named parts": (
        {**fields(a={"$ref": "#/definitions/x%3Cy%3E"}, b={"$ref": "#/$defs/c~1d"}, c={"$ref": "#mark"}),
         "definitions": {"x<y>": {"type": "null"}}, "$defs": {"c/d": {"$anchor": "mark", "type": "integer"}}},
        {"a": None, "b": 1, "c": 2},
        {"a": None, "b": 1, "c": "2"},
    ),
    "an id and references by it": (
        {"$id": "https://example.org/s", **fields(a={"$ref": "s#/$defs/x"}), "$defs": {"x": {"type": "null"}}},
        {"a": None},
        {"a": 1},
    ),
    "an older draft": ({**DRAFT_7, **items([{"type": "string"}, {"type": "null"}])}, {"a": ["x", None]}, {"a": [1]}),
    "1,000 words to choose from": (
        items({"enum": [f"word{number}" for number in range(1000)]}), {"a": ["word7"] * 5000}, {"a": ["word"]}
    ),
    "100 optional parameters": (wide(100), {f"p{number}": "x" for number in range(100)}, {"p7": 7}),
    "rows of a table": (
        items({**wide(8), "required": ["p0"], "additionalProperties": False}),
        {"a": [{"p0": "x", "p7": None}] * 5000},
        {"a": [{}]},
    ),
    "closed by what stands beside": (
        {"allOf": [fields(a={"type": "integer"})], "unevaluatedProperties": False}, {"a": 1}, {"b": 1}
    ),
    "examples that look like parts": (
        fields(a={"type": "object", "examples": [{"id": "x", "$ref": "y"}], "default": {"id": "x"}}),
        {"a": {}},
        {"a": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_schema_is_checked_as_it_says(name: str) -> None:
    schema, fits, misfits = ORDINARY[name]
    validator_for(schema).check(fits)
    with pytest.raises(ToolArguments, match="do not fit the tool's schema: "):
        validator_for(schema).check(misfits)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "http://json-schema.org/draft-07/schema#"}, "references outside the schema are not followed"),
        ({"$ref": "other.json#/x"}, "references outside the schema are not followed"),
        ({"$ref": "#/$defs/missing"}, "which is no part of it; correct the reference"),
        ({"$ref": "#/allOf/01", "allOf": [{}, {}]}, "which is no part of it; correct the reference"),
        ({"$ref": "#nowhere"}, "which is no part of it; correct the reference"),
        ({"$ref": "#/$defs/a%2Fb", "$defs": {"a/b": {}}}, "write `/` in a name as ~1"),
        ({"$ref": "#"}, "refers to itself for the same value"),
        ({"$id": "https://json-schema.org/draft/2020-12/schema"}, "give it another, or none"),
        ({"allOf": [{"$anchor": "a"}, {"$anchor": "a"}]}, "give each another"),
        ({"allOf": [{"$id": "#a"}]}, "put shared parts below"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "allOf": [{"id": "a"}]}, "put shared parts below"),
        ({"properties": {"a": {"pattern": "("}}}, "is no regular expression"),
        ({"properties": []}, "is not of type"),
        ({"type": "no such type"}, "schema"),
    ],
)
def test_a_schema_that_cant_be_used_is_refused_with_what_to_change(schema: Json, says: str) -> None:
    with pytest.raises(ToolUnavailable) as refused:
        validator_for(schema)
    assert says in str(refused.value)


def test_compiled_schemas_are_kept_up_to_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = schemas._ValidatorCache()
    monkeypatch.setattr(schemas, "validator_cache", cache)
    monkeypatch.setattr(schemas, "KEPT_BYTES", 4 << 20)
    first = weakref.ref(validator_for(fields(a={"pattern": costly(0)})))
    for number in range(1, 30):
        validator_for(fields(a={"pattern": costly(number)}))
        assert cache.bytes <= 4 << 20
    gc.collect()
    assert first() is None


def test_a_tool_that_was_called_does_not_hold_its_compiled_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = RegisteredTool("a", Tools(), Tools(t=None).specs()[0])
    first = offer.validator
    assert offer.validator is first
    held = weakref.ref(first)
    del first
    monkeypatch.setattr(schemas, "KEPT_BYTES", 1)
    validator_for(fields(other={}))
    gc.collect()
    assert held() is None
    offer.validator.check({})


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (lambda n: fields(**{f"p{n}": {"title": "x" * 20_000}}), "take more than 524288 bytes; offer fewer tools"),
        (lambda n: fields(a={"pattern": costly(n)}), "when compiled; use fewer or simpler ones"),
    ],
)  # fmt: skip
def test_what_a_list_of_tools_costs_is_bounded_as_a_whole(schema: Any, says: str) -> None:
    together = SchemaListBudget()
    with pytest.raises(ToolUnavailable) as refused:
        for number in range(512):
            together.check(schema(number))
    assert says in str(refused.value)


def test_a_registration_of_many_costly_tools_is_refused_at_the_one_too_many() -> None:
    tools = [{"name": f"t{n}", "input_schema": fields(a={"pattern": costly(n)})} for n in range(512)]

    async def main() -> None:
        async with proxy() as running:
            answer = await running.send("POST", "/v1/chat/sessions", {"tools": tools})
            assert answer.status == 422
            assert "tools[16].input_schema: " in answer.json["detail"]

    asyncio.run(main())


@pytest.mark.parametrize("spec", [system._RUN, system._WHICH, *SPECS], ids=lambda spec: spec.name)
def test_a_long_wrong_list_is_refused_by_our_own_tools_before_it_is_looked_at(spec: ToolSpec) -> None:
    for name in spec.input_schema.get("properties", {}):
        with pytest.raises(ToolArguments, match="take too long to check"):
            validator_for(spec.input_schema).check({name: [1] * 700_000})


SENT = "x" * 3_900_000
FILE = {**fields(path={"type": "string"}, content={"type": "string"}), "required": ["path", "content"]}
OPTIONAL = {**FILE, "properties": {**FILE["properties"], **wide(20)["properties"]}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "arguments", "says"),
    [
        (FILE, {}, ': "path" is a required property; "content" is a required property'),
        (FILE, {"path": 1, "content": 2}, ': path: the value is not of type "string"; content: the value is not'),
        (FILE, {"content": SENT}, ': "path" is a required property'),
        (OPTIONAL, {"content": SENT}, ': "path" is a required property; there may be more mistakes'),
        (OPTIONAL, {"path": 1, "content": SENT}, ': path: the value is not of type "string"; there may be more'),
        (OPTIONAL, {"path": "a", "content": SENT, "p7": 7}, ": p7: the value is not valid under any of the schemas"),
        (items(OPTIONAL), {"a": [{"path": "a", "content": "x", "p7": None}] * 20 + [{}]}, ': a.20: "path" is a'),
    ],
)
def test_a_mistake_is_named_however_long_the_texts_beside_it_are(schema: Json, arguments: Json, says: str) -> None:
    with pytest.raises(ToolArguments) as refused:
        validator_for(schema).check(arguments)
    assert f"do not fit the tool's schema{says}" in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"x" * 100_000: 1}),
        ({"type": "object", "additionalProperties": False}, {"x" * 100_000: 1}),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, {"x" * 100_000: 1}),
        (fields(a={"const": "x" * 30_000}), {"a": "y"}),
    ],
)
def test_a_refusal_is_short_however_long_the_names_and_texts_in_it_are(schema: Json, arguments: Json) -> None:
    with pytest.raises(ToolArguments, match="do not fit the tool's schema: ") as refused:
        validator_for(schema).check(arguments)
    assert len(str(refused.value)) < 1_000


def test_every_bomb_is_json_that_can_be_sent() -> None:
    for bomb in BOMBS.values():
        assert len(json.dumps(bomb.schema())) + len(json.dumps(bomb.arguments())) < 4 << 20
