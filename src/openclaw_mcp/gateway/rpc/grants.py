"""Run grants: short-lived credentials for programs a run starts, and what such a program may ask of the gateway.

A grant acts for the run's caller. A program that connects with it may call the methods behind the run's tools and no
other, each decided by the same rules as the tool itself, for the run's own session; it receives no events. The modules
decide which other sessions a run may see: to them its caller is of kind `agent`. Grants are held in memory: they end
with the run, with their time, or with the gateway.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ...core.claw_methods import (
    AUXILIARY_METHODS,
    GRANT_PREFIX,
    METHODS_BY_TOOL,
    TOOLS_BY_METHOD,
    GrantedCall,
    ToolDecider,
    tools_for_request,
)
from ...core.effects import RunEffects
from ...core.errors import ToolBusy
from ...core.model import SOURCE_SCOPE_PREFIX, Caller, Grant, Json, PolicyDecision
from ...core.rpc import READ, WRITE, RpcCall, RpcError, RpcMethod
from ...core.signal import Signal
from ...net.gateway_client.acting_headers import TOOLS_CHANGED, is_grant_token
from .grant_effects import EffectRecorder, GrantEffects

MAX_GRANTS: Final = 4096  # at once; a gateway runs tens of agents, not thousands
MAX_GRANT_SECONDS: Final = 24 * 3600.0  # seconds a grant may last: no run does
FORBIDDEN: Final = "FORBIDDEN"
GRANT_SCOPES: Final = frozenset({READ, WRITE})
GRANT_SCOPE_PREFIX: Final = "grant:"
"""How the scope begins that names a caller's grant."""
GRANT_EVENTS: Final = frozenset({"tick", "shutdown", TOOLS_CHANGED})
"""Events a program of a run needs to keep its connection. Even `health` names sessions that are not its business."""
MESSAGE_METHODS: Final = frozenset({"send"}) | {method for method in TOOLS_BY_METHOD if method.startswith("message:")}
OWN_SESSION_METHODS: Final = MESSAGE_METHODS | {"message.action", "sessions.spawn", "sessions.subagents"}
"""Methods whose `sessionKey` names the acting session: under a grant it is always the run's own."""

logger = logging.getLogger(__name__)

RecordToolUse = Callable[[GrantedCall, str, float], None]
"""Called after each use of a tool, with its outcome and the seconds it took."""
NO_TOOL: Final = PolicyDecision(False, "it is behind no tool", "menu")


def deny_all(caller: Caller, tool: str) -> PolicyDecision:
    return PolicyDecision(False, f"{tool} is refused: no rules were given")


def record_nothing(call: GrantedCall, outcome: str, seconds: float) -> None:
    """Keep no record."""


class IssuedGrant(Struct, frozen=True, kw_only=True):
    """A grant as it is stored: never the token itself."""

    id: str
    caller: Caller
    expires_at: float
    effects: GrantEffects
    over_http: bool = False
    """Whether `/mcp` takes it too; else it is for the WebSocket alone."""


class RunGrants:
    """A `GrantIssuer`, and the check of every call made under a grant."""

    def __init__(
        self,
        *,
        decide: ToolDecider = deny_all,
        record_use: RecordToolUse = record_nothing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.decide = decide
        self._record_use = record_use
        self.ended: Signal[str] = Signal()
        """Emits the id of each grant that ended."""
        self._clock = clock
        self._grants: dict[str, IssuedGrant] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # ---- issuing ------------------------------------------------------------------------------------------------

    def issue(self, caller: Caller, *, seconds: float, over_http: bool = False) -> str:
        """A token for this caller, until it is revoked or its time is over. Raises ToolBusy."""
        self._prune()
        if len(self._grants) >= MAX_GRANTS:
            raise ToolBusy(f"there are {MAX_GRANTS} grants already; wait for runs to end")
        token = GRANT_PREFIX + secrets.token_urlsafe(32)
        id = _grant_id(token)
        seconds = min(seconds, MAX_GRANT_SECONDS)
        self._grants[id] = IssuedGrant(
            id=id, caller=caller, expires_at=self._clock() + seconds, effects=GrantEffects(), over_http=over_http
        )
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return token  # no client can connect while no loop runs; `find` checks the time at each use
        self._timers[id] = loop.call_later(seconds, self._end, id)
        return token

    def revoke(self, token: str) -> None:
        self._end(_grant_id(token))

    async def settle(self, token: str) -> RunEffects:
        grant = self._grants.get(_grant_id(token))
        self._end(_grant_id(token))  # first: a call begun after the effects are read would be missed
        return RunEffects() if grant is None else await grant.effects.settle()

    def find_caller(self, token: str) -> Caller | None:
        grant = self.find(token)
        return None if grant is None else grant.caller

    def find_http_caller(self, token: str) -> Caller | None:
        """Who calls `/mcp` with this token: the session's agent, which has every tool that the policy allows it. By its
        scopes it is the holder of this grant and no other."""
        grant = self.find(token)
        if grant is None or not grant.over_http:
            return None
        return replace(grant.caller, scopes=frozenset({"*", GRANT_SCOPE_PREFIX + grant.id}))

    def find(self, token: str | None) -> IssuedGrant | None:
        """By its digest: how long the search takes tells nothing about the token."""
        if not is_grant_token(token):
            return None
        grant = self._grants.get(_grant_id(token))
        if grant is not None and grant.expires_at <= self._clock():
            self._end(grant.id)
            return None
        return grant

    def is_held(self, id: str) -> bool:
        return id in self._grants

    def close(self) -> None:
        for id in list(self._grants):
            self._end(id)

    def _end(self, id: str) -> None:
        timer = self._timers.pop(id, None)
        if timer is not None:
            timer.cancel()
        if self._grants.pop(id, None) is not None:
            self.ended.emit(id)

    def _prune(self) -> None:
        now = self._clock()
        for grant in [grant for grant in self._grants.values() if grant.expires_at <= now]:
            self._end(grant.id)

    # ---- checking -----------------------------------------------------------------------------------------------

    def list_tools(self, caller: Caller) -> Sequence[str]:
        """The tools this caller may use, of the 29."""
        return tuple(tool for tool in METHODS_BY_TOOL if self.decide(caller, tool).allowed)

    def evaluate(self, caller: Caller, method: str, params: Json) -> GrantedCall:
        """The tool a request of this caller counts as, and whether it is allowed: the first that is, of those the
        method serves; else the first."""
        served = tools_for_request(method, params)
        # The tool that uses this method alone comes first: its refusal is the one shown.
        tools = sorted(served, key=lambda tool: (len(METHODS_BY_TOOL[tool][0]), tool)) or [method]
        refused: PolicyDecision | None = None
        for tool in tools:
            decision = self.decide(caller, tool) if tool in METHODS_BY_TOOL else NO_TOOL
            if decision.allowed:
                return GrantedCall(caller=caller, method=method, params=params, tool=tool, decision=decision)
            refused = refused or decision
        return GrantedCall(caller=caller, method=method, params=params, tool=tools[0], decision=refused or NO_TOOL)

    def check_call(self, call: GrantedCall) -> None:
        """Raises RpcError unless the rules allow a tool that uses the method."""
        if call.decision.allowed:
            return
        reason = call.decision.reason
        if call.decision is NO_TOOL:
            reason = f"{call.method} is refused: it is behind no tool of this session"
        logger.info("%s: %s", call.caller.name, reason)
        raise RpcError(reason, kind=FORBIDDEN, details={"code": "TOOL_DENIED", "method": call.method})

    def restrict_call(self, method: RpcMethod, call: RpcCall) -> RpcCall:
        """A checked call as the grant allows it: for its own session, with just the scope it needs."""
        caller = call.caller
        scopes = caller.scopes if method.scope is None else caller.scopes | {method.scope}
        return replace(call, params=_own_session_params(call), caller=replace(caller, scopes=scopes))

    def record_call(self, call: GrantedCall, *, outcome: str, seconds: float) -> None:
        """Record a request under a grant as the tool call it is, made or refused."""
        is_use = call.method not in AUXILIARY_METHODS and call.decision is not NO_TOOL
        if is_use or outcome == FORBIDDEN:
            self._record_use(call, outcome, seconds)

    def track_effects(self, id: str, call: RpcCall) -> AbstractContextManager[EffectRecorder]:
        """Around a call under this grant: records its effects for `settle`. Raises RpcError."""
        grant = self._grants.get(id)
        if grant is None:
            raise RpcError("this run's token has ended", kind=FORBIDDEN, details={"code": "AUTH_GRANT_ENDED"})
        return grant.effects.track(call)


def grant_caller(caller: Caller) -> Caller:
    """The caller of a connection under a grant: the run's agent, with RPC scopes instead of its own; the apps that are
    lent to its session stay."""
    lent = (scope for scope in caller.scopes if scope.startswith(SOURCE_SCOPE_PREFIX))
    scopes = GRANT_SCOPES.union(lent)
    return replace(caller, kind="agent", scopes=scopes, entry_point="mcp", grant=caller.grant or Grant())


def find_grant_id(caller: Caller) -> str | None:
    """The grant that a caller over HTTP holds."""
    held = (scope for scope in caller.scopes if scope.startswith(GRANT_SCOPE_PREFIX))
    return next((scope.removeprefix(GRANT_SCOPE_PREFIX) for scope in held), None)


def _grant_id(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _own_session_params(call: RpcCall) -> Json:
    """The parameters for the run's session; a message without an address is sent to its conversation."""
    if call.method not in OWN_SESSION_METHODS:
        return call.params
    params = {**call.params, "sessionKey": call.caller.session}
    grant = call.caller.grant
    if grant is None or call.method.startswith("sessions."):
        return params
    params.pop("agentId", None)
    if not params.get("channel"):
        params |= {name: value for name, value in (("channel", grant.channel), ("accountId", grant.account)) if value}
    if params.get("channel") == grant.channel and grant.to and not grant.handed_on:  # else the address is its session's
        _fill_conversation(params, grant)
    return params


def _fill_conversation(params: Json, grant: Grant) -> None:
    """Fill in the run's own conversation where none is named. `message.action` has it among its inner parameters."""
    inner = params.get("params")
    address = dict(inner) if isinstance(inner, dict) else params
    if not any(address.get(name) for name in ("to", "target", "targets", "channelId")):
        thread = {"threadId": grant.thread} if grant.thread and not address.get("threadId") else {}
        address |= {"to": grant.to} | thread
    if address is not params:
        params["params"] = address
