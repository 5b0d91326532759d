"""The config's schema at work: what is wrong with a config, what a change takes, who may make it, what is not used."""

from collections.abc import Iterable, Iterator
from typing import Any

import jsonschema_rs

from ..core.config.keys import ReloadKind
from ..core.model import Json
from ..core.numbers import parse_whole_number
from .json_schema import config_schema
from .parsing import ConfigPath, join_path
from .secrets.names import is_plural_name, is_secret_name


class ConfigSchema:
    """`json_schema`, and the questions that are answered from it."""

    @property
    def json_schema(self) -> Json:
        return config_schema()

    def _validator(self, sections: Iterable[str]) -> Any:
        """Of the sections that a config has: the whole schema would take 4 MiB, an idle gateway's for ever."""
        known = self.json_schema["properties"]
        part = self.json_schema | {"properties": {name: known[name] for name in sections if name in known}}
        return jsonschema_rs.validator_for(part, mask="the value")

    def find_issues(self, config: Json) -> list[Json]:
        """What is wrong, by path; values are never repeated, they may be secret."""
        if not config:
            return []  # no key is required
        found: list[Json] = []
        for error in self._validator(config).iter_errors(config):
            path = join_path(tuple(error.instance_path))
            if unexpected := getattr(error.kind, "unexpected", None):
                found += [{"path": path, "message": f'Unrecognized key: "{key}"'} for key in unexpected]
            elif options := getattr(error.kind, "options", None):
                found.append({"path": path, "message": f"must be one of {', '.join(map(str, options))}"})
            else:
                found.append({"path": path, "message": str(error.message)[:300]})
        return found

    def find_unused(self, config: Json) -> list[Json]:
        """A warning for each key that is set and that no code reads; none for one that is set to its default."""
        return [
            {"path": path, "message": "accepted, but this version does not use it"}
            for path in _iter_unused(self.json_schema, config, "")
        ]

    def find_node(self, path: ConfigPath) -> Json | None:
        """The schema at a path; None where there is none."""
        nodes = list(_nodes_on_path(self.json_schema, path))
        return nodes[-1] if len(nodes) > len(path) else None

    def reload_kind(self, path: ConfigPath) -> ReloadKind:
        """What a change there takes: as the nearest part says that says it."""
        kinds: list[ReloadKind] = [
            node["x-reload"] for node in _nodes_on_path(self.json_schema, path) if "x-reload" in node
        ]
        return kinds[-1] if kinds else "restart"  # a part that is not described

    def ui_hints(self) -> Json:
        return dict(_iter_hints(self.json_schema, ""))

    def fill_defaults(self, config: Json) -> Json:
        filled: Json = _fill_defaults(self.json_schema, config)
        return filled


def _nodes_on_path(schema: Json, path: ConfigPath) -> Iterator[Json]:
    """The schema, and the part of it at each step of the path, as far as it is described."""
    node = schema
    yield node
    for step in path:
        below = _child_node(node, step)
        if below is None:
            return
        node = below
        yield node


def _child_node(node: Json, step: str | int) -> Json | None:
    if isinstance(step, int) or step in ("*", "[]") or parse_whole_number(step) is not None:
        items = node.get("items")
        if isinstance(items, dict):
            return items
    found = node.get("properties", {}).get(step, node.get("additionalProperties"))
    return found if isinstance(found, dict) else {} if found is True else None


def _iter_unused(node: Json, value: Any, path: str) -> Iterator[str]:
    if node.get("x-unused"):
        if value != node.get("default"):
            yield path
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        below = _child_node(node, step)
        if below:
            yield from _iter_unused(below, inner, f"{path}.{step}" if path else str(step))


def hint_of(name: str, node: Json) -> Json:
    hint: Json = {"label": node.get("title", name)}
    if is_secret_name(name) and not is_plural_name(name):
        hint["sensitive"] = True
    return hint


def _iter_hints(node: Json, path: str) -> Iterator[tuple[str, Json]]:
    for name, inner in node.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        yield place, hint_of(name, inner)
        yield from _iter_hints(inner, place)
        for keyword, suffix in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(inner.get(keyword), dict):
                yield from _iter_hints(inner[keyword], f"{place}{suffix}")


def _fill_defaults(node: Json, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for name, inner in node.get("properties", {}).items():
        if name in result:
            result[name] = _fill_defaults(inner, result[name])
        elif "default" in inner:
            result[name] = inner["default"]
    return result
