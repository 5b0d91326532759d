"""`config.*`: read with secrets hidden, written only on top of what was read, told to everybody, kept in history."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Self

from msgspec import Meta, Struct

from .. import __version__
from ..core.errors import BadRequest, StoreError
from ..core.model import Json
from ..core.repositories import ConfigHistory
from ..core.rpc import ADMIN, READ, Event, Fault, Method, Publish, RpcCall, read_params
from ..core.sessions import ConfigChange, now_ms
from ..core.signal import Bell
from . import merge, secret_recipients, text
from .file import Check, ConfigFile, ConfigInvalid, ConfigStale, Snapshot, allow_any, check_base, invalid
from .permission import NotForRuns, is_person, refuse_runs
from .schema import hint_of
from .schema_parts import Reload

logger = logging.getLogger(__name__)

WATCH_EVERY: Final = 1.0  # seconds between looks at the file; a look is one stat
WRITES_PER_MINUTE: Final = 30
MOST_REPLACED: Final = 256

Raw = Annotated[str, Meta(min_length=1)]
Write = Callable[[Check], tuple[Snapshot, Snapshot]]
"""Writes the file when the check raises nothing: what was, and what is now."""


class WriteParams(Struct, frozen=True, kw_only=True, rename="camel"):
    raw: Raw
    base_hash: Raw | None = None
    note: str | None = None
    replace_paths: Annotated[list[str], Meta(max_length=MOST_REPLACED)] = []


class LookupParams(Struct, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[A-Za-z0-9_./\[\]\-*]+$")]


class Change(Struct, frozen=True, kw_only=True):
    """The config is another now."""

    before: Snapshot
    after: Snapshot
    paths: tuple[str, ...]
    reload: Reload
    """`restart` when any of the paths needs one."""


class ConfigRoom:
    """`current` is the last valid config; `changed` rings after each change, made here or by hand."""

    def __init__(self, file: ConfigFile, publish: Publish, history: ConfigHistory | None = None) -> None:
        self._file = file
        self._publish = publish
        self.history = history
        """Where changes are kept; may be given later, before the room is entered."""
        self.changed: Bell[Change] = Bell()
        self.seen = file.read()
        """The file as last read, valid or not."""
        if not self.seen.valid:
            raise invalid(self.seen.issues, self.seen.path)
        self.current = self.seen
        self._mark = self._stamp()
        self._watching: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._made = datetime.now(UTC).isoformat(timespec="seconds")

    async def __aenter__(self) -> Self:
        await self._note_outside()
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    def methods(self) -> Sequence[Method]:
        return (
            Method("config.get", READ, self._get),
            Method("config.set", ADMIN, self._set, per_minute=WRITES_PER_MINUTE),
            Method("config.apply", ADMIN, self._apply, per_minute=WRITES_PER_MINUTE),
            Method("config.patch", ADMIN, self._patch, per_minute=WRITES_PER_MINUTE),
            Method("config.schema", READ, self._schema),
            Method("config.schema.lookup", READ, self._lookup),
        )

    # ---- reading -------------------------------------------------------------------------------------------------

    async def _get(self, call: RpcCall) -> Json:
        snapshot = await asyncio.to_thread(self._file.read)
        parsed = text.redacted(snapshot.parsed)
        return {
            "path": str(snapshot.path),
            "exists": snapshot.exists,
            "raw": _shown(snapshot),
            "parsed": parsed,
            "sourceConfig": parsed,
            "resolved": parsed,  # what comes from the environment is not shown
            "runtimeConfig": self._file.shown(self.current),
            "config": self._file.shown(snapshot),
            "valid": snapshot.valid,
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
        blueprint = self._file.blueprint
        hints = blueprint.hints()
        return {"schema": blueprint.schema, "uiHints": hints, "version": __version__, "generatedAt": self._made}

    async def _lookup(self, call: RpcCall) -> Json:
        asked = read_params(call.params, LookupParams, call.method)
        path = tuple(asked.path.replace("[", ".").replace("]", "").replace("/", ".").strip(".").split("."))
        blueprint = self._file.blueprint
        node = blueprint.node(path)
        if node is None:
            raise Fault(f"config schema path not found: {asked.path}")
        required = node.get("required", [])
        children = [
            {
                "key": key,
                "path": f"{asked.path}.{key}",
                "type": inner.get("type"),
                "required": key in required,
                "hasChildren": bool(inner.get("properties") or inner.get("items")),
                "reloadKind": blueprint.reload((*path, key)),
                "hint": hint_of(key, inner),
                "hintPath": f"{asked.path}.{key}",
            }
            for key, inner in node.get("properties", {}).items()
        ]
        found = {"path": asked.path, "schema": node, "reloadKind": blueprint.reload(path)}
        return {**found, "hint": hint_of(path[-1], node), "hintPath": asked.path, "children": children}

    # ---- writing -------------------------------------------------------------------------------------------------

    async def _set(self, call: RpcCall) -> Json:
        asked = read_params(call.params, WriteParams, call.method)
        return self._answer(await self._replace(call, asked), None)

    async def _apply(self, call: RpcCall) -> Json:
        asked = read_params(call.params, WriteParams, call.method)
        return self._answer(await self._replace(call, asked), _sentinel("config-apply", asked.note))

    async def _patch(self, call: RpcCall) -> Json:
        asked = read_params(call.params, WriteParams, call.method)
        dropped: list[str] = []
        change = await self._written(call, asked, lambda check: self._patched(asked, check, dropped))
        answer = {**self._answer(change, _sentinel("config-patch", asked.note)), "changedPaths": list(change.paths)}
        return {**answer, "droppedSecrets": dropped} if dropped else answer

    async def _replace(self, call: RpcCall, asked: WriteParams) -> Change:
        return await self._written(
            call, asked, lambda check: self._file.replace(asked.raw, base=asked.base_hash, check=check)
        )

    def _patched(self, asked: WriteParams, check: Check, dropped: list[str]) -> tuple[Snapshot, Snapshot]:
        patch = text.parse(asked.raw)

        def edit(before: Snapshot) -> Json:
            check_base(before, asked.base_hash)
            result: Json = merge.merged(before.parsed, text.keep_secrets(patch, before.parsed))
            merge.refuse_losses(before.parsed, result, asked.replace_paths)
            left = secret_recipients.left_behind(before.parsed, result, patch)
            dropped.extend(map(text.dotted, left))
            return secret_recipients.without(result, left) if left else result

        return self._file.change(edit, check)

    def _permit_run(self, before: Snapshot, after: Snapshot) -> None:
        """Raises NotForRuns. A run writes on what a person made, so there must be something to compare with."""
        if not before.valid:
            raise BadRequest("the config file is not valid now; a person must mend it before a run can change it")
        refuse_runs((before if before.exists else self.current).parsed, after.parsed, self._file.blueprint.schema)

    async def _written(self, call: RpcCall, asked: WriteParams, write: Write) -> Change:
        check = allow_any if is_person(call.caller) else self._permit_run
        async with self._writing:
            try:
                before, after = await asyncio.to_thread(write, check)
            except NotForRuns as exc:
                details = {"code": "CONFIG_PATH_DENIED", "paths": exc.paths[:MOST_REPLACED]}
                raise Fault(str(exc), kind="FORBIDDEN", details=details) from None
            except ConfigInvalid as exc:
                raise Fault(str(exc), details={"issues": exc.issues}) from None
            except (ConfigStale, BadRequest) as exc:
                raise Fault(str(exc)) from None
            change = self._take(before, after)
            await self._remember(change, actor=call.caller.name, method=call.method, note=asked.note)
        return change

    def _answer(self, change: Change, sentinel: Json | None) -> Json:
        after = change.after
        answer: Json = {"ok": True, "path": str(after.path), "hash": after.hash, "config": self._file.shown(after)}
        if sentinel is not None:
            stats = {"requiresRestart": change.reload == "restart", "changedPaths": list(change.paths)}
            sentinel["payload"]["stats"] = stats
            answer["sentinel"] = sentinel
        return answer

    def _take(self, before: Snapshot, after: Snapshot) -> Change:
        paths = tuple(merge.changed_paths(before.parsed, after.parsed))
        kinds = {self._file.blueprint.reload(tuple(path.split("."))) for path in paths}
        kind: Reload = "restart" if "restart" in kinds else "hot" if "hot" in kinds else "none"
        change = Change(before=before, after=after, paths=paths, reload=kind)
        self.current = self.seen = after
        self._mark = self._stamp()
        logger.info("config changed: %s", ", ".join(paths) or "nothing but its text")
        self._publish(
            Event(name="config.changed", payload={"path": str(after.path), "hash": after.hash, "ts": now_ms()})
        )
        self._publish(Event(name="chat.metadata.changed", payload={}))
        self.changed.ring(change)
        return change

    async def _remember(self, change: Change, *, actor: str, method: str, note: str | None = None) -> None:
        if self.history is None:
            return
        after = change.after
        shown = text.redacted_text(after.raw, after.parsed)  # the file is the one place where a secret may stand
        entry = ConfigChange(
            at=now_ms(), hash=after.hash, actor=actor, method=method, raw=shown, note=note, paths=change.paths
        )
        try:
            await self.history.add(entry)
        except StoreError as exc:  # the file is what counts, and it is written; the next start notes the change
            logger.warning("the config changed but its history could not be kept: %s", exc)

    # ---- changes by hand -----------------------------------------------------------------------------------------

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._file.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    async def _watch(self) -> None:
        # A look a second costs nothing and works on every file system; a watcher library would not do better.
        while True:
            await asyncio.sleep(WATCH_EVERY)
            if self._stamp() != self._mark:
                async with self._writing:
                    await self.look()

    async def look(self) -> None:
        """Take in what was changed by hand. A file that is gone or broken changes nothing but the log."""
        self._mark = self._stamp()
        found = await asyncio.to_thread(self._file.read)
        if found.hash == self.seen.hash:
            return
        before, self.seen = self.current, found
        if not found.exists or not found.valid:
            why = invalid(found.issues) if found.exists else "the file is gone"
            logger.warning("the config changed but is not used: %s", why)
            return
        await self._remember(self._take(before, found), actor="file", method="edit")

    async def _note_outside(self) -> None:
        """History must not miss what was written while we were away, or in the moment of a crash."""
        if self.history is None or not self.current.exists:
            return
        last = await self.history.last(1)
        if not last or last[0].hash != self.current.hash:
            change = Change(before=self.current, after=self.current, paths=(), reload="none")
            await self._remember(change, actor="file", method="start")


def _shown(snapshot: Snapshot) -> str | None:
    """A text we can't parse might hold secrets anywhere."""
    if not snapshot.exists or not snapshot.readable:
        return None
    return text.redacted_text(snapshot.raw, snapshot.parsed)


def _sentinel(kind: str, note: str | None) -> Json:
    return {"path": None, "payload": {"kind": kind, "status": "ok", "ts": now_ms(), "message": note}}
