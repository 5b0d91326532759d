"""Benchmark: how long others wait while 50 connections never finish a request, at gateway, node and proxy.

Attackers are elsewhere in life: here they have a processor of their own, where there are two. Else what is measured is
how this machine shares its processors among all.
"""

import os
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from load import SOCKET_LIMIT
from measure import Figures, Ratios, Sample, Turn, interleave
from processes import Child, ChildFailed, Talk, leave_nothing_behind, resident_mib, talking
from report import Options, Target, conclude, number, read_options, say_conditions, say_table
from subjects import SOURCES, NotInstalled, ours_command, ours_python

ATTACKERS = 50
SAMPLE_SECONDS, QUICK_SECONDS = 3.0, 1.5
PAUSE = 0.002  # seconds between two requests of the one who waits
SETTLE = 0.3  # seconds under attack before waiting counts
SERVERS = ("gateway", "node", "proxy")
CALM = "no attack"
FORMS = (
    "endless header",
    "many headers",
    "half-sent headers",
    "endless chunk extension",
    "endless trailer",
    "slow body",
    "unwanted body",
    "unread answers",
)
"""As `peers/attackers.py` has them."""
UNUSABLE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    name: str
    child: Child
    port: int
    request: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One polite client at one server, attacked or not."""

    server: Server
    form: str
    seconds: float
    python: str
    attackers: tuple[str, ...]
    """The processor they run on, or nothing."""

    def take(self) -> Sample:
        before = resident_mib(self.server.child.process.pid)
        with ExitStack() as stack:
            if self.form != CALM:
                words = (str(self.server.port), self.form, str(ATTACKERS), *self.attackers)
                argv = (self.python, str(SOURCES / "attackers.py"), *words)
                Talk(stack.enter_context(talking(argv, name=self.form))).read()
                time.sleep(SETTLE)
            samples = self._ask()
            after = resident_mib(self.server.child.process.pid)
        waits, worked = sorted(waited for waited, _ in samples), sorted(work for _, work in samples)
        return {
            "p50 ms": waits[len(waits) // 2],
            "p99 ms": waits[int(len(waits) * 0.99)],
            "work p99 ms": worked[int(len(worked) * 0.99)],
            "longest ms": waits[-1],
            "MiB more": max(0.0, after - before),
        }

    def _ask(self) -> list[tuple[float, float]]:
        """Milliseconds waited, and those of the server's work meanwhile, of each request."""
        samples = []
        pid = self.server.child.process.pid
        spent = Path(f"/proc/{pid}/task/{pid}/schedstat")
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10 * SOCKET_LIMIT) as wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end = time.monotonic() + self.seconds
            while time.monotonic() < end:
                before = int(spent.read_text().split()[0])
                began = time.perf_counter()
                wire.sendall(self.server.request)
                answer = wire.recv(1 << 16)
                waited = 1000 * (time.perf_counter() - began)
                samples.append((waited, (int(spent.read_text().split()[0]) - before) / 1e6))
                if b" 200 " not in answer[:16]:
                    raise ChildFailed(f"{self.server.name} said {answer[:80]!r}")
                time.sleep(PAUSE)
        return samples


def start(name: str, options: Options, stack: ExitStack) -> Server:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    extra = {"OPENCLAW_STATE_DIR": str(folder), "OPENCLAW_PROXY_AUDIT": "off"}
    words = (ours_command(options.venv), name, "--port", "0")
    child = stack.enter_context(talking(words, name=name, extra=extra))
    words_printed = Talk(child).read().decode().split()
    address = next(word for word in words_printed if word.startswith("http"))
    port = int(address.split(":")[2].partition("/")[0])
    token = (folder / "mcp-token.txt").read_text() if name == "node" else ""
    path = "/" if token else "/health"
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
    return Server(name=name, child=child, port=port, request=head.encode())


def keep_a_processor_free() -> tuple[str, ...]:
    """Leave one processor, which is returned, to others. Nothing where there is but one."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        return ()
    os.sched_setaffinity(0, others)
    return (str(first),)


def measure(options: Options, figures: Figures) -> None:
    seconds = QUICK_SECONDS if options.quick else SAMPLE_SECONDS
    python = ours_python(options.venv)
    attackers = keep_a_processor_free()
    with ExitStack() as stack:
        servers = [start(name, options, stack) for name in SERVERS]
        turns = [
            Turn(
                subject=f"{server.name}: {form}",
                take=Wait(server=server, form=form, seconds=seconds, python=python, attackers=attackers).take,
            )
            for server in servers
            for form in (CALM, *FORMS)
        ]
        interleave("waiting", turns, rounds=options.rounds, figures=figures)


def ratios_of(figures: Figures) -> Ratios:
    return {
        f"{name}: {form}": {
            "/ normal": figures.ratio("p99 ms", of=f"{name}: {form}", to=f"{name}: {CALM}"),
            "work / normal": figures.ratio("work p99 ms", of=f"{name}: {form}", to=f"{name}: {CALM}"),
            "MiB more": figures.median(f"{name}: {form}", "MiB more"),
        }
        for name in SERVERS
        for form in FORMS
    }


def say_waiting(figures: Figures, ratios: Ratios) -> None:
    columns = ("p50 ms", "p99 ms", "work p99 ms", "longest ms", "MiB more")
    rows = []
    for subject in figures.by_subject:
        of = ratios.get(subject, {})
        cells = [number(figures.median(subject, column)) for column in columns]
        rows.append([subject, *cells, number(of.get("/ normal")), number(of.get("work / normal"))])
    head = ["", *columns, "p99 / normal", "work / normal"]
    say_table(f"others wait, with {ATTACKERS} connections of each kind", head, rows)


def targets_of(ratios: Ratios) -> list[Target]:
    targets = []
    for subject, of in ratios.items():
        targets.append(Target(what=subject, unit="x normal p99", measured=of["/ normal"], at_most=3))
        targets.append(Target(what=subject, unit="MiB more", measured=of["MiB more"], at_most=32))
    return targets


def main() -> int:
    options = read_options("headers", __doc__ or "", rounds=5, quick_rounds=3)
    figures = Figures()
    leave_nothing_behind()
    try:
        say_conditions(options)
        measure(options, figures)
    except (NotInstalled, ChildFailed, OSError) as exc:
        sys.stderr.write(f"{exc}\n")
        return UNUSABLE
    ratios = ratios_of(figures)
    say_waiting(figures, ratios)
    return conclude(options, figures, ratios, targets_of(ratios))


if __name__ == "__main__":
    sys.exit(main())
