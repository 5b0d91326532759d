"""What a person decides by hides nothing: the same text in a terminal, on the desktop, in the client, at a gateway."""

import asyncio
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.cli.approvals import _question_from_request, _QuestionPrompt
from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.core.model import InputRequest, Json
from openclaw_mcp.core.ports import NullCallContext
from openclaw_mcp.core.visible_text import escape_command, escape_line, escape_program, escape_unsafe
from openclaw_mcp.gateway.nodes.command_text import display_command
from openclaw_mcp.node.consent import ConsentStore
from openclaw_mcp.node.desktop import _question_text
from openclaw_mcp.node.exec.approvals import ExecAuthorizer
from openclaw_mcp.node.questions import PromptAnswer, PromptRouter, UserQuestion

from .media.making import call

HIDDEN = {
    "NUL": 0x0, "backspace": 0x8, "tab": 0x9, "carriage return": 0xD, "escape": 0x1B, "delete": 0x7F, "CSI": 0x9B,
    "next line": 0x85, "no-break space": 0xA0, "soft hyphen": 0xAD, "grapheme joiner": 0x34F, "Arabic mark": 0x61C,
    "Hangul filler, leading": 0x115F, "Hangul filler, vowel": 0x1160, "ogham space": 0x1680, "Khmer vowel": 0x17B4,
    "Mongolian selector": 0x180B, "Mongolian separator": 0x180E, "en quad": 0x2000, "em space": 0x2003,
    "figure space": 0x2007, "hair space": 0x200A, "zero width space": 0x200B, "non-joiner": 0x200C, "joiner": 0x200D,
    "left-to-right mark": 0x200E, "right-to-left mark": 0x200F, "line separator": 0x2028, "paragraph separator": 0x2029,
    "embedding": 0x202A, "right-to-left override": 0x202E, "narrow space": 0x202F, "mathematical space": 0x205F,
    "word joiner": 0x2060, "function application": 0x2061, "isolate": 0x2066, "pop isolate": 0x2069, "digits": 0x206F,
    "braille blank": 0x2800, "ideographic space": 0x3000, "Hangul filler": 0x3164, "variation selector": 0xFE0F,
    "byte order mark": 0xFEFF, "half-width filler": 0xFFA0, "annotation anchor": 0xFFF9, "annotation end": 0xFFFB,
    "object replacement": 0xFFFC, "unassigned": 0x378, "not a character": 0xFFFF, "surrogate": 0xDC80,
    "private": 0xE000, "shorthand": 0x1BCA0, "empty note": 0x1D159, "musical format": 0x1D173, "language tag": 0xE0001,
    "tag letter": 0xE0041, "tag end": 0xE007F, "variation selector 17": 0xE0100, "private plane": 0x10FFFD,
    "long stroke overlay": 0x338, "enclosing circle": 0x20DD, "full-width letter": 0xFF52, "full-width slash": 0xFF0F,
    "mathematical letter": 0x1D42B, "fraction slash": 0x2044, "division slash": 0x2215, "hyphen": 0x2010,
    "minus": 0x2212, "one dot leader": 0x2024, "ratio": 0x2236, "Greek question mark": 0x37E,
}  # fmt: skip


class Person:
    def __init__(self) -> None:
        self.asked: list[UserQuestion] = []

    keeps_questions = False

    def is_available(self) -> bool:
        return True

    async def ask(self, question: UserQuestion) -> Any:
        self.asked.append(question)
        return "deny"


class Client(NullCallContext):
    def __init__(self) -> None:
        self.asked: list[InputRequest] = []

    def can_ask(self, capability: str, mode: str = "") -> bool:
        return True

    async def ask(self, questions: Any) -> Any:
        self.asked += questions.values()
        return {key: {"action": "cancel"} for key in questions}


def all_outputs(tmp_path: Path, text: str) -> dict[str, str]:
    """A word of a command, as each surface shows it; and as a folder's name and a consent."""
    (tmp_path / "exec-policy.json").write_text('{"defaultAction": "prompt", "rules": []}')
    person, client = Person(), Client()
    asking = PromptRouter([person], seconds=lambda: 5, ask_in_client=lambda: True)
    approvals, consents = (
        ExecAuthorizer(state_dir=tmp_path, prompt_router=asking),
        ConsentStore(state_dir=tmp_path, prompt_router=asking),
    )
    tool_call = call("system.run", line=client)

    async def ask() -> None:
        argv = ["expr", text]
        for work in (
            approvals.authorise(tool_call, argv, cwd=Path("/nowhere" + text), asker="me" + text),
            approvals.authorise(tool_call, ["expr" + text], cwd=None, asker="me"),
            consents(tool_call, "film " + text),
        ):
            await asyncio.gather(work, return_exceptions=True)

    asyncio.run(ask())
    lines: list[str] = []
    for question in person.asked:
        detail = {part: getattr(question, part) for part in ("id", "title", "detail", "why", "asker", "always")}
        _QuestionPrompt(lines.append).on_message({"question": detail}, None)  # type: ignore[arg-type]  # nothing is answered
    request: Json = {"command": "expr " + text, "warningText": text, "agentId": text, "nodeId": text, "cwd": "/" + text}
    detail = _question_from_request({"id": "q", "request": request})
    _QuestionPrompt(lines.append).on_message({"question": detail}, None)  # type: ignore[arg-type]
    return {
        "terminal": "\n".join(lines),
        "desktop": "\n".join(question.title + _question_text(question) for question in person.asked),
        "client": "\n".join(question.params["message"] for question in client.asked),
    }


@pytest.mark.parametrize("name", HIDDEN)
def test_what_can_not_be_seen_is_shown_as_an_escape_on_every_surface(tmp_path: Path, name: str) -> None:
    char = chr(HIDDEN[name])

    for surface, output in all_outputs(tmp_path, f"a{char}b").items():
        assert char not in output, surface
        assert f"a\\u{{{ord(char):x}}}b" in output, surface


@pytest.mark.parametrize("name", HIDDEN)
def test_escaping_twice_changes_nothing_more(name: str) -> None:
    once = escape_unsafe(f"a{chr(HIDDEN[name])}b")

    assert escape_unsafe(once) == once
    assert escape_line(once) == once


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("x" + " " * 300 + "; rm y", "x \\u{20}(x300) ; rm y"),
        ("x" + "\n" * 80 + "rm y", "x\n\\u{a}(x80)\nrm y"),
        ("ls" + "\n " * 80 + "; rm y", "ls\n\\u{a}(x80)\n ; rm y"),
        ("ls" + " \n" * 80 + "rm y", "ls \n\\u{a}(x80)\nrm y"),
        ("ls" + "\n   \n" * 5 + "rm y", "ls\n\\u{a}(x10)\nrm y"),
        ("a\n \nb", "a\n \nb"),
        ("e" + "\u0301" * 5, "e\u0301\u0301\\u{301}\\u{301}\\u{301}"),
        ("- \u0301", "- \\u{301}"),
        ("\u0440ython3", "\\u{440}ython3"),
        ("pyth\u03bfn3", "pyth\\u{3bf}n3"),
        ("\x1b]0;title\x07\x1b[2K\rls", "\\u{1b}]0;title\\u{7}\\u{1b}[2K\\u{d}ls"),
        ("git log\u202e# gol tig", "git log\\u{202e}# gol tig"),
    ],
)
def test_a_tail_is_not_pushed_out_of_sight_nor_a_letter_taken_for_another(text: str, escaped: str) -> None:
    assert escape_unsafe(text) == escaped
    assert escape_unsafe(escaped) == escaped


@pytest.mark.parametrize(
    "text",
    [
        "ls -la /srv",
        "größe café naïve",
        "отчёт.txt привет",
        "日本語のファイル",
        "한국어",
        "हिन्दी नमस्ते",
        "a — b “c” … ™",
        "שלום",
        "e\u0301te\u0301",
        "x\n  y",
    ],
)
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert escape_unsafe(text) == text


# ---- commands: each character counts ----

PASS_FOR_ASCII = {
    "quotes": "2018 2019 201B 02B9 02BB 02BD 02C8 055A B4 02CA 2032 2035 201C 201D 201F 02BA 02EE 02DD 2033 3003 AB BB",
    "dashes": "2013 2014 2015 FE58 2500 30FC 4E00 1173 1743 3161 2043 AD",
    "slashes": "2571 27CB 3033 30CE 4E3F 29F8 2044 2215",
    "backslashes": "FF3C FE68 2216 29F5 29F9 4E36",
    "dots": "B7 318D 16EB 2022 A4F8 2026 3002 FF61 30FB",
    "colons": "FE30 0903 FF1A 02D0 A789 16EC 0589",
    "bars": "2502 4E28 2758 0964 01C0 FFE8 2503 3163",
    "angles": "276F 1433 02C3 227B 203A 276E 1438 02C2 2039",
    "stars": "204E 2731 1031F FF0A",
    "tildes": "02DC 1FC0 223C 301C",
    "others": "01C3 2757 2D51 FF04 FE69 FF06 A778 FF03 2317 266F 20AC 2122 1F600",
    "digits": "0C66 0665 0966 1D7CE 0CE6 0D66 0660 06F0 2460 00B2 216C",
    "Latin": "0261 0251 0131 0237 1D0F 1D1C 1D20 1D22 A731 0280 0269 026A 217C A7AE 1E9B FB01",
    "Greek and Cyrillic": "0430 043E 0440 03BF 0391 0578",
    "other alphabets": "13AA A4D0 2C9E 10414 0D20 101D",
    "right to left": "05D0 05E9 05F4 0627 0645 0712 07CA 066D",
}
PASSING = [(kind, chr(int(code, 16))) for kind, codes in PASS_FOR_ASCII.items() for code in codes.split()]


@pytest.mark.parametrize(("kind", "char"), PASSING)
def test_what_passes_for_ascii_in_a_command_is_an_escape(tmp_path: Path, kind: str, char: str) -> None:
    """Within a word, alone, between numbers and at the end; on every surface; done twice it changes nothing more."""
    escape = f"\\u{{{ord(char):x}}}"
    for text in (f"a{char}b", f"x {char} y", f"1{char}2", f"/{char}", f"a {char}{char}"):
        escaped = escape_command(text)
        assert escaped == text.replace(char, escape), kind
        assert escape_command(escaped) == escape_unsafe(escaped) == escaped

    question = question_about(tmp_path, ["expr", f"a{char}b"], cwd=Path(f"/nowhere/{char}"))
    at_a_gateway = _question_from_request({"id": "q", "request": {"command": f"expr {char}", "cwd": f"/{char}"}})[
        "detail"
    ]
    operator_text = display_command(["expr", char], [], {"A": char})
    for escaped in (
        question.detail,
        question.why,
        question.lasting,
        _question_text(question),
        at_a_gateway,
        operator_text,
    ):
        assert char not in escaped
    for escaped in (question.detail, at_a_gateway, operator_text):
        assert escaped.count(escape) == 2


def question_about(tmp_path: Path, argv: list[str], *, cwd: Path) -> UserQuestion:
    (tmp_path / "exec-policy.json").write_text('{"defaultAction": "prompt", "rules": []}')
    person = Person()
    approvals = ExecAuthorizer(
        state_dir=tmp_path, prompt_router=PromptRouter([person], seconds=lambda: 5, ask_in_client=lambda: False)
    )
    with pytest.raises(ToolDenied):
        asyncio.run(approvals.authorise(call("system.run"), argv, cwd=cwd, asker="me"))
    return person.asked[0]


def test_in_a_command_nothing_beyond_ascii_is_left_but_letters_and_their_accents() -> None:
    """Every character there is, where no letter goes before it."""
    left = [chr(code) for code in range(0x80, 0x110000) if escape_command(f"1{chr(code)}") == f"1{chr(code)}"]

    assert {unicodedata.category(char) for char in left} <= {"Lu", "Ll", "Lt", "Lo"}
    assert {unicodedata.bidirectional(char) for char in left} == {"L"}


@pytest.mark.parametrize(
    "text",
    [
        "größe café naïve Łódź straße Ærø",
        "отчёт.txt привет сервер-тест",
        "日本語のファイル",
        "データー",
        "한국어",
        "हिन्दी नमस्ते",
        "ภาษาไทย",
        "தமிழ்",
        "Ελλάδα",
        "e\u0301te\u0301",
        "ls -la '/srv/my files'",
    ],
)
def test_ordinary_words_of_one_alphabet_stay_readable_in_a_command(text: str) -> None:
    assert escape_command(text) == text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("\u0441\u043e\u0440\u0443", "\\u{441}\\u{43e}\\u{440}\\u{443}"),  # all of it reads as Latin
        ("日本file", "\\u{65e5}\\u{672c}file"),
        ("приветмир\u03bf", "".join(f"\\u{{{ord(char):x}}}" for char in "приветмир\u03bf")),
        ("cp '\u05d0' 1 '\u05d1'", "cp '\\u{5d0}' 1 '\\u{5d1}'"),
        ("echo \u2019a; b\u2019", "echo \\u{2019}a; b\\u{2019}"),
    ],
)
def test_other_words_are_escapes_in_a_command(text: str, escaped: str) -> None:
    assert escape_command(text) == escaped


def test_our_own_lines_come_first_and_a_file_writes_none_of_its_own(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    name = "a.py as now\nin home\nasked by you"
    (work / name).write_text("1")

    question = question_about(tmp_path, ["bash", name, "x\nno rule\nasked by the owner"], cwd=work)

    assert question.detail.splitlines()[:3] == [
        f"in {work}",
        "with a.py as now\\u{a}in home\\u{a}asked by you as now",
        "bash 'a.py as now",
    ]
    assert "\n" not in question.lasting
    assert _question_text(question).splitlines()[:2] == [question.why, "asked by me"]
    prompt = _question_from_request({"id": "q", "request": {"command": "x\nin /home", "cwd": "/true\nin /false"}})
    assert prompt["detail"] == "in /true\\u{a}in /false\nx\nin /home"


def test_no_character_without_a_shape_of_its_own_is_left() -> None:
    """Every character there is: what stays has ink, or is a plain space or a new line."""
    blank = ("C", "Z")
    for code in range(0x110000):
        char = chr(code)
        if unicodedata.category(char).startswith(blank) and char not in " \n":
            assert escape_unsafe(f"a{char}") != f"a{char}", hex(code)


def test_a_programs_name_is_ascii() -> None:
    assert escape_program("/opt/\u0441\u043e\u0440\u0443") == "/opt/\\u{441}\\u{43e}\\u{440}\\u{443}"


def test_a_question_stays_within_its_lines() -> None:
    assert escape_line("no rule\n[y]es once") == "no rule\\u{a}[y]es once"


class _Recorder:
    """Where answers go, and what was shown."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, str]] = []
        self.shown: list[str] = []
        self.harness = _QuestionPrompt(self.shown.append)

    def answer(self, id: str, answer: PromptAnswer) -> None:
        self.answers.append((id, answer))
        self.settle(id)

    def ask(self, id: str) -> None:
        words = {"title": "May it?", "detail": id, "why": "no rule", "asker": "me"}
        self.harness.on_message({"question": {"id": id, "always": True, **words}}, self)

    def settle(self, id: str) -> None:
        self.harness.on_message({"settled": id}, self)


@pytest.mark.parametrize("typed", ["y", "yes", "a", "always", "n", ""])
@pytest.mark.parametrize("order", [("ask B", "settle A"), ("settle A", "ask B")])
def test_an_answer_typed_for_a_question_that_is_gone_is_not_for_the_next(order: tuple[str, str], typed: str) -> None:
    here = _Recorder()
    here.ask("A")
    for step in order:
        does, id = step.split()
        (here.ask if does == "ask" else here.settle)(id)

    here.harness.on_line(typed)
    assert here.answers == []
    assert "answer again" in "".join(here.shown)
    here.harness.on_line("y")
    assert here.answers == [("B", "once")]


def test_questions_answered_here_follow_each_other_and_one_settled_behind_changes_nothing() -> None:
    here = _Recorder()
    for id in "ABCD":
        here.ask(id)
    here.settle("C")
    for line in ("y", "n", "a"):
        here.harness.on_line(line)

    assert here.answers == [("A", "once"), ("B", "deny"), ("D", "always")]
