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

from ..config.views import gateway_place
from ..core.errors import OpenClawError
from ..core.model import Json
from ..net.gateway_client.client import Client
from ..net.listening_ports import holder
from .address import standing_port, told_port
from .operator_client import operator

__all__ = ["Gateway", "arguments", "holder", "look"]

ANSWER_WITHIN: Final = 10.0  # seconds for one method; a report should not hang on a gateway that does
KNOCK_WITHIN: Final = 1.0  # seconds to find out whether anybody listens
_CALENDAR = re.compile(r"20\d\d\.")
"""How OpenClaw's own versions begin; ours do not."""


class Gateway(Struct, frozen=True, kw_only=True):
    url: str
    named: bool
    """Whether somebody said that it is there."""
    listens: bool = False
    trouble: str = ""
    """Why it can't be used."""
    version: str = ""
    answers: bool = False
    health: Json = {}
    channels: Json = {}
    cron: Json = {}
    sessions: Json = {}

    @property
    def title(self) -> str:
        whose = "a real OpenClaw gateway" if _CALENDAR.match(self.version) else "our gateway"
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


async def look(
    folder: Path, config: Json, *, url: str | None = None, token: str | None = None, sessions: Json | None = None
) -> Gateway:
    """What the gateway says of itself. `sessions`: the parameters of the list of sessions that is wanted too."""
    named = bool(url or os.environ.get("OPENCLAW_GATEWAY_URL") or config.get("gateway", {}).get("mode") == "remote")
    place, its_token = gateway_place(config)
    stands = None if named or told_port() else standing_port(folder)
    address = url or (f"ws://127.0.0.1:{stands}" if stands else place)
    given = token or os.environ.get("OPENCLAW_GATEWAY_TOKEN") or (its_token if address == place else None)
    if not named and not await asyncio.to_thread(_knocked, address):
        return Gateway(url=address, named=False)
    try:
        async with operator(folder, url=address, token=given) as client:
            hello = client.hello or {}
            return Gateway(
                url=address, named=named, listens=True, answers=True,
                version=str((hello.get("server") or {}).get("version") or "version unknown"),
                health=await _said(client, "health"), channels=await _said(client, "channels.status"),
                cron=await _said(client, "cron.status"),
                sessions={} if sessions is None else await _said(client, "sessions.list", sessions),
            )  # fmt: skip
    except OpenClawError as exc:
        port, who = urlsplit(address).port, None
        if port is not None:
            who = await asyncio.to_thread(holder, port)
        held = f" (port {port} is held by {who})" if who else ""
        listens = await asyncio.to_thread(_knocked, address)
        return Gateway(url=address, named=named, listens=listens, trouble=f"{exc}{held}")


async def _said(client: Client, method: str, params: Json | None = None) -> Json:
    """What a method answers; nothing when this gateway has no such method or will not say."""
    asking: Callable[..., Awaitable[Any]] = client.call
    try:
        answer = await asking(method, params or {}, within=ANSWER_WITHIN)
    except OpenClawError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _knocked(url: str) -> bool:
    place = urlsplit(url)
    try:
        with socket.create_connection((place.hostname or "", place.port or 0), KNOCK_WITHIN):
            return True
    except (OSError, ValueError):
        return False
