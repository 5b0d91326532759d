"""Who may change which key of the config, as `core/config` declares it. Pure.

`openclaw.json` holds the rules that bind agents. So a run, however it was started, may change only what is `FREE`; for
every other key the class says why it needs a person. A key without a class needs a person too.
"""

from collections.abc import Iterator

from ..core.config.keys import FREE, MODEL, UNKNOWN
from .json_schema import ConfigSchemaNode, config_schema
from .parsing import ConfigPath


def class_of(path: ConfigPath, schema: ConfigSchemaNode | None = None) -> str:
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
    if node.type is None and not node.one_of:
        return inherited if node.enum is None else UNKNOWN
    named = isinstance(path[-1], int) or isinstance(node.additional_properties, ConfigSchemaNode)
    return class_of(path) if named else FREE


def _find_node(path: ConfigPath, schema: ConfigSchemaNode) -> tuple[ConfigSchemaNode, str] | None:
    """The part of the schema that describes a place, and the class declared at it or nearest above it."""
    node, inherited = schema, UNKNOWN
    for step in path:
        below = _child(node, step)
        if below is None:
            return None
        node, inherited = below, below.x_agents or inherited
    return node, inherited


def _child(node: ConfigSchemaNode, step: str | int) -> ConfigSchemaNode | None:
    if node.one_of:
        return next((below for choice in node.one_of if (below := _child(choice, step)) is not None), None)
    if node.type is None:
        is_described = node.enum is not None or node.const is not None  # else by its title alone
        return None if is_described else ConfigSchemaNode()
    named = node.properties.get(str(step), node.additional_properties)
    if named is True:  # all that is below an open object is of its class
        return ConfigSchemaNode()
    found = node.items if isinstance(step, int) else named
    return found if isinstance(found, ConfigSchemaNode) else None


def _classes(node: ConfigSchemaNode, inherited: str) -> Iterator[str]:
    own = node.x_agents or inherited
    below = [*node.one_of, *node.properties.values(), node.items, node.additional_properties]
    nodes = [one for one in below if isinstance(one, ConfigSchemaNode)]
    if not nodes or node.additional_properties is True:
        yield own
    for one in nodes:
        yield from _classes(one, own)
