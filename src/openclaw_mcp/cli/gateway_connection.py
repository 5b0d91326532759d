"""Commands that call a gateway: the options that name it, where it is, and the connection to it."""

import argparse
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from .. import __version__
from ..core.errors import BadRequest, OpenClawError
from ..core.numbers import parse_whole_number
from ..core.rpc import ADMIN, APPROVALS, PAIRING, READ, WRITE
from ..net.gateway_client.address import DEFAULT_GATEWAY_PORT, is_local_gateway
from ..net.gateway_client.client import GatewayClient
from ..net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials
from ..net.state_dir import find_gateway_token, state_dir
from . import run_state
from .commands import parse_port

Reply = TypeVar("Reply")
EVERY_SCOPE: Final = (READ, WRITE, ADMIN, APPROVALS, PAIRING)

# ---- options ---------------------------------------------------------------------------------------------------------


def add_gateway_options(parser: argparse.ArgumentParser) -> None:
    """`--url` and `--token`."""
    parser.add_argument("--url", help="the gateway's address (default $OPENCLAW_GATEWAY_URL, else this machine's)")
    parser.add_argument("--token", help="its token (default $OPENCLAW_GATEWAY_TOKEN, else the one kept here)")


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """The options that `connect_from_options` reads."""
    add_gateway_options(parser)
    text = f"its port here (default $OPENCLAW_GATEWAY_PORT, that of openclaw up, the config's, {DEFAULT_GATEWAY_PORT})"
    parser.add_argument("--port", type=parse_port, help=text)
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")


# ---- where the gateway is --------------------------------------------------------------------------------------------


def find_gateway_url(folder: Path, *, url: str | None = None, port: int | None = None) -> str:
    """`url`, else $OPENCLAW_GATEWAY_URL, else the gateway of this machine."""
    return url or os.environ.get("OPENCLAW_GATEWAY_URL") or f"ws://127.0.0.1:{gateway_port(folder, port)}"


def gateway_port(folder: Path, chosen: int | None = None) -> int:
    """The port of the gateway that runs, else the configured one. `chosen`, then $OPENCLAW_GATEWAY_PORT, win."""
    return chosen or port_from_env() or port_from_state(folder) or resolve_port(None, folder)


def port_from_env() -> int | None:
    """$OPENCLAW_GATEWAY_PORT."""
    text = os.environ.get("OPENCLAW_GATEWAY_PORT") or None
    port = None if text is None else parse_whole_number(text, maximum=65535)
    if text is not None and port is None:
        raise BadRequest(f"OPENCLAW_GATEWAY_PORT is {text!r}, which is no port number; give one from 0 to 65535")
    return port


def hosts_from_env() -> frozenset[str]:
    """$OPENCLAW_GATEWAY_HOSTS: further names of the gateway, such as its reverse proxy's; `*` is any."""
    names = os.environ.get("OPENCLAW_GATEWAY_HOSTS", "").split(",")
    return frozenset(name.strip().lower() for name in names if name.strip())


def port_from_state(folder: Path) -> int | None:
    """The port of the `openclaw up` that serves this folder."""
    up = run_state.read(folder)
    return None if up is None else urlsplit(up.surface("gateway").address).port


def resolve_port(chosen: int | str | None, folder: Path) -> int:
    """The port to serve on: `chosen`, else the configured one."""
    port = chosen if chosen is not None else read_config_value(folder, "gateway", "port")
    return DEFAULT_GATEWAY_PORT if port is None else int(str(port))


def read_config_value(folder: Path, *path: str) -> object:
    """A value of the config file. Raises ConfigInvalid rather than serve with half a config."""
    # Here for start-up: a command that is given the port needs no config.
    from ..config.file import ConfigFile, invalid_config_error
    from ..config.parsing import value_at  # here for start-up, as above

    snapshot = ConfigFile(folder, key=b"the hash is not shown").read()
    # A reference to an unset variable must not serve as a token: it could be guessed.
    unset = [warning for warning in snapshot.warnings if warning["path"] == ".".join(path)]
    if snapshot.issues or unset:
        raise invalid_config_error(snapshot.issues or unset, snapshot.path)
    return value_at(snapshot.resolved, path)


# ---- the connection --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def connect_from_options(options: argparse.Namespace) -> AsyncIterator[GatewayClient]:
    """A client with every scope. Raises CannotConnect."""
    folder = state_dir(options.state_dir)
    async with connect_operator(folder, url=options.url, token=options.token, port=options.port) as client:
        yield client


@asynccontextmanager
async def connect_operator(
    folder: Path,
    *,
    url: str | None = None,
    token: str | None = None,
    port: int | None = None,
    scopes: Sequence[str] = EVERY_SCOPE,
    caps: Sequence[str] = (),
    redial: bool = False,
) -> AsyncIterator[GatewayClient]:
    """This machine's gateway by its token, another one as a paired device. Raises CannotConnect."""
    address = find_gateway_url(folder, url=url, port=port)
    client_info = ClientInfo(id="cli", mode="cli", version=__version__, platform=sys.platform)
    profile = ClientProfile(client=client_info, scopes=tuple(scopes), caps=tuple(caps))
    from_env = os.environ.get("OPENCLAW_GATEWAY_TOKEN")
    if is_local_gateway(address):
        stored = find_gateway_token(folder) if _may_send_token(folder, address) else from_env
        credentials = Credentials(token=token or stored)
        async with GatewayClient(address, profile, credentials=credentials, redial=redial) as client:
            yield client
        return
    # Here for start-up: only a gateway on another machine needs a device key.
    from ..net.gateway_client.identity import DeviceIdentity, DeviceTokens

    tokens = DeviceTokens(folder / "device-tokens.json")
    # Never the token stored here: it is this machine's gateway's, and not for another one to see.
    shared = token or from_env
    credentials = Credentials(token=shared, device_token=None if shared else tokens.find(address, "operator"))
    device = DeviceIdentity.load(folder / "device.json")
    async with GatewayClient(address, profile, credentials=credentials, signer=device, redial=redial) as client:
        issued = (client.hello or {}).get("auth", {}).get("deviceToken")
        if issued:
            tokens.save(address, "operator", issued)
        yield client


def _may_send_token(folder: Path, url: str) -> bool:
    """Whether the token stored in this folder may be sent there: while an `openclaw up` serves the folder, to that
    process alone."""
    port = port_from_state(folder)
    return port is None or urlsplit(url).netloc.endswith(f":{port}")


def read_reply(answer: Any, kind: type[Reply]) -> Reply:
    """A gateway's answer, unknown fields ignored. Raises OpenClawError: a gateway of another version may differ."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as exc:
        raise OpenClawError(f"the gateway's answer is not understood ({exc}); is it of another version?") from None
