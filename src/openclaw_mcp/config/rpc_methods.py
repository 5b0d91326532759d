"""`config.*`: read with secrets hidden, written only on top of what was read, published, recorded in history."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, NotRequired, Self, TypedDict

from msgspec import Meta, Struct, to_builtins

from .. import __version__
from ..core.config.keys import ReloadKind
from ..core.errors import BadRequest, StoreError
from ..core.model import Json
from ..core.repositories import ConfigHistory
from ..core.rpc import ADMIN, READ, Publish, RpcCall, RpcError, RpcEvent, RpcMethod, read_params
from ..core.sessions import ConfigChange, now_ms
from ..core.signal import Signal
from ..net.tasks import Tasks
from . import merge, parsing, redaction
from .file import (
    ConfigFile,
    ConfigInvalid,
    ConfigStale,
    Snapshot,
    WriteCheck,
    allow_any,
    check_base_hash,
    invalid_config_error,
)
from .permission import ConfigChangeDenied, check_run_changes, is_person
from .schema import hint_of
from .secrets import recipients

logger = logging.getLogger(__name__)

WATCH_EVERY: Final = 1.0  # seconds between checks of the file; a check is one stat
WRITES_PER_MINUTE: Final = 30
MAX_REPLACED: Final = 256

Raw = Annotated[str, Meta(min_length=1)]
WriteFile = Callable[[WriteCheck], tuple[Snapshot, Snapshot]]
"""Writes the file unless the check raises: the snapshots before and after."""


class WriteParams(Struct, frozen=True, kw_only=True, rename="camel"):
    raw: Raw
    base_hash: Raw | None = None
    note: str | None = None
    replace_paths: Annotated[list[str], Meta(max_length=MAX_REPLACED)] = []


class WriteReply(TypedDict):
    ok: bool
    path: str
    hash: str
    config: Json
    sentinel: NotRequired[Json]
    """How OpenClaw's clients learn of a restart that a write caused."""
    changedPaths: NotRequired[list[str]]
    droppedSecrets: NotRequired[list[str]]


class LookupParams(Struct, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[A-Za-z0-9_./\[\]\-*]+$")]


class ConfigUpdate(Struct, frozen=True, kw_only=True):
    """The config has changed."""

    before: Snapshot
    after: Snapshot
    paths: tuple[str, ...]
    reload: ReloadKind
    """`restart` when any of the paths needs one."""


class ConfigService:
    """`current` is the last valid config; `changed` is emitted after each change, made here or by hand."""

    def __init__(self, file: ConfigFile, publish: Publish, history: ConfigHistory | None = None) -> None:
        self._file = file
        self._publish = publish
        self.history = history
        """Where changes are recorded; may be set later, before the service is entered."""
        self.changed: Signal[ConfigUpdate] = Signal()
        self.last_read = file.read()
        """The file as last read, valid or not."""
        if not self.last_read.is_valid:
            raise invalid_config_error(self.last_read.issues, self.last_read.path)
        self.current = self.last_read
        self._last_stamp = self._read_stamp()
        self._tasks = Tasks("config")
        self._write_lock = asyncio.Lock()
        self._generated_at = datetime.now(UTC).isoformat(timespec="seconds")

    async def __aenter__(self) -> Self:
        await self._record_offline_change()
        # One stat a second costs nothing and works on every file system; a watcher library would not do better.
        self._tasks.loop(self.refresh, name="watching the file", every=WATCH_EVERY, on_failure="restart")
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._tasks.aclose()

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("config.get", READ, self._get),
            RpcMethod("config.set", ADMIN, self._set, per_minute=WRITES_PER_MINUTE),
            RpcMethod("config.apply", ADMIN, self._apply, per_minute=WRITES_PER_MINUTE),
            RpcMethod("config.patch", ADMIN, self._patch, per_minute=WRITES_PER_MINUTE),
            RpcMethod("config.schema", READ, self._schema),
            RpcMethod("config.schema.lookup", READ, self._lookup),
        )

    # ---- reading -------------------------------------------------------------------------------------------------

    async def _get(self, call: RpcCall) -> Json:
        await self.refresh()
        snapshot = await asyncio.to_thread(self._file.read)
        parsed = redaction.redact_secrets(snapshot.parsed)
        return {
            "path": str(snapshot.path),
            "exists": snapshot.exists,
            "raw": _redact_raw(snapshot),
            "parsed": parsed,
            "sourceConfig": parsed,
            "resolved": parsed,  # what comes from the environment is not shown
            "runtimeConfig": self._file.redact_config(self.current),
            "config": self._file.redact_config(snapshot),
            "valid": snapshot.is_valid,
            "hash": snapshot.hash,
            "issues": snapshot.issues,
            "warnings": snapshot.warnings,
            "legacyIssues": [],
            "includedPaths": [],
            "includeProvenance": [],
            "agentRosterIncludeOwned": False,
            "bindingsIncludeOwned": False,
            "configRevisionHash": snapshot.hash,
            "appliedConfigHash": self.current.hash,
        }

    async def _schema(self, call: RpcCall) -> Json:
        schema = self._file.schema
        return {
            "schema": schema.json_schema,
            "uiHints": schema.ui_hints(),
            "version": __version__,
            "generatedAt": self._generated_at,
        }

    async def _lookup(self, call: RpcCall) -> Json:
        request = read_params(call.params, LookupParams, call.method)
        path = tuple(request.path.replace("[", ".").replace("]", "").replace("/", ".").strip(".").split("."))
        schema = self._file.schema
        node = schema.find_node(path)
        if node is None:
            raise RpcError(f"config schema path not found: {request.path}")
        children = [
            {
                "key": key,
                "path": f"{request.path}.{key}",
                "type": inner.type,
                "required": key in node.required,
                "hasChildren": bool(inner.properties or inner.items),
                "reloadKind": schema.reload_kind((*path, key)),
                "hint": hint_of(key, inner),
                "hintPath": f"{request.path}.{key}",
            }
            for key, inner in node.properties.items()
        ]
        found = {"path": request.path, "schema": to_builtins(node), "reloadKind": schema.reload_kind(path)}
        return {**found, "hint": hint_of(path[-1], node), "hintPath": request.path, "children": children}

    # ---- writing -------------------------------------------------------------------------------------------------

    async def _set(self, call: RpcCall) -> WriteReply:
        request = read_params(call.params, WriteParams, call.method)
        return self._write_reply(await self._replace(call, request))

    async def _apply(self, call: RpcCall) -> WriteReply:
        request = read_params(call.params, WriteParams, call.method)
        change = await self._replace(call, request)
        return {**self._write_reply(change), "sentinel": _sentinel("config-apply", change, request.note)}

    async def _patch(self, call: RpcCall) -> WriteReply:
        request = read_params(call.params, WriteParams, call.method)
        dropped: list[str] = []
        change = await self._write(call, request, lambda check: self._write_patch(request, check, dropped))
        reply = self._write_reply(change)
        reply["sentinel"] = _sentinel("config-patch", change, request.note)
        reply["changedPaths"] = list(change.paths)
        if dropped:
            reply["droppedSecrets"] = dropped
        return reply

    async def _replace(self, call: RpcCall, request: WriteParams) -> ConfigUpdate:
        return await self._write(
            call, request, lambda check: self._file.replace(request.raw, base_hash=request.base_hash, check=check)
        )

    def _write_patch(self, request: WriteParams, check: WriteCheck, dropped: list[str]) -> tuple[Snapshot, Snapshot]:
        patch = parsing.parse(request.raw)

        def edit(before: Snapshot) -> Json:
            check_base_hash(before, request.base_hash)
            result: Json = merge.merge_patch(before.parsed, redaction.restore_secrets(patch, before.parsed))
            merge.refuse_entry_loss(before.parsed, result, request.replace_paths)
            left = recipients.find_misdirected_secrets(before.parsed, result, patch)
            dropped.extend(map(parsing.join_path, left))
            return recipients.remove_paths(result, left) if left else result

        return self._file.change(edit, check)

    def _permit_run(self, before: Snapshot, after: Snapshot) -> None:
        """Raises ConfigChangeDenied. A run's change is judged by comparison, so what is there must be valid."""
        if not before.is_valid:
            raise BadRequest("the config file is not valid now; a person must correct it before a run can change it")
        check_run_changes((before if before.exists else self.current).parsed, after.parsed)

    async def _write(self, call: RpcCall, request: WriteParams, write: WriteFile) -> ConfigUpdate:
        check = allow_any if is_person(call.caller) else self._permit_run
        async with self._write_lock:
            try:
                before, after = await asyncio.to_thread(write, check)
            except ConfigChangeDenied as exc:
                details = {"code": "CONFIG_PATH_DENIED", "paths": exc.paths[:MAX_REPLACED]}
                raise RpcError(str(exc), kind="FORBIDDEN", details=details) from None
            except ConfigInvalid as exc:
                raise RpcError(str(exc), details={"issues": exc.issues}) from None
            except (ConfigStale, BadRequest) as exc:
                raise RpcError(str(exc)) from None
            change = self._adopt(before, after)
            await self._record_history(change, actor=call.caller.name, method=call.method, note=request.note)
        return change

    def _write_reply(self, change: ConfigUpdate) -> WriteReply:
        after = change.after
        return {"ok": True, "path": str(after.path), "hash": after.hash, "config": self._file.redact_config(after)}

    def _adopt(self, before: Snapshot, after: Snapshot) -> ConfigUpdate:
        paths = tuple(merge.diff_paths(before.parsed, after.parsed))
        kinds = {self._file.schema.reload_kind(tuple(path.split("."))) for path in paths}
        kind: ReloadKind = "restart" if "restart" in kinds else "hot" if "hot" in kinds else "none"
        change = ConfigUpdate(before=before, after=after, paths=paths, reload=kind)
        self.current = self.last_read = after
        self._last_stamp = self._read_stamp()
        logger.info("config: changed %s", ", ".join(paths) or "nothing but its text")
        self._publish(
            RpcEvent(name="config.changed", payload={"path": str(after.path), "hash": after.hash, "ts": now_ms()})
        )
        self._publish(RpcEvent(name="chat.metadata.changed", payload={}))
        self.changed.emit(change)
        return change

    async def _record_history(self, change: ConfigUpdate, *, actor: str, method: str, note: str | None = None) -> None:
        if self.history is None:
            return
        after = change.after
        redacted = redaction.redact_text(after.raw, after.parsed)  # secrets are stored in the file alone
        entry = ConfigChange(
            at=now_ms(), hash=after.hash, actor=actor, method=method, raw=redacted, note=note, paths=change.paths
        )
        try:
            await self.history.add(entry)
        except StoreError as exc:  # the file decides, and it is written; the next start records the change
            logger.warning("config: change not recorded in the history (%s), the next start records it", exc)

    # ---- changes by hand -----------------------------------------------------------------------------------------

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._file.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    async def refresh(self) -> None:
        """Adopt what was written to the file before this call, so that a turn that begins after a change uses it."""
        if self._read_stamp() != self._last_stamp:
            async with self._write_lock:
                await self.reload()

    async def reload(self) -> None:
        """Adopt a change made by hand. A file that is missing or not valid changes nothing; the log says so."""
        stamp = self._read_stamp()
        found = await asyncio.to_thread(self._file.read)
        self._last_stamp = stamp  # after the read: one that failed is repeated
        if found.hash == self.last_read.hash:
            return
        before, self.last_read = self.current, found
        if not found.exists or not found.is_valid:
            why = invalid_config_error(found.issues) if found.exists else "the file is missing"
            logger.warning("config: changed file not adopted (%s), the last valid config stays in force", why)
            return
        await self._record_history(self._adopt(before, found), actor="file", method="edit")

    async def _record_offline_change(self) -> None:
        """Record what was written while the gateway was not running, or just before it crashed."""
        if self.history is None or not self.current.exists:
            return
        last = await self.history.last(1)
        if not last or last[0].hash != self.current.hash:
            change = ConfigUpdate(before=self.current, after=self.current, paths=(), reload="none")
            await self._record_history(change, actor="file", method="start")


def _redact_raw(snapshot: Snapshot) -> str | None:
    """A text we can't parse might hold secrets anywhere."""
    if not snapshot.exists or not snapshot.is_readable:
        return None
    return redaction.redact_text(snapshot.raw, snapshot.parsed)


def _sentinel(kind: str, change: ConfigUpdate, note: str | None) -> Json:
    stats = {"requiresRestart": change.reload == "restart", "changedPaths": list(change.paths)}
    return {"path": None, "payload": {"kind": kind, "status": "ok", "ts": now_ms(), "message": note, "stats": stats}}
