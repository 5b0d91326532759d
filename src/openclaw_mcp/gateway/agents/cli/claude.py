"""Claude Code: `claude -p`, JSON lines both ways."""

import base64
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ....core.agent import AgentEvent, ModelSelected, ThinkingText, Usage
from ....core.model import Json
from ....core.numbers import read_count
from .confinement import PROXY_VARIABLES, home_folder, pick_settings, write_private_file
from .dialect import (
    CALL_SECONDS,
    SERVER_NAME,
    CliInvocation,
    CliReaderState,
    CliTurn,
    object_at,
    option,
    strip_tool_prefix,
    text_at,
)

logger = logging.getLogger(__name__)

CONFINED_ARGS: Final = (
    "--setting-sources=",
    "--tools=",
    "--disable-slash-commands",
    "--no-chrome",
    "--permission-mode=dontAsk",
)
"""No settings of a user or project with their hooks and plugins, no built-in tool, no skill or command, no question."""
CONFINED_ENV: Final = {
    "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
}
KEPT_SETTINGS: Final = (
    "model", "apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "forceLoginMethod", "forceLoginOrgUUID",
)  # fmt: skip
"""Settings of the user that the login and the choice of a model need."""
KEPT_ENV: Final = re.compile(
    rf"(ANTHROPIC|AWS|VERTEX_REGION|GOOGLE)_\w+|CLOUD_ML_REGION|CLAUDE_CODE_(USE|SKIP|API_KEY|OAUTH)_\w+|{PROXY_VARIABLES}",
    re.IGNORECASE,
)
"""The same, for variables set in those settings."""

STREAM_ARGS: Final = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")


class ClaudeAdapter:
    """With `strict`, no other MCP servers; our tools are allowed without asking.

    A confined run keeps the user's configuration folder, because on some systems the login is bound to it; flags keep
    everything else in it from being loaded.
    """

    id = "claude"
    title = "Claude Code"
    program = "claude"
    install = "npm install -g @anthropic-ai/claude-code"
    sign_in = "run `claude` once and sign in, or set ANTHROPIC_API_KEY in the agent's runtimeEnv"
    media_types: tuple[str, ...] = ("image/",)
    cumulative_usage: tuple[str, ...] = ("cost_usd",)
    instructions_file = "CLAUDE.md"
    variable_prefixes = re.compile(r"CLAUDE|MCP_|ENABLE_|DISABLE_")
    allowed_variables = re.compile(
        r"CLAUDE_CONFIG_DIR|CLAUDE_CODE_(USE|SKIP|API_KEY|OAUTH|CLIENT|DISABLE|MAX)_\w+|DISABLE_\w+|MCP_(TOOL_)?TIMEOUT"
    )

    def build_invocation(self, cli_turn: CliTurn) -> CliInvocation:
        args = ["-p"]
        if cli_turn.server is not None:
            entry: Json = {"type": "stdio", "command": cli_turn.server.command, "args": cli_turn.server.args, "env": {}}
            # Otherwise the model would have to search for our tools before it can call them.
            entry |= {"alwaysLoad": True, "timeout": CALL_SECONDS * 1000}
            servers = msgspec.json.encode({"mcpServers": {SERVER_NAME: entry}}).decode()
            args += ["--mcp-config", servers, "--allowedTools", f"mcp__{SERVER_NAME}"]
        args += [*STREAM_ARGS, "--include-partial-messages"]
        env: dict[str, str] = {}
        if cli_turn.strict:
            args.append("--strict-mcp-config")
            env["ENABLE_CLAUDEAI_MCP_SERVERS"] = "false"  # those of the account it is signed in with
        if cli_turn.system_prompt:
            args += ["--append-system-prompt-file", cli_turn.write_system_prompt()]
        args += [*option("resume", cli_turn.session), *cli_turn.model_option("anthropic/")]
        if cli_turn.effort is not None:
            args += ["--effort", cli_turn.effort]
        # Otherwise it would read every `@path` in a message, and its sender could choose files to read.
        env["CLAUDE_CODE_DISABLE_ATTACHMENTS"] = "1"
        if cli_turn.confined_folder is not None:
            settings = write_private_file(
                cli_turn.folder / "settings.json", msgspec.json.encode(_build_settings(cli_turn))
            )
            args += [*CONFINED_ARGS, f"--settings={settings}"]
            env |= CONFINED_ENV
        return CliInvocation(args=args, env=env, stdin=_encode_message(cli_turn))

    def create_reader(self, cli_turn: CliTurn) -> "ClaudeReader":
        return ClaudeReader()

    def after_run(self, cli_turn: CliTurn) -> None:
        return


def _build_settings(cli_turn: CliTurn) -> Json:
    """The settings of the user that the login needs, and no hooks."""
    folder = cli_turn.env.get("CLAUDE_CONFIG_DIR")
    path = (Path(folder) if folder else home_folder(cli_turn.env) / ".claude") / "settings.json"
    try:
        own = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        own = {}  # it ignores such a file, too
    env = {name: value for name, value in object_at(own, "env").items() if KEPT_ENV.fullmatch(name)}
    return {**pick_settings(own, KEPT_SETTINGS), "env": env, "disableAllHooks": True}


def _encode_message(cli_turn: CliTurn) -> bytes:
    content: list[Json] = [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": mime_type, "data": base64.b64encode(path.read_bytes()).decode()},
        }
        for path, mime_type in cli_turn.files
    ]
    content.append({"type": "text", "text": cli_turn.prompt})
    message = {"type": "user", "message": {"role": "user", "content": content}}
    return msgspec.json.encode(message) + b"\n"


class ClaudeReader(CliReaderState):
    def __init__(self) -> None:
        super().__init__()
        self._streamed = False

    def read_event(self, event: Json) -> Iterator[AgentEvent]:
        self.session = text_at(event, "session_id") or self.session
        if event.get("parent_tool_use_id") is not None:
            return  # events of a sub-agent
        match event.get("type"):
            case "system" if event.get("subtype") == "init":
                _warn_failed_server(event.get("mcp_servers"))
                yield ModelSelected("anthropic", str(event.get("model") or "default"))
            case "stream_event":
                yield from self._stream(object_at(event, "event"))
            case "assistant":
                yield from self._assistant(object_at(event, "message"))
            case "user":
                yield from self._results(object_at(event, "message").get("content"))
            case "result":
                self._result(event)
            case _:
                pass

    def _stream(self, event: Json) -> Iterator[AgentEvent]:
        if event.get("type") == "content_block_start":
            self.start_paragraph()
        delta = object_at(event, "delta")
        if delta.get("type") == "text_delta":
            self._streamed = True
            yield from self.text_events(delta.get("text"))
        elif delta.get("type") == "thinking_delta" and delta.get("thinking"):
            self._streamed = True
            yield ThinkingText(str(delta["thinking"]))
        self.stop_reason = {"max_tokens": "length", "refusal": "refusal"}.get(str(delta.get("stop_reason")), "stop")

    def _assistant(self, message: Json) -> Iterator[AgentEvent]:
        if message.get("model") == "<synthetic>":
            return  # an error message in place of an answer; the result event reports it
        for block in _object_list(message.get("content")):
            kind = block.get("type")
            if kind == "tool_use":
                name = strip_tool_prefix(block.get("name"), f"mcp__{SERVER_NAME}__")
                yield from self.tool_use_events(str(block.get("id")), name, block.get("input"))
            elif kind == "text" and not self._streamed:  # else it came in pieces before
                self.start_paragraph()
                yield from self.text_events(block.get("text"))
            elif kind == "thinking" and not self._streamed and block.get("thinking"):
                yield ThinkingText(str(block["thinking"]))

    def _results(self, content: Any) -> Iterator[AgentEvent]:
        for block in _object_list(content):
            if block.get("type") == "tool_result":
                failed = bool(block.get("is_error"))
                yield from self.tool_outcome_events(str(block.get("tool_use_id")), block.get("content"), failed=failed)

    def _result(self, event: Json) -> None:
        usage = object_at(event, "usage")
        cost = event.get("total_cost_usd", event.get("cost_usd"))
        self.usage = Usage(
            input=read_count(usage.get("input_tokens")),
            output=read_count(usage.get("output_tokens")),
            cache_read=read_count(usage.get("cache_read_input_tokens")),
            cache_write=read_count(usage.get("cache_creation_input_tokens")),
            cost_usd=float(cost) if isinstance(cost, int | float) else None,
        )
        if event.get("is_error") or str(event.get("subtype", "success")).startswith("error"):
            reasons = [str(reason) for reason in event.get("errors") or ()]
            self.error = text_at(event, "result") or "; ".join(reasons) or str(event.get("subtype"))
        else:
            self.done, self.error = True, None
            self.text = None if self._has_text else text_at(event, "result")


def _warn_failed_server(servers: Any) -> None:
    for server in _object_list(servers):
        if server.get("name") == SERVER_NAME and server.get("status") == "failed":
            logger.warning("claude: the gateway's MCP server could not be started, the run continues without its tools")


def _object_list(content: Any) -> list[Json]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
