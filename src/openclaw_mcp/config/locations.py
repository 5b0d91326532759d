"""Where the store is, as the config and the environment say."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for start-up: the type alone
    from ..core.config.config import Config

DATABASE_FILE = "openclaw.sqlite"
"""The store's file in the state directory, unless the config names another place."""


def store_location(folder: Path, config: "Config") -> str:
    """$OPENCLAW_STORE_URL, else the config's `store.url`, else SQLite in the state directory."""
    return os.environ.get("OPENCLAW_STORE_URL") or config.store.url or str(folder / DATABASE_FILE)
