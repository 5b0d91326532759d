"""Codex: `codex exec --json`, everything of ours given by `-c`."""

import json
import logging
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, time
from pathlib import Path
from typing import Any, Final

from ....core.agent import AgentEvent, Model, Thinking, Usage
from ....core.errors import BadRequest
from ....core.model import Json
from .confinement import (
    PROXIES,
    bare_home,
    bring_home,
    check_machine_settings,
    chosen,
    home_of,
    link,
    variables_in,
    write_private,
)
from .dialect import CALL_SECONDS, CONNECT_SECONDS, SERVER, Listening, Order, Spoken, composed, count, part, text_at

logger = logging.getLogger(__name__)

HOME: Final = "CODEX_HOME"
SYSTEM: Final = Path("/etc/codex/config.toml")
MANAGED: Final = Path("/etc/codex/managed_config.toml")
"""What this says, no `-c` changes."""
UNDOING: Final = ("mcp_servers", "features", "hooks", "plugins", "permissions", "default_permissions", "sandbox_mode")
"""Settings there that would give a confined run tools, or files."""
LOGINS: Final = ("auth.json", "installation_id", "models_cache.json")
"""What a confined run sees of the user's folder: who is signed in, and which models there are."""
KEPT_SETTINGS: Final = (
    "model", "model_provider", "model_providers", "model_reasoning_effort", "model_reasoning_summary",
    "model_verbosity", "model_context_window", "model_auto_compact_token_limit",
    "service_tier", "openai_base_url", "chatgpt_base_url", "oss_provider",
    "forced_login_method", "forced_chatgpt_workspace_id", "cli_auth_credentials_store", "analytics",
    "check_for_update_on_startup",
)  # fmt: skip
"""Of a user's settings, what the login and the choice of a model need."""
KEPT_ENV: Final = re.compile(rf"OPENAI_\w+|AWS_\w+|{PROXIES}", re.IGNORECASE)
"""The same, of the variables in a user's `.env`."""
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
"""The tools off by name; and should one be there all the same, no file that it may read."""
NOWHERE: Final = 'default = "none"\ninclude_local = true\n'
"""And no machine to work on. The local one is there for our server alone."""
DUMMY: Final = {"command": "false", "url": "http://127.0.0.1"}
"""How a server is switched off whose entry Codex perhaps does not load: it must be whole, and of the same kind."""


class Codex:
    """A `Dialect`. A confined run has a home (`CODEX_HOME`) with the login alone; its sessions lie with those of the
    other confined runs."""

    id = "codex"
    title = "Codex"
    program = "codex"
    install = "npm install -g @openai/codex"
    sign_in = "run `codex login` once, or set CODEX_API_KEY in the agent's runtimeEnv"
    takes: tuple[str, ...] = ("image/",)
    adds_up: tuple[str, ...] = ("input", "output", "cache_read")
    note = "AGENTS.md"
    own_variables = re.compile(r"CODEX_")
    kept_variables = re.compile(r"CODEX_(API_KEY|ACCESS_TOKEN|CA_CERTIFICATE|OSS_\w+)")

    def speak(self, order: Order) -> Spoken:
        args = ["exec", *(["resume"] if order.session is not None else []), "--json", "--skip-git-repo-check"]
        servers: Json = {}
        settings: Json = {}
        env: dict[str, str] = {}
        if order.confined is not None:
            args += ["--strict-config", "--ignore-rules"]
            env = self._confine(order, order.confined)
            servers = _others(order)
        elif order.strict:
            # What it says of apps and plugins brings servers, too.
            servers, settings = _others(order), {"features.apps": False, "features.plugins": False}
        if order.server is not None:
            servers[SERVER] = {
                "command": order.server.command,
                "args": list(order.server.args),
                # Otherwise it waits one second and goes on without our tools, and refuses to call them unasked.
                "required": True,
                "startup_timeout_sec": CONNECT_SECONDS,
                "tool_timeout_sec": CALL_SECONDS,
                "default_tools_approval_mode": "approve",
            }
        if servers:
            settings["mcp_servers"] = servers
        if order.effort is not None:
            settings["model_reasoning_effort"] = order.effort
        if order.model is not None:
            args.append(f"--model={order.model.removeprefix('openai/')}")
        for name, value in settings.items():
            args += ["-c", f"{name}={toml(value)}"]
        args += [f"--image={path}" for path, _ in order.files]
        last = ["--", *([order.session] if order.session is not None else []), "-"]
        return Spoken(args=args, last=last, env=env, stdin=composed(order))

    def _confine(self, order: Order, standing: Path) -> dict[str, str]:
        """A home with the login alone, and the variables that lead there."""
        check_machine_settings(MANAGED, _settings(MANAGED), UNDOING)
        real = _real(order)
        home = bare_home(order.folder, home_of(order.env))
        inside, sessions = home / ".codex", standing / "codex" / "sessions"
        inside.mkdir(mode=0o700)
        sessions.mkdir(parents=True, mode=0o700, exist_ok=True)
        link(inside, real, *LOGINS)
        link(inside, standing / "codex", "sessions")
        own = chosen(_settings(real / "config.toml"), KEPT_SETTINGS)
        settings = {**own, **NO_TOOLS}
        lines = [f"{toml(name)} = {toml(value)}\n" for name, value in settings.items()]
        write_private(inside / "config.toml", "".join(lines).encode())
        write_private(inside / "environments.toml", NOWHERE.encode())
        return {**_keys(own, real / ".env", order.env), "HOME": str(home), HOME: str(inside)}

    def listen(self, order: Order) -> "CodexReader":
        return CodexReader(order.model)

    def after(self, order: Order) -> None:
        """A login that was refreshed goes to the user's."""
        if order.confined is not None:
            bring_home(order.folder / "home" / ".codex", _real(order), LOGINS)


def toml(value: Any) -> str:
    """A value as TOML writes it on one line. JSON's strings, numbers and booleans are TOML's too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(name)} = {toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, date | time):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _real(order: Order) -> Path:
    return Path(order.env.get(HOME) or home_of(order.env) / ".codex")


def _keys(settings: Json, path: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Of the variables the user's `.env` sets, those that the way to the model needs and the run lacks."""
    keys = {text_at(provider, "env_key") for provider in part(settings, "model_providers").values()}
    needed = {name: value for name, value in variables_in(path).items() if name in keys or KEPT_ENV.fullmatch(name)}
    return {name: value for name, value in needed.items() if name not in given}


def _settings(path: Path) -> Json:
    try:
        return tomllib.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError):
        raise BadRequest(f"{path} can't be read as TOML; correct it, then ask again") from None


def _others(order: Order) -> Json:
    """Every server that a file of the machine, the user or a project names, switched off. A confined run does not
    load the user's."""
    home = _real(order)
    own = [home / "config.toml", *sorted(home.glob("*.config.toml"))] if order.confined is None else []
    layers = [SYSTEM, *own]
    layers += [above / ".codex" / "config.toml" for above in (order.cwd, *order.cwd.parents)]
    found: Json = {}
    for path in layers:
        for name, entry in part(_settings(path), "mcp_servers").items():
            kind = "url" if "url" in part({"entry": entry}, "entry") else "command"
            found[name] = {"enabled": False, kind: DUMMY[kind]}
    return found


class CodexReader(Listening):
    """Its text comes whole, message by message; older versions let an item grow."""

    def __init__(self, model: str | None = None) -> None:
        super().__init__()
        self._model = model
        self._grown: dict[str, str] = {}
        self._unnamed = 0

    def hear(self, event: Json) -> Iterator[AgentEvent]:
        kind = str(event.get("type"))
        if kind == "thread.started":
            self.session = text_at(event, "thread_id", "session_id")
            yield Model("openai", (self._model or "default").removeprefix("openai/"))
        elif kind.startswith("item."):
            yield from self._item(kind.removeprefix("item."), part(event, "item"))
        elif kind == "turn.completed":
            usage = part(event, "usage")
            cached = count(usage.get("cached_input_tokens"))
            self.usage = Usage(
                input=max(0, count(usage.get("input_tokens")) - cached),
                output=count(usage.get("output_tokens")),
                cache_read=cached,
            )
            self.done, self.error = True, None
        elif kind == "turn.failed":
            self.error = text_at(part(event, "error"), "message") or text_at(event, "message") or "the turn failed"
        elif kind == "error":
            self.error = text_at(event, "message") or "unknown error"  # perhaps it tries again: see turn.completed

    def _item(self, stage: str, item: Json) -> Iterator[AgentEvent]:
        kind = str(item.get("type") or item.get("item_type"))
        id = str(item.get("id") or self._next())
        match kind:
            case "agent_message" | "assistant_message":
                yield from self._grow(id, _text(item), last=stage == "completed")
            case "reasoning":
                if stage == "completed" and (thought := _text(item)):
                    yield Thinking(thought)
            case "error":
                self.error = text_at(item, "message")
            case "mcp_tool_call" | "command_execution" | "web_search" | "file_change":
                yield from self._tool(stage, id, kind, item)
            case _:
                pass

    def _next(self) -> str:
        self._unnamed += 1
        return f"codex-item-{self._unnamed}"

    def _grow(self, id: str, text: str, *, last: bool) -> Iterator[AgentEvent]:
        before = self._grown.get(id, "")
        if not before:
            self.pause()
        if text.startswith(before):
            yield from self.say(text[len(before) :])
            self._grown[id] = text
        if last:
            self._grown.pop(id, None)

    def _tool(self, stage: str, id: str, kind: str, item: Json) -> Iterator[AgentEvent]:
        if id not in self._names:
            yield from self.use(id, _tool_name(kind, item), _arguments(kind, item))
        if stage == "completed":
            error = item.get("error")
            reason = text_at(error, "message") or (error if isinstance(error, str) else None)
            code = item.get("exit_code")
            failed = item.get("status") == "failed" or bool(reason) or (isinstance(code, int) and code != 0)
            yield from self.outcome(id, reason or _answer(item), failed=failed)


def _text(item: Json) -> str:
    parts = item.get("content") or item.get("summary")
    if isinstance(parts, list):
        return "".join(text_at(piece, "text") or "" for piece in parts)
    return text_at(item, "text") or ""


def _tool_name(kind: str, item: Json) -> str:
    if kind != "mcp_tool_call":
        return kind
    tool, server = text_at(item, "tool", "name") or "tool", item.get("server")
    return tool if server in (SERVER, None) else f"mcp__{server}__{tool}"


def _arguments(kind: str, item: Json) -> Json:
    wanted = {"command_execution": "command", "web_search": "query", "file_change": "changes"}.get(kind)
    if wanted is not None:
        return {wanted: item.get(wanted)}
    arguments = item.get("arguments")
    return arguments if isinstance(arguments, dict) else {} if arguments is None else {"input": arguments}


def _answer(item: Json) -> Any:
    result = item.get("result")
    if isinstance(result, dict):
        return result.get("content") or json.dumps(result.get("structured_content"))
    return item.get("aggregated_output") or item.get("output") or result
