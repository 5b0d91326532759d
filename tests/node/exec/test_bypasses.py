"""No caller gets `rm` past a rule that allows `echo *`: tried for real, with a file to lose."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_mcp.core.errors import OpenClawError
from openclaw_mcp.node.desktop import DesktopNotifier
from openclaw_mcp.node.exec.approvals import ExecAuthorizer
from openclaw_mcp.node.exec.rules import ExecPolicy, Rule, evaluate_policy
from openclaw_mcp.node.exec.shell_reader import ParsedCommand, ShellWord, word_set
from openclaw_mcp.node.exec.wrappers import unwrap
from openclaw_mcp.node.questions import PromptRouter
from openclaw_mcp.node.system import SystemCapability
from tests.effort import often

from ..media.making import call
from .bypasses import FALSE_FRIENDS, REPO, VICTIM, attempts
from .evaluating import script
from .shell_bypasses import COMPUTED, NOT_COMPUTED

ONLY_ECHO = ExecPolicy(default_action="deny", rules=(Rule(pattern="echo *", action="allow"),))
ECHO_OR_ASK = ExecPolicy(default_action="prompt", rules=(Rule(pattern="echo *", action="allow"),))
BUILTINS = ExecPolicy(
    default_action="deny",
    rules=tuple(
        Rule(pattern=f"{name} *", action="allow")
        for name in word_set("echo test [ printf exit return shift break continue ulimit kill sleep")
    ),
)
ALL_BUT_RM = ExecPolicy(default_action="allow", rules=(Rule(pattern="rm *", action="deny"),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file to lose and some traps."""
    work = tmp_path / "work"
    work.mkdir()
    rm, env, sh = (shutil.which(name) for name in ("rm", "env", "sh"))
    assert rm
    assert env
    assert sh
    (work / VICTIM).write_text("still here")
    (work / "names").write_text(VICTIM)
    (work / "link-to-rm").symlink_to(rm)
    (work / "link-to-env").symlink_to(env)
    (work / "link-to-sh").symlink_to(sh)
    (work / "echo").symlink_to(rm)
    (work / "rm").symlink_to(rm)
    for name in FALSE_FRIENDS:
        script(work / REPO / name, f"{rm} {work / VICTIM}")
    return work


def system(tmp_path: Path, policy: ExecPolicy) -> SystemCapability:
    no_person = PromptRouter(seconds=lambda: 1, ask_in_client=lambda: True)
    approvals = ExecAuthorizer(state_dir=tmp_path / "state", prompt_router=no_person)
    approvals.save_policy(policy)
    return SystemCapability(approvals=approvals, desktop=DesktopNotifier())


def test_there_are_at_least_200_attempts() -> None:
    assert len({tuple(argv[2:] if argv[1:2] == ["-c"] else argv) for argv in attempts()}) >= 200


@pytest.mark.parametrize("policy", [ONLY_ECHO, ECHO_OR_ASK], ids=["others denied", "others asked for"])
def test_no_attempt_removes_the_file_or_changes_it(tmp_path: Path, folder: Path, policy: ExecPolicy) -> None:
    hands = system(tmp_path, policy)
    run = next(command.run for command in hands.commands() if command.spec.name == "system.run")

    async def attempt(argv: list[str]) -> None:
        try:
            await run(call("system.run", {"command": argv, "cwd": str(folder), "timeoutMs": 5000}))
        except OpenClawError:
            return

    with asyncio.Runner() as runner:
        for argv in attempts():
            runner.run(attempt(argv))
            assert (folder / VICTIM).exists(), argv
            assert (folder / VICTIM).read_text() == "still here", argv


@pytest.mark.parametrize("policy", [ONLY_ECHO, ECHO_OR_ASK], ids=["others denied", "others asked for"])
def test_no_attempt_is_even_started(tmp_path: Path, folder: Path, policy: ExecPolicy) -> None:
    approvals = ExecAuthorizer(
        state_dir=tmp_path / "state", prompt_router=PromptRouter(seconds=lambda: 1, ask_in_client=lambda: True)
    )
    approvals.save_policy(policy)

    started = [argv for argv in attempts() if approvals.evaluate(argv, cwd=folder).action == "allow"]

    assert started == []


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "ksh"])
def test_no_builtin_computes_a_word(tmp_path: Path, folder: Path, shell: str) -> None:
    approvals = ExecAuthorizer(
        state_dir=tmp_path / "state", prompt_router=PromptRouter(seconds=lambda: 1, ask_in_client=lambda: True)
    )
    approvals.save_policy(BUILTINS)

    started = [
        text for text in COMPUTED if approvals.evaluate([shell, "-c", f"echo x; {text}"], cwd=folder).action == "allow"
    ]

    assert started == []


@pytest.mark.parametrize("text", NOT_COMPUTED)
def test_numbers_strings_and_files_may_be_compared_and_printed(tmp_path: Path, text: str) -> None:
    approvals = ExecAuthorizer(
        state_dir=tmp_path, prompt_router=PromptRouter(seconds=lambda: 1, ask_in_client=lambda: True)
    )
    approvals.save_policy(BUILTINS)

    verdict = approvals.evaluate(["sh", "-c", text])

    assert verdict.action == "allow", verdict.reason


def test_a_deny_rule_finds_rm_wherever_it_can_be_seen(tmp_path: Path, folder: Path) -> None:
    """With everything else allowed, text that names rm is denied or, where it can't be read, asked about."""
    approvals = ExecAuthorizer(
        state_dir=tmp_path / "state", prompt_router=PromptRouter(seconds=lambda: 1, ask_in_client=lambda: True)
    )
    approvals.save_policy(ALL_BUT_RM)
    hidden_in_a_program = ("perl", "python3", "awk", "sed", "vim", "tar", "git")
    cases = [
        argv
        for argv in attempts()
        if argv[1:2] == ["-c"]
        and "rm victim" in argv[2]
        and not argv[2].startswith(hidden_in_a_program)
        and "#" not in argv[2]
    ]

    allowed = [argv[2] for argv in cases if approvals.evaluate(argv, cwd=folder).action == "allow"]

    assert allowed == []


@pytest.mark.parametrize(
    "text",
    [
        "echo hi",
        "echo 'a; rm b' \"c | d\"",
        "echo a && echo b || echo c; echo d",
        "echo a | echo b & echo c",
        "echo $HOME ${USER} ~ *.txt",
        "echo $(echo nested) `echo old`",
        "(echo a; echo b) 2>&1",
        "echo hidden > /dev/null 2>&1",
        "LANG=C echo x",
        "env LANG=C nice -n 5 timeout 3 echo x",
        "echo a b | xargs -n1 echo",
        "sh -c 'echo inner'",
        "echo one\necho two\n",
        "echo one \\\n  two \\\n  three",
        'echo "one \\\ntwo"',
        "echo a \\\n&& echo b",
        "echo 'a\\\nb' \\a \\$x",
        'echo "costs 5$" "a$/b" $ "\\$HOME \\\\ \\`"',
        "echo \"gr\u00fc\u00df dich \u20ac\" '\u65e5\u672c'",
        "TZ=Europe/Berlin LANG=de_DE.UTF-8 COLUMNS=80 echo x",
    ],
)
def test_echo_itself_passes_in_all_its_clothes(tmp_path: Path, text: str) -> None:
    approvals = ExecAuthorizer(
        state_dir=tmp_path, prompt_router=PromptRouter(seconds=lambda: 1, ask_in_client=lambda: True)
    )
    approvals.save_policy(ONLY_ECHO)

    verdict = approvals.evaluate(["sh", "-c", text])

    assert verdict.action == "allow", verdict.reason


# ---- any text at all ----

WORDS = r"""
    env sh xargs eval exec if then nice command
    echo rm a x ; & | && || $( ) ( ` ' " \ $ { } $x ${x} ${x = < > * ? [ ] ~ # ! $' $(( )) <( << -c /dev/null 2>&1 fi
"""
SHARDS = st.sampled_from(
    [
        *WORDS.split(),
        "sh -c ",
        " ",
        " ",
        " ",
        "\n",
        "\t",
        "\\\n",
    ]
)


@pytest.fixture(scope="module")
def trapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs that all leave a mark when they are started."""
    folder = tmp_path_factory.mktemp("trapped")
    for name in ("rm", "a", "x", "eval", "env", "xargs", "nice", "cat"):
        trap = folder / name
        trap.write_text('#!/bin/sh\nprintf "%s\\n" "$0 $*" >> "$MARK"\n')
        trap.chmod(0o755)
    for name in ("env", "xargs", "nice"):
        real = shutil.which(name)
        assert real
        (folder / name).unlink()
        (folder / name).symlink_to(real)
    return folder


@settings(max_examples=often(100, 1000))
@given(shards=st.lists(SHARDS, min_size=1, max_size=14), shell=st.sampled_from(["sh", "bash"]))
def test_any_text_that_is_allowed_starts_nothing_but_echo(trapped: Path, shards: list[str], shell: str) -> None:
    text = "echo " + "".join(shards)
    reading = unwrap([ParsedCommand((ShellWord(shell), ShellWord("-c"), ShellWord(text)))])
    if evaluate_policy(ONLY_ECHO, reading, locate=shutil.which).action != "allow":
        return
    mark = trapped / "mark"
    environment = {"PATH": str(trapped), "MARK": str(mark), "HOME": str(trapped), "x": "rm victim; rm victim"}
    subprocess.run(
        [shutil.which(shell) or shell, "-c", text],
        env=environment,
        cwd=trapped,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=20,
        check=False,
    )

    assert not mark.exists() or mark.stat().st_size == 0, (text, mark.read_text())
