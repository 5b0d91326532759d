"""Codex: `codex exec --json`, configured by `-c` arguments."""

import json
import logging
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, time
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from ....core.agent import AgentEvent, ModelSelected, ThinkingText, Usage
from ....core.model import Json
from . import confinement, dialect
from .confinement import object_at

logger = logging.getLogger(__name__)

HOME_VARIABLE: Final = "CODEX_HOME"
SYSTEM_CONFIG: Final = Path("/etc/codex/config.toml")
MANAGED_CONFIG: Final = Path("/etc/codex/managed_config.toml")
"""Its settings override every `-c`."""
UNSAFE_SETTINGS: Final = (
    "mcp_servers",
    "features",
    "hooks",
    "plugins",
    "permissions",
    "default_permissions",
    "sandbox_mode",
)
"""Settings in it that would give a confined run tools, or files."""
LOGIN_FILES: Final = ("auth.json", "installation_id", "models_cache.json")
"""What a confined run sees of the user's folder: the login, and the list of models."""
KEPT_SETTINGS: Final = (
    "model", "model_provider", "model_providers", "model_reasoning_effort", "model_reasoning_summary",
    "model_verbosity", "model_context_window", "model_auto_compact_token_limit",
    "service_tier", "openai_base_url", "chatgpt_base_url", "oss_provider",
    "forced_login_method", "forced_chatgpt_workspace_id", "cli_auth_credentials_store", "analytics",
    "check_for_update_on_startup",
)  # fmt: skip
"""Settings of the user that the login and the choice of a model need."""
KEPT_ENV: Final = re.compile(rf"OPENAI_\w+|AWS_\w+|{confinement.PROXY_VARIABLES}", re.IGNORECASE)
"""The same, for variables in the user's `.env`."""
NO_TOOLS: Final[Json] = {
    "features": dict.fromkeys(
        (
            "shell_tool", "unified_exec", "shell_snapshot", "view_image", "multi_agent", "goals", "hooks", "plugins",
            "apps", "image_generation", "memories", "tool_suggest", "skill_search", "sleep_tool", "browser_use",
            "computer_use", "unbounded_connection_retries",
        ),
        False,
    )
    | {"multi_agent_v2": {"enabled": False, "max_concurrent_threads_per_session": 1}},
    "web_search": "disabled",
    "project_doc_max_bytes": 0,
    "approval_policy": "never",
    "default_permissions": "none",
    "permissions": {"none": {"filesystem": {":root": "deny"}, "network": {"enabled": False}}},
}  # fmt: skip
"""Every tool off by name; and should one be left, no file that it may read."""
NO_ENVIRONMENTS: Final = 'default = "none"\ninclude_local = true\n'
"""No machine to work on. The local one is included only for our server."""
DISABLED_SERVER: Final = {"command": "false", "url": "http://127.0.0.1"}
"""A complete entry by which a server is disabled even if Codex does not load its own entry; the kind must match."""

TOOL_ARGUMENTS: Final = {"command_execution": "command", "web_search": "query", "file_change": "changes"}
"""Codex's own tools, and the field of an item that holds their argument."""


class CodexAdapter:
    """A confined run has a home (`CODEX_HOME`) with only the login; its sessions are stored with those of the other
    confined runs."""

    id = "codex"
    title = "Codex"
    program = "codex"
    install = "npm install -g @openai/codex"
    sign_in = "run `codex login` once, or set CODEX_API_KEY in the agent's runtimeEnv"
    media_types: tuple[str, ...] = ("image/",)
    cumulative_usage: tuple[str, ...] = ("input", "output", "cache_read")
    instructions_file = "AGENTS.md"
    variable_prefixes = re.compile(r"CODEX_")
    allowed_variables = re.compile(r"CODEX_(API_KEY|ACCESS_TOKEN|CA_CERTIFICATE|OSS_\w+)")

    def build_invocation(self, cli_turn: dialect.CliTurn) -> dialect.CliInvocation:
        args = ["exec", *(["resume"] if cli_turn.session is not None else []), "--json", "--skip-git-repo-check"]
        servers: Json = {}
        settings: Json = {}
        env: dict[str, str] = {}
        if cli_turn.confined_folder is not None:
            args += ["--strict-config", "--ignore-rules"]
            env = self._confine(cli_turn, cli_turn.confined_folder)
            servers = _disable_other_servers(cli_turn)
        elif cli_turn.strict:
            # Apps and plugins bring servers, too.
            servers, settings = _disable_other_servers(cli_turn), {"features.apps": False, "features.plugins": False}
        if cli_turn.server is not None:
            servers[dialect.SERVER_NAME] = {
                "command": cli_turn.server.command,
                "args": list(cli_turn.server.args),
                # Otherwise it waits one second, continues without our tools, and does not call them without asking.
                "required": True,
                "startup_timeout_sec": dialect.CONNECT_SECONDS,
                "tool_timeout_sec": dialect.CALL_SECONDS,
                "default_tools_approval_mode": "approve",
            }
        if servers:
            settings["mcp_servers"] = servers
        if cli_turn.effort is not None:
            settings["model_reasoning_effort"] = cli_turn.effort
        args += cli_turn.model_option("openai/")
        for name, value in settings.items():
            args += ["-c", f"{name}={to_toml(value)}"]
        args += [f"--image={path}" for path, _ in cli_turn.files]
        last = ["--", *([cli_turn.session] if cli_turn.session is not None else []), "-"]
        return dialect.CliInvocation(args=args, trailing_args=last, env=env, stdin=dialect.compose_prompt(cli_turn))

    def _confine(self, cli_turn: dialect.CliTurn, confined_folder: Path) -> dict[str, str]:
        """Create a home with only the login; the variables that lead to it."""
        confinement.check_machine_settings(MANAGED_CONFIG, _read_toml(MANAGED_CONFIG), UNSAFE_SETTINGS)
        real = _codex_home(cli_turn)
        home = confinement.create_bare_home(cli_turn.folder, confinement.home_folder(cli_turn.env))
        inside, sessions = home / ".codex", confined_folder / "codex" / "sessions"
        inside.mkdir(mode=0o700)
        sessions.mkdir(parents=True, mode=0o700, exist_ok=True)
        confinement.link_files(inside, real, *LOGIN_FILES)
        confinement.link_files(inside, confined_folder / "codex", "sessions")
        own = confinement.pick_settings(_read_toml(real / "config.toml"), KEPT_SETTINGS)
        settings = {**own, **NO_TOOLS}
        lines = [f"{to_toml(name)} = {to_toml(value)}\n" for name, value in settings.items()]
        confinement.write_private_file(inside / "config.toml", "".join(lines).encode())
        confinement.write_private_file(inside / "environments.toml", NO_ENVIRONMENTS.encode())
        return {**_provider_variables(own, real / ".env", cli_turn.env), "HOME": str(home), HOME_VARIABLE: str(inside)}

    def create_reader(self, cli_turn: dialect.CliTurn) -> "CodexReader":
        return CodexReader(cli_turn.model)

    def after_run(self, cli_turn: dialect.CliTurn) -> None:
        """Store a refreshed login in the user's folder."""
        if cli_turn.confined_folder is not None:
            confinement.move_back(cli_turn.folder / "home" / ".codex", _codex_home(cli_turn), LOGIN_FILES)


def to_toml(value: Any) -> str:
    """A value as TOML on one line. JSON's strings, numbers and booleans are TOML's too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_toml(name)} = {to_toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    if isinstance(value, date | time):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _codex_home(cli_turn: dialect.CliTurn) -> Path:
    return Path(cli_turn.env.get(HOME_VARIABLE) or confinement.home_folder(cli_turn.env) / ".codex")


def _provider_variables(settings: Json, path: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The variables of the user's `.env` that access to the model needs and the run lacks."""
    providers = object_at(settings, "model_providers").values()
    # A list: a value in the user's file need not be hashable.
    keys = [provider.get("env_key") for provider in providers if isinstance(provider, dict)]
    needed = {
        name: value
        for name, value in confinement.read_env_file(path).items()
        if name in keys or KEPT_ENV.fullmatch(name)
    }
    return {name: value for name, value in needed.items() if name not in env}


def _read_toml(path: Path) -> Json:
    settings: Json = confinement.read_settings_file(path, tomllib.loads, "TOML")
    return settings


def _disable_other_servers(cli_turn: dialect.CliTurn) -> Json:
    """Entries that disable every server that a file of the machine, the user or a project names. A confined run does
    not load the user's."""
    home = _codex_home(cli_turn)
    own = [home / "config.toml", *sorted(home.glob("*.config.toml"))] if cli_turn.confined_folder is None else []
    layers = [SYSTEM_CONFIG, *own]
    layers += [above / ".codex" / "config.toml" for above in (cli_turn.cwd, *cli_turn.cwd.parents)]
    found: Json = {}
    for path in layers:
        for name, entry in object_at(_read_toml(path), "mcp_servers").items():
            kind = "url" if "url" in object_at({"entry": entry}, "entry") else "command"
            found[name] = {"enabled": False, kind: DISABLED_SERVER[kind]}
    return found


class _Text(Struct, frozen=True):
    text: str = ""


class _Result(Struct, frozen=True):
    content: Any = None
    structured_content: Any = None


class _Item(Struct, frozen=True):
    id: str = ""
    type: str = ""
    item_type: str = ""
    text: str = ""
    content: tuple[_Text, ...] = ()
    summary: tuple[_Text, ...] = ()
    message: str | None = None
    tool: str = ""
    name: str = ""
    server: str | None = None
    arguments: Any = None
    command: Any = None
    query: Any = None
    changes: Any = None
    error: str | dialect.CliError | None = None
    exit_code: int | None = None
    status: str = ""
    result: _Result | str | None = None
    aggregated_output: str = ""
    output: str = ""

    @property
    def whole_text(self) -> str:
        return "".join(piece.text for piece in self.content or self.summary) or self.text

    @property
    def tool_name(self) -> str:
        if self.type != "mcp_tool_call":
            return self.type
        tool = self.tool or self.name or "tool"
        return tool if self.server in (dialect.SERVER_NAME, None) else f"mcp__{self.server}__{tool}"

    @property
    def tool_arguments(self) -> Any:
        if self.type in TOOL_ARGUMENTS:
            name = TOOL_ARGUMENTS[self.type]
            return {name: getattr(self, name)}
        return {} if self.arguments is None else self.arguments

    @property
    def tool_output(self) -> Any:
        if isinstance(self.result, _Result):
            return self.result.content or json.dumps(self.result.structured_content)
        return self.aggregated_output or self.output or self.result


class _TokenCounts(Struct, frozen=True):
    input_tokens: float = 0
    cached_input_tokens: float = 0
    output_tokens: float = 0


class _Event(Struct, frozen=True):
    type: str = ""
    thread_id: str | None = None
    session_id: str | None = None
    item: _Item = _Item()
    usage: _TokenCounts = _TokenCounts()
    error: dialect.CliError = dialect.CliError()
    message: str = ""


class CodexReader(dialect.CliReader[_Event]):
    """Each message's text comes whole; older versions send an item repeatedly while it grows."""

    def __init__(self, model: str | None = None) -> None:
        super().__init__(_Event)
        self._model = model
        self._texts: dict[str, str] = {}

    def read_event(self, event: _Event) -> Iterator[AgentEvent]:
        match event.type:
            case "thread.started":
                self.session = event.thread_id or event.session_id
                yield ModelSelected("openai", (self._model or "default").removeprefix("openai/"))
            case "turn.completed":
                counts = event.usage
                fresh = max(0, counts.input_tokens - counts.cached_input_tokens)
                self.usage = Usage.from_report(
                    input=fresh, output=counts.output_tokens, cache_read=counts.cached_input_tokens
                )
                self.done, self.error = True, None
            case "turn.failed":
                self.error = event.error.message or event.message or "the turn failed"
            case "error":
                self.error = event.message or "unknown error"  # it may recover: see turn.completed
            case "item.started" | "item.updated" | "item.completed":
                item = structs.replace(event.item, id=event.item.id or self.next_id())
                item = structs.replace(item, type=item.type or item.item_type)
                yield from self._item(item, is_last=event.type == "item.completed")

    def _item(self, item: _Item, *, is_last: bool) -> Iterator[AgentEvent]:
        match item.type:
            case "agent_message" | "assistant_message":
                yield from self._append_text(item.id, item.whole_text, is_last=is_last)
            case "reasoning" if is_last and item.whole_text:
                yield ThinkingText(item.whole_text)
            case "error":  # Codex goes on after it; what ends a turn is an event of its own
                self.notice = item.message
            case "mcp_tool_call" | "command_execution" | "web_search" | "file_change":
                yield from self._tool(item, is_last=is_last)

    def _append_text(self, id: str, text: str, *, is_last: bool) -> Iterator[AgentEvent]:
        before = self._texts.get(id, "")
        if not before:
            self.start_paragraph()
        if text.startswith(before):
            yield from self.text_events(text[len(before) :])
            self._texts[id] = text
        if is_last:
            self._texts.pop(id, None)

    def _tool(self, item: _Item, *, is_last: bool) -> Iterator[AgentEvent]:
        if item.id not in self._tool_names:
            yield from self.tool_use_events(item.id, item.tool_name, item.tool_arguments)
        if is_last:
            reason = item.error.message if isinstance(item.error, dialect.CliError) else item.error
            failed = item.status == "failed" or bool(reason) or item.exit_code not in (None, 0)
            yield from self.tool_outcome_events(item.id, reason or item.tool_output, failed=failed)
