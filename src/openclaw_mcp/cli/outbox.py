"""`openclaw outbox`: messages that wait to be sent or could not be; try again, or forget them."""

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
    verbs = parser.add_subparsers(dest="verb", metavar="ACTION", title="without an action: list what waits or failed")
    listing = verbs.add_parser("list", help="the newest first")
    listing.add_argument("--status", choices=("queued", "failed", "sent"))
    listing.add_argument("--limit", type=int, default=100)
    for verb, meaning in (("retry", "try to send it again, now"), ("drop", "forget it; it is never sent")):
        one = verbs.add_parser(verb, help=meaning)
        one.add_argument("id", help="as the list shows it")
    repeat_options(_common_arguments, *verbs.choices.values())


def _common_arguments(parser: argparse.ArgumentParser) -> None:
    gateway_connection.add_connection_options(parser)
    parser.add_argument("--json", action="store_true", help="answer as JSON")


def run(options: argparse.Namespace) -> int:
    if options.verb in ("retry", "drop"):
        answer = asyncio.run(_call_gateway(options, f"outbox.{options.verb}", {"id": options.id}))
        words = "It is tried again now." if options.verb == "retry" else "Dropped."
        print(json.dumps(answer) if options.json else words)
        return 0
    wanted: Json = {"limit": getattr(options, "limit", 100)}
    status = getattr(options, "status", None)
    if status is not None:
        wanted["status"] = status
    answer = asyncio.run(_call_gateway(options, "outbox.list", wanted))
    items = [item for item in answer["items"] if status is not None or item["status"] != "sent"]
    if options.json:
        print(json.dumps(items, indent=2, ensure_ascii=False))
        return 0
    for item in items:
        _show_item(item)
    if not items:
        print("Nothing waits and nothing failed." if status is None else f"Nothing is {status}.")
    return 0


async def _call_gateway(options: argparse.Namespace, method: str, params: Json) -> Any:
    async with gateway_connection.connect_from_options(options) as client:
        try:
            return await client.call(method, params)
        except RpcError as fault:
            raise OpenClawError(str(fault)) from None


def _show_item(item: Json) -> None:
    at = datetime.fromtimestamp(item["createdAt"] / 1000).astimezone().isoformat(timespec="seconds")
    print(f"{item['id']}  {item['status']:6}  {at}  {item['channel']} → {item['to']}  tries {item['tries']}")
    if item.get("error"):
        print(f"    {item['error']}")
