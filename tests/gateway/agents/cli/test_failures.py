"""A CLI that does not answer: each way to fail is one sentence that says what to do, and leaves nothing behind."""

import asyncio
import threading
import time
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openclaw_mcp.core.agent import PartialAnswer, TurnCompleted, TurnFailed
from openclaw_mcp.core.errors import BadRequest
from openclaw_mcp.gateway.agents.cli.runtime import CliAttempt

from .gateways import ANSWERS, DIALECTS, PATIENCE, CliHarness, gone, lines, remembered, until

STAY = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


@pytest.mark.parametrize("cli", DIALECTS)
def test_one_that_is_not_installed_says_how_to_install_it(tmp_path: Path, cli: str) -> None:
    failed = CliHarness(tmp_path, cli, runtimeCommand="", runtimeEnv={"PATH": str(tmp_path / "nothing")}).failed()
    assert DIALECTS[cli]().install in failed.message
    assert "npm install -g" in failed.message


def test_a_wrong_command_names_the_setting(tmp_path: Path) -> None:
    failed = CliHarness(tmp_path, "codex", runtimeCommand="/no/such/codex").failed()
    assert "/no/such/codex" in failed.message
    assert "runtimeCommand" in failed.message


def test_a_file_that_is_no_program_is_a_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o755)
    assert "can't be started" in CliHarness(tmp_path, "codex", runtimeCommand=str(broken)).failed().message


def test_a_folder_it_may_not_work_in_is_named(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "codex")
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in harness.failed(cwd=str(tmp_path / "file")).message


COMPLAINTS: list[tuple[str, str, str, bool]] = [
    ("API Error: 401 Invalid API key", "unknown", "may not use its model", False),
    ("Not logged in · Please run /login", "unknown", "may not use its model", False),
    ("exceeded retry limit, last status: 429 Too Many Requests", "rate_limit", "try again later", False),
    ("Claude usage limit reached", "rate_limit", "try again later", False),
    ("overloaded_error", "rate_limit", "try again later", False),
    ("prompt is too long: 210000 tokens > 200000 maximum", "context_length", "the next message begins a new one", True),
    ("connect ECONNREFUSED 127.0.0.1:1", "unknown", "can't reach its model", False),
    ("required MCP servers failed to initialize: remoteclaw", "unknown", "could not start the gateway's tools", False),
    ("something nobody foresaw", "unknown", "something nobody foresaw", False),
]


@pytest.mark.parametrize(("complaint", "kind", "words", "drop"), COMPLAINTS)
def test_a_complaint_on_stderr_is_understood(tmp_path: Path, complaint: str, kind: str, words: str, drop: bool) -> None:
    failed = CliHarness(tmp_path, "codex", [{"stderr": complaint}, {"exit": 1}]).failed()
    assert (failed.kind, failed.drop_resume) == (kind, drop)
    assert words in failed.message
    assert failed.detail is not None
    assert complaint in failed.detail["said"]


DEPRECATED = """(node:7) [DEP0040] DeprecationWarning: The `punycode` module is deprecated. Please use another.
(Use `node --trace-deprecation ...` to show where the warning was created)"""
CRASHES: list[tuple[str, str, str]] = [
    ("codex", "WARNING: proceeding, even though we could not create PATH aliases: Refusing to create helper binaries\n"
     "Error loading config.toml: invalid type: integer `5`, expected a string\nin `model`\n",
     "Codex ended with status 1: Error loading config.toml: invalid type: integer `5`, expected a string | in `model`"),
    ("codex", "error: unexpected argument '--nonsense' found\n\n  tip: to pass '--nonsense' as a value, use '-- "
     "--nonsense'\n\nUsage: codex exec [OPTIONS] [PROMPT]\n\nFor more information, try '--help'.\n",
     "Codex ended with status 1: error: unexpected argument '--nonsense' found"),
    ("codex", "2026-11-18T05:12:09.5Z ERROR codex_core::session: Failed to create session: no space left on device\n"
     "2026-11-18T05:12:09.6Z  WARN codex_core::plugins: could not sync plugins: connection refused\n",
     "Codex ended with status 1: 2026-11-18T05:12:09.5Z ERROR codex_core::session: Failed to create session: no space "
     "left on device"),
    ("gemini", f"\x1b[31mError in settings.json: Expected property name or '}}' in JSON\x1b[0m\n{DEPRECATED}\n",
     "Gemini CLI ended with status 1: Error in settings.json: Expected property name or '}' in JSON"),
    ("gemini", f"file:///opt/gemini.js:12\n    throw new Error('x')\n    ^\n\nTypeError: x is not a function\n"
     f"    at run (file:///opt/gemini.js:12:7)\n    at async main (file:///opt/gemini.js:1:1)\n\nNode.js v24.21.0\n"
     f"{DEPRECATED}\n", "Gemini CLI ended with status 1: TypeError: x is not a function"),
    ("claude", "Error: Invalid MCP configuration:\nMCP config file not found: /nowhere\n",
     "Claude Code ended with status 1: Error: Invalid MCP configuration: | MCP config file not found: /nowhere"),
    ("opencode", "\x1b[91m\x1b[1mError: \x1b[0mConfig file at opencode.json is not valid JSON(C):\n--- Errors ---\n"
     "InvalidSymbol at line 1, column 2\n",
     "OpenCode ended with status 1: Error: Config file at opencode.json is not valid JSON(C): | --- Errors --- | "
     "InvalidSymbol at line 1, column 2"),
    ("opencode", f"{DEPRECATED}\n", "OpenCode ended with status 1; it only warned: (node:7) [DEP0040]"),
]  # fmt: skip


@pytest.mark.parametrize(("cli", "stderr", "message"), CRASHES)
def test_a_crash_is_told_by_its_cause_and_not_by_a_warning(tmp_path: Path, cli: str, stderr: str, message: str) -> None:
    failed = CliHarness(tmp_path, cli, [{"stderr": stderr.rstrip("\n")}, {"exit": 1}]).failed()
    assert failed.message.startswith(message)
    if "only warned" not in message:
        assert failed.message == message
    assert failed.detail is not None
    assert failed.detail["said"].strip() == stderr.strip()


@pytest.mark.parametrize(
    ("cli", "notice"),
    [
        ("codex", {"type": "item.completed", "item": {"id": "0", "type": "error", "message": "a quota may be near"}}),
        ("gemini", {"type": "error", "severity": "warning", "message": "a quota may be near"}),
    ],
)
def test_a_notice_before_a_crash_is_not_its_cause(tmp_path: Path, cli: str, notice: Any) -> None:
    crash = [*lines(ANSWERS[cli][0], notice), {"stderr": "Error: the disk is full"}, {"exit": 1}]
    failed = CliHarness(tmp_path, cli, crash).failed()
    assert failed.message.endswith("ended with status 1: Error: the disk is full")
    (tmp_path / "silent").mkdir()
    silent = CliHarness(tmp_path / "silent", cli, [*lines(ANSWERS[cli][0], notice), {"exit": 1}]).failed()
    assert "a quota may be near" in silent.message


ERRORS: dict[str, list[Any]] = {
    "claude": [
        {"type": "assistant", "message": {"model": "<synthetic>", "content": [{"type": "text", "text": "API Error"}]}},
        {"type": "result", "subtype": "success", "is_error": True, "result": "API Error: 429 slow down"},
    ],
    "gemini": [{"type": "result", "status": "error", "error": {"type": "Error", "message": "[API Error: 429 slow]"}}],
    "codex": [
        {"type": "error", "message": "Reconnecting... 5/5"},
        {"type": "turn.failed", "error": {"message": "429 slow down"}},
    ],
    "opencode": [
        {
            "type": "error",
            "sessionID": "s",
            "error": {"name": "APIError", "data": {"message": "slow", "statusCode": 429}},
        }
    ],
}


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("cli", DIALECTS)
def test_an_error_event_fails_the_turn_any_the_exit_status(tmp_path: Path, cli: str, status: int) -> None:
    events = CliHarness(tmp_path, cli, [*lines(*ERRORS[cli]), {"exit": status}]).run()
    end = events[-1]
    assert isinstance(end, TurnFailed)
    assert end.kind == "rate_limit"
    assert not any(isinstance(event, PartialAnswer) for event in events)


@pytest.mark.parametrize("cli", DIALECTS)
def test_an_end_without_an_answer_is_no_success(tmp_path: Path, cli: str) -> None:
    failed = CliHarness(tmp_path, cli, [*lines(*ANSWERS[cli][:-1]), {"exit": 0}]).failed()
    assert DIALECTS[cli]().title in failed.message


def test_secrets_are_not_repeated(tmp_path: Path) -> None:
    key = "sk-very-secret-key"
    failed = CliHarness(
        tmp_path, "codex", [{"stderr": f"Incorrect API key provided: {key} and grant-secret-0"}, {"exit": 1}],
        runtimeEnv={"OPENAI_API_KEY": key},
    ).failed()  # fmt: skip
    assert "Incorrect API key" in failed.message
    assert key not in repr(failed)
    assert "grant-secret" not in repr(failed)


# ---- sessions that are gone ------------------------------------------------------------------------------------------

GONE: dict[str, list[Any]] = {
    "claude": [
        *lines({"type": "result", "subtype": "error_during_execution", "errors": ["No conversation found with id x"]}),
        {"exit": 1},
    ],
    "gemini": [{"stderr": "Error resuming session: Invalid session identifier"}, {"exit": 42}],
    "codex": [{"stderr": "Error: no rollout found for thread id x"}, {"exit": 1}],
    "opencode": [{"stderr": "Error: Session not found"}, {"exit": 1}],
}


@pytest.mark.parametrize("cli", DIALECTS)
def test_a_session_it_no_longer_knows_is_begun_again_once(tmp_path: Path, cli: str) -> None:
    harness = CliHarness(tmp_path, cli, GONE[cli], lines(*ANSWERS[cli]))
    end = harness.final(resume=remembered(cli, "old"))
    assert end.resume == remembered(cli, "s-1") or '"id":"s-1"' in (end.resume or "")
    assert harness.times_called == 2
    assert [harness.resumed("old", number) for number in range(2)] == [True, False]


def test_a_session_that_can_not_be_begun_again_either_is_dropped(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "codex", GONE["codex"])
    failed = harness.failed(resume=remembered("codex", "old"))
    assert failed.drop_resume
    assert harness.times_called == 2


def test_one_that_has_acted_is_not_started_again(tmp_path: Path) -> None:
    message = {"type": "item.completed", "item": {"id": "a", "type": "agent_message", "text": "sent it"}}
    harness = CliHarness(tmp_path, "codex", [*lines(message), *GONE["codex"]])
    harness.failed(resume=remembered("codex", "old"))
    assert harness.times_called == 1


MIGRATING: list[Any] = [
    {"stderr": "Error: Unexpected error\n\nFailed query: \n  CREATE TABLE `workspace` (\n"},
    {"exit": 1},
]


def test_one_that_met_another_first_start_of_its_own_is_started_again(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "opencode", MIGRATING, MIGRATING, GONE["opencode"], lines(*ANSWERS["opencode"]))
    harness.final(resume=remembered("opencode", "old"))
    assert [harness.resumed("old", number) for number in range(harness.times_called)] == [True, True, True, False]


def test_one_that_never_gets_its_store_ready_is_given_up(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "opencode", MIGRATING)
    failed = harness.failed(resume=remembered("opencode", "old"))
    assert "CREATE TABLE" in failed.message
    assert not failed.drop_resume
    assert harness.times_called == 4


def test_another_runtimes_session_is_not_taken_up(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "codex")
    harness.final(resume=remembered("claude", "theirs"))
    assert "theirs" not in harness.called()["args"]
    CliHarness(tmp_path, "codex").final(resume="not ours at all")


# ---- ends ------------------------------------------------------------------------------------------------------------


def test_one_that_says_nothing_at_the_start_is_stopped(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "claude", [{"child": STAY}, {"sleep": 600}], runtimeStartupSeconds=1)
    failed = harness.failed()
    assert failed.kind == "timeout"
    assert "runtimeStartupSeconds" in failed.message
    assert gone(harness.called()["pid"], *harness.children())


def test_one_that_falls_silent_is_stopped(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "claude", [*lines(ANSWERS["claude"][0]), {"sleep": 600}], runtimeIdleSeconds=1)
    failed = harness.failed()
    assert failed.kind == "timeout"
    assert "runtimeIdleSeconds" in failed.message
    assert gone(harness.called()["pid"])


def test_an_abort_ends_everything_it_started(tmp_path: Path) -> None:
    """Children that ignore SIGTERM and children that left the group included, within what an abort may take."""
    steps = [{"child": DEAF}, {"child": STAY, "apart": True}, *lines(ANSWERS["claude"][0]), {"sleep": 600}]
    harness = CliHarness(tmp_path, "claude", steps)

    async def scenario() -> float:
        async with aclosing(harness.agent.run(harness.turn())) as events:
            async with asyncio.timeout(PATIENCE):
                await anext(events)
            await until(lambda: len(harness.children()) == 2)
            began = time.monotonic()
        return time.monotonic() - began

    took = asyncio.run(scenario())
    assert len(harness.children()) == 2
    assert gone(harness.called()["pid"], *harness.children())
    assert harness.grants.revoked == list(harness.grants.issued)
    assert harness.leftovers() == []
    assert took < 5
    harness.folders.close()


def test_a_cancelled_run_ends_everything_too(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "codex", [*lines(ANSWERS["codex"][0]), {"child": STAY}, {"sleep": 600}])

    async def scenario() -> None:
        task = asyncio.ensure_future(harness.run_turn())
        await until(harness.children)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert gone(harness.called()["pid"], *harness.children())
    assert harness.grants.revoked == list(harness.grants.issued)
    harness.folders.close()


def test_a_child_that_outlives_it_and_holds_its_output_does_not_hold_the_run(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "claude", [{"child": DEAF}, *lines(*ANSWERS["claude"]), {"exit": 0}])
    began = time.monotonic()
    assert isinstance(harness.run()[-1], TurnCompleted)
    assert time.monotonic() - began < 10
    assert gone(*harness.children())


def test_what_left_the_group_of_a_program_that_died_ends_with_it(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "claude", [{"child": DEAF, "apart": True}, *lines(*ANSWERS["claude"]), {"exit": 0}])
    assert isinstance(harness.run()[-1], TurnCompleted)
    assert gone(*harness.children())


def test_nine_at_once_wait_their_turn(tmp_path: Path) -> None:
    """A gateway that runs four at once; all are answered, never more than four at once."""
    harness = CliHarness(tmp_path, "gemini", [{"sleep": 0.2}, *lines(*ANSWERS["gemini"])])

    async def scenario() -> list[Any]:
        return await asyncio.gather(*(harness.run_turn() for _ in range(9)))

    assert all(isinstance(events[-1], TurnCompleted) for events in asyncio.run(scenario()))
    assert harness.times_called == 9
    assert harness.grants.most_at_once == 4
    harness.folders.close()


def test_files_are_moved_back_before_a_run_ends_however_often_it_is_cancelled() -> None:
    started, may_end, moved = threading.Event(), threading.Event(), threading.Event()

    class Adapter:
        title = "Slow"

        def create_reader(self, cli_turn: Any) -> None:
            return None

        def after_run(self, cli_turn: Any) -> None:
            started.set()
            may_end.wait(PATIENCE)
            moved.set()

    async def build_command(cli_turn: Any) -> Any:
        raise BadRequest("it can't be started")

    async def scenario() -> None:
        prepared: Any = SimpleNamespace(adapter=Adapter(), build_command=build_command)
        events = CliAttempt(prepared, prepared, None).events()
        ending = asyncio.ensure_future(anext(events, None))
        await asyncio.to_thread(started.wait, PATIENCE)
        for _ in range(2):
            ending.cancel()
            await asyncio.wait((ending,), timeout=0.05)
            assert not ending.done()
        may_end.set()
        await asyncio.wait((ending,), timeout=PATIENCE)
        assert ending.cancelled()
        assert moved.is_set()

    asyncio.run(scenario())
