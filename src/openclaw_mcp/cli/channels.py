"""`openclaw channels`: the channels' state, and approval of unknown senders."""

import argparse
import asyncio
from typing import Any

from msgspec import Struct

from ..core.errors import OpenClawError
from ..core.model import Json
from ..core.rpc import RpcError
from .commands import repeat_options
from .gateway_connection import add_connection_options, connect_from_options, read_reply
from .report import as_row, format_time, print_json


class AccountStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    account_id: str = ""
    state: str = ""
    running: bool = False
    last_error: str | None = None


class AccountIssue(Struct, frozen=True, kw_only=True, rename="camel"):
    channel: str = ""
    account_id: str = ""
    message: str = ""


class ChannelsStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """What `channels.status` answers."""

    channel_order: tuple[str, ...] = ()
    channel_accounts: dict[str, tuple[AccountStatus, ...]] = {}
    status_issues: tuple[AccountIssue, ...] = ()


class PairedSender(Struct, frozen=True, kw_only=True):
    channel: str
    sender: str
    name: str | None = None
    code: str = ""
    at: int = 0


class PairingList(Struct, frozen=True):
    """What `channels.pairing.list` answers."""

    requests: tuple[PairedSender, ...] = ()
    approved: tuple[PairedSender, ...] = ()


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
    add_connection_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    method, params = _build_request(options)
    answer = call_gateway(options, method, params)
    if options.json:
        print_json(answer)
    elif method == "channels.status":
        _show_status(read_reply(answer, ChannelsStatus))
    elif method == "channels.pairing.list":
        _show_pairing(read_reply(answer, PairingList))
    elif method == "channels.pairing.approve":
        print(as_row(f"{answer['sender']} may write on {answer['channel']} now."))
    elif method == "channels.pairing.remove":
        print("Removed." if answer["removed"] else "No sender of that id was approved.")
    else:
        print(f"{answer['channel']} restarted: {answer['account']['state']}.")
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
        async with connect_from_options(options) as client:
            return await client.call(method, params)

    try:
        return asyncio.run(call())
    except RpcError as exc:
        raise OpenClawError(str(exc)) from None


def _show_status(status: ChannelsStatus) -> None:
    for name in status.channel_order:
        for row in status.channel_accounts[name]:
            error = f"  {row.last_error}" if row.last_error else ""
            print(as_row(f"{name:10} {row.account_id:12} {row.state:8}{error}"))
    for issue in status.status_issues:
        print(as_row(f"{issue.channel:10} {issue.account_id:12} broken    {issue.message}"))


def _show_pairing(senders: PairingList) -> None:
    for row in senders.requests:
        at = format_time(row.at).replace(" ", "T")
        print(as_row(f"waits  {row.channel:10} {row.code}  {row.sender}  {row.name or ''}  {at}"))
    for row in senders.approved:
        print(as_row(f"in     {row.channel:10} {'':8}  {row.sender}  {row.name or ''}"))
    if not senders.requests and not senders.approved:
        print("No sender waits, and none was approved by pairing.")
