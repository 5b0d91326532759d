"""A yes is for the files and the folder that were asked about: whatever a text calls them, and wherever it goes first.
The commands really run."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.errors import OpenClawError, ToolDenied
from openclaw_mcp.node.desktop import DesktopNotifier
from openclaw_mcp.node.exec.approvals import UNWATCHED_NOTICE, ExecAuthorizer
from openclaw_mcp.node.questions import PromptAnswer, PromptRouter, UserQuestion
from openclaw_mcp.node.system import SystemCapability

from ..media.making import call
from .evaluating import rules, script


class QuestionHarness:
    """`system.run` with the default rules, and a person during whose thinking something happens."""

    def __init__(self, state: Path, meanwhile: Callable[[], Any], answer: PromptAnswer = "once") -> None:
        self.asked: list[UserQuestion] = []
        self.approvals = ExecAuthorizer(
            state_dir=state, prompt_router=PromptRouter([self], seconds=lambda: 5, ask_in_client=lambda: False)
        )
        system = SystemCapability(approvals=self.approvals, desktop=DesktopNotifier())
        self._start = next(each.run for each in system.commands() if each.spec.name == "system.run")
        self._meanwhile = meanwhile
        self._answer = answer

    keeps_questions = False

    def is_available(self) -> bool:
        return True

    async def ask(self, question: UserQuestion) -> PromptAnswer:
        self.asked.append(question)
        self._meanwhile()
        return self._answer

    def run(self, command: str | list[str], cwd: Path) -> Any:
        async def started() -> Any:
            return (await self._start(call("system.run", {"command": command, "cwd": str(cwd)}))).structured

        return asyncio.run(started())


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    for name in ("run.sh", "sub/run.sh", "sub/deep/run.sh", "a b.sh", "sub/x/y/run.sh"):
        script(folder / name, "echo good")
    (folder / "sub/Makefile").write_text("all:\n\t@echo good\n")
    (folder / "link").symlink_to("sub")
    return folder


ELSEWHERE: dict[str, str] = {
    "cd sub && sh run.sh": "sub/run.sh",
    "cd sub; sh run.sh": "sub/run.sh",
    "cd sub && make": "sub/Makefile",
    "cd sub && make | cat": "sub/Makefile",
    "cd ./sub/ && sh ./run.sh": "sub/run.sh",
    "cd {work}/sub && sh run.sh": "sub/run.sh",
    "cd sub/deep && sh run.sh": "sub/deep/run.sh",
    "cd sub; cd deep; sh run.sh": "sub/deep/run.sh",
    "cd sub/deep; cd ..; sh run.sh": "sub/run.sh",
    "cd link && sh run.sh": "sub/run.sh",
    "(cd sub; sh run.sh)": "sub/run.sh",
    "cd 'sub' && sh run.sh": "sub/run.sh",
    "cd s*b && sh run.sh": "sub/run.sh",
    "cd sub && sh -c 'sh run.sh'": "sub/run.sh",
    "cd sub && ls && sh run.sh": "sub/run.sh",
    "if true; then cd sub; sh run.sh; fi": "sub/run.sh",
    "if true; then cd s'u'b; sh run.sh; fi": "sub/run.sh",
    "find sub -name run.sh -execdir sh run.sh \\;": "sub/run.sh",
    "sh r*.sh": "run.sh",
    "sh ru?.sh": "run.sh",
    "sh r[a-z]n.sh": "run.sh",
    "sh r[!a]n.sh": "run.sh",
    "sh s*/run.sh": "sub/run.sh",
    "sh */*/run.sh": "sub/deep/run.sh",
    "sh {work}/r*.sh": "run.sh",
    'for f in r*.sh; do sh "$f"; done': "run.sh",
    'for f in *; do test -f "$f" && sh "$f"; done': "run.sh",
    'for f in sub/*/run.sh; do sh "$f"; done': "sub/deep/run.sh",
    'if true; then sh r"u"n.sh; fi': "run.sh",
    "if true; then sh r'u'n.sh; fi": "run.sh",
    "if true; then sh ru\\n.sh; fi": "run.sh",
    "if true; then sh ru\\\nn.sh; fi": "run.sh",
    "if true; then sh 'a b.sh'; fi": "a b.sh",
    "if true; then sh a\\ b.sh; fi": "a b.sh",
    'if true; then sh "{work}"/run.sh; fi 2>/dev/stderr': "run.sh",
    ". ./run.sh": "run.sh",
    "sh < run.sh": "run.sh",
    "cat run.sh | sh": "run.sh",
}


@pytest.mark.parametrize("text", ELSEWHERE)
def test_another_file_than_the_one_asked_about_does_not_run(tmp_path: Path, work: Path, text: str) -> None:
    command = text.replace("{work}", str(work))
    assert "good" in QuestionHarness(tmp_path / "state", lambda: None).run(command, work)["stdout"]

    path = work / ELSEWHERE[text]
    harness = QuestionHarness(tmp_path / "state", lambda: path.write_text(path.read_text().replace("good", "OTHER")))
    with pytest.raises(ToolDenied, match="changed while a person was asked"):
        harness.run(command, work)
    assert len(harness.asked) == 1


def test_a_command_that_a_rule_allowed_is_asked_about_too_when_it_has_changed(tmp_path: Path, work: Path) -> None:
    """`sh run.sh` was allowed when the question was put, by an answer that no longer holds."""
    QuestionHarness(tmp_path / "state", lambda: None, "always").run("sh run.sh", work)

    harness = QuestionHarness(tmp_path / "state", lambda: script(work / "run.sh", "echo OTHER"))
    with pytest.raises(ToolDenied, match="changed while a person was asked"):
        harness.run("sh run.sh; touch x", work)


# ---- what is not watched is reported ----


@pytest.mark.parametrize(
    "text",
    [
        "sh $x",
        "sh r*.sh",
        "cd $HOME && sh run.sh",
        "cd && sh run.sh",
        "cd - ; sh run.sh",
        "for f in 1; do sh run.sh; done",
        "eval sh run.sh",
        "cd sub && jest",
        "sh run.sh < x",
    ],
)
def test_the_question_says_where_files_can_not_be_known(tmp_path: Path, work: Path, text: str) -> None:
    harness = QuestionHarness(tmp_path / "state", lambda: None, "deny")
    with pytest.raises(OpenClawError):
        harness.run(text, work)

    assert UNWATCHED_NOTICE in harness.asked[0].detail.splitlines()
    assert not harness.asked[0].always


@pytest.mark.parametrize(
    "text", ["cd sub && sh run.sh", "sh run.sh", "cat $HOME/x", "cd $HOME && cat x", "touch x", "sh run.sh | tail -n 3"]
)
def test_and_only_there(tmp_path: Path, work: Path, text: str) -> None:
    harness = QuestionHarness(tmp_path / "state", lambda: None, "deny")
    with pytest.raises(ToolDenied):
        harness.run(text, work)

    assert UNWATCHED_NOTICE not in harness.asked[0].detail


def test_a_folder_with_too_much_in_it_hides_nothing_else(tmp_path: Path, work: Path) -> None:
    for number in range(5000):
        (work / f"f{number}").touch()
    harness = QuestionHarness(tmp_path / "state", lambda: script(work / "run.sh", "echo OTHER"))

    with pytest.raises(ToolDenied, match="changed while a person was asked"):
        harness.run("for f in *; do true; done; cd sub; cd ..; sh run.sh", work)
    assert UNWATCHED_NOTICE in harness.asked[0].detail.splitlines()


def test_words_without_number_hide_no_file_before_them(tmp_path: Path, work: Path) -> None:
    harness = QuestionHarness(tmp_path / "state", lambda: script(work / "run.sh", "echo OTHER"))

    with pytest.raises(ToolDenied, match="changed while a person was asked"):
        harness.run(f"eval sh run.sh; true {' '.join(str(number) for number in range(3000))}", work)
    assert UNWATCHED_NOTICE in harness.asked[0].detail.splitlines()


def test_a_files_name_is_one_line_of_a_question(tmp_path: Path, work: Path) -> None:
    name = "a.sh as now\nin /home/me/safe"
    script(work / name)
    harness = QuestionHarness(tmp_path / "state", lambda: None, "deny")
    with pytest.raises(ToolDenied):
        harness.run("sh a*", work)

    assert [line for line in harness.asked[0].detail.splitlines() if line.startswith("in ")] == [f"in {work.resolve()}"]


# ---- the folder ----


def _lead_to(path: Path, folder: Path) -> None:
    path.rename(path.with_name("gone"))
    path.symlink_to(folder)


IN_A_FOLDER = [
    'for f in *; do unlink "$f"; done',
    "unlink letter.txt",
    ["find", ".", "-type", "f", "-delete"],
    "eval 'unlink letter.txt'",
    ["touch", "made"],
    "touch made && ls",
]


@pytest.mark.parametrize("command", IN_A_FOLDER)
def test_a_link_that_leads_elsewhere_by_then_is_not_followed(tmp_path: Path, command: Any) -> None:
    safe, precious, link = tmp_path / "safe", tmp_path / "precious", tmp_path / "link"
    for folder in (safe, precious):
        folder.mkdir()
        (folder / "letter.txt").write_text("")
    link.symlink_to(safe)
    harness = QuestionHarness(tmp_path / "state", lambda: _lead_to(link, precious))

    harness.run(command, link)

    assert f"in {safe.resolve()}" in harness.asked[0].detail.splitlines()
    assert [path.name for path in precious.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("command", IN_A_FOLDER)
def test_a_folder_that_has_become_a_link_is_not_the_one_asked_about(tmp_path: Path, command: Any) -> None:
    safe, precious = tmp_path / "safe", tmp_path / "precious"
    for folder in (safe, precious):
        folder.mkdir()
        (folder / "letter.txt").write_text("")

    harness = QuestionHarness(tmp_path / "state", lambda: _lead_to(safe, precious))
    with pytest.raises(ToolDenied, match="changed while a person was asked"):
        harness.run(command, safe)
    assert [path.name for path in precious.iterdir()] == ["letter.txt"]


def test_a_command_that_a_rule_allows_runs_where_it_was_judged(tmp_path: Path) -> None:
    (tmp_path / "safe").mkdir()
    (tmp_path / "link").symlink_to("safe")
    harness = QuestionHarness(tmp_path / "state", lambda: None)
    harness.approvals.save_policy(rules("deny", allow=("pwd",)))

    assert harness.run(["pwd"], tmp_path / "link")["stdout"].strip() == str((tmp_path / "safe").resolve())
