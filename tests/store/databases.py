"""Databases to run the same tests on: SQLite always, a real PostgreSQL where its programs are installed."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.programs import need

STARTING = 60  # seconds; initdb and a first start take three on a quiet machine


def _program(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else need(name, package="postgresql")


def _as_user(command: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root; its own package made a user for it."""
    if os.geteuid() != 0:
        return command
    need("runuser", package="util-linux")
    return ["runuser", "-u", "postgres", "--", *command]


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of a server of our own, stopped and removed at the end."""
    initdb, pg_ctl, createdb = _program("initdb"), _program("pg_ctl"), _program("createdb")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    folder.chmod(0o777)
    data, log = folder / "data", folder / "log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def call(*command: str) -> None:
        subprocess.run(_as_user(list(command)), check=True, timeout=STARTING, capture_output=True, cwd=folder)

    try:
        call(initdb, "-D", str(data), "-A", "trust", "-U", "claw", "--no-sync", "-E", "UTF8")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        call(pg_ctl, "-D", str(data), "-l", str(log), "-w", "-o", options, "start")
        try:
            call(createdb, "-h", "127.0.0.1", "-p", str(port), "-U", "claw", "claw")
            yield f"postgresql://claw@127.0.0.1:{port}/claw"
        finally:
            call(pg_ctl, "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
