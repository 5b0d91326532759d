"""Claude Code: `claude -p`, JSON lines both ways."""

import base64
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ....core.agent import AgentEvent, Model, Thinking, Usage
from ....core.model import Json
from .confinement import PROXIES, chosen, home_of, write_private
from .dialect import CALL_SECONDS, SERVER, Listening, Order, Spoken, count, own_name, part, text_at

logger = logging.getLogger(__name__)

CONFINED: Final = (
    "--setting-sources=",
    "--tools=",
    "--disable-slash-commands",
    "--no-chrome",
    "--permission-mode=dontAsk",
)
"""No settings of a user or project with their hooks and plugins, no built-in tool, no skill or command, no question
that somebody might answer with yes."""
CONFINED_ENV: Final = {
    "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
}
KEPT_SETTINGS: Final = (
    "model", "apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "forceLoginMethod", "forceLoginOrgUUID",
)  # fmt: skip
"""Of a user's settings, what the login and the choice of a model need."""
KEPT_ENV: Final = re.compile(
    rf"(ANTHROPIC|AWS|VERTEX_REGION|GOOGLE)_\w+|CLOUD_ML_REGION|CLAUDE_CODE_(USE|SKIP|API_KEY|OAUTH)_\w+|{PROXIES}",
    re.IGNORECASE,
)
"""The same, of the variables that those settings name."""

STREAM: Final = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")


class Claude:
    """A `Dialect`. Its own servers stay out where strict; of tools, ours are allowed without asking.

    A confined run keeps the user's configuration folder, for on some systems the login is bound to it; flags keep
    everything else in there from being loaded.
    """

    id = "claude"
    title = "Claude Code"
    program = "claude"
    install = "npm install -g @anthropic-ai/claude-code"
    sign_in = "run `claude` once and sign in, or set ANTHROPIC_API_KEY in the agent's runtimeEnv"
    takes: tuple[str, ...] = ("image/",)
    adds_up: tuple[str, ...] = ("cost_usd",)
    note = "CLAUDE.md"
    own_variables = re.compile(r"CLAUDE|MCP_|ENABLE_|DISABLE_")
    kept_variables = re.compile(
        r"CLAUDE_CONFIG_DIR|CLAUDE_CODE_(USE|SKIP|API_KEY|OAUTH|CLIENT|DISABLE|MAX)_\w+|DISABLE_\w+|MCP_(TOOL_)?TIMEOUT"
    )

    def speak(self, order: Order) -> Spoken:
        args = ["-p"]
        if order.server is not None:
            entry: Json = {"type": "stdio", "command": order.server.command, "args": order.server.args, "env": {}}
            # Otherwise the model would have to search for our tools before it knows of them.
            entry |= {"alwaysLoad": True, "timeout": CALL_SECONDS * 1000}
            servers = msgspec.json.encode({"mcpServers": {SERVER: entry}}).decode()
            args += ["--mcp-config", servers, "--allowedTools", f"mcp__{SERVER}"]
        args += [*STREAM, "--include-partial-messages"]
        env: dict[str, str] = {}
        if order.strict:
            args.append("--strict-mcp-config")
            env["ENABLE_CLAUDEAI_MCP_SERVERS"] = "false"  # those of the account it is signed in with
        if order.about:
            path = order.folder / "about.md"
            path.write_text(order.about)
            args += ["--append-system-prompt-file", str(path)]
        if order.session is not None:
            args.append(f"--resume={order.session}")
        if order.model is not None:
            args.append(f"--model={order.model.removeprefix('anthropic/')}")
        if order.effort is not None:
            args += ["--effort", order.effort]
        # Whoever writes must not choose files for it: it would read every `@path` of a message unasked.
        env["CLAUDE_CODE_DISABLE_ATTACHMENTS"] = "1"
        if order.confined is not None:
            settings = write_private(order.folder / "settings.json", msgspec.json.encode(_settings(order)))
            args += [*CONFINED, f"--settings={settings}"]
            env |= CONFINED_ENV
        return Spoken(args=args, env=env, stdin=_message(order))

    def listen(self, order: Order) -> "ClaudeReader":
        return ClaudeReader()

    def after(self, order: Order) -> None:
        return


def _settings(order: Order) -> Json:
    """Of the user's settings what the login needs, and no hooks whatever else is found."""
    folder = order.env.get("CLAUDE_CONFIG_DIR")
    path = (Path(folder) if folder else home_of(order.env) / ".claude") / "settings.json"
    try:
        own = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        own = {}  # it would pass over such a file, too
    named = {name: value for name, value in part(own, "env").items() if KEPT_ENV.fullmatch(name)}
    return {**chosen(own, KEPT_SETTINGS), "env": named, "disableAllHooks": True}


def _message(order: Order) -> bytes:
    content: list[Json] = [
        {
            "type": "image",
            "source": {
                "type": "base64",
                "media_type": mime_type,
                "data": base64.b64encode(path.read_bytes()).decode(),
            },
        }
        for path, mime_type in order.files
    ]
    content.append({"type": "text", "text": order.prompt})
    message = {"type": "user", "message": {"role": "user", "content": content}}
    return msgspec.json.encode(message) + b"\n"


class ClaudeReader(Listening):
    def __init__(self) -> None:
        super().__init__()
        self._streamed = False

    def hear(self, event: Json) -> Iterator[AgentEvent]:
        self.session = text_at(event, "session_id") or self.session
        if event.get("parent_tool_use_id") is not None:
            return  # a sub-agent's talk is between the two of them
        match event.get("type"):
            case "system" if event.get("subtype") == "init":
                _warn(event.get("mcp_servers"))
                yield Model("anthropic", str(event.get("model") or "default"))
            case "stream_event":
                yield from self._stream(part(event, "event"))
            case "assistant":
                yield from self._assistant(part(event, "message"))
            case "user":
                yield from self._results(part(event, "message").get("content"))
            case "result":
                self._result(event)
            case _:
                pass

    def _stream(self, event: Json) -> Iterator[AgentEvent]:
        if event.get("type") == "content_block_start":
            self.pause()
        delta = part(event, "delta")
        if delta.get("type") == "text_delta":
            self._streamed = True
            yield from self.say(delta.get("text"))
        elif delta.get("type") == "thinking_delta" and delta.get("thinking"):
            self._streamed = True
            yield Thinking(str(delta["thinking"]))
        self.stop_reason = {"max_tokens": "length", "refusal": "refusal"}.get(str(delta.get("stop_reason")), "stop")

    def _assistant(self, message: Json) -> Iterator[AgentEvent]:
        if message.get("model") == "<synthetic>":
            return  # an error in the model's place; the result says it as what it is
        for block in _blocks(message.get("content")):
            kind = block.get("type")
            if kind == "tool_use":
                name = own_name(block.get("name"), f"mcp__{SERVER}__")
                yield from self.use(str(block.get("id")), name, block.get("input"))
            elif kind == "text" and not self._streamed:  # it came in pieces, where it comes in pieces
                self.pause()
                yield from self.say(block.get("text"))
            elif kind == "thinking" and not self._streamed and block.get("thinking"):
                yield Thinking(str(block["thinking"]))

    def _results(self, content: Any) -> Iterator[AgentEvent]:
        for block in _blocks(content):
            if block.get("type") == "tool_result":
                failed = bool(block.get("is_error"))
                yield from self.outcome(str(block.get("tool_use_id")), block.get("content"), failed=failed)

    def _result(self, event: Json) -> None:
        usage = part(event, "usage")
        cost = event.get("total_cost_usd", event.get("cost_usd"))
        self.usage = Usage(
            input=count(usage.get("input_tokens")),
            output=count(usage.get("output_tokens")),
            cache_read=count(usage.get("cache_read_input_tokens")),
            cache_write=count(usage.get("cache_creation_input_tokens")),
            cost_usd=float(cost) if isinstance(cost, int | float) else None,
        )
        if event.get("is_error") or str(event.get("subtype", "success")).startswith("error"):
            reasons = [str(reason) for reason in event.get("errors") or ()]
            self.error = text_at(event, "result") or "; ".join(reasons) or str(event.get("subtype"))
        else:
            self.done, self.error = True, None
            self.text = None if self._spoke else text_at(event, "result")


def _warn(servers: Any) -> None:
    for server in _blocks(servers):
        if server.get("name") == SERVER and server.get("status") == "failed":
            logger.warning("Claude Code could not start the gateway's tools and goes on without them")


def _blocks(content: Any) -> list[Json]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
