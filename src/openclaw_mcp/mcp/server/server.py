"""MCP without transports: one request in, one result out, for a known caller.

Each request is served in its own era, independent of those before it on the same connection.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct, structs

from ...core.errors import BadRequest, CannotAsk, InputRequired, OpenClawError, ToolNotFound
from ...core.model import InputRequest, ToolCall, ToolSpec, text_result
from ...core.ports import Completer, PromptProvider, ResourceProvider, Toolbox
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, JsonRpcError
from .exchange import Exchange, QuestionsPending, invalid_params
from .prompts_and_resources import PromptMethods, ResourceMethods, complete, paginate
from .subscriptions import ListenStream, Subscriptions, read_listen_filter
from .tasks import McpTasks, require_support

if TYPE_CHECKING:
    from ...protocol.header_params import HeaderParams
    from .request_state import RequestStateSigner

logger = logging.getLogger(__name__)

PAGE_SIZE: Final = 500  # items a list answers at once

McpMethodHandler = Callable[[Exchange], Awaitable[mcp.McpResult]]

_HANDSHAKE, _STATELESS, _BOTH = 1, 2, 3


class McpServerInfo(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What the server says about itself."""

    name: str
    version: str
    title: str | None = None


class _Feature(Struct, frozen=True, omit_defaults=True, rename="camel"):
    list_changed: bool = False
    subscribe: bool = False


class _ServerCapabilities(Struct, omit_defaults=True):
    logging: _Feature
    tools: _Feature | None = None
    prompts: _Feature | None = None
    resources: _Feature | None = None
    completions: _Feature | None = None
    extensions: dict[str, _Feature] | None = None


class _DiscoverResult(mcp.McpResult):
    supported_versions: tuple[str, ...]
    capabilities: _ServerCapabilities
    instructions: str | None = None


class _InitializeResult(mcp.McpResult):
    protocol_version: str
    capabilities: _ServerCapabilities
    server_info: McpServerInfo
    instructions: str | None = None


class _ToolsPage(mcp.McpResult):
    tools: list[msgspec.Raw]
    next_cursor: str | None = None


class _InputRequiredResult(mcp.McpResult):
    input_requests: dict[str, mcp.EncodedQuestion]
    request_state: str


class CacheHint(Struct, frozen=True):
    """How long, and for whom, a client may cache a result."""

    milliseconds: int = 0
    scope: Literal["public", "private"] = "private"


class _EncodedToolList:
    """A tool list as it is sent, encoded once for each list object the toolbox returns."""

    __slots__ = ("_encoded", "_header_params", "by_name", "specs")

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self.specs = specs
        self.by_name = {spec.name: spec for spec in specs}
        self._encoded: dict[str, msgspec.Raw] = {}
        self._header_params: dict[str, HeaderParams] = {}

    def encode_tool(self, spec: ToolSpec) -> msgspec.Raw:
        encoded = self._encoded.get(spec.name)
        if encoded is None:
            encoded = self._encoded[spec.name] = msgspec.Raw(jsonrpc.encode(mcp.encode_tool(spec)))
        return encoded

    def check_headers(self, spec: ToolSpec, headers: Mapping[str, str], call: ToolCall) -> None:
        """Raise JsonRpcError unless the HTTP headers repeat the arguments that the tool wants in headers."""
        found = self._header_params.get(spec.name)
        if found is not None and not found:
            return  # nearly every tool; the import below would cost more than the rest
        # Here for start-up: a pipe has no headers.
        from ...protocol.header_params import check_param_headers, find_header_params

        if found is None:
            found = self._header_params[spec.name] = find_header_params(spec.input_schema)
        check_param_headers(headers, found, call.arguments)


class McpServer:
    """Serves a toolbox, and optionally resources, prompts and completions, in both eras."""

    def __init__(
        self,
        info: McpServerInfo,
        toolbox: Toolbox | None = None,
        *,
        resources: ResourceProvider | None = None,
        prompts: PromptProvider | None = None,
        completer: Completer | None = None,
        instructions: str | None = None,
        cache: CacheHint = CacheHint(),
        page_size: int = PAGE_SIZE,
        state_signer: "RequestStateSigner | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._info = info
        self._toolbox = toolbox
        self._resources = resources
        self._prompts = prompts
        self._completer = completer
        self._instructions = instructions or None
        self._cache = cache
        self._page_size = page_size
        self._clock = clock
        self._signer_or_none = state_signer
        self._tool_list = _EncodedToolList(())
        self.subscriptions = Subscriptions()
        self.tasks = McpTasks(self.subscriptions.notify_task_change, clock=clock)
        self._routes = self._build_routes()
        self._connect_signals()

    async def answer(self, exchange: Exchange) -> mcp.McpResult:
        """The result of one request. Raises JsonRpcError, and nothing else: the only exception-to-wire boundary."""
        method = exchange.request.method
        route = self._routes.get(method)
        if route is None or not route[0] & (_STATELESS if exchange.envelope.stateless else _HANDSHAKE):
            raise JsonRpcError(METHOD_NOT_FOUND, f"Method not found: {method[:100]}")
        try:
            if exchange.envelope.stateless and "requestState" in exchange.params:
                # Answers without a state answer nothing, and are asked for.
                exchange.answers = self._state_signer.verify_state(exchange.caller, exchange.request)
            result = await route[1](exchange)
        except JsonRpcError:
            raise
        except QuestionsPending as pending:
            result = self._ask_again(exchange, pending.questions)
        except CannotAsk as exc:
            needed: dict[str, dict[str, str]] = {exc.capability: {}}
            raise JsonRpcError(mcp.MISSING_CAPABILITY, str(exc), {"requiredCapabilities": needed}) from exc
        except OpenClawError as exc:
            raise JsonRpcError(INTERNAL_ERROR, str(exc), {"code": exc.code}) from exc
        except Exception:
            logger.exception("%s failed", method)
            raise JsonRpcError(INTERNAL_ERROR, "Internal error; the server's log says more") from None
        if exchange.envelope.stateless:
            self._add_result_meta(method, result)
        return result

    @property
    def list_changes(self) -> Sequence[str]:
        """The list changes a client may be notified of, by their names in `subscriptions/listen`."""
        return list(self._providers)

    @property
    def _providers(self) -> Mapping[str, Toolbox | PromptProvider | ResourceProvider]:
        offered = {
            "toolsListChanged": self._toolbox,
            "promptsListChanged": self._prompts,
            "resourcesListChanged": self._resources,
        }
        return {key: provider for key, provider in offered.items() if provider is not None}

    async def aclose(self) -> None:
        """Stop the tasks that outlive their requests."""
        await self.tasks.aclose()

    # ---- opening ----

    def _capabilities(self) -> _ServerCapabilities:
        return _ServerCapabilities(
            logging=_Feature(),
            tools=_Feature(list_changed=True) if self._toolbox is not None else None,
            prompts=_Feature(list_changed=True) if self._prompts is not None else None,
            resources=_Feature(list_changed=True, subscribe=True) if self._resources is not None else None,
            completions=_Feature() if self._completer is not None else None,
        )

    async def _discover(self, exchange: Exchange) -> mcp.McpResult:
        capabilities = self._capabilities()
        capabilities.extensions = {mcp.TASKS: _Feature()}
        return _DiscoverResult(mcp.STATELESS_VERSIONS, capabilities, self._instructions)

    async def _initialize(self, exchange: Exchange) -> mcp.McpResult:
        version = mcp.read_initialize(exchange.params).version
        return _InitializeResult(version, self._capabilities(), self._info, self._instructions)

    async def _ping(self, exchange: Exchange) -> mcp.McpResult:
        return mcp.McpResult()

    async def _set_level(self, exchange: Exchange) -> mcp.McpResult:
        level = exchange.params.get("level")
        if level not in mcp.LOG_LEVELS:
            raise invalid_params(f"`level` must be one of {', '.join(mcp.LOG_LEVELS)}")
        exchange.peer.log_level = level
        return mcp.McpResult()

    # ---- tools ----

    async def _tools_list(self, toolbox: Toolbox, exchange: Exchange) -> mcp.McpResult:
        tools = self._encode_list(await toolbox.list(exchange.caller))
        specs, next_cursor = paginate(tools.specs, exchange, lambda spec: spec.name, self._page_size)
        return _ToolsPage([tools.encode_tool(spec) for spec in specs], next_cursor)

    async def _tools_call(self, toolbox: Toolbox, exchange: Exchange) -> mcp.McpResult:
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        if type(name) is not str:
            raise invalid_params("`name` must be a string")
        if arguments is None:
            arguments = {}
        if type(arguments) is not dict:
            raise invalid_params("`arguments` must be an object")
        call = ToolCall(caller=exchange.caller, name=name, arguments=arguments, context=exchange)
        if exchange.envelope.stateless:
            spec = self._prepare(exchange, call, await toolbox.list(exchange.caller))
            if spec is not None and exchange.envelope.capabilities.can_poll_tasks:
                return await self.tasks.run(
                    exchange, spec, lambda task: self._call(toolbox, exchange, structs.replace(call, context=task))
                )
        return await self._call(toolbox, exchange, call)

    def _prepare(self, exchange: Exchange, call: ToolCall, specs: Sequence[ToolSpec]) -> ToolSpec | None:
        """What the stateless era checks before a call: headers that repeat arguments, and the support of tasks."""
        tools = self._encode_list(specs)
        spec = tools.by_name.get(call.name)
        if spec is None:
            return None
        if spec.task == "required":
            require_support(exchange)
        if exchange.headers is not None:
            tools.check_headers(spec, exchange.headers, call)
        return spec

    async def _call(self, toolbox: Toolbox, exchange: Exchange, call: ToolCall) -> mcp.ToolCallResult:
        try:
            result = await toolbox.call(call)
        except (ToolNotFound, BadRequest) as exc:
            raise JsonRpcError(jsonrpc.INVALID_PARAMS, str(exc)) from exc
        except InputRequired:
            raise
        except CannotAsk as exc:
            if exchange.envelope.stateless:
                raise
            result = text_result(str(exc), failed=True)
        except OpenClawError as exc:
            # A failed tool is a result: the model can read it and act on it.
            result = text_result(str(exc), failed=True)
        except Exception:
            logger.exception("tool %s failed", call.name)
            result = text_result(f"{call.name} failed inside the server; its log says more", failed=True)
        return mcp.encode_tool_result(result)

    def _encode_list(self, specs: Sequence[ToolSpec]) -> _EncodedToolList:
        if specs is not self._tool_list.specs:
            self._tool_list = _EncodedToolList(specs)
        return self._tool_list

    async def _subscriptions_listen(self, exchange: Exchange) -> mcp.McpResult:
        """Ends only when the client does; its notifications are sent on this request's own stream."""
        wanted = read_listen_filter(exchange.params.get("notifications"), list_changes=self.list_changes)
        if wanted.task_ids:
            wanted = structs.replace(wanted, task_ids=self.tasks.filter_watchable(exchange, wanted.task_ids))
        listener = ListenStream(exchange.request.id, wanted)
        with self.subscriptions.register(listener):
            while True:
                await exchange.write(await listener.next())

    # ---- what every method shares ----

    def _ask_again(self, exchange: Exchange, questions: Mapping[str, InputRequest]) -> mcp.McpResult:
        """The result that asks the client to send the call again with answers."""
        state = self._state_signer.issue_state(exchange.caller, exchange.request, questions, exchange.answers)
        return _InputRequiredResult(mcp.encode_questions(questions), state, result_type="input_required")

    @property
    def _state_signer(self) -> "RequestStateSigner":
        if self._signer_or_none is None:
            # Here for start-up: signing loads OpenSSL, and a server whose tools ask nothing never signs.
            from .request_state import RequestStateSigner

            self._signer_or_none = RequestStateSigner(clock=self._clock)
        return self._signer_or_none

    def _add_result_meta(self, method: str, result: mcp.McpResult) -> None:
        if result.result_type is None:
            result.result_type = "complete"
            if method in mcp.CACHEABLE_METHODS:
                result.ttl_ms, result.cache_scope = self._cache.milliseconds, self._cache.scope
        if result.meta is None:
            result.meta = {}
        result.meta[mcp.SERVER_INFO] = self._info

    def _build_routes(self) -> Mapping[str, tuple[int, McpMethodHandler]]:
        routes: dict[str, tuple[int, McpMethodHandler]] = {
            "initialize": (_HANDSHAKE, self._initialize),
            "ping": (_HANDSHAKE, self._ping),
            "logging/setLevel": (_HANDSHAKE, self._set_level),
            "server/discover": (_STATELESS, self._discover),
            "subscriptions/listen": (_STATELESS, self._subscriptions_listen),
            "tasks/get": (_STATELESS, self.tasks.get),
            "tasks/update": (_STATELESS, self.tasks.update),
            "tasks/cancel": (_STATELESS, self.tasks.cancel),
        }
        if self._toolbox is not None:
            routes["tools/list"] = (_BOTH, partial(self._tools_list, self._toolbox))
            routes["tools/call"] = (_BOTH, partial(self._tools_call, self._toolbox))
        if self._prompts is not None:
            prompts = PromptMethods(self._prompts, self._page_size)
            routes["prompts/list"] = (_BOTH, prompts.list)
            routes["prompts/get"] = (_BOTH, prompts.get)
        if self._resources is not None:
            resources = ResourceMethods(self._resources, self._page_size)
            routes["resources/list"] = (_BOTH, resources.list)
            routes["resources/templates/list"] = (_BOTH, resources.templates)
            routes["resources/read"] = (_BOTH, resources.read)
            routes["resources/subscribe"] = (_HANDSHAKE, resources.subscribe)
            routes["resources/unsubscribe"] = (_HANDSHAKE, resources.unsubscribe)
        if self._completer is not None:
            routes["completion/complete"] = (_BOTH, partial(complete, self._completer))
        return routes

    def _connect_signals(self) -> None:
        for key, provider in self._providers.items():
            method = mcp.LIST_CHANGE_NOTIFICATIONS[key]
            provider.changed.connect(partial(self._on_list_change, method))
        if self._resources is not None:
            self._resources.updated.connect(self.subscriptions.notify_resource_update)

    def _on_list_change(self, method: str, _: None) -> None:
        self.subscriptions.notify_list_change(method)
