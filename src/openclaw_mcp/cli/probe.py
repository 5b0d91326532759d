"""The state of the gateway for reports: whether one listens, which it is, how it is. None is an answer too."""

import argparse
import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from ..config.locations import gateway_endpoint
from ..core.config.config import Config
from ..core.errors import OpenClawError
from ..core.model import Json
from ..net.gateway_client.client import GatewayClient
from ..net.listening_ports import can_connect, find_port_owner
from .channels import ChannelsStatus
from .gateway_connection import connect_operator, port_from_env, port_from_state
from .report import Finding, attention

ANSWER_TIMEOUT: Final = 10.0  # seconds for one method; a report should not hang on a gateway that does
REPORT_METHODS: Final = ("health", "channels.status", "cron.status")
Reply = TypeVar("Reply")
_CALENDAR_VERSION = re.compile(r"20\d\d\.")
"""How OpenClaw's own versions begin; ours do not."""


class GatewayProbe(Struct, frozen=True, kw_only=True):
    url: str
    is_configured: bool
    """Whether its address was given, not assumed."""
    is_listening: bool = False
    problem: str = ""
    """Why it can't be used."""
    version: str = ""
    answers: bool = False
    replies: dict[str, Json] = {}
    """What it answered, by method; none to a method that it does not have or refuses."""

    @property
    def title(self) -> str:
        whose = "a real OpenClaw gateway" if _CALENDAR_VERSION.match(self.version) else "our gateway"
        return f"{whose} ({self.version})"

    def channel_findings(self) -> Iterator[Finding]:
        """What is wrong with its channels."""
        remedy = "openclaw channels shows each; correct its settings with openclaw config"
        for issue in self.reply("channels.status", ChannelsStatus).status_issues:
            yield attention("channels", f"{issue.channel} {issue.account_id}: {issue.message}", remedy)

    def reply(self, method: str, kind: type[Reply]) -> Reply:
        """One of the answers; the defaults of `kind` for one that has another form, as another gateway's may."""
        try:
            return msgspec.convert(self.replies.get(method, {}), kind)
        except msgspec.ValidationError:
            return kind()


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a report."""
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--url", help="the gateway's address (default $OPENCLAW_GATEWAY_URL, else as configured)")
    parser.add_argument("--token", help="its token (default $OPENCLAW_GATEWAY_TOKEN, else the one kept here)")
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")


async def probe_gateway(
    folder: Path, config: Config, *, url: str | None = None, token: str | None = None, sessions: int = 0
) -> GatewayProbe:
    """What the gateway reports, with at most so many of its sessions."""
    named = bool(url or os.environ.get("OPENCLAW_GATEWAY_URL") or config.gateway.mode == "remote")
    configured, config_token = gateway_endpoint(config.gateway)
    running = None if named or port_from_env() else port_from_state(folder)
    address = url or (f"ws://127.0.0.1:{running}" if running else configured)
    given = token or os.environ.get("OPENCLAW_GATEWAY_TOKEN") or (config_token if address == configured else None)
    if not named and not await asyncio.to_thread(can_connect, address):
        return GatewayProbe(url=address, is_configured=False)
    try:
        async with connect_operator(folder, url=address, token=given) as client:
            hello = client.hello or {}
            methods: dict[str, Json] = {method: {} for method in REPORT_METHODS}
            if sessions:
                methods["sessions.list"] = {"limit": sessions, "includeDerivedTitles": True}
            return GatewayProbe(
                url=address,
                is_configured=named,
                is_listening=True,
                answers=True,
                version=str((hello.get("server") or {}).get("version") or "version unknown"),
                replies={method: await _call_or_empty(client, method, params) for method, params in methods.items()},
            )
    except OpenClawError as exc:
        port = urlsplit(address).port
        owner = None if port is None else await asyncio.to_thread(find_port_owner, port)
        held = f" (port {port} is held by {owner})" if owner else ""
        listens = await asyncio.to_thread(can_connect, address)
        return GatewayProbe(url=address, is_configured=named, is_listening=listens, problem=f"{exc}{held}")


async def _call_or_empty(client: GatewayClient, method: str, params: Json) -> Json:
    """A method's answer; empty when this gateway does not have the method or refuses it."""
    try:
        answer = await client.call(method, params, within=ANSWER_TIMEOUT)
    except OpenClawError:
        return {}
    return answer if isinstance(answer, dict) else {}
