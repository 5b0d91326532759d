"""`openclaw down`: stop what `openclaw up` started."""

import argparse
import sys
from pathlib import Path

import psutil

from ..net.state_dir import state_dir
from . import run_state
from .run_state import UpState

STOP_TIMEOUT = 30.0  # seconds for runs to be stored and programs to end, before it is killed
KILL_WAIT = 5.0  # seconds until what was killed has given its ports and its lock back


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")


def run(options: argparse.Namespace) -> int:
    folder = state_dir(options.state_dir)
    found = run_state.read(folder)
    if found is None:
        print("openclaw is not up.")
        run_state.forget(folder)
        return 0
    return stop(folder, found)


def stop(folder: Path, found: UpState) -> int:
    """Stop it, and say how that went."""
    process = psutil.Process(found.pid)
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except psutil.TimeoutExpired:
        killed = (*process.children(recursive=True), process)
        for child in killed:
            child.kill()
        psutil.wait_procs(killed, KILL_WAIT)
        print(f"openclaw (process {found.pid}) did not stop within {STOP_TIMEOUT:g} s and was killed.", file=sys.stderr)
        run_state.remove(folder)
        return 1
    print(f"openclaw (process {found.pid}) has stopped.")
    return 0
