"""`attach.grant`, `attach.revoke`: a run's credential for a CLI agent that is started by hand."""

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from ...core.model import Caller, Grant, Json
from ...core.rpc import ADMIN, RpcCall, RpcMethod, make_method
from ...core.session_target import SessionAddress, SessionResolver
from .grants import MAX_GRANT_SECONDS, RunGrants

DEFAULT_SECONDS: Final = 3600  # seconds unless the caller names others: a sitting at the terminal
MCP_SERVER_COMMAND: Final = "remoteclaw-mcp-server"
HTTP_TOKEN_VARIABLE: Final = "OPENCLAW_MCP_TOKEN"
STDIO_TOKEN_VARIABLE: Final = "REMOTECLAW_GATEWAY_TOKEN"

SessionKeyStr = Annotated[str, Meta(min_length=1, max_length=512)]


class _GrantParams(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Unknown fields are refused: a misspelt limit must not become a grant without it."""

    session_key: SessionKeyStr = "main"
    channel: str | None = None
    account_id: str | None = None
    to: str | None = None
    thread_id: str | None = None
    sender_is_owner: bool = True
    tools: list[str] | None = None
    folder: Annotated[str, Meta(pattern="^/", max_length=4096)] | None = None
    """The folder the agent works in: its files may be sent, as those of its agent's workspace may."""
    seconds: Annotated[int, Meta(ge=1, le=int(MAX_GRANT_SECONDS))] = DEFAULT_SECONDS
    ttl_ms: Annotated[int, Meta(ge=1000, le=int(MAX_GRANT_SECONDS) * 1000)] | None = None
    """The same as `seconds`, which it comes before."""


class _RevokeParams(Struct, frozen=True):
    token: SessionKeyStr


class AttachMethods(Struct, frozen=True, kw_only=True):
    """An `RpcModule`. Its caller is an admin, so the grant may be the owner's; it is still bound to a session."""

    grants: RunGrants
    url: str
    """Where programs of this machine reach the gateway."""
    sessions: SessionResolver
    list_tools: Callable[[Caller], Awaitable[Sequence[str]]]
    """Every tool of a caller, by name."""

    def methods(self) -> Sequence[RpcMethod]:
        return (
            make_method("attach.grant", ADMIN, _GrantParams, self._grant),
            make_method("attach.revoke", ADMIN, _RevokeParams, self._revoke),
        )

    async def _grant(self, call: RpcCall, asked: _GrantParams) -> Json:
        session = self.sessions.resolve_key(asked.session_key, None) or asked.session_key
        address = SessionAddress(
            session=session, channel=asked.channel or "", account=asked.account_id or "", to=asked.to or "",
            thread=asked.thread_id or "",
        )  # fmt: skip
        grant = replace(
            (await self.sessions.bind(call.caller, address)).session_grant or Grant(agent=session.split(":")[1]),
            owner=asked.sender_is_owner,
            tools=None if asked.tools is None else frozenset(asked.tools),
            folder=asked.folder,
        )
        caller = Caller(kind="agent", name=f"attached to {session}", session=session, entry_point="mcp", grant=grant)
        tools = await self.list_tools(caller)
        seconds = asked.seconds if asked.ttl_ms is None else asked.ttl_ms / 1000
        token = self.grants.issue(caller, seconds=seconds, over_http=True)
        return {
            "sessionKey": session,
            "token": token,
            "expiresAtMs": int((time.time() + seconds) * 1000),
            "tools": tools,
            "mcpConfig": {"mcpServers": {"openclaw": self._http_entry()}},
            "stdioConfig": {"mcpServers": {"openclaw": self._stdio_entry(caller, grant, tools)}},
            "env": {HTTP_TOKEN_VARIABLE: token, STDIO_TOKEN_VARIABLE: token},
        }

    def _http_entry(self) -> Json:
        """The entry of a client that speaks MCP over HTTP; the token stays in the environment."""
        headers = {"Authorization": f"Bearer ${{{HTTP_TOKEN_VARIABLE}}}"}
        return {"type": "http", "url": f"http{self.url.removeprefix('ws')}/mcp", "alwaysLoad": True, "headers": headers}

    def _stdio_entry(self, caller: Caller, grant: Grant, tools: Sequence[str]) -> Json:
        """The entry of a client that starts the server as a program; the token stays in the environment."""
        given = {
            "GATEWAY_URL": self.url,
            "GATEWAY_TOKEN": f"${{{STDIO_TOKEN_VARIABLE}}}",
            "SESSION_KEY": caller.session,
            "SIDE_EFFECTS_FILE": os.devnull,
            "CHANNEL": grant.channel,
            "ACCOUNT_ID": grant.account,
            "TO": grant.to,
            "THREAD_ID": grant.thread,
            "SENDER_IS_OWNER": "true" if grant.owner else "false",
        }
        env = {f"REMOTECLAW_{name}": value for name, value in given.items() if value}
        env["REMOTECLAW_TOOLS"] = ",".join(tools)  # empty: none; absent it would be all
        return {"type": "stdio", "command": MCP_SERVER_COMMAND, "args": [], "env": env}

    async def _revoke(self, call: RpcCall, asked: _RevokeParams) -> dict[str, bool]:
        known = self.grants.find_caller(asked.token) is not None
        self.grants.revoke(asked.token)
        return {"revoked": known}
