"""Codex: `codex exec --json`, everything of ours given by `-c`."""

import json
import logging
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ...core.agent import AgentEvent, Model, Thinking, Usage
from ...core.model import Json
from .words import (
    CALL_SECONDS,
    CONNECT_SECONDS,
    SERVER,
    Listening,
    Order,
    Spoken,
    composed,
    count,
    part,
    text_at,
)

logger = logging.getLogger(__name__)

PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


class Codex:
    """A `Dialect`."""

    id = "codex"
    title = "Codex"
    program = "codex"
    install = "npm install -g @openai/codex"
    sign_in = "run `codex login` once, or set CODEX_API_KEY in the agent's runtimeEnv"
    takes: tuple[str, ...] = ("image/",)
    adds_up: tuple[str, ...] = ("input", "output", "cache_read")

    def speak(self, order: Order) -> Spoken:
        args = ["exec", *(["resume"] if order.session is not None else []), "--json", "--skip-git-repo-check"]
        settings: Json = {}
        if order.server is not None:
            settings[f"mcp_servers.{SERVER}"] = {
                "command": order.server.command,
                "args": list(order.server.args),
                # Otherwise it waits one second and goes on without our tools, and refuses to call them unasked.
                "required": True,
                "startup_timeout_sec": CONNECT_SECONDS,
                "tool_timeout_sec": CALL_SECONDS,
                "default_tools_approval_mode": "approve",
            }
        if order.strict:
            settings |= {f"mcp_servers.{name}.enabled": False for name in _others(order)}
        if order.effort is not None:
            settings["model_reasoning_effort"] = order.effort
        if order.model is not None:
            args += ["--model", order.model.removeprefix("openai/")]
        for name, value in settings.items():
            args += ["-c", f"{name}={toml(value)}"]
        args += [f"--image={path}" for path, _ in order.files]
        last = ["--", *([order.session] if order.session is not None else []), "-"]
        return Spoken(args=args, last=last, stdin=composed(order))

    def listen(self, order: Order) -> "CodexReader":
        return CodexReader(order.model)

    def after(self, order: Order) -> None:
        return


def toml(value: Any) -> str:
    """A value as TOML writes it on one line. JSON's strings, numbers, booleans and arrays are TOML's too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value)


def _others(order: Order) -> list[str]:
    """The servers the user's own configuration names."""
    home = Path(order.env.get("CODEX_HOME") or Path(order.env.get("HOME", "~")).expanduser() / ".codex")
    names: set[str] = set()
    for path in (home / "config.toml", order.cwd / ".codex" / "config.toml"):
        try:
            names |= set(tomllib.loads(path.read_text()).get("mcp_servers", {}))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError) as exc:
            logger.warning("%s can't be read, so its MCP servers are not switched off: %s", path, exc)
    odd = sorted(name for name in names if not PLAIN_NAME.fullmatch(name))
    if odd:
        logger.warning("codex can't be told to leave out the MCP servers %s", ", ".join(map(repr, odd)))
    return sorted(names - set(odd) - {SERVER})


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
