"""One bridge on a socket in memory: its limits, its patience, and the order in which it takes what the app says."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from openclaw_mcp.core.errors import BadRequest, ToolBusy, ToolError, ToolUnavailable
from openclaw_mcp.net.websocket import WebSocket, WebSocketListener
from openclaw_mcp.proxy.engine.bridge import Bridge, ReplaceTools
from openclaw_mcp.proxy.engine.frames import Frame
from openclaw_mcp.proxy.engine.limits import BridgeLimits

PATIENCE = 20.0


class Wire:
    """A `Socket` in memory. `unsent` and `taken` are what a test says they are."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed: list[tuple[int, str]] = []
        self.backlog_bytes = 0
        self.bytes_delivered = 0
        self.is_text = True
        self.alive = True
        self.pings = 0
        self.reading = False
        self.listener: WebSocketListener | None = None

    def set_listener(self, listener: WebSocketListener) -> None:
        self.listener, self.reading = listener, True

    def send(self, message: bytes) -> None:
        self.sent.append(json.loads(message))

    def ping(self) -> None:
        self.pings += 1

    def close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))

    def pause(self) -> None:
        self.reading = False

    def resume(self) -> None:
        self.reading = True


class App:
    """A bridge, and the app at its other end."""

    def __init__(self, retool: ReplaceTools | None = None, **limits: Any) -> None:
        self.wire = Wire()
        self.bridge = Bridge(
            "s1", cast(WebSocket, self.wire), limits=BridgeLimits(**limits), replace_tools=retool or self._count
        )  # fmt: skip
        self.tool_lists: list[bytes] = []
        self.loop = asyncio.get_running_loop()

    async def _count(self, tools: bytes) -> int:
        self.tool_lists.append(tools)
        return len(json.loads(tools))

    def says(self, type: str, **fields: Any) -> None:
        self.bridge.on_message(json.dumps({"type": type, **fields}).encode())

    def answers(self, number: int, content: Any = "done", **more: Any) -> None:
        self.says("invoke_result", request_id=f"s1:{number}", ok=True, content=content, **more)

    async def call(self, tool: str = "t", arguments: Any = None, tell: Any = None) -> "asyncio.Task[tuple[Frame, int]]":
        """A call that is on its way."""
        task = asyncio.ensure_future(self.bridge.invoke(tool, arguments, tell))
        await asyncio.sleep(0)
        return task

    def types(self) -> list[str]:
        return [frame["type"] for frame in self.wire.sent]


def within(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await scenario()

    asyncio.run(bounded())


# ---- calls -----------------------------------------------------------------------------------------------------------


def test_a_call_is_answered_with_the_size_of_its_request() -> None:
    async def scenario() -> None:
        app = App()
        calls = [await app.call("look", {"n": n}) for n in (1, 2)]
        assert app.bridge.pending_count == 2
        assert app.wire.sent == [
            {"type": "invoke_tool", "mcpSessionId": "s1", "request_id": f"s1:{n}", "requestId": f"s1:{n}",
             "tool_name": "look", "toolName": "look", "arguments": {"n": n}}
            for n in (1, 2)
        ]  # fmt: skip
        app.answers(2, "two")
        app.answers(1, "one")
        app.answers(1, "again")
        found = [await call for call in calls]
        assert [json.loads(bytes(cast(Any, frame.content))) for frame, _ in found] == ["one", "two"]
        question = json.dumps(app.wire.sent[0], separators=(",", ":"))
        assert [size for _, size in found] == [len(question)] * 2
        assert (app.bridge.pending_count, app.bridge.last_call_number) == (0, 2)
        app.answers(1, "late")
        assert app.types()[2:] == ["error"]

    within(scenario)


@pytest.mark.parametrize(("limits", "most"), [({}, 2048), ({"calls": 1}, 1)])
def test_so_many_calls_wait_and_no_more(limits: dict[str, Any], most: int) -> None:
    async def scenario() -> None:
        app = App(**limits)
        calls = [await app.call() for _ in range(most)]
        with pytest.raises(ToolBusy, match=f"^{most} calls wait for this app already"):
            await app.bridge.invoke("t", None, None)
        assert (len(app.wire.sent), app.bridge.last_call_number) == (most, most)
        app.answers(1)
        await calls[0]
        calls[0] = await app.call()
        app.bridge.on_close(1000, "")
        await asyncio.gather(*calls, return_exceptions=True)

    within(scenario)


@pytest.mark.parametrize(("limits", "most"), [({}, 33_554_432), ({"unsent": 100}, 100)])
def test_an_app_that_reads_slowly_gets_no_more_calls_and_at_twice_as_much_is_let_go(
    limits: dict[str, Any], most: int
) -> None:
    async def scenario() -> None:
        app = App(**limits)
        app.wire.backlog_bytes = most
        call = await app.call()
        app.wire.backlog_bytes = most + 1
        with pytest.raises(ToolBusy, match="reads its calls too slowly"):
            await app.bridge.invoke("t", None, None)
        app.wire.backlog_bytes = 2 * most
        app.says("ping")
        assert (app.types(), app.wire.closed) == (["invoke_tool", "pong"], [])
        app.wire.backlog_bytes = 2 * most + 1
        app.says("ping")
        assert app.wire.closed == [(4413, "the app does not read what it is sent")]
        with pytest.raises(ToolUnavailable, match="Bridge is not connected: the app does not read"):
            await call
        app.says("ping")
        assert len(app.wire.sent) == 3  # nothing is said to who has been let go

    within(scenario)


def test_an_abandoned_call_is_cancelled_at_the_app() -> None:
    async def scenario() -> None:
        app = App()
        call = await app.call()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert app.types() == ["invoke_tool", "cancel_tool"]
        assert app.wire.sent[1]["request_id"] == "s1:1"
        assert app.bridge.pending_count == 0

    within(scenario)


def test_progress_is_passed_on_the_newest_first_and_all_before_the_answer() -> None:
    async def scenario() -> None:
        app, received, go_on = App(), list[float | None](), asyncio.Event()

        async def tell(frame: Frame) -> None:
            received.append(frame.progress)
            await go_on.wait()

        call = await app.call(tell=tell)
        silent = await app.call()
        for n in (1, 2, 3):
            app.says("progress", request_id="s1:1", progress=n)
            app.says("progress", request_id="s1:2", progress=n)
            await asyncio.sleep(0)
        app.answers(1)
        app.answers(2)
        await silent
        assert (received, call.done()) == ([1.0], False)
        go_on.set()
        await call
        assert received == [1.0, 3.0]
        app.says("progress", request_id="s1:1", progress=4)
        assert app.wire.sent[-1]["reason"] == "no call 's1:1' waits on this bridge"

    within(scenario)


def test_progress_after_a_pause_is_passed_on_too_and_none_after_the_call_was_given_up() -> None:
    async def scenario() -> None:
        app, received, stuck = App(), list[float | None](), asyncio.Event()

        async def tell(frame: Frame) -> None:
            received.append(frame.progress)
            if frame.progress == 3:
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    stuck.set()

        call = await app.call(tell=tell)
        for n in (1, 2, 3):
            app.says("progress", request_id="s1:1", progress=n)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert received == [1.0, 2.0, 3.0]
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await stuck.wait()

    within(scenario)


# ---- what can't be used ----------------------------------------------------------------------------------------------


def test_an_answer_may_be_so_large_and_no_larger() -> None:
    async def scenario() -> None:
        size = len(json.dumps({"type": "invoke_result", "request_id": "s1:1", "ok": True, "content": ""}))
        app = App(result=size + 10)
        calls = [await app.call() for _ in range(2)]
        app.answers(1, "x" * 10)
        app.answers(2, "x" * 11)
        await calls[0]
        with pytest.raises(ToolError, match=rf"The app's answer can't be used: the answer is larger than {size + 10} "):
            await calls[1]
        assert (app.bridge.bad_frames, app.wire.closed) == (1, [])

    within(scenario)


def test_the_default_is_sixteen_mebibytes() -> None:
    async def scenario() -> None:
        app = App()
        app.bridge.on_message(b'{"type":"pong"}'.ljust(16_777_216))
        assert app.bridge.bad_frames == 0
        app.bridge.on_message(b'{"type":"pong"}'.ljust(16_777_217))
        assert app.bridge.bad_frames == 1
        assert "larger than 16777216 bytes" in app.wire.sent[0]["reason"]

    within(scenario)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ({"type": "dance"}, "frames of type 'dance' are not known here"),
        ({"type": "x" * 100}, f"frames of type {'x' * 60!r} are not known here"),
        ({"type": "invoke_result", "request_id": "s1:9", "ok": True}, "no call 's1:9' waits on this bridge"),
        ({"type": "invoke_result", "request_id": "x" * 100, "ok": True}, f"no call {'x' * 80!r} waits on this bridge"),
        ({"type": "progress", "request_id": "s1:9", "progress": 1}, "no call 's1:9' waits on this bridge"),
        ({"type": "pong", "mcpSessionId": "s2"}, "this bridge serves another session than `mcpSessionId` names"),
        ({"type": "update_tools"}, "update_tools needs `tools`, a list"),
    ],
)
def test_a_frame_that_means_nothing_here_is_answered_counted_and_harms_no_call(frame: Any, reason: str) -> None:
    async def scenario() -> None:
        app = App()
        call = await app.call()
        app.bridge.on_message(json.dumps(frame).encode())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert app.wire.sent[1:] == [{"type": "error", "mcpSessionId": "s1", "reason": reason}]
        assert (app.bridge.bad_frames, call.done()) == (1, False)
        for named in ({}, {"mcpSessionId": "s1"}):
            app.says("ping", **named)
            assert app.wire.sent[-1] == {"type": "pong", "mcpSessionId": "s1"}
        app.answers(1)
        await call

    within(scenario)


def test_bytes_are_no_text() -> None:
    async def scenario() -> None:
        app = App()
        app.wire.is_text = False
        app.says("ping")
        assert app.wire.sent[0]["reason"] == "binary frames are not used here; send JSON as text"

    within(scenario)


# ---- new tools -------------------------------------------------------------------------------------------------------


def test_what_comes_behind_new_tools_waits_for_them() -> None:
    async def scenario() -> None:
        go_on, tool_lists = asyncio.Event(), list[bytes]()

        async def retool(tools: bytes) -> int:
            tool_lists.append(tools)
            await go_on.wait()
            return 2

        app = App(retool)
        app.wire.reading = True
        app.says("update_tools", tools=[1, 2])
        app.says("ping")
        app.wire.is_text = False
        app.says("ping")
        app.wire.is_text = True
        app.says("update_tools", tools=[3])
        app.says("ping")
        await asyncio.sleep(0)
        assert (app.wire.sent, app.wire.reading, len(tool_lists)) == ([], False, 1)
        go_on.set()
        for _ in range(9):
            await asyncio.sleep(0)
        assert app.types() == ["tools_updated", "pong", "error", "tools_updated", "pong"]
        assert app.wire.sent[0]["tool_count"] == 2
        assert [json.loads(tools) for tools in tool_lists] == [[1, 2], [3]]
        assert app.wire.reading

    within(scenario)


@pytest.mark.parametrize(
    ("error", "sent", "closed"),
    [
        (BadRequest("no such tools"), [("error", "no such tools")], []),
        (RuntimeError("ours"), [], [(1011, "the proxy failed; its log says more")]),
    ],
)
def test_tools_that_are_refused_are_answered_and_a_fault_of_ours_ends_the_bridge(
    error: Exception, sent: list[tuple[str, str]], closed: list[tuple[int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async def retool(_tools: bytes) -> int:
            raise error

        app = App(retool)
        app.says("update_tools", tools=[])
        for _ in range(3):
            await asyncio.sleep(0)
        assert [(frame["type"], frame["reason"]) for frame in app.wire.sent] == sent
        assert app.wire.closed == closed
        assert ("new tools could not be taken" in caplog.text) is bool(closed)
        assert app.wire.reading

    within(scenario)


def test_new_tools_are_given_up_with_the_bridge() -> None:
    async def scenario() -> None:
        given_up = asyncio.Event()

        async def retool(_tools: bytes) -> int:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                given_up.set()
            return 0

        app = App(retool)
        app.says("update_tools", tools=[])
        await asyncio.sleep(0)
        app.bridge.close(4410, "deleted")
        await given_up.wait()
        assert app.wire.sent == []

    within(scenario)


# ---- life ------------------------------------------------------------------------------------------------------------

ENDS: list[tuple[str, Callable[[Bridge], None], str, list[tuple[int, str]]]] = [
    ("it goes", lambda bridge: bridge.on_close(1000, "bye"), "Bridge is not connected: the app has gone", []),
    (
        "it says too much",
        lambda bridge: bridge.on_close(1009, ""),
        "Bridge is not connected: the app said more than 200 bytes at once",
        [],
    ),
    ("it is let go", lambda bridge: bridge.close(4408, "gone"), "Bridge is not connected: gone", [(4408, "gone")]),
    (
        "its session is deleted",
        lambda bridge: bridge.close(4410, "deleted"),
        "The session was unregistered: the tools of this app are no longer offered here",
        [(4410, "deleted")],
    ),
]


@pytest.mark.parametrize(("end", "reason", "closed"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
def test_when_an_app_is_gone_every_call_fails_with_the_reason(
    end: Callable[[Bridge], None], reason: str, closed: list[tuple[int, str]]
) -> None:
    async def scenario() -> None:
        app = App(result=100)
        running = asyncio.ensure_future(app.bridge.run())
        await asyncio.sleep(0)
        assert app.wire.listener is app.bridge
        calls = [await app.call() for _ in range(2)]
        end(app.bridge)
        for call in calls:
            with pytest.raises(ToolUnavailable, match=f"^{reason}$"):
                await call
        await running
        app.bridge.close(4409, "again")
        app.bridge.on_close(1006, "")
        assert app.wire.closed == closed
        with pytest.raises(ToolUnavailable, match=reason):
            await app.bridge.invoke("t", None, None)
        assert app.types() == ["invoke_tool"] * 2
        assert await app.bridge.probe() is False
        app.bridge.check_liveness(app.loop.time() + 1000)
        assert app.types() == ["invoke_tool"] * 2

    within(scenario)


def test_a_proxy_that_stops_fails_its_calls() -> None:
    async def scenario() -> None:
        app = App()
        running = asyncio.ensure_future(app.bridge.run())
        call = await app.call()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(ToolUnavailable, match="the proxy is stopping"):
            await call

    within(scenario)


def test_a_silent_app_is_pinged_once_and_let_go_after_as_long_again() -> None:
    async def scenario() -> None:
        app = App()
        received = app.loop.time()
        app.bridge.check_liveness(received + 19)
        assert app.wire.sent == []
        for later in (21, 25, 39):
            app.bridge.check_liveness(received + later)
        assert (app.types(), app.wire.closed) == (["ping"], [])
        app.says("pong")
        received = app.loop.time()
        for later in (19, 21, 39):
            app.bridge.check_liveness(received + later)
        assert (app.types(), app.wire.closed) == (["ping", "ping"], [])
        app.bridge.check_liveness(received + 41)
        assert app.wire.closed == [(4408, "the app gave no sign of life")]

    within(scenario)


def test_an_app_that_answers_the_websockets_own_ping_is_kept() -> None:
    async def scenario() -> None:
        app = App()
        received = app.loop.time()
        for later in (21, 62, 103):
            app.bridge.check_liveness(received + later)
            app.wire.alive = True  # a pong has come
            app.bridge.check_liveness(received + later + 5)
        assert (app.wire.pings, app.types(), app.wire.closed) == (3, ["ping"] * 3, [])
        app.bridge.check_liveness(received + 150)
        app.bridge.check_liveness(received + 191)
        assert app.wire.closed == [(4408, "the app gave no sign of life")]

    within(scenario)


def test_an_app_that_takes_some_of_what_it_is_owed_reads() -> None:
    async def scenario() -> None:
        app = App()
        begin = app.loop.time()
        app.bridge.check_liveness(begin + 9)  # owed nothing
        app.wire.backlog_bytes = 5
        for later in (18.9, 28.8):
            app.wire.bytes_delivered += 1
            app.bridge.check_liveness(begin + later)
        app.bridge.check_liveness(begin + 38.7)
        assert app.wire.closed == []
        app.bridge.check_liveness(begin + 38.9)
        assert app.wire.closed == [(4413, "the app does not read what it is sent")]

    within(scenario)


@pytest.mark.parametrize(("ping", "patience"), [(20.0, 10.0), (2.0, 4.0)])
def test_an_app_that_takes_none_of_what_it_is_owed_is_let_go(ping: float, patience: float) -> None:
    async def scenario() -> None:
        app = App(ping=ping)
        begin = app.loop.time()
        app.wire.backlog_bytes = 1
        app.bridge.check_liveness(begin + patience - 0.1)
        assert app.wire.closed == []
        app.bridge.check_liveness(begin + patience + 0.1)
        assert app.wire.closed == [(4413, "the app does not read what it is sent")]

    within(scenario)


def test_an_app_that_is_asked_whether_it_is_there_says_so() -> None:
    async def scenario() -> None:
        app = App()
        for _ in range(2):
            probe = asyncio.ensure_future(app.bridge.probe())
            await asyncio.sleep(0)
            assert not probe.done()
            app.says("pong")
            assert await probe is True
        assert app.types() == ["ping", "ping"]
        probe = asyncio.ensure_future(app.bridge.probe())
        await asyncio.sleep(0)
        app.bridge.on_close(1000, "")
        assert await probe is False
        assert app.wire.closed == []

    within(scenario)


def test_an_app_that_does_not_say_so_in_time_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.proxy.engine.bridge.PROBE_WAIT", 0.01)

    async def scenario() -> None:
        app = App()
        assert await app.bridge.probe() is False
        assert app.wire.closed == [(4408, "the app gave no sign of life when another bridge came")]
        assert await app.bridge.probe() is False
        assert app.types() == ["ping"]

    within(scenario)
