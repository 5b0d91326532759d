"""Who is measured: how each server is started, and whether it has been prepared. Starts nothing itself."""

import shutil
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
PREPARED = HERE / ".peers"
SOURCES = HERE / "peers"
READY = "ready.json"  # written last by prepare.py, so its presence means the peer is whole

SDK_VERSION = "2.3.0"
FASTMCP_VERSION = "4.1.4"
TYPESCRIPT_VERSION = "1.32.2"

OURS = "openclaw"
BARE = "python -c pass"
HELLO = "raw ASGI hello"
SDK = f"mcp SDK {SDK_VERSION}"
FASTMCP = f"FastMCP {FASTMCP_VERSION}"
TYPESCRIPT = f"TypeScript SDK {TYPESCRIPT_VERSION}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A server's command line; over HTTP the port is its last argument."""

    name: str
    argv: tuple[str, ...]
    wires: tuple[str, ...] = ()


class NotInstalled(Exception):
    """Our own side is missing, so there is nothing to compare with."""


def ours_python(venv: Path) -> str:
    return str(venv / "bin" / "python")


def stdio_subjects(venv: Path) -> list[Subject]:
    return [
        Subject(name=OURS, argv=(ours_command(venv), "echo")),
        *_prepared(Subject(name=SDK, argv=_python_peer("sdk", "sdk_stdio.py"))),
        *_prepared(Subject(name=FASTMCP, argv=_python_peer("fastmcp", "fastmcp_stdio.py"))),
        *_prepared(Subject(name=TYPESCRIPT, argv=_node_peer("stdio.mjs"))),
    ]


def http_subjects(venv: Path) -> list[Subject]:
    both = ("M", "L")
    return [
        Subject(name=HELLO, argv=(ours_python(venv), str(SOURCES / "hello.py")), wires=("GET", "POST")),
        Subject(name=OURS, argv=(ours_command(venv), "echo", "--http", "--port"), wires=both),
        *_prepared(Subject(name=SDK, argv=_python_peer("sdk", "sdk_http.py"), wires=both)),
        *_prepared(Subject(name=FASTMCP, argv=_python_peer("fastmcp", "fastmcp_http.py"), wires=both)),
        *_prepared(Subject(name=TYPESCRIPT, argv=_node_peer("http.mjs"), wires=("L",))),
    ]


def missing_peers() -> list[str]:
    """Peers that prepare.py has not made."""
    folders = {SDK: "sdk", FASTMCP: "fastmcp", TYPESCRIPT: "ts"}
    return [name for name, folder in folders.items() if not (PREPARED / folder / READY).exists()]


def strange_interpreters(venv: Path) -> list[str]:
    """Python peers that run on another interpreter than ours, which would make the comparison unfair."""
    ours = Path(ours_python(venv)).resolve()
    folders = {SDK: "sdk", FASTMCP: "fastmcp"}
    pythons = {name: PREPARED / folder / "bin" / "python" for name, folder in folders.items()}
    return [name for name, python in pythons.items() if python.exists() and python.resolve() != ours]


def ours_command(venv: Path) -> str:
    script = venv / "bin" / "openclaw"
    if not script.exists():
        raise NotInstalled(f"no openclaw command in {venv}: install the project there, or pass --venv")
    return str(script)


def _prepared(subject: Subject) -> list[Subject]:
    return [] if subject.name in missing_peers() else [subject]


def _python_peer(folder: str, script: str) -> tuple[str, ...]:
    return (str(PREPARED / folder / "bin" / "python"), str(SOURCES / script))


def _node_peer(script: str) -> tuple[str, ...]:
    return (shutil.which("node") or "node", str(PREPARED / "ts" / script))
