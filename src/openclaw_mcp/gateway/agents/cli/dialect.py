"""What the four CLIs have in common: the turn they are given, the events they print, the errors they report."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from ....core.agent import AgentEvent, PartialAnswer, ToolOutcome, ToolUse, Usage
from ....core.chat_messages import ChatBlock
from ....core.lenient import decode_lenient, read_struct
from ....core.model import Json

SERVER_NAME: Final = "remoteclaw"
"""The name of our own MCP server in every CLI's configuration."""
CONNECT_SECONDS: Final = 30  # seconds a CLI gives our server to start
CALL_SECONDS: Final = 300  # seconds for a call: a tool may wait for another agent's answer
MAX_RESULT_LENGTH: Final = 256 << 10  # characters of a tool's result that a transcript keeps


class McpServerCommand(Struct, frozen=True):
    """An MCP server to be started by the CLI. It holds no secret, so it may be on a command line."""

    command: str
    args: tuple[str, ...] = ()


class CliTurn(Struct, frozen=True, kw_only=True):
    """One turn, as a CLI is given it."""

    prompt: str
    system_prompt: str = ""
    """What else the agent must know: who writes, where, how to answer."""
    session: str | None = None
    model: str | None = None
    effort: Literal["low", "medium", "high"] | None = None
    files: tuple[tuple[Path, str], ...] = ()
    """Attachments it can see, as files in `folder`, with their MIME types."""
    server: McpServerCommand | None = None
    strict: bool = True
    """Whether ours is the only MCP server, also when the CLI's user set up others."""
    folder: Path
    """This run's own, private, removed after it."""
    confined_folder: Path | None = None
    """Set when the CLI may have no tools but our server's and no settings but its login's: see `confinement`. A
    private folder that is kept for the next such run, and where sessions may be stored."""
    conversation_id: str = ""
    """The name of a folder for this session only, for CLIs whose confined runs could read each other's sessions."""
    env: Mapping[str, str]
    """The environment the CLI inherits."""
    cwd: Path

    def model_option(self, provider: str = "") -> list[str]:
        """The argument that chooses the model, if one is chosen, without the provider's prefix."""
        return option("model", None if self.model is None else self.model.removeprefix(provider))

    def write_system_prompt(self) -> str:
        path = self.folder / "about.md"
        path.write_text(self.system_prompt)
        return str(path)


class CliInvocation(Struct, frozen=True, kw_only=True):
    """How to start it. `stdin` is the prompt in the CLI's own format."""

    args: Sequence[str]
    trailing_args: Sequence[str] = ()
    """Arguments that must come after those a person added."""
    env: Mapping[str, str] = {}
    stdin: bytes


class CliAdapter(Protocol):
    """One CLI: its command line, its configuration, its events."""

    id: str
    title: str
    program: str
    install: str
    sign_in: str
    """How a person signs it in."""
    media_types: tuple[str, ...]
    cumulative_usage: tuple[str, ...]
    """Fields of `Usage` that it counts per session, not per turn."""
    instructions_file: str
    """The file of a workspace that holds instructions for it."""
    variable_prefixes: re.Pattern[str]
    """How the names of this CLI's own variables begin."""
    allowed_variables: re.Pattern[str]
    """Those of them that a confined run keeps: how the model is reached, and what makes the CLI do less."""

    def build_invocation(self, cli_turn: CliTurn) -> CliInvocation: ...

    def create_reader(self, cli_turn: CliTurn) -> "CliReader[Any]": ...

    def after_run(self, cli_turn: CliTurn) -> None:
        """Called after the run, while its folder exists: move what belongs to the user back to the user's files."""


def compose_prompt(cli_turn: CliTurn) -> bytes:
    """The prompt for a CLI that takes no separate instructions."""
    instructions = f"<instructions>\n{cli_turn.system_prompt}\n</instructions>\n\n" if cli_turn.system_prompt else ""
    return (instructions + cli_turn.prompt).encode()


class CliError(Struct, frozen=True):
    message: str = ""


CliEvent = TypeVar("CliEvent", bound=Struct)


class CliReader(ABC, Generic[CliEvent]):
    """Reads one run's events and collects their data in its fields."""

    def __init__(self, event_type: type[CliEvent]) -> None:
        self._event_type = event_type
        self.session: str | None = None
        self.done = False
        """Whether the CLI reported that its answer is complete."""
        self.error: str | None = None
        """The last error; None again once the CLI has recovered from it."""
        self.notice: str | None = None
        """The last complaint that stopped nothing: the cause only if nothing else names one."""
        self.stop_reason = "stop"
        self.usage: Usage | None = None
        self.text: str | None = None
        """The answer, if the CLI gave it only at the end."""
        self._has_text = False
        self._needs_break = False
        self._tool_names: dict[str, str] = {}
        self._unnamed_count = 0

    def read_line(self, line: bytes) -> Iterable[AgentEvent]:
        """The events of one line; none of other output."""
        try:
            return self.read_event(decode_lenient(line, self._event_type))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ()

    @abstractmethod
    def read_event(self, event: CliEvent) -> Iterable[AgentEvent]: ...

    def text_events(self, text: str | None) -> Iterator[AgentEvent]:
        if text:
            yield PartialAnswer(("\n\n" if self._has_text and self._needs_break else "") + text)
            self._has_text, self._needs_break = True, False

    def start_paragraph(self) -> None:
        """The next text is a paragraph of its own."""
        self._needs_break = True

    def tool_use_events(self, id: str, name: str, arguments: Any) -> Iterator[AgentEvent]:
        self.start_paragraph()
        self._tool_names[id] = name or "tool"
        yield ToolUse(id, self._tool_names[id], arguments if isinstance(arguments, dict) else {"input": arguments})

    def tool_outcome_events(self, id: str, content: Any, *, failed: bool) -> Iterator[AgentEvent]:
        yield ToolOutcome(id, self._tool_names.get(id, "tool"), to_content_blocks(content), failed=failed)

    def next_id(self) -> str:
        """For a tool call that the CLI gave no id."""
        self._unnamed_count += 1
        return f"item-{self._unnamed_count}"


def option(name: str, value: object) -> list[str]:
    """The argument `--name=value`, unless the value is None."""
    return [] if value is None else [f"--{name}={value}"]


def strip_tool_prefix(name: str, *prefixes: str) -> str:
    """A tool's name; for our own server's tools, without the CLI's prefix."""
    return next((name[len(prefix) :] for prefix in prefixes if name.startswith(prefix)), name)


def to_content_blocks(content: Any) -> tuple[Json, ...]:
    """A tool's result, in any form, as MCP content blocks."""
    if content is None:
        return ()
    if isinstance(content, list):
        return tuple(block for item in content for block in to_content_blocks(item))
    if isinstance(content, dict):
        block = read_struct(content, ChatBlock)
        source = block.source or block
        if block.type == "text":
            content = block.text or ""
        elif block.type in ("image", "audio") and source.data is not None:
            default = "image/png" if block.source else "application/octet-stream"
            mime_type = source.mime_type or source.provider_mime_type or default
            return ({"type": block.type, "data": source.data, "mimeType": mime_type},)
    return ({"type": "text", "text": str(content)[:MAX_RESULT_LENGTH]},)


# ---- failures --------------------------------------------------------------------------------------------------------

CliErrorKind = Literal["store", "resume", "context", "rate", "auth", "network", "server", "other"]

_ERROR_PATTERNS: Final[tuple[tuple[CliErrorKind, str], ...]] = (
    ("store", r"failed query:\s*(?:create|alter|drop)\s|database is locked"),  # two first starts of OpenCode at once
    (
        "resume",
        r"no conversation found|session not found|no (?:saved )?session|no rollout|error resuming|"
        r"invalid session identifier|could not find session|thread not found|conversation not found",
    ),
    (
        "context",
        r"context[ _-]?(?:length|window|overflow)|prompt is too long|too many tokens|maximum context|"
        r"token (?:count|limit)|input is too long",
    ),
    (
        "rate",
        r"rate[ _-]?limit|\b429\b|\b529\b|\b503\b|quota|resource[ _]?exhausted|too many requests|overloaded|"
        r"usage limit|high demand",
    ),
    (
        "auth",
        r"\b401\b|\b403\b|unauthori[sz]ed|forbidden|invalid (?:x-)?api[ _-]?key|incorrect api key|"
        r"api key not valid|authentication|not logged in|please run /login|set an auth method|auth method|"
        r"permission_error|missing environment variable",
    ),
    ("server", r"required mcp servers? failed"),
    (
        "network",
        r"econnrefused|econnreset|etimedout|enotfound|connection (?:refused|reset|error)|network|fetch failed|"
        r"error sending request|socket hang up|unable to connect",
    ),
)
_COMPILED_PATTERNS: Final = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _ERROR_PATTERNS)


def classify_error(text: str) -> CliErrorKind:
    """The kind of an error text: the first whose pattern matches."""
    return next((kind for kind, pattern in _COMPILED_PATTERNS if pattern.search(text)), "other")
