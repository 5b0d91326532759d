"""`openclaw disconnect`: take our surfaces out of an MCP client's settings again."""

import argparse

from ..connect.changes import SettingsEditor
from ..net.state_dir import state_dir
from .connect import ENTRY_NAMES, common_arguments, confirm_change, settings_file


def arguments(parser: argparse.ArgumentParser) -> None:
    common_arguments(parser)


def run(options: argparse.Namespace) -> int:
    ledger = SettingsEditor(state_dir(options.state_dir))
    names = None if options.surface == "all" else [ENTRY_NAMES[options.surface]]
    change = ledger.disconnect(options.client, settings_file(options), names)
    if change.is_empty:
        print(f"{options.client.title} has nothing of ours in {change.file}.")
        ledger.apply(change)
        return 0
    if not confirm_change(change, yes=options.yes):
        return 1
    ledger.apply(change)
    print(f"{options.client.title} no longer has {'our servers' if names is None else names[0]} ({change.file}).")
    return 0
