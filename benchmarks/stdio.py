"""Benchmark: an stdio server's cold start and memory, and its calls a second, against a floor and peers."""

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import wire
from measure import Figures, Ratios, Sample, Turn, interleave
from processes import (
    ANSWER_LIMIT,
    ChildFailed,
    Talk,
    cpu_seconds,
    leave_nothing_behind,
    resident_mib,
    talking,
)
from report import Options, Target, conclude, number, read_options, say_conditions, say_table
from subjects import BARE, OURS, SDK, TYPESCRIPT, NotInstalled, Subject, ours_python, stdio_subjects

IN_FLIGHT = 64
SAMPLE_SECONDS = 1.0
QUICK_SECONDS = 0.3
UNUSABLE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare:
    """The floor: an interpreter that starts, does nothing and leaves."""

    python: str

    def take(self) -> Sample:
        with talking((self.python, "-c", "pass"), name=BARE) as child:
            if not child.exited(within=ANSWER_LIMIT):
                raise child.failed("did not leave")
            return {"floor ms": 1000 * (time.perf_counter() - child.started)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """A server started, opened, called once and ended."""

    subject: Subject
    call: bytes

    def take(self) -> Sample:
        with talking(self.subject.argv, name=self.subject.name) as child:
            talk = Talk(child)
            opening = talk.ask(wire.stdio_opening())
            opened = time.perf_counter()
            talk.send(wire.stdio_opened())
            answer = talk.ask(self.call)
            called = time.perf_counter()
            memory = resident_mib(child.process.pid)
        wire.check_opening(opening, of=child.name)
        wire.check_calls([answer], of=child.name)
        return {
            "init ms": 1000 * (opened - child.started),
            "first call ms": 1000 * (called - child.started),
            "RSS MiB": memory,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """A server that stays up and is called for a while, one call at a time and then many in flight."""

    talk: Talk
    calls: Iterator[bytes]
    seconds: float

    def take(self) -> Sample:
        group = self.talk.child.process.pid
        before = cpu_seconds(group)
        single, elapsed = self._one_at_a_time()
        between = cpu_seconds(group)
        piped, piped_elapsed = self._pipelined()
        after = cpu_seconds(group)
        return {
            "one at a time /s": single / elapsed,
            "one at a time CPU us": 1e6 * (between - before) / single,
            "pipelined /s": piped / piped_elapsed,
            "pipelined CPU us": 1e6 * (after - between) / piped,
        }

    def _one_at_a_time(self) -> tuple[int, float]:
        answers = []
        started = now = time.perf_counter()
        while now < started + self.seconds:
            answers.append(self.talk.ask(next(self.calls)))
            now = time.perf_counter()
        wire.check_calls(answers, of=self.talk.child.name)
        return len(answers), now - started

    def _pipelined(self) -> tuple[int, float]:
        """Keep IN_FLIGHT calls on the pipe: every answer is replaced by a call."""
        chunks = []
        answered = 0
        started = now = time.perf_counter()
        self._send(IN_FLIGHT)
        while now < started + self.seconds:
            chunks.append(self.talk.read())
            lines = chunks[-1].count(b"\n")
            answered += lines
            now = time.perf_counter()
            self._send(lines)
        self._drain(chunks, expected=answered + IN_FLIGHT)
        return answered, now - started

    def _send(self, count: int) -> None:
        self.talk.send(b"".join(itertools.islice(self.calls, count)))

    def _drain(self, chunks: list[bytes], *, expected: int) -> None:
        """Take in what is still in flight, then check every answer of the sample."""
        count = sum(chunk.count(b"\n") for chunk in chunks)
        while count < expected:
            chunks.append(self.talk.read())
            count += chunks[-1].count(b"\n")
        wire.check_calls(b"".join(chunks).splitlines(), of=self.talk.child.name)


def measure_cold_starts(subjects: list[Subject], options: Options, figures: Figures) -> None:
    floor = Turn(subject=BARE, take=Bare(python=ours_python(options.venv)).take)
    call = wire.stdio_calls()[0]
    starts = [ColdStart(subject=subject, call=call) for subject in subjects]
    turns = [Turn(subject=start.subject.name, take=start.take) for start in starts]
    interleave("cold start", [floor, *turns], rounds=options.rounds, figures=figures)


def measure_calls(subjects: list[Subject], options: Options, figures: Figures) -> None:
    lines = wire.stdio_calls()
    seconds = QUICK_SECONDS if options.quick else SAMPLE_SECONDS
    turns = []
    with ExitStack() as servers:
        for subject in subjects:
            talk = Talk(servers.enter_context(talking(subject.argv, name=subject.name)))
            wire.check_opening(talk.ask(wire.stdio_opening()), of=subject.name)
            talk.send(wire.stdio_opened())
            calling = Calling(talk=talk, calls=itertools.cycle(lines), seconds=seconds)
            turns.append(Turn(subject=subject.name, take=calling.take))
        interleave("calls", turns, rounds=options.rounds, figures=figures)


def ratios_of(figures: Figures, names: list[str]) -> Ratios:
    return {
        name: {
            "init / floor": figures.ratio("init ms", of=name, to=BARE, to_name="floor ms"),
            "first call / floor": figures.ratio("first call ms", of=name, to=BARE, to_name="floor ms"),
            "one at a time / TypeScript": figures.ratio("one at a time /s", of=name, to=TYPESCRIPT),
            "pipelined / Python SDK": figures.ratio("pipelined /s", of=name, to=SDK),
        }
        for name in names
    }


def say_cold_starts(figures: Figures, ratios: Ratios) -> None:
    floor = figures.median(BARE, "floor ms")
    rows = [[BARE, number(floor), "1.00", "-", "-", "-"]]
    for name, of in ratios.items():
        cells = (
            figures.median(name, "init ms"),
            of["init / floor"],
            figures.median(name, "first call ms"),
            of["first call / floor"],
            figures.median(name, "RSS MiB"),
        )
        rows.append([name, *map(number, cells)])
    head = ["", "init ms", "x floor", "first call ms", "x floor", "RSS MiB"]
    say_table("cold start: from spawn to the answer; memory after the first call", head, rows)


def say_calls(figures: Figures, ratios: Ratios) -> None:
    rows = []
    for name, of in ratios.items():
        cells = (
            figures.median(name, "one at a time /s"),
            of["one at a time / TypeScript"],
            figures.median(name, "one at a time CPU us"),
            figures.median(name, "pipelined /s"),
            of["pipelined / Python SDK"],
            figures.median(name, "pipelined CPU us"),
        )
        rows.append([name, *map(number, cells)])
    single = ["one at a time /s", "x TypeScript", "CPU us"]
    head = ["", *single, f"{IN_FLIGHT} pipelined /s", "x Python SDK", "CPU us"]
    say_table("tools/call on a server that is up, and its processor time per call", head, rows)


def targets_of(figures: Figures, ratios: Ratios) -> list[Target]:
    ours = ratios[OURS]
    memory = figures.median(OURS, "RSS MiB")
    typescript, sdk = ours["one at a time / TypeScript"], ours["pipelined / Python SDK"]
    return [
        Target(what="initialize answered", unit="x floor", measured=ours["init / floor"], at_most=2),
        Target(what="first call answered", unit="x floor", measured=ours["first call / floor"], at_most=8),
        Target(what="resident memory", unit="MiB", measured=memory, at_most=30),
        Target(what="one call at a time", unit="x TypeScript SDK", measured=typescript, at_least=1),
        Target(what=f"{IN_FLIGHT} calls pipelined", unit="x Python SDK", measured=sdk, at_least=20),
    ]


def main() -> int:
    options = read_options("stdio", __doc__ or "", rounds=11, quick_rounds=3)
    figures = Figures()
    leave_nothing_behind()
    try:
        subjects = stdio_subjects(options.venv)
        say_conditions(options)
        measure_cold_starts(subjects, options, figures)
        measure_calls(subjects, options, figures)
    except (NotInstalled, ChildFailed, wire.WrongAnswer) as exc:
        sys.stderr.write(f"{exc}\n")
        return UNUSABLE
    ratios = ratios_of(figures, [subject.name for subject in subjects])
    say_cold_starts(figures, ratios)
    say_calls(figures, ratios)
    return conclude(options, figures, ratios, targets_of(figures, ratios))


if __name__ == "__main__":
    sys.exit(main())
