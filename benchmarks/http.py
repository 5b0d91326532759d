"""Benchmark: HTTP tools/call on both wires at 1, 16 and 64 keep-alive connections, against a floor and peers.

Named like a standard module it hides from scripts of this folder; nothing here may import that one.
"""

import sys
from contextlib import ExitStack
from functools import partial

import wire
from load import Endpoint, Load, LoadFailed, await_listening, free_port, need_wrk, nothing
from measure import Figures, Ratios, Turn, interleave
from processes import ChildFailed, leave_nothing_behind, serving
from report import Options, Target, conclude, number, read_options, say_conditions, say_table
from subjects import HELLO, OURS, SDK, NotInstalled, Subject, http_subjects

CONNECTIONS = (1, 16, 64)
JUDGED_AT = 16
SAMPLE_SECONDS = 2
QUICK_SECONDS = 1  # wrk counts in whole seconds
UNUSABLE = 2
FLOOR = f"{HELLO} GET"
HELLO_REQUESTS = {
    "GET": wire.Post(label="GET", method="GET", headers=(), body=b""),
    "POST": wire.http_calls()["M"],
}


def start(subject: Subject, servers: ExitStack) -> list[Endpoint]:
    """Bring a subject up and check it on each of its wires."""
    port = free_port()
    child = servers.enter_context(serving((*subject.argv, str(port)), name=subject.name))
    await_listening(child, port)
    posts = HELLO_REQUESTS if subject.name == HELLO else wire.http_calls()
    endpoints = [
        Endpoint(
            name=f"{subject.name} {label}",
            groups=(child.process.pid,),
            port=port,
            post=posts[label],
            right=nothing if subject.name == HELLO else partial(_echoed, of=f"{subject.name} {label}"),
        )
        for label in subject.wires
    ]
    for endpoint in endpoints:
        endpoint.check()
    return endpoints


def _echoed(body: bytes, *, of: str) -> None:
    wire.check_calls([body], of=of)


def measure(subjects: list[Subject], options: Options, figures: Figures) -> list[str]:
    """All endpoints under all loads; returns the endpoints' names in order."""
    seconds = QUICK_SECONDS if options.quick else SAMPLE_SECONDS
    with ExitStack() as servers:
        endpoints = [endpoint for subject in subjects for endpoint in start(subject, servers)]
        turns = [
            Turn(
                subject=endpoint.name,
                take=Load(endpoint=endpoint, connections=count, seconds=seconds, memory=count == max(CONNECTIONS)).take,
            )
            for count in CONNECTIONS
            for endpoint in endpoints
        ]
        interleave("calls", turns, rounds=options.rounds, figures=figures)
    return [endpoint.name for endpoint in endpoints]


def ratios_of(figures: Figures, names: list[str]) -> Ratios:
    """Every endpoint against the floor at each load, and ours against it on the wire they share."""
    ratios: Ratios = {}
    for name in names:
        of = {f"{count}: / floor": figures.ratio(f"{count}: /s", of=name, to=FLOOR) for count in CONNECTIONS}
        twin = f"{OURS} {name.rpartition(' ')[2]}"
        of["ours / this"] = figures.ratio(f"{JUDGED_AT}: /s", of=twin, to=name)
        ratios[name] = of
    return ratios


def say_throughput(figures: Figures, ratios: Ratios) -> None:
    head = [""]
    for count in CONNECTIONS:
        head += [f"c={count} /s", "x floor"]
    rows = []
    for name, of in ratios.items():
        row = [name]
        for count in CONNECTIONS:
            row += [number(figures.median(name, f"{count}: /s")), number(of[f"{count}: / floor"])]
        rows.append([*row, number(of["ours / this"])])
    say_table("calls a second by keep-alive connections", [*head, f"ours / this at {JUDGED_AT}"], rows)


def say_cost(figures: Figures, names: list[str]) -> None:
    columns = ("p50 ms", "p99 ms", "CPU us")
    rows = []
    for name in names:
        cells = [number(figures.median(name, f"{JUDGED_AT}: {column}")) for column in columns]
        rows.append([name, *cells, number(figures.median(name, "RSS MiB"))])
    title = f"at {JUDGED_AT} connections: latency, processor time per call; memory"
    say_table(title, ["", *columns, "RSS MiB"], rows)


def targets_of(ratios: Ratios) -> list[Target]:
    targets = []
    for label in ("M", "L"):
        floor = ratios[f"{OURS} {label}"][f"{JUDGED_AT}: / floor"]
        peer = ratios.get(f"{SDK} {label}", {}).get("ours / this")
        what = f"wire {label} at {JUDGED_AT}"
        targets.append(Target(what=what, unit=f"x {HELLO}", measured=floor, at_least=0.5))
        targets.append(Target(what=what, unit="x Python SDK", measured=peer, at_least=4))
    return targets


def main() -> int:
    options = read_options("http", (__doc__ or "").split("\n", 1)[0], rounds=5, quick_rounds=3)
    figures = Figures()
    leave_nothing_behind()
    try:
        need_wrk()
        subjects = http_subjects(options.venv)
        say_conditions(options)
        names = measure(subjects, options, figures)
    except (NotInstalled, ChildFailed, LoadFailed, wire.WrongAnswer) as exc:
        sys.stderr.write(f"{exc}\n")
        return UNUSABLE
    ratios = ratios_of(figures, names)
    say_throughput(figures, ratios)
    say_cost(figures, names)
    return conclude(options, figures, ratios, targets_of(ratios))


if __name__ == "__main__":
    sys.exit(main())
