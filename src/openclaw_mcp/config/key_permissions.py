"""Who may change which key of the config, as `core/config` declares it. Pure.

`openclaw.json` holds the rules that bind agents. So a run, however it was started, may change only what is `FREE`; for
every other key the class says why it needs a person. A key without a class needs a person too.
"""

from collections.abc import Iterator

from ..core.config.keys import FREE, MODEL, UNKNOWN
from ..core.model import Json
from .json_schema import config_schema
from .parsing import ConfigPath


def class_of(path: ConfigPath, schema: Json | None = None) -> str:
    """The class of a value at this place; of an object or a list, the strictest of all that may be in it."""
    found = _find_node(path, schema or config_schema())
    classes = {UNKNOWN} if found is None else set(_classes(*found))
    return next((why for why in sorted(classes) if why not in (FREE, MODEL)), FREE if FREE in classes else MODEL)


def class_of_presence(path: ConfigPath) -> str:
    """The class of there being such an object at all: an entry of a list or under a name of the user's has an effect
    by being there, and any other object has no more effect than its contents."""
    found = _find_node(path[:-1], config_schema()) if path else None
    if found is None:
        return UNKNOWN
    node, inherited = found
    if "type" not in node and "oneOf" not in node:
        return UNKNOWN if "enum" in node else inherited
    named = isinstance(path[-1], int) or isinstance(node.get("additionalProperties"), dict)
    return class_of(path) if named else FREE


def _find_node(path: ConfigPath, schema: Json) -> tuple[Json, str] | None:
    """The part of the schema that describes a place, and the class declared at it or nearest above it."""
    node, inherited = schema, UNKNOWN
    for step in path:
        below = _child(node, step)
        if below is None:
            return None
        node, inherited = below, below.get("x-agents", inherited)
    return node, inherited


def _child(node: Json, step: str | int) -> Json | None:
    if "oneOf" in node:
        return next((below for choice in node["oneOf"] if (below := _child(choice, step)) is not None), None)
    if "type" not in node:
        return None if "enum" in node or "const" in node else {}  # described by its title alone
    named = node.get("properties", {}).get(step, node.get("additionalProperties"))
    if named is True:  # all that is below an open object is of its class
        return {}
    found = node.get("items") if isinstance(step, int) else named
    return found if isinstance(found, dict) else None


def _classes(node: Json, inherited: str) -> Iterator[str]:
    own = node.get("x-agents", inherited)
    below = [*node.get("oneOf", ()), *node.get("properties", {}).values(), node.get("items")]
    below = [one for one in [*below, node.get("additionalProperties")] if isinstance(one, dict)]
    if not below or node.get("additionalProperties") is True:
        yield own
    for one in below:
        yield from _classes(one, own)
