"""Benchmark: the app-tool proxy's calls a second, memory, bridges and start, against floors."""

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

import wire
from load import Endpoint, Load, LoadFailed, await_listening, free_port, need_wrk
from measure import Figures, Ratios, Sample, Turn, interleave
from processes import ChildFailed, Talk, leave_nothing_behind, resident_mib, serving, talking
from proxied import Wire, calls_to, crowd, has_redis, lender, proxy, redis_server, registration
from report import Options, Target, conclude, number, read_options, say, say_conditions, say_table
from stdio import Bare
from subjects import BARE, SOURCES, NotInstalled, ours_command, ours_python

CONNECTIONS = (1, 16, 64)
JUDGED_AT = 16
SAMPLE_SECONDS = 2
QUICK_SECONDS = 1  # wrk counts in whole seconds
SESSIONS, QUICK_SESSIONS = 10_000, 2_000
WARM_SESSIONS = 500  # made first, so that what a process needs anyway is not counted as theirs
BRIDGES, QUICK_BRIDGES = 2_000, 300
STARTS = 7
UNUSABLE = 2

FLOOR = "raw ASGI echo"
FEW, MANY = "20 tools", "100 tools"
RELAYED = "20 tools, relayed"
ALIKE, UNLIKE = "sessions with equal tools", "sessions with tools of their own"
CROWD = "bridges"
HEALTH, STDIO = "start to /health", "stdio spawn to initialize"


# ---- calls ----


def echo_floor(options: Options, servers: ExitStack) -> Endpoint:
    port = free_port()
    argv = (ours_python(options.venv), str(SOURCES / "echo_body.py"), str(port))
    child = servers.enter_context(serving(argv, name=FLOOR))
    await_listening(child, port)
    return Endpoint(name=FLOOR, groups=(child.process.pid,), port=port, post=wire.http_calls()["M"], path="/echo")


def start_endpoints(options: Options, servers: ExitStack) -> list[Endpoint]:
    """The floor; one proxy with a session of 20 and one of 100 tools; two proxies, called where the bridge is not."""
    enter = servers.enter_context
    single = enter(proxy(options.venv))
    endpoints = [
        echo_floor(options, servers),
        calls_to(single, enter(lender(options.venv, single, tools=20)), name=FEW),
        calls_to(single, enter(lender(options.venv, single, tools=100)), name=MANY),
    ]
    if has_redis(options.venv):
        url = enter(redis_server())
        near, far = enter(proxy(options.venv, redis=url)), enter(proxy(options.venv, redis=url))
        endpoints.append(calls_to(far, enter(lender(options.venv, near, tools=20)), name=RELAYED))
    else:
        say("  two instances are left out: redis-server and the extra `redis` are needed")
    for endpoint in endpoints:
        endpoint.check()
    return endpoints


def measure_calls(options: Options, figures: Figures) -> list[str]:
    seconds = QUICK_SECONDS if options.quick else SAMPLE_SECONDS
    with ExitStack() as servers:
        endpoints = start_endpoints(options, servers)
        turns = [
            Turn(subject=endpoint.name, take=Load(endpoint=endpoint, connections=count, seconds=seconds).take)
            for count in CONNECTIONS
            for endpoint in endpoints
        ]
        interleave("calls", turns, rounds=options.rounds, figures=figures)
    return [endpoint.name for endpoint in endpoints]


# ---- memory ----


def measure_sessions(options: Options, figures: Figures) -> None:
    """Resident memory that so many sessions of 20 tools add, apps alike and apps all different, each listed once."""
    count = QUICK_SESSIONS if options.quick else SESSIONS
    for name, own_words in ((ALIKE, False), (UNLIKE, True)):
        sys.stderr.write(f"memory: {count} {name}\n")
        with proxy(options.venv) as running, Wire(running.port) as connection:
            for session in range(WARM_SESSIONS):
                connection.register(registration(session, own_words=own_words))
            before = resident_mib(running.group)
            for session in range(WARM_SESSIONS, WARM_SESSIONS + count):
                connection.register(registration(session, own_words=own_words))
            grown = resident_mib(running.group) - before
        figures.note(name, {"KiB each": 1024 * grown / count, "count": float(count)})


def measure_bridges(options: Options, figures: Figures) -> None:
    """So many apps connected at once, each called."""
    count = QUICK_BRIDGES if options.quick else BRIDGES
    sys.stderr.write(f"bridges: {count}\n")
    call = wire.http_calls()["M"]
    with proxy(options.venv) as running:
        before = resident_mib(running.group)
        with crowd(options.venv, running, count=count) as ids, Wire(running.port) as connection:
            grown = resident_mib(running.group) - before
            for id in ids:
                answer = connection.ask("POST", f"/v1/mcp/{id}", call.body, call.headers)
                wire.check_calls([wire.encode(answer)], of=CROWD)
            served = len(ids)
    figures.note(CROWD, {"KiB each": 1024 * grown / count, "count": float(count), "served": float(served)})


# ---- start ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A proxy started until it says it is well."""

    argv: tuple[str, ...]

    def take(self) -> Sample:
        with talking(self.argv, name=HEALTH) as child:
            address = Talk(child).read().decode().split()[-1]
            with Wire(int(address.rpartition(":")[2])) as connection:
                connection.well()
            return {"ms": 1000 * (time.perf_counter() - child.started), "RSS MiB": resident_mib(child.process.pid)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The stdio server started until it has answered `initialize`."""

    argv: tuple[str, ...]

    def take(self) -> Sample:
        with talking(self.argv, name=STDIO) as child:
            opening = Talk(child).ask(wire.stdio_opening())
            elapsed = 1000 * (time.perf_counter() - child.started)
            memory = resident_mib(child.process.pid)
        wire.check_opening(opening, of=STDIO)
        return {"ms": elapsed, "RSS MiB": memory}


def measure_starts(options: Options, figures: Figures) -> None:
    command = (ours_command(options.venv), "proxy")
    with proxy(options.venv) as running, lender(options.venv, running, tools=20) as session:
        stdio = (*command, "--stdio", "--session", session, "--proxy-base-url", running.address)
        turns = [
            Turn(subject=BARE, take=Bare(python=ours_python(options.venv)).take),
            Turn(subject=HEALTH, take=Health(argv=(*command, "--port", "0")).take),
            Turn(subject=STDIO, take=Opening(argv=stdio).take),
        ]
        interleave("start", turns, rounds=min(options.rounds, 3) if options.quick else STARTS, figures=figures)


# ---- what it shows ----


def ratios_of(figures: Figures, names: list[str]) -> Ratios:
    ratios: Ratios = {}
    for name in names:
        ratios[name] = {f"{c}: / floor": figures.ratio(f"{c}: /s", of=name, to=FLOOR) for c in CONNECTIONS}
    at = f"{JUDGED_AT}: /s"
    ratios[MANY]["/ 20 tools"] = figures.ratio(at, of=MANY, to=FEW)
    if RELAYED in ratios:
        ratios[RELAYED]["/ 20 tools"] = figures.ratio(at, of=RELAYED, to=FEW)
    for name in (HEALTH, STDIO):
        ratios[name] = {"/ floor": figures.ratio("ms", of=name, to=BARE, to_name="floor ms")}
    return ratios


def say_calls(figures: Figures, ratios: Ratios, names: list[str]) -> None:
    head = [""]
    for count in CONNECTIONS:
        head += [f"c={count} /s", "x floor"]
    rows = []
    for name in names:
        row = [name]
        for count in CONNECTIONS:
            row += [number(figures.median(name, f"{count}: /s")), number(ratios[name][f"{count}: / floor"])]
        costs = [figures.median(name, f"{JUDGED_AT}: {column}") for column in ("p50 ms", "p99 ms", "CPU us")]
        rows.append([*row, *map(number, costs)])
    at = f"at {JUDGED_AT}:"
    say_table("calls a second through a bridge", [*head, f"{at} p50 ms", "p99 ms", "CPU us"], rows)


def say_rest(figures: Figures, ratios: Ratios) -> None:
    rows = [
        [name, number(figures.median(name, "count")), number(figures.median(name, "KiB each"))]
        for name in (ALIKE, UNLIKE, CROWD)
    ]
    say_table("memory of one proxy", ["", "how many", "KiB each"], rows)
    floor = [BARE, number(figures.median(BARE, "floor ms")), "1.00", "-"]
    rows = [
        [name, number(figures.median(name, "ms")), number(of["/ floor"]), number(figures.median(name, "RSS MiB"))]
        for name, of in ratios.items()
        if "/ floor" in of
    ]
    say_table("start", ["", "ms", "x floor", "RSS MiB"], [floor, *rows])


def targets_of(figures: Figures, ratios: Ratios) -> list[Target]:
    relayed = ratios.get(RELAYED, {}).get("/ 20 tools")
    bridges = figures.median(CROWD, "served")
    at = f"at {JUDGED_AT} callers"
    judged = ratios[FEW][f"{JUDGED_AT}: / floor"]
    return [
        Target(what=f"calls {at}", unit=f"x {FLOOR}", measured=judged, at_least=0.35),
        Target(what=f"100 tools {at}", unit="x 20 tools", measured=ratios[MANY]["/ 20 tools"], at_least=0.9),
        Target(what=f"relayed through Redis {at}", unit="x one instance", measured=relayed, at_least=0.4),
        Target(what="a session of 20 tools", unit="KiB", measured=figures.median(ALIKE, "KiB each"), at_most=12),
        Target(what="bridges at once, all served", unit="", measured=bridges, at_least=BRIDGES),
        Target(what=HEALTH, unit=f"x {BARE}", measured=ratios[HEALTH]["/ floor"], at_most=25),
        Target(what=STDIO, unit=f"x {BARE}", measured=ratios[STDIO]["/ floor"], at_most=4),
    ]


def main() -> int:
    options = read_options("proxy", __doc__ or "", rounds=5, quick_rounds=3)
    figures = Figures()
    leave_nothing_behind()
    try:
        need_wrk()
        say_conditions(options)
        measure_starts(options, figures)
        measure_sessions(options, figures)
        measure_bridges(options, figures)
        names = measure_calls(options, figures)
    except (NotInstalled, ChildFailed, LoadFailed, wire.WrongAnswer) as exc:
        sys.stderr.write(f"{exc}\n")
        return UNUSABLE
    ratios = ratios_of(figures, names)
    say_calls(figures, ratios, names)
    say_rest(figures, ratios)
    return conclude(options, figures, ratios, targets_of(figures, ratios))


if __name__ == "__main__":
    sys.exit(main())
