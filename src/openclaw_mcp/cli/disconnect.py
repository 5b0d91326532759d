"""`openclaw disconnect`: remove our surfaces from an MCP client's settings."""

import argparse

from ..connect.changes import SettingsEditor
from ..net.state_dir import existing_state_dir
from .connect import ENTRY_NAMES, confirm_change, settings_file
from .connect import common_arguments as arguments

__all__ = ["arguments", "run"]


def run(options: argparse.Namespace) -> int:
    editor = SettingsEditor(existing_state_dir(options.state_dir))
    names = None if options.surface == "all" else [ENTRY_NAMES[options.surface]]
    change = editor.disconnect(options.client, settings_file(options), names)
    if not change.is_empty and not confirm_change(change, yes=options.yes):
        return 1
    editor.apply(change)
    if change.is_empty:
        print(f"{options.client.title} has no entries of ours in {change.file}.")
        return 0
    print(f"{options.client.title} no longer has {'our servers' if names is None else names[0]} ({change.file}).")
    return 0
