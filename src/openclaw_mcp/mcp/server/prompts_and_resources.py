"""What a client reads rather than runs: prompts, resources, completions. And lists, page by page."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from ...core.errors import PromptNotFound, ResourceNotFound
from ...core.model import Json, PromptCall, ResourceRead
from ...core.ports import Completer, PromptBook, Shelf
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import RpcError
from .exchange import Exchange, invalid_params
from .subscriptions import MOST_SUBSCRIPTIONS

MOST_COMPLETIONS: Final = 100  # the specification's own bound

Item = TypeVar("Item")


class Prompts:
    def __init__(self, book: PromptBook, page: int) -> None:
        self._book = book
        self._page = page

    async def list(self, exchange: Exchange, params: Json) -> Json:
        specs = await self._book.list(exchange.caller)
        page, following = paged(specs, params, lambda spec: spec.name, self._page)
        return {"prompts": page, **following}

    async def get(self, exchange: Exchange, params: Json) -> Json:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if type(name) is not str:
            raise invalid_params("`name` must be a string")
        if type(arguments) is not dict or not all(type(value) is str for value in arguments.values()):
            raise invalid_params("`arguments` must be an object of strings")
        call = PromptCall(caller=exchange.caller, name=name, arguments=arguments, line=exchange)
        try:
            prompt = await self._book.get(call)
        except PromptNotFound as exc:
            raise RpcError(jsonrpc.INVALID_PARAMS, str(exc)) from exc
        shape: Json = {"messages": prompt.messages}
        if prompt.description is not None:
            shape["description"] = prompt.description
        return shape


class Resources:
    def __init__(self, shelf: Shelf, page: int) -> None:
        self._shelf = shelf
        self._page = page

    async def list(self, exchange: Exchange, params: Json) -> Json:
        specs = await self._shelf.list(exchange.caller)
        page, following = paged(specs, params, lambda spec: spec.uri, self._page)
        return {"resources": page, **following}

    async def templates(self, exchange: Exchange, params: Json) -> Json:
        specs = await self._shelf.templates(exchange.caller)
        page, following = paged(specs, params, lambda spec: spec.uri_template, self._page)
        return {"resourceTemplates": page, **following}

    async def read(self, exchange: Exchange, params: Json) -> Json:
        read = ResourceRead(caller=exchange.caller, uri=_uri(params), line=exchange)
        try:
            return {"contents": await self._shelf.read(read)}
        except ResourceNotFound as exc:
            code = jsonrpc.INVALID_PARAMS if exchange.envelope.stateless else mcp.LEGACY_RESOURCE_NOT_FOUND
            raise RpcError(code, str(exc), {"uri": read.uri}) from exc

    async def subscribe(self, exchange: Exchange, params: Json) -> Json:
        if len(exchange.peer.subscriptions) >= MOST_SUBSCRIPTIONS:
            raise invalid_params(f"at most {MOST_SUBSCRIPTIONS} resources may be subscribed at once")
        exchange.peer.subscriptions.add(_uri(params))
        return {}

    async def unsubscribe(self, exchange: Exchange, params: Json) -> Json:
        exchange.peer.subscriptions.discard(_uri(params))
        return {}


class Completions:
    def __init__(self, completer: Completer) -> None:
        self._completer = completer

    async def complete(self, exchange: Exchange, params: Json) -> Json:
        ref, argument, context = params.get("ref"), params.get("argument"), params.get("context") or {}
        if type(ref) is not dict or type(argument) is not dict or type(context) is not dict:
            raise invalid_params("`ref` and `argument` must be objects")
        if type(argument.get("name")) is not str or type(argument.get("value")) is not str:
            raise invalid_params("`argument` needs the strings `name` and `value`")
        found = await self._completer.complete(exchange.caller, ref, argument, context)
        values = found.values[:MOST_COMPLETIONS]
        more = found.has_more or len(found.values) > MOST_COMPLETIONS
        return {"completion": {"values": values, "total": max(found.total, len(found.values)), "hasMore": more}}


def paged(items: Sequence[Item], params: Json, key: Callable[[Item], str], size: int) -> tuple[Sequence[Item], Json]:
    """One page after the cursor, and the cursor for the next: the hex of the last item's key."""
    start = 0
    if params.get("cursor") is not None:
        start = _after(params["cursor"], items, key)
    page = items[start : start + size]
    if start + size >= len(items):
        return page, {}
    return page, {"nextCursor": key(page[-1]).encode().hex()}


def _after(cursor: Any, items: Sequence[Item], key: Callable[[Item], str]) -> int:
    if type(cursor) is str:
        for index, item in enumerate(items):
            if key(item).encode().hex() == cursor:
                return index + 1
    raise invalid_params("`cursor` is not one of this list's, or the list has changed; start again without it")


def _uri(params: Json) -> str:
    uri = params.get("uri")
    if type(uri) is not str:
        raise invalid_params("`uri` must be a string")
    return uri
