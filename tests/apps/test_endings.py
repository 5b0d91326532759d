"""However a lent Python function ends, its caller is answered at once."""

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from openclaw_mcp.apps.client import AppTools, Call, Text, ToolError
from tests.apps.proxies import APP_TOKEN, api, call, calling, proxy, text
from tests.running import END_WAIT, READY_WAIT, process, read_line

WAIT = 40.0
HALF = "\ud83d"  # of a character, as cutting a text leaves it


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with proxy() as found:
        yield found


def called(address: str, function: Callable[..., Any], **meta: Any) -> Any:
    """What the caller of this function gets; within less than the time a proxy gives a tool."""

    async def main() -> Any:
        app = AppTools(address, token=APP_TOKEN)
        app.tool(function)
        async with asyncio.timeout(WAIT), app:
            return await calling(app.session.mcp_url, function.__name__, **meta)

    return asyncio.run(main())


class Worse(BaseException):
    """What `except Exception` lets through."""


async def cancelled_inside() -> None:
    inner = asyncio.create_task(asyncio.sleep(WAIT))
    inner.cancel()
    await inner


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(WAIT)


def empty_iterator() -> Any:
    return next(iter(()))


def worse_in_a_thread() -> None:
    raise Worse


async def worse() -> None:
    raise Worse


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (cancelled_inside, "CancelledError"),
        (cancels_itself, "CancelledError"),
        (empty_iterator, "RuntimeError"),
        (worse_in_a_thread, "Worse"),
        (worse, "Worse"),
    ],
)
def test_an_end_that_is_no_ordinary_exception_is_answered_and_logged(
    address: str, caplog: pytest.LogCaptureFixture, function: Callable[..., Any], kind: str
) -> None:
    with caplog.at_level(logging.ERROR):
        result = called(address, function)

    assert result["isError"]
    assert text(result) == f"{function.__name__} failed in the app ({kind}); its log says more"
    assert f"the tool {function.__name__} failed" in caplog.text


LEAVING = """
import asyncio, sys
from openclaw_mcp.apps.client import AppTools

app = AppTools(on_session=lambda session: print(session.mcp_url, flush=True))


def leave() -> None:
    sys.exit(3)


@app.tool
async def leave_too() -> None:
    leave()


app.tool(leave)
asyncio.run(app.run_forever())
"""


@pytest.mark.parametrize("tool", ["leave", "leave_too"])
def test_a_tool_that_ends_the_app_is_answered_and_ends_it(address: str, tool: str) -> None:
    variables = {"OPENCLAW_PROXY_SERVER_URL": address, "OPENCLAW_PROXY_APP_TOKEN": APP_TOKEN}
    with process(sys.executable, "-c", LEAVING, env={**os.environ, **variables}, stdout=subprocess.PIPE) as child:
        url = read_line(child, READY_WAIT).decode().strip()
        connected(address, url)
        assert text(call(url, tool)) == f"{tool} ended the app"
        assert child.wait(END_WAIT) == 3


def connected(address: str, url: str) -> None:
    """Return when calls can arrive."""
    end = time.monotonic() + READY_WAIT
    while not api(address, "GET", f"/{url.rpartition('/')[2]}").json["connected"]:
        assert time.monotonic() < end
        time.sleep(0.05)


def half_result() -> Any:
    return {f"key {HALF}": [f"{HALF} smile", 1, None, b"\xff"]}


def half_text() -> Text:
    return Text(f"smile {HALF}")


def half_error() -> None:
    raise ToolError(f"no file {HALF} here")


def half_progress(call: Call) -> str:
    call.progress(1, message=f"at {HALF}")
    return "there"


def test_half_a_character_in_an_answer_is_replaced(address: str) -> None:
    assert called(address, half_result)["structuredContent"] == {"key \ufffd": ["\ufffd smile", 1, None, "/w=="]}
    assert text(called(address, half_text)) == "smile \ufffd"
    assert text(called(address, half_error)) == "no file \ufffd here"
    messages = called(address, half_progress, progressToken="p")["said"]
    assert [message["params"]["message"] for message in messages] == ["at \ufffd"]
