"""One entry of `mcp.servers`, read and checked. Knows nothing of running servers."""

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from ...core.errors import OpenClawError
from ...core.model import Json
from ...net.environment import minimal_environment

CONNECT_WAIT: Final = 30.0  # seconds a server may take to start and introduce itself, unless its entry says otherwise
REQUEST_WAIT: Final = 60.0  # seconds a request may go without an answer or a sign of progress
MAX_WAIT: Final = 86_400.0
MAX_NAME_LENGTH: Final = 64
SHORTEST_SECRET: Final = 4  # shorter values are not masked: they would blank out ordinary words

Era = Literal["auto", "handshake", "stateless"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class BadServerEntry(OpenClawError):
    """An entry that can't be used; the text names the entry and what to change."""

    code = "bad_settings"


class ServerProgram(Struct, frozen=True, kw_only=True):
    """A server that is a child process."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    """The whole environment of the child."""
    cwd: str | None = None


class ServerAddress(Struct, frozen=True, kw_only=True):
    """A server that is an HTTP endpoint."""

    url: str
    headers: Mapping[str, str] = {}


class ServerEntry(Struct, frozen=True, kw_only=True):
    name: str
    target: ServerProgram | ServerAddress
    era: Era = "auto"
    enabled: bool = True
    agents: frozenset[str] | None = None
    """The agents that may use it; None = all."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    connect_wait: float = CONNECT_WAIT
    request_wait: float = REQUEST_WAIT
    secrets: tuple[str, ...] = ()
    """Values that must not be repeated in an error's text."""

    def allows_tool(self, tool: str) -> bool:
        """Whether `toolFilter` lets this tool through."""
        if self.include and not any(fnmatchcase(tool, pattern) for pattern in self.include):
            return False
        return not any(fnmatchcase(tool, pattern) for pattern in self.exclude)

    def allows_agent(self, agent: str) -> bool:
        return self.agents is None or agent in self.agents

    def redact_secrets(self, text: str) -> str:
        """`text` without the values of this entry's headers and environment."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def read_entry(name: str, value: Any, environ: Mapping[str, str] | None = None) -> ServerEntry:
    """Raises BadEntry. `${NAME}` in `env`, `headers`, `args` and `url` is taken from `environ`, ours by default."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        raise BadServerEntry(
            f"{name!r} is no name for a server; use up to {MAX_NAME_LENGTH} letters, digits, '.', '_' and '-'"
        )
    if type(value) is not dict:
        raise BadServerEntry(f"mcp.servers.{name} must be an object")
    reader = _EntryReader(name, value, os.environ if environ is None else environ)
    allowed = reader.read_strings("agents")
    tools = reader.read_object("toolFilter")
    return ServerEntry(
        name=name,
        target=reader.read_target(),
        era=reader.read_era(),
        enabled=reader.read_flag("enabled", default=True),
        agents=None if allowed is None else frozenset(allowed),
        include=tuple(_EntryReader(name, tools, {}).read_strings("include") or ()),
        exclude=tuple(_EntryReader(name, tools, {}).read_strings("exclude") or ()),
        connect_wait=reader.read_seconds("connectionTimeoutMs", CONNECT_WAIT),
        request_wait=reader.read_seconds("requestTimeoutMs", REQUEST_WAIT),
        secrets=tuple(sorted(reader.secrets, key=len, reverse=True)),
    )


class _EntryReader:
    def __init__(self, name: str, value: Json, environ: Mapping[str, str]) -> None:
        self._name = name
        self._value = value
        self._environ = environ
        self.secrets: set[str] = set()

    def read_target(self) -> ServerProgram | ServerAddress:
        command: Any = self._value.get("command")
        url: Any = self._value.get("url")
        if (command is None) == (url is None):
            raise self._error("needs either `command` or `url`")
        if command is not None:
            return self._read_program(command)
        kind = self._value.get("transport", self._value.get("type", "http"))
        if kind == "sse":
            raise self._error("`transport` sse was retired by MCP in 2025; use the server's streamable-http address")
        self._require(kind in ("http", "streamable-http"), "transport", "streamable-http")
        if "auth" in self._value:
            raise self._error("`auth` is not supported yet; put a token into `headers` instead")
        valid = type(url) is str and url.startswith(("http://", "https://"))
        self._require(valid, "url", "an http:// or https:// address")
        return ServerAddress(url=self._expand_variables(url, "url"), headers=self._read_pairs("headers"))

    def _read_program(self, command: Any) -> ServerProgram:
        self._require(type(command) is str and command != "", "command", "a program's name or path")
        cwd = self._value.get("cwd", self._value.get("workingDirectory"))
        self._require(cwd is None or type(cwd) is str, "cwd", "a folder")
        cwd = None if cwd is None else str(Path(cwd).expanduser())
        if "/" in command:
            command = str(Path(cwd or "", Path(command).expanduser()))
        return ServerProgram(
            command=command,
            args=tuple(self._expand_variables(word, "args") for word in self.read_strings("args") or ()),
            env={**minimal_environment(self._environ), **self._read_pairs("env")},
            cwd=cwd,
        )

    def read_era(self) -> Era:
        era: Era = self._value.get("protocol", "auto")
        self._require(era in ("auto", "handshake", "stateless"), "protocol", "auto, handshake or stateless")
        return era

    def read_flag(self, key: str, *, default: bool) -> bool:
        value: bool = self._value.get(key, default)
        self._require(type(value) is bool, key, "true or false")
        return value

    def read_object(self, key: str) -> Json:
        value: Json = self._value.get(key) or {}
        self._require(type(value) is dict, key, "an object")
        return value

    def read_strings(self, key: str) -> list[str] | None:
        value: list[str] | None = self._value.get(key)
        valid = value is None or (type(value) is list and all(type(item) is str for item in value))
        self._require(valid, key, "a list of strings")
        return value

    def read_seconds(self, key: str, default: float) -> float:
        value = self._value.get(key, default * 1000)
        valid = type(value) in (int, float) and 0 < value <= MAX_WAIT * 1000
        self._require(value is None or valid, key, "milliseconds, more than 0 and at most a day")
        return default if value is None else float(value) / 1000

    def _require(self, valid: bool, key: str, needed: str) -> None:
        if not valid:
            raise self._error(f"`{key}` must be {needed}")

    def _read_pairs(self, key: str) -> dict[str, str]:
        pairs = {}
        for name, value in self.read_object(key).items():
            if type(value) not in (str, int, float, bool):
                raise self._error(f"`{key}.{name}` must be a string")
            text = str(value).lower() if type(value) is bool else str(value)
            pairs[name] = self._expand_variables(text, f"{key}.{name}")
            if key == "headers" and not _is_header(name, pairs[name]):
                raise self._error(f"`{key}.{name}` is no HTTP header: no line breaks, no spaces in its name")
            if len(pairs[name]) >= SHORTEST_SECRET:
                self.secrets |= {pairs[name], pairs[name].removeprefix("Bearer ")}
        return pairs

    def _expand_variables(self, text: str, key: str) -> str:
        def fill(match: re.Match[str]) -> str:
            value = self._environ.get(match[1])
            if value is None:
                raise self._error(f"`{key}` names ${{{match[1]}}}, which the environment does not have")
            if len(value) >= SHORTEST_SECRET:
                self.secrets.add(value)
            return value

        return _REFERENCE.sub(fill, text)

    def _error(self, reason: str) -> BadServerEntry:
        return BadServerEntry(f"mcp.servers.{self._name}: {reason}")


def _is_header(name: str, value: str) -> bool:
    return bool(re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name)) and value.isprintable()
