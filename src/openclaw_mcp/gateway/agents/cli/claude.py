"""Claude Code: `claude -p`, JSON lines both ways."""

import base64
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from ....core.agent import AgentEvent, ModelSelected, ThinkingText, Usage
from ....core.model import Json
from ....protocol.anthropic_events import AnthropicBlock, AnthropicEvent
from . import dialect
from .confinement import PROXY_VARIABLES, home_folder, object_at, pick_settings, write_private_file

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

    def build_invocation(self, cli_turn: dialect.CliTurn) -> dialect.CliInvocation:
        args = ["-p"]
        if cli_turn.server is not None:
            entry: Json = {"type": "stdio", "command": cli_turn.server.command, "args": cli_turn.server.args, "env": {}}
            # Otherwise the model would have to search for our tools before it can call them.
            entry |= {"alwaysLoad": True, "timeout": dialect.CALL_SECONDS * 1000}
            servers = msgspec.json.encode({"mcpServers": {dialect.SERVER_NAME: entry}}).decode()
            args += ["--mcp-config", servers, "--allowedTools", f"mcp__{dialect.SERVER_NAME}"]
        args += [*STREAM_ARGS, "--include-partial-messages"]
        env: dict[str, str] = {}
        if cli_turn.strict:
            args.append("--strict-mcp-config")
            env["ENABLE_CLAUDEAI_MCP_SERVERS"] = "false"  # those of the account it is signed in with
        if cli_turn.system_prompt:
            args += ["--append-system-prompt-file", cli_turn.write_system_prompt()]
        args += [*dialect.option("resume", cli_turn.session), *cli_turn.model_option("anthropic/")]
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
        return dialect.CliInvocation(args=args, env=env, stdin=_encode_message(cli_turn))

    def create_reader(self, cli_turn: dialect.CliTurn) -> "ClaudeReader":
        return ClaudeReader()

    def after_run(self, cli_turn: dialect.CliTurn) -> None:
        return


def _build_settings(cli_turn: dialect.CliTurn) -> Json:
    """The settings of the user that the login needs, and no hooks."""
    folder = cli_turn.env.get("CLAUDE_CONFIG_DIR")
    path = (Path(folder) if folder else home_folder(cli_turn.env) / ".claude") / "settings.json"
    try:
        own = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        own = {}  # it ignores such a file, too
    env = {name: value for name, value in object_at(own, "env").items() if KEPT_ENV.fullmatch(name)}
    return {**pick_settings(own, KEPT_SETTINGS), "env": env, "disableAllHooks": True}


def _encode_message(cli_turn: dialect.CliTurn) -> bytes:
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


class _Message(Struct, frozen=True):
    model: str | None = None
    content: str | tuple[AnthropicBlock, ...] = ()

    @property
    def blocks(self) -> tuple[AnthropicBlock, ...]:
        return self.content if isinstance(self.content, tuple) else ()


class _TokenCounts(Struct, frozen=True):
    input_tokens: float = 0
    output_tokens: float = 0
    cache_read_input_tokens: float = 0
    cache_creation_input_tokens: float = 0


class _Server(Struct, frozen=True):
    name: str = ""
    status: str = ""


class _Event(Struct, frozen=True):
    type: str = ""
    subtype: str = "success"
    session_id: str | None = None
    parent_tool_use_id: Any = None
    model: str | None = None
    mcp_servers: tuple[_Server, ...] = ()
    event: AnthropicEvent = AnthropicEvent()
    message: _Message = _Message()
    usage: _TokenCounts = _TokenCounts()
    total_cost_usd: float | None = None
    cost_usd: float | None = None
    is_error: Any = False
    """Any value that counts as true: one of another type must not turn a failure into an answer."""
    errors: tuple[Any, ...] = ()
    result: str | None = None


class ClaudeReader(dialect.CliReader[_Event]):
    def __init__(self) -> None:
        super().__init__(_Event)
        self._streamed = False

    def read_event(self, event: _Event) -> Iterator[AgentEvent]:
        self.session = event.session_id or self.session
        if event.parent_tool_use_id is not None:
            return  # events of a sub-agent
        match event.type:
            case "system" if event.subtype == "init":
                if _Server(dialect.SERVER_NAME, "failed") in event.mcp_servers:
                    logger.warning(
                        "claude: the gateway's MCP server could not be started, the run has none of its tools"
                    )
                yield ModelSelected("anthropic", event.model or "default")
            case "stream_event":
                yield from self._stream(event.event)
            case "assistant" if event.message.model != "<synthetic>":  # else an error, which the result event reports
                yield from self._assistant(event.message)
            case "user":
                for block in event.message.blocks:
                    if block.type == "tool_result":
                        yield from self.tool_outcome_events(block.tool_use_id, block.content, failed=block.is_error)
            case "result":
                self._result(event)

    def _stream(self, event: AnthropicEvent) -> Iterator[AgentEvent]:
        if event.type == "content_block_start":
            self.start_paragraph()
        delta = event.delta or AnthropicBlock()
        if delta.type == "text_delta":
            self._streamed = True
            yield from self.text_events(delta.text)
        elif delta.type == "thinking_delta" and delta.thinking:
            self._streamed = True
            yield ThinkingText(delta.thinking)
        self.stop_reason = {"max_tokens": "length", "refusal": "refusal"}.get(delta.stop_reason or "", "stop")

    def _assistant(self, message: _Message) -> Iterator[AgentEvent]:
        for block in message.blocks:
            if block.type == "tool_use":
                name = dialect.strip_tool_prefix(block.name, f"mcp__{dialect.SERVER_NAME}__")
                yield from self.tool_use_events(block.id, name, block.input)
            elif block.type == "text" and not self._streamed:  # else it came in pieces before
                self.start_paragraph()
                yield from self.text_events(block.text)
            elif block.type == "thinking" and not self._streamed and block.thinking:
                yield ThinkingText(block.thinking)

    def _result(self, event: _Event) -> None:
        counts = event.usage
        self.usage = Usage.from_report(
            input=counts.input_tokens,
            output=counts.output_tokens,
            cache_read=counts.cache_read_input_tokens,
            cache_write=counts.cache_creation_input_tokens,
            cost_usd=event.cost_usd if event.total_cost_usd is None else event.total_cost_usd,
        )
        if event.is_error or event.subtype.startswith("error"):
            self.error = event.result or "; ".join(map(str, event.errors)) or event.subtype
        else:
            self.done, self.error = True, None
            self.text = None if self._has_text else event.result
