"""Long texts in parts: nothing lost, nothing too long, every block of code whole in itself."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openclaw_mcp.gateway.channels.chunks import split_text

WORDS = st.text("abc de.\n", max_size=60)
CODE = st.builds(
    lambda mark, language, body: f"\n{mark}{language}\n{body}\n{mark}\n",
    st.sampled_from(["```", "~~~", "````"]),
    st.sampled_from(["", "python", "c++"]),
    st.text("xyz =\n", max_size=120),
)
TEXTS = st.lists(WORDS | CODE, max_size=8).map("".join)


def fences(part: str) -> list[str]:
    return [line for line in part.splitlines() if re.match(r" {0,3}(`{3,}|~{3,})", line)]


@given(TEXTS, st.integers(40, 200))
@example("a" * 100, 40)
@example("```python\n" + "x = 1\n" * 40 + "```", 60)
def test_no_part_is_too_long_and_no_word_is_lost(text: str, limit: int) -> None:
    parts = split_text(text, limit)
    assert all(0 < len(part) <= limit for part in parts)

    def letters(texts: list[str]) -> str:
        lines = (line for one in texts for line in one.splitlines() if not re.match(r" {0,3}(`{3,}|~{3,})", line))
        return "".join("".join(lines).split())

    assert letters(parts) == letters([text])


@given(TEXTS, st.integers(60, 200))
def test_every_part_closes_the_code_it_opens(text: str, limit: int) -> None:
    for part in split_text(text, limit):
        open_mark = ""
        for line in fences(part):
            marks = line.strip()
            if not open_mark:
                open_mark = re.match(r"`+|~+", marks)[0]  # type: ignore[index]  # fences() kept only such lines
            elif set(marks) == {open_mark[0]} and len(marks) >= len(open_mark):
                open_mark = ""
        assert not open_mark


def test_a_block_goes_on_in_its_own_language() -> None:
    code = "\n".join(f"line_{n} = {n}" for n in range(20))
    parts = split_text(f"```python\n{code}\n```", 100)
    assert len(parts) > 2
    assert all(part.startswith("```python\n") and part.endswith("\n```") for part in parts)


def test_text_before_a_block_is_a_part_of_its_own() -> None:
    parts = split_text("An explanation.\n\n```sh\n" + "echo hi\n" * 10 + "```", 60)
    assert parts[0] == "An explanation."
    assert parts[1].startswith("```sh\necho hi")


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("short", 10, ["short"]),
        ("exactly ten", 11, ["exactly ten"]),
        ("", 10, []),
        ("  \n ", 10, []),
        ("one two three", 8, ["one two", "three"]),
        ("line one\nline two", 12, ["line one", "line two"]),
        ("para one\n\npara two\nmore", 16, ["para one", "para two\nmore"]),
        ("unbreakable", 5, ["unbre", "akabl", "e"]),
    ],
)
def test_where_it_breaks(text: str, limit: int, parts: list[str]) -> None:
    assert split_text(text, limit) == parts
