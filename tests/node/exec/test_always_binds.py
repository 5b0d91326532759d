"""What *always* is bound to: the files a program looks for or completes the names of, and what may feed it. And what
looking at those files costs."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.node.exec import always_binding, digests, file_operands
from tests.web_client import rpc, send, stateless

from ..media.making import call
from ..running import running_node
from .test_always import PLAIN_PATH, Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PATH", PLAIN_PATH)
    return Machine(tmp_path)


# ---- what another command feeds ----

RUNS_ITS_INPUT = """
    python3 -i -c pass
    python3 -ic pass
    python3 -
    python3 -u
    python3 /dev/stdin
    python3 /dev/fd/0
    python3 /proc/self/fd/0
    bash -s x
    zsh -e
    mksh -e
    ksh93 -e
    perl -c
    php -e
    awk -f -
    awk -f /dev/stdin a.txt
    sed -f - a.txt
    make -f -
    make -f /dev/stdin
    vim -es
    gcc -xc -o y -
    docker build -
    kubectl apply -f -
    git apply
    git am
    patch
    tar -xf -
    guile -e m
    socat - TCP:1
    su -c
    sqlite3 a.txt
    psql
    ssh host
    gdb -batch -x /dev/stdin
    emacs --batch -l /dev/stdin
    node -i
    tee out.txt
    uniq - out.txt
    sort -o out.txt
    xxd -r - out.txt
    crontab -
    at now
    openssl enc
    dd
    cpio -i
    xsltproc -
    env python3 -
    timeout 5 make -f -
    nice bash -s
    sh -c 'make -f -'
    ./run.sh
    some-program
"""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("command", _lines(RUNS_ITS_INPUT))
@pytest.mark.parametrize(
    "feeding", ["echo x | {}", "(echo x; echo y) | {}", "echo x | ({})", "echo x | (true; {})", "echo x | echo $({})"]
)
def test_what_may_run_or_keep_its_input_is_not_remembered_where_it_is_fed(
    machine: Machine, feeding: str, command: str
) -> None:
    machine.run("sh", "-c", command)  # alone its input is empty, and an answer may be remembered
    machine.run("sh", "-c", "echo x; echo y; true")
    before = len(machine.asked)

    assert machine.run("sh", "-c", feeding.format(command)) == 1
    assert not machine.asked[before].always


TAKES_DATA = """
    grep x
    wc -l
    head -n 5
    tail -n 5
    sort -rn
    sort -u -k2
    uniq -c
    tr a b
    cut -c1
    python3 script.py
    python3 script.py -
    bash run.sh -s
    cat
"""


@pytest.mark.parametrize("command", _lines(TAKES_DATA))
def test_what_takes_its_input_as_data_is_remembered(machine: Machine, command: str) -> None:
    assert machine.run("sh", "-c", f"cat a.txt | {command}") == 1
    assert machine.asked[-1].always
    assert machine.run("sh", "-c", f"cat a.txt | {command}") == 0


def test_what_feeds_others_and_is_fed_by_none_is_remembered(machine: Machine) -> None:
    run = "python3 script.py"
    for text in (f"{run} | tail -n 3", f"{run} && ls x", f"{run} | grep x; echo done", f"({run}) | cat"):
        machine.run("sh", "-c", text)
        assert machine.run("sh", "-c", text) == 0, text


# ---- files that are not named in full ----

FOUND: dict[str, tuple[tuple[str, ...], str]] = {
    "node completes": (("node", "app"), "app.js"),
    "node requires": (("node", "-r", "./x", "script.py"), "x.js"),
    "node requires glued": (("node", "-r./x", "script.py"), "x.cjs"),
    "ruby requires": (("ruby", "-r./x", "-e", "1"), "x.rb"),
    "lua requires": (("lua", "-l", "x", "-e", "1"), "x.lua"),
    "perl uses": (("perl", "-I.", "-Mx", "-e1"), "x.pm"),
    "perl uses below": (("perl", "-I.", "-MA::B", "-e1"), "A/B.pm"),
    "java": (("java", "Main"), "Main.class"),
    "java below": (("java", "-cp", "sub", "Main"), "sub/Main.class"),
    "java in a package": (("java", "a.b.Main"), "a/b/Main.class"),
    "a module in a cluster": (("python3", "-um", "tool"), "tool.py"),
    "a module glued to a cluster": (("python3", "-umtool"), "tool.py"),
    "a package on the way": (("python3", "-m", "a.b"), "a/__init__.py"),
    "a package far above": (("python3", "-m", "a.b.c"), "a/b/__init__.py"),
    "a package run": (("python3", "-m", "a"), "a/__main__.py"),
    "python imports": (("python3", "-c", "import tool"), "tool.py"),
    "python opens": (("python3", "-c", "exec(open('code').read())"), "code"),
    "npm's settings": (("npm", "test"), ".npmrc"),
    "cargo's settings": (("cargo", "check"), ".cargo/config.toml"),
    "cargo's settings above": (("cargo", "check"), "../.cargo/config.toml"),
    "git's settings": (("git", "status"), ".git/config"),
    "git's hooks": (("git", "commit"), ".git/hooks/pre-commit"),
    "git's attributes": (("git", "diff"), ".gitattributes"),
    "an override": (("docker", "compose", "up"), "compose.override.yaml"),
    "another override": (("docker-compose", "up"), "docker-compose.override.yml"),
    "gdb's settings": (("gdb", "-batch"), ".gdbinit"),
    "R's profile": (("Rscript", "a.txt"), ".Rprofile"),
    "make there": (("make", "-kCsub"), "sub/Makefile"),
    "make by a cluster": (("make", "-sfmk"), "mk"),
    "awk by a cluster": (("awk", "-nfprog"), "prog"),
    "within a word": (("watch", "./tool x"), "tool"),
    "within an option": (("ssh", "-oProxyCommand=sh p", "h"), "p"),
    "within an order": (("sqlite3", "a.txt", ".read s"), "s"),
    "node within a word": (("watch", "node app"), "app.js"),
    "run by another": (("uv", "run", "make"), "Makefile"),
}


@pytest.mark.parametrize("kind", FOUND)
@pytest.mark.parametrize("there", [True, False], ids=["changed", "new"])
def test_a_file_a_program_finds_by_itself_is_watched_while_a_person_is_asked(
    machine: Machine, kind: str, there: bool
) -> None:
    argv, name = FOUND[kind]
    (machine.here / "sub/deep").mkdir()
    (machine.here / "sub/deep/y.py").write_text("")
    (machine.here / "a/b").mkdir(parents=True)
    path = machine.here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if there:
        path.write_text("old")
    machine.meanwhile = lambda: path.write_text("new")

    with pytest.raises(ToolDenied, match="changed while a person was asked"):
        machine.run(*argv)


@pytest.mark.parametrize(
    "argv", [("node", "nowhere"), ("java", "Nothing"), ("ruby", "gone.rb"), ("perl", "x/y"), ("php", "z")]
)
def test_always_is_not_offered_for_an_interpreter_whose_script_is_not_found(
    machine: Machine, argv: tuple[str, ...]
) -> None:
    assert machine.run(*argv) == 1
    assert not machine.asked[-1].always


@pytest.mark.parametrize(
    "argv",
    [
        ("python3", "/proc/self/cwd/script.py"),
        ("python3", "/dev/fd/3"),
        ("bash", "/proc/self/fd/0"),
        ("make", "-f/dev/stdin"),
    ],
)
def test_always_is_not_offered_for_a_name_that_means_another_file_to_the_program(
    machine: Machine, argv: tuple[str, ...]
) -> None:
    assert machine.run(*argv) == 1
    assert not machine.asked[-1].always


# ---- what looking costs ----


def test_a_decision_reads_each_file_once_and_little_altogether(machine: Machine) -> None:
    for number in range(30):
        with (machine.here / f"f{number}").open("wb") as file:
            file.truncate(8 << 20)
    names = " ".join(f"f{number}" for number in range(30))
    text = ";".join(["zz " + names] * 120)
    machine.answer = "once"
    start = time.process_time()

    machine.run("sh", "-c", text)

    assert not machine.asked[0].always
    assert time.process_time() - start < 5, "120 times 240 MiB would take minutes"


def test_files_are_not_read_on_the_loop(machine: Machine) -> None:
    for number in range(7):
        with (machine.here / f"f{number}").open("wb") as file:
            file.truncate(9 << 20)
    ticks: list[float] = []

    async def ticking() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0)

    async def both() -> None:
        clock = asyncio.ensure_future(ticking())
        argv = ["python3", "script.py", *(f"f{number}" for number in range(7))]
        await machine.approvals.authorise(call("system.run"), argv, cwd=machine.here, asker="me")
        await machine.approvals.authorise(call("system.run"), argv, cwd=machine.here, asker="me")
        clock.cancel()

    asyncio.run(both())
    assert len(machine.asked) == 1
    assert len(ticks) > 50, "others had their turns while the files were read"


def test_what_is_no_plain_file_is_not_opened(machine: Machine, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    waiting = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        machine.run("foo", str(pipe), "/dev/null", "/dev/tty")
    finally:
        os.close(waiting)

    assert not machine.asked[0].always


@pytest.mark.parametrize(
    "bound",
    [
        always_binding.MAX_FILES,
        file_operands.MOST_LOOKUPS,
        file_operands.MAX_ENTRIES,
        file_operands.MAX_FOLDERS,
        file_operands.MAX_MATCHES,
        file_operands.MAX_CLUSTER_LENGTH,
        digests.MAX_BYTES >> 12,
        digests.MOST_BYTES >> 14,
    ],
)
def test_what_is_looked_at_is_bounded(bound: int) -> None:
    assert bound <= 4096


# ---- a file that changes before the answer ----

YES = {"approve-exec": {"action": "accept", "content": {"allow": True}}}
CHANGED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "a script": lambda folder: {"command": ["bash", "s.sh"]},
    "a script in a text": lambda folder: {"command": "bash s.sh; true"},
    "a script where the folder is not certain": lambda folder: {"command": "cd . && bash s.sh"},
    "a script that is fed": lambda folder: {"command": "echo x | bash s.sh"},
    "a script in a text that can't be vouched for": lambda folder: {"command": "for i in 1; do bash s.sh; done"},
    "a program": lambda folder: {"command": ["./s.sh"]},
    "a program by its whole path": lambda folder: {"command": [str(folder / "s.sh")]},
}


@pytest.mark.parametrize("kind", CHANGED)
def test_an_answer_is_for_the_files_as_they_were_when_it_was_asked_for(tmp_path: Path, kind: str) -> None:
    script = tmp_path / "s.sh"
    arguments = {**CHANGED[kind](tmp_path), "cwd": str(tmp_path)}

    with running_node(tmp_path / "state") as node:

        def ask(**more: Any) -> Any:
            params = {"name": "system.run", "arguments": arguments, **more}
            body, headers = stateless("tools/call", params, capabilities={"elicitation": {}})
            return send(node.address, "POST", body, **{**headers, **node.bearer}).json["result"]

        script.write_text("#!/bin/sh\ntrue\n")
        script.chmod(0o755)
        state = ask()["requestState"]
        script.write_text(f"#!/bin/sh\n: > {tmp_path}/started\n")
        ask(requestState=state, inputResponses=YES)
        assert not (tmp_path / "started").exists()

        state = ask()["requestState"]
        ask(requestState=state, inputResponses=YES)
        assert (tmp_path / "started").exists()


def test_a_program_of_a_strange_name_is_not_looked_for(tmp_path: Path) -> None:
    with running_node(tmp_path / "state") as node:
        request = rpc("tools/call", {"name": "system.which", "arguments": {"bins": ["a\0b"]}})
        answer = send(node.address, "POST", request, **node.bearer).json

    assert "NUL" in str(answer)


@pytest.mark.parametrize("command", ["cd . && bash run.sh", "echo x | bash run.sh", "for i in 1; do bash run.sh; done"])
def test_what_can_not_be_remembered_does_not_run_changed_either(machine: Machine, command: str) -> None:
    machine.answer = "once"
    machine.meanwhile = lambda: machine.write("run.sh", str(len(machine.asked)))

    with pytest.raises(ToolDenied, match="changed while a person was asked"):
        machine.run("bash", "-c", command)
