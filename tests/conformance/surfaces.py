"""Each server of ours that speaks MCP over HTTP, running as a process of its own: its address and its token."""

import asyncio
import contextlib
import itertools
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from openclaw_mcp.apps.calls import Call
from openclaw_mcp.apps.client import AppTools
from openclaw_mcp.core.errors import ToolError
from openclaw_mcp.core.model import Audio, Embedded, Image, Text, ToolResult

from ..apps.proxies import APP_TOKEN, MCP_TOKEN, proxy
from ..gateway.wiring.test_gateway import environment, serving
from ..node.running import running_node
from ..running import OPENCLAW, READY_WAIT, process, read_line
from .everything import PICTURE, SCHEMA_2020_12, WAV, embedded

Place = tuple[str, str]


@contextlib.contextmanager
def node(folder: Path) -> Iterator[Place]:
    with running_node(folder) as running:
        yield running.address, running.token


@contextlib.contextmanager
def order(folder: Path) -> Iterator[Place]:
    # No gateway answers at that port, also while one runs on this machine.
    env = {**environment(folder), "OPENCLAW_GATEWAY_PORT": "1"}
    with process(OPENCLAW, "mcp-server", "--http", "--port", "0", env=env, stdout=subprocess.PIPE) as child:
        address = read_line(child, READY_WAIT).decode().split()[-1]
        yield address, (folder / "gateway-token.txt").read_text().strip()


@contextlib.contextmanager
def gateway(folder: Path) -> Iterator[Place]:
    with serving(folder) as served:
        yield f"{served.http}/mcp", served.token


@contextlib.contextmanager
def app_session(folder: Path) -> Iterator[Place]:
    """The address of an app's session with a proxy; the app lends those tools of the suite that an app can."""
    with proxy() as address:
        app = AppTools(address, token=APP_TOKEN, device="suite")
        _lend_content(app)
        _lend_behaviour(app)
        ready, done, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

        async def lend() -> None:
            async with app:
                ready.set()
                await done.wait()

        thread = threading.Thread(target=lambda: loop.run_until_complete(lend()), daemon=True)
        thread.start()
        assert ready.wait(READY_WAIT)
        try:
            yield app.session.mcp_url, MCP_TOKEN
        finally:
            loop.call_soon_threadsafe(done.set)
            thread.join(READY_WAIT)
            loop.close()


SURFACES: dict[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "node": node,
    "order": order,
    "gateway": gateway,
    "proxy": app_session,
}


def _lend_content(app: AppTools) -> None:
    @app.tool
    def test_simple_text() -> str:
        """The suite's test_simple_text."""
        return "This is a simple text response for testing."

    @app.tool
    def test_image_content() -> Image:
        """The suite's test_image_content."""
        return PICTURE

    @app.tool
    def test_audio_content() -> Audio:
        """The suite's test_audio_content."""
        return Audio(WAV, "audio/wav")

    @app.tool
    def test_embedded_resource() -> Embedded:
        """The suite's test_embedded_resource."""
        return embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")

    @app.tool
    def test_multiple_content_types() -> ToolResult:
        """The suite's test_multiple_content_types."""
        mixed = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
        return ToolResult((Text("Multiple content types test:"), PICTURE, mixed))


def _lend_behaviour(app: AppTools) -> None:
    numbers = itertools.count(1)

    @app.tool
    def test_error_handling() -> str:
        """The suite's test_error_handling."""
        raise ToolError("This tool intentionally returns an error for testing")

    @app.tool
    async def test_tool_with_progress(call: Call) -> str:
        """The suite's test_tool_with_progress."""
        for value in (0, 50, 100):
            call.progress(value, total=100, message=f"step {value}")
            await asyncio.sleep(0.02)  # the TypeScript client drops progress that arrives with the result
        return "done"

    @app.tool(input_schema=SCHEMA_2020_12)
    def json_schema_2020_12_tool() -> str:
        """The suite's json_schema_2020_12_tool."""
        return "ok"

    @app.tool
    async def test_trigger_tool_change() -> str:
        """The suite's test_trigger_tool_change."""
        number = next(numbers)
        app.tool(name=f"added_{number}", description="Not there from the beginning.")(lambda: "ok")
        await app.update()
        return "changed"
