"""What a person or a run chooses becomes one word of the CLI's command line, never an option or a file it reads."""

import re
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.agent import Attachment, TurnFailed

from .gateways import DIALECTS, STRANGER, CliHarness

OPTIONS = [
    "--file=/etc/passwd", "-m", "--yolo", "--include-directories=/", "-", "", " m", "m --yolo", "m\n--yolo", "\u2013-x",
    "--attach=http://127.0.0.1:1", "m\x00", "x" * 201, "$(id)", "m;id", "@secret",
]  # fmt: skip
NAMES = [
    "opus",
    "fake/m-1",
    "sonnet[1m]",
    "openai/gpt-5.1:free",
    "anthropic/claude-x",
    "google/--policy",
    "vertex@eu/m",
]
OWN_PREFIX = {"claude": "anthropic/", "codex": "openai/", "gemini": "google/", "opencode": ""}


@pytest.mark.parametrize("cli", DIALECTS)
@pytest.mark.parametrize("model", [model for model in OPTIONS if model])
def test_a_model_that_looks_like_anything_else_starts_nothing(tmp_path: Path, cli: str, model: str) -> None:
    harness = CliHarness(tmp_path, cli)
    end = harness.run(model=model, caller=STRANGER)[-1]
    assert isinstance(end, TurnFailed)
    assert "is no model's name" in end.message
    assert harness.times_called == 0


@pytest.mark.parametrize("cli", DIALECTS)
@pytest.mark.parametrize("model", NAMES)
def test_a_models_name_is_one_word_with_its_option(tmp_path: Path, cli: str, model: str) -> None:
    harness = CliHarness(tmp_path, cli)
    harness.final(model=model)
    words = [word for word in harness.called()["args"] if "model" in word and "=" in word and word.startswith("--")]
    assert words == [f"--model={model.removeprefix(OWN_PREFIX[cli])}"]


# ---- what Gemini would read ------------------------------------------------------------------------------------------

READ = [
    "@plan.txt", "@a,@plan.txt", "(@a)@plan.txt", "me@x.org;@plan.txt", "@{@plan.txt", "@x[@plan.txt", "@.@plan.txt",
    '@"plan.txt"', '@"my plan.txt"', "@'plan.txt'", "@my\\ plan.txt", "@\\plan.txt", "@./plan.txt", "@../work/plan.txt",
    "@/etc/hostname", "@PLAN.TXT", "@\uff50lan.txt", "x@plan.txt", "@@plan.txt", "@sub/inner.txt", "@sub", '@"su"b',
    "@*", "@pl\\an.txt", '@""plan.txt', "@~/x", "@x/../plan.txt", "mail me@x/../plan.txt", "@a,b@x/y/../../plan.txt",
    "@x\\/../plan.txt", "@x\\ y/../plan.txt", '@"x y"/../plan.txt', '@x"y z/../plan.txt', "@x\u00a0/../plan.txt",
    "@x\u2003y/../plan.txt", f"@{'x' * 3000}/../plan.txt", f"@{'x/../' * 999}plan.txt", "@x/../../work/plan.txt",
    "@x/..", '\\@a"b@x" y/../plan.txt', "@it's/../plan.txt",
]  # fmt: skip
LEFT = [
    "ann@example.org", "<ann@example.org>", "@bob, hello", "it is @bob's", "2 @ 3", "@", "a@", "@ plan.txt",
    "no at at all", "ann@example.org and/or bob@example.org", "https://example.org/@bob",
]  # fmt: skip


def stdin(tmp_path: Path, prompt: str, **more: Any) -> str:
    harness = CliHarness(tmp_path, "gemini")
    for name in ("plan.txt", "my plan.txt", "*"):
        (harness.work / name).write_text("secret")
    (harness.work / "sub").mkdir()
    (harness.work / "sub" / "inner.txt").write_text("secret")
    harness.final(prompt, **more)
    text: str = harness.called()["stdin"]
    return text


@pytest.mark.parametrize("text", READ)
def test_gemini_reads_no_file_a_message_names_however_it_is_written(tmp_path: Path, text: str) -> None:
    """It takes an `@` for a file's where no backslash stands before it."""
    prompt = stdin(tmp_path, f"look: {text} now")
    assert prompt[prompt.rindex("@") - 1] == "\\"


@pytest.mark.parametrize("text", LEFT)
def test_gemini_is_given_other_words_as_they_are(tmp_path: Path, text: str) -> None:
    assert stdin(tmp_path, text).endswith(text)


@pytest.mark.parametrize("text", [*READ, *LEFT])
def test_gemini_takes_nothing_in_a_person_elses_message_for_a_file(tmp_path: Path, text: str) -> None:
    """Whatever follows it, no `@` is without its backslash."""
    prompt = stdin(tmp_path, f"look: {text} now", caller=STRANGER)
    assert re.findall(r"(?<!\\)@", prompt) == []
    assert prompt.replace("\\@", "@").endswith(f"look: {text} now")


def test_gemini_sees_the_files_that_came_with_a_person_elses_message(tmp_path: Path) -> None:
    picture = Attachment(mime_type="image/png", name="@x", data=b"x")
    prompt = stdin(tmp_path, "look @here", caller=STRANGER, attachments=(picture,))
    first, _, rest = prompt.partition("\n")
    assert first.startswith("@/")
    assert first.endswith("media-0.png")
    assert re.findall(r"(?<!\\)@", rest) == []
