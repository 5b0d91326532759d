"""An operator's connection for one command: this machine's gateway by its token, another one as a paired device."""

import argparse
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from .. import __version__
from ..core.rpc import ADMIN, APPROVALS, PAIRING, READ, WRITE
from ..net.gateway_client.address import gateway_url, is_local_gateway
from ..net.gateway_client.client import GatewayClient
from ..net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials
from ..net.state_dir import find_gateway_token
from .address import gateway_port, may_send_token

EVERY_SCOPE: Final = (READ, WRITE, ADMIN, APPROVALS, PAIRING)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name a gateway."""
    parser.add_argument("--url", help="the gateway's address (default $OPENCLAW_GATEWAY_URL, else this machine's)")
    parser.add_argument("--token", help="its token (default $OPENCLAW_GATEWAY_TOKEN, else the one kept here)")


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
    """Raises CannotConnect."""
    address = url or os.environ.get("OPENCLAW_GATEWAY_URL") or gateway_url(gateway_port(folder, port))
    me = ClientInfo(id="cli", mode="cli", version=__version__, platform=sys.platform)
    told = ClientProfile(client=me, scopes=tuple(scopes), caps=tuple(caps))
    if is_local_gateway(address):
        kept = (
            find_gateway_token(folder) if may_send_token(folder, address) else os.environ.get("OPENCLAW_GATEWAY_TOKEN")
        )
        credentials = Credentials(token=token or kept)
        async with GatewayClient(address, told, credentials=credentials, redial=redial) as client:
            yield client
        return
    # Here for start-up: only a gateway elsewhere wants a device, and with it cryptography.
    from ..net.gateway_client.identity import DeviceIdentity, DeviceTokens

    tokens = DeviceTokens(folder / "device-tokens.json")
    # Never the token kept here: it is this machine's gateway's, and none of another's business.
    shared = token or os.environ.get("OPENCLAW_GATEWAY_TOKEN")
    credentials = Credentials(token=shared, device_token=None if shared else tokens.find(address, "operator"))
    device = DeviceIdentity.load(folder / "device.json")
    async with GatewayClient(address, told, credentials=credentials, signer=device, redial=redial) as client:
        given = (client.hello or {}).get("auth", {}).get("deviceToken")
        if given:
            tokens.save(address, "operator", given)
        yield client
