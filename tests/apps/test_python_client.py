"""Python functions lent through a real proxy, called by a real MCP client's bytes."""

import asyncio
import base64
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from openclaw_mcp.apps.client import (
    AppTools,
    BadRequest,
    Call,
    Image,
    ProxyRefused,
    ProxyUnreachable,
    Session,
    SessionDeleted,
    Text,
    ToolError,
    ToolResult,
)
from tests.apps.proxies import APP_TOKEN, api, ask_and_leave, calling, free_port, proxy, text, tools

WAIT = 20.0
PIXEL = b"\x89PNG pretend \x00\xff"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with proxy() as found:
        yield found


def bounded(main: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(3 * WAIT):
            await main

    asyncio.run(run())


@dataclass
class Point:
    x: int
    y: int = 0


@asynccontextmanager
async def open_app(address: str, *functions: Callable[..., Any], **options: Any) -> AsyncIterator[AppTools]:
    app = AppTools(address, token=APP_TOKEN, device="desk", **options)
    for function in functions:
        app.tool(function)
    async with app:
        yield app


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110  the other process has no event to wait for
            await asyncio.sleep(0.02)


# ---- results ----


def test_a_function_is_listed_with_its_schema_and_called_with_typed_values(address: str) -> None:
    def move(point: Point, by: int = 1) -> Point:
        """Move a point.

        Args:
            by: how far
        """
        assert isinstance(point, Point)
        return Point(point.x + by, point.y + by)

    async def main() -> None:
        async with open_app(address, move) as app:
            (listed,) = await asyncio.to_thread(tools, app.session.mcp_url)
            assert listed["description"] == "Move a point."
            assert listed["inputSchema"]["properties"]["by"] == {
                "type": "integer",
                "description": "how far",
                "default": 1,
            }
            assert listed["inputSchema"]["required"] == ["point"]

            result = await calling(app.session.mcp_url, "move", {"point": {"x": 1}, "by": 2})
            assert result["structuredContent"] == {"x": 3, "y": 2}

            refused = await calling(app.session.mcp_url, "move", {"point": {"x": "one"}})
            assert refused["isError"]

    bounded(main())


@pytest.mark.parametrize(
    ("value", "expected"),
    [("word", "word"), (7, "7"), (1.5, "1.5"), (True, "true"), (None, "null"), ([1, "a"], '[1,"a"]'), ([], "[]")],
)
def test_any_json_comes_back_as_text(address: str, value: Any, expected: str) -> None:
    async def answer() -> Any:
        return value

    async def main() -> None:
        async with open_app(address, answer) as app:
            assert text(await calling(app.session.mcp_url, "answer")) == expected

    bounded(main())


def test_pictures_and_whole_results_pass_as_content_blocks(address: str) -> None:
    async def picture() -> Image:
        return Image(PIXEL, "image/png")

    async def mixed() -> list[Any]:
        return ["before", Image(PIXEL, "image/png"), {"after": 1}]

    async def whole() -> ToolResult:
        return ToolResult((Text("no such page"),), failed=True)

    async def main() -> None:
        async with open_app(address, picture, mixed, whole) as app:
            url = app.session.mcp_url
            (block,) = (await calling(url, "picture"))["content"]
            assert (block["type"], block["mimeType"]) == ("image", "image/png")
            assert base64.b64decode(block["data"]) == PIXEL

            first, second, third = (await calling(url, "mixed"))["content"]
            assert (first["text"], second["type"], third["text"]) == ("before", "image", '{"after":1}')

            result = await calling(url, "whole")
            assert (text(result), result["isError"]) == ("no such page", True)

    bounded(main())


def test_a_tool_error_reaches_the_caller_and_any_other_error_stays_in_the_log(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def polite() -> None:
        raise ToolError("the printer is out of paper; fill it")

    def clumsy() -> None:
        raise ValueError("password is hunter2")

    async def main() -> None:
        async with open_app(address, polite, clumsy) as app:
            result = await calling(app.session.mcp_url, "polite")
            assert (text(result), result["isError"]) == ("the printer is out of paper; fill it", True)

            with caplog.at_level(logging.ERROR):
                result = await calling(app.session.mcp_url, "clumsy")
            assert text(result) == "clumsy failed in the app (ValueError); its log says more"
            assert "hunter2" in caplog.text

    bounded(main())


def test_what_json_cannot_carry_fails_that_call_only(address: str) -> None:
    async def odd() -> Any:
        return object()

    async def main() -> None:
        async with open_app(address, odd) as app:
            for _ in range(2):
                assert "TypeError" in text(await calling(app.session.mcp_url, "odd"))

    bounded(main())


def test_a_function_that_returns_an_awaitable_is_awaited(address: str) -> None:
    async def answer(word: str) -> str:
        return word

    async def main() -> None:
        app = AppTools(address, token=APP_TOKEN)
        app.tool(name="wrapped")(lambda: answer("awaited"))
        async with app:
            assert text(await calling(app.session.mcp_url, "wrapped")) == "awaited"

    bounded(main())


# ---- while a call runs ----


@pytest.mark.parametrize("threaded", [False, True], ids=["async", "thread"])
def test_progress_reaches_the_caller_before_the_result(address: str, threaded: bool) -> None:
    async def walk(call: Call) -> str:
        call.progress(1, total=2, message="half way")
        return "there"

    def plod(call: Call) -> str:
        call.progress(1, total=2, message="half way")
        return "there"

    async def main() -> None:
        function = plod if threaded else walk
        async with open_app(address, function) as app:
            result = await calling(app.session.mcp_url, function.__name__, progressToken="p")
            (notification,) = result["said"]
            assert notification["params"]["progress"] == 1
            assert notification["params"]["message"] == "half way"
            assert text(result) == "there"

    bounded(main())


def test_a_caller_who_goes_away_cancels_the_function(address: str) -> None:
    ended, stopped = asyncio.Event(), threading.Event()
    started, in_thread = threading.Event(), threading.Event()

    async def sleepy() -> None:
        started.set()
        try:
            await asyncio.sleep(3 * WAIT)
        finally:
            ended.set()

    def busy(call: Call) -> None:
        in_thread.set()
        while not call.cancelled and not stopped.wait(0.01):
            pass
        stopped.set()

    async def main() -> None:
        async with open_app(address, sleepy, busy) as app:
            url = app.session.mcp_url
            async with asyncio.timeout(WAIT):
                await asyncio.to_thread(ask_and_leave, url, "sleepy", lambda: started.wait(WAIT))
                await ended.wait()
                await asyncio.to_thread(ask_and_leave, url, "busy", lambda: in_thread.wait(WAIT))
                await asyncio.to_thread(stopped.wait, WAIT)
            assert stopped.is_set()

    bounded(main())


def test_no_more_calls_run_at_once_than_agreed(address: str) -> None:
    running, most = 0, 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1

    async def main() -> None:
        async with open_app(address, work, at_once=2) as app:
            await asyncio.gather(*(calling(app.session.mcp_url, "work") for _ in range(8)))

    bounded(main())
    assert most == 2


def test_a_plain_function_does_not_hold_up_the_others(address: str) -> None:
    release = threading.Event()

    def block() -> str:
        return "free" if release.wait(WAIT) else "stuck"

    async def quick() -> str:
        return "quick"

    async def main() -> None:
        async with open_app(address, block, quick) as app:
            blocked = asyncio.create_task(calling(app.session.mcp_url, "block"))
            assert text(await calling(app.session.mcp_url, "quick")) == "quick"
            release.set()
            assert text(await blocked) == "free"

    bounded(main())


# ---- tools that come and go ----


def test_tools_change_while_lent(address: str) -> None:
    async def first() -> int:
        return 1

    async def main() -> None:
        async with open_app(address, first) as app:

            @app.tool(name="second.one", description="The second.", annotations={"readOnlyHint": True})
            async def second() -> int:
                return 2

            app.remove("first")
            await app.update()

            (listed,) = await asyncio.to_thread(tools, app.session.mcp_url)
            assert (listed["name"], listed["description"]) == ("second.one", "The second.")
            assert listed["annotations"] == {"readOnlyHint": True}
            assert text(await calling(app.session.mcp_url, "second.one")) == "2"

    bounded(main())


def test_a_function_that_cannot_be_a_tool_is_refused_with_a_sentence() -> None:
    app = AppTools("http://127.0.0.1:1")

    def stars(*words: str) -> None: ...

    def strange(thing: threading.Event) -> None: ...

    def fine() -> None: ...

    with pytest.raises(BadRequest, match="stars: `words` can't be filled by name"):
        app.tool(stars)
    with pytest.raises(BadRequest, match="strange: `thing` is of type Event, which JSON can't carry"):
        app.tool(strange)
    app.tool(fine)
    with pytest.raises(BadRequest, match="'fine' is lent already"):
        app.tool(fine)


# ---- trouble ----


def test_a_wrong_token_is_reported_at_once(address: str) -> None:
    async def main() -> None:
        with pytest.raises(ProxyRefused, match="401"):
            async with AppTools(address, token="wrong"):
                pass

    bounded(main())


def test_a_tool_the_proxy_refuses_is_named(address: str) -> None:
    async def main() -> None:
        app = AppTools(address, token=APP_TOKEN)
        app.tool(name="no spaces")(lambda: None)
        with pytest.raises(ProxyRefused, match=r"422.*name"):
            async with app:
                pass

    bounded(main())


def test_a_missing_proxy_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.apps.client.FIRST_CONNECTION", 1.0)

    async def main() -> None:
        with pytest.raises(ProxyUnreachable, match=r"no proxy took the bridge within 1 s: no proxy answers at http"):
            async with AppTools(f"http://127.0.0.1:{free_port()}"):
                pass

    bounded(main())


def test_another_server_than_a_proxy_is_reported_in_a_sentence(address: str) -> None:
    async def main() -> None:
        with pytest.raises(ProxyRefused, match="is no app-tool proxy; give the address of one"):
            async with AppTools(f"{address}/nowhere", token=APP_TOKEN):
                pass

    bounded(main())


def test_one_object_lends_one_session_at_a_time(address: str) -> None:
    async def main() -> None:
        app = AppTools(address, token=APP_TOKEN)
        with pytest.raises(BadRequest, match="nothing is lent"):
            await app.wait()
        async with app:
            first = app.session.id
            with pytest.raises(BadRequest, match="lent already"):
                await app.__aenter__()
            waiting = asyncio.create_task(app.wait())
            await asyncio.sleep(0)
        await waiting
        async with app:
            assert app.session.id == first, "its secret is the same"

    bounded(main())


def test_a_deleted_session_ends_the_lending(address: str) -> None:
    async def main() -> None:
        with pytest.raises(SessionDeleted):
            async with open_app(address) as app:
                await asyncio.to_thread(api, address, "DELETE", f"/{app.session.id}")
                await app.wait()

    bounded(main())


def test_leaving_takes_the_session_away(address: str) -> None:
    async def main() -> None:
        async with open_app(address) as app:
            id = app.session.id
            assert (await asyncio.to_thread(api, address, "GET", f"/{id}")).status == 200
        assert (await asyncio.to_thread(api, address, "GET", f"/{id}")).status == 404

    bounded(main())


def test_a_proxy_that_comes_back_is_found_again_and_the_tools_are_registered_again() -> None:
    port = free_port()
    sessions: list[Session] = []
    running, ended = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        running.set()
        try:
            await asyncio.sleep(3 * WAIT)
        finally:
            ended.set()

    async def hello() -> str:
        return "hello again"

    async def main() -> None:
        app = AppTools(f"http://127.0.0.1:{port}", token=APP_TOKEN, on_session=sessions.append)
        app.tool(slow)
        app.tool(hello)
        lending = asyncio.create_task(app.run_forever())
        with proxy(port):
            await until(lambda: bool(sessions))
            waiting = asyncio.create_task(calling(sessions[0].mcp_url, "slow"))
            await running.wait()
        with pytest.raises((OSError, AssertionError)):  # its connection broke
            await waiting
        await ended.wait()  # the call can't be answered any more, so it does not run on
        with proxy(port):
            url = f"http://127.0.0.1:{port}"
            await until(lambda: api(url, "GET", f"/{sessions[0].id}").json.get("connected", False))
            assert text(await calling(sessions[0].mcp_url, "hello")) == "hello again"
            assert len(sessions) == 1, "its address is the same, and was reported already"
            lending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lending
            assert api(f"http://127.0.0.1:{port}", "GET", "").json == {"sessions": []}

    bounded(main())


def test_two_apps_do_not_meet(address: str) -> None:
    async def who_one() -> str:
        return "one"

    async def who_two() -> str:
        return "two"

    async def main() -> None:
        async with open_app(address, who_one) as one, open_app(address, who_two) as two:
            assert one.session.id != two.session.id
            assert text(await calling(one.session.mcp_url, "who_one")) == "one"
            assert text(await calling(two.session.mcp_url, "who_two")) == "two"

    bounded(main())
