"""Which address each stored secret goes to, so that a change of the address does not take the secret along. Pure.

A key was given for one server. Whoever names another one in its place has to give the key anew: otherwise writing an
address would be enough to be sent a key that nobody is shown.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from ..core.errors import BadRequest
from ..core.model import Json
from .secret_names import holds_secrets, names_secret
from .text import NAMING, REDACTED, Path, at, dotted, is_secret, walk

ADDRESS_NAME: Final = re.compile(
    r"(?P<of>.*?)(homeserver|base_?url|url|uri|endpoint|hostname|host|address|server)", re.IGNORECASE
)
"""Keys that say where something is. `webhookUrl` is where what begins with `webhook` goes; a bare one is for all."""
FOR_ALL: Final = frozenset({"", "api"})
FILE: Final = "File"
"""How keys end that name the file a secret is in: `tokenFile`."""
CRON: Final = ("cron",)
CHANNELS: Final = "channels"
ACCOUNTS: Final = "accounts"

Origin = tuple[tuple[str, str], ...]
"""The addresses a secret goes to, by the names of their keys."""


class _Use(Struct, frozen=True):
    """A secret and where it goes. `path` is where it is written, which may be above the part that uses it."""

    by: Path
    """The part that uses it."""
    name: Path
    path: Path
    value: Any
    origin: Origin
    own: bool
    """Written in the very part that has the address."""

    @property
    def secret(self) -> tuple[Path, Path, str]:
        return self.by, self.name, json.dumps(self.value, sort_keys=True)


def left_behind(before: Json, after: Json, asked: Json) -> list[Path]:
    """Where `after` holds secrets that were given for another address than the one beside them now.

    `asked` is what the caller wrote: what stands in it was given anew. Raises BadRequest for a secret that it asks to
    keep, and for one that others use as well, so that it can't be left out."""
    known: dict[tuple[Path, Path, str], set[Origin]] = {}
    for use in _uses(before):
        known.setdefault(use.secret, set()).add(use.origin)
    left = [use for use in _uses(after) if not _stays(use, known.get(use.secret, set()), asked)]
    owned = {use.path for use in left if use.own}
    for use in left:
        if REDACTED in str(at(asked, use.path)):
            raise BadRequest(
                f"{dotted(use.path)}: the address beside it is another now, and what is stored was given for the one "
                "before; write the value itself, or leave it out"
            )
        if use.path not in owned:
            raise BadRequest(
                f"{dotted(use.by)}: it would send {dotted(use.path)} to another address than before; "
                f"give it a {use.name[0]} of its own in the same change"
            )
    return sorted({_whole(path) for path in owned}, key=dotted)


def _whole(path: Path) -> Path:
    """A list is given as one."""
    return path[: next((place for place, step in enumerate(path) if isinstance(step, int)), len(path))]


def without(config: Json, paths: list[Path]) -> Json:
    """A copy that lacks these values, and what is empty for want of them."""
    result: Json = json.loads(json.dumps(config))
    for path in paths:
        _remove(result, path)
    return result


def _remove(config: Json, path: Path) -> None:
    holder = at(config, path[:-1])
    if isinstance(holder, dict):
        holder.pop(str(path[-1]), None)
        if not holder and _is_secret_name(path[:-1], len(path) - 2):
            _remove(config, path[:-1])


def _stays(use: _Use, known: set[Origin], asked: Json) -> bool:
    given = at(asked, use.path)
    if given is not None and given == use.value:
        return True
    return use.origin in known or not (use.origin or any(known))


def _uses(config: Json) -> Iterator[_Use]:
    for place, part in _parts(config, ()):
        levels = [*_above(config, place), (place, part)]
        said = {key: value for _, level in levels for key, value in level.items()}
        addresses = _addresses(said) | (_alert_address(part) if place == CRON else {})
        by = place[:2] if place[:1] == (CHANNELS,) else place
        for depth, (written, level) in enumerate(levels):
            hidden = {key for _, later in levels[depth + 1 :] for key in later}
            for key, value in level.items():
                if key not in addresses and key not in hidden and key != ACCOUNTS:
                    yield from _uses_at(config, by, (*written, key), value, addresses, own=written == place)


def _above(config: Json, place: Path) -> Iterator[tuple[Path, Json]]:
    """What holds for a channel, or an account of one, where it says nothing itself; the nearest last."""
    if place[:1] != (CHANNELS,) or len(place) not in (2, 4) or place[2:3] not in ((), (ACCOUNTS,)):
        return
    for above in ((CHANNELS, "defaults"), place[:2]):
        found = at(config, above)
        if above != place and isinstance(found, dict):
            yield above, found


def _parts(value: Any, path: Path) -> Iterator[tuple[Path, Json]]:
    """Every object, with its place."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            yield from _parts(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _parts(inner, (*path, index))


def _uses_at(
    config: Json, by: Path, path: Path, value: Any, addresses: dict[str, tuple[str, str]], *, own: bool
) -> Iterator[_Use]:
    key = str(path[-1])
    near = [(name, where) for name, (of, where) in addresses.items() if of in FOR_ALL or key.lower().startswith(of)]
    for below, inner in _secrets(config, path, value):
        name, place = (key, *below), (*path, *below)
        yield _Use(by=_named(config, by), name=name, path=place, value=inner, origin=tuple(sorted(near)), own=own)


def _addresses(said: Json) -> dict[str, tuple[str, str]]:
    """Name of each address to what it is for and where it leads."""
    found = {}
    for name, value in said.items():
        match = ADDRESS_NAME.fullmatch(name) if isinstance(value, str) else None
        if match is not None:
            found[name] = match["of"].lower(), _origin(value)
    return found


def _alert_address(cron: Json) -> dict[str, tuple[str, str]]:
    """Where `cron.webhookToken` goes with news of failures: an address under another key's name."""
    to = at(cron, ("failureAlert", "to"))
    return {"failureAlert.to": ("webhook", _origin(to))} if isinstance(to, str) and "://" in to else {}


def _origin(address: str) -> str:
    """Scheme, host and port, which is who gets what is sent there; an address nobody understands is itself."""
    try:
        parts = urlsplit(address.strip())
        port = parts.port or {"http": 80, "https": 443, "ws": 80, "wss": 443}.get(parts.scheme)
    except ValueError:
        return address
    return f"{parts.scheme}://{parts.hostname}:{port}" if parts.hostname else address


def _secrets(config: Json, place: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """What is secret at or below a place, references to secrets included; not what has an address of its own."""
    for below, inner in walk(value):
        path = (*place, *below)
        nested = [at(value, below[:depth]) for depth in range(len(below))]
        if inner in ("", None, [], {}) or any(isinstance(one, dict) and _addresses(one) for one in nested):
            continue
        if any(_is_secret_name(path, where) for where in range(len(place) - 1, len(path))) or is_secret(config, path):
            yield below, inner


def _is_secret_name(path: Path, where: int) -> bool:
    name = path[where]
    if not isinstance(name, str) or (where and path[where - 1] in NAMING):
        return False
    return names_secret(name.removesuffix(FILE)) or holds_secrets([name]) or name == "auth"


def _named(config: Json, path: Path) -> Path:
    """The place by the ids of list entries, where they have some: an entry may move."""
    steps: list[str | int] = []
    for depth, step in enumerate(path):
        id = at(config, (*path[: depth + 1], "id")) if isinstance(step, int) else None
        steps.append(f"id:{id}" if isinstance(id, str) else step)
    return tuple(steps)
