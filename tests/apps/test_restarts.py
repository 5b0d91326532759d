"""An app and its client across restarts of a real proxy, which is killed: the client keeps its URL."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from openclaw_mcp.apps.client import AppTools, Session
from tests.apps.proxies import APP_TOKEN, MCP_TOKEN, api, call, calling, free_port, proxy, text
from tests.apps.scripts import Start, in_chromium, in_node
from tests.running import OPENCLAW, stdio_server

WAIT = 60.0


@pytest.mark.parametrize("kept", [True, False])
def test_python_functions_are_back_at_the_same_url(
    tmp_path: Path, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also at a proxy that keeps no sessions: the app's secret makes it the same one."""
    port, file = free_port(), str(tmp_path / "sessions.sqlite") if kept else "off"
    sessions: list[Session] = []

    async def main() -> None:
        app = AppTools(f"http://127.0.0.1:{port}", token=APP_TOKEN, device="desk", on_session=sessions.append)

        @app.tool
        def hello() -> str:
            return "hello"

        for restart in range(3):
            with proxy(port, SESSIONS_FILE=file) as address:
                if restart == 0:
                    await app.__aenter__()
                while not api(address, "GET", f"/{app.session.id}").json.get("connected"):  # noqa: ASYNC110  a process
                    await asyncio.sleep(0.05)
                assert text(await calling(sessions[0].mcp_url, "hello")) == "hello"
        assert len(sessions) == 1, "there is no other address to tell"
        assert [record.getMessage() for record in caplog.records].count("app bridge: connected again") == 2
        await app.__aexit__(None, None, None)

    async def bounded() -> None:
        async with asyncio.timeout(WAIT):
            await main()

    asyncio.run(bounded())


@pytest.mark.parametrize("start", [in_node, in_chromium])
@pytest.mark.parametrize("kept", [True, False])
def test_javascript_functions_are_back_at_the_same_url(tmp_path: Path, start: Start, kept: bool) -> None:
    port, file = free_port(), str(tmp_path / "sessions.sqlite") if kept else "off"
    with ExitStack() as first:
        address = first.enter_context(proxy(port, SESSIONS_FILE=file))
        with start(address, APP_TOKEN) as reports:
            url = reports.wait_for("open")["detail"]["mcpUrl"]
            first.close()
            reports.wait_for("disconnected")
            with proxy(port, SESSIONS_FILE=file):
                reports.wait_for("connected")
                assert text(call(url, "add", {"a": 2, "b": 3})) == "5"
            assert len([report for report in reports.seen if report["type"] == "session"]) == 1


def test_a_stdio_client_keeps_the_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, file = free_port(), str(tmp_path / "sessions.sqlite")
    monkeypatch.setenv("OPENCLAW_PROXY_OPENCLAW_TOKEN", MCP_TOKEN)
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    call_add = {"name": "add", "arguments": {"a": 2, "b": 3}}
    with ExitStack() as first:
        address = first.enter_context(proxy(port, SESSIONS_FILE=file))
        with in_node(address, APP_TOKEN) as reports:
            session = reports.wait_for("open")["detail"]["id"]
            words = (OPENCLAW, "proxy", "--stdio", "--proxy-base-url", address, "--session", session)
            with stdio_server(*words) as server:
                server.ask("initialize", hello)
                assert text(server.ask("tools/call", call_add, id=2)["result"]) == "5"
                first.close()
                reports.wait_for("disconnected")
                with proxy(port, SESSIONS_FILE=file):
                    reports.wait_for("connected")
                    assert text(server.ask("tools/call", call_add, id=3)["result"]) == "5"


def test_a_secret_that_the_app_keeps_is_the_same_url_for_its_next_process(tmp_path: Path) -> None:
    async def main(address: str) -> None:
        urls = []
        for _ in range(2):
            async with asyncio.timeout(WAIT), AppTools(address, token=APP_TOKEN, secret="5" * 64) as app:
                urls.append(app.session.mcp_url)
        assert urls[0] == urls[1]

    with proxy() as address:
        asyncio.run(main(address))
