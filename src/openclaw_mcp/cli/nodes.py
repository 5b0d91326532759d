"""`openclaw nodes`: the nodes of a gateway, from a terminal."""

import argparse
import asyncio
import json
import sys
import uuid
from typing import Any, Final

from ..core.errors import BadRequest, OpenClawError
from ..core.model import Json
from ..core.rpc import RpcError
from ..net.gateway_client.client import GatewayClient
from ..net.state_dir import state_dir
from .commands import repeat_options
from .gateway_connection import add_gateway_options, connect_operator

ID_CHARS_SHOWN: Final = 12  # characters of an id that a person needs to see
EXTRA_WAIT: Final = 10.0  # seconds the gateway gets beyond the node's own time


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
    params = _parse_params(options)
    async with connect_operator(state_dir(options.state_dir), url=options.url, token=options.token) as client:
        if options.verb == "list":
            return await _list(client, as_json=options.json)
        if options.verb in ("approve", "reject"):
            request = await _find_request(client, options.request)
            answer = await client.call(f"node.pair.{options.verb}", {"requestId": request["requestId"]})
            text = f"{'approved' if options.verb == 'approve' else 'rejected'} {_display_name(request)}"
            commands = ", ".join(request["commands"]) if options.verb == "approve" else ""
            return _print_answer(answer, f"{text}{': ' if commands else ''}{commands}", as_json=options.json)
        node = await _find_node(client, options.node)
        return await _run_node_verb(client, node, options, params)


async def _run_node_verb(client: GatewayClient, node: Json, options: argparse.Namespace, params: Json) -> int:
    id = {"nodeId": node["nodeId"]}
    if options.verb == "describe":
        return _print_answer(await client.call("node.describe", id), None, as_json=True)
    if options.verb == "remove":
        return _print_answer(
            await client.call("node.pair.remove", id), f"removed {_display_name(node)}", as_json=options.json
        )
    if options.verb == "rename":
        answer = await client.call("node.rename", {**id, "displayName": options.name})
        return _print_answer(answer, f"{_display_name(node)} is now called {options.name}", as_json=options.json)
    request = {
        **id,
        "command": options.command,
        "params": params,
        "timeoutMs": int(options.timeout * 1000),
        "idempotencyKey": options.key or str(uuid.uuid4()),
    }
    answer = await client.call("node.invoke", request, within=options.timeout + EXTRA_WAIT)
    return _print_answer(answer if options.json else answer["payload"], None, as_json=True)


async def _list(client: GatewayClient, *, as_json: bool) -> int:
    nodes = (await client.call("node.list"))["nodes"]
    if as_json:
        print(json.dumps(nodes, indent=2, ensure_ascii=False))
        return 0
    if not nodes:
        print("No node has joined yet; see openclaw node setup.")
    for node in nodes:
        here = "connected" if node["connected"] else "away"
        print(f"{_display_name(node):24} {node['nodeId'][:ID_CHARS_SHOWN]}  {here:9}  {node['approvalState']}")
        if node["commands"]:
            print(f"    may: {', '.join(node['commands'])}")
        if node.get("pendingRequestId"):
            print(f"    wants: {', '.join(node['pendingDeclaredCommands'])}")
            print(f"    openclaw nodes approve {node['nodeId'][:ID_CHARS_SHOWN]}")
    return 0


async def _find_request(client: GatewayClient, query: str) -> Json:
    pending = (await client.call("node.pair.list"))["pending"]
    found = [request for request in pending if request["requestId"] == query] or _match_nodes(pending, query)
    return _pick_single(found, query, "is asking for approval")


async def _find_node(client: GatewayClient, query: str) -> Json:
    nodes = (await client.call("node.list"))["nodes"]
    return _pick_single(_match_nodes(nodes, query), query, "is known here; see openclaw nodes list")


def _match_nodes(nodes: list[Json], query: str) -> list[Json]:
    """The node of that id; else those of that name, else those whose id begins so."""
    for fits in (
        lambda node: node["nodeId"] == query,
        lambda node: _display_name(node).lower() == query.lower() or node.get("toolPrefix") == query,
        lambda node: len(query) >= 4 and node["nodeId"].startswith(query),
    ):
        found = [node for node in nodes if fits(node)]
        if found:
            return found
    return []


def _pick_single(matches: list[Json], query: str, explanation: str) -> Json:
    if not matches:
        raise OpenClawError(f"no node {query!r} {explanation}")
    if len(matches) > 1:
        ids = ", ".join(node["nodeId"][:ID_CHARS_SHOWN] for node in matches)
        raise OpenClawError(f"{query!r} could be any of {ids}; give the id")
    return matches[0]


def _display_name(node: Json) -> str:
    return str(node.get("displayName") or node["nodeId"][:ID_CHARS_SHOWN])


def _parse_params(options: argparse.Namespace) -> Json:
    try:
        params: Any = json.loads(getattr(options, "params", "{}"))
    except ValueError:
        params = None
    if not isinstance(params, dict):
        raise BadRequest('the parameters must be a JSON object, such as \'{"bins":["ls"]}\'')
    return params


def _print_answer(answer: Any, message: str | None, *, as_json: bool) -> int:
    print(json.dumps(answer, indent=2, ensure_ascii=False) if as_json or message is None else message)
    return 0
