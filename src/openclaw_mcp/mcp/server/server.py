"""MCP without transports: one request in, one result out, for a known caller.

Each request is served in its own era, independent of those before it on the same connection.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct

from ...core.errors import BadRequest, CannotAsk, InputRequired, OpenClawError, ToolNotFound
from ...core.model import InputRequest, Json, ToolCall, ToolSpec, text_result
from ...core.ports import CallContext, Completer, PromptProvider, ResourceProvider, Toolbox
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, JsonRpcError
from .exchange import Exchange, QuestionsPending, invalid_params
from .prompts_and_resources import CompletionMethods, PromptMethods, ResourceMethods, paginate
from .subscriptions import ListenRequest, ListenStream, Subscriptions
from .tasks import McpTasks

if TYPE_CHECKING:
    from ...protocol.header_params import HeaderParams
    from .request_state import RequestStateSigner

logger = logging.getLogger(__name__)

PAGE_SIZE: Final = 500  # items a list answers at once

McpMethodHandler = Callable[[Exchange, Json], Awaitable[Json]]

_HANDSHAKE, _STATELESS, _BOTH = 1, 2, 3


class McpServerInfo(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What the server says about itself."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: list[Json] | None = None


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

    def check_headers(self, spec: ToolSpec, headers: Mapping[str, str], arguments: Json) -> None:
        """Raise JsonRpcError unless the HTTP headers repeat the arguments that the tool wants in headers."""
        # Here for start-up: a pipe has no headers.
        from ...protocol.header_params import check_param_headers, find_header_params

        found = self._header_params.get(spec.name)
        if found is None:
            found = self._header_params[spec.name] = find_header_params(spec.input_schema)
        check_param_headers(headers, found, arguments)


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
        self._info = msgspec.to_builtins(info)
        self._toolbox = toolbox
        self._resources = resources
        self._prompts = prompts
        self._completer = completer
        self._instructions = instructions
        self._cache = cache
        self._page_size = page_size
        self._clock = clock
        self._signer_or_none = state_signer
        self._tool_list = _EncodedToolList(())
        self.subscriptions = Subscriptions()
        self.tasks = McpTasks(self.subscriptions.notify_task_change, clock=clock)
        self._routes = self._build_routes()
        self._connect_signals()

    async def answer(self, exchange: Exchange, method: str, params: Json) -> Json:
        """The result of one request. Raises JsonRpcError, and nothing else: the only exception-to-wire boundary."""
        route = self._routes.get(method)
        if route is None or not route[0] & (_STATELESS if exchange.envelope.stateless else _HANDSHAKE):
            raise JsonRpcError(METHOD_NOT_FOUND, f"Method not found: {method[:100]}")
        try:
            if exchange.envelope.stateless and "requestState" in params:
                self._restore_answers(exchange, method, params)
            result = await route[1](exchange, params)
        except JsonRpcError:
            raise
        except QuestionsPending as pending:
            result = self._input_required_result(exchange, method, params, pending.questions)
        except CannotAsk as exc:
            data: Json = {"requiredCapabilities": {exc.capability: {}}}
            raise JsonRpcError(mcp.MISSING_CAPABILITY, str(exc), data) from exc
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

    def capabilities(self, *, stateless: bool) -> Json:
        declared: Json = {"logging": {}}
        if self._toolbox is not None:
            declared["tools"] = {"listChanged": True}
        if self._prompts is not None:
            declared["prompts"] = {"listChanged": True}
        if self._resources is not None:
            declared["resources"] = {"listChanged": True, "subscribe": True}
        if self._completer is not None:
            declared["completions"] = {}
        if stateless:
            declared["extensions"] = {mcp.TASKS: {}}
        return declared

    async def _discover(self, exchange: Exchange, params: Json) -> Json:
        result: Json = {
            "supportedVersions": list(mcp.STATELESS_VERSIONS),
            "capabilities": self.capabilities(stateless=True),
        }
        return self._with_instructions(result)

    async def _initialize(self, exchange: Exchange, params: Json) -> Json:
        result: Json = {
            "protocolVersion": mcp.negotiate_version(params),
            "capabilities": self.capabilities(stateless=False),
            "serverInfo": self._info,
        }
        return self._with_instructions(result)

    def _with_instructions(self, result: Json) -> Json:
        if self._instructions:
            result["instructions"] = self._instructions
        return result

    async def _ping(self, exchange: Exchange, params: Json) -> Json:
        return {}

    async def _set_level(self, exchange: Exchange, params: Json) -> Json:
        level = params.get("level")
        if level not in mcp.LOG_LEVELS:
            raise invalid_params(f"`level` must be one of {', '.join(mcp.LOG_LEVELS)}")
        exchange.peer.log_level = level
        return {}

    # ---- tools ----

    async def _tools_list(self, toolbox: Toolbox, exchange: Exchange, params: Json) -> Json:
        tools = self._encode_list(await toolbox.list(exchange.caller))
        specs, following = paginate(tools.specs, params, lambda spec: spec.name, self._page_size)
        return {"tools": [tools.encode_tool(spec) for spec in specs], **following}

    async def _tools_call(self, toolbox: Toolbox, exchange: Exchange, params: Json) -> Json:
        name, arguments = params.get("name"), params.get("arguments")
        if type(name) is not str:
            raise invalid_params("`name` must be a string")
        if arguments is None:
            arguments = {}
        if type(arguments) is not dict:
            raise invalid_params("`arguments` must be an object")
        if exchange.envelope.stateless:
            spec = self._prepare(exchange, name, arguments, await toolbox.list(exchange.caller))
            if spec is not None and self.tasks.declares_tasks(exchange):
                return await self.tasks.run(
                    exchange, spec, lambda context: self._call(toolbox, exchange, name, arguments, context)
                )
        return await self._call(toolbox, exchange, name, arguments, exchange)

    def _prepare(self, exchange: Exchange, name: str, arguments: Json, specs: Sequence[ToolSpec]) -> ToolSpec | None:
        """What the stateless era checks before a call: headers that repeat arguments, and the support of tasks."""
        tools = self._encode_list(specs)
        spec = tools.by_name.get(name)
        if spec is None:
            return None
        self.tasks.require_support(exchange, spec)
        if exchange.headers is not None:
            tools.check_headers(spec, exchange.headers, arguments)
        return spec

    async def _call(
        self, toolbox: Toolbox, exchange: Exchange, name: str, arguments: Json, context: CallContext
    ) -> Json:
        call = ToolCall(caller=exchange.caller, name=name, arguments=arguments, context=context)
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
            logger.exception("tool %s failed", name)
            result = text_result(f"{name} failed inside the server; its log says more", failed=True)
        return mcp.encode_tool_result(result)

    def _encode_list(self, specs: Sequence[ToolSpec]) -> _EncodedToolList:
        if specs is not self._tool_list.specs:
            self._tool_list = _EncodedToolList(specs)
        return self._tool_list

    async def _subscriptions_listen(self, exchange: Exchange, params: Json) -> Json:
        """Ends only when the client does; its notifications are sent on this request's own stream."""
        request = ListenRequest.parse(params, list_changes=self.list_changes)
        request = request.with_tasks(self.tasks.filter_watchable(exchange, request.tasks))
        listener = ListenStream(exchange.id, request)
        with self.subscriptions.register(listener):
            while True:
                await exchange.write(await listener.next())

    # ---- what every method shares ----

    def _restore_answers(self, exchange: Exchange, method: str, params: Json) -> None:
        """Give the exchange the answers that came with a repeated call, in this round and in earlier ones.

        Only what the call's state asked counts: answers without a state answer nothing, and are asked for.
        """
        call = _call_identity(method, params)
        exchange.answers = self._state_signer.verify_state(
            params["requestState"], exchange.caller, call, _read_answers(params)
        )

    def _input_required_result(
        self, exchange: Exchange, method: str, params: Json, questions: Mapping[str, InputRequest]
    ) -> Json:
        """The result that asks the client to send the call again with answers."""
        call = _call_identity(method, params)
        state = self._state_signer.issue_state(exchange.caller, call, questions, exchange.answers)
        requests = {key: {"method": ask.method, "params": ask.params} for key, ask in questions.items()}
        return {"resultType": "input_required", "inputRequests": requests, "requestState": state}

    @property
    def _state_signer(self) -> "RequestStateSigner":
        if self._signer_or_none is None:
            # Here for start-up: signing loads OpenSSL, and a server whose tools ask nothing never signs.
            from .request_state import RequestStateSigner

            self._signer_or_none = RequestStateSigner(clock=self._clock)
        return self._signer_or_none

    def _add_result_meta(self, method: str, result: Json) -> None:
        if result.setdefault("resultType", "complete") == "complete" and method in mcp.CACHEABLE_METHODS:
            result["ttlMs"] = self._cache.milliseconds
            result["cacheScope"] = self._cache.scope
        meta = result.setdefault("_meta", {})
        meta[mcp.SERVER_INFO] = self._info

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
            routes["completion/complete"] = (_BOTH, CompletionMethods(self._completer).complete)
        return routes

    def _connect_signals(self) -> None:
        for key, provider in self._providers.items():
            method = mcp.LIST_CHANGE_NOTIFICATIONS[key]
            provider.changed.connect(partial(self._on_list_change, method))
        if self._resources is not None:
            self._resources.updated.connect(self.subscriptions.notify_resource_update)

    def _on_list_change(self, method: str, _: None) -> None:
        self.subscriptions.notify_list_change(method)


def _read_answers(params: Json) -> dict[str, Json]:
    """The answers of a repeated call. One that is no object counts as not given."""
    responses = params.get("inputResponses")
    if type(responses) is not dict:
        return {}
    return {key: value for key, value in responses.items() if type(value) is dict}


def _call_identity(method: str, params: Json) -> Json:
    """What makes two calls the same call, with different answers too."""
    return {"method": method, **{key: params[key] for key in ("name", "arguments", "uri") if key in params}}
