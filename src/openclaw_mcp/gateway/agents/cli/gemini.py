"""Gemini CLI: `gemini --output-format stream-json`, with a home of its own for the run."""

import contextlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyjson5
from msgspec import Struct, field

from ....core.agent import AgentEvent, ModelSelected, Usage
from ....core.errors import BadRequest
from ....core.model import Json
from . import confinement, dialect
from .confinement import object_at

HOME_VARIABLE: Final = "GEMINI_CLI_HOME"
SETTINGS_FILE: Final = "settings.json"
PROJECTS_FILE: Final = "projects.json"
SESSION_FOLDERS: Final = ("tmp", "history")  # of sessions; created in the real home first, so that they are kept there
LOGIN_FILES: Final = (
    "oauth_creds.json", "google_accounts.json", "gemini-credentials.json", "installation_id", "user_id",
)  # fmt: skip
"""What a confined run sees of the user's folder: the login."""
KEPT_SETTINGS: Final = (
    "security.auth", "model.name", "modelConfigs", "billing", "privacy", "general.maxAttempts",
    "general.retryFetchErrors", "general.enableAutoUpdate", "general.enableAutoUpdateNotification",
    "general.sessionRetention", "advanced.dnsResolutionOrder", "advanced.autoConfigureMemory",
)  # fmt: skip
"""Settings of the user that the login and the choice of a model need."""
KEPT_ENV: Final = re.compile(
    rf"GEMINI_(API_KEY|MODEL)|GOOGLE_(API_KEY|APPLICATION_CREDENTIALS|CLOUD_\w+|GENAI_\w+|\w+_BASE_URL)|{confinement.PROXY_VARIABLES}",
    re.IGNORECASE,
)
"""The same, for variables in the user's `.env`."""
NO_TOOLS: Final[Json] = {
    "tools": {"core": []},
    "mcp": {"allowed": [dialect.SERVER_NAME]},
    "skills": {"enabled": False},
    "hooksConfig": {"enabled": False},
    "experimental": {"enableAgents": False},
    "useWriteTodos": False,
    "telemetry": {"enabled": False},
    "ide": {"enabled": False},
    "advanced": {"ignoreLocalEnv": True},
    # No memory file has that name, in this folder or any above.
    "context": {"fileName": ["no-such-memory.md"], "memoryBoundaryMarkers": []},
}
"""No built-in tool, and nothing that adds others or runs commands."""
POLICY_RULES: Final = f"""
[[rule]]
toolName = "*"
decision = "deny"
priority = 900
denyMessage = "Only the gateway's tools are for this run."
[[rule]]
toolName = "mcp_{dialect.SERVER_NAME}_*"
decision = "allow"
priority = 950
"""
"""The same again, for tools that later versions may add."""
_AT: Final = re.compile("@")
_ONE_NAME: Final = re.compile(r"""([^/"\\ \t\n\r]{0,255})(?:[ \t\n\r]|\Z)""")
"""A word after an `@` that can only mean an entry of the folder itself: one name, with no separator and no quoting."""
_SPECIAL_CHARACTERS: Final = re.compile(r"([\s\\,;!?()\[\]{}])")


class GeminiAdapter:
    """Gemini reads its servers only from the user's settings file. Rather than change that, a run gets a home with
    links to everything in the user's `~/.gemini` and settings of its own: the user's, and our server. A confined run's
    home has the logins, and the sessions of its own conversation.
    """

    id = "gemini"
    title = "Gemini CLI"
    program = "gemini"
    install = "npm install -g @google/gemini-cli"
    sign_in = "run `gemini` once and sign in, or set GEMINI_API_KEY in the agent's runtimeEnv"
    media_types: tuple[str, ...] = ("image/", "audio/", "video/", "application/pdf")
    cumulative_usage: tuple[str, ...] = ()
    instructions_file = "GEMINI.md"
    variable_prefixes = re.compile(r"GEMINI_")
    allowed_variables = re.compile(r"GEMINI_(API_KEY|MODEL|API_KEY_AUTH_MECHANISM|DEFAULT_AUTH_TYPE|FORCE_\w+_STORAGE)")

    def build_invocation(self, cli_turn: dialect.CliTurn) -> dialect.CliInvocation:
        # A person chose the folder in the config; the folder's own settings are not loaded all the same.
        args = ["--output-format", "stream-json", "--skip-trust"]
        args += [*dialect.option("resume", cli_turn.session), *cli_turn.model_option("google/")]
        if cli_turn.strict:
            args.append(f"--allowed-mcp-server-names={dialect.SERVER_NAME}")
        if cli_turn.confined_folder is not None:
            rules = confinement.write_private_file(cli_turn.folder / "rules.toml", POLICY_RULES.encode())
            args += ["--extensions=none", f"--admin-policy={rules}", "--approval-mode=default"]
        if cli_turn.files:
            args.append(f"--include-directories={cli_turn.files[0][0].parent}")
        seen = "".join(f"@{_escape_path(path)}\n" for path, _ in cli_turn.files)
        # Otherwise it starts itself a second time, and the first process ignores signals.
        env = {"GEMINI_CLI_NO_RELAUNCH": "true"}
        if cli_turn.confined_folder is not None:
            home = _gemini_home(cli_turn)
            own = confinement.read_env_file(home / ".env", home.parent / ".env")
            env |= {name: own[name] for name in own if KEPT_ENV.fullmatch(name) and name not in cli_turn.env}
            env[HOME_VARIABLE] = str(self._confine(cli_turn, cli_turn.confined_folder))
        elif cli_turn.server is not None:
            env[HOME_VARIABLE] = str(self._build_home(cli_turn, cli_turn.server))
        folder = cli_turn.cwd if cli_turn.confined_folder is None else None
        return dialect.CliInvocation(
            args=args,
            env=env,
            stdin=seen.encode() + _escape_file_references(dialect.compose_prompt(cli_turn).decode(), folder).encode(),
        )

    def _build_home(self, cli_turn: dialect.CliTurn, server: dialect.McpServerCommand) -> Path:
        real, home, inside = _create_home(cli_turn)
        for name in SESSION_FOLDERS:
            (real / name).mkdir(parents=True, exist_ok=True)
        for kept in real.iterdir():
            if kept.name != SETTINGS_FILE:
                (inside / kept.name).symlink_to(kept)
        if (real.parent / ".env").exists():
            (home / ".env").symlink_to(real.parent / ".env")
        settings = _read_settings(real / SETTINGS_FILE)
        others = {} if cli_turn.strict else object_at(settings, "mcpServers")
        servers = {**others, dialect.SERVER_NAME: _server_entry(server)}
        # An `@` in a message means the file of exactly that name, if any: see `_escape_file_references`.
        filtering = {**object_at(object_at(settings, "context"), "fileFiltering"), "enableRecursiveFileSearch": False}
        context = {**object_at(settings, "context"), "fileFiltering": filtering}
        data = msgspec.json.encode({**settings, "mcpServers": servers, "context": context})
        confinement.write_private_file(inside / SETTINGS_FILE, data)
        return home

    def _confine(self, cli_turn: dialect.CliTurn, confined_folder: Path) -> Path:
        """A home with the logins, and only this conversation's sessions: Gemini lets every run read the sessions of its
        project, and all confined runs of an agent are one project."""
        real, home, inside = _create_home(cli_turn)
        own = confined_folder / self.id / cli_turn.conversation_id
        for name in SESSION_FOLDERS:
            (own / name).mkdir(parents=True, mode=0o700, exist_ok=True)
        confinement.link_files(inside, own, *SESSION_FOLDERS)
        confinement.link_files(inside, real, *LOGIN_FILES)
        # Empty: Gemini reads the first such file in the folder it works in and all above.
        (confined_folder / "work" / ".gemini").mkdir(mode=0o700, exist_ok=True)
        (confined_folder / "work" / ".gemini" / ".env").touch()
        settings = confinement.pick_settings(_read_settings(real / SETTINGS_FILE), KEPT_SETTINGS)
        whole: Json = {**settings, **NO_TOOLS, "advanced": {**object_at(settings, "advanced"), **NO_TOOLS["advanced"]}}
        whole["context"] = {**NO_TOOLS["context"], "fileFiltering": {"enableRecursiveFileSearch": False}}
        if cli_turn.server is not None:
            whole["mcpServers"] = {dialect.SERVER_NAME: _server_entry(cli_turn.server)}
        confinement.write_private_file(inside / SETTINGS_FILE, msgspec.json.encode(whole))
        return home

    def create_reader(self, cli_turn: dialect.CliTurn) -> "GeminiReader":
        return GeminiReader()

    def after_run(self, cli_turn: dialect.CliTurn) -> None:
        """Move what Gemini created or replaced in the run's home to the user's: a refreshed login, and in the owner's
        runs its list of projects."""
        inside = cli_turn.folder / "home" / ".gemini"
        if cli_turn.confined_folder is not None:
            confinement.move_back(inside, _gemini_home(cli_turn), LOGIN_FILES)
            return
        with contextlib.suppress(OSError):
            for entry in inside.iterdir():
                if entry.name == SETTINGS_FILE or entry.is_symlink() or entry.suffix in (".lock", ".tmp"):
                    continue
                _move_entry_back(entry, _gemini_home(cli_turn) / entry.name)


def _create_home(cli_turn: dialect.CliTurn) -> tuple[Path, Path, Path]:
    """The user's `.gemini`, the run's home, and the empty `.gemini` in it."""
    home = cli_turn.folder / "home"
    inside = home / ".gemini"
    inside.mkdir(parents=True, mode=0o700)
    return _gemini_home(cli_turn), home, inside


def _server_entry(server: dialect.McpServerCommand) -> Json:
    return {"command": server.command, "args": server.args, "trust": True, "timeout": dialect.CALL_SECONDS * 1000}


def _escape_file_references(text: str, folder: Path | None) -> str:
    """The text with a backslash before each `@` that may name a file: a sender must not choose files to read.
    `folder` is where an owner's run works; without it, every `@` gets its backslash."""
    if "@" not in text:
        return text
    names = [""]
    with contextlib.suppress(OSError):
        names = [""] if folder is None else [_normalize_name(entry.name) for entry in folder.iterdir()]
    return _AT.sub(lambda at: "\\@" if _may_name_file(text, at.end(), names) else "@", text)


def _may_name_file(text: str, start: int, names: Sequence[str]) -> bool:
    """Whether the text at `start` is more than one plain word, or begins like a name in the folder. With a separator
    any word may lead anywhere (`x/../file`, even without an `x`); where a quoted word ends only Gemini decides."""
    word = _ONE_NAME.match(text, start)
    return word is None or _normalize_name(word[1]).startswith((".", "~", *names))


def _normalize_name(name: str) -> str:
    """The same text for all names that some file system takes for the same."""
    return unicodedata.normalize("NFKC", name.replace("'", "")).casefold()


def _escape_path(path: Path) -> str:
    return _SPECIAL_CHARACTERS.sub(r"\\\1", str(path))


def _gemini_home(cli_turn: dialect.CliTurn) -> Path:
    home = cli_turn.env.get(HOME_VARIABLE) or cli_turn.env.get("HOME") or "~"
    return Path(home).expanduser() / ".gemini"


def _merge_projects(entry: Path, target: Path) -> None:
    """Add the user's entries to ours: several runs may have changed the file."""
    if entry.is_symlink():
        return
    with contextlib.suppress(OSError, ValueError, pyjson5.Json5Exception):
        ours, theirs = pyjson5.decode(entry.read_text()), pyjson5.decode(target.read_text())
        both = {**theirs, **ours, "projects": {**object_at(theirs, "projects"), **object_at(ours, "projects")}}
        entry.write_bytes(msgspec.json.encode(both))


def _move_entry_back(entry: Path, target: Path) -> None:
    if entry.name == PROJECTS_FILE:
        _merge_projects(entry, target)
    if entry.is_dir() and target.exists():
        return
    confinement.replace_with(target, entry)


def _read_settings(path: Path) -> Json:
    settings = confinement.read_settings_file(path, pyjson5.decode, "JSON")
    if not isinstance(settings, dict):
        raise BadRequest(f"{path} does not hold a JSON object; correct it, then ask again")
    return settings


class _TokenCounts(Struct, frozen=True):
    input_tokens: float = 0
    output_tokens: float = 0
    cached: float = 0


class _Event(Struct, frozen=True):
    type: str = ""
    session_id: str | None = None
    older_session_id: str | None = field(default=None, name="sessionId")
    model: str | None = None
    role: str = ""
    content: str | None = None
    tool_name: str = ""
    tool_id: str = ""
    parameters: Any = None
    output: Any = None
    status: Any = "success"
    """Any other value, of any type, is a failure."""
    error: str | dialect.CliError | None = None
    message: str | None = None
    severity: str = ""
    stats: _TokenCounts = _TokenCounts()

    @property
    def reason(self) -> str | None:
        return self.error.message if isinstance(self.error, dialect.CliError) else self.error


class GeminiReader(dialect.CliReader[_Event]):
    def __init__(self) -> None:
        super().__init__(_Event)

    def read_event(self, event: _Event) -> Iterator[AgentEvent]:
        match event.type:
            case "init":
                self.session = event.session_id or event.older_session_id
                yield ModelSelected("google", event.model or "default")
            case "message" if event.role == "assistant":
                yield from self.text_events(event.content)
            case "tool_use":
                own = (f"mcp_{dialect.SERVER_NAME}_", f"{dialect.SERVER_NAME}__")
                name = dialect.strip_tool_prefix(event.tool_name, *own)
                yield from self.tool_use_events(event.tool_id, name, event.parameters or {})
            case "tool_result":
                content, failed = event.output or event.reason, event.status == "error"
                yield from self.tool_outcome_events(event.tool_id, content, failed=failed)
            case "error" if event.severity == "warning":
                self.notice = event.message
            case "error":
                self.error = event.message
            case "result":
                self._result(event)

    def _result(self, event: _Event) -> None:
        stats = event.stats
        fresh = max(0, stats.input_tokens - stats.cached)
        self.usage = Usage.from_report(input=fresh, output=stats.output_tokens, cache_read=stats.cached)
        if event.status == "success":
            self.done, self.error = True, None
        else:
            self.error = event.reason or self.error or "unknown error"
