"""Benchmark: `remoteclaw-mcp-server` from spawn to its list, its first tool answered by our gateway, and later ones."""

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import wire
from gateway import TOKEN, Gateway, _hello, free_port, settings
from measure import Figures, Ratios, Sample, Turn, interleave
from processes import ChildFailed, Talk, leave_nothing_behind, resident_mib, serving, talking
from report import Options, Target, conclude, number, read_options, say_conditions, say_table
from stdio import UNUSABLE, Bare
from subjects import BARE, NotInstalled, ours_command, ours_python

OURS = "remoteclaw-mcp-server"
LATER = 50  # calls after the first, of which the mean is taken
TOOLS = 29


def line(id: int, method: str, params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The server started, listed, called and ended, as on every run of an agent."""

    command: str
    settings: dict[str, str]

    def take(self) -> Sample:
        with talking((self.command,), name=OURS, extra=self.settings) as child:
            talk = Talk(child)
            wire.check_opening(talk.ask(wire.stdio_opening()), of=OURS)
            talk.send(wire.stdio_opened())
            listed = json.loads(talk.ask(line(2, "tools/list", {})))
            listed_at = time.perf_counter()
            self._call(talk, 3)
            called = time.perf_counter()
            for id in range(LATER):
                self._call(talk, 10 + id)
            later = (time.perf_counter() - called) / LATER
            memory = resident_mib(child.process.pid)
        if len(listed["result"]["tools"]) != TOOLS:
            raise wire.WrongAnswer(f"{OURS} listed {len(listed['result']['tools'])} tools")
        return {
            "list ms": 1000 * (listed_at - child.started),
            "first tool ms": 1000 * (called - child.started),
            "later ms": 1000 * later,
            "RSS MiB": memory,
        }

    def _call(self, talk: Talk, id: int) -> None:
        answer = json.loads(talk.ask(line(id, "tools/call", {"name": "agents_list", "arguments": {}})))
        while answer.get("id") != id:
            answer = json.loads(talk.ask(b""))
        if answer["result"]["isError"]:
            raise wire.WrongAnswer(str(answer))


def measure(options: Options, figures: Figures) -> None:
    openclaw = Path(ours_command(options.venv))
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        gateway = Gateway(name="gateway", argv=(str(openclaw), "gateway", "--port", str(port)), calls=0)
        with serving(gateway.argv, name="gateway", extra=settings(folder, port)) as child:
            _hello(port, child).close()
            environment = {
                "REMOTECLAW_GATEWAY_URL": f"ws://127.0.0.1:{port}",
                "REMOTECLAW_GATEWAY_TOKEN": TOKEN,
                "REMOTECLAW_SESSION_KEY": "agent:main:benchmark",
                "REMOTECLAW_SIDE_EFFECTS_FILE": os.devnull,
            }
            start = Start(command=str(openclaw.with_name(OURS)), settings=environment)
            floor = Turn(subject=BARE, take=Bare(python=ours_python(options.venv)).take)
            interleave(
                "cold start", [floor, Turn(subject=OURS, take=start.take)], rounds=options.rounds, figures=figures
            )


def main() -> int:
    options = read_options("claw", __doc__ or "", rounds=21, quick_rounds=5)
    figures = Figures()
    leave_nothing_behind()
    try:
        say_conditions(options)
        measure(options, figures)
    except (NotInstalled, ChildFailed, wire.WrongAnswer) as exc:
        sys.stderr.write(f"{exc}\n")
        return UNUSABLE
    ratios: Ratios = {
        OURS: {
            "list / floor": figures.ratio("list ms", of=OURS, to=BARE, to_name="floor ms"),
            "first tool / floor": figures.ratio("first tool ms", of=OURS, to=BARE, to_name="floor ms"),
        }
    }
    own = ratios[OURS]
    floor = figures.median(BARE, "floor ms")
    cells = (
        figures.median(OURS, "list ms"), own["list / floor"], figures.median(OURS, "first tool ms"),
        own["first tool / floor"], figures.median(OURS, "later ms"), figures.median(OURS, "RSS MiB"),
    )  # fmt: skip
    head = ["", "list ms", "x floor", "first tool ms", "x floor", "later ms", "RSS MiB"]
    say_table("from spawn", head, [[BARE, number(floor), "1.00", "-", "-", "-", "-"], [OURS, *map(number, cells)]])
    targets = [
        Target(what="initialize and tools/list", unit="x floor", measured=own["list / floor"], at_most=3),
        Target(what="first tool answered", unit="x floor", measured=own["first tool / floor"], at_most=12),
    ]
    return conclude(options, figures, ratios, targets)


if __name__ == "__main__":
    sys.exit(main())
