"""Benchmark: this version beside another one, in one interleaved run: `versions.py --before VENV`.

VENV is an environment in which the other version is installed. Prints the figures of both and their ratio; a ratio is
this version over the other.
"""

import argparse
import itertools
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from http import start as start_http
from pathlib import Path

import wire
from gateway import OURS as OUR_GATEWAY
from gateway import Gateway
from load import Endpoint, Load, LoadFailed, need_wrk
from measure import Figures, Sample, Turn, interleave
from node import IDLE_SECONDS, free_port
from processes import ChildFailed, Talk, leave_nothing_behind, resident_mib, serving, talking
from proxied import calls_to, lender, proxy
from proxy import FLOOR, echo_floor
from report import Options, number, say, say_table
from stdio import Bare, Calling, ColdStart
from subjects import BARE, OURS, NotInstalled, Subject, ours_command, ours_python
from up import UP, Start

HERE, BEFORE = "this version", "before"
CONNECTIONS = 16
CALLS = 300
UNUSABLE = 2
PARTS = ("stdio", "http", "bridge", "gateway", "up")

Versions = dict[str, Path]


def measure_stdio(versions: Versions, rounds: int, figures: Figures) -> None:
    """Cold start until `initialize` and the first call; then calls on a server that is up."""
    call = wire.stdio_calls()[0]
    subjects = {name: Subject(name=name, argv=(ours_command(venv), "echo")) for name, venv in versions.items()}
    turns = [Turn(subject=BARE, take=Bare(python=ours_python(versions[HERE])).take)]
    turns += [Turn(subject=name, take=ColdStart(subject=each, call=call).take) for name, each in subjects.items()]
    interleave("stdio, cold start", turns, rounds=rounds * 3, figures=figures)
    with ExitStack() as servers:
        turns = []
        for name, subject in subjects.items():
            talk = Talk(servers.enter_context(talking(subject.argv, name=name)))
            wire.check_opening(talk.ask(wire.stdio_opening()), of=name)
            talk.send(wire.stdio_opened())
            calling = Calling(talk=talk, calls=itertools.cycle(wire.stdio_calls()), seconds=1.0)
            turns.append(Turn(subject=name, take=calling.take))
        interleave("stdio, calls", turns, rounds=rounds, figures=figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An endpoint under load, its figures named for the part they belong to."""

    part: str
    endpoint: Endpoint

    def take(self) -> Sample:
        sample = Load(endpoint=self.endpoint, connections=CONNECTIONS, seconds=2).take()
        return {f"{self.part} {name}": value for name, value in sample.items()}


def measure_http(versions: Versions, rounds: int, figures: Figures) -> None:
    with ExitStack() as servers:
        turns = []
        for name, venv in versions.items():
            subject = Subject(name=OURS, argv=(ours_command(venv), "echo", "--http", "--port"), wires=("M", "L"))
            for endpoint in start_http(subject, servers):
                part = f"http {endpoint.name.rpartition(' ')[2]}"
                turns.append(Turn(subject=name, take=Loaded(part=part, endpoint=endpoint).take))
        interleave("http", turns, rounds=rounds, figures=figures)


def measure_bridge(versions: Versions, rounds: int, figures: Figures) -> None:
    with ExitStack() as servers:
        options = Options(name="", rounds=rounds, quick=False, json=Path(), check=False, venv=versions[HERE])
        turns = [Turn(subject=FLOOR, take=Loaded(part="bridge", endpoint=echo_floor(options, servers)).take)]
        for name, venv in versions.items():
            running = servers.enter_context(proxy(venv))
            session = servers.enter_context(lender(venv, running, tools=20))
            endpoint = calls_to(running, session, name=name)
            endpoint.check()
            turns.append(Turn(subject=name, take=Loaded(part="bridge", endpoint=endpoint).take))
        interleave("bridge", turns, rounds=rounds, figures=figures)


def measure_gateway(versions: Versions, rounds: int, figures: Figures) -> None:
    turns = []
    for name, venv in versions.items():
        argv = (ours_command(venv), "gateway", "--port", "PORT")
        turns.append(Turn(subject=name, take=Gateway(name=OUR_GATEWAY, argv=argv, calls=CALLS).take))
    interleave("gateway", turns, rounds=rounds, figures=figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpAtRest:
    """`openclaw up` until every surface answers, and its memory after some seconds of rest."""

    start: Start

    def take(self) -> Sample:
        ports = {name: free_port() for name in ("gateway", "node", "proxy")}
        with serving(self.start.words(ports), name=UP) as child:
            self.start.answered(child, ports)
            started = 1000 * (time.perf_counter() - child.started)
            time.sleep(IDLE_SECONDS)
            return {"up start ms": started, "up idle MiB": resident_mib(child.process.pid)}


def measure_up(versions: Versions, rounds: int, figures: Figures) -> None:
    with ExitStack() as places:
        turns = []
        for name, venv in versions.items():
            state = Path(places.enter_context(tempfile.TemporaryDirectory()))
            start = UpAtRest(start=Start(argv=(ours_command(venv), "up"), state=state))
            turns.append(Turn(subject=name, take=start.take))
        interleave("up", turns, rounds=rounds, figures=figures)


MEASURE = {
    "stdio": measure_stdio,
    "http": measure_http,
    "bridge": measure_bridge,
    "gateway": measure_gateway,
    "up": measure_up,
}


def show(figures: Figures) -> None:
    rows = []
    for name in figures.by_subject[HERE]:
        ratio = figures.ratio(name, of=HERE, to=BEFORE)
        rows.append([name, number(figures.median(BEFORE, name)), number(figures.median(HERE, name)), number(ratio)])
    say_table("this version beside the other; medians", ["", BEFORE, HERE, "ratio"], rows)
    for what, floor, names in (
        ("init", BARE, ("init ms", "floor ms")),
        ("first call", BARE, ("first call ms", "floor ms")),
        ("bridge", FLOOR, (f"bridge {CONNECTIONS}: /s",) * 2),
    ):
        if floor in figures.by_subject:
            of = {name: figures.ratio(names[0], of=name, to=floor, to_name=names[1]) for name in (BEFORE, HERE)}
            say(f"  {what} x {floor}: {number(of[BEFORE])} before, {number(of[HERE])} now")
    say(f"\n{figures.rushed} of {figures.taken} samples were taken while other work kept the machine busy.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, metavar="VENV", help="where the other version is")
    parser.add_argument("--venv", type=Path, default=Path(__file__).parent.parent / ".venv", help="where this one is")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"{', '.join(PARTS)} (all)")
    options = parser.parse_args()
    versions = {BEFORE: options.before.absolute(), HERE: options.venv.absolute()}
    figures = Figures()
    leave_nothing_behind()
    try:
        need_wrk()
        for part in options.parts or PARTS:
            MEASURE[part](versions, options.rounds, figures)
    except (NotInstalled, ChildFailed, LoadFailed, wire.WrongAnswer) as exc:
        sys.stderr.write(f"{exc}\n")
        return UNUSABLE
    show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
