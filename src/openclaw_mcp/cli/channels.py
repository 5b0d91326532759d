"""`openclaw channels`: how the channels are, and who asks to be let in."""

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
    _common_arguments(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="ACTION", title="without an action: status")
    verbs.add_parser("status", help="each account, whether it runs, what is wrong")
    restart = verbs.add_parser("restart", help="start an account's channel anew")
    restart.add_argument("channel")
    restart.add_argument("account", nargs="?")
    pairing = verbs.add_parser("pairing", help="people who wrote without being known")
    acts = pairing.add_subparsers(dest="act", metavar="list|approve|remove", required=True)
    acts.add_parser("list", help="those who wait, and those let in")
    approve = acts.add_parser("approve", help="let in whoever was given this code")
    approve.add_argument("channel")
    approve.add_argument("code")
    remove = acts.add_parser("remove", help="let somebody in no longer")
    remove.add_argument("channel")
    remove.add_argument("sender")
    repeat_options(_common_arguments, *verbs.choices.values(), *acts.choices.values())


def _common_arguments(parser: argparse.ArgumentParser) -> None:
    gateway_connection.add_connection_options(parser)
    parser.add_argument("--json", action="store_true", help="answer as JSON")


def run(options: argparse.Namespace) -> int:
    method, params = _build_request(options)
    answer = asyncio.run(_call_gateway(options, method, params))
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
        given = {"channel": options.channel} | ({"accountId": options.account} if options.account else {})
        return "channels.restart", given
    if options.verb != "pairing":
        return "channels.status", {}
    if options.act == "approve":
        return "channels.pairing.approve", {"channel": options.channel, "code": options.code}
    if options.act == "remove":
        return "channels.pairing.remove", {"channel": options.channel, "sender": options.sender}
    return "channels.pairing.list", {}


async def _call_gateway(options: argparse.Namespace, method: str, params: Json) -> Any:
    async with gateway_connection.connect_from_options(options) as client:
        try:
            return await client.call(method, params)
        except RpcError as fault:
            raise OpenClawError(str(fault)) from None


def _show_status(answer: Json) -> None:
    for name in answer["channelOrder"]:
        for row in answer["channelAccounts"][name]:
            trouble = f"  {row['lastError']}" if row.get("lastError") else ""
            print(f"{name:10} {row['accountId']:12} {row['state']:8}{trouble}")
    for issue in answer["statusIssues"]:
        print(f"{issue['channel']:10} {issue['accountId']:12} broken    {issue['message']}")


def _show_pairing(answer: Json) -> None:
    for person in answer["requests"]:
        at = datetime.fromtimestamp(person["at"] / 1000).astimezone().isoformat(timespec="minutes")
        print(f"waits  {person['channel']:10} {person['code']}  {person['sender']}  {person['name'] or ''}  {at}")
    for person in answer["approved"]:
        print(f"in     {person['channel']:10} {'':8}  {person['sender']}  {person['name'] or ''}")
    if not answer["requests"] and not answer["approved"]:
        print("Nobody waits, and nobody was let in by pairing.")


def _format_result(method: str, answer: Json) -> str:
    if method == "channels.pairing.approve":
        return f"{answer['sender']} may write on {answer['channel']} now."
    if method == "channels.pairing.remove":
        return "Removed." if answer["removed"] else "Nobody of that name was let in."
    return f"{answer['channel']} begins anew: {answer['account']['state']}."
