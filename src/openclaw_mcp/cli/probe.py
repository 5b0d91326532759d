"""A look at the gateway, for reports: is there one, whose is it, how is it. That there is none is an answer too."""

import argparse
import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from ..config.locations import gateway_endpoint
from ..core.config.config import Config
from ..core.errors import OpenClawError
from ..core.model import Json
from ..net.gateway_client.client import GatewayClient
from ..net.listening_ports import find_port_owner
from .address import port_from_env, port_from_state
from .operator_client import connect_operator

__all__ = ["GatewayProbe", "arguments", "find_port_owner", "probe_gateway"]

ANSWER_TIMEOUT: Final = 10.0  # seconds for one method; a report should not hang on a gateway that does
CONNECT_TIMEOUT: Final = 1.0  # seconds to find out whether anybody listens
_CALENDAR_VERSION = re.compile(r"20\d\d\.")
"""How OpenClaw's own versions begin; ours do not."""


class GatewayProbe(Struct, frozen=True, kw_only=True):
    url: str
    is_configured: bool
    """Whether somebody said that it is there."""
    is_listening: bool = False
    problem: str = ""
    """Why it can't be used."""
    version: str = ""
    answers: bool = False
    health: Json = {}
    channels: Json = {}
    cron: Json = {}
    sessions: Json = {}

    @property
    def title(self) -> str:
        whose = "a real OpenClaw gateway" if _CALENDAR_VERSION.match(self.version) else "our gateway"
        return f"{whose} ({self.version})"

    @property
    def issues(self) -> list[str]:
        """What is wrong with its channels."""
        return [
            f"{issue.get('channel')} {issue.get('accountId', '')}: {issue.get('message')}"
            for issue in self.channels.get("statusIssues") or ()
        ]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a report."""
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--url", help="the gateway's address (default $OPENCLAW_GATEWAY_URL, else as configured)")
    parser.add_argument("--token", help="its token (default $OPENCLAW_GATEWAY_TOKEN, else the one kept here)")
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")


async def probe_gateway(
    folder: Path, config: Config, *, url: str | None = None, token: str | None = None, sessions: Json | None = None
) -> GatewayProbe:
    """What the gateway says of itself. `sessions`: the parameters of the list of sessions that is wanted too."""
    named = bool(url or os.environ.get("OPENCLAW_GATEWAY_URL") or config.gateway.mode == "remote")
    place, its_token = gateway_endpoint(config.gateway)
    stands = None if named or port_from_env() else port_from_state(folder)
    address = url or (f"ws://127.0.0.1:{stands}" if stands else place)
    given = token or os.environ.get("OPENCLAW_GATEWAY_TOKEN") or (its_token if address == place else None)
    if not named and not await asyncio.to_thread(_can_connect, address):
        return GatewayProbe(url=address, is_configured=False)
    try:
        async with connect_operator(folder, url=address, token=given) as client:
            hello = client.hello or {}
            return GatewayProbe(
                url=address, is_configured=named, is_listening=True, answers=True,
                version=str((hello.get("server") or {}).get("version") or "version unknown"),
                health=await _call_or_empty(client, "health"), channels=await _call_or_empty(client, "channels.status"),
                cron=await _call_or_empty(client, "cron.status"),
                sessions={} if sessions is None else await _call_or_empty(client, "sessions.list", sessions),
            )  # fmt: skip
    except OpenClawError as exc:
        port, who = urlsplit(address).port, None
        if port is not None:
            who = await asyncio.to_thread(find_port_owner, port)
        held = f" (port {port} is held by {who})" if who else ""
        listens = await asyncio.to_thread(_can_connect, address)
        return GatewayProbe(url=address, is_configured=named, is_listening=listens, problem=f"{exc}{held}")


async def _call_or_empty(client: GatewayClient, method: str, params: Json | None = None) -> Json:
    """What a method answers; nothing when this gateway has no such method or will not say."""
    asking: Callable[..., Awaitable[Any]] = client.call
    try:
        answer = await asking(method, params or {}, within=ANSWER_TIMEOUT)
    except OpenClawError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _can_connect(url: str) -> bool:
    place = urlsplit(url)
    try:
        with socket.create_connection((place.hostname or "", place.port or 0), CONNECT_TIMEOUT):
            return True
    except (OSError, ValueError):
        return False
