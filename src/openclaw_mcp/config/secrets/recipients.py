"""Which address each stored secret is sent to, so that a change of the address does not redirect the secret. Pure.

A key was given for one server. A change to another server must give the key again: otherwise writing an address would
be enough to receive a key that is never shown.
"""

import copy
import json
import re
from collections.abc import Iterable, Iterator
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
    for use in _SecretFinder(before).uses():
        known.setdefault(use.identity, set()).add(use.origin)
    left = []
    for use in _SecretFinder(after).uses():
        origins, given = known.get(use.identity, set()), value_at(request, use.path)
        is_given = given is not None and given == use.value
        if not is_given and use.origin not in origins and (use.origin or any(origins)):
            left.append(use)
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
    result = copy.deepcopy(config)
    for path in paths:
        for depth in range(len(path) - 1, -1, -1):
            holder = value_at(result, path[:depth])
            if isinstance(holder, dict):
                holder.pop(str(path[depth]), None)
            if holder or not depth or not _is_secret_segment(path, depth - 1):
                break
    return result


class _SecretFinder:
    """Every secret of one config, with the addresses it is sent to."""

    def __init__(self, config: Json) -> None:
        self._config = config

    def uses(self) -> Iterator[_SecretUse]:
        for place, part in _iter_objects(self._config, ()):
            levels = [*self._parent_levels(place), (place, part)]
            addresses = _find_addresses(setting for _, level in levels for setting in level.items())
            if place == CRON:
                addresses |= self._alert_address()
            section = self._path_by_ids(place[:2] if place[:1] == (CHANNELS,) else place)
            for depth, (written, level) in enumerate(levels):
                hidden = {key for _, later in levels[depth + 1 :] for key in later}
                for key, value in level.items():
                    if key in addresses or key in hidden or key == ACCOUNTS:
                        continue
                    origin = _origin_of(key, addresses)
                    for below, secret in self._iter_secrets((*written, key), value):
                        yield _SecretUse(
                            section=section,
                            name=(key, *below),
                            path=(*written, key, *below),
                            value=secret,
                            origin=origin,
                            is_own=written == place,
                        )

    def _parent_levels(self, path: ConfigPath) -> Iterator[tuple[ConfigPath, Json]]:
        """The levels whose settings a channel or an account inherits; the nearest last."""
        if path[:1] != (CHANNELS,) or len(path) not in (2, 4) or path[2:3] not in ((), (ACCOUNTS,)):
            return
        for above in ((CHANNELS, "defaults"), path[:2]):
            found = value_at(self._config, above)
            if above != path and isinstance(found, dict):
                yield above, found

    def _alert_address(self) -> dict[str, tuple[str, str]]:
        """Where `cron.webhookToken` is sent with failure alerts: an address under another key's name."""
        to = value_at(self._config, (*CRON, "failureAlert", "to"))
        return {"failureAlert.to": ("webhook", _origin(to))} if isinstance(to, str) and "://" in to else {}

    def _iter_secrets(self, base: ConfigPath, value: Any) -> Iterator[tuple[ConfigPath, Any]]:
        """What is secret at or below a place, references to secrets included; not what has an address of its own."""
        for below, inner in walk_values(value):
            path = (*base, *below)
            nested = [value_at(value, below[:depth]) for depth in range(len(below))]
            has_address = any(isinstance(one, dict) and _find_addresses(one.items()) for one in nested)
            if inner in ("", None, [], {}) or has_address:
                continue
            is_named = any(_is_secret_segment(path, where) for where in range(len(base) - 1, len(path)))
            if is_named or is_secret(self._config, path):
                yield below, inner

    def _path_by_ids(self, path: ConfigPath) -> ConfigPath:
        """The place by the ids of list entries, where they have some: an entry may move."""
        steps: list[str | int] = []
        for depth, step in enumerate(path):
            id = value_at(self._config, (*path[: depth + 1], "id")) if isinstance(step, int) else None
            steps.append(f"id:{id}" if isinstance(id, str) else step)
        return tuple(steps)


def _iter_objects(value: Any, path: ConfigPath) -> Iterator[tuple[ConfigPath, Json]]:
    """Every object, with its place."""
    if isinstance(value, dict):
        yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        yield from _iter_objects(inner, (*path, step))


def _find_addresses(settings: Iterable[tuple[str, Any]]) -> dict[str, tuple[str, str]]:
    """Name of each address to what it is for and where it leads; of two of one name, the later is used."""
    found = {}
    for name, value in dict(settings).items():
        match = ADDRESS_NAME.fullmatch(name) if isinstance(value, str) else None
        if match is not None:
            found[name] = match["of"].lower(), _origin(value)
    return found


def _origin_of(key: str, addresses: dict[str, tuple[str, str]]) -> Origin:
    """The addresses that a value under this key is sent to."""
    prefix = key.lower()
    near = ((name, to) for name, (of, to) in addresses.items() if of in GENERIC_PREFIXES or prefix.startswith(of))
    return tuple(sorted(near))


def _origin(address: str) -> str:
    """Scheme, host and port, which decide who receives a request; an address that can't be parsed is itself."""
    try:
        parts = urlsplit(address.strip())
        port = parts.port or {"http": 80, "https": 443, "ws": 80, "wss": 443}.get(parts.scheme)
    except ValueError:
        return address
    return f"{parts.scheme}://{parts.hostname}:{port}" if parts.hostname else address


def _is_secret_segment(path: ConfigPath, index: int) -> bool:
    name = path[index]
    if not isinstance(name, str) or (index and path[index - 1] in USER_NAMED_SECTIONS):
        return False
    return is_secret_name(name.removesuffix(FILE_SUFFIX)) or has_secret_holder([name]) or name == "auth"
