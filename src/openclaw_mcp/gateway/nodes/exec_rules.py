"""`exec.approvals.*`: rules about running commands, in the gateway's own file and on nodes."""

import asyncio
import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from ...core.fields import NonEmptyStr
from ...core.json_values import drop_none
from ...core.rpc import ADMIN, RpcCall, RpcError, RpcMethod, read_params
from ...net.files import StateBroken, read_if_exists, write_atomic
from .permissions import EXEC_APPROVALS_COMMANDS
from .rpc_methods import NodeService

FILE_NAME: Final = "exec-approvals.json"
MAX_ENTRIES: Final = 1000  # of an allow list
NODE_TIMEOUT: Final = 30.0  # a node reads or writes one small file

SecurityMode = Literal["deny", "allowlist", "full"]
AskMode = Literal["off", "on-miss", "always"]


class ExecAllowlistEntry(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pattern: NonEmptyStr
    id: str | None = None
    source: str | None = None
    command_text: str | None = None
    arg_pattern: str | None = None
    last_used_at: float | None = None
    last_used_command: str | None = None
    last_resolved_path: str | None = None


class ExecDefaults(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    security: SecurityMode | None = None
    ask: AskMode | None = None
    ask_fallback: SecurityMode | None = None
    auto_allow_skills: bool | None = None


BUILTIN_DEFAULTS: Final = ExecDefaults(security="full", ask="off", ask_fallback="deny", auto_allow_skills=False)
"""What applies where the file sets nothing, as in OpenClaw's own gateway."""


class AgentExecRules(ExecDefaults, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    allowlist: Annotated[tuple[ExecAllowlistEntry, ...], Meta(max_length=MAX_ENTRIES)] | None = None


class ExecApprovalsFile(Struct, frozen=True, kw_only=True):
    version: Literal[1]
    defaults: ExecDefaults = ExecDefaults()
    agents: dict[str, AgentExecRules] = {}


class _SetParams(Struct, frozen=True, rename="camel"):
    file: ExecApprovalsFile
    base_hash: str | None = None


class ExecApprovalsSnapshot(Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer of `exec.approvals.get`."""

    path: str
    exists: bool
    hash: str
    file: ExecApprovalsFile
    resolved_defaults: ExecDefaults


class _NodeParams(Struct, frozen=True, rename="camel"):
    node_id: NonEmptyStr


class ExecApprovalsMethods:
    """An `RpcModule`. The gateway runs no commands itself: its file is stored for programs that read it."""

    def __init__(self, folder: Path, nodes: NodeService) -> None:
        self._path = folder / FILE_NAME
        self._nodes = nodes
        self._write_lock = asyncio.Lock()

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("exec.approvals.get", ADMIN, self._get),
            RpcMethod("exec.approvals.set", ADMIN, self._set),
            RpcMethod("exec.approvals.node.get", ADMIN, self._node_get),
            RpcMethod("exec.approvals.node.set", ADMIN, self._node_set),
        )

    async def _get(self, call: RpcCall) -> ExecApprovalsSnapshot:
        return await asyncio.to_thread(self._snapshot)

    async def _set(self, call: RpcCall) -> ExecApprovalsSnapshot:
        wanted = read_params(call.params, _SetParams, call.method)
        if not wanted.base_hash:
            raise RpcError("exec approvals base hash required; re-run exec.approvals.get and retry")
        async with self._write_lock:
            return await asyncio.to_thread(self._write_file, wanted.file, wanted.base_hash)

    async def _node_get(self, call: RpcCall) -> Any:
        node_id = read_params(call.params, _NodeParams, call.method).node_id
        return (await self._nodes.invoke(node_id, EXEC_APPROVALS_COMMANDS[0], {}, seconds=NODE_TIMEOUT)).value

    async def _node_set(self, call: RpcCall) -> Any:
        node_id = read_params(call.params, _NodeParams, call.method).node_id
        rules = {key: value for key, value in call.params.items() if key != "nodeId"}
        return (await self._nodes.invoke(node_id, EXEC_APPROVALS_COMMANDS[1], rules, seconds=NODE_TIMEOUT)).value

    # ---- the file --------------------------------------------------------------------------------------------------

    def _write_file(self, rules: ExecApprovalsFile, base_hash: str) -> ExecApprovalsSnapshot:
        if base_hash != self._snapshot().hash:
            raise RpcError("exec approvals changed since last load; re-run exec.approvals.get and retry")
        agents = {name: _with_ids(agent) for name, agent in rules.agents.items()}
        write_atomic(self._path, msgspec.json.format(msgspec.json.encode(replace(rules, agents=agents))))
        return self._snapshot()

    def _snapshot(self) -> ExecApprovalsSnapshot:
        """Raises StateBroken: rules that can't be read are never treated as none."""
        data = read_if_exists(self._path)
        try:
            rules = (
                msgspec.json.decode(data, type=ExecApprovalsFile) if data is not None else ExecApprovalsFile(version=1)
            )
        except ValueError as exc:
            raise StateBroken(
                f"{self._path} is no file of exec approvals; correct it, or remove it to start with none"
            ) from exc
        return ExecApprovalsSnapshot(
            path=str(self._path),
            exists=data is not None,
            hash=hashlib.sha256(data or b"").hexdigest(),
            file=rules,
            resolved_defaults=replace(BUILTIN_DEFAULTS, **drop_none(asdict(rules.defaults))),
        )


def _with_ids(agent: AgentExecRules) -> AgentExecRules:
    if agent.allowlist is None:
        return agent
    return replace(agent, allowlist=tuple(replace(one, id=one.id or str(uuid.uuid4())) for one in agent.allowlist))
