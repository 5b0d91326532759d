"""`openclaw restart`: stop what `openclaw up` started, and start it again on the same ports, in the background."""

import argparse
import os
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ..config.file import ConfigFile, invalid_config_error
from ..core.errors import BadRequest, OpenClawError
from ..net.files import write_atomic
from ..net.state_dir import state_dir
from ..node.settings import SETTINGS_FILE, load_settings
from . import down, run_state, up
from .proxy import DEFAULT_PORT as PROXY_PORT

TRIAL_FILE: Final = ".restart-trial"
ROOM_TO_START: Final = 1 << 20  # bytes: the files that a start writes take less


def arguments(parser: argparse.ArgumentParser) -> None:
    up.port_arguments(parser, default="as it was")
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")
    parser.add_argument("-v", "--verbose", action="store_true", help="with debug messages in its log")


def run(options: argparse.Namespace) -> int:
    folder = state_dir(options.state_dir)
    found = run_state.read(folder)
    before = found or run_state.read_lost(folder)
    ports = {surface.name: urlsplit(surface.address).port for surface in before.surfaces} if before else {}
    if found is None:
        print("openclaw was not up; it is started.")
    else:
        _check_start(folder)
        run_state.plan_restart(folder, found)
        with suppress(BrokenPipeError):  # its reader is gone: what was stopped is still started again
            down.stop(folder, found)
    usual = {"gateway": os.environ.get("OPENCLAW_GATEWAY_PORT"), "node": None, "proxy": PROXY_PORT}
    for name, otherwise in usual.items():
        if getattr(options, f"{name}_port") is None:
            setattr(options, f"{name}_port", ports.get(name) or otherwise)
    options.detach = True
    return up.run(options)


def _check_start(folder: Path) -> None:
    """Raises BadRequest when what is up could not start again: it goes on instead."""
    try:
        snapshot = ConfigFile(folder).read()
        if not snapshot.is_valid:
            raise invalid_config_error(snapshot.issues, snapshot.path)
        load_settings(folder / SETTINGS_FILE)
        write_atomic(folder / TRIAL_FILE, bytes(ROOM_TO_START))
    except OpenClawError as exc:
        raise BadRequest(f"nothing was stopped, since it could not start again: {exc}") from None
    finally:
        with suppress(OSError):
            (folder / TRIAL_FILE).unlink(missing_ok=True)
