"""`gateway`, `session`, `messages`, `commands`, `mcp` and `store` of openclaw.json."""

from typing import Annotated, Any, Final, Literal

from ..model import Json
from ..sessions import QueueMode
from .agents import NAME_PATTERN, Strings
from .keys import (
    ACCESS,
    ADDRESS,
    DEFAULT_GATEWAY_PORT,
    FREE,
    LIMIT,
    PERMISSIONS,
    PROGRAM,
    SECRET,
    SENDERS,
    UNKNOWN,
    OpenObject,
    Section,
    key,
)

MAX_DEBOUNCE_MS: Final = 60_000
NETWORK_PATTERN: Final = r"^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$"
MAX_SERVER_WAIT_MS: Final = 86_400_000  # a day
DmScope = Literal["main", "per-peer", "per-channel-peer", "per-account-channel-peer"]


class AuthConfig(Section, frozen=True):
    """Who may connect."""

    mode: Annotated[
        Literal["token", "password", "none"], key("How clients prove who they are; token alone is offered", ACCESS)
    ] = "token"
    token: Annotated[str | None, key("Shared token", SECRET)] = None
    password: Annotated[str | None, key("Shared password; not offered", SECRET)] = None


class ChatCompletionsConfig(Section, frozen=True):
    """POST /v1/chat/completions."""

    enabled: Annotated[bool, key("Offered", ACCESS)] = True


class ResponsesConfig(Section, frozen=True):
    """POST /v1/responses."""

    enabled: Annotated[bool, key("Offered", ACCESS)] = False


class EndpointsConfig(Section, frozen=True):
    """HTTP endpoints."""

    chat_completions: Annotated[ChatCompletionsConfig, key(reload="hot")] = ChatCompletionsConfig()
    responses: Annotated[ResponsesConfig, key(reload="hot")] = ResponsesConfig()


class HttpConfig(Section, frozen=True):
    """HTTP."""

    endpoints: EndpointsConfig = EndpointsConfig()


class HttpToolsConfig(Section, frozen=True):
    """Tools over HTTP and RPC."""

    allow: Annotated[Strings | None, key("Allowed", PERMISSIONS)] = None
    deny: Annotated[Strings | None, key("Denied", PERMISSIONS)] = None


class RemoteGatewayConfig(Section, frozen=True):
    """A gateway elsewhere."""

    url: Annotated[str | None, key("Address", ADDRESS)] = None
    token: Annotated[str | None, key("Its token", SECRET)] = None


class ReloadConfig(Section, frozen=True):
    """Changes of this file."""

    mode: Annotated[Literal["hybrid", "hot", "restart", "off"], key("What a change does", ACCESS)] = "hybrid"


class GatewayConfig(Section, frozen=True):
    """The gateway."""

    mode: Annotated[Literal["local", "remote"] | None, key("Serve here, or use one elsewhere", ACCESS)] = None
    port: Annotated[int, key("Port", ACCESS, ge=0, le=65535)] = DEFAULT_GATEWAY_PORT
    bind: Annotated[
        Literal["loopback", "lan", "auto", "custom"],
        key(
            "Where to listen: loopback is this machine alone, lan every network it is in",
            ACCESS,
            unused=("auto", "custom"),
        ),
    ] = "loopback"
    auth: Annotated[AuthConfig, key(reload="restart")] = AuthConfig()
    trusted_proxies: Annotated[
        tuple[Annotated[str, key("An address, or a network as 10.0.0.0/8", pattern=NETWORK_PATTERN)], ...],
        key("Reverse proxies whose X-Forwarded-For is believed", ACCESS, reload="hot"),
    ] = ()
    http: HttpConfig = HttpConfig()
    tools: Annotated[HttpToolsConfig, key(reload="hot")] = HttpToolsConfig()
    remote: RemoteGatewayConfig = RemoteGatewayConfig()
    reload: ReloadConfig = ReloadConfig()
    nodes: Annotated[Json, key("Nodes", PERMISSIONS, reload="hot")] = {}
    control_ui: Annotated[OpenObject, key("The control page", ACCESS, reload="restart", unused=True)] = OpenObject()


class SessionConfig(Section, frozen=True):
    """Sessions."""

    main_key: Annotated[str, key("Name of the main session", SENDERS, pattern=NAME_PATTERN)] = "main"
    scope: Annotated[Literal["per-sender", "global"] | None, key("Who shares a session", SENDERS, unused=True)] = None
    dm_scope: Annotated[DmScope | None, key("Which direct chats share a session", SENDERS)] = None
    identity_links: Annotated[Json, key("One person's ids on several channels, by name", SENDERS)] = {}
    agent_to_agent: Annotated[Json, key("Agents talking to each other", PERMISSIONS)] = {}
    send_policy: Annotated[OpenObject, key("Where agents may send", PERMISSIONS, unused=True)] = OpenObject()


class InboundConfig(Section, frozen=True):
    """Messages that come quickly one after the other."""

    debounce_ms: Annotated[
        int, key("Milliseconds to wait for the next; 0: each is answered", FREE, ge=0, le=MAX_DEBOUNCE_MS)
    ] = 0
    by_channel: Annotated[
        dict[str, Annotated[int, key("Milliseconds", ge=0, le=MAX_DEBOUNCE_MS)]],
        key("The same for one channel, by its name", FREE),
    ] = {}


class QueueConfig(Section, frozen=True):
    """Messages that come while a run is under way."""

    is_open = True
    mode: Annotated[QueueMode, key("What such a message does")] = "collect"


class MessagesConfig(Section, frozen=True):
    """How messages are treated."""

    is_open = True
    inbound: InboundConfig = InboundConfig()
    queue: QueueConfig = QueueConfig()
    after_tool_send: Annotated[Any, key("dedupe: answer also after the agent sent the message itself")] = None


class CommandsConfig(Section, frozen=True):
    """Commands people write."""

    is_open = True
    restart: Annotated[bool, key("/restart and config-caused restarts", PERMISSIONS)] = True
    owner_allow_from: Annotated[Any, key("Ids of the owner, bare or as channel:id")] = None


class ToolFilter(Section, frozen=True):
    """Which of its tools."""

    is_open = True
    include: Annotated[Strings, key("Only these", PERMISSIONS)] = ()
    exclude: Annotated[Strings, key("Not these", PERMISSIONS)] = ()


PlainValues = dict[str, str | int | float | bool]


class McpServerConfig(Section, frozen=True):
    """One MCP server: a program or an address."""

    is_open = True
    command: Annotated[str, key("The program to start", PROGRAM, min_length=1)] | None = None
    args: Annotated[Strings, key("Its arguments", PROGRAM)] = ()
    env: Annotated[PlainValues, key("Its further environment", SECRET)] = {}
    cwd: Annotated[str | None, key("Folder it starts in", PROGRAM)] = None
    working_directory: Annotated[str | None, key("The same as cwd", PROGRAM)] = None
    url: Annotated[str | None, key("The address of one that is reached over HTTP", ADDRESS)] = None
    headers: Annotated[PlainValues, key("Headers sent with every request", SECRET)] = {}
    transport: Annotated[str | None, key("How to talk to the address: streamable-http", ADDRESS)] = None
    protocol: Annotated[Literal["auto", "handshake", "stateless"], key("The era of MCP", ADDRESS)] = "auto"
    enabled: Annotated[bool, key("Used", PROGRAM)] = True
    agents: Annotated[Strings | None, key("The agents that may use it; all, when it is not set", PERMISSIONS)] = None
    tool_filter: Annotated[ToolFilter, key(agents=UNKNOWN)] = ToolFilter()
    connection_timeout_ms: (
        Annotated[float, key("Milliseconds it may take to start", LIMIT, gt=0, le=MAX_SERVER_WAIT_MS)] | None
    ) = None
    request_timeout_ms: (
        Annotated[float, key("Milliseconds it may take to answer", LIMIT, gt=0, le=MAX_SERVER_WAIT_MS)] | None
    ) = None


class McpConfig(Section, frozen=True):
    """MCP servers agents may use."""

    is_open = True
    servers: Annotated[dict[str, Json], key("Servers by name", UNKNOWN, entries={"*": McpServerConfig})] = {}


class StoreConfig(Section, frozen=True):
    """The database."""

    url: Annotated[str | None, key("PostgreSQL URL; without it, SQLite here", ADDRESS)] = None
