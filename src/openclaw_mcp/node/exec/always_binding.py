"""What *always* binds a command to besides its text: the folder it runs in and the files it names, by their digests.

A rule remembered from an answer holds while all of that is as it was. The files that those files read are not checked.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from msgspec import Struct

from .always_offer import (
    DATA_ONLY_PROGRAMS,
    SAFE_SORT_OPTIONS,
    expand_shebang,
    has_harmless_shebang,
    interpreter_script,
    is_inert,
    is_read_only_git,
    reads_shebang,
)
from .digests import FOLDER, UNREADABLE, FileDigests
from .file_operands import NamedFiles, OperandScanner, ProgramFile, ScanLimitReached
from .implicit_files import runs_folder_code
from .program_locator import ProgramLocator
from .program_powers import base_name
from .rules import CommandBinding
from .shell_reader import ParsedCommand, ShellWord, word_set

MAX_FILES: Final = 64  # named by one command

_TAKES_INPUT_AS_DATA: Final = DATA_ONLY_PROGRAMS - word_set("uniq xxd")
"""Programs that neither run their piped input nor write it to a file."""
_SORT_PROGRAMS: Final = word_set("sort uniq")
_FOLDER_CHANGERS: Final = word_set("cd pushd popd chdir")
_FIND_FOLDER_ACTIONS: Final = word_set("-execdir -okdir")


def _changes_folder(command: ParsedCommand) -> bool:
    """Whether it may make itself or others run in another folder."""
    name = base_name(command.words[0].text)
    return name in _FOLDER_CHANGERS or (
        name == "find" and any(word.text in _FIND_FOLDER_ACTIONS for word in command.words)
    )


def _has_literal_folder(command: ParsedCommand) -> bool:
    """Whether the folder it changes to is written out."""
    given = command.words[1:]
    return (
        base_name(command.words[0].text) != "find"
        and len(given) == 1
        and not given[0].is_dynamic
        and given[0].text != "-"
    )


class CommandFiles(Struct, frozen=True):
    """The files of a command, for the person who approves it."""

    files: dict[str, str]
    """By path and digest."""
    complete: bool
    """The form of the command shows what it loads and starts: these files, and the files that they read."""


class OperandFiles:
    """The files that the commands of one decision name, in one folder. Each is read once, all within bounds."""

    def __init__(self, cwd: Path | None, locator: ProgramLocator, commands: Sequence[ParsedCommand]) -> None:
        self._cwd, self._locator, self._commands = cwd, locator, commands
        self._digests = FileDigests()
        self._scanner = OperandScanner(self._digests)

    @cached_property
    def folder(self) -> str:
        """Links followed."""
        return os.path.realpath(self._cwd or Path.cwd())

    @cached_property
    def _folder_changers(self) -> list[ParsedCommand]:
        return [piece for piece in self._commands if _changes_folder(piece)]

    def bind(self, command: ParsedCommand) -> CommandBinding | None:
        """What `command` is bound to when it runs now; None when even its folder or its input is not known."""
        texts = tuple(word.text for word in command.words)
        if command.has_piped_input and not self._takes_input_as_data(texts):
            return None
        by_name = "/" not in texts[0] and self._locator.is_on_path(texts[0])
        program = None if by_name else self._locator.launch_path(texts[0])
        if self._only_reads(command):
            return CommandBinding(self.folder, {}, program)
        return None if self._folder_changers else CommandBinding(self.folder, self._files_to_bind(command), program)

    def snapshot(self, commands: Sequence[ParsedCommand], full_command: ParsedCommand | None) -> CommandFiles:
        """Every file the commands name, in each folder they may run in. `commands`: those a person is asked about.
        `full_command`: all the words, where text can't be read for certain."""
        open_whole = (
            [ParsedCommand(tuple(ShellWord(word.text, is_dynamic=True) for word in full_command.words))]
            if full_command
            else []
        )
        pieces = (*self._commands, *open_whole)
        named = {piece: [self._scan(piece, self.folder)] for piece in pieces}
        moving = [word for piece in (*self._folder_changers, *open_whole) for word in piece.words[1:]]
        folders, sure = self._scanner.reachable_folders(self.folder, moving) if moving else ([self.folder], True)
        for piece in pieces:
            named[piece] += [self._scan(piece, folder) for folder in folders[1:]]
        files = {path: self._digests.digest(path) for each in named.values() for found in each for path in found.paths}
        running = [piece for piece in commands if not self._only_reads(piece)]
        known = full_command is None and (
            not running or (sure and all(map(_has_literal_folder, self._folder_changers)))
        )
        plain = known and all(self._is_self_contained(piece) for piece in running)
        return CommandFiles(files, plain and all(_is_fully_known(piece, named[piece], files) for piece in running))

    # ---- of one command ----------------------------------------------------------------------------------------

    def _scan(self, command: ParsedCommand, folder: str) -> NamedFiles:
        given = command.words[0].text
        own = None if self._locator.is_on_path(given) else self._locator.launch_path(given)
        return self._scanner.scan(folder, command.words, ProgramFile(self._locator.real_path(given), own))

    def _only_reads(self, command: ParsedCommand) -> bool:
        given = command.words[0].text
        return base_name(given) in DATA_ONLY_PROGRAMS and self._locator.is_genuine(given)

    def _is_self_contained(self, command: ParsedCommand) -> bool:
        """Whether the form of a command shows what it loads and starts. *Always* depends on this alone."""
        argv = [word.text for word in command.words]
        if self._locator.is_genuine(argv[0]):
            return is_inert(argv) or is_read_only_git(argv) or self._runs_script(argv)
        file = None if self._locator.is_on_path(argv[0]) else self._locator.real_path(argv[0])
        content = self._digests.read_content(file) if file else None
        started = expand_shebang(content, [file, *argv[1:]]) if file and content else None
        return started is not None and self._locator.is_genuine(started[0]) and self._runs_script(started)

    def _runs_script(self, argv: Sequence[str]) -> bool:
        """Whether this is an interpreter with a script that exists and is no build tool or test runner."""
        script = interpreter_script(argv)
        if script is None or runs_folder_code(script):
            return False
        try:
            found = list(self._scanner.find_existing_path(self.folder, script))
        except ScanLimitReached:
            return False
        if not found or self._digests.digest(found[0]) in (FOLDER, UNREADABLE):
            return False
        if not reads_shebang(argv[0]):
            return True
        content = self._digests.read_content(found[0])
        return content is not None and has_harmless_shebang(argv[0], content)

    def _files_to_bind(self, command: ParsedCommand) -> dict[str, str] | None:
        """None when not all are known, or another command may change them before this one starts."""
        if command.runs_after_others or not self._is_self_contained(command):
            return None
        named = self._scan(command, self.folder)
        if not named.complete or len(named.paths) > MAX_FILES:
            return None
        files = {path: self._digests.digest(path) for path in named.paths}
        return None if UNREADABLE in files.values() else files

    def _takes_input_as_data(self, texts: Sequence[str]) -> bool:
        """Whether a program surely neither runs nor stores its piped input."""
        name = base_name(texts[0])
        if not self._locator.is_genuine(texts[0]):
            return False
        if name in _SORT_PROGRAMS:
            return all(SAFE_SORT_OPTIONS.fullmatch(text) for text in texts[1:])
        return name in _TAKES_INPUT_AS_DATA or self._runs_script(texts)


def _is_fully_known(command: ParsedCommand, named: Sequence[NamedFiles], files: dict[str, str]) -> bool:
    if any(word.is_dynamic for word in command.words):
        return False
    return all(found.complete and all(files[path] != UNREADABLE for path in found.paths) for found in named)
