"""`openclaw nodes`: the nodes of a gateway, from a terminal."""

import argparse
import asyncio
import sys
import uuid
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from ..core.errors import OpenClawError
from ..core.rpc import RpcError
from ..net.gateway_client.client import GatewayClient
from ..net.state_dir import state_dir
from .commands import parse_object, repeat_options
from .gateway_connection import add_gateway_options, connect_operator, read_reply
from .report import as_row, print_json

ID_CHARS_SHOWN: Final = 12  # characters of an id that a person needs to see
EXTRA_WAIT: Final = 10.0  # seconds the gateway gets beyond the node's own time


class NodeRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """A node as `node.list` has it, or its request for approval as `node.pair.list` has it."""

    node_id: str
    display_name: str | None = None
    tool_prefix: str | None = None
    connected: bool = False
    approval_state: str = ""
    commands: tuple[str, ...] = ()
    request_id: str = ""
    pending_request_id: str | None = None
    pending_declared_commands: tuple[str, ...] = ()

    @property
    def short_id(self) -> str:
        return self.node_id[:ID_CHARS_SHOWN]

    @property
    def name(self) -> str:
        return self.display_name or self.short_id


class NodeList(Struct, frozen=True):
    nodes: tuple[NodeRow, ...] = ()
    pending: tuple[NodeRow, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    _common_arguments(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="ACTION", required=True)
    verbs.add_parser("list", help="every node, and those that wait for approval")
    for verb, meaning in (("approve", "let a node's commands be used"), ("reject", "do not")):
        one = verbs.add_parser(verb, help=meaning)
        one.add_argument("request", help="a node's name or id, or the request's id")
    for verb, meaning in (("describe", "everything known about one"), ("remove", "forget one and show it out")):
        one = verbs.add_parser(verb, help=meaning)
        one.add_argument("node", help="its name, its id, or the beginning of the id")
    rename = verbs.add_parser("rename", help="give one another name")
    rename.add_argument("node")
    rename.add_argument("name")
    invoke = verbs.add_parser("invoke", help="have one do something: openclaw nodes invoke laptop system.which '{…}'")
    invoke.add_argument("node")
    invoke.add_argument("command")
    invoke.add_argument("params", nargs="?", default="{}", help="a JSON object")
    invoke.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS")
    invoke.add_argument("--key", help="an idempotency key: the same command with the same key is carried out once")
    repeat_options(_common_arguments, *verbs.choices.values())


def _common_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")
    parser.add_argument("--json", action="store_true", help="answer as JSON")
    add_gateway_options(parser)


def run(options: argparse.Namespace) -> int:
    try:
        return asyncio.run(_run(options))
    except RpcError as fault:
        print(f"openclaw nodes {options.verb}: {fault.kind}: {fault}", file=sys.stderr)
        return 1


async def _run(options: argparse.Namespace) -> int:
    params = parse_object(getattr(options, "params", "{}"), '{"bins":["ls"]}')
    async with connect_operator(state_dir(options.state_dir), url=options.url, token=options.token) as client:
        if options.verb == "list":
            return await _list(client, as_json=options.json)
        if options.verb in ("approve", "reject"):
            return await _decide(client, options)
        nodes = read_reply(await client.call("node.list"), NodeList).nodes
        node = _pick_single(_match_nodes(nodes, options.node), options.node, "is known here; see openclaw nodes list")
        if options.verb == "invoke":
            return await _invoke(client, node, options, params)
        id = {"nodeId": node.node_id}
        if options.verb == "describe":
            return _print_answer(await client.call("node.describe", id), None, as_json=True)
        if options.verb == "remove":
            answer = await client.call("node.pair.remove", id)
            return _print_answer(answer, f"removed {node.name}", as_json=options.json)
        answer = await client.call("node.rename", {**id, "displayName": options.name})
        return _print_answer(answer, f"{node.name} is now called {options.name}", as_json=options.json)


async def _decide(client: GatewayClient, options: argparse.Namespace) -> int:
    query = options.request
    pending = read_reply(await client.call("node.pair.list"), NodeList).pending
    found = [request for request in pending if request.request_id == query] or _match_nodes(pending, query)
    request = _pick_single(found, query, "is asking for approval")
    answer = await client.call(f"node.pair.{options.verb}", {"requestId": request.request_id})
    text = f"{'approved' if options.verb == 'approve' else 'rejected'} {request.name}"
    commands = ", ".join(request.commands) if options.verb == "approve" else ""
    return _print_answer(answer, f"{text}{': ' if commands else ''}{commands}", as_json=options.json)


async def _invoke(client: GatewayClient, node: NodeRow, options: argparse.Namespace, params: Any) -> int:
    request = {
        "nodeId": node.node_id,
        "command": options.command,
        "params": params,
        "timeoutMs": int(options.timeout * 1000),
        "idempotencyKey": options.key or str(uuid.uuid4()),
    }
    answer = await client.call("node.invoke", request, within=options.timeout + EXTRA_WAIT)
    return _print_answer(answer if options.json else answer["payload"], None, as_json=True)


async def _list(client: GatewayClient, *, as_json: bool) -> int:
    answer = await client.call("node.list")
    if as_json:
        return _print_answer(answer["nodes"], None, as_json=True)
    nodes = read_reply(answer, NodeList).nodes
    if not nodes:
        print("No node has joined yet; see openclaw node setup.")
    for node in nodes:
        here = "connected" if node.connected else "away"
        print(as_row(f"{node.name:24} {node.short_id}  {here:9}  {node.approval_state}"))
        if node.commands:
            print(as_row(f"    may: {', '.join(node.commands)}"))
        if node.pending_request_id:
            print(as_row(f"    wants: {', '.join(node.pending_declared_commands)}"))
            print(f"    openclaw nodes approve {node.short_id}")
    return 0


def _match_nodes(nodes: Sequence[NodeRow], query: str) -> list[NodeRow]:
    """The node of that id; else those of that name, else those whose id begins so."""
    return (
        [node for node in nodes if node.node_id == query]
        or [node for node in nodes if node.name.lower() == query.lower() or node.tool_prefix == query]
        or [node for node in nodes if len(query) >= 4 and node.node_id.startswith(query)]
    )


def _pick_single(matches: Sequence[NodeRow], query: str, explanation: str) -> NodeRow:
    if not matches:
        raise OpenClawError(f"no node {query!r} {explanation}")
    if len(matches) > 1:
        ids = ", ".join(node.short_id for node in matches)
        raise OpenClawError(f"{query!r} could be any of {ids}; give the id")
    return matches[0]


def _print_answer(answer: Any, message: str | None, *, as_json: bool) -> int:
    print_json(answer) if as_json or message is None else print(as_row(message))
    return 0
