"""The settings of `openclaw proxy`: the environment, a `.env` file, flags; the environment wins over the file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from ..core.errors import BadRequest
from ..core.numbers import parse_whole_number
from ..net.http_client.address import is_header_value
from ..net.state_dir import state_dir_path
from ..protocol.bridge import DEFAULT_URL
from .engine.limits import MAX_BYTES, UNCLAIMED_TIMEOUT, BridgeLimits, Rate, SessionLimits, parse_rate

PREFIX: Final = "OPENCLAW_PROXY_"
DOTENV_ALLOWED: Final = frozenset({
    "APP_TOKEN", "OPENCLAW_TOKEN", "SESSION_TTL_SECONDS", "TOOL_TIMEOUT_SECONDS", "MAX_CALL_SECONDS", "SESSION_ID",
    "APP_RATE", "MCP_RATE", "SESSION_RATE", "MAX_BODY_BYTES",
    "MAX_TOOLS", "MAX_SESSIONS", "MAX_SESSIONS_PER_PEER", "MAX_REGISTERED_BYTES",
    "MAX_CALLS", "MAX_RESULT_BYTES", "PING_SECONDS",
})  # fmt: skip
"""What a `.env` beside the person who starts the proxy may say without being named."""


class ProxySettings(Struct, frozen=True, kw_only=True):
    app_token: str = ""
    mcp_token: str = ""
    server_url: str = DEFAULT_URL
    session_ttl: float = 300.0
    tool_timeout: float = 120.0
    """Seconds a call may take without a word from the app,"""
    longest_call: float = 3600.0
    """and in all, however often the app reports progress."""
    session_id: str = ""
    public_url: str = ""
    origins: frozenset[str] = frozenset()
    hosts: frozenset[str] | None = None
    redis_url: str = ""
    sessions_file: str = ""
    """Where a proxy without Redis keeps its sessions; empty or `off`: nowhere."""
    audit: str = "stderr"
    app_rate: Rate | None = None
    mcp_rate: Rate | None = None
    session_rate: Rate | None = None
    largest_body: int = 4 << 20
    most_tools: int = 512
    most_sessions: int = 20_000
    most_sessions_of_a_peer: int | None = None
    most_bytes: int = MAX_BYTES
    unclaimed: float = UNCLAIMED_TIMEOUT
    bridge: BridgeLimits = BridgeLimits()

    @property
    def session_limits(self) -> SessionLimits:
        """One address may use as much as all, unless a limit is set; three quarters of it where no token is needed."""
        return SessionLimits(
            sessions=self.most_sessions,
            sessions_per_peer=self.most_sessions_of_a_peer or self._peer_share(self.most_sessions),
            bytes=self.most_bytes,
            bytes_per_peer=self._peer_share(self.most_bytes),
            unclaimed_timeout=self.unclaimed,
        )

    def _peer_share(self, total: int) -> int:
        return total if self.app_token else -(-total * 3 // 4)


def read_settings(
    environment: Mapping[str, str] | None = None, *, folder: Path | None = None, file: Path | None = None
) -> ProxySettings:
    """Settings from the environment, from `file`, and, as far as that opens nothing, from `.env` in `folder`.

    Raises BadRequest naming the variable at fault.
    """
    given = os.environ if environment is None else environment
    beside = {} if folder is None else _check_dotenv(read_dotenv(folder / ".env"), given)
    named = {} if file is None else read_dotenv(file, required=True)
    values = _EnvironmentReader({**beside, **named, **given})
    return ProxySettings(
        app_token=values.token("APP_TOKEN"),
        mcp_token=values.token("OPENCLAW_TOKEN"),
        server_url=values.text("SERVER_URL") or DEFAULT_URL,
        session_ttl=values.seconds("SESSION_TTL_SECONDS", 300.0),
        tool_timeout=values.seconds("TOOL_TIMEOUT_SECONDS", 120.0),
        longest_call=values.seconds("MAX_CALL_SECONDS", 3600.0),
        session_id=values.text("SESSION_ID"),
        public_url=values.url("PUBLIC_URL"),
        origins=values.items("ORIGINS"),
        hosts=values.items("HOSTS") or None,
        redis_url=values.text("REDIS_URL"),
        sessions_file=values.text("SESSIONS_FILE"),
        audit=values.text("AUDIT") or "stderr",
        app_rate=values.rate("APP_RATE"),
        mcp_rate=values.rate("MCP_RATE"),
        session_rate=values.rate("SESSION_RATE"),
        largest_body=values.count("MAX_BODY_BYTES", 4 << 20),
        most_tools=values.count("MAX_TOOLS", 512),
        most_sessions=values.count("MAX_SESSIONS", 20_000),
        most_sessions_of_a_peer=values.count("MAX_SESSIONS_PER_PEER", 0) or None,
        most_bytes=values.count("MAX_REGISTERED_BYTES", MAX_BYTES),
        bridge=BridgeLimits(
            calls=values.count("MAX_CALLS", BridgeLimits().calls),
            result=values.count("MAX_RESULT_BYTES", BridgeLimits().result),
            ping=values.seconds("PING_SECONDS", BridgeLimits().ping),
        ),
    )


def place_sessions_file(settings: ProxySettings, *, port: int, folder: str | None = None) -> ProxySettings:
    """The settings of a proxy at this port: unless they say otherwise, it keeps its sessions in the state directory.

    One at any free port keeps none: no client finds it again.
    """
    if settings.sessions_file or settings.redis_url or not port:
        return settings
    return structs.replace(settings, sessions_file=str(state_dir_path(folder) / f"proxy-{port}.sqlite"))


def _check_dotenv(dotenv_values: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Of a file in the current folder, which may have come with others' code.

    Raises BadRequest for what would open the proxy or lead it elsewhere, the tokens of the environment included.
    """
    kept = {name: value for name, value in dotenv_values.items() if name.startswith(PREFIX)}
    tokens = {PREFIX + name for name in ("APP_TOKEN", "OPENCLAW_TOKEN")}
    allowed = {PREFIX + name for name in DOTENV_ALLOWED} | (
        set() if tokens & environment.keys() else {PREFIX + "SERVER_URL"}
    )
    refused = sorted(name for name in kept.keys() - allowed - environment.keys() if kept[name])
    if refused:
        raise BadRequest(
            f"{', '.join(refused)} in .env of this folder would open the proxy or lead it elsewhere: "
            "set it in the environment, or say that you mean that file with --env-file .env"
        )
    return kept


def read_dotenv(path: Path, *, required: bool = False) -> dict[str, str]:
    """`NAME=value` lines of a file, quotes and `export` allowed; nothing when there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if required:
            raise BadRequest(f"there is no file {path}") from None
        return {}
    except (OSError, UnicodeDecodeError):
        raise BadRequest(f"{path.name} can't be read; make it readable UTF-8 text or remove it") from None
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and not name.startswith("#"):
            found[name.strip()] = _unquote(value.strip())
    return found


def _unquote(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()


class _EnvironmentReader:
    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        return self._values.get(PREFIX + name, "").strip()

    def token(self, name: str) -> str:
        text = self.text(name)
        if not is_header_value(text):
            raise BadRequest(f"{PREFIX}{name} holds characters that HTTP can't carry; use letters, digits and signs")
        return text

    def url(self, name: str) -> str:
        text = self.text(name).rstrip("/")
        if text and not text.startswith(("http://", "https://")):
            raise BadRequest(f"{PREFIX}{name} is {text!r}; begin it with http:// or https://")
        return text

    def items(self, name: str) -> frozenset[str]:
        return frozenset(part.strip().rstrip("/").lower() for part in self.text(name).split(",") if part.strip())

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name)
        try:
            value = float(text) if text else default
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise BadRequest(f"{PREFIX}{name} is {text!r}; give a number of seconds above 0")
        return value

    def count(self, name: str, default: int) -> int:
        text = self.text(name)
        number = parse_whole_number(text) if text else default
        if number is None or (text and number == 0):
            raise BadRequest(f"{PREFIX}{name} is {text!r}; give a whole number above 0")
        return number

    def rate(self, name: str) -> Rate | None:
        try:
            return parse_rate(self.text(name))
        except BadRequest as exc:
            raise BadRequest(f"{PREFIX}{name}: {exc}") from None
