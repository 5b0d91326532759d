"""Which address each stored secret is sent to, so that a change of the address does not redirect the secret. Pure.

A key was given for one server. A change to another server must give the key again: otherwise writing an address would
be enough to receive a key that is never shown.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from ...core.errors import BadRequest
from ...core.model import Json
from ..parsing import ConfigPath, join_path, value_at, walk_values
from ..redaction import REDACTED, USER_NAMED_SECTIONS, is_secret
from .names import has_secret_holder, is_secret_name

ADDRESS_NAME: Final = re.compile(
    r"(?P<of>.*?)(homeserver|base_?url|url|uri|endpoint|hostname|host|address|server)", re.IGNORECASE
)
"""Keys that hold an address. `webhookUrl` is for the keys that begin with `webhook`; a bare `url` is for all."""
GENERIC_PREFIXES: Final = frozenset({"", "api"})
FILE_SUFFIX: Final = "File"
"""How keys end that name the file a secret is in: `tokenFile`."""
CRON: Final = ("cron",)
CHANNELS: Final = "channels"
ACCOUNTS: Final = "accounts"

Origin = tuple[tuple[str, str], ...]
"""The addresses a secret is sent to, by the names of their keys."""


class _SecretUse(Struct, frozen=True):
    """A secret and where it is sent. `path` is where it is written, which may be above the section that uses it."""

    section: ConfigPath
    """The section that uses it."""
    name: ConfigPath
    path: ConfigPath
    value: Any
    origin: Origin
    is_own: bool
    """Written in the section that has the address."""

    @property
    def identity(self) -> tuple[ConfigPath, ConfigPath, str]:
        return self.section, self.name, json.dumps(self.value, sort_keys=True)


def find_misdirected_secrets(before: Json, after: Json, request: Json) -> list[ConfigPath]:
    """Where `after` holds secrets that were given for another address than the one beside them now.

    `request` is what the caller wrote: a secret in it was given now. Raises BadRequest for a secret that the request
    asks to keep, and for one that other sections use as well, so that it can't be left out."""
    known: dict[tuple[ConfigPath, ConfigPath, str], set[Origin]] = {}
    for use in _iter_uses(before):
        known.setdefault(use.identity, set()).add(use.origin)
    left = [use for use in _iter_uses(after) if not _may_stay(use, known.get(use.identity, set()), request)]
    owned = {use.path for use in left if use.is_own}
    for use in left:
        if REDACTED in str(value_at(request, use.path)):
            raise BadRequest(
                f"{join_path(use.path)}: the address beside it is another now, and what is stored was given for the "
                "one before; write the value itself, or leave it out"
            )
        if use.path not in owned:
            raise BadRequest(
                f"{join_path(use.section)}: it would send {join_path(use.path)} to another address than before; "
                f"give it a {use.name[0]} of its own in the same change"
            )
    return sorted({_list_path(path) for path in owned}, key=join_path)


def _list_path(path: ConfigPath) -> ConfigPath:
    """A list is given or left out as one."""
    return path[: next((place for place, step in enumerate(path) if isinstance(step, int)), len(path))]


def remove_paths(config: Json, paths: list[ConfigPath]) -> Json:
    """A copy without these values, and without the objects they leave empty."""
    result: Json = json.loads(json.dumps(config))
    for path in paths:
        _remove(result, path)
    return result


def _remove(config: Json, path: ConfigPath) -> None:
    holder = value_at(config, path[:-1])
    if isinstance(holder, dict):
        holder.pop(str(path[-1]), None)
        if not holder and _is_secret_segment(path[:-1], len(path) - 2):
            _remove(config, path[:-1])


def _may_stay(use: _SecretUse, origins: set[Origin], request: Json) -> bool:
    given = value_at(request, use.path)
    if given is not None and given == use.value:
        return True
    return use.origin in origins or not (use.origin or any(origins))


def _iter_uses(config: Json) -> Iterator[_SecretUse]:
    for place, part in _iter_objects(config, ()):
        levels = [*_parent_levels(config, place), (place, part)]
        settings = {key: value for _, level in levels for key, value in level.items()}
        addresses = _find_addresses(settings) | (_alert_address(part) if place == CRON else {})
        by = place[:2] if place[:1] == (CHANNELS,) else place
        for depth, (written, level) in enumerate(levels):
            hidden = {key for _, later in levels[depth + 1 :] for key in later}
            for key, value in level.items():
                if key not in addresses and key not in hidden and key != ACCOUNTS:
                    yield from _iter_uses_at(config, by, (*written, key), value, addresses, own=written == place)


def _parent_levels(config: Json, path: ConfigPath) -> Iterator[tuple[ConfigPath, Json]]:
    """The levels whose settings a channel or an account inherits; the nearest last."""
    if path[:1] != (CHANNELS,) or len(path) not in (2, 4) or path[2:3] not in ((), (ACCOUNTS,)):
        return
    for above in ((CHANNELS, "defaults"), path[:2]):
        found = value_at(config, above)
        if above != path and isinstance(found, dict):
            yield above, found


def _iter_objects(value: Any, path: ConfigPath) -> Iterator[tuple[ConfigPath, Json]]:
    """Every object, with its place."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            yield from _iter_objects(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _iter_objects(inner, (*path, index))


def _iter_uses_at(
    config: Json, section: ConfigPath, path: ConfigPath, value: Any, addresses: dict[str, tuple[str, str]], *, own: bool
) -> Iterator[_SecretUse]:
    key = str(path[-1])
    near = [
        (name, where) for name, (of, where) in addresses.items() if of in GENERIC_PREFIXES or key.lower().startswith(of)
    ]
    for below, inner in _iter_secrets(config, path, value):
        name, place = (key, *below), (*path, *below)
        yield _SecretUse(
            section=_path_by_ids(config, section),
            name=name,
            path=place,
            value=inner,
            origin=tuple(sorted(near)),
            is_own=own,
        )


def _find_addresses(settings: Json) -> dict[str, tuple[str, str]]:
    """Name of each address to what it is for and where it leads."""
    found = {}
    for name, value in settings.items():
        match = ADDRESS_NAME.fullmatch(name) if isinstance(value, str) else None
        if match is not None:
            found[name] = match["of"].lower(), _origin(value)
    return found


def _alert_address(cron: Json) -> dict[str, tuple[str, str]]:
    """Where `cron.webhookToken` is sent with failure alerts: an address under another key's name."""
    to = value_at(cron, ("failureAlert", "to"))
    return {"failureAlert.to": ("webhook", _origin(to))} if isinstance(to, str) and "://" in to else {}


def _origin(address: str) -> str:
    """Scheme, host and port, which decide who receives a request; an address that can't be parsed is itself."""
    try:
        parts = urlsplit(address.strip())
        port = parts.port or {"http": 80, "https": 443, "ws": 80, "wss": 443}.get(parts.scheme)
    except ValueError:
        return address
    return f"{parts.scheme}://{parts.hostname}:{port}" if parts.hostname else address


def _iter_secrets(config: Json, base: ConfigPath, value: Any) -> Iterator[tuple[ConfigPath, Any]]:
    """What is secret at or below a place, references to secrets included; not what has an address of its own."""
    for below, inner in walk_values(value):
        path = (*base, *below)
        nested = [value_at(value, below[:depth]) for depth in range(len(below))]
        if inner in ("", None, [], {}) or any(isinstance(one, dict) and _find_addresses(one) for one in nested):
            continue
        if any(_is_secret_segment(path, where) for where in range(len(base) - 1, len(path))) or is_secret(config, path):
            yield below, inner


def _is_secret_segment(path: ConfigPath, index: int) -> bool:
    name = path[index]
    if not isinstance(name, str) or (index and path[index - 1] in USER_NAMED_SECTIONS):
        return False
    return is_secret_name(name.removesuffix(FILE_SUFFIX)) or has_secret_holder([name]) or name == "auth"


def _path_by_ids(config: Json, path: ConfigPath) -> ConfigPath:
    """The place by the ids of list entries, where they have some: an entry may move."""
    steps: list[str | int] = []
    for depth, step in enumerate(path):
        id = value_at(config, (*path[: depth + 1], "id")) if isinstance(step, int) else None
        steps.append(f"id:{id}" if isinstance(id, str) else step)
    return tuple(steps)
