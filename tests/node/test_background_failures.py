"""Background work of the node that fails unexpectedly: it is logged or answered, and the rest goes on."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from openclaw_mcp.core.model import LOCAL_CALLER, Caller, Json, Text, ToolCall, ToolResult, ToolSpec
from openclaw_mcp.core.ports import NullCallContext
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.net import tasks as net_tasks
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity
from openclaw_mcp.net.processes import start_process
from openclaw_mcp.net.state_dir import TOKEN_FILE
from openclaw_mcp.node import gateway_link
from openclaw_mcp.node.canvas import forward_proxy
from openclaw_mcp.node.canvas.chromium import CdpMessage, Chromium
from openclaw_mcp.node.gateway_link import make_gateway_connector
from openclaw_mcp.node.host import LocalNode
from openclaw_mcp.node.invocations import Invocations
from openclaw_mcp.node.questions import PromptAnswer, PromptRouter, UserQuestion, make_question
from openclaw_mcp.node.settings import FixedPosition, NodeSettings
from openclaw_mcp.node.terminal_questions import TerminalPrompter, watch_questions

WAIT = 10.0


def run(work: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT):
            await work()

    asyncio.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  the condition has no event
        await asyncio.sleep(0.01)


class BrokenToolbox:
    changed: Signal[None] = Signal()

    async def list(self, caller: Caller) -> list[ToolSpec]:
        return []

    async def call(self, call: ToolCall) -> ToolResult:
        raise RuntimeError("a bug")


def test_an_invocation_that_fails_unexpectedly_is_answered() -> None:
    async def work() -> None:
        answers: asyncio.Queue[Json] = asyncio.Queue()

        async def call_gateway(method: str, params: Json) -> None:
            answers.put_nowait(params)

        invocations = Invocations(BrokenToolbox(), call_gateway)
        invocations.on_event("node.invoke.request", {"id": "1", "command": "a.b"})
        answer = await answers.get()
        await invocations.aclose()

        assert (answer["id"], answer["ok"], answer["error"]["code"]) == ("1", False, "INTERNAL")
        assert "a bug" not in answer["error"]["message"]

    run(work)


def test_a_shared_token_that_cannot_be_read_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENCLAW_GATEWAY_TOKEN", raising=False)
    (tmp_path / TOKEN_FILE).write_bytes(b"\xff\xfe")

    async def work() -> None:
        announced: list[str] = []
        async with make_gateway_connector(announced.append, default_url="ws://127.0.0.1:9")(LocalNode(tmp_path)):
            await until(lambda: announced)

        assert TOKEN_FILE in announced[0]
        assert "delete it" in announced[0]

    run(work)


def test_the_link_to_the_gateway_outlives_an_unexpected_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(net_tasks, "FIRST_BACK_OFF", 0.01)
    attempts: list[object] = []

    def fail(path: object) -> None:
        attempts.append(path)
        raise RuntimeError("a bug")

    monkeypatch.setattr(DeviceIdentity, "load", fail)

    async def work() -> None:
        async with make_gateway_connector(lambda _: None, default_url="ws://127.0.0.1:9")(LocalNode(tmp_path)):
            await until(lambda: len(attempts) > 2)

    run(work)
    assert "gateway link: ws://127.0.0.1:9 failed" in caplog.text


class StubClient:
    """A gateway client that is connected at once."""

    def __init__(self, *_args: object, **_more: object) -> None:
        self.events: Signal[Any] = Signal()
        self.connected: Signal[Json] = Signal()
        self.calls: list[str] = []
        CLIENTS.append(self)

    async def __aenter__(self) -> Self:
        self.connected.emit({})
        return self

    async def __aexit__(self, *_exc: object) -> None:
        return

    async def call(self, method: str, params: Json, *, within: float) -> None:
        self.calls.append(method)


CLIENTS: list[StubClient] = []


def test_tools_are_published_after_a_publishing_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_tasks, "FIRST_BACK_OFF", 0.01)
    monkeypatch.setattr(gateway_link, "GatewayClient", StubClient)
    describe, failures = gateway_link._describe_tool, iter([True])

    def fail_once(spec: ToolSpec) -> Json:
        if next(failures, False):
            raise RuntimeError("a bug")
        return describe(spec)

    monkeypatch.setattr(gateway_link, "_describe_tool", fail_once)
    CLIENTS.clear()

    async def work() -> None:
        async with make_gateway_connector(lambda _: None, default_url="ws://127.0.0.1:9")(LocalNode(tmp_path)):
            await until(lambda: CLIENTS)
            await until(lambda: next(failures, True))
            CLIENTS[0].connected.emit({})
            await until(lambda: CLIENTS[0].calls)

        assert CLIENTS[0].calls == ["node.pluginTools.update"]

    run(work)


class Person:
    def __init__(self, answer: PromptAnswer | Exception, *, after: float = 0) -> None:
        self._answer = answer
        self._after = after

    keeps_questions = False

    def is_available(self) -> bool:
        return True

    async def ask(self, question: UserQuestion) -> PromptAnswer | None:
        await asyncio.sleep(self._after)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


QUESTION = make_question("exec", title="May it?", detail="ls", why="no rule", asker="a test", always=False)
CALL = ToolCall(caller=LOCAL_CALLER, name="system.run", arguments={}, context=NullCallContext())


def test_a_way_to_ask_that_fails_does_not_take_the_answer_of_another_away(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        people = [Person(RuntimeError("a bug")), Person("once", after=0.05)]
        router = PromptRouter(people, seconds=lambda: 5, ask_in_client=lambda: False)

        assert await router.ask(CALL, QUESTION, how_to_allow="") == "once"

    run(work)
    assert "approval question: Person failed" in caplog.text


def test_a_notification_that_fails_unexpectedly_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        node = LocalNode(tmp_path)

        async def fail(*_args: object, **_more: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(node.desktop, "unavailable_reason", lambda: None)
        monkeypatch.setattr(node.desktop, "notify", fail)
        async with node.open():
            node._notify_user("hello")
            await until(lambda: "desktop notification failed" in caplog.text)

    run(work)


def test_leaving_waits_until_every_terminal_has_been_let_go(tmp_path: Path) -> None:
    async def work() -> None:
        prompter = TerminalPrompter(tmp_path)
        async with contextlib.AsyncExitStack() as stack:
            async with prompter.listen():
                await stack.enter_async_context(watch_questions(prompter.path))
                await until(prompter.is_available)

            assert len(asyncio.all_tasks()) == 1
            assert not prompter.is_available()

    run(work)


@contextlib.asynccontextmanager
async def connected_chromium() -> AsyncIterator[tuple[Chromium, socket.socket]]:
    """Chromium's end of the pipe is the test's."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    process = await start_process(["/bin/sleep", "60"])
    chromium = Chromium(process, *await asyncio.open_connection(sock=ours), on_close=lambda: None)
    try:
        yield chromium, theirs
    finally:
        await chromium.kill()
        theirs.close()


def test_an_event_that_cannot_be_handled_does_not_end_the_browser(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with connected_chromium() as (chromium, pipe):

            def read_name(event: CdpMessage) -> None:
                event.params["name"]

            chromium.events.connect(read_name)
            pipe.send(b'{"method":"Page.lifecycleEvent","params":{}}\0')
            calling = asyncio.ensure_future(chromium.call("Browser.getVersion"))
            request = msgspec.json.decode((await asyncio.get_running_loop().sock_recv(pipe, 1000))[:-1])
            pipe.send(msgspec.json.encode({"id": request["id"], "result": {"ok": True}}) + b"\0")

            assert await calling == {"ok": True}
            assert chromium.is_alive

    run(work)
    assert "signal: listener" in caplog.text


def test_a_connection_of_the_proxy_that_fails_unexpectedly_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_data: bytes) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(forward_proxy, "parse_head", fail)

    async def work() -> None:
        proxy = forward_proxy.ForwardProxy(frozenset)
        await proxy.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy._address.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        await proxy.aclose()

    with caplog.at_level(logging.ERROR):
        run(work)
    assert "canvas proxy: connection failed" in caplog.text


def test_settings_of_capabilities_count_without_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        node = LocalNode(tmp_path, NodeSettings(capabilities={"location": True, "camera": True, "tts": True}))
        for latitude in (1.0, 2.0):
            fixed = FixedPosition(latitude=latitude, longitude=0.0)
            node.settings = msgspec.structs.replace(
                node.settings, location_fixed=fixed, camera_source=f"lavfi:color{latitude:g}", tts_provider="elevenlabs"
            )
            found = {name: await call(node, name) for name in ("location.get", "camera.list", "tts.status")}

            assert found["location.get"]["latitude"] == latitude
            assert found["camera.list"]["cameras"][0]["name"] == f"color{latitude:g}"
            assert found["tts.status"]["configuredProvider"] == "elevenlabs"

    run(work)


async def call(node: LocalNode, name: str) -> Json:
    result = await node.tools.call(ToolCall(caller=LOCAL_CALLER, name=name, arguments={}, context=NullCallContext()))
    block = result.content[0]
    assert isinstance(block, Text)
    value: Json = msgspec.json.decode(block.text)
    return value
