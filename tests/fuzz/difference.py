"""What the reader says a text would start, against what real shells started.

`python -m tests.fuzz.difference 500000` tries until so many texts were called harmless and run, and prints the figures;
a seed may follow, and how many fences are to be filled at once.
"""

import os
import random
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice

from msgspec import Struct, field

from openclaw_mcp.node.exec.rules import ExecPolicy, Rule, evaluate_policy
from openclaw_mcp.node.exec.shell_reader import ParsedCommand, ParseResult, ShellWord
from openclaw_mcp.node.exec.wrappers import unwrap

from .fence import SHELLS, Fence
from .fenced import UNKNOWN, Batch, FenceReport
from .shell_texts import Maker

ALLOWED = (
    *("echo *", "true *", "false *", ": *", "printf *", "test *", "[ *", "ls *", "tool *", "id *", "uname *", "pwd *"),
    *("exit *", "shift *", "ulimit *", "umask *", "return *", "break *", "continue *"),
)
POLICY = ExecPolicy(default_action="deny", rules=tuple(Rule(pattern=pattern, action="allow") for pattern in ALLOWED))
NOT_FENCED = re.compile(r"env|command|exec|kill|busybox|timeout|nice|nohup|stdbuf|xargs|sh")
"""Without namespaces of our own nothing is started that starts other programs."""
DISTURBING = re.compile(r"\b(exit|shift|ulimit|umask|cd|return|break|continue|exec)\b")
"""Texts that may change the shell they run in: it must be one of their own."""
LOCALES = ("C", "C.UTF-8")
BATCH = 400
ALONE_EVERY = 200
"""Every so manieth batch each text has a process of its own."""
OPEN_FENCE = re.compile(r"[A-Za-z0-9 \n\t$`'\"\\;&|()<>=#!?*\[\]{}%:,@+^.~-]*")
"""Nor is there any path but /dev/null, and so no program but the traps."""


class Finding(Struct, frozen=True):
    shell: str
    text: str
    what: str


class Figures(Struct):
    made: int = 0
    harmless: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    processes: int = 0
    started: int = 0
    stopped: list[Finding] = field(default_factory=list)
    """Texts that made a shell hang: no command, but to be looked at."""
    findings: list[Finding] = field(default_factory=list)


def read(text: str, shell: str = "sh") -> ParseResult | None:
    """What the text would start, if the reader is certain of it and every command is allowed."""
    reading = unwrap([ParsedCommand((ShellWord(shell), ShellWord("-c"), ShellWord(text)))])
    return reading if evaluate_policy(POLICY, reading, locate=lambda name: f"/traps/{name}").action == "allow" else None


def fits(argv: Sequence[bytes], piece: ParsedCommand) -> bool:
    """Whether a program started with `argv` is what `piece` said; an open word may have become any number of words."""
    name, *words = piece.words
    if argv[0] != os.fsencode(name.text):
        return False
    reached = {1}
    for word in words:
        if word.is_dynamic:
            reached = set(range(min(reached), len(argv) + 1))
        else:
            expected = os.fsencode(word.text)
            reached = {at + 1 for at in reached if at < len(argv) and argv[at] == expected}
        if not reached:
            return False
    return len(argv) in reached


def harmless_texts(maker: Maker, figures: Figures, *, closed: bool) -> Iterator[tuple[str, ParseResult]]:
    """Texts the reader calls harmless, each once."""
    known = set[int]()
    while True:
        text = maker.text()
        figures.made += 1
        if "\0" in text or not (closed or _surely_safe(text)):
            continue
        reading = read(text)
        if reading is None or hash(text) in known:
            continue
        known.add(hash(text))
        yield text, reading


def _surely_safe(text: str) -> bool:
    return OPEN_FENCE.fullmatch(text.replace("/dev/null", "")) is not None and not NOT_FENCED.search(text)


class Difference:
    def __init__(self, fence: Fence, figures: Figures) -> None:
        self._fence = fence
        self._figures = figures

    def compare(self, texts: Sequence[tuple[str, ParseResult]], *, locale: str, alone: bool) -> None:
        for shell in SHELLS:
            for own in (False, True):
                part = [pair for pair in texts if (alone or bool(DISTURBING.search(pair[0]))) == own]
                if part:
                    self._run(shell, part, locale=locale, alone=own)
        self._figures.harmless += len(texts)

    def _run(self, shell: str, texts: Sequence[tuple[str, ParseResult]], *, locale: str, alone: bool) -> None:
        report = self._fence.run(Batch(shell, [os.fsencode(text) for text, _ in texts], alone=alone, locale=locale))
        self._figures.runs[shell] = self._figures.runs.get(shell, 0) + len(texts)
        self._figures.processes += report.processes
        self._figures.started += len(report.started)
        for number, what in unnamed(report, texts):
            self._figures.findings.append(Finding(shell, texts[number][0], what))
        for number in report.stopped:
            self._figures.stopped.append(Finding(shell, texts[number][0], "did not end"))
        if report.files:
            self._find_changing_text(shell, texts, report.files, locale=locale)

    def _find_changing_text(
        self, shell: str, texts: Sequence[tuple[str, ParseResult]], files: list[str], *, locale: str
    ) -> None:
        for text, _ in texts:
            again = self._fence.run(Batch(shell, [os.fsencode(text)], alone=True, locale=locale))
            if again.files:
                self._figures.findings.append(Finding(shell, text, f"changed {again.files}"))
                return
        self._figures.findings.append(Finding(shell, "one of a batch", f"changed {files}"))


def unnamed(report: FenceReport, texts: Sequence[tuple[str, ParseResult]]) -> Iterator[tuple[int, str]]:
    """What was started, or tried, that the reader had not named."""
    for number, argv in report.started:
        candidates = texts if number == UNKNOWN else [texts[number]]
        if not any(fits(argv, piece) for _, reading in candidates for piece in reading.commands):
            yield number, f"started {argv}"
    for number, complaint in report.complaints:
        yield number, complaint.decode(errors="replace")


class _Work:
    """Texts handed out in batches to as many fences as there are, and what came of all of them."""

    def __init__(self, count: int, seed: int, *, closed: bool) -> None:
        self.figures = Figures()
        self._lock = threading.Lock()
        self._left = count
        self._batches = 0
        self._texts = harmless_texts(Maker(random.Random(seed)), self.figures, closed=closed)

    def next(self) -> tuple[int, list[tuple[str, ParseResult]]]:
        with self._lock:
            batch = list(islice(self._texts, min(BATCH, self._left)))
            self._left -= len(batch)
            self._batches += 1
            return self._batches, batch

    def add(self, part: Figures) -> None:
        with self._lock:
            whole = self.figures
            whole.harmless += part.harmless
            whole.processes += part.processes
            whole.started += part.started
            whole.findings += part.findings
            whole.stopped += part.stopped
            for shell, runs in part.runs.items():
                whole.runs[shell] = whole.runs.get(shell, 0) + runs


def run(count: int, *, seed: int, fences: int = 1, say: bool = False) -> Figures:
    began = time.monotonic()
    with ExitStack() as stack:
        opened = [stack.enter_context(Fence()) for _ in range(fences)]
        work = _Work(count, seed, closed=all(fence.closed for fence in opened))

        def keep_busy(fence: Fence) -> None:
            while True:
                number, batch = work.next()
                if not batch:
                    return
                part = Figures()
                alone = number % ALONE_EVERY == 0
                Difference(fence, part).compare(batch, locale=LOCALES[number % 2], alone=alone)
                work.add(part)
                if say and (number % 50 == 0 or part.findings or part.stopped):
                    print(
                        f"{time.monotonic() - began:.0f} s: {summary(work.figures)}",
                        *part.findings,
                        *part.stopped,
                        sep="\n",
                        flush=True,
                    )

        with ThreadPoolExecutor(fences) as pool:
            list(pool.map(keep_busy, opened))
    return work.figures


def summary(figures: Figures) -> str:
    return (
        f"{figures.made} texts made, {figures.harmless} called harmless and run in each of {len(figures.runs)} shells "
        f"({sum(figures.runs.values())} runs in {figures.processes} processes, {figures.started} programs started), "
        f"{len(figures.stopped)} did not end, {len(figures.findings)} findings"
    )


if __name__ == "__main__":
    count, seed, fences = [*map(int, sys.argv[1:]), *(1, 1)[len(sys.argv) - 2 :]]
    total = run(count, seed=seed, fences=fences, say=True)
    print(summary(total), *total.findings, *total.stopped, sep="\n")
    sys.exit(1 if total.findings else 0)
