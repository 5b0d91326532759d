"""OpenCode: `opencode run --format json`, configured through its environment."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import pyjson5

from ....core.agent import AgentEvent, Model, Thinking, Usage
from ....core.errors import BadRequest
from ....core.model import Json
from .confinement import bare_home, bring_home, check_machine_settings, chosen, home_of, link
from .dialect import CALL_SECONDS, SERVER, Listening, Order, Spoken, count, own_name, part, text_at

LOGIN: Final = "auth.json"
CONTENT = "OPENCODE_CONFIG_CONTENT"
NAMES: Final = ("config.json", "opencode.json", "opencode.jsonc")
"""What a file of its configuration may be called; of several in a folder the later says more."""
SYSTEM: Final = Path("/Library/Application Support/opencode" if sys.platform == "darwin" else "/etc/opencode")
UNDOING: Final = ("mcp", "permission", "plugin", "tools", "agent", "mode", "lsp", "formatter")
"""Settings there, which have the last word, that would give a confined run tools or start programs."""
KEPT_SETTINGS: Final = ("model", "small_model", "provider", "disabled_providers", "enabled_providers", "autoupdate")
"""Of a user's settings, what the login and the choice of a model need."""
ONLY_OURS: Final = {"*": "deny", f"{SERVER}_*": "allow"}
NO_TOOLS: Final[Json] = {
    "tools": {"*": False, f"{SERVER}_*": True},
    "permission": ONLY_OURS,
    "agent": {"build": {"permission": ONLY_OURS}},
    "default_agent": "build",
    "plugin": [],
    "share": "disabled",
    "snapshot": False,
    "lsp": False,
    "formatter": False,
}
"""No tool but our server's, whatever it is called, and nothing that runs commands."""
NOTHING_ELSE: Final = {
    "OPENCODE_PURE": "1",
    "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS": "1",
    "OPENCODE_DISABLE_CLAUDE_CODE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}


class OpenCode:
    """A `Dialect`. What we add is merged with the user's configuration by OpenCode itself, for this process alone.

    A confined run has a home with nothing in it, and its sessions lie with those of the other confined runs: besides
    them that folder of the user's holds accounts whose configuration would be loaded.
    """

    id = "opencode"
    title = "OpenCode"
    program = "opencode"
    install = "npm install -g opencode-ai"
    sign_in = "run `opencode auth login` once, or set the provider's key in the agent's runtimeEnv"
    takes: tuple[str, ...] = ("image/",)
    adds_up: tuple[str, ...] = ()
    note = "AGENTS.md"
    own_variables = re.compile(r"OPENCODE_")
    kept_variables = re.compile(r"OPENCODE_(API_KEY|AUTH_CONTENT|DISABLE_\w+|MODELS_\w+)")

    def speak(self, order: Order) -> Spoken:
        args = ["run", "--format", "json"]
        if order.session is not None:
            args.append(f"--session={order.session}")
        if order.model is not None:
            args.append(f"--model={order.model}")
        if order.effort is not None:
            args += ["--variant", order.effort, "--thinking"]
        args += [f"--file={path}" for path, _ in order.files]
        env: dict[str, str] = {}
        if order.confined is not None:
            args.append("--pure")
            env = self._confine(order, order.confined)
        config = self._config(order)
        env |= {CONTENT: msgspec.json.encode(config).decode()} if config else {}
        return Spoken(args=args, env=env, stdin=order.prompt.encode())

    def _confine(self, order: Order, standing: Path) -> dict[str, str]:
        """A home with nothing in it, a place for sessions with the login beside them, and the variables that lead
        there."""
        _check_logins(order)
        for name in NAMES:
            check_machine_settings(SYSTEM / name, _read(SYSTEM / name), UNDOING)
        real = home_of(order.env)
        home = bare_home(order.folder, real)
        kept = standing / "opencode" / "opencode"  # as it calls its folder in the one for data
        kept.mkdir(parents=True, mode=0o700, exist_ok=True)
        link(kept, _data(order), LOGIN)
        return {
            **NOTHING_ELSE,
            "HOME": str(home),
            # Not the home's: what OpenCode fetches into its own folder is there for the next run.
            "XDG_CONFIG_HOME": str(standing / "opencode" / "config"),
            "XDG_DATA_HOME": str(kept.parent),
            "XDG_CACHE_HOME": order.env.get("XDG_CACHE_HOME") or str(real / ".cache"),
            "XDG_STATE_HOME": str(standing / "opencode" / "state"),
        }

    def _config(self, order: Order) -> Json:
        config = _decoded(order.env, CONTENT)
        servers = dict(part(config, "mcp"))
        if order.confined is not None:
            for path in _own_files(order):
                config = {**_read(path), **config}
            config, servers = {**chosen(config, KEPT_SETTINGS), **NO_TOOLS}, {}
        elif order.strict:
            servers = {name: {"enabled": False} for name in {*servers, *_others(order)}}
        if order.server is not None:
            entry = {"type": "local", "command": [order.server.command, *order.server.args], "enabled": True}
            servers[SERVER] = entry | {"timeout": CALL_SECONDS * 1000}
        if servers:
            config["mcp"] = servers
        if order.about:
            path = order.folder / "about.md"
            path.write_text(order.about)
            config["instructions"] = [*config.get("instructions", ()), str(path)]
        return config

    def listen(self, order: Order) -> "OpenCodeReader":
        return OpenCodeReader(order.model)

    def after(self, order: Order) -> None:
        """A login that was refreshed goes to the user's."""
        if order.confined is not None:
            bring_home(order.confined / "opencode" / "opencode", _data(order), (LOGIN,))


def _own_files(order: Order) -> list[Path]:
    """The files of the user's own configuration, the weightiest first."""
    own = Path(order.env.get("XDG_CONFIG_HOME") or home_of(order.env) / ".config") / "opencode"
    folders = [own, home_of(order.env) / ".opencode"]
    folders += [Path(order.env[name]) for name in ("OPENCODE_CONFIG_DIR",) if order.env.get(name)]
    paths = [folder / name for folder in folders for name in NAMES]
    paths += [Path(order.env[name]) for name in ("OPENCODE_CONFIG",) if order.env.get(name)]
    return paths[::-1]


def _others(order: Order) -> set[str]:
    """The servers that a file of the user's or of a project names."""
    above = [place for folder in (order.cwd, *order.cwd.parents) for place in (folder, folder / ".opencode")]
    paths = [*_own_files(order), *(folder / name for folder in (*above, SYSTEM) for name in NAMES)]
    return {name for path in paths for name in part(_read(path), "mcp")}


def _data(order: Order) -> Path:
    return Path(order.env.get("XDG_DATA_HOME") or home_of(order.env) / ".local" / "share") / "opencode"


def _check_logins(order: Order) -> None:
    """Raises BadRequest where one of them would bring what can't be kept out."""
    logins = [*_read(_data(order) / LOGIN).values(), *_decoded(order.env, "OPENCODE_AUTH_CONTENT").values()]
    if any(isinstance(login, dict) and login.get("type") == "wellknown" for login in logins):
        raise BadRequest(
            "it is signed in at an address that brings settings of its own, which can't be kept out of a run for "
            "somebody who is not the owner; sign in with a provider's key instead"
        )


def _decoded(env: Mapping[str, str], name: str) -> Json:
    try:
        return dict(pyjson5.decode(env[name])) if env.get(name) else {}
    except (pyjson5.Json5Exception, TypeError, ValueError):
        raise BadRequest(f"{name} in the agent's runtimeEnv is not a JSON object; correct or remove it") from None


def _read(path: Path) -> Json:
    try:
        found = pyjson5.decode(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, pyjson5.Json5Exception):
        raise BadRequest(f"{path} can't be read as JSON; correct it, then ask again") from None
    return found if isinstance(found, dict) else {}


class OpenCodeReader(Listening):
    """There is no final event: the last step says `stop`, and the program ends."""

    def __init__(self, model: str | None = None) -> None:
        super().__init__()
        self._model = model
        self._unnamed = 0

    def hear(self, event: Json) -> Iterator[AgentEvent]:
        if self.session is None and (session := text_at(event, "sessionID", "sessionId")):
            self.session = session
            provider, _, model = (self._model or "").partition("/")
            yield Model(provider or "opencode", model or "default")
        piece = part(event, "part")
        match event.get("type"):
            case "text":
                self.pause()
                yield from self.say(text_at(piece, "text", "content"))
            case "reasoning":
                if thought := text_at(piece, "text", "content"):
                    yield Thinking(thought)
            case "tool_use":
                yield from self._tool(piece)
            case "step_finish":
                self._step(piece)
            case "error":
                self.error, self.done = _complaint(event), False
            case _:
                pass

    def _tool(self, piece: Json) -> Iterator[AgentEvent]:
        self._unnamed += 1
        id = text_at(piece, "callID", "id") or f"opencode-tool-{self._unnamed}"
        state = part(piece, "state")
        name = own_name(text_at(piece, "tool", "name"), f"{SERVER}_")
        yield from self.use(id, name, state.get("input", piece.get("input", {})))
        error = text_at(state, "error")
        yield from self.outcome(id, error or state.get("output"), failed=bool(error) or state.get("status") == "error")

    def _step(self, piece: Json) -> None:
        tokens, before = part(piece, "tokens"), self.usage or Usage()
        cost = piece.get("cost")
        self.usage = Usage(
            input=before.input + count(tokens.get("input")),
            output=before.output + count(tokens.get("output")) + count(tokens.get("reasoning")),
            cache_read=before.cache_read + count(part(tokens, "cache").get("read")),
            cache_write=before.cache_write + count(part(tokens, "cache").get("write")),
            cost_usd=(before.cost_usd or 0.0) + cost if isinstance(cost, int | float) else before.cost_usd,
        )
        reason = piece.get("reason")
        self.stop_reason = "length" if reason == "length" else "stop"
        if reason != "tool-calls":
            self.done, self.error = True, None


def _complaint(event: Json) -> str:
    error, data = event.get("error"), part(event.get("error"), "data")
    said = text_at(data, "message") or text_at(error, "message", "name") or text_at(event, "message")
    status = data.get("statusCode")
    return (said or str(error or "unknown error")) + (f" (status {status})" if status else "")
