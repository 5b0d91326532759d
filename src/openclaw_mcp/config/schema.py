"""The config's schema at work: what is wrong with a config, what a change takes, who may make it, what is not used."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NotRequired, TypedDict

import jsonschema_rs
from msgspec import UNSET

from ..core.config.conflicts import find_conflicts
from ..core.config.keys import ReloadKind
from ..core.model import Json
from ..core.numbers import parse_whole_number
from .json_schema import ConfigSchemaNode, config_schema, published_schema, schema_of_sections
from .parsing import ConfigIssue, ConfigPath, join_path
from .secrets.names import is_plural_name, is_secret_name

NO_EFFECT: Final = "has no effect; this version does not read it"


class UiHint(TypedDict):
    """How an editor shows a key."""

    label: str
    sensitive: NotRequired[bool]


class ConfigSchema:
    """The questions that are answered from the schema."""

    @property
    def json_schema(self) -> Json:
        return published_schema()

    def _validator(self, sections: Iterable[str]) -> Any:
        """Of the sections that a config has: the whole schema would take 4 MiB, an idle gateway's for ever."""
        return jsonschema_rs.validator_for(schema_of_sections(sections), mask="the value")

    def find_issues(self, config: Json) -> list[ConfigIssue]:
        """What is wrong, by path; values are never repeated, they may be secret."""
        if not config:
            return []  # no key is required
        found: list[ConfigIssue] = []
        for error in self._validator(config).iter_errors(config):
            path = join_path(tuple(error.instance_path))
            if unexpected := getattr(error.kind, "unexpected", None):
                found += [{"path": path, "message": f'Unrecognized key: "{key}"'} for key in unexpected]
            elif options := getattr(error.kind, "options", None):
                found.append({"path": path, "message": f"must be one of {', '.join(map(str, options))}"})
            else:
                found.append({"path": path, "message": str(error.message)[:300]})
        return found

    def find_conflicts(self, config: Json) -> list[ConfigIssue]:
        """What is wrong with a config although the schema accepts it."""
        return [{"path": path, "message": message} for path, message in find_conflicts(config)]

    def find_unused(self, config: Json) -> list[ConfigIssue]:
        """A warning for each key that is set and that no code reads; none for one that is set to its default."""
        return [{"path": path, "message": NO_EFFECT} for path in _iter_unused(config_schema(), config, "")]

    def find_node(self, path: ConfigPath) -> ConfigSchemaNode | None:
        """The schema at a path; None where there is none."""
        nodes = list(_nodes_on_path(path))
        return nodes[-1] if len(nodes) > len(path) else None

    def reload_kind(self, path: ConfigPath) -> ReloadKind:
        """What a change there takes: as the nearest part says that says it; nothing, where no code reads it."""
        if any(node.x_unused is True for node in _nodes_on_path(path)):
            return "none"
        kinds = [node.x_reload for node in _nodes_on_path(path) if node.x_reload is not None]
        return kinds[-1] if kinds else "restart"  # a part that is not described

    def ui_hints(self) -> dict[str, UiHint]:
        return dict(_iter_hints(config_schema(), ""))

    def fill_defaults(self, config: Json) -> Json:
        filled: Json = _fill_defaults(config_schema(), config)
        return filled


def _nodes_on_path(path: ConfigPath) -> Iterator[ConfigSchemaNode]:
    """The schema, and the part of it at each step of the path, as far as it is described."""
    node: ConfigSchemaNode | None = config_schema()
    for step in (*path, None):
        if node is None:
            return
        yield node
        node = None if step is None else _child_node(node, step)


def _child_node(node: ConfigSchemaNode, step: str | int) -> ConfigSchemaNode | None:
    is_index = isinstance(step, int) or step in ("*", "[]") or parse_whole_number(step) is not None
    if is_index and node.items is not None:
        return node.items
    found = node.properties.get(str(step), node.additional_properties)
    return found if isinstance(found, ConfigSchemaNode) else ConfigSchemaNode() if found else None


def _iter_unused(node: ConfigSchemaNode, value: Any, path: str) -> Iterator[str]:
    if node.x_unused is True or (node.x_unused and value in node.x_unused):
        if value != node.default:
            yield path
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        place = f"{path}.{step}" if path else str(step)
        if _is_undeclared(node, step) and not path.startswith("channels"):  # a channel reads its own section
            yield place
            continue
        below = _child_node(node, step)
        if below is not None:
            yield from _iter_unused(below, inner, place)


def _is_undeclared(node: ConfigSchemaNode, step: str | int) -> bool:
    """Whether it is a key of an open section, which accepts it for other readers of the file."""
    return bool(node.properties) and node.additional_properties is True and step not in node.properties


def hint_of(name: str, node: ConfigSchemaNode) -> UiHint:
    label = name if node.title is None else node.title
    is_sensitive = is_secret_name(name) and not is_plural_name(name)
    return {"label": label, "sensitive": True} if is_sensitive else {"label": label}


def _iter_hints(node: ConfigSchemaNode, path: str) -> Iterator[tuple[str, UiHint]]:
    for name, inner in node.properties.items():
        place = f"{path}.{name}" if path else name
        yield place, hint_of(name, inner)
        yield from _iter_hints(inner, place)
        for below, suffix in ((inner.items, "[]"), (inner.additional_properties, ".*")):
            if isinstance(below, ConfigSchemaNode):
                yield from _iter_hints(below, f"{place}{suffix}")


def _fill_defaults(node: ConfigSchemaNode, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for name, inner in node.properties.items():
        if name in result:
            result[name] = _fill_defaults(inner, result[name])
        elif inner.default is not UNSET:
            result[name] = inner.default
    return result
