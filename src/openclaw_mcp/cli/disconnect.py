"""`openclaw disconnect`: take our surfaces out of an MCP client's settings again."""

import argparse

from ..connect.changes import Ledger
from ..net.state_dir import state_dir
from .connect import NAMES, agreed, shared_arguments, where


def arguments(parser: argparse.ArgumentParser) -> None:
    shared_arguments(parser)


def run(options: argparse.Namespace) -> int:
    ledger = Ledger(state_dir(options.state_dir))
    names = None if options.surface == "all" else [NAMES[options.surface]]
    change = ledger.disconnect(options.client, where(options), names)
    if change.empty:
        print(f"{options.client.title} has nothing of ours in {change.file}.")
        ledger.make(change)
        return 0
    if not agreed(change, yes=options.yes):
        return 1
    ledger.make(change)
    print(f"{options.client.title} no longer has {'our servers' if names is None else names[0]} ({change.file}).")
    return 0
