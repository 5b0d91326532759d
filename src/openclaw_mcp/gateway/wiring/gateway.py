"""A gateway on one port: its tools, its RPC server and its HTTP, and the modules added to them."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...core.model import Caller, Json
from ...core.ports import ToolSource
from ...core.rpc import NULL_PEER, READ, RpcCall, RpcError, RpcMethod, RpcModule, has_scope, scope_error
from ...core.session_target import SessionResolver, UnstoredSessions
from ...mcp.client.lazy_start import LazyServerStart
from ...mcp.client.server_pool import McpServerPool
from ...net import listen
from ...net.http_limits import ConnectionBounds
from ...net.state_dir import LOG_FILE
from ...net.tasks import Tasks
from ...tools.audit import AuditSink, log_record
from ...tools.config_policy import ConfigPolicy
from ...tools.dispatcher import ToolDispatcher
from ...tools.grant_audit import GrantAudit
from ...tools.policy import combine_policies, scope_policy
from ...tools.policy_rules import PolicyRules
from ...tools.registry import ToolRegistry
from ...tools.rpc_methods import ToolMethods
from ..rpc.authenticator import Authenticator
from ..rpc.connection import PresenceEntry
from ..rpc.connections import Connections
from ..rpc.devices import DeviceMethods
from ..rpc.grants import RunGrants
from ..rpc.logs import LogMethods
from ..rpc.pairing import DevicePairing, FilePairingStorage, PairingStorage
from ..rpc.server import RpcServer
from .further_tools import FurtherToolMethods
from .http_api import ANY_HOST, GatewayHttp, HttpAccess
from .status import GatewayStatus

APP_CHANGES_INTERVAL: Final = 1.0  # seconds at least between two notices to clients that apps have other tools
HEALTH_INTERVAL: Final = 60.0  # seconds between `health` events


class GatewayServer:
    """Modules are added before `serve`; `publish` can be used from the start."""

    def __init__(  # noqa: PLR0913  (composition: tests and the assembly replace different parts)
        self,
        folder: Path,
        token: str,
        *,
        sources: Mapping[str, ToolSource] | None = None,
        registry: ToolRegistry | None = None,
        policy: ConfigPolicy | None = None,
        servers: McpServerPool | None = None,
        sessions: SessionResolver = UnstoredSessions(),
        connections: Connections | None = None,
        pairing_store: PairingStorage | None = None,
        hosts: frozenset[str] = frozenset(),
        accepts_remote: bool = False,
        trusted_proxies: Callable[[], Sequence[str]] = tuple,
        audit: AuditSink = log_record,
        digest_key: bytes | None = None,
    ) -> None:
        """`hosts`: names the gateway has, beside this machine's own. `accepts_remote`: other machines reach it.
        `trusted_proxies`: reverse proxies whose word on the client is taken."""
        digest_key = digest_key or os.urandom(16)
        policy = ConfigPolicy(PolicyRules()) if policy is None else policy
        self.folder = folder
        self.policy = policy
        self.registry = ToolRegistry() if registry is None else registry
        for name, source in (sources or {}).items():
            self.registry.add(name, source)
        self.dispatcher = ToolDispatcher(
            self.registry, policy=combine_policies(scope_policy, policy), audit=audit, digest_key=digest_key,
            cache_key=policy.cache_key, app_change_interval=APP_CHANGES_INTERVAL,
        )  # fmt: skip
        self.tools = LazyServerStart(
            self.dispatcher, self.registry, McpServerPool({}) if servers is None else servers,
            default_agent=lambda: policy.rules.default_agent,
        )  # fmt: skip
        """The dispatcher as every entry point uses it: it starts the MCP servers a caller needs."""
        self.connections = Connections() if connections is None else connections
        self.publish = self.connections.publish
        self.status = GatewayStatus(folder)
        self.pairing = DevicePairing(pairing_store or FilePairingStorage(folder / "pairing.json"))
        self.grants = RunGrants(decide=policy.decide_own_tool, record_use=GrantAudit(audit, digest_key))
        self.access = HttpAccess(
            token, hosts=hosts, accepts_remote=accepts_remote, bind_session=sessions.bind,
            find_granted=self.grants.find_http_caller, trusted_proxies=trusted_proxies,
        )  # fmt: skip
        self.rpc_server = RpcServer(
            Authenticator(
                token, self.pairing, origins=hosts - {ANY_HOST}, grants=self.grants, bind_session=sessions.bind
            ),
            self.status,
            connections=self.connections,
            refusal_reason=self.access.refusal_reason,
            trusted_proxies=trusted_proxies,
        )
        tool_methods = ToolMethods(self.tools, sessions)
        self.http = GatewayHttp(
            self.access, self.tools, tool_methods, status=self.status, connections=self.connections, grants=self.grants
        )
        self.dispatcher.changed.connect(lambda _: self.rpc_server.announce_tools())
        self.pairing.revoked.connect(self.rpc_server.disconnect_device)
        self.rpc_server.register((RpcMethod("system-presence", READ, self._presence), *self.status.methods()))
        devices = DeviceMethods(self.pairing, self.publish, self.connections.connected_devices)
        self.further_tools = FurtherToolMethods(self.tools, self.dispatcher, self.registry, self.connections)
        for module in (devices, LogMethods(folder / LOG_FILE), tool_methods, self.further_tools):
            self.add_module(module)

    def add_module(self, module: RpcModule) -> None:
        """Offer its methods, its part of `health` and its HTTP routes, if it has any."""
        self.rpc_server.register(module.methods())
        self.http.add(module)
        self.status.add(module)

    def apply_rules(self, rules: PolicyRules) -> None:
        """Follow these rules from now on, at every entry point."""
        self.policy.replace_rules(rules)
        self.dispatcher.refresh()

    async def call_method(self, method: str, params: Json, caller: Caller) -> Any:
        """Call a method from within this process, with this caller's scopes. Raises RpcError."""
        found = self.rpc_server.find_method(method)
        if found is None:
            raise RpcError(f"unknown method: {method}")
        if found.scope is not None and not has_scope(caller.scopes, found.scope):
            raise scope_error(found.scope)
        return await found.handle(RpcCall(method=method, params=params, caller=caller, peer=NULL_PEER))

    async def serve(
        self,
        listener: socket.socket,
        *,
        ready: Callable[[], None] | None = None,
        bounds: ConnectionBounds = ConnectionBounds(),
    ) -> None:
        """Until SIGINT, SIGTERM or cancellation. Raises StateBroken before anything is served."""
        await self.pairing.open()
        self.status.port = listener.getsockname()[1]
        try:
            async with Tasks("gateway") as tasks, self.rpc_server:
                tasks.loop(self.status.loop_monitor.sample, name="event loop monitor", on_failure="restart")
                tasks.loop(self._publish_health, name="health", every=HEALTH_INTERVAL, on_failure="restart")
                await listen.serve(
                    self.http, listener, on_ready=ready, websockets=self.rpc_server.make_socket, bounds=bounds
                )
        finally:
            self.grants.close()
            await self.http.aclose()

    async def _publish_health(self) -> None:
        self.rpc_server.publish_health()

    async def _presence(self, call: RpcCall) -> Sequence[PresenceEntry]:
        return self.rpc_server.list_presence()
