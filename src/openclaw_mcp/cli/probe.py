"""The state of the gateway for reports: whether one listens, which it is, how it is. None is an answer too."""

import argparse
import asyncio
import http.client
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from ..core.config.config import Config
from ..core.errors import OpenClawError
from ..core.model import Json
from ..net.gateway_client.client import GatewayClient
from ..net.listening_ports import can_connect, find_port_owner
from .channels import ChannelsStatus
from .gateway_connection import connect_operator
from .locations import find_gateway
from .report import Finding, attention

ANSWER_TIMEOUT: Final = 10.0  # seconds for one method; a report should not hang on a gateway that does
HTTP_TIMEOUT: Final = 5.0  # seconds for a surface to answer
REPORT_METHODS: Final = ("health", "channels.status", "cron.status")
NO_CALLS: Final[Mapping[str, Json]] = {}
Reply = TypeVar("Reply")
_CALENDAR_VERSION = re.compile(r"20\d\d\.")
"""How OpenClaw's own versions begin; ours do not."""


class GatewayProbe(Struct, frozen=True, kw_only=True):
    url: str
    is_configured: bool
    """Whether one should be there: its address was given, or `openclaw up` runs."""
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
    folder: Path, config: Config, *, url: str | None = None, token: str | None = None,
    calls: Mapping[str, Json] = NO_CALLS,
) -> GatewayProbe:  # fmt: skip
    """What the gateway reports, and what it answers to `calls`: methods with their parameters."""
    place = find_gateway(folder, url=url, token=token, config=config.gateway)
    address, named = place.url, place.is_expected
    if not named and not await asyncio.to_thread(can_connect, address):
        return GatewayProbe(url=address, is_configured=False)
    try:
        async with connect_operator(folder, url=address, token=token) as client:
            hello = client.hello or {}
            methods: dict[str, Json] = {method: {} for method in REPORT_METHODS}
            methods |= calls
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


def has_http_server(address: str) -> bool:
    """Whether an HTTP server answers there, with any status."""
    place = urlsplit(address)
    try:
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=HTTP_TIMEOUT)
    except ValueError:  # no port number
        return False
    try:
        connection.request("GET", place.path or "/")
        return connection.getresponse().status > 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


async def _call_or_empty(client: GatewayClient, method: str, params: Json) -> Json:
    """A method's answer; empty when this gateway does not have the method or refuses it."""
    try:
        answer = await client.call(method, params, within=ANSWER_TIMEOUT)
    except OpenClawError:
        return {}
    return answer if isinstance(answer, dict) else {}
