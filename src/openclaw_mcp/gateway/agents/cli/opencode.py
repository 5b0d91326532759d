"""OpenCode: `opencode run --format json`, configured through its environment."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyjson5
from msgspec import UNSET, Struct, field

from ....core.agent import AgentEvent, ModelSelected, ThinkingText, Usage
from ....core.errors import BadRequest
from ....core.model import Json
from . import confinement, dialect
from .confinement import object_at

LOGIN_FILE: Final = "auth.json"
CONFIG_VARIABLE = "OPENCODE_CONFIG_CONTENT"
CONFIG_NAMES: Final = ("config.json", "opencode.json", "opencode.jsonc")
"""Names of its configuration files; of several in a folder the later one wins."""
SYSTEM_FOLDER: Final = Path("/Library/Application Support/opencode" if sys.platform == "darwin" else "/etc/opencode")
UNSAFE_SETTINGS: Final = ("mcp", "permission", "plugin", "tools", "agent", "mode", "lsp", "formatter")
"""Settings in that folder, which override ours, that would give a confined run tools or start programs."""
KEPT_SETTINGS: Final = ("model", "small_model", "provider", "disabled_providers", "enabled_providers", "autoupdate")
"""Settings of the user that the login and the choice of a model need."""
ONLY_GATEWAY_TOOLS: Final = {"*": "deny", f"{dialect.SERVER_NAME}_*": "allow"}
NO_TOOLS: Final[Json] = {
    "tools": {"*": False, f"{dialect.SERVER_NAME}_*": True},
    "permission": ONLY_GATEWAY_TOOLS,
    "agent": {"build": {"permission": ONLY_GATEWAY_TOOLS}},
    "default_agent": "build",
    "plugin": [],
    "share": "disabled",
    "snapshot": False,
    "lsp": False,
    "formatter": False,
}
"""No tool but our server's, and nothing that runs commands."""
ISOLATION_ENV: Final = {
    "OPENCODE_PURE": "1",
    "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS": "1",
    "OPENCODE_DISABLE_CLAUDE_CODE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}


class OpenCodeAdapter:
    """OpenCode itself merges what we add with the user's configuration, for this process only.

    A confined run has an empty home, and its sessions are stored with those of the other confined runs: the user's
    folder of sessions also holds accounts whose configuration would be loaded.
    """

    id = "opencode"
    title = "OpenCode"
    program = "opencode"
    install = "npm install -g opencode-ai"
    sign_in = "run `opencode auth login` once, or set the provider's key in the agent's runtimeEnv"
    media_types: tuple[str, ...] = ("image/",)
    cumulative_usage: tuple[str, ...] = ()
    instructions_file = "AGENTS.md"
    variable_prefixes = re.compile(r"OPENCODE_")
    allowed_variables = re.compile(r"OPENCODE_(API_KEY|AUTH_CONTENT|DISABLE_\w+|MODELS_\w+)")

    def build_invocation(self, cli_turn: dialect.CliTurn) -> dialect.CliInvocation:
        args = ["run", "--format", "json", *dialect.option("session", cli_turn.session), *cli_turn.model_option()]
        if cli_turn.effort is not None:
            args += ["--variant", cli_turn.effort, "--thinking"]
        args += [f"--file={path}" for path, _ in cli_turn.files]
        env: dict[str, str] = {}
        if cli_turn.confined_folder is not None:
            args.append("--pure")
            env = self._confine(cli_turn, cli_turn.confined_folder)
        config = self._build_config(cli_turn)
        env |= {CONFIG_VARIABLE: msgspec.json.encode(config).decode()} if config else {}
        return dialect.CliInvocation(args=args, env=env, stdin=cli_turn.prompt.encode())

    def _confine(self, cli_turn: dialect.CliTurn, confined_folder: Path) -> dict[str, str]:
        """Create an empty home, and a folder for sessions with the login beside them; the variables that lead there."""
        _check_logins(cli_turn)
        for name in CONFIG_NAMES:
            confinement.check_machine_settings(SYSTEM_FOLDER / name, _read_json(SYSTEM_FOLDER / name), UNSAFE_SETTINGS)
        real = confinement.home_folder(cli_turn.env)
        home = confinement.create_bare_home(cli_turn.folder, real)
        kept = confined_folder / "opencode" / "opencode"  # the name of its own folder in its data folder
        kept.mkdir(parents=True, mode=0o700, exist_ok=True)
        confinement.link_files(kept, _data_folder(cli_turn), LOGIN_FILE)
        return {
            **ISOLATION_ENV,
            "HOME": str(home),
            # Not in the home: what OpenCode downloads into its own folder is kept for the next run.
            "XDG_CONFIG_HOME": str(confined_folder / "opencode" / "config"),
            "XDG_DATA_HOME": str(kept.parent),
            "XDG_CACHE_HOME": cli_turn.env.get("XDG_CACHE_HOME") or str(real / ".cache"),
            "XDG_STATE_HOME": str(confined_folder / "opencode" / "state"),
        }

    def _build_config(self, cli_turn: dialect.CliTurn) -> Json:
        config = _decode_variable(cli_turn.env, CONFIG_VARIABLE)
        servers = dict(object_at(config, "mcp"))
        if cli_turn.confined_folder is not None:
            for path in _user_config_files(cli_turn):
                config = {**_read_json(path), **config}
            config, servers = {**confinement.pick_settings(config, KEPT_SETTINGS), **NO_TOOLS}, {}
        elif cli_turn.strict:
            servers = {name: {"enabled": False} for name in {*servers, *_other_servers(cli_turn)}}
        if cli_turn.server is not None:
            entry = {"type": "local", "command": [cli_turn.server.command, *cli_turn.server.args], "enabled": True}
            servers[dialect.SERVER_NAME] = entry | {"timeout": dialect.CALL_SECONDS * 1000}
        if servers:
            config["mcp"] = servers
        if cli_turn.system_prompt:
            config["instructions"] = [*config.get("instructions", ()), cli_turn.write_system_prompt()]
        return config

    def create_reader(self, cli_turn: dialect.CliTurn) -> "OpenCodeReader":
        return OpenCodeReader(cli_turn.model)

    def after_run(self, cli_turn: dialect.CliTurn) -> None:
        """Store a refreshed login in the user's folder."""
        if cli_turn.confined_folder is not None:
            confinement.move_back(
                cli_turn.confined_folder / "opencode" / "opencode", _data_folder(cli_turn), (LOGIN_FILE,)
            )


def _user_config_files(cli_turn: dialect.CliTurn) -> list[Path]:
    """The files of the user's own configuration, those that win first."""
    env, home = cli_turn.env, confinement.home_folder(cli_turn.env)
    folders = [Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "opencode", home / ".opencode"]
    if env.get("OPENCODE_CONFIG_DIR"):
        folders.append(Path(env["OPENCODE_CONFIG_DIR"]))
    paths = [folder / name for folder in folders for name in CONFIG_NAMES]
    if env.get("OPENCODE_CONFIG"):
        paths.append(Path(env["OPENCODE_CONFIG"]))
    return paths[::-1]


def _other_servers(cli_turn: dialect.CliTurn) -> set[str]:
    """The servers that the user's or a project's files name."""
    above = [place for folder in (cli_turn.cwd, *cli_turn.cwd.parents) for place in (folder, folder / ".opencode")]
    shared = [folder / name for folder in (*above, SYSTEM_FOLDER) for name in CONFIG_NAMES]
    paths = [*_user_config_files(cli_turn), *shared]
    return {name for path in paths for name in object_at(_read_json(path), "mcp")}


def _data_folder(cli_turn: dialect.CliTurn) -> Path:
    return (
        Path(cli_turn.env.get("XDG_DATA_HOME") or confinement.home_folder(cli_turn.env) / ".local" / "share")
        / "opencode"
    )


def _check_logins(cli_turn: dialect.CliTurn) -> None:
    """Raises BadRequest for a login that loads settings which can't be kept out."""
    logins = [
        *_read_json(_data_folder(cli_turn) / LOGIN_FILE).values(),
        *_decode_variable(cli_turn.env, "OPENCODE_AUTH_CONTENT").values(),
    ]
    if any(isinstance(login, dict) and login.get("type") == "wellknown" for login in logins):
        raise BadRequest(
            "it is signed in at an address that brings settings of its own, which can't be kept out of a run for "
            "people other than the owner; sign in with a provider's key instead"
        )


def _decode_variable(env: Mapping[str, str], name: str) -> Json:
    try:
        return dict(pyjson5.decode(env[name])) if env.get(name) else {}
    except (pyjson5.Json5Exception, TypeError, ValueError):
        raise BadRequest(f"{name} in the agent's runtimeEnv is not a JSON object; correct or remove it") from None


def _read_json(path: Path) -> Json:
    found = confinement.read_settings_file(path, pyjson5.decode, "JSON")
    return found if isinstance(found, dict) else {}


class _CacheCounts(Struct, frozen=True):
    read: float = 0
    write: float = 0


class _TokenCounts(Struct, frozen=True):
    input: float = 0
    output: float = 0
    reasoning: float = 0
    cache: _CacheCounts = _CacheCounts()


class _ToolState(Struct, frozen=True):
    input: Any = UNSET
    output: Any = None
    error: str | None = None
    status: str = ""


class _Part(Struct, frozen=True):
    text: str = ""
    content: str = ""
    call_id: str = field(default="", name="callID")
    id: str = ""
    tool: str = ""
    name: str = ""
    input: Any = {}
    state: _ToolState = _ToolState()
    tokens: _TokenCounts = _TokenCounts()
    cost: float | None = None
    reason: str | None = None


class _ErrorData(Struct, frozen=True, rename="camel"):
    message: str = ""
    status_code: int | None = None


class _Error(Struct, frozen=True):
    message: str = ""
    name: str = ""
    data: _ErrorData = _ErrorData()


class _Event(Struct, frozen=True):
    type: str = ""
    session_id: str | None = field(default=None, name="sessionID")
    other_session_id: str | None = field(default=None, name="sessionId")
    part: _Part = _Part()
    error: str | _Error = ""
    message: str = ""

    @property
    def error_text(self) -> str:
        if isinstance(self.error, str):
            return self.message or self.error or "unknown error"
        data = self.error.data
        text = data.message or self.error.message or self.error.name or self.message or "unknown error"
        return text + (f" (status {data.status_code})" if data.status_code else "")


class OpenCodeReader(dialect.CliReader[_Event]):
    """There is no final event: the last step has the reason `stop`, and the program ends."""

    def __init__(self, model: str | None = None) -> None:
        super().__init__(_Event)
        self._model = model

    def read_event(self, event: _Event) -> Iterator[AgentEvent]:
        if self.session is None and (session := event.session_id or event.other_session_id):
            self.session = session
            provider, _, model = (self._model or "").partition("/")
            yield ModelSelected(provider or "opencode", model or "default")
        text = event.part.text or event.part.content
        match event.type:
            case "text":
                self.start_paragraph()
                yield from self.text_events(text)
            case "reasoning" if text:
                yield ThinkingText(text)
            case "tool_use":
                yield from self._tool(event.part)
            case "step_finish":
                self._read_step(event.part)
            case "error":
                self.error, self.done = event.error_text, False

    def _tool(self, part: _Part) -> Iterator[AgentEvent]:
        id, state = part.call_id or part.id or self.next_id(), part.state
        name = dialect.strip_tool_prefix(part.tool or part.name, f"{dialect.SERVER_NAME}_")
        yield from self.tool_use_events(id, name, part.input if state.input is UNSET else state.input)
        failed = bool(state.error) or state.status == "error"
        yield from self.tool_outcome_events(id, state.error or state.output, failed=failed)

    def _read_step(self, part: _Part) -> None:
        tokens, before = part.tokens, self.usage or Usage()
        self.usage = Usage.from_report(
            input=before.input + tokens.input,
            output=before.output + tokens.output + tokens.reasoning,
            cache_read=before.cache_read + tokens.cache.read,
            cache_write=before.cache_write + tokens.cache.write,
            cost_usd=before.cost_usd if part.cost is None else (before.cost_usd or 0.0) + part.cost,
        )
        self.stop_reason = "length" if part.reason == "length" else "stop"
        if part.reason != "tool-calls":
            self.done, self.error = True, None
