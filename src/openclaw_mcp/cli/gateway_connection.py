"""Commands that call a gateway or serve one: the options that name it, and the connection to it."""

import argparse
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from .. import __version__
from ..core.errors import OpenClawError
from ..core.rpc import ADMIN, APPROVALS, PAIRING, READ, WRITE
from ..net.gateway_client.address import DEFAULT_GATEWAY_PORT, is_local_gateway
from ..net.gateway_client.client import GatewayClient
from ..net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials
from ..net.state_dir import state_dir
from .commands import parse_port
from .locations import find_gateway

Reply = TypeVar("Reply")
LOOPBACK: Final = "127.0.0.1"
ALL_ADDRESSES: Final = "0.0.0.0"
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


# ---- what it is served with ------------------------------------------------------------------------------------------


def hosts_from_env() -> frozenset[str]:
    """$OPENCLAW_GATEWAY_HOSTS: further names of the gateway, such as its reverse proxy's; `*` is any."""
    names = os.environ.get("OPENCLAW_GATEWAY_HOSTS", "").split(",")
    return frozenset(name.strip().lower() for name in names if name.strip())


def resolve_port(chosen: int | str | None, folder: Path) -> int:
    """The port to serve on: `chosen`, else the configured one."""
    port = chosen if chosen is not None else read_config_value(folder, "gateway", "port")
    return DEFAULT_GATEWAY_PORT if port is None else int(str(port))


def resolve_host(chosen: str | None, folder: Path) -> str:
    """The address to listen on: `chosen`, else as the config's gateway.bind says."""
    if chosen is not None:
        return chosen
    return ALL_ADDRESSES if read_config_value(folder, "gateway", "bind") == "lan" else LOOPBACK


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
async def connect_from_options(options: argparse.Namespace, *, redial: bool = False) -> AsyncIterator[GatewayClient]:
    """A client with every scope. Raises CannotConnect."""
    folder = state_dir(options.state_dir)
    async with connect_operator(
        folder, url=options.url, token=options.token, port=options.port, redial=redial
    ) as client:
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
    place = find_gateway(folder, url=url, port=port, token=token)
    address = place.url
    client_info = ClientInfo(id="cli", mode="cli", version=__version__, platform=sys.platform)
    profile = ClientProfile(client=client_info, scopes=tuple(scopes), caps=tuple(caps))
    if is_local_gateway(address):
        credentials = Credentials(token=place.token)
        async with GatewayClient(address, profile, credentials=credentials, redial=redial) as client:
            yield client
        return
    # Here for start-up: only a gateway on another machine needs a device key.
    from ..net.gateway_client.identity import DeviceIdentity, DeviceTokens

    tokens = DeviceTokens(folder / "device-tokens.json")
    device_token = None if place.token else tokens.find(address, "operator")
    credentials = Credentials(token=place.token, device_token=device_token)
    device = DeviceIdentity.load(folder / "device.json")
    async with GatewayClient(address, profile, credentials=credentials, signer=device, redial=redial) as client:
        issued = (client.hello or {}).get("auth", {}).get("deviceToken")
        if issued:
            tokens.save(address, "operator", issued)
        yield client


def read_reply(answer: Any, kind: type[Reply]) -> Reply:
    """A gateway's answer, unknown fields ignored. Raises OpenClawError: a gateway of another version may differ."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as exc:
        raise OpenClawError(f"the gateway's answer is not understood ({exc}); is it of another version?") from None
