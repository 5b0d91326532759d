"""`openclaw channels`: the channels' state, and approval of unknown senders."""

import argparse
import asyncio
import json
from datetime import datetime
from typing import Any

from ..core.errors import OpenClawError
from ..core.model import Json
from ..core.rpc import RpcError
from . import gateway_connection
from .commands import repeat_options


def arguments(parser: argparse.ArgumentParser) -> None:
    common_arguments(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="ACTION", title="without an action: status")
    verbs.add_parser("status", help="each account, whether it runs, its last error")
    restart = verbs.add_parser("restart", help="stop and start an account's channel")
    restart.add_argument("channel")
    restart.add_argument("account", nargs="?")
    pairing = verbs.add_parser("pairing", help="unknown senders who wrote to us")
    acts = pairing.add_subparsers(dest="act", metavar="list|approve|remove", required=True)
    acts.add_parser("list", help="senders that wait, and approved ones")
    approve = acts.add_parser("approve", help="approve the sender with this code")
    approve.add_argument("channel")
    approve.add_argument("code")
    remove = acts.add_parser("remove", help="withdraw a sender's approval")
    remove.add_argument("channel")
    remove.add_argument("sender")
    repeat_options(common_arguments, *verbs.choices.values(), *acts.choices.values())


def common_arguments(parser: argparse.ArgumentParser) -> None:
    gateway_connection.add_connection_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    method, params = _build_request(options)
    answer = call_gateway(options, method, params)
    if options.json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    elif method == "channels.status":
        _show_status(answer)
    elif method == "channels.pairing.list":
        _show_pairing(answer)
    else:
        print(_format_result(method, answer))
    return 0


def _build_request(options: argparse.Namespace) -> tuple[str, Json]:
    if options.verb == "restart":
        account = {"accountId": options.account} if options.account else {}
        return "channels.restart", {"channel": options.channel, **account}
    if options.verb != "pairing":
        return "channels.status", {}
    if options.act == "approve":
        return "channels.pairing.approve", {"channel": options.channel, "code": options.code}
    if options.act == "remove":
        return "channels.pairing.remove", {"channel": options.channel, "sender": options.sender}
    return "channels.pairing.list", {}


def call_gateway(options: argparse.Namespace, method: str, params: Json) -> Any:
    async def call() -> Any:
        async with gateway_connection.connect_from_options(options) as client:
            return await client.call(method, params)

    try:
        return asyncio.run(call())
    except RpcError as exc:
        raise OpenClawError(str(exc)) from None


def _show_status(answer: Json) -> None:
    for name in answer["channelOrder"]:
        for row in answer["channelAccounts"][name]:
            error = f"  {row['lastError']}" if row.get("lastError") else ""
            print(f"{name:10} {row['accountId']:12} {row['state']:8}{error}")
    for issue in answer["statusIssues"]:
        print(f"{issue['channel']:10} {issue['accountId']:12} broken    {issue['message']}")


def _show_pairing(answer: Json) -> None:
    for row in answer["requests"]:
        at = datetime.fromtimestamp(row["at"] / 1000).astimezone().isoformat(timespec="minutes")
        print(f"waits  {row['channel']:10} {row['code']}  {row['sender']}  {row['name'] or ''}  {at}")
    for row in answer["approved"]:
        print(f"in     {row['channel']:10} {'':8}  {row['sender']}  {row['name'] or ''}")
    if not answer["requests"] and not answer["approved"]:
        print("No sender waits, and none was approved by pairing.")


def _format_result(method: str, answer: Json) -> str:
    if method == "channels.pairing.approve":
        return f"{answer['sender']} may write on {answer['channel']} now."
    if method == "channels.pairing.remove":
        return "Removed." if answer["removed"] else "No sender of that id was approved."
    return f"{answer['channel']} restarted: {answer['account']['state']}."
