"""Rules about running commands: the gateway's own file, and those of nodes, read and written from afar."""

import asyncio
import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from ...core.model import Json
from ...core.rpc import ADMIN, Fault, Method, RpcCall, read_params
from ...net.files import StateBroken, read_whole, write_whole
from .permissions import RULES
from .rpc_methods import Nodes

FILE: Final = "exec-approvals.json"
MOST_ENTRIES: Final = 1000  # of an allow list
NODE_SECONDS: Final = 30.0  # a node reads or writes one small file

RESOLVED: Final = {"security": "full", "ask": "off", "askFallback": "deny", "autoAllowSkills": False}
"""What holds where the file says nothing, as OpenClaw's own gateway has it."""

Text = Annotated[str, Meta(min_length=1)]
Security = Literal["deny", "allowlist", "full"]
Ask = Literal["off", "on-miss", "always"]


class Entry(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pattern: Text
    id: str | None = None
    source: str | None = None
    command_text: str | None = None
    arg_pattern: str | None = None
    last_used_at: float | None = None
    last_used_command: str | None = None
    last_resolved_path: str | None = None


class Defaults(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    security: Security | None = None
    ask: Ask | None = None
    ask_fallback: Security | None = None
    auto_allow_skills: bool | None = None


class Agent(Defaults, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    allowlist: Annotated[tuple[Entry, ...], Meta(max_length=MOST_ENTRIES)] | None = None


class Rules(Struct, frozen=True, kw_only=True):
    version: Literal[1]
    defaults: Defaults = Defaults()
    agents: dict[str, Agent] = {}


class _Set(Struct, frozen=True, rename="camel"):
    file: Rules
    base_hash: str | None = None


class _Node(Struct, frozen=True, rename="camel"):
    node_id: Text


class ExecRules:
    """A `Room`. The gateway runs no commands itself: its file is kept for the programs that ask for it."""

    def __init__(self, folder: Path, nodes: Nodes) -> None:
        self._path = folder / FILE
        self._nodes = nodes
        self._writing = asyncio.Lock()

    def methods(self) -> Sequence[Method]:
        return (
            Method("exec.approvals.get", ADMIN, self._get),
            Method("exec.approvals.set", ADMIN, self._set),
            Method("exec.approvals.node.get", ADMIN, self._node_get),
            Method("exec.approvals.node.set", ADMIN, self._node_set),
        )

    async def _get(self, call: RpcCall) -> Json:
        return await asyncio.to_thread(self._snapshot)

    async def _set(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _Set, call.method)
        if not wanted.base_hash:
            raise Fault("exec approvals base hash required; re-run exec.approvals.get and retry")
        async with self._writing:
            return await asyncio.to_thread(self._written, wanted.file, wanted.base_hash)

    async def _node_get(self, call: RpcCall) -> Any:
        node_id = read_params(call.params, _Node, call.method).node_id
        return (await self._nodes.ask(node_id, RULES[0], {}, seconds=NODE_SECONDS)).value

    async def _node_set(self, call: RpcCall) -> Any:
        node_id = read_params(call.params, _Node, call.method).node_id
        rules = {key: value for key, value in call.params.items() if key != "nodeId"}
        return (await self._nodes.ask(node_id, RULES[1], rules, seconds=NODE_SECONDS)).value

    # ---- the file --------------------------------------------------------------------------------------------------

    def _written(self, rules: Rules, base_hash: str) -> Json:
        if base_hash != self._snapshot()["hash"]:
            raise Fault("exec approvals changed since last load; re-run exec.approvals.get and retry")
        agents = {name: _with_ids(agent) for name, agent in rules.agents.items()}
        write_whole(self._path, msgspec.json.format(msgspec.json.encode(replace(rules, agents=agents))))
        return self._snapshot()

    def _snapshot(self) -> Json:
        """Raises StateBroken: rules that can't be read are never taken for none."""
        data = read_whole(self._path)
        try:
            rules = msgspec.json.decode(data, type=Rules) if data is not None else Rules(version=1)
        except ValueError as exc:
            raise StateBroken(
                f"{self._path} is no file of exec approvals; mend it, or remove it to begin anew"
            ) from exc
        return {
            "path": str(self._path),
            "exists": data is not None,
            "hash": hashlib.sha256(data or b"").hexdigest(),
            "file": {"version": 1, "defaults": {}, "agents": {}} | msgspec.to_builtins(rules),
            "resolvedDefaults": RESOLVED | msgspec.to_builtins(rules.defaults),
        }


def _with_ids(agent: Agent) -> Agent:
    if agent.allowlist is None:
        return agent
    return replace(agent, allowlist=tuple(replace(one, id=one.id or str(uuid.uuid4())) for one in agent.allowlist))
