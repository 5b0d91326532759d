"""Benchmark: `openclaw up`, from its start until all surfaces answer, and its memory at rest."""

import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from measure import Figures, Sample, Turn, calm, interleave
from node import ANSWER_LIMIT, IDLE_SECONDS, PASS, PAUSE, Bare, free_port
from processes import Child, ChildFailed, leave_nothing_behind, resident_mib, serving
from report import Options, Target, conclude, number, read_options, say_conditions, say_table

UP = "openclaw up"
UNUSABLE = 2
LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Spawn to the moment when gateway, node and proxy have each answered, in a state directory that is there."""

    argv: tuple[str, ...]
    state: Path

    def take(self) -> Sample:
        ports = {name: free_port() for name in ("gateway", "node", "proxy")}
        with serving(self.words(ports), name=UP) as child:
            self.answered(child, ports)
            return {"start ms": 1000 * (time.monotonic() - child.started)}

    def words(self, ports: dict[str, int]) -> tuple[str, ...]:
        chosen = [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
        return (*self.argv, "--state-dir", str(self.state), *chosen)

    def answered(self, child: Child, ports: dict[str, int]) -> None:
        requests = {
            "proxy": ("GET", "/health", b"", ""),
            "node": ("POST", "/", LIST, "mcp-token.txt"),
            "gateway": ("POST", "/mcp", LIST, "gateway-token.txt"),
        }
        for name, (method, path, body, token) in requests.items():
            while not self._ok(ports[name], method, path, body, token):
                if time.monotonic() - child.started > ANSWER_LIMIT or child.exited(within=0):
                    raise child.failed(f"{name} did not answer")
                time.sleep(PAUSE)

    def _ok(self, port: int, method: str, path: str, body: bytes, token: str) -> bool:
        lines = [f"{method} {path} HTTP/1.0", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(body)}"]
        lines += ["Content-Type: application/json", "Accept: application/json, text/event-stream"]
        try:
            if token:
                lines.append(f"Authorization: Bearer {(self.state / token).read_text().strip()}")
            with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_LIMIT) as plug:
                plug.sendall("\r\n".join([*lines, "", ""]).encode() + body)
                return b" 200 " in plug.recv(64)
        except (ConnectionRefusedError, FileNotFoundError):
            return False


def measure(options: Options, figures: Figures) -> float:
    """Both; returns the memory at rest in MiB."""
    with tempfile.TemporaryDirectory() as place:
        start = Start(argv=(str(options.venv / "bin" / "openclaw"), "up"), state=Path(place))
        ports = {name: free_port() for name in ("gateway", "node", "proxy")}
        with serving(start.words(ports), name=UP) as child:
            start.answered(child, ports)
            time.sleep(IDLE_SECONDS)
            idle = resident_mib(child.process.pid)
        turns = [
            Turn(subject=PASS, take=Bare(python=str(options.venv / "bin" / "python")).take),
            Turn(subject=UP, take=start.take),
        ]
        interleave("starts", turns, rounds=max(5, options.rounds), figures=figures)
    return idle


def main() -> int:
    options = read_options("up", __doc__ or "", rounds=11, quick_rounds=5)
    figures = Figures()
    leave_nothing_behind()
    try:
        say_conditions(options)
        calm()
        idle = measure(options, figures)
    except ChildFailed as exc:
        sys.stderr.write(f"{exc}\n")
        return UNUSABLE
    start = figures.ratio("start ms", of=UP, to=PASS)
    rows = [[name, number(figures.median(name, "start ms"))] for name in (PASS, UP)]
    say_table("from the start until every surface answers", ["", "start ms"], rows)
    targets = [
        Target(what="start to all surfaces", unit="x python -c pass", measured=start, at_most=60),
        Target(what="memory at rest", unit="MiB", measured=idle, at_most=150),
    ]
    return conclude(options, figures, {UP: {"start / pass": start}}, targets)


if __name__ == "__main__":
    sys.exit(main())
