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
from ..net.gateway_client.client import Client, gateway_url, on_this_machine
from ..net.gateway_client.handshake import ClientInfo, Credentials, Introduction
from ..net.state_dir import known_gateway_token
from .address import gateway_port, is_ours

EVERY_SCOPE: Final = (READ, WRITE, ADMIN, APPROVALS, PAIRING)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name a gateway."""
    parser.add_argument("--url", help="the gateway's address (default $OPENCLAW_GATEWAY_URL, else this machine's)")
    parser.add_argument("--token", help="its token (default $OPENCLAW_GATEWAY_TOKEN, else the one kept here)")


@asynccontextmanager
async def operator(
    folder: Path,
    *,
    url: str | None = None,
    token: str | None = None,
    port: int | None = None,
    scopes: Sequence[str] = EVERY_SCOPE,
    caps: Sequence[str] = (),
    redial: bool = False,
) -> AsyncIterator[Client]:
    """Raises CannotConnect."""
    address = url or os.environ.get("OPENCLAW_GATEWAY_URL") or gateway_url(gateway_port(folder, port))
    me = ClientInfo(id="cli", mode="cli", version=__version__, platform=sys.platform)
    told = Introduction(client=me, scopes=tuple(scopes), caps=tuple(caps))
    if on_this_machine(address):
        kept = known_gateway_token(folder) if is_ours(folder, address) else os.environ.get("OPENCLAW_GATEWAY_TOKEN")
        credentials = Credentials(token=token or kept)
        async with Client(address, told, credentials=credentials, redial=redial) as client:
            yield client
        return
    # Here for start-up: only a gateway elsewhere wants a device, and with it cryptography.
    from ..net.gateway_client.identity import DeviceTokens, Identity

    tokens = DeviceTokens(folder / "device-tokens.json")
    # Never the token kept here: it is this machine's gateway's, and none of another's business.
    shared = token or os.environ.get("OPENCLAW_GATEWAY_TOKEN")
    credentials = Credentials(token=shared, device_token=None if shared else tokens.find(address, "operator"))
    device = Identity.load(folder / "device.json")
    async with Client(address, told, credentials=credentials, signer=device, redial=redial) as client:
        given = (client.hello or {}).get("auth", {}).get("deviceToken")
        if given:
            tokens.keep(address, "operator", given)
        yield client
