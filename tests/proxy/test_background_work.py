"""Background work of the proxy never ends silently: each test here is a failure after which the work must continue."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from openclaw_mcp.core.errors import ToolBusy
from openclaw_mcp.core.model import LOCAL_CALLER
from openclaw_mcp.net import tasks
from openclaw_mcp.proxy import audit_log
from openclaw_mcp.proxy.audit_log import ProxyAuditLog
from openclaw_mcp.proxy.engine import relay as relays
from openclaw_mcp.proxy.engine.app_session import AppSession
from openclaw_mcp.proxy.engine.bridge import Bridge, PendingBridgeCall
from openclaw_mcp.proxy.engine.frames import Frame
from openclaw_mcp.proxy.engine.limits import SessionLimits
from openclaw_mcp.proxy.engine.memory import MemoryEngine
from openclaw_mcp.proxy.engine.relay import InstanceRelay, RelayMessage
from openclaw_mcp.proxy.settings import ProxySettings
from openclaw_mcp.proxy.stdio.remote_session import RemoteSessionTools, SessionSelector
from openclaw_mcp.tools.audit import AuditRecord

from .proxies import ECHO, WAIT, proxy, soon


class _Failing:
    """A bridge whose check fails, and what it was closed with."""

    def __init__(self) -> None:
        self.closed: list[int] = []
        self.last_call_number = 0

    def check_liveness(self, now: float) -> None:
        raise RuntimeError("broken")

    def close(self, code: int, reason: str) -> None:
        self.closed.append(code)


class _Checked(_Failing):
    def __init__(self) -> None:
        super().__init__()
        self.checks = 0

    def check_liveness(self, now: float) -> None:
        self.checks += 1


def test_a_bridge_that_can_not_be_checked_is_closed_and_the_others_are_checked_on() -> None:
    async def main() -> None:
        limits = SessionLimits(10, 10)
        async with MemoryEngine(ttl=60, limits=limits, ping=0.02, max_tools=10) as engine:
            failing, checked = _Failing(), _Checked()
            sessions = cast("dict[str, Any]", engine.sessions)
            sessions["a"] = SimpleNamespace(bridge=failing, last_used=0.0)
            sessions["b"] = SimpleNamespace(bridge=checked, last_used=0.0)
            async with asyncio.timeout(WAIT):
                while checked.checks < 3:  # noqa: ASYNC110  the engine's own clock
                    await asyncio.sleep(0.01)
            assert failing.closed[:1] == [1011]
            sessions.clear()

    asyncio.run(main())


def _record(tool: Any) -> AuditRecord:
    return cast(
        "AuditRecord",
        SimpleNamespace(at=0.0, milliseconds=1.0, session=None, tool=tool, caller="agent", outcome="ok", traffic=None),
    )


def test_a_record_that_can_not_be_written_is_dropped_and_the_next_ones_are_written(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "audit.jsonl"
        async with ProxyAuditLog(str(path)) as log:
            log.write(_record("half a character \ud800"))
            await asyncio.sleep(3 * audit_log.BATCH_WINDOW)
            log.write(_record("fine"))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line.get("dropped", line.get("tool")) for line in lines] == [1, "fine"]

    asyncio.run(main())


class _Store:
    """Keeps what is published, and says that every instance listens."""

    def __init__(self) -> None:
        self.published: list[RelayMessage] = []
        self.may_send = asyncio.Event()

    async def publish(self, channel: str, data: bytes) -> int:
        await self.may_send.wait()
        self.published += relays._unpack(data)
        return 1

    async def put_parcel(self, name: str, data: bytes) -> None:
        return

    async def has_subscribers(self, channel: str) -> bool:
        return True


class _Answering:
    """A bridge that answers every call with as many bytes as it is set to, and every probe with an error."""

    def __init__(self, size: int) -> None:
        self._size = size

    async def invoke(self, tool: str, arguments: Any, on_progress: Any) -> tuple[Frame, int]:
        await on_progress(Frame(type="progress", request_id="x", progress=1.0, message="x" * self._size))
        return Frame(type="invoke_result", request_id="x", ok=True, error=None, message="x" * self._size), 1  # type: ignore[arg-type]

    async def probe(self) -> bool:
        raise RuntimeError("broken")


@pytest.mark.parametrize("kind", ["call", "probe"])
def test_an_instance_that_asked_is_answered_though_there_is_no_room_for_the_result(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "MAX_QUEUED", 1000)

    async def main() -> None:
        store = _Store()
        relay = InstanceRelay(cast("Any", store), lambda _: cast("Bridge", _Answering(2000)))
        await relay.handle_data(relays._pack([RelayMessage(kind, "other", 1, "session", "tool", b"{}")]))
        store.may_send.set()
        async with asyncio.timeout(WAIT):
            while not store.published:  # noqa: ASYNC110  the relay's own task
                await asyncio.sleep(0.01)
        await relay.aclose()
        (answer,) = store.published
        assert (answer.kind, answer.number) == ("fail", 1)
        assert answer.name == (ToolBusy.code if kind == "call" else "")

    asyncio.run(main())


def test_a_cancelled_call_stays_cancelled_when_there_is_no_room_to_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store = _Store()
        relay = InstanceRelay(cast("Any", store), lambda _: None)
        call = asyncio.create_task(relay.invoke("other", "session", "tool", {}, None))
        await asyncio.sleep(0)
        monkeypatch.setattr(relays, "MAX_QUEUED", 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await relay.aclose()

    asyncio.run(main())


def test_progress_that_can_not_be_passed_on_costs_no_result(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def on_progress(_: Frame) -> None:
            raise RuntimeError("the caller's stream is gone")

        pending: PendingBridgeCall[int] = PendingBridgeCall(on_progress, asyncio.get_running_loop())
        waiting = asyncio.create_task(pending.wait())
        pending.report_progress(Frame(type="progress", progress=1.0))
        await asyncio.sleep(0.01)
        pending.resolve(7)
        assert await soon(waiting) == 7
        assert "progress could not be passed on" in caplog.text

    asyncio.run(main())


def test_list_changes_are_announced_though_a_listener_failed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_BACK_OFF", 0.01)

    async def main() -> None:
        async with proxy(ProxySettings(audit="off")) as served:
            id = (await served.create())["mcpSessionId"]
            async with RemoteSessionTools(served.address, "", SessionSelector(id=id)) as tools:
                changes: asyncio.Queue[None] = asyncio.Queue()
                failures = [RuntimeError("once")]

                def on_change(_: None) -> None:
                    changes.put_nowait(None)
                    if failures:
                        raise failures.pop()

                tools.changed.connect(on_change)
                await tools.list(LOCAL_CALLER)
                for names in (["a"], ["b"]):
                    async with asyncio.timeout(WAIT):
                        while not tools._is_listening:  # noqa: ASYNC110  the proxy's answer opens it
                            await asyncio.sleep(0.01)
                    replaced = [{**ECHO, "name": name} for name in names]
                    await served.send("PUT", f"/v1/chat/sessions/{id}/tools", {"tools": replaced})
                    await soon(changes.get())

    asyncio.run(main())


def test_a_session_names_its_conversation_and_hides_its_id() -> None:
    async def main() -> None:
        async with proxy(ProxySettings(audit="off")) as served:
            id = (await served.create(chat_id="family"))["mcpSessionId"]
            async with served.app(id):
                (app,) = served.state.connected_apps()
                assert isinstance(app, AppSession)
                assert (app.chat_id, len(app.digest), id in app.digest) == ("family", 12, False)

    asyncio.run(main())
