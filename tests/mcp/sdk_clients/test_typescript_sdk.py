"""The official TypeScript client 1.x and the MCP Inspector's command line, over both transports."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.programs import need_node, need_npm
from tests.running import OPENCLAW, ROOT, everything_over_http

WAIT = 120.0
TOUR = Path(__file__).parent / "typescript" / "tour.mjs"
STDIO = [sys.executable, "-m", "tests.mcp.server.everything_stdio"]


def run(*words: str) -> Any:
    result = subprocess.run([need_node(), *words], capture_output=True, text=True, timeout=WAIT, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def check(report: Any) -> None:
    assert "greet" in report["tools"]
    assert report["said"] == "Hello, Ada!"
    assert report["wrong"] is True
    assert "ada" in report["asked"]
    # The SDK drops a progress message that it reads together with the call's result: the last, on a busy machine.
    assert report["progress"] in ([0, 50], [0, 50, 100])
    assert "static text" in report["resource"]
    assert "simple prompt" in report["prompt"]


def test_the_typescript_client_over_http() -> None:
    sdk = need_npm("@modelcontextprotocol/sdk")
    with everything_over_http() as address:
        check(run(str(TOUR), str(sdk), "http", address))


def test_the_typescript_client_over_stdio() -> None:
    check(run(str(TOUR), str(need_npm("@modelcontextprotocol/sdk")), "stdio", *STDIO))


def inspect(*words: str) -> Any:
    launcher = need_npm("@modelcontextprotocol/inspector") / "clients" / "launcher" / "build" / "index.js"
    return run(str(launcher), "--cli", *words)


def test_the_inspector_lists_and_calls_over_stdio() -> None:
    assert [tool["name"] for tool in inspect(OPENCLAW, "echo", "--method", "tools/list")["tools"]] == ["echo"]
    called = inspect(
        OPENCLAW, "echo", "--method", "tools/call", "--tool-name", "echo", "--tool-arg", "text=seen by the inspector"
    )
    assert called["content"][0]["text"] == "seen by the inspector"


def test_the_inspector_lists_over_http() -> None:
    with everything_over_http() as address:
        listed = inspect(address, "--transport", "http", "--method", "tools/list")

    assert "greet" in {tool["name"] for tool in listed["tools"]}
