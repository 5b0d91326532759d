"""Benchmark: `openclaw mcp-server` and the agent in its own process.

From its start to the first answer, what an order costs beside the model's own time, the memory it leaves behind, and
the peak of an order with ten pictures of 15 MB each.
"""

import base64
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from measure import Figures, Ratios, Sample, Turn, interleave
from node import PASS, Bare
from processes import Child, Talk, leave_nothing_behind, resident_mib, talking
from report import Options, Target, conclude, number, read_options, say_conditions, say_table

ORDER, PICTURES = "order_openclaw", "ten pictures"
MODEL_TIME = 2.0  # milliseconds
LATER, QUICK_LATER = 20, 8
CLOSED_PORT = "1"  # a port nothing listens on: the agent stays in the process
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(15_000_000 - 8)
COUNT = 10
SIZE_MIB = COUNT * len(PICTURE) / (1 << 20)
PIPE_SIZE = 1 << 16  # bytes a pipe takes at once
FIGURES = ("initialize ms", "first ms", "later ms", "resident MiB", "peak MiB")
HELLO = {
    "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "benchmark", "version": "1"},
}  # fmt: skip


def line(id: int, method: str, params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"


def order(id: int, **more: object) -> bytes:
    arguments = {"message": "What is the answer?", "sessionKey": "benchmark", **more}
    return line(id, "tools/call", {"name": "order_openclaw", "arguments": arguments})


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How the server is started, with a state folder and a model of its own."""

    python: str
    argv: tuple[str, ...]
    later: int

    def take(self) -> Sample:
        with self._talking() as talk:
            child = talk.child
            talk.ask(line(1, "initialize", HELLO))
            sample = {"initialize ms": 1000 * (time.perf_counter() - child.started)}
            talk.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
            talk.ask(line(2, "tools/list", {}))
            sample["first ms"] = 1000 * _timed(talk, order(3)) - MODEL_TIME
            spent = [1000 * _timed(talk, order(4 + n)) - MODEL_TIME for n in range(self.later)]
            return sample | {"later ms": statistics.median(spent), "resident MiB": resident_mib(child.process.pid)}

    def take_pictures(self) -> Sample:
        """The peak of the whole process."""
        one = base64.b64encode(PICTURE).decode()
        whole = order(3, images=[{"data": one, "mimeType": "image/png"}] * COUNT)
        with self._talking() as talk:
            talk.ask(line(1, "initialize", HELLO))
            _timed(talk, order(2))
            for begin in range(0, len(whole), PIPE_SIZE):
                _send(talk.child, whole[begin : begin + PIPE_SIZE])
            _check(talk.read_line())
            return {"peak MiB": _peak_mib(talk.child.process.pid)}

    @contextmanager
    def _talking(self) -> Iterator["Pipe"]:
        model = (self.python, str(Path(__file__).parent / "peers" / "model.py"), str(MODEL_TIME))
        with tempfile.TemporaryDirectory() as folder, talking(model, name="the model") as peer:
            settings = _settings(folder, int(Talk(peer).read()))
            with talking(self.argv, name=ORDER, extra=settings) as child:
                yield Pipe(child)


class Pipe(Talk):
    def read_line(self) -> bytes:
        answer = self.read()
        while not answer.endswith(b"\n"):
            answer += self.read()
        return answer


def _timed(talk: Talk, data: bytes) -> float:
    start = time.perf_counter()
    answer = talk.ask(data)
    spent = time.perf_counter() - start
    _check(answer)
    return spent


def _check(answer: bytes) -> None:
    result = json.loads(answer)["result"]
    if result.get("isError") is not False:
        raise RuntimeError(f"the order failed: {answer[:500]!r}")


def _send(child: Child, data: bytes) -> None:
    """All of it; a pipe may take less than it is given."""
    assert child.process.stdin is not None
    while data:
        data = data[os.write(child.process.stdin.fileno(), data) :]


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in status if row.startswith("VmHWM:")) / 1024


def _settings(folder: str, model: int) -> dict[str, str]:
    card = {"id": "m", "name": "M", "input": ["text", "image"], "contextWindow": 128000, "maxTokens": 8192}
    provider = {"baseUrl": f"http://127.0.0.1:{model}/v1", "apiKey": "k", "api": "openai-completions", "models": [card]}
    config = {"models": {"providers": {"fake": provider}}, "agents": {"defaults": {"model": "fake/m"}}}
    (Path(folder) / "openclaw.json").write_text(json.dumps(config))
    return {"HOME": folder, "OPENCLAW_STATE_DIR": folder, "OPENCLAW_GATEWAY_PORT": CLOSED_PORT}


def _targets(figures: Figures, ratios: Ratios) -> list[Target]:
    ours = ratios[ORDER]
    peak = figures.median(PICTURES, "peak MiB")
    resident = figures.median(ORDER, "resident MiB")
    return [
        Target(what="start to initialize", unit="x python -c pass", measured=ours["initialize ms"], at_most=2),
        Target(what="first order", unit="x python -c pass", measured=ours["first ms"], at_most=25),
        Target(what="later orders", unit="x python -c pass", measured=ours["later ms"], at_most=1),
        Target(what="resident after orders", unit="MiB", measured=resident, at_most=60),
        Target(
            what="ten pictures, peak",
            unit="x their size",
            measured=None if peak is None else peak / SIZE_MIB,
            at_most=4,
        ),
    ]


def _turns(options: Options) -> list[Turn]:
    python = str(options.venv / "bin" / "python")
    argv = (str(options.venv / "bin" / "openclaw"), "mcp-server")
    server = Server(python=python, argv=argv, later=QUICK_LATER if options.quick else LATER)
    return [
        Turn(subject=PASS, take=Bare(python=python).take),
        Turn(subject=ORDER, take=server.take),
        Turn(subject=PICTURES, take=server.take_pictures),
    ]


def main() -> int:
    leave_nothing_behind()
    options = read_options("order", __doc__ or "", rounds=9, quick_rounds=3)
    say_conditions(options)
    figures = Figures()
    interleave("order", _turns(options), rounds=options.rounds, figures=figures)
    rows = [[each, *(number(figures.median(each, name)) for name in FIGURES)] for each in (ORDER, PICTURES)]
    say_table("an agent in the server's own process", ["", *FIGURES], rows)
    floor = {name: figures.ratio(name, of=ORDER, to=PASS, to_name="start ms") for name in FIGURES[:3]}
    ratios: Ratios = {ORDER: floor}
    return conclude(options, figures, ratios, _targets(figures, ratios))


if __name__ == "__main__":
    sys.exit(main())
