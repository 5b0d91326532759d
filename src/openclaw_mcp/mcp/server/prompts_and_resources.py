"""The methods for prompts, resources and completions, and lists page by page."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from ...core.errors import PromptNotFound, ResourceNotFound
from ...core.model import Json, PromptCall, ResourceRead
from ...core.ports import Completer, PromptProvider, ResourceProvider
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import JsonRpcError
from .exchange import Exchange, invalid_params
from .subscriptions import MAX_SUBSCRIPTIONS

MAX_COMPLETIONS: Final = 100  # the specification's own bound

ListItem = TypeVar("ListItem")


class PromptMethods:
    def __init__(self, provider: PromptProvider, page_size: int) -> None:
        self._provider = provider
        self._page_size = page_size

    async def list(self, exchange: Exchange, params: Json) -> Json:
        specs = await self._provider.list(exchange.caller)
        page, following = paginate(specs, params, lambda spec: spec.name, self._page_size)
        return {"prompts": page, **following}

    async def get(self, exchange: Exchange, params: Json) -> Json:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if type(name) is not str:
            raise invalid_params("`name` must be a string")
        if type(arguments) is not dict or not all(type(value) is str for value in arguments.values()):
            raise invalid_params("`arguments` must be an object of strings")
        call = PromptCall(caller=exchange.caller, name=name, arguments=arguments, context=exchange)
        try:
            prompt = await self._provider.get(call)
        except PromptNotFound as exc:
            raise JsonRpcError(jsonrpc.INVALID_PARAMS, str(exc)) from exc
        shape: Json = {"messages": prompt.messages}
        if prompt.description is not None:
            shape["description"] = prompt.description
        return shape


class ResourceMethods:
    def __init__(self, provider: ResourceProvider, page_size: int) -> None:
        self._provider = provider
        self._page_size = page_size

    async def list(self, exchange: Exchange, params: Json) -> Json:
        specs = await self._provider.list(exchange.caller)
        page, following = paginate(specs, params, lambda spec: spec.uri, self._page_size)
        return {"resources": page, **following}

    async def templates(self, exchange: Exchange, params: Json) -> Json:
        specs = await self._provider.templates(exchange.caller)
        page, following = paginate(specs, params, lambda spec: spec.uri_template, self._page_size)
        return {"resourceTemplates": page, **following}

    async def read(self, exchange: Exchange, params: Json) -> Json:
        read = ResourceRead(caller=exchange.caller, uri=_require_uri(params), context=exchange)
        try:
            return {"contents": await self._provider.read(read)}
        except ResourceNotFound as exc:
            code = jsonrpc.INVALID_PARAMS if exchange.envelope.stateless else mcp.LEGACY_RESOURCE_NOT_FOUND
            raise JsonRpcError(code, str(exc), {"uri": read.uri}) from exc

    async def subscribe(self, exchange: Exchange, params: Json) -> Json:
        if len(exchange.peer.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise invalid_params(f"at most {MAX_SUBSCRIPTIONS} resources may be subscribed at once")
        exchange.peer.subscriptions.add(_require_uri(params))
        return {}

    async def unsubscribe(self, exchange: Exchange, params: Json) -> Json:
        exchange.peer.subscriptions.discard(_require_uri(params))
        return {}


class CompletionMethods:
    def __init__(self, completer: Completer) -> None:
        self._completer = completer

    async def complete(self, exchange: Exchange, params: Json) -> Json:
        ref, argument, context = params.get("ref"), params.get("argument"), params.get("context") or {}
        if type(ref) is not dict or type(argument) is not dict or type(context) is not dict:
            raise invalid_params("`ref` and `argument` must be objects")
        if type(argument.get("name")) is not str or type(argument.get("value")) is not str:
            raise invalid_params("`argument` needs the strings `name` and `value`")
        found = await self._completer.complete(exchange.caller, ref, argument, context)
        values = found.values[:MAX_COMPLETIONS]
        more = found.has_more or len(found.values) > MAX_COMPLETIONS
        return {"completion": {"values": values, "total": max(found.total, len(found.values)), "hasMore": more}}


def paginate(
    items: Sequence[ListItem], params: Json, key: Callable[[ListItem], str], size: int
) -> tuple[Sequence[ListItem], Json]:
    """One page after the cursor, and the cursor for the next: the hex of the last item's key."""
    start = 0
    if params.get("cursor") is not None:
        start = _index_after(params["cursor"], items, key)
    page = items[start : start + size]
    if start + size >= len(items):
        return page, {}
    return page, {"nextCursor": key(page[-1]).encode().hex()}


def _index_after(cursor: Any, items: Sequence[ListItem], key: Callable[[ListItem], str]) -> int:
    if type(cursor) is str:
        for index, item in enumerate(items):
            if key(item).encode().hex() == cursor:
                return index + 1
    raise invalid_params("`cursor` is not one of this list's, or the list has changed; start again without it")


def _require_uri(params: Json) -> str:
    uri = params.get("uri")
    if type(uri) is not str:
        raise invalid_params("`uri` must be a string")
    return uri
