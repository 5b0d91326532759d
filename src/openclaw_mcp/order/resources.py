"""Sessions and their transcripts as MCP resources, read from the gateway."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from ..core.errors import OpenClawError, ResourceNotFound
from ..core.gateway_port import OrderGateway
from ..core.model import Caller, Contents, Json, ResourceRead, ResourceSpec, TemplateSpec
from ..core.signal import Signal

PREFIX: Final = "openclaw://sessions/"
MAX_LISTED: Final = 100  # sessions, newest first
MOST_MESSAGES: Final = 1000  # messages of a transcript, the last ones
READ_TIMEOUT: Final = 30.0

FindGateway = Callable[[], Awaitable[OrderGateway]]


class SessionResources:
    """Lists what there is at the moment of asking."""

    def __init__(self, find_gateway: FindGateway) -> None:
        self.changed: Signal[None] = Signal()
        self.updated: Signal[str] = Signal()
        self._find_gateway = find_gateway

    async def list(self, caller: Caller) -> Sequence[ResourceSpec]:
        page = await self._call("sessions.list", {"limit": MAX_LISTED})
        return [
            _resource_spec(row) for row in page.get("sessions", ()) if type(row) is dict and type(row.get("key")) is str
        ]

    async def templates(self, caller: Caller) -> Sequence[TemplateSpec]:
        spec = TemplateSpec(
            uri_template=PREFIX + "{key}",
            name="session",
            title="A session's transcript",
            description="What was said in a session, by its key; percent-encode the key.",
            mime_type="application/json",
        )
        return [spec]

    async def read(self, read: ResourceRead) -> Sequence[Contents]:
        if not read.uri.startswith(PREFIX):
            raise ResourceNotFound(f"there is no such resource; sessions are at {PREFIX}{{key}}")
        key = unquote(read.uri.removeprefix(PREFIX))
        try:
            known = await self._call("sessions.resolve", {"key": key})
        except OpenClawError:
            known = {}
        if known.get("ok") is not True:
            raise ResourceNotFound("there is no such session")
        history = await self._call("chat.history", {"sessionKey": known.get("key", key), "limit": MOST_MESSAGES})
        text = msgspec.json.encode(history.get("messages", [])).decode()
        return [Contents(uri=read.uri, mime_type="application/json", text=text)]

    async def _call(self, method: str, params: Json) -> Any:
        gateway = await self._find_gateway()
        return await gateway.call(method, params, within=READ_TIMEOUT)


def _resource_spec(row: Json) -> ResourceSpec:
    title = row.get("label") or row.get("displayName") or row.get("derivedTitle")
    return ResourceSpec(
        uri=PREFIX + quote(row["key"], safe=""),
        name=row["key"],
        title=title if type(title) is str else None,
        mime_type="application/json",
    )
