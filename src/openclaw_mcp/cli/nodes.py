"""`openclaw nodes`: the nodes of a gateway, from a terminal."""

import argparse
import asyncio
import json
import sys
import uuid
from typing import Any, Final

from ..core.errors import BadRequest, OpenClawError
from ..core.model import Json
from ..core.rpc import Fault
from ..net.gateway_client.client import Client
from ..net.state_dir import state_dir
from .commands import repeated
from .operator_client import arguments as gateway_arguments
from .operator_client import operator

SHOWN_ID: Final = 12  # characters of an id that a person needs to see
SLACK: Final = 10.0  # seconds the gateway gets beyond the node's own time


def arguments(parser: argparse.ArgumentParser) -> None:
    _common(parser)
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
    invoke.add_argument("--key", help="an idempotency key: the same order with the same key is carried out once")
    repeated(_common, *verbs.choices.values())


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")
    parser.add_argument("--json", action="store_true", help="answer as JSON")
    gateway_arguments(parser)


def run(options: argparse.Namespace) -> int:
    try:
        return asyncio.run(_run(options))
    except Fault as fault:
        print(f"openclaw nodes {options.verb}: {fault.kind}: {fault}", file=sys.stderr)
        return 1


async def _run(options: argparse.Namespace) -> int:
    params = _params(options)
    async with operator(state_dir(options.state_dir), url=options.url, token=options.token) as client:
        if options.verb == "list":
            return await _list(client, as_json=options.json)
        if options.verb in ("approve", "reject"):
            request = await _request(client, options.request)
            answer = await client.call(f"node.pair.{options.verb}", {"requestId": request["requestId"]})
            told = f"{'approved' if options.verb == 'approve' else 'rejected'} {_name(request)}"
            commands = ", ".join(request["commands"]) if options.verb == "approve" else ""
            return _say(answer, f"{told}{': ' if commands else ''}{commands}", as_json=options.json)
        node = await _node(client, options.node)
        return await _about(client, node, options, params)


async def _about(client: Client, node: Json, options: argparse.Namespace, params: Json) -> int:
    id = {"nodeId": node["nodeId"]}
    if options.verb == "describe":
        return _say(await client.call("node.describe", id), None, as_json=True)
    if options.verb == "remove":
        return _say(await client.call("node.pair.remove", id), f"removed {_name(node)}", as_json=options.json)
    if options.verb == "rename":
        answer = await client.call("node.rename", {**id, "displayName": options.name})
        return _say(answer, f"{_name(node)} is now called {options.name}", as_json=options.json)
    order = {
        **id,
        "command": options.command,
        "params": params,
        "timeoutMs": int(options.timeout * 1000),
        "idempotencyKey": options.key or str(uuid.uuid4()),
    }
    answer = await client.call("node.invoke", order, within=options.timeout + SLACK)
    return _say(answer if options.json else answer["payload"], None, as_json=True)


async def _list(client: Client, *, as_json: bool) -> int:
    nodes = (await client.call("node.list"))["nodes"]
    if as_json:
        print(json.dumps(nodes, indent=2, ensure_ascii=False))
        return 0
    if not nodes:
        print("No node has joined yet; see openclaw node setup.")
    for node in nodes:
        here = "connected" if node["connected"] else "away"
        print(f"{_name(node):24} {node['nodeId'][:SHOWN_ID]}  {here:9}  {node['approvalState']}")
        if node["commands"]:
            print(f"    may: {', '.join(node['commands'])}")
        if node.get("pendingRequestId"):
            print(f"    wants: {', '.join(node['pendingDeclaredCommands'])}")
            print(f"    openclaw nodes approve {node['nodeId'][:SHOWN_ID]}")
    return 0


async def _request(client: Client, wanted: str) -> Json:
    pending = (await client.call("node.pair.list"))["pending"]
    found = [request for request in pending if request["requestId"] == wanted] or _matching(pending, wanted)
    return _only(found, wanted, "is asking for approval")


async def _node(client: Client, wanted: str) -> Json:
    nodes = (await client.call("node.list"))["nodes"]
    return _only(_matching(nodes, wanted), wanted, "is known here; see openclaw nodes list")


def _matching(nodes: list[Json], wanted: str) -> list[Json]:
    """The node of that id; else those of that name, else those whose id begins so."""
    for fits in (
        lambda node: node["nodeId"] == wanted,
        lambda node: _name(node).lower() == wanted.lower() or node.get("toolPrefix") == wanted,
        lambda node: len(wanted) >= 4 and node["nodeId"].startswith(wanted),
    ):
        found = [node for node in nodes if fits(node)]
        if found:
            return found
    return []


def _only(found: list[Json], wanted: str, words: str) -> Json:
    if not found:
        raise OpenClawError(f"no node {wanted!r} {words}")
    if len(found) > 1:
        ids = ", ".join(node["nodeId"][:SHOWN_ID] for node in found)
        raise OpenClawError(f"{wanted!r} could be any of {ids}; give the id")
    return found[0]


def _name(node: Json) -> str:
    return str(node.get("displayName") or node["nodeId"][:SHOWN_ID])


def _params(options: argparse.Namespace) -> Json:
    try:
        params: Any = json.loads(getattr(options, "params", "{}"))
    except ValueError:
        params = None
    if not isinstance(params, dict):
        raise BadRequest('the parameters must be a JSON object, such as \'{"bins":["ls"]}\'')
    return params


def _say(answer: Any, told: str | None, *, as_json: bool) -> int:
    print(json.dumps(answer, indent=2, ensure_ascii=False) if as_json or told is None else told)
    return 0
