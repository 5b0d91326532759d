"""`attach.grant`, `attach.revoke`: a run's credential for a CLI agent somebody starts by hand."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from ...core.model import Caller, Grant, Json
from ...core.rpc import ADMIN, RpcCall, RpcMethod, read_params
from ...core.session_target import BindSession, SessionAddress
from .grants import MAX_GRANT_SECONDS, RunGrants

DEFAULT_SECONDS: Final = 3600  # seconds unless asked otherwise: a sitting at the terminal
MCP_SERVER_COMMAND: Final = "remoteclaw-mcp-server"

SessionKeyStr = Annotated[str, Meta(min_length=1, max_length=512)]


class _GrantParams(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A limit that is misspelt must not be a grant without it."""

    session_key: SessionKeyStr
    channel: str | None = None
    account_id: str | None = None
    to: str | None = None
    thread_id: str | None = None
    sender_is_owner: bool = True
    tools: list[str] | None = None
    folder: Annotated[str, Meta(pattern="^/", max_length=4096)] | None = None
    """Where the agent works: files of it may be sent, as those of its agent's workspace may."""
    seconds: Annotated[int, Meta(ge=1, le=int(MAX_GRANT_SECONDS))] = DEFAULT_SECONDS


class _RevokeParams(Struct, frozen=True):
    token: SessionKeyStr


class AttachMethods:
    """A `Room`. Who may call it holds the gateway, so the grant may be the owner's; it is still bound and ends."""

    def __init__(
        self, grants: RunGrants, *, url: str, normalize_key: Callable[[str], str], bind_session: BindSession
    ) -> None:
        """`url` is where programs of this machine reach us; `key` makes a session key whole and raises Fault for a
        session of no agent; `acting` says how somebody stands there."""
        self._grants = grants
        self._url = url
        self._normalize_key = normalize_key
        self._bind_session = bind_session

    def methods(self) -> Sequence[RpcMethod]:
        return RpcMethod("attach.grant", ADMIN, self._grant), RpcMethod("attach.revoke", ADMIN, self._revoke)

    async def _grant(self, call: RpcCall) -> Json:
        asked = read_params(call.params, _GrantParams, call.method)
        session = self._normalize_key(asked.session_key)
        there = {"channel": asked.channel, "account": asked.account_id, "to": asked.to, "thread": asked.thread_id}
        place = SessionAddress(session=session, **{name: word for name, word in there.items() if word})
        grant = replace(
            (await self._bind_session(call.caller, place)).session_grant or Grant(agent=session.split(":")[1]),
            owner=asked.sender_is_owner,
            tools=None if asked.tools is None else frozenset(asked.tools),
            folder=asked.folder,
        )
        caller = Caller(kind="agent", name=f"attached to {session}", session=session, entry_point="mcp", grant=grant)
        token = self._grants.issue(caller, seconds=asked.seconds)
        return {
            "sessionKey": session,
            "token": token,
            "expiresAtMs": int((time.time() + asked.seconds) * 1000),
            "tools": self._grants.list_tools(caller),
            "mcpConfig": {"mcpServers": {"openclaw": self._server_entry(caller, grant)}},
            "env": {"REMOTECLAW_GATEWAY_TOKEN": token},
        }

    def _server_entry(self, caller: Caller, grant: Grant) -> Json:
        """The entry for an agent's config; the token stays in the environment."""
        given = {
            "GATEWAY_URL": self._url,
            "GATEWAY_TOKEN": "${REMOTECLAW_GATEWAY_TOKEN}",
            "SESSION_KEY": caller.session,
            "SIDE_EFFECTS_FILE": os.devnull,
            "CHANNEL": grant.channel,
            "ACCOUNT_ID": grant.account,
            "TO": grant.to,
            "THREAD_ID": grant.thread,
            "SENDER_IS_OWNER": "true" if grant.owner else "false",
        }
        env = {f"REMOTECLAW_{name}": value for name, value in given.items() if value}
        env["REMOTECLAW_TOOLS"] = ",".join(self._grants.list_tools(caller))  # empty: none; absent it would be all
        return {"type": "stdio", "command": MCP_SERVER_COMMAND, "args": [], "env": env}

    async def _revoke(self, call: RpcCall) -> Json:
        token = read_params(call.params, _RevokeParams, call.method).token
        known = self._grants.find_caller(token) is not None
        self._grants.revoke(token)
        return {"revoked": known}
