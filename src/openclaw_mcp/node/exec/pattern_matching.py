"""Whether a rule's pattern matches a command: surely, for rules that allow; possibly, for rules that forbid."""

import fnmatch
import os
import re
import shlex
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from .program_powers import LocateProgram, base_name, is_multi_call, may_match_wildcard
from .shell_reader import ParsedCommand, ShellWord

MAX_COMPARED: Final = 1 << 20  # characters of pattern times command; beyond that two texts with gaps count as matching

_WILDCARD_ARGUMENTS: Final = {
    # GNU's -f prints a file's lines as bad dates and -s sets the clock; with others any word without a + sets it.
    "date": re.compile(
        r"\+.*|-[uR]+|-I[a-z]*|--(?:utc|universal|rfc-email|rfc-2822|iso-8601(?:=[a-z]+)?|rfc-3339=[a-z]+|debug)|"
        r"-[dr].+|--(?:date|reference)=.*",
        re.DOTALL,
    )
}
"""The arguments a wildcard may match for programs that can do more than read; a rule must write out any other."""
_VALUE_OPTIONS: Final = {"date": frozenset({"-d", "-r", "--date", "--reference"})}
"""Options of theirs whose next argument is a value."""


def has_wildcard(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


# ---- allow: only certain matches ------------------------------------------------------------------------


IsInstalled = Callable[[str], bool]
"""Whether a program as written is the one its bare name means, in a folder where no workspace puts programs."""


def program_matches(
    pattern: str, command: ParsedCommand, locate: LocateProgram, launch_path: LocateProgram, is_installed: IsInstalled
) -> bool:
    """`launch_path`: the file as which a program is started; a user's own link counts as itself, not as its target."""
    given = command.words[0].text
    wild = has_wildcard(pattern)
    if wild and not may_match_wildcard(given, locate):
        return False
    if "/" in pattern:
        found, place = locate(given), launch_path(given)
        return (
            found is not None
            and place is not None
            and (found == place or not wild)
            and (base_name(given) == base_name(found) or not is_multi_call(found))
            and _path_glob(pattern).fullmatch(os.path.normpath(place)) is not None
        )
    if wild:
        return "/" not in given and _glob(pattern).fullmatch(given) is not None and is_installed(given)
    return base_name(given) == pattern and is_installed(given)


def arguments_match(pattern: str, command: ParsedCommand, program: str = "") -> bool:
    """`program`: the name in the rule; the command may use another."""
    words = command.words[1:]
    if has_wildcard(pattern) and any(
        _exceeds_wildcard(pattern, words, each) for each in (command.words[0].text, program)
    ):
        return False
    if pattern == "*":
        return True
    if any(word.is_dynamic for word in words):
        return False
    line = shlex.join(word.text for word in words)
    if _glob(pattern).fullmatch(line):
        return True
    return pattern.endswith(" *") and line == pattern[:-2]


def _exceeds_wildcard(pattern: str, words: Sequence[ShellWord], program: str) -> bool:
    allowed = _WILDCARD_ARGUMENTS.get(base_name(program))
    if allowed is None:
        return False
    with_value = _VALUE_OPTIONS[base_name(program)]
    written = pattern.split()
    at = 0
    while at < len(words):
        word = words[at]
        plain = allowed.fullmatch(word.text) is not None
        if word.is_dynamic or not (plain or word.text in with_value or word.text in written):
            return True
        # An option decides about its value; an option we don't know is written in the rule.
        has_value = not plain and word.text.startswith("-") and at + 1 < len(words) and not words[at + 1].is_dynamic
        at += 2 if has_value else 1
    return False


# ---- deny and prompt: possible matches -----------------------


@lru_cache(maxsize=4096)
def pattern_program(pattern: str) -> tuple[str, bool]:
    """A pattern's program in lower case, and whether commands of another name may match it."""
    program = pattern.split(maxsplit=1)[0].lower()
    return program, has_wildcard(program) or "/" in program


def program_names(first: str, found: str | None) -> set[str]:
    """The names of a program, in lower case: as written, and those of its file."""
    names = {first.lower(), base_name(first).lower()}
    return names | {found.lower(), base_name(found).lower()} if found else names


def may_match(pattern: str, program: str, arguments: str, command: ParsedCommand, locate: LocateProgram) -> bool:
    first, words = command.words[0].text, command.words[1:]
    found = locate(first)
    names = program_names(first, found)
    if has_wildcard(program):
        if any(_matches_across(pattern, name, words) for name in names):
            return True
        named = any(_glob(program, any_case=True).fullmatch(name) for name in names)
    else:
        named = program.lower() in names or _is_same_file(program, first, found, locate)
    if not named:
        return False
    if arguments in ("", "*") or any(word.is_dynamic for word in words):
        return True
    line = shlex.join(word.text for word in words)
    return _glob(arguments, any_case=True).fullmatch(line) is not None or (
        arguments.endswith(" *") and line.lower() == arguments[:-2].lower()
    )


def _matches_across(pattern: str, name: str, words: Sequence[ShellWord]) -> bool:
    """Whether a pattern with a wildcard in its program part matches across program and arguments: `*--force*`."""
    literal = re.split(r"[*?]", pattern, maxsplit=1)[0]
    if not name.startswith(literal.lower()):
        return False
    if any(word.is_dynamic for word in words):
        # A dynamic word may become any words or none.
        gaps = "".join("*" if word.is_dynamic else f" {_escape_wildcards(shlex.quote(word.text))}" for word in words)
        return _globs_intersect(pattern.lower(), (_escape_wildcards(name) + gaps).lower())
    glob = _glob(pattern, any_case=True)
    texts = (shlex.join(word.text for word in words), " ".join(word.text for word in words))
    return any(glob.fullmatch(f"{name} {text}".strip()) for text in texts)


def _escape_wildcards(text: str) -> str:
    """With characters of the private use area in place of wildcards."""
    return text.replace("*", "\ue000").replace("?", "\ue001")


def _globs_intersect(pattern: str, text: str) -> bool:
    """Whether some text matches both; the only wildcard in `text` is `*`."""
    if len(pattern) * len(text) > MAX_COMPARED:
        return True
    reach = _positions_after_stars(pattern, {0})
    for char in text:
        if char == "*":  # any characters: from here any later position can be reached
            reach = set(range(min(reach), len(pattern) + 1))
            continue
        here = [at for at in reach if at < len(pattern) and pattern[at] in ("*", "?", char)]
        reach = _positions_after_stars(pattern, {at if pattern[at] == "*" else at + 1 for at in here})
        if not reach:
            return False
    return len(pattern) in reach


def _positions_after_stars(pattern: str, positions: set[int]) -> set[int]:
    """The same positions, and those after stars that may match nothing."""
    return positions | {behind for at in positions for behind in range(at + 1, _index_after_stars(pattern, at) + 1)}


def _index_after_stars(pattern: str, at: int) -> int:
    while at < len(pattern) and pattern[at] == "*":
        at += 1
    return at


def _is_same_file(program: str, first: str, found: str | None, locate: LocateProgram) -> bool:
    """Whether a forbidden program is started by another name: `/bin/rm` for `/usr/bin/rm`, or a hard link."""
    if found is None or has_wildcard(program) or "/" not in first + program:
        return False
    own = base_name(first)
    if is_multi_call(found):
        return own.lower() == base_name(program).lower() and locate(program) == found
    if "/" in program and locate(program) == found:
        return True
    # In its usual place a program counts by its own name, even if others share the file.
    return locate(own) != found and _is_hard_link(found, program, locate)


def _is_hard_link(found: str, program: str, locate: LocateProgram) -> bool:
    try:
        if Path(found).stat().st_nlink < 2:
            return False
        meant = locate(program)
        return meant is not None and Path(meant).samefile(found)
    except OSError:
        return False


@lru_cache(maxsize=4096)
def _glob(pattern: str, *, any_case: bool = False) -> re.Pattern[str]:
    # fnmatch's own translation does not backtrack, however many stars there are; we only take its [..] away.
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")), re.IGNORECASE if any_case else 0)


@lru_cache(maxsize=4096)
def _path_glob(pattern: str) -> re.Pattern[str]:
    parts = (
        "[^/]*" if part == "*" else "[^/]" if part == "?" else re.escape(part) for part in re.split(r"([*?])", pattern)
    )
    return re.compile("".join(parts))
