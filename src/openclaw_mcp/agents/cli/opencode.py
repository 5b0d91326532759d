"""OpenCode: `opencode run --format json`, configured through its environment."""

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyjson5

from ...core.agent import AgentEvent, Model, Thinking, Usage
from ...core.errors import BadRequest
from ...core.model import Json
from .words import CALL_SECONDS, SERVER, Listening, Order, Spoken, count, own_name, part, text_at

logger = logging.getLogger(__name__)

CONTENT = "OPENCODE_CONFIG_CONTENT"


class OpenCode:
    """A `Dialect`. What we add is merged with the user's configuration by OpenCode itself, for this process alone."""

    id = "opencode"
    title = "OpenCode"
    program = "opencode"
    install = "npm install -g opencode-ai"
    sign_in = "run `opencode auth login` once, or set the provider's key in the agent's runtimeEnv"
    takes: tuple[str, ...] = ("image/",)
    adds_up: tuple[str, ...] = ()

    def speak(self, order: Order) -> Spoken:
        args = ["run", "--format", "json"]
        if order.session is not None:
            args += ["--session", order.session]
        if order.model is not None:
            args += ["--model", order.model]
        if order.effort is not None:
            args += ["--variant", order.effort, "--thinking"]
        args += [f"--file={path}" for path, _ in order.files]
        config = self._config(order)
        env = {CONTENT: msgspec.json.encode(config).decode()} if config else {}
        return Spoken(args=args, env=env, stdin=order.prompt.encode())

    def _config(self, order: Order) -> Json:
        try:
            config: Json = dict(pyjson5.decode(order.env[CONTENT])) if order.env.get(CONTENT) else {}
        except (pyjson5.Json5Exception, TypeError, ValueError):
            raise BadRequest(
                f"{CONTENT} in the agent's runtimeEnv is not a JSON object; correct or remove it"
            ) from None
        servers = dict(part(config, "mcp"))
        if order.strict:
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
        return


def _others(order: Order) -> set[str]:
    """The servers the user's own files name."""
    home = Path(order.env.get("HOME", "~")).expanduser()
    own = Path(order.env.get("XDG_CONFIG_HOME") or home / ".config") / "opencode"
    folders = [own, *(place for above in (order.cwd, *order.cwd.parents) for place in (above, above / ".opencode"))]
    paths = [folder / name for folder in folders for name in ("opencode.json", "opencode.jsonc", "config.json")]
    if order.env.get("OPENCODE_CONFIG"):
        paths.append(Path(order.env["OPENCODE_CONFIG"]))
    names: set[str] = set()
    for path in paths:
        try:
            names |= set(part(pyjson5.decode(path.read_text()), "mcp"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, pyjson5.Json5Exception) as exc:
            logger.warning("%s can't be read, so its MCP servers are not switched off: %s", path, type(exc).__name__)
    return names


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
