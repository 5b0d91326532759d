"""Programs that outlive us when we are killed: none does, whenever it happens."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from openclaw_mcp.net.orphan_reaper import GRACE, OrphanReaper
from openclaw_mcp.net.processes import ProcessStartError, popen_group, start_process

WAIT = 20.0

DIES_WHILE_STARTING = """
import asyncio, os, signal
from openclaw_mcp.net.orphan_reaper import OrphanReaper
from openclaw_mcp.net.processes import start_process

class Dies(OrphanReaper):
    def watch(self, group):
        print(group, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(start_process(["sleep", "600"], guard=Dies()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")
def test_a_program_started_in_the_moment_we_are_killed_ends_too() -> None:
    script = [sys.executable, "-c", DIES_WHILE_STARTING]
    result = subprocess.run(script, capture_output=True, text=True, timeout=WAIT, check=False)
    program = psutil.Process(int(result.stdout))
    try:
        program.wait(WAIT)
    finally:
        if program.is_running():
            program.kill()


def test_the_pipe_of_a_shell_that_is_gone_is_not_written_to(tmp_path: Path) -> None:
    """Its number may be another file's by then, the database's for instance."""
    reaper, children = OrphanReaper(), [popen_group(["sleep", "600"]) for _ in range(2)]
    file = tmp_path / "file"
    try:
        reaper.prepare()
        reaper.watch(children[0].pid)
        shell = reaper._shell
        assert shell is not None
        shell.child.kill()
        shell.child.wait()
        reaper.unwatch(children[0].pid)  # the last one: nothing needs a new shell now
        with file.open("wb") as other:
            os.dup2(other.fileno(), shell._pipe)
        reaper.prepare()
        reaper.watch(children[1].pid)

        assert file.read_bytes() == b""
        assert reaper._shell is not shell
        assert reaper._shell is not None

        os.close(shell._pipe)
        reaper.close()
        assert _ends(children[1])
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_after_a_program_that_could_not_be_started_nothing_is_waited_for() -> None:
    reaper = OrphanReaper()
    with pytest.raises(ProcessStartError):
        asyncio.run(start_process(["/no/such/program"], guard=reaper))

    begin = time.monotonic()
    reaper.close()

    assert time.monotonic() - begin < GRACE


def _ends(child: "subprocess.Popen[bytes]") -> bool:
    end = time.monotonic() + WAIT
    while child.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return child.poll() is not None
