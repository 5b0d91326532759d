"""The commands that a program may start because of its arguments. For rules that forbid. Pure.

It errs on the safe side: of `taskset 1 rm x` both `1 rm x` and `rm x` are candidates, since options differ from program
to program. So nothing may be allowed because of it.
"""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from .program_powers import base_name, launch_argument_index
from .shell_reader import ParsedCommand, ShellWord, parse_script
from .wrappers import unwrap

MAX_CANDIDATES: Final = 64  # of one command; with more a person has to be asked
DEEPEST: Final = 4  # texts within texts

_SHELL_SYNTAX: Final = re.compile(r"[\s;|&`$()<>]")
_NAME: Final = re.compile(r"[\w./+@-]+")
_ANY_WORD: Final = ShellWord("", is_dynamic=True)


class StartCandidates(Struct, frozen=True):
    commands: tuple[ParsedCommand, ...] = ()
    certain: bool = True
    """False when which program it starts is decided only when it runs, or there are too many."""
    names: frozenset[str] = frozenset()
    """The names among the arguments before those, and in the values of options, in lower case."""


def find_start_candidates(command: ParsedCommand, names: Sequence[str]) -> StartCandidates:
    """The commands that `command`, a program of these names, may start."""
    given = [word.text for word in command.words[1:]]
    start = 1 + min(launch_argument_index(name, given) for name in names)
    finder = _CandidateFinder()
    finder.find(command.words[start:], depth=0)
    first = next((word for word in command.words[start:] if word.is_dynamic or not word.text.startswith("-")), None)
    certain = first is None or not first.is_dynamic
    few = len(finder.commands) <= MAX_CANDIDATES
    return StartCandidates(
        tuple(finder.commands[:MAX_CANDIDATES]), certain and few, _names_in_words(command.words[1:start])
    )


def _names_in_words(words: Sequence[ShellWord]) -> frozenset[str]:
    texts = [word.text.lower() for word in words]
    plain = [text for text in texts if not text.startswith("-")]
    values = [name for text in texts if text.startswith("-") for name in _NAME.findall(text.partition("=")[2])]
    return frozenset(each for name in (*plain, *values) for each in (name, base_name(name)))


class _CandidateFinder:
    def __init__(self) -> None:
        self.commands: list[ParsedCommand] = []

    def find(self, words: Sequence[ShellWord], depth: int) -> None:
        for at, word in enumerate(words):
            if len(self.commands) > MAX_CANDIDATES:
                return
            text = _program_value(word.text)
            if not text or word.is_dynamic:
                continue
            if _SHELL_SYNTAX.search(text):
                self._parse_text(text, depth)
            else:
                self.commands.append(ParsedCommand((ShellWord(text), *words[at + 1 :])))

    def _parse_text(self, text: str, depth: int) -> None:
        """Each command of a text for a shell; where it can't be read for certain, each name in it."""
        parsed = parse_script(text, shell="sh")  # noqa: S604  only parsed
        unwrapped = unwrap(parsed.commands)
        commands = [*unwrapped.commands, *unwrapped.deny_candidates]
        self.commands += commands
        if parsed.uncertainties or unwrapped.uncertainties:
            self.commands += [
                ParsedCommand((ShellWord(name), _ANY_WORD)) for name in dict.fromkeys(_NAME.findall(text))
            ]
        if depth < DEEPEST:
            for command in commands:
                start = 1 + launch_argument_index(command.words[0].text, [word.text for word in command.words[1:]])
                self.find(command.words[start:], depth + 1)


def _program_value(word: str) -> str:
    """The part of a word that may name a program: the word itself, or an option's value."""
    return word.partition("=")[2] if word.startswith("-") else word
