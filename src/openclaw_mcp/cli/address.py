"""Where the gateway of a state directory is: as told, as it stands, as configured."""

import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ..core.errors import BadRequest
from ..core.numbers import parse_whole_number
from ..net.gateway_client.address import is_local_gateway
from . import run_state

DEFAULT_GATEWAY_PORT: Final = 18789


def gateway_port(folder: Path, chosen: int | None = None) -> int:
    """Where it is now, else where it will be. `chosen`, else $OPENCLAW_GATEWAY_PORT, wins over what is known."""
    told = chosen or port_from_env()
    return told or port_from_state(folder) or resolve_port(None, folder)


def port_from_env() -> int | None:
    """$OPENCLAW_GATEWAY_PORT."""
    told = os.environ.get("OPENCLAW_GATEWAY_PORT") or None
    port = None if told is None else parse_whole_number(told, maximum=65535)
    if told is not None and port is None:
        raise BadRequest(f"OPENCLAW_GATEWAY_PORT is {told!r}, which is no port number; give one from 0 to 65535")
    return port


def hosts_from_env() -> frozenset[str]:
    """$OPENCLAW_GATEWAY_HOSTS: names the gateway is known by, such as its reverse proxy's; `*` is any."""
    told = os.environ.get("OPENCLAW_GATEWAY_HOSTS", "")
    return frozenset(name.strip().lower() for name in told.split(",") if name.strip())


def port_from_state(folder: Path) -> int | None:
    """The port of the `openclaw up` that serves this folder."""
    up = run_state.read(folder)
    return None if up is None else urlsplit(up.surface("gateway").address).port


def resolve_port(chosen: int | str | None, folder: Path) -> int:
    """The gateway's port: as chosen, else as configured."""
    named = chosen if chosen is not None else read_config_value(folder, "gateway", "port")
    return DEFAULT_GATEWAY_PORT if named is None else int(str(named))


def read_config_value(folder: Path, *path: str) -> object:
    """What the config file says there. Raises ConfigInvalid rather than serve with half a config."""
    # Here for start-up: a command that was told the port needs no config.
    from ..config.file import ConfigFile, invalid_config_error
    from ..config.parsing import value_at  # here for start-up, as above

    snapshot = ConfigFile(folder, key=b"nobody sees the hash").read()
    # A reference nobody resolved must not serve as a token: anybody could guess it.
    unset = [warning for warning in snapshot.warnings if warning["path"] == ".".join(path)]
    if snapshot.issues or unset:
        raise invalid_config_error(snapshot.issues or unset, snapshot.path)
    return value_at(snapshot.resolved, path)


def may_send_token(folder: Path, url: str) -> bool:
    """Whether the token kept in this folder may be shown there: never beyond this machine, and while an `openclaw up`
    serves the folder to nobody but it."""
    stands = port_from_state(folder)
    return is_local_gateway(url) and (stands is None or urlsplit(url).netloc.endswith(f":{stands}"))
