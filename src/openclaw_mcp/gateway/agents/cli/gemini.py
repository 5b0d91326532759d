"""Gemini CLI: `gemini --output-format stream-json`, with a home of its own for the run."""

import contextlib
import logging
import os
import re
import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyjson5

from ....core.agent import AgentEvent, Model, Usage
from ....core.errors import BadRequest
from ....core.model import Json
from .confinement import PROXIES, bring_home, chosen, link, variables_in, write_private
from .dialect import CALL_SECONDS, SERVER, Entry, Listening, Order, Spoken, composed, count, own_name, part, text_at

logger = logging.getLogger(__name__)

HOME: Final = "GEMINI_CLI_HOME"
SETTINGS: Final = "settings.json"
PROJECTS: Final = "projects.json"
KEPT_FOLDERS: Final = ("tmp", "history")  # where sessions lie; made at home first, so that what is written stays there
LOGINS: Final = (
    "oauth_creds.json", "google_accounts.json", "gemini-credentials.json", "installation_id", "user_id",
)  # fmt: skip
"""What a confined run sees of the user's folder: who is signed in."""
KEPT_SETTINGS: Final = (
    "security.auth", "model.name", "modelConfigs", "billing", "privacy", "general.maxAttempts",
    "general.retryFetchErrors", "general.enableAutoUpdate", "general.enableAutoUpdateNotification",
    "general.sessionRetention", "advanced.dnsResolutionOrder", "advanced.autoConfigureMemory",
)  # fmt: skip
"""Of a user's settings, what the login and the choice of a model need."""
KEPT_ENV: Final = re.compile(
    rf"GEMINI_(API_KEY|MODEL)|GOOGLE_(API_KEY|APPLICATION_CREDENTIALS|CLOUD_\w+|GENAI_\w+|\w+_BASE_URL)|{PROXIES}",
    re.IGNORECASE,
)
"""The same, of the variables in a user's `.env`."""
NO_TOOLS: Final[Json] = {
    "tools": {"core": []},
    "mcp": {"allowed": [SERVER]},
    "skills": {"enabled": False},
    "hooksConfig": {"enabled": False},
    "experimental": {"enableAgents": False},
    "useWriteTodos": False,
    "telemetry": {"enabled": False},
    "ide": {"enabled": False},
    "advanced": {"ignoreLocalEnv": True},
    # No memory file is called that, in this folder or any above.
    "context": {"fileName": ["no-such-memory.md"], "memoryBoundaryMarkers": []},
}
"""No built-in tool, and nothing that brings others or runs commands."""
RULES: Final = f"""
[[rule]]
toolName = "*"
decision = "deny"
priority = 900
denyMessage = "Only the gateway's tools are for this run."
[[rule]]
toolName = "mcp_{SERVER}_*"
decision = "allow"
priority = 950
"""
"""The same once more, for a tool nobody has heard of yet."""
_AT: Final = re.compile("@")
_ONE_NAME: Final = re.compile(r"""([^/"\\ \t\n\r]{0,255})(?:[ \t\n\r]|\Z)""")
"""Words behind an `@` that can only mean an entry of the folder itself: one name, with no separator and no quoting."""
_AWKWARD: Final = re.compile(r"([\s\\,;!?()\[\]{}])")


class Gemini:
    """A `Dialect`. Gemini reads its servers from a user's settings file alone. Rather than write into that, a run gets
    a home that holds links to everything in the user's `~/.gemini` and settings of its own: the user's, and our server.
    A confined run's home has the logins, and the sessions of its own conversation.
    """

    id = "gemini"
    title = "Gemini CLI"
    program = "gemini"
    install = "npm install -g @google/gemini-cli"
    sign_in = "run `gemini` once and sign in, or set GEMINI_API_KEY in the agent's runtimeEnv"
    takes: tuple[str, ...] = ("image/", "audio/", "video/", "application/pdf")
    adds_up: tuple[str, ...] = ()
    note = "GEMINI.md"
    own_variables = re.compile(r"GEMINI_")
    kept_variables = re.compile(r"GEMINI_(API_KEY|MODEL|API_KEY_AUTH_MECHANISM|DEFAULT_AUTH_TYPE|FORCE_\w+_STORAGE)")

    def speak(self, order: Order) -> Spoken:
        # A person chose the folder in the config; the folder's own settings stay out all the same.
        args = ["--output-format", "stream-json", "--skip-trust"]
        if order.session is not None:
            args.append(f"--resume={order.session}")
        if order.model is not None:
            args.append(f"--model={order.model.removeprefix('google/')}")
        if order.strict:
            args.append(f"--allowed-mcp-server-names={SERVER}")
        if order.confined is not None:
            rules = write_private(order.folder / "rules.toml", RULES.encode())
            args += ["--extensions=none", f"--admin-policy={rules}", "--approval-mode=default"]
        if order.files:
            args.append(f"--include-directories={order.files[0][0].parent}")
        seen = "".join(f"@{_escaped(path)}\n" for path, _ in order.files)
        # It starts itself a second time otherwise, and the first ignores signals.
        env = {"GEMINI_CLI_NO_RELAUNCH": "true"}
        if order.confined is not None:
            named = variables_in(_real(order) / ".env", _real(order).parent / ".env")
            env |= {name: value for name, value in named.items() if KEPT_ENV.fullmatch(name) and name not in order.env}
            env[HOME] = str(self._confine(order, order.confined))
        elif order.server is not None:
            env[HOME] = str(self._furnish(order))
        folder = order.cwd if order.confined is None else None
        return Spoken(args=args, env=env, stdin=seen.encode() + _unread(composed(order).decode(), folder).encode())

    def _furnish(self, order: Order) -> Path:
        assert order.server is not None
        real, home = _real(order), order.folder / "home"
        inside = home / ".gemini"
        inside.mkdir(parents=True, mode=0o700)
        for name in KEPT_FOLDERS:
            (real / name).mkdir(parents=True, exist_ok=True)
        for kept in real.iterdir():
            if kept.name != SETTINGS:
                (inside / kept.name).symlink_to(kept)
        if (real.parent / ".env").exists():
            (home / ".env").symlink_to(real.parent / ".env")
        settings = _settings(real / SETTINGS)
        servers = {**({} if order.strict else part(settings, "mcpServers")), SERVER: _entry(order.server)}
        # An `@` in a message means the file of exactly that name, if any: see `_unread`.
        filtering = {**part(part(settings, "context"), "fileFiltering"), "enableRecursiveFileSearch": False}
        context = {**part(settings, "context"), "fileFiltering": filtering}
        data = msgspec.json.encode({**settings, "mcpServers": servers, "context": context})
        write_private(inside / SETTINGS, data)
        return home

    def _confine(self, order: Order, standing: Path) -> Path:
        """A home with the logins, and the sessions of this conversation: Gemini lets every run read the folder where
        those of its project lie, and all confined runs of an agent are one project."""
        real, home = _real(order), order.folder / "home"
        inside = home / ".gemini"
        inside.mkdir(parents=True, mode=0o700)
        own = standing / self.id / order.conversation
        for name in KEPT_FOLDERS:
            (own / name).mkdir(parents=True, mode=0o700, exist_ok=True)
        link(inside, own, *KEPT_FOLDERS)
        link(inside, real, *LOGINS)
        # Empty: Gemini looks for the first of its kind in the folder it works in and all above.
        (standing / "work" / ".gemini").mkdir(mode=0o700, exist_ok=True)
        (standing / "work" / ".gemini" / ".env").touch()
        settings = chosen(_settings(real / SETTINGS), KEPT_SETTINGS)
        whole: Json = {**settings, **NO_TOOLS, "advanced": {**part(settings, "advanced"), **NO_TOOLS["advanced"]}}
        whole["context"] = {**NO_TOOLS["context"], "fileFiltering": {"enableRecursiveFileSearch": False}}
        if order.server is not None:
            whole["mcpServers"] = {SERVER: _entry(order.server)}
        write_private(inside / SETTINGS, msgspec.json.encode(whole))
        return home

    def listen(self, order: Order) -> "GeminiReader":
        return GeminiReader()

    def after(self, order: Order) -> None:
        """What Gemini made anew or replaced in the run's home goes to the user's: a refreshed login, and in the owner's
        runs its list of projects."""
        inside = order.folder / "home" / ".gemini"
        if order.confined is not None:
            bring_home(inside, _real(order), LOGINS)
            return
        with contextlib.suppress(OSError):
            for entry in inside.iterdir():
                if entry.name == SETTINGS or entry.is_symlink() or entry.suffix in (".lock", ".tmp"):
                    continue
                _bring_home(entry, _real(order) / entry.name)


def _entry(server: Entry) -> Json:
    return {"command": server.command, "args": server.args, "trust": True, "timeout": CALL_SECONDS * 1000}


def _unread(text: str, folder: Path | None) -> str:
    """The text, with a backslash before each `@` that may name a file: whoever writes must not choose files for it.
    `folder` is where an owner's run works; without one, every `@` has its backslash."""
    if "@" not in text:
        return text
    names = [""]
    with contextlib.suppress(OSError):
        names = [""] if folder is None else [_alike(entry.name) for entry in folder.iterdir()]
    return _AT.sub(lambda at: "\\@" if _may_name(text, at.end(), names) else "@", text)


def _may_name(text: str, start: int, names: Sequence[str]) -> bool:
    """Whether what stands there is more than one plain word, or begins like a name in the folder. With a separator any
    word may lead anywhere (`x/../file`, though there is no `x`); where a word with quotes ends is for Gemini to say."""
    word = _ONE_NAME.match(text, start)
    return word is None or _alike(word[1]).startswith((".", "~", *names))


def _alike(name: str) -> str:
    """One form of all that some file system takes for the same name."""
    return unicodedata.normalize("NFKC", name.replace("'", "")).casefold()


def _escaped(path: Path) -> str:
    return _AWKWARD.sub(r"\\\1", str(path))


def _real(order: Order) -> Path:
    home = order.env.get(HOME) or order.env.get("HOME") or "~"
    return Path(home).expanduser() / ".gemini"


def _merge_projects(entry: Path, target: Path) -> None:
    """Several runs may have added to it."""
    if entry.is_symlink():
        return
    with contextlib.suppress(OSError, ValueError, pyjson5.Json5Exception):
        ours, theirs = pyjson5.decode(entry.read_text()), pyjson5.decode(target.read_text())
        both = {**theirs, **ours, "projects": {**part(theirs, "projects"), **part(ours, "projects")}}
        entry.write_bytes(msgspec.json.encode(both))


def _bring_home(entry: Path, target: Path) -> None:
    if entry.name == PROJECTS:
        _merge_projects(entry, target)
    if entry.is_dir() and target.exists():
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.move(entry, draft)
    draft.replace(target)


def _settings(path: Path) -> Json:
    try:
        settings = pyjson5.decode(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, pyjson5.Json5Exception):
        raise BadRequest(f"{path} can't be read as JSON; correct it, then ask again") from None
    if not isinstance(settings, dict):
        raise BadRequest(f"{path} does not hold a JSON object; correct it, then ask again")
    return settings


class GeminiReader(Listening):
    def hear(self, event: Json) -> Iterator[AgentEvent]:
        match event.get("type"):
            case "init":
                self.session = text_at(event, "session_id", "sessionId")
                yield Model("google", str(event.get("model") or "default"))
            case "message" if event.get("role") == "assistant":
                yield from self.say(event.get("content"))
            case "tool_use":
                name = own_name(event.get("tool_name"), f"mcp_{SERVER}_", f"{SERVER}__")
                yield from self.use(str(event.get("tool_id")), name, event.get("parameters") or {})
            case "tool_result":
                reason = event.get("error")
                said = event.get("output") or text_at(reason, "message") or reason
                yield from self.outcome(str(event.get("tool_id")), said, failed=event.get("status") == "error")
            case "error":
                self.error = text_at(event, "message")
            case "result":
                self._result(event)
            case _:
                pass

    def _result(self, event: Json) -> None:
        stats = part(event, "stats")
        cached = count(stats.get("cached"))
        self.usage = Usage(
            input=max(0, count(stats.get("input_tokens")) - cached),
            output=count(stats.get("output_tokens")),
            cache_read=cached,
        )
        if event.get("status", "success") == "success":
            self.done, self.error = True, None
        else:
            error = event.get("error")
            self.error = text_at(error, "message") or self.error or str(error or "unknown error")
