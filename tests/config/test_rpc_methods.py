"""`config.*`: replies, events, history, and changes made by hand."""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.config.rpc_methods import ConfigUpdate
from openclaw_mcp.core.errors import StoreFull
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.core.sessions import ConfigChange
from tests.config.test_config import make_service
from tests.config.test_permission import RUN, ConfigCaller

BASE = '{"session":{"mainKey":"a"},"gateway":{"port":18800}}'


class MemoryHistory:
    """A `ConfigHistory` in memory."""

    def __init__(self, *, full: bool = False) -> None:
        self.kept: list[ConfigChange] = []
        self.full = full

    async def add(self, change: ConfigChange) -> None:
        if self.full:
            raise StoreFull("the disk is full")
        self.kept.insert(0, change)

    async def last(self, limit: int = 50) -> Sequence[ConfigChange]:
        return self.kept[:limit]


def test_only_admins_write_and_not_more_than_so_often(tmp_path: Path) -> None:
    _, service = make_service(tmp_path)
    assert [(method.name, method.scope, method.per_minute) for method in service.methods()] == [
        ("config.get", "operator.read", None),
        ("config.set", "operator.admin", 30),
        ("config.apply", "operator.admin", 30),
        ("config.patch", "operator.admin", 30),
        ("config.schema", "operator.read", None),
        ("config.schema.lookup", "operator.read", None),
    ]


def test_the_file_is_shown_with_the_config_in_use(tmp_path: Path) -> None:
    async def scenario() -> None:
        gateway, service = make_service(tmp_path, BASE)
        config = await gateway.call("config.get")
        plain = {"path", "exists", "valid", "issues", "warnings", "raw", "parsed", "legacyIssues", "includedPaths"}
        assert {name: value for name, value in config.items() if name in plain} == {
            "path": str(tmp_path / "openclaw.json"), "exists": True, "valid": True, "issues": [], "warnings": [],
            "raw": BASE, "parsed": json.loads(BASE), "legacyIssues": [], "includedPaths": [],
        }  # fmt: skip
        assert (config["agentRosterIncludeOwned"], config["bindingsIncludeOwned"], config["includeProvenance"]) == (
            False, False, [],
        )  # fmt: skip
        assert config["parsed"] == config["sourceConfig"] == config["resolved"]
        assert config["config"] == config["runtimeConfig"]
        assert config["hash"] == config["configRevisionHash"] == config["appliedConfigHash"] == service.current.hash
        (tmp_path / "openclaw.json").write_text(BASE.replace("18800", "18801"))
        config = await gateway.call("config.get")
        assert (config["config"]["gateway"]["port"], config["runtimeConfig"]["gateway"]["port"]) == (18801, 18801)
        (tmp_path / "openclaw.json").write_text('{"gateway": {"port": "none"}}')  # and so not adopted
        config = await gateway.call("config.get")
        assert (config["valid"], config["runtimeConfig"]["gateway"]["port"]) == (False, 18801)
        assert config["hash"] == config["configRevisionHash"] != config["appliedConfigHash"] == service.current.hash
        (tmp_path / "openclaw.json").unlink()
        config = await gateway.call("config.get")
        assert (config["exists"], config["valid"], config["raw"], config["parsed"]) == (False, True, None, {})

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "reload", "children"),
    [
        ("gateway.auth", "restart", {"mode": (False, False), "token": (False, False), "password": (False, False)}),
        ("agents", "none", {"defaults": (False, True), "list": (False, True)}),
        ("gateway.port", "restart", {}),
    ],
)
def test_a_part_is_described_with_its_children(tmp_path: Path, path: str, reload: str, children: Any) -> None:
    async def scenario() -> None:
        gateway, _ = make_service(tmp_path)
        found = await gateway.call("config.schema.lookup", {"path": path})
        assert (found["path"], found["hintPath"], found["reloadKind"]) == (path, path, reload)
        rows = {child["key"]: (child["required"], child["hasChildren"]) for child in found["children"]}
        assert rows == children
        for child in found["children"]:
            inner = await gateway.call("config.schema.lookup", {"path": child["path"]})
            assert (child["path"], child["hintPath"]) == (f"{path}.{child['key']}",) * 2
            assert (child["hint"], child["reloadKind"]) == (inner["hint"], inner["reloadKind"])
            assert child["type"] == inner["schema"].get("type")

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["agents.list[0]", "agents/list/0", "/agents/list/0/", "agents.list.0"])
def test_a_part_may_be_named_in_several_ways(tmp_path: Path, path: str) -> None:
    async def scenario() -> None:
        gateway, _ = make_service(tmp_path)
        found = await gateway.call("config.schema.lookup", {"path": path})
        assert found["hint"] == {"label": "One agent"}
        assert [child["key"] for child in found["children"] if child["required"]] == ["id"]

    asyncio.run(scenario())


BAD: list[tuple[str, Any, str]] = [
    ("config.schema.lookup", {"path": ""}, "fewer than 1 characters"),
    ("config.schema.lookup", {"path": "a" * 1025}, "more than 1024 characters"),
    ("config.schema.lookup", {"path": "a" * 1024}, "not found"),
    ("config.schema.lookup", {"path": "a b"}, "at /path: must match"),
    ("config.schema.lookup", {"path": "gateway.port.x"}, "config schema path not found: gateway.port.x"),
    ("config.set", {"raw": ""}, "fewer than 1 characters"),
    ("config.set", {"raw": "{}", "baseHash": ""}, "fewer than 1 characters"),
    ("config.patch", {"raw": "{}", "replacePaths": ["a"] * 257}, "more than 256 items"),
    ("config.patch", {"raw": "{}", "replacePaths": ["a"] * 256}, "base hash required"),
]


@pytest.mark.parametrize(("method", "params", "words"), BAD)
def test_what_makes_no_sense_is_refused(tmp_path: Path, method: str, params: Any, words: str) -> None:
    async def scenario() -> None:
        gateway, _ = make_service(tmp_path)
        with pytest.raises(RpcError, match=words):
            await gateway.call(method, params)

    asyncio.run(scenario())


# ---- writing ---------------------------------------------------------------------------------------------------------

NEW = '{"session":{"mainKey":"b"},"gateway":{"port":18800}}'


@pytest.mark.parametrize("method", ["set", "apply", "patch"])
def test_a_write_is_answered_published_and_recorded(tmp_path: Path, method: str) -> None:
    async def scenario() -> None:
        history, changes = MemoryHistory(), list[ConfigUpdate]()
        gateway, service = make_service(tmp_path, BASE, history=history)
        service.changed.connect(changes.append)
        params = {"raw": NEW, "baseHash": service.current.hash, "note": "why"}
        result = await gateway.call(f"config.{method}", params)
        assert (result["ok"], result["path"], result["hash"]) == (
            True,
            str(tmp_path / "openclaw.json"),
            service.current.hash,
        )
        assert result["config"]["session"]["mainKey"] == "b"
        if method == "set":
            assert "sentinel" not in result
        else:
            payload = result["sentinel"]["payload"]
            assert (payload["kind"], payload["status"], payload["message"]) == (f"config-{method}", "ok", "why")
            assert payload["stats"] == {"requiresRestart": False, "changedPaths": ["session.mainKey"]}
            assert result["sentinel"]["path"] is None
        assert result.get("changedPaths") == (["session.mainKey"] if method == "patch" else None)
        assert "droppedSecrets" not in result
        (event,) = gateway.received("config.changed")
        assert (event["path"], event["hash"]) == (str(tmp_path / "openclaw.json"), result["hash"])
        assert len(gateway.received("chat.metadata.changed")) == 1
        (change,) = changes
        assert (change.before.parsed, change.after, change.paths) == (
            json.loads(BASE),
            service.current,
            ("session.mainKey",),
        )
        (record,) = history.kept
        assert (record.actor, record.method, record.note) == ("tester", f"config.{method}", "why")
        assert (record.hash, record.paths, json.loads(record.raw)) == (
            result["hash"],
            ("session.mainKey",),
            json.loads(NEW),
        )

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("patch", "kind"),
    [
        ({}, "none"),
        ({"session": {"mainKey": "b"}}, "none"),
        ({"channels": {"local": {"enabled": False}}}, "hot"),
        ({"channels": {"local": {"enabled": False}}, "session": {"mainKey": "b"}}, "hot"),
        ({"gateway": {"port": 18801}}, "restart"),
        ({"channels": {"local": {"enabled": False}}, "gateway": {"port": 18801}}, "restart"),
    ],
)
def test_of_all_that_changes_the_most_particular_says_what_it_takes(tmp_path: Path, patch: Any, kind: str) -> None:
    async def scenario() -> None:
        gateway, service = make_service(tmp_path, BASE)
        changes: list[ConfigUpdate] = []
        service.changed.connect(changes.append)
        params = {"raw": json.dumps(patch), "baseHash": service.current.hash}
        result = await gateway.call("config.patch", params)
        assert [change.reload for change in changes] == [kind]
        assert result["sentinel"]["payload"]["stats"]["requiresRestart"] is (kind == "restart")

    asyncio.run(scenario())


def test_a_full_disk_loses_the_history_and_not_the_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        gateway, service = make_service(tmp_path, BASE, history=MemoryHistory(full=True))
        result = await gateway.call("config.set", {"raw": NEW, "baseHash": service.current.hash})
        assert service.current.hash == result["hash"]
        assert "change not recorded in the history (the disk is full)" in caplog.text

    asyncio.run(scenario())


def test_a_refusal_lists_no_more_paths_than_can_be_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        links = {f"p{n}": ["telegram:1"] for n in range(300)}
        service = ConfigCaller(tmp_path, {"session": {"identityLinks": {}}})
        with pytest.raises(RpcError) as refused:
            await service.ask("config.patch", RUN, raw=json.dumps({"session": {"identityLinks": links}}))
        assert (refused.value.kind, refused.value.details["code"]) == ("FORBIDDEN", "CONFIG_PATH_DENIED")
        assert len(refused.value.details["paths"]) == 256

    asyncio.run(scenario())


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_a_file_changed_by_hand_is_used_once_it_makes_sense(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        history, changes, file = MemoryHistory(), list[ConfigUpdate](), tmp_path / "openclaw.json"
        gateway, service = make_service(tmp_path, BASE, history=history)
        service.changed.connect(changes.append)
        await service.reload()
        assert (changes, history.kept) == ([], [])
        for raw, words in (("{ nonsense", "not valid JSON5"), ('{"bogus":1}', "bogus"), (None, "the file is missing")):
            file.unlink() if raw is None else file.write_text(raw)
            caplog.clear()
            await service.reload()
            assert "changed file not adopted" in caplog.text
            assert words in caplog.text
            assert service.current.parsed == json.loads(BASE)
            caplog.clear()
            await service.reload()
            assert caplog.text == ""  # said once
        assert (changes, gateway.events) == ([], [])
        file.write_text(NEW)
        await service.reload()
        assert [(change.before.parsed, change.paths) for change in changes] == [
            (json.loads(BASE), ("session.mainKey",))
        ]
        assert service.current.parsed == json.loads(NEW)
        assert [(record.actor, record.method, record.paths) for record in history.kept] == [
            ("file", "edit", ("session.mainKey",))
        ]
        caplog.set_level(logging.INFO)
        file.write_text(f"{NEW} // said")
        await service.reload()
        assert "config: changed nothing but its text" in caplog.text
        assert len(gateway.received("config.changed")) == 2

    asyncio.run(scenario())


def _in_place(file: Path) -> None:
    file.write_text(NEW)


def _at_the_same_time(file: Path) -> None:
    before = file.stat()
    file.write_text(f"{NEW} ")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _as_another_file(file: Path) -> None:
    before, other = file.stat(), file.with_name("other")
    other.write_text(NEW)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(file)


@pytest.mark.parametrize("change", [_in_place, _at_the_same_time, _as_another_file])
def test_however_a_file_is_changed_that_is_seen(tmp_path: Path, change: Callable[[Path], None]) -> None:
    async def scenario() -> None:
        _, service = make_service(tmp_path, BASE)
        changed = asyncio.Event()
        service.changed.connect(lambda _: changed.set())
        async with service:
            change(tmp_path / "openclaw.json")
            await asyncio.wait_for(changed.wait(), 20)
            assert service.current.parsed == json.loads(NEW)

    asyncio.run(scenario())


def test_a_check_of_the_file_that_fails_does_not_end_the_watching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("openclaw_mcp.config.rpc_methods.WATCH_EVERY", 0.01)
    monkeypatch.setattr("openclaw_mcp.net.tasks.FIRST_BACK_OFF", 0.01)
    failures = iter([OSError("no such share"), OSError("no such share")])

    async def scenario() -> None:
        _, service = make_service(tmp_path, BASE)
        changed, read = asyncio.Event(), service._file.read

        def fail_first() -> Any:
            for failure in failures:
                raise failure
            return read()

        service._file.read = fail_first  # type: ignore[method-assign]  # a disk that fails twice
        service.changed.connect(lambda _: changed.set())
        async with service:
            (tmp_path / "openclaw.json").write_text(NEW)
            await asyncio.wait_for(changed.wait(), 20)
        assert service.current.parsed == json.loads(NEW)

    asyncio.run(scenario())
    assert caplog.text.count("watching the file failed") == 2


@pytest.mark.parametrize(
    ("raw", "methods"),
    [(BASE, ["start"]), (None, [])],
)
def test_a_change_made_while_stopped_is_recorded_once_at_the_start(
    tmp_path: Path, raw: str | None, methods: list[str]
) -> None:
    async def scenario() -> None:
        history = MemoryHistory()
        for _ in range(2):
            _, service = make_service(tmp_path, raw, history=history)
            async with service as entered:
                assert entered is service
                assert [(change.method, change.actor, change.paths) for change in history.kept] == [
                    (method, "file", ()) for method in methods
                ]

    asyncio.run(scenario())
