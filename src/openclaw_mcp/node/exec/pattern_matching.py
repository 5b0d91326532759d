"""Whether a rule's pattern fits a command: surely, for what allows; possibly, for what forbids."""

import fnmatch
import os
import re
import shlex
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from .program_powers import Locate, is_multi_call, may_be_meant_by_a_wildcard, name_of
from .shell_reader import Piece, Word

MOST_COMPARED: Final = 1 << 20  # characters of pattern times command; beyond that two texts with gaps count as fitting

_BY_WILDCARD: Final = {
    # GNU's -f prints a file's lines as bad dates and -s sets the clock; with others any word without a + sets it.
    "date": re.compile(
        r"\+.*|-[uR]+|-I[a-z]*|--(?:utc|universal|rfc-email|rfc-2822|iso-8601(?:=[a-z]+)?|rfc-3339=[a-z]+|debug)|"
        r"-[dr].+|--(?:date|reference)=.*",
        re.DOTALL,
    ),
}
"""All a wildcard means of the words of programs that look and can do more: what else they are given, a rule writes."""
_WITH_A_VALUE: Final = {"date": frozenset({"-d", "-r", "--date", "--reference"})}
"""Options of theirs whose next word is a value, whatever it is."""


def is_wild(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


# ---- allow: only what certainly fits --------------------------------------------------------------------


Installed = Callable[[str], bool]
"""Whether a program as written is the one its bare name means, in a folder where no workspace puts programs."""


def surely_program(pattern: str, piece: Piece, locate: Locate, sure: Locate, installed: Installed) -> bool:
    """`sure`: the file as which a program is started; a link of somebody's own is not what it leads to."""
    given = piece.words[0].text
    wild = is_wild(pattern)
    if wild and not may_be_meant_by_a_wildcard(given, locate):
        return False
    if "/" in pattern:
        found, place = locate(given), sure(given)
        return (
            found is not None
            and place is not None
            and (found == place or not wild)
            and (name_of(given) == name_of(found) or not is_multi_call(found))
            and _path_glob(pattern).fullmatch(os.path.normpath(place)) is not None
        )
    if wild:
        return "/" not in given and _glob(pattern).fullmatch(given) is not None and installed(given)
    return name_of(given) == pattern and installed(given)


def surely_arguments(pattern: str, piece: Piece, program: str = "") -> bool:
    """`program`: what the rule calls the program, which may go by another name."""
    words = piece.words[1:]
    if is_wild(pattern) and any(_is_beyond_a_wildcard(pattern, words, each) for each in (piece.words[0].text, program)):
        return False
    if pattern == "*":
        return True
    if any(word.open for word in words):
        return False
    line = shlex.join(word.text for word in words)
    if _glob(pattern).fullmatch(line):
        return True
    return pattern.endswith(" *") and line == pattern[:-2]


def _is_beyond_a_wildcard(pattern: str, words: Sequence[Word], program: str) -> bool:
    meant = _BY_WILDCARD.get(name_of(program))
    if meant is None:
        return False
    valued = _WITH_A_VALUE[name_of(program)]
    written = pattern.split()
    at = 0
    while at < len(words):
        word = words[at]
        plain = meant.fullmatch(word.text) is not None
        if word.open or not (plain or word.text in valued or word.text in written):
            return True
        # What an option is given is for the option to say; one we don't know, the rule has written.
        has_value = not plain and word.text.startswith("-") and at + 1 < len(words) and not words[at + 1].open
        at += 2 if has_value else 1
    return False


# ---- deny, and what a prompt is for: whatever might fit ------


@lru_cache(maxsize=4096)
def program_of(pattern: str) -> tuple[str, bool]:
    """A pattern's program in lower case, and whether any of the commands it is for may go by another name."""
    program = pattern.split(maxsplit=1)[0].lower()
    return program, is_wild(program) or "/" in program


def names_of(first: str, found: str | None) -> set[str]:
    """The names a program as written goes by, in lower case: its own and those of its file."""
    names = {first.lower(), name_of(first).lower()}
    return names | {found.lower(), name_of(found).lower()} if found else names


def may_match(whole: str, program: str, arguments: str, piece: Piece, locate: Locate) -> bool:
    first, words = piece.words[0].text, piece.words[1:]
    found = locate(first)
    names = names_of(first, found)
    if is_wild(program):
        if any(_spans(whole, name, words) for name in names):
            return True
        named = any(_glob(program, any_case=True).fullmatch(name) for name in names)
    else:
        named = program.lower() in names or _same_file(program, first, found, locate)
    if not named:
        return False
    is_open = any(word.open for word in words)
    if arguments in ("", "*") or is_open:
        return True
    line = shlex.join(word.text for word in words)
    return _glob(arguments, any_case=True).fullmatch(line) is not None or (
        arguments.endswith(" *") and line.lower() == arguments[:-2].lower()
    )


def _spans(whole: str, name: str, words: Sequence[Word]) -> bool:
    """Whether a pattern with a wildcard in its program part fits across program and arguments: `*--force*`."""
    literal = re.split(r"[*?]", whole, maxsplit=1)[0]
    if not name.startswith(literal.lower()):
        return False
    if any(word.open for word in words):
        # What is open may be any words or none.
        gaps = "".join("*" if word.open else f" {_escaped(shlex.quote(word.text))}" for word in words)
        return _meet(whole.lower(), (_escaped(name) + gaps).lower())
    glob = _glob(whole, any_case=True)
    texts = (shlex.join(word.text for word in words), " ".join(word.text for word in words))
    return any(glob.fullmatch(f"{name} {text}".strip()) for text in texts)


def _escaped(text: str) -> str:
    """With characters nobody writes for those that would be wildcards."""
    return text.replace("*", "\ue000").replace("?", "\ue001")


def _meet(pattern: str, text: str) -> bool:
    """Whether some text fits both; the only wildcard in `text` is `*`."""
    if len(pattern) * len(text) > MOST_COMPARED:
        return True
    reach = _onward(pattern, {0})
    for char in text:
        if char == "*":  # any characters: from wherever we are, any later place can be reached
            reach = set(range(min(reach), len(pattern) + 1))
            continue
        here = [at for at in reach if at < len(pattern) and pattern[at] in ("*", "?", char)]
        reach = _onward(pattern, {at if pattern[at] == "*" else at + 1 for at in here})
        if not reach:
            return False
    return len(pattern) in reach


def _onward(pattern: str, reach: set[int]) -> set[int]:
    """The same places, and those behind the stars that may stand for nothing."""
    return reach | {behind for at in reach for behind in range(at + 1, _past_stars(pattern, at) + 1)}


def _past_stars(pattern: str, at: int) -> int:
    while at < len(pattern) and pattern[at] == "*":
        at += 1
    return at


def _same_file(program: str, first: str, found: str | None, locate: Locate) -> bool:
    """Whether a forbidden program is started by another of its names: `/bin/rm` for `/usr/bin/rm`, or a hard link."""
    if found is None or is_wild(program) or "/" not in first + program:
        return False
    own = name_of(first)
    if is_multi_call(found):
        return own.lower() == name_of(program).lower() and locate(program) == found
    if "/" in program and locate(program) == found:
        return True
    # In its usual place a program goes by its own name, whoever shares the file with it.
    return locate(own) != found and _is_linked(found, program, locate)


def _is_linked(found: str, program: str, locate: Locate) -> bool:
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
