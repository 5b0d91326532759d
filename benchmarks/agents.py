"""Benchmark: what a turn with a model costs beside the model itself, and many turns at once.

Our agent has 60 tools. The real OpenClaw, with the tools it brings, is found by OPENCLAW_REAL (the npm package's
folder) and OPENCLAW_NODE (a Node.js 24.16 or newer).
"""

import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway import ChatClient, model_settings
from measure import Figures, Ratios, Sample, Turn, interleave
from processes import Child, Talk, cpu_seconds, leave_nothing_behind, serving, talking
from report import Options, Target, conclude, number, read_options, say, say_conditions, say_table

OURS, REAL = "ours", "real OpenClaw"
TOKEN = "benchmark"
TOOLS = 60
START_LIMIT = 240.0  # the real one on a cold and busy machine
RETRY_PAUSE = 0.05
QUICK_MODEL, SLOW_MODEL = 2.0, 500.0  # milliseconds
TURNS, QUICK_TURNS, WARM_TURNS = 40, 10, 3
SESSIONS = 50
FIGURES = ("overhead ms", "p90 ms", "first ms", "one s", "fifty s", "fifty/one", "CPU ms a turn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """How one of the two is started on a port, with a state folder of its own."""

    name: str
    argv: tuple[str, ...]
    turns: int
    python: str

    def take(self) -> Sample:
        sample: dict[str, float] = {}
        with self._talking(QUICK_MODEL) as (rpc, _):
            sample["first ms"] = 1000 * rpc.turn("main") - QUICK_MODEL
            for _ in range(WARM_TURNS):
                rpc.turn("main")
            spent = sorted(1000 * rpc.turn("main") - QUICK_MODEL for _ in range(self.turns))
            sample |= {"overhead ms": statistics.median(spent), "p90 ms": spent[int(len(spent) * 0.9)]}
        if self.name == OURS:  # the real one prepares its turns one after the other; minutes would tell no more
            with self._talking(SLOW_MODEL) as (rpc, child):
                keys = [f"agent:main:s{n}" for n in range(SESSIONS)]
                rpc.turn(keys[0])
                sample["one s"] = statistics.median(rpc.turn(keys[0]) for _ in range(3))
                start, used = time.perf_counter(), cpu_seconds(child.process.pid)
                rpc.all_at_once(keys)
                sample["fifty s"] = time.perf_counter() - start
                sample["CPU ms a turn"] = 1000 * (cpu_seconds(child.process.pid) - used) / SESSIONS
                sample["fifty/one"] = sample["fifty s"] / sample["one s"]
        return sample

    @contextmanager
    def _talking(self, milliseconds: float) -> Iterator[tuple[ChatClient, Child]]:
        model = (self.python, str(Path(__file__).parent / "peers" / "model.py"), str(milliseconds))
        with tempfile.TemporaryDirectory() as folder, talking(model, name="the model") as peer:
            port, peer_port = _free_port(), int(Talk(peer).read())
            argv = tuple(word.replace("PORT", str(port)) for word in self.argv)
            with serving(argv, name=self.name, extra=_settings(folder, port, peer_port)) as child:
                rpc = _hello(port, child)
                yield rpc, child
                rpc.close()


def _hello(port: int, child: Child) -> ChatClient:
    """A connected client, as soon as the gateway accepts one."""
    deadline = time.monotonic() + START_LIMIT
    client = {"id": "gateway-client", "version": "1", "platform": "linux", "mode": "backend"}
    connect = {
        "minProtocol": 4, "maxProtocol": 4, "client": client, "role": "operator",
        "scopes": ["operator.read", "operator.write"], "auth": {"token": TOKEN},
    }  # fmt: skip
    while True:
        rpc = None
        with suppress(OSError):
            rpc = ChatClient(port)
            rpc.ask("connect", connect)
            return rpc
        if rpc is not None:
            rpc.close()
        if child.exited(within=0) or time.monotonic() > deadline:
            raise child.failed("said no hello")
        time.sleep(RETRY_PAUSE)


def _settings(folder: str, port: int, model: int) -> dict[str, str]:
    state = Path(folder) / "state"
    state.mkdir()
    config: dict[str, Any] = {
        "gateway": {"mode": "local", "bind": "loopback", "port": port, "auth": {"mode": "token", "token": TOKEN}},
        **model_settings(model),
    }
    (state / "openclaw.json").write_text(json.dumps(config))
    return {"HOME": folder, "OPENCLAW_STATE_DIR": str(state), "OPENCLAW_GATEWAY_TOKEN": TOKEN}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _subjects(options: Options) -> list[Subject]:
    turns = QUICK_TURNS if options.quick else TURNS
    python = str(options.venv / "bin" / "python")
    furnished = str(Path(__file__).parent / "peers" / "furnished.py")
    ours = (python, furnished, str(TOOLS), "gateway", "--port", "PORT")
    found = [Subject(name=OURS, argv=ours, turns=turns, python=python)]
    folder, node = os.environ.get("OPENCLAW_REAL"), os.environ.get("OPENCLAW_NODE")
    if folder and node:
        real = (node, str(Path(folder) / "openclaw.mjs"), "gateway", "run")
        found.append(Subject(name=REAL, argv=real, turns=turns, python=python))
    else:
        say(f"  {REAL} is left out: set OPENCLAW_REAL and OPENCLAW_NODE")
    return found


def main() -> int:
    leave_nothing_behind()
    options = read_options("agents", __doc__ or "", rounds=3, quick_rounds=1)
    say_conditions(options)
    figures = Figures()
    subjects = _subjects(options)
    turns = [Turn(subject=each.name, take=each.take) for each in subjects]
    interleave("agents", turns, rounds=options.rounds, figures=figures)
    rows = [[each.name, *(number(figures.median(each.name, name)) for name in FIGURES)] for each in subjects]
    say_table(f"a turn with {TOOLS} tools; {SESSIONS} sessions at once", ["", *FIGURES], rows)
    ratios: Ratios = {OURS: {name: figures.ratio(name, of=OURS, to=REAL) for name in FIGURES[:3]}}
    at_once = figures.median(OURS, "fifty/one")
    targets = [
        Target(what="turn", unit="of the real one", measured=ratios[OURS]["overhead ms"], at_most=1 / 20),
        Target(what=f"{SESSIONS} sessions at once", unit="x one turn", measured=at_once, at_most=1.3),
    ]
    return conclude(options, figures, ratios, targets)


if __name__ == "__main__":
    sys.exit(main())
