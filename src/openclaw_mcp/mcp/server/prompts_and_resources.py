"""The methods for prompts, resources and completions, and lists page by page."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from ...core import model
from ...core.errors import PromptArguments, PromptNotFound, ResourceNotFound
from ...core.ports import Completer, PromptProvider, ResourceProvider
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import JsonRpcError
from .exchange import Exchange, invalid_params
from .subscriptions import MAX_SUBSCRIPTIONS

MAX_COMPLETIONS: Final = 100  # the specification's own bound

ListItem = TypeVar("ListItem")


class _PromptsPage(mcp.McpResult):
    prompts: Sequence[model.PromptSpec]
    next_cursor: str | None = None


class _ResourcesPage(mcp.McpResult):
    resources: Sequence[model.ResourceSpec]
    next_cursor: str | None = None


class _TemplatesPage(mcp.McpResult):
    resource_templates: Sequence[model.TemplateSpec]
    next_cursor: str | None = None


class _PromptResult(mcp.McpResult):
    messages: tuple[model.PromptMessage, ...]
    description: str | None = None


class _ResourceResult(mcp.McpResult):
    contents: Sequence[model.Contents]


class _CompletionResult(mcp.McpResult):
    completion: model.Completion


class PromptMethods:
    def __init__(self, provider: PromptProvider, page_size: int) -> None:
        self._provider = provider
        self._page_size = page_size

    async def list(self, exchange: Exchange) -> mcp.McpResult:
        specs = await self._provider.list(exchange.caller)
        return _PromptsPage(*paginate(specs, exchange, lambda spec: spec.name, self._page_size))

    async def get(self, exchange: Exchange) -> mcp.McpResult:
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments") or {}
        if type(name) is not str:
            raise invalid_params("`name` must be a string")
        if type(arguments) is not dict or not all(type(value) is str for value in arguments.values()):
            raise invalid_params("`arguments` must be an object of strings")
        call = model.PromptCall(caller=exchange.caller, name=name, arguments=arguments, context=exchange)
        try:
            prompt = await self._provider.get(call)
        except (PromptNotFound, PromptArguments) as exc:
            raise JsonRpcError(jsonrpc.INVALID_PARAMS, str(exc)) from exc
        return _PromptResult(prompt.messages, prompt.description)


class ResourceMethods:
    def __init__(self, provider: ResourceProvider, page_size: int) -> None:
        self._provider = provider
        self._page_size = page_size

    async def list(self, exchange: Exchange) -> mcp.McpResult:
        specs = await self._provider.list(exchange.caller)
        return _ResourcesPage(*paginate(specs, exchange, lambda spec: spec.uri, self._page_size))

    async def templates(self, exchange: Exchange) -> mcp.McpResult:
        specs = await self._provider.templates(exchange.caller)
        return _TemplatesPage(*paginate(specs, exchange, lambda spec: spec.uri_template, self._page_size))

    async def read(self, exchange: Exchange) -> mcp.McpResult:
        read = model.ResourceRead(caller=exchange.caller, uri=_require_uri(exchange), context=exchange)
        try:
            return _ResourceResult(await self._provider.read(read))
        except ResourceNotFound as exc:
            code = jsonrpc.INVALID_PARAMS if exchange.envelope.stateless else mcp.LEGACY_RESOURCE_NOT_FOUND
            raise JsonRpcError(code, str(exc), {"uri": read.uri}) from exc

    async def subscribe(self, exchange: Exchange) -> mcp.McpResult:
        if len(exchange.peer.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise invalid_params(f"at most {MAX_SUBSCRIPTIONS} resources may be subscribed at once")
        exchange.peer.subscriptions.add(_require_uri(exchange))
        return mcp.McpResult()

    async def unsubscribe(self, exchange: Exchange) -> mcp.McpResult:
        exchange.peer.subscriptions.discard(_require_uri(exchange))
        return mcp.McpResult()


async def complete(completer: Completer, exchange: Exchange) -> mcp.McpResult:
    """Answer `completion/complete`."""
    params = exchange.params
    ref, argument, context = params.get("ref"), params.get("argument"), params.get("context") or {}
    if type(ref) is not dict or type(argument) is not dict or type(context) is not dict:
        raise invalid_params("`ref` and `argument` must be objects")
    if type(argument.get("name")) is not str or type(argument.get("value")) is not str:
        raise invalid_params("`argument` needs the strings `name` and `value`")
    found = await completer.complete(exchange.caller, ref, argument, context)
    more = found.has_more or len(found.values) > MAX_COMPLETIONS
    total = max(found.total, len(found.values))
    return _CompletionResult(model.Completion(found.values[:MAX_COMPLETIONS], total, more))


def paginate(
    items: Sequence[ListItem], exchange: Exchange, key: Callable[[ListItem], str], size: int
) -> tuple[Sequence[ListItem], str | None]:
    """One page after the request's cursor, and the cursor for the next: the hex of the last item's key."""
    cursor = exchange.params.get("cursor")
    start = 0 if cursor is None else _index_after(cursor, items, key)
    page = items[start : start + size]
    return page, key(page[-1]).encode().hex() if start + size < len(items) else None


def _index_after(cursor: Any, items: Sequence[ListItem], key: Callable[[ListItem], str]) -> int:
    if type(cursor) is str:
        for index, item in enumerate(items):
            if key(item).encode().hex() == cursor:
                return index + 1
    raise invalid_params("`cursor` is not one of this list's, or the list has changed; start again without it")


def _require_uri(exchange: Exchange) -> str:
    uri = exchange.params.get("uri")
    if type(uri) is not str:
        raise invalid_params("`uri` must be a string")
    return uri
