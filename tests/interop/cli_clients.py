"""The four real CLI agents as MCP clients: each is given a server, made by the scripted model to call its tools, and
asked what it saw. Configured the way a user would do it."""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from openclaw_mcp.core.agent import AgentEvent, PartialAnswer, ToolOutcome
from openclaw_mcp.gateway.agents.cli.claude import ClaudeReader
from openclaw_mcp.gateway.agents.cli.codex import CodexReader, to_toml
from openclaw_mcp.gateway.agents.cli.dialect import CliReader
from openclaw_mcp.gateway.agents.cli.gemini import GeminiReader
from openclaw_mcp.gateway.agents.cli.opencode import OpenCodeReader

from ..gateway.agents.cli.scripted_model import (
    ScriptedModel,
    plain,
    read_anthropic,
    read_chat,
    read_gemini,
    read_responses,
)
from .clis import MODEL, environment, program, write

NAME = "subject"
"""What the server under test is called in every CLI's configuration."""
RUN_WAIT = 180.0  # seconds a CLI may take on a busy machine
READERS: dict[str, Callable[[], CliReader[Any]]] = {
    "claude": ClaudeReader,
    "gemini": GeminiReader,
    "codex": CodexReader,
    "opencode": OpenCodeReader,
}


class Server(NamedTuple):
    """Either a command line and its environment, or an address and its token."""

    command: tuple[str, ...] = ()
    env: dict[str, str] = {}  # noqa: RUF012  (a tuple's default, never changed)
    url: str = ""
    token: str = ""


class ClientOutput(NamedTuple):
    declared: set[str]
    """The server's tools as the model was offered them; dots became underscores on the way."""
    outcomes: list[ToolOutcome]
    text: str
    ended: str
    """Exit status and the end of stderr, for a failing test to show."""
    requests: list[Any]
    """What the CLI sent to its own model, in order."""


def ask(cli: str, folder: Path, server: Server, prompt: str) -> ClientOutput:
    """One turn of a CLI with this server."""
    folder.mkdir(parents=True, exist_ok=True)
    with ScriptedModel() as model:
        env = {**path(), **environment(cli, folder / "home", model.url), **_token(server)}
        words = [program(cli, folder), *_configured(cli, folder, server)]
        (folder / "work").mkdir(exist_ok=True)
        status, out, err = run(words, env, folder / "work", prompt)
        declared = {name for request in model.log for name in _declared(cli, request)}
    reader = READERS[cli]()
    events: list[AgentEvent] = []
    for line in out.splitlines():
        if line.startswith("{"):
            events += reader.read_line(line.encode())
    return ClientOutput(
        declared=declared,
        outcomes=[event for event in events if isinstance(event, ToolOutcome)],
        text="".join(event.text for event in events if isinstance(event, PartialAnswer)),
        ended=f"status {status}, error {reader.error}: {err[-2000:]}",
        requests=[body for _, _, body in model.log],
    )


def listed(cli: str, folder: Path, server: Server) -> str:
    """What `CLI mcp list` says; codex does not connect for it."""
    folder.mkdir(parents=True, exist_ok=True)
    env = {**path(), **environment(cli, folder / "home", "http://127.0.0.1:1"), **_token(server)}
    (folder / "work").mkdir(exist_ok=True)
    if cli == "claude":
        write(folder / "home" / ".claude.json", {"mcpServers": {NAME: claude(server)}})
    else:
        _configured(cli, folder, server)
    env |= {"GEMINI_CLI_TRUST_WORKSPACE": "true"} if cli == "gemini" else {}
    _, out, err = run([program(cli, folder), "mcp", "list"], env, folder / "work", "")
    return out + err


def path() -> dict[str, str]:
    return {"PATH": os.environ["PATH"]}


def run(words: list[str], env: dict[str, str], cwd: Path, prompt: str) -> tuple[int, str, str]:
    """A program and everything it starts, until it ends."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=env, cwd=cwd, text=True, start_new_session=True, **pipes) as child:
        try:
            out, err = child.communicate(prompt, timeout=RUN_WAIT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return child.returncode, out, err


# ---- configuration ---------------------------------------------------------------------------------------------------


def claude(server: Server) -> Any:
    if server.url:
        return {"type": "http", "url": server.url, **_headers(server), "alwaysLoad": True}
    command, *args = server.command
    return {"type": "stdio", "command": command, "args": args, "env": server.env, "alwaysLoad": True}


def _configured(cli: str, folder: Path, server: Server) -> list[str]:
    """Write what this CLI reads; the arguments that go with it. The prompt comes on stdin."""
    home = folder / "home"
    match cli:
        case "claude":
            entry = json.dumps({"mcpServers": {NAME: claude(server)}})
            words = ["-p", "--mcp-config", entry, "--allowedTools", f"mcp__{NAME}", "--strict-mcp-config"]
            return [*words, "--output-format", "stream-json", "--verbose"]
        case "gemini":
            settings = json.loads((home / ".gemini" / "settings.json").read_text())
            write(home / ".gemini" / "settings.json", {**settings, "mcpServers": {NAME: _gemini(server)}})
            return ["--model", MODEL["gemini"], "--output-format", "stream-json", "--skip-trust"]
        case "codex":
            path = home / ".codex" / "config.toml"
            lines = [f"{name} = {to_toml(value)}\n" for name, value in _codex(server).items()]
            path.write_text(path.read_text() + f"\n[mcp_servers.{NAME}]\n" + "".join(lines))
            return ["exec", "--json", "--skip-git-repo-check", "-"]
        case _:
            path = home / ".config" / "opencode" / "opencode.json"
            write(path, {**json.loads(path.read_text()), "mcp": {NAME: _opencode(server)}})
            return ["run", "--format", "json"]


def _gemini(server: Server) -> Any:
    if server.url:
        return {"httpUrl": server.url, **_headers(server), "trust": True}
    command, *args = server.command
    return {"command": command, "args": args, "env": server.env, "trust": True}


def _codex(server: Server) -> dict[str, Any]:
    shared = {"required": True, "default_tools_approval_mode": "approve"}
    if server.url:
        return {"url": server.url, **({"bearer_token_env_var": "SUBJECT_TOKEN"} if server.token else {}), **shared}
    command, *args = server.command
    return {"command": command, "args": args, "env": server.env, **shared}


def _opencode(server: Server) -> Any:
    if server.url:
        return {"type": "remote", "url": server.url, **_headers(server), "oauth": False, "enabled": True}
    return {"type": "local", "command": list(server.command), "environment": server.env, "enabled": True}


def _headers(server: Server) -> Any:
    return {"headers": {"Authorization": f"Bearer {server.token}"}} if server.token else {}


def _token(server: Server) -> dict[str, str]:
    return {"SUBJECT_TOKEN": server.token} if server.token else {}


def _declared(cli: str, request: tuple[str, dict[str, str], Any]) -> set[str]:
    _, _, body = request
    match cli:
        case "claude":
            tools = read_anthropic(body).tools
        case "gemini":
            tools = read_gemini(body, "").tools
        case "codex":
            return {name for name, namespace in read_responses(body).tools if namespace == f"mcp__{NAME}"}
        case _:
            tools = read_chat(body).tools
    prefix = re.compile(rf"^(?:mcp__{NAME}__|mcp_{NAME}_|{NAME}_)")
    return {plain(prefix.sub("", name)) for name, _ in tools if prefix.match(name)}
