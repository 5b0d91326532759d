"""system.run and its neighbours, with real programs."""

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.errors import ToolArguments, ToolDenied, ToolError
from openclaw_mcp.core.model import InputRequest, Json
from openclaw_mcp.core.ports import NullCallContext
from openclaw_mcp.node.desktop import DesktopNotifier
from openclaw_mcp.node.exec import process
from openclaw_mcp.node.exec.approvals import POLICY_FILE, BadPolicy, ExecAuthorizer
from openclaw_mcp.node.exec.rules import DEFAULT_POLICY, ExecPolicy, Rule
from openclaw_mcp.node.questions import PromptAnswer, PromptRouter, UserQuestion
from openclaw_mcp.node.system import SystemCapability

from .media.making import call

ANYTHING = ExecPolicy(default_action="allow")
ASK = ExecPolicy(default_action="prompt")
NEVER = ExecPolicy(default_action="deny")
ANSWER = (
    "and no person is there to ask. To allow it, run `openclaw approvals` in a terminal on this machine and try again"
)
UNASKED = "No person is asked about it;"
RULE = "openclaw approvals allow '<program> <arguments>'."
WAIT = 20.0


class Person:
    """An asker who is there and always says the same."""

    def __init__(self, answer: PromptAnswer | None) -> None:
        self.answer = answer
        self.asked: list[UserQuestion] = []

    keeps_questions = False

    def is_available(self) -> bool:
        return True

    async def ask(self, question: UserQuestion) -> PromptAnswer | None:
        self.asked.append(question)
        return self.answer


class Client(NullCallContext):
    """The line of a client whose user answers a form."""

    def __init__(self, answer: Json) -> None:
        self.answer = answer
        self.asked: list[InputRequest] = []
        self.received: list[tuple[float, str | None]] = []

    def can_ask(self, capability: str, mode: str = "") -> bool:
        return capability == "elicitation"

    async def ask(self, questions: Mapping[str, InputRequest]) -> Mapping[str, Json]:
        self.asked += questions.values()
        return dict.fromkeys(questions, self.answer)

    async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
        self.received.append((value, message))


class SystemHarness:
    """A System with its rules in a folder of its own."""

    def __init__(self, folder: Path, policy: ExecPolicy | None = None, *people: Person) -> None:
        asking = PromptRouter(people, seconds=lambda: 2, ask_in_client=lambda: True)
        self.approvals = ExecAuthorizer(state_dir=folder, prompt_router=asking)
        if policy is not None:
            self.approvals.save_policy(policy)
        self._commands = {
            c.spec.name: c for c in SystemCapability(approvals=self.approvals, desktop=DesktopNotifier()).commands()
        }

    async def ask(self, name: str, line: NullCallContext | None = None, **arguments: Any) -> Any:
        return (await self._commands[name].run(call(name, arguments, line=line or NullCallContext()))).structured

    def run(self, line: NullCallContext | None = None, **arguments: Any) -> Any:
        return asyncio.run(self.ask("system.run", line, **arguments))


def test_a_command_answers_with_its_output_and_exit_code(tmp_path: Path) -> None:
    result = SystemHarness(tmp_path, ANYTHING).run(command=["sh", "-c", "echo out; echo err >&2; exit 3"])

    assert (result["stdout"], result["stderr"], result["exitCode"], result["success"]) == ("out\n", "err\n", 3, False)
    assert not result["timedOut"]


def test_text_runs_in_a_shell_and_a_program_with_args_does_not(tmp_path: Path) -> None:
    system = SystemHarness(tmp_path, ANYTHING)

    assert system.run(command="echo $((1 + 1))".replace("$((1 + 1))", "a | cat"))["stdout"] == "a\n"
    assert system.run(command="echo", args=["$HOME"])["stdout"] == "$HOME\n"


def test_it_runs_in_the_folder_and_with_the_variables_it_was_given(tmp_path: Path) -> None:
    person = Person("once")
    system = SystemHarness(tmp_path / "state", ANYTHING, person)

    result = system.run(command=["sh", "-c", "pwd; echo $COLOUR"], cwd=str(tmp_path), env={"COLOUR": "red"})

    assert result["stdout"] == f"{tmp_path}\nred\n"
    assert "COLOUR=red" in person.asked[0].detail  # a variable may change what a program does, so a person is asked


@pytest.mark.parametrize(
    "name", ["PATH", "LD_PRELOAD", "ld_audit", "BASH_ENV", "MY_API_KEY", "GIT_SSH", "A=B", "", "X\nY"]
)
def test_variables_that_could_change_which_code_runs_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolDenied, match="Unsafe environment variable override blocked"):
        SystemHarness(tmp_path, ANYTHING).run(command=["echo"], env={name: "x", "TOKENIZERS_PARALLELISM": "1"})


def test_our_own_secrets_are_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_GATEWAY_TOKEN", "hush")

    assert "hush" not in SystemHarness(tmp_path, ANYTHING).run(command=["env"])["stdout"]


def test_time_up_kills_the_whole_group_even_what_left_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = f"sleep 60 & echo $! >> {pids}; setsid sleep 60 & echo $! >> {pids}; sleep 60"

    began = time.monotonic()
    result = SystemHarness(tmp_path / "state", ASK, Person("once")).run(command=["sh", "-c", text], timeoutMs=500)

    assert result["timedOut"]
    assert result["exitCode"] == -1
    assert time.monotonic() - began < WAIT
    assert _all_gone(pids)


def test_cancelling_the_call_kills_the_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    system = SystemHarness(tmp_path / "state", ASK, Person("once"))

    async def cancelled() -> None:
        text = f"sleep 60 & echo $! > {pids}; sleep 60"
        task = asyncio.ensure_future(system.ask("system.run", command=["sh", "-c", text]))
        async with asyncio.timeout(WAIT):
            while not pids.exists() or not pids.read_text().strip():  # noqa: ASYNC110  a file sends no event
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())

    assert _all_gone(pids)


def test_what_a_command_leaves_in_the_background_ends_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    result = SystemHarness(tmp_path / "state", ASK, Person("once")).run(
        command=["sh", "-c", f"sleep 60 & echo $! > {pids}"]
    )

    assert result["exitCode"] == 0
    assert _all_gone(pids)


def test_endless_output_is_cut_and_the_end_is_kept(tmp_path: Path) -> None:
    result = SystemHarness(tmp_path, ANYTHING).run(command=["sh", "-c", "yes | head -c 5000000; echo last"])

    assert result["truncated"]
    assert len(result["stdout"]) < process.KEPT_HEAD + process.KEPT_TAIL + 100
    assert result["stdout"].endswith("last\n")
    assert "bytes left out" in result["stdout"]


def test_a_long_command_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROGRESS_EVERY", 0.05)
    client = Client({"action": "accept", "content": {"allow": True}})

    SystemHarness(tmp_path, ANYTHING).run(client, command=["sh", "-c", "echo working; sleep 0.5"])

    assert "working" in [message for _, message in client.received]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"command": "  "}, "Missing command"),
        ({"command": ["", "x"]}, "blank"),
        ({"command": ["echo", "a\0b"]}, "NUL"),
        ({"command": ["echo"], "cwd": "nowhere"}, "absolute path"),
        ({"command": ["echo"], "cwd": "/nowhere/at/all"}, "that exists"),
        ({"command": "echo", "shell": "powershell"}, "shell must be one of"),
        ({"command": ["echo", "x"], "rawCommand": "rm x"}, "something else"),
        ({"command": ["./evil", "-c", "echo hi"], "rawCommand": "echo hi"}, "something else"),
        ({"command": ["python3", "-c", "echo hi"], "rawCommand": "echo hi"}, "something else"),
        ({"command": ["sh", "-c", "rm x"], "rawCommand": "echo hi"}, "something else"),
        ({"command": ["sh", "-c", "echo hi", "x"], "rawCommand": "echo hi"}, "something else"),
    ],
)
def test_a_request_that_makes_no_sense_says_what_to_change(tmp_path: Path, arguments: Json, reason: str) -> None:
    with pytest.raises(ToolArguments, match=reason):
        SystemHarness(tmp_path, ANYTHING).run(**arguments)


def test_a_program_that_is_not_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no-such-program"):
        SystemHarness(tmp_path, ANYTHING).run(command=["no-such-program"])


def test_prepare_says_what_would_run_and_runs_nothing(tmp_path: Path) -> None:
    system = SystemHarness(tmp_path, ExecPolicy(default_action="deny"))

    plan = asyncio.run(system.ask("system.run.prepare", command=["touch", "a b"], agentId="main"))

    assert plan["cmdText"] == "touch 'a b'"
    assert plan["plan"]["argv"] == ["touch", "a b"]
    assert plan["plan"]["agentId"] == "main"


def test_which_finds_programs_by_name_only(tmp_path: Path) -> None:
    found = asyncio.run(SystemHarness(tmp_path).ask("system.which", bins=["sh", "no-such-program", "/etc/passwd"]))

    assert list(found["bins"]) == ["sh"]
    assert os.access(found["bins"]["sh"], os.X_OK)


# ---- who decides ----


def test_no_person_there_means_no_and_the_refusal_says_how_to_allow_it(tmp_path: Path) -> None:
    with pytest.raises(ToolDenied, match=r"no person is there to ask.*openclaw approvals"):
        SystemHarness(tmp_path, ASK).run(command=["touch", str(tmp_path / "made")])

    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("policy", "command", "advice"),
    [
        (ASK, ["touch", "x"], f"{ANSWER}, or add a rule: {RULE}"),
        (ASK, "for i in 1 2; do touch $i; done", f"{ANSWER}."),
        (NEVER, ["touch", "x"], f"{UNASKED} a rule of its own would allow it: {RULE}"),
        (DEFAULT_POLICY, ["rm", "x"], f"{UNASKED} a rule of its own would allow it: {RULE}"),
        (NEVER, "for i in 1; do echo; done", "no rule can allow it: give plain commands, one by one."),
        (ASK, ["echo", "x" * 20_000], "person; make it shorter."),
    ],
    ids=["asked", "asked and unreadable", "default deny", "deny rule", "denied and unreadable", "too long"],
)
def test_a_refusal_advises_only_what_would_help(
    tmp_path: Path, policy: ExecPolicy, command: str | list[str], advice: str
) -> None:
    with pytest.raises(ToolDenied) as refused:
        SystemHarness(tmp_path, policy).run(command=command)

    assert str(refused.value).endswith(advice)


def test_a_person_who_says_once_is_asked_again(tmp_path: Path) -> None:
    person = Person("once")
    system = SystemHarness(tmp_path, ASK, person)

    for _ in range(2):
        assert system.run(command=["expr", "1", "+", "1"])["stdout"] == "2\n"

    assert len(person.asked) == 2


def test_always_is_remembered_for_exactly_that_command(tmp_path: Path) -> None:
    person = Person("always")
    system = SystemHarness(tmp_path, ASK, person)
    system.run(command=["expr", "1", "+", "1"])
    person.answer = "deny"

    assert system.run(command=["expr", "1", "+", "1"])["stdout"] == "2\n"
    with pytest.raises(ToolDenied, match="denied by a person"):
        system.run(command=["expr", "1", "+", "2"])


def test_always_is_not_offered_for_text_no_rule_can_describe(tmp_path: Path) -> None:
    person = Person("always")
    system = SystemHarness(tmp_path, ASK, person)

    system.run(command="for i in 1 2; do echo $i; done")

    assert not person.asked[0].always
    assert system.approvals.load_policy() == ASK


def test_rules_made_stricter_while_a_person_thinks_win(tmp_path: Path) -> None:
    class Slow(Person):
        async def ask(self, question: UserQuestion) -> PromptAnswer | None:
            system.approvals.save_policy(ExecPolicy(default_action="deny"))
            return "once"

    system = SystemHarness(tmp_path, ASK, Slow("once"))

    with pytest.raises(ToolDenied, match="exec policy"):
        system.run(command=["expr", "1"])


def test_a_client_with_a_person_behind_it_is_asked_first(tmp_path: Path) -> None:
    client, elsewhere = Client({"action": "accept", "content": {"allow": True}}), Person("deny")

    result = SystemHarness(tmp_path, ASK, elsewhere).run(client, command=["expr", "1"])

    assert result["stdout"] == "1\n"
    assert "expr 1" in client.asked[0].params["message"]
    assert elsewhere.asked == []


@pytest.mark.parametrize(
    "reply",
    [{"action": "decline"}, {"action": "accept"}, {"action": "accept", "content": {"allow": 1}}],
)
def test_anything_but_a_clear_yes_from_the_client_is_a_no_that_says_how_to_allow_it(
    tmp_path: Path, reply: Json
) -> None:
    elsewhere = Person("once")
    with pytest.raises(ToolDenied, match=r"the client said no\. To allow it, run `openclaw approvals`"):
        SystemHarness(tmp_path, ASK, elsewhere).run(Client(reply), command=["expr", "1"])
    assert elsewhere.asked == []


def test_a_client_without_a_person_makes_no_choice_and_others_are_asked(tmp_path: Path) -> None:
    cancelled = Client({"action": "cancel"})
    assert SystemHarness(tmp_path, ASK, Person("once")).run(cancelled, command=["expr", "1"])["stdout"] == "1\n"
    with pytest.raises(ToolDenied, match=r"no person is there to ask\. To allow it, run `openclaw approvals`"):
        SystemHarness(tmp_path, ASK).run(cancelled, command=["expr", "1"])


def test_what_a_person_is_shown_hides_nothing(tmp_path: Path) -> None:
    person = Person("deny")
    with pytest.raises(ToolDenied):
        SystemHarness(tmp_path, ASK, person).run(command=["expr", "safe\u202egnihton\x1b[2K"])

    assert "\\u{202e}" in person.asked[0].detail
    assert "\x1b" not in person.asked[0].detail


# ---- the rules ----


def test_the_rules_file_is_made_with_defaults_that_let_people_look_and_not_break(tmp_path: Path) -> None:
    system = SystemHarness(tmp_path)

    assert system.run(command=["uname"])["success"]
    with pytest.raises(ToolDenied, match="deny 'rm \\*'"):
        system.run(command=["rm", "x"])
    assert (tmp_path / POLICY_FILE).stat().st_mode & 0o777 == 0o600
    assert system.approvals.load_policy() == DEFAULT_POLICY


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"rules": []}', b'{"defaultAction": "maybe"}', b"\xff"])
def test_rules_that_cannot_be_read_deny_everything_and_are_not_replaced(tmp_path: Path, text: bytes) -> None:
    (tmp_path / POLICY_FILE).write_bytes(text)

    with pytest.raises(BadPolicy, match="nothing may run"):
        SystemHarness(tmp_path).run(command=["echo", "x"])
    assert (tmp_path / POLICY_FILE).read_bytes() == text


def test_rules_behind_a_link_deny_everything(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text('{"defaultAction": "allow"}')
    (tmp_path / POLICY_FILE).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(BadPolicy):
        SystemHarness(tmp_path).run(command=["echo", "x"])


OLD = ExecPolicy(
    default_action="prompt",
    rules=(
        Rule(pattern="git log *", action="allow"),
        Rule(pattern="git push *", action="prompt"),
        Rule(pattern="rm *", action="deny"),
        Rule(pattern="ls *", action="allow"),
    ),
)


def _set(system: SystemHarness, **arguments: Any) -> Any:
    return asyncio.run(system.ask("system.execApprovals.set", **arguments))


def _rules(*pairs: tuple[str, str]) -> list[Json]:
    return [{"pattern": pattern, "action": action} for pattern, action in pairs]


@pytest.mark.parametrize(
    "rules",
    [
        _rules(("git log *", "allow"), ("git push *", "prompt"), ("rm *", "deny"), ("ls *", "allow")),
        _rules(("git push *", "prompt"), ("rm *", "deny"), ("ls *", "allow")),
        _rules(("git push *", "prompt"), ("rm *", "deny")),
        _rules(("git log *", "deny"), ("git push *", "deny"), ("rm *", "deny"), ("ls *", "prompt")),
        _rules(("dd *", "deny"), ("git push *", "prompt"), ("dd *", "deny"), ("rm *", "deny"), ("dd *", "deny")),
    ],
)
def test_set_may_make_the_rules_stricter(tmp_path: Path, rules: list[Json]) -> None:
    system = SystemHarness(tmp_path, OLD)
    reported = asyncio.run(system.ask("system.execApprovals.get"))

    result = _set(system, baseHash=reported["hash"], defaultAction="deny", rules=rules)

    assert result["updated"]
    assert result["hash"] == system.approvals.load_policy().hash
    assert system.approvals.load_policy().default_action == "deny"


@pytest.mark.parametrize(
    ("rules", "default"),
    [
        (_rules(("git push *", "prompt"), ("rm *", "deny")), "allow"),
        (_rules(("git push *", "prompt")), "prompt"),
        (_rules(("rm *", "deny")), "prompt"),
        (_rules(("git push *", "allow"), ("rm *", "deny")), "prompt"),
        (_rules(("* *", "allow"), ("git push *", "prompt"), ("rm *", "deny")), "prompt"),
        (_rules(("git push *", "prompt"), ("rm *", "deny"), ("cat *", "allow")), "prompt"),
        (_rules(("rm *", "deny"), ("git push *", "prompt")), "prompt"),
        (_rules(("ls *", "allow"), ("git push *", "prompt"), ("rm *", "deny")), "prompt"),
        (_rules(("* *", "prompt"), ("git push *", "prompt"), ("rm *", "deny")), "prompt"),
        ([], "prompt"),
    ],
)
def test_set_may_not_loosen_anything(tmp_path: Path, rules: list[Json], default: str) -> None:
    system = SystemHarness(tmp_path, OLD)

    with pytest.raises(ToolDenied):
        _set(system, baseHash=OLD.hash, defaultAction=default, rules=rules)
    assert system.approvals.load_policy() == OLD


@pytest.mark.parametrize("base", [None, "", "sha256:" + "0" * 64])
def test_set_needs_the_hash_of_the_present_rules(tmp_path: Path, base: str | None) -> None:
    arguments = {"rules": _rules(("git push *", "prompt"), ("rm *", "deny"))}
    with pytest.raises(ToolDenied, match="retry"):
        _set(SystemHarness(tmp_path, OLD), **arguments, **({} if base is None else {"baseHash": base}))


def test_a_rule_that_might_fit_counts_when_it_is_the_stricter_one(tmp_path: Path) -> None:
    policy = ExecPolicy(
        default_action="deny",
        rules=(
            Rule(pattern="git push *", action="prompt"),
            Rule(pattern="git *", action="allow"),
            Rule(pattern="x* *", action="allow"),
        ),
    )
    approvals = SystemHarness(tmp_path, policy).approvals

    assert approvals.evaluate(["git", "log"]).action == "allow"
    assert approvals.evaluate(["git", "push"]).action == "prompt"
    assert approvals.evaluate(["sh", "-c", "git $x"]).action == "prompt"
    assert approvals.evaluate(["xargs", "git"]).action == "prompt"


def _all_gone(pids: Path) -> bool:
    end = time.monotonic() + WAIT
    for pid in map(int, pids.read_text().split()):
        while _lives(pid):
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                return False
            time.sleep(0.01)
    return True


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
