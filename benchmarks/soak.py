"""Soak: a proxy at half of what it can do while sessions come and go; its memory in the first and the last minute."""

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import wire
from load import Load, LoadFailed, need_wrk
from processes import Child, ChildFailed, leave_nothing_behind, resident_mib
from proxied import Proxy, Wire, calls_to, lender, proxy, registration
from report import MISSED, Target, number, say, say_table
from subjects import REPOSITORY, NotInstalled

CONNECTIONS = 16
PROBE_SECONDS = 5
WARM_SECONDS = 30  # at half load, unrecorded: caches and allocator pools fill in this time
BETWEEN = 1.0  # seconds between two looks at the memory
GROWTH = 1.05
UNUSABLE = 2


@dataclass(slots=True)
class Watch:
    """Looks at the proxy's memory every second, and lets a session come and go each time."""

    proxy: Proxy
    samples: list[tuple[float, float]] = field(default_factory=list)
    sessions: int = 0

    def over(self, load: Child) -> None:
        """Until the load ends."""
        started = time.monotonic()
        with Wire(self.proxy.port) as connection:
            while not load.exited(within=BETWEEN):
                self._come_and_go(connection)
                self.samples.append((time.monotonic() - started, resident_mib(self.proxy.group)))

    def _come_and_go(self, connection: Wire) -> None:
        self.sessions += 1
        id = connection.register(registration(self.sessions, own_words=True))
        connection.ask("DELETE", f"/v1/chat/sessions/{id}")

    def between(self, start: float, end: float) -> float:
        """Median memory between two moments, in seconds from the beginning."""
        return median(memory for at, memory in self.samples if start <= at <= end)


def soak(venv: Path, minutes: float) -> Target:
    with ExitStack() as servers:
        running = servers.enter_context(proxy(venv))
        endpoint = calls_to(running, servers.enter_context(lender(venv, running, tools=20)), name="20 tools")
        endpoint.check()
        full = Load(endpoint=endpoint, connections=CONNECTIONS, seconds=PROBE_SECONDS).take()[f"{CONNECTIONS}: /s"]
        # A connection answers every CONNECTIONS / full seconds; resting as long again halves the load.
        pause = max(1, round(1000 * CONNECTIONS / full))
        say(f"soak: full load {number(full)} calls a second; {pause} ms of rest make it about half")
        Load(endpoint=endpoint, connections=CONNECTIONS, seconds=WARM_SECONDS, pause=pause).take()
        watch = Watch(running)
        seconds = round(60 * minutes)
        load = Load(endpoint=endpoint, connections=CONNECTIONS, seconds=seconds, pause=pause)
        report = load.run(watch.over)
        endpoint.check()
    if report["status"] or report["socket"] or report["timeout"]:
        raise LoadFailed(f"failed requests: {report}")
    first, last = watch.between(0, min(60, seconds / 2)), watch.between(seconds - min(60, seconds / 2), seconds + 60)
    rows = [["first minute", number(first)], ["last minute", number(last)]]
    say_table(f"memory over {number(minutes)} minutes", ["", "MiB"], rows)
    rate = 1e6 * report["requests"] / report["us"]
    say(f"\n{report['requests']:,} calls at {number(rate)} a second, {watch.sessions:,} sessions made and deleted")
    return Target(what="memory, last minute", unit="x first minute", measured=last / first, at_most=GROWTH)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--check", action="store_true", help="exit 1 unless the target is met")
    parser.add_argument("--venv", type=Path, default=REPOSITORY / ".venv", help="where ours is installed")
    options = parser.parse_args()
    leave_nothing_behind()
    try:
        need_wrk()
        target = soak(options.venv.absolute(), options.minutes)
    except (NotInstalled, ChildFailed, LoadFailed, wire.WrongAnswer) as exc:
        sys.stderr.write(f"{exc}\n")
        return UNUSABLE
    say_table("target", ["ours", "target", "measured", "verdict"], [target.row()])
    return MISSED if options.check and target.verdict != "pass" else 0


if __name__ == "__main__":
    sys.exit(main())
