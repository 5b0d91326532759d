"""What a run may change of the config, judged by the differences between old and new. Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final

from ..core.config.keys import FREE, MODEL
from ..core.errors import OpenClawError
from ..core.model import Caller, Json
from ..core.model_name import is_model_name
from ..core.providers import has_provider_rules
from .json_schema import ConfigSchemaNode, config_schema
from .key_permissions import class_of, class_of_presence
from .parsing import ConfigPath

ENVIRONMENT_REFERENCE: Final = "${"
"""In a text: a part of it comes from the environment, where secrets are."""
PLAIN_SEGMENT: Final = re.compile(r"[A-Za-z0-9_$-]{1,64}")
MAX_NAMED: Final = 5  # paths a refusal names; the others are counted


class ConfigChangeDenied(OpenClawError):
    """A run asked for a change that needs a person. `paths` are those it may not change."""

    code = "not_for_runs"

    def __init__(self, paths: list[str]) -> None:
        named = ", ".join(paths[:MAX_NAMED])
        more = f" and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else ""
        super().__init__(
            f"an agent's run may not change {named}{more} in the config: "
            "ask a person to do it, with `openclaw config set PATH VALUE` on the gateway's machine"
        )
        self.paths = paths


class _Absent:
    """There is no such key, no such entry."""


ABSENT: Final = _Absent()


def is_person(caller: Caller) -> bool:
    """Whether a person's own client asks. Every other caller acts for a run: its programs, its sub-agents, and a client
    that named the session it acts in."""
    return caller.kind in ("local", "operator") and caller.grant is None and not caller.acts_in_session


def check_run_changes(before: Json, after: Json) -> None:
    """Raises ConfigChangeDenied unless every difference is one that a run may make. Both are as written."""
    # Where rules go by provider, another model is other rules.
    free = (FREE,) if has_provider_rules(before) else (FREE, MODEL)
    found = dict.fromkeys(
        _format_path(path) for path, old, new in diff_values(before, after) if not _may_change(path, old, new, free)
    )
    if found:
        raise ConfigChangeDenied(list(found))


def diff_values(before: Any, after: Any, path: ConfigPath = ()) -> Iterator[tuple[ConfigPath, Any, Any]]:
    """Each place whose value differs, down to the single values; `ABSENT` where there is none. An object or a list that
    is there on one side only comes itself too, before what it holds."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from diff_values(before.get(key, ABSENT), after.get(key, ABSENT), (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            yield from diff_values(_item_at(before, index), _item_at(after, index), (*path, index))
    elif not _is_same(before, after):
        yield path, before, after
        for value in (before, after):
            if isinstance(value, dict | list) and value:
                gone: Any = {} if isinstance(value, dict) else []
                yield from diff_values(gone, value, path) if value is after else diff_values(value, gone, path)


def _item_at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else ABSENT


def _is_same(before: Any, after: Any) -> bool:
    """Strictly: for Python `True` is 1."""
    return type(before) is type(after) and not isinstance(before, dict | list) and bool(before == after)


def _may_change(path: ConfigPath, before: Any, after: Any, allowed_classes: tuple[str, ...]) -> bool:
    if isinstance(after, str) and ENVIRONMENT_REFERENCE in after:
        return False
    if _is_default(path, before) and _is_default(path, after):
        return True
    if any(isinstance(value, dict | list) and value for value in (before, after)):
        why = class_of_presence(path) if ABSENT in (before, after) else class_of(path)
    else:
        why = class_of(path)
    return why in allowed_classes and (why != MODEL or _is_same_provider(before, after))


def _is_same_provider(before: Any, after: Any) -> bool:
    """Whether a model is exchanged for one of the same provider: another one's runtime, address and rules may differ,
    and without a model the demo agent answers."""
    return is_model_name(before) and is_model_name(after) and _provider(before) == _provider(after)


def _provider(model: str) -> str:
    provider, slash, _ = model.partition("/")
    return provider if slash else ""


def _is_default(path: ConfigPath, value: Any) -> bool:
    """Whether the value is the default. Of fixed keys alone: the value of an entry may hide that of another level."""
    if value is ABSENT:
        return True
    node: ConfigSchemaNode | None = config_schema()
    for step in path:
        node = node.properties.get(str(step)) if node is not None else None
    return node is not None and _is_same(node.default, value)


def _format_path(path: ConfigPath) -> str:
    """For a sentence: names with unusual characters are not repeated."""
    return ".".join(step if PLAIN_SEGMENT.fullmatch(step) else "*" for step in map(str, path))
