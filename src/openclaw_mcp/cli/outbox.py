"""`openclaw outbox`: messages that wait to be sent or failed; send them again, or drop them."""

import argparse
import json

from msgspec import Struct

from ..core.json_values import drop_none
from .channels import call_gateway, common_arguments
from .commands import repeat_options
from .gateway_connection import read_reply
from .report import as_row, format_time, print_json


class OutboxItem(Struct, frozen=True, kw_only=True, rename="camel"):
    """A message as `outbox.list` has it."""

    id: str
    status: str
    created_at: int
    channel: str
    to: str
    tries: int
    error: str | None = None


def arguments(parser: argparse.ArgumentParser) -> None:
    common_arguments(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="ACTION", title="without an action: list what waits or failed")
    listing = verbs.add_parser("list", help="the newest first")
    listing.add_argument("--status", choices=("queued", "failed", "sent"))
    listing.add_argument("--limit", type=int, default=100)
    for verb, meaning in (("retry", "send it again, now"), ("drop", "delete it; it is never sent")):
        command = verbs.add_parser(verb, help=meaning)
        command.add_argument("id", help="as the list shows it")
    repeat_options(common_arguments, *verbs.choices.values())


def run(options: argparse.Namespace) -> int:
    if options.verb in ("retry", "drop"):
        answer = call_gateway(options, f"outbox.{options.verb}", {"id": options.id})
        text = "It is sent again now." if options.verb == "retry" else "Dropped."
        print(json.dumps(answer) if options.json else text)
        return 0
    status = getattr(options, "status", None)
    params = drop_none({"limit": getattr(options, "limit", 100), "status": status})
    answer = call_gateway(options, "outbox.list", params)
    items = [item for item in answer["items"] if status is not None or item["status"] != "sent"]
    if options.json:
        print_json(items)
        return 0
    for item in read_reply(items, list[OutboxItem]):
        at = format_time(item.created_at, "seconds").replace(" ", "T")
        print(as_row(f"{item.id}  {item.status:6}  {at}  {item.channel} → {item.to}  tries {item.tries}"))
        if item.error:
            print(as_row(f"    {item.error}"))
    if not items:
        print("Nothing waits and nothing failed." if status is None else f"Nothing is {status}.")
    return 0
