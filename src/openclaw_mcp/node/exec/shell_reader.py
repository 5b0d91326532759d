"""Shell text into the commands it would run. Pure. What can't be read for certain is reported, not guessed.

The text may be meant for sh, bash, dash, ash or ksh; the program of that name may be dash, bash, busybox, ksh93, mksh
or zsh. They disagree in details; so only what all of them read alike is read, and anything else is uncertain. Uncertain
text must not run because of a rule alone.

Shells remove a backslash and the newline after it before they parse the text, so the pair may be in the middle of
anything: `$\\⏎(`. Here it is read only after a blank, where there is nothing to be in the middle of.
"""

import re
from typing import Final

from msgspec import Struct

MAX_TEXT_LENGTH: Final = 64 << 10  # characters; a longer script belongs in a file that can be reviewed
MOST_COMMANDS: Final = 256  # commands in one text; more than a person types
DEEPEST: Final = 16  # substitutions within substitutions


def word_set(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:=,@%+-]+")
_PLAIN_IN_QUOTES: Final = re.compile(r'[^"\\$`]+')
_GLOB_CHARS: Final = frozenset("*?[]~")
_ENDS_WORD: Final = frozenset(" \t\n;&|()<>")
_AMBIGUOUS_CHARS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]|[^\x00-\x7f][\\`]")
"""Characters that some shell or locale reads otherwise, quoted or not: control characters, which shells use internally;
surrogates; a backslash or backquote that GBK, Big5 or Shift-JIS take for half of the character before it."""
_ESCAPES_IN_QUOTES: Final = frozenset('$`"\\')
RESERVED_WORDS: Final = word_set("""
    if then else elif fi for while until do done case esac in select function time coproc { } ! [[ ]]
    foreach end repeat always nocorrect noglob namespace
""")
_DISPLAY_VARIABLE: Final = re.compile(r"LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLORTERM|NO_COLOR|FORCE_COLOR|COLUMNS|LINES")
_DISPLAY_VALUE: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9_.:@,+=-]*")
_SPECIAL_VALUES: Final = {
    "COLUMNS": re.compile("[0-9]{0,5}"),
    "LINES": re.compile("[0-9]{0,5}"),
    "TZ": re.compile(r"(?!.*\.\.)(?:[A-Za-z0-9_<+-][A-Za-z0-9_.:@/,+<>=-]*)?"),
}
"""Values of variables that are more than names. No other may hold a path: C libraries read files named after the
language and the terminal, and a message catalogue can act like a program. A time zone is a path below the
system's own."""
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_VARIABLE: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_REDIRECT: Final = re.compile(r"([0-9]*)(<<<|<<-?|<>|<&|>>|>&|>\||<\(|>\(|<|>)")
_DESCRIPTOR: Final = re.compile(r"[0-9]|-")
_AFTER_DOLLAR: Final = frozenset(("", *" \t\n/.,:%)|;&"))
_AFTER_DOLLAR_IN_QUOTES: Final = _AFTER_DOLLAR | {'"'}
"""Characters that may follow a `$` that is just a `$`."""
_BEGINS_AFTER_DOLLAR: Final = frozenset("'\"({[$`")
_BLANKS: Final = re.compile(r"[ \t]*")
_BLANKS_AND_NEWLINES: Final = re.compile(r"[ \t\n]*")
BASH_NAMES: Final = frozenset({"bash", "rbash"})
_JOINING_OPERATORS: Final = frozenset({"&&", "||", "|", "|&"})
_PIPE_OPERATORS: Final = frozenset({"|", "|&"})


class ShellWord(Struct, frozen=True):
    text: str
    is_dynamic: bool = False
    """Its value is known only when it runs: a variable, a pattern of file names, another command's output."""


class ParsedCommand(Struct, frozen=True):
    """One command as it would be started."""

    words: tuple[ShellWord, ...]
    shell: str | None = None
    """The shell that starts it; None = started directly."""
    has_piped_input: bool = False
    """Its input comes, or may come, from another command."""
    runs_after_others: bool = False
    """Another command of the same text may have run by the time it starts. Those of one pipe start together."""


class ParseResult(Struct, frozen=True):
    commands: tuple[ParsedCommand, ...] = ()
    uncertainties: tuple[str, ...] = ()
    """Why these may not be all commands, or not what they seem. Empty = certain."""


class UncertainCommand(Exception):
    """The text can't be read for certain; the error says why."""


def parse_script(
    text: str, *, shell: str, has_piped_input: bool = False, runs_after_others: bool = False
) -> ParseResult:
    """Every command in `text`, those inside substitutions included. `has_piped_input`: another command writes to the
    shell's own input. `runs_after_others`: another command may have run before."""
    parser = _Parser(text, shell, has_piped_input=has_piped_input, runs_after_others=runs_after_others)
    try:
        parser.parse()
    except UncertainCommand as exc:
        return ParseResult(tuple(parser.commands), (str(exc),))
    return ParseResult(tuple(parser.commands))


def is_harmless_variable(name: str, value: str) -> bool:
    """Whether setting this variable so can't change what a program does, only how its output looks.

    Some shells compute what COLUMNS and LINES are set to, and computing can run commands: these must be numbers.
    """
    return is_display_variable(name) and _SPECIAL_VALUES.get(name, _DISPLAY_VALUE).fullmatch(value) is not None


def is_display_variable(name: str) -> bool:
    """Whether this variable only decides how output looks, set or not."""
    return _DISPLAY_VARIABLE.fullmatch(name) is not None


class _Parser:
    """Parses one text and, through further parsers that share the list of commands, the texts inside it."""

    def __init__(
        self,
        text: str,
        shell: str,
        commands: list[ParsedCommand] | None = None,
        depth: int = 0,
        *,
        has_piped_input: bool,
        runs_after_others: bool,
    ) -> None:
        self.commands: list[ParsedCommand] = [] if commands is None else commands
        self._shell, self._depth, self._has_piped_input = shell, depth, has_piped_input
        self._runs_after_others, self._text = runs_after_others, text
        self._at = 0

    def parse(self) -> None:
        if len(self._text) > MAX_TEXT_LENGTH:
            raise UncertainCommand(f"the command is longer than {MAX_TEXT_LENGTH} characters")
        if self._depth > DEEPEST:
            raise UncertainCommand("commands are nested too deeply")
        if _AMBIGUOUS_CHARS.search(self._text):
            raise UncertainCommand("there is a character in it that shells read differently")
        self._parse_commands(closing="")

    # ---- commands ------------------------------------------------------------------------------------------------

    def _parse_commands(self, *, closing: str) -> None:
        """Commands up to `closing`, which is consumed; the empty string means the end of the text."""
        needed = bool(closing)
        piped, after_others = self._has_piped_input, self._runs_after_others
        while True:
            self._skip_blanks(newlines=True)
            if self._at_end(closing):
                if needed:
                    raise UncertainCommand("a command is missing")
                break
            if self._peek() == "(":
                self._parse_group()
                self._parse_redirects()
            else:
                self._parse_simple_command()
            if self._at_end(closing):
                break
            separator = self._parse_separator()
            needed = separator in _JOINING_OPERATORS
            self._has_piped_input = piped or separator in _PIPE_OPERATORS
            self._runs_after_others = self._runs_after_others or separator not in _PIPE_OPERATORS
        self._has_piped_input, self._runs_after_others = piped, after_others

    def _at_end(self, closing: str) -> bool:
        if self._at == len(self._text):
            if closing:
                raise UncertainCommand(f"a closing {closing} is missing")
            return True
        if self._peek() == closing:
            self._at += 1
            return True
        return False

    def _parse_separator(self) -> str:
        for operator in ("&>", "&|", "&!", ";;", ";&", ";|", "|&"):
            if operator == "|&" and self._shell in BASH_NAMES:
                continue  # a pipe; a coprocess to ksh, nonsense to dash
            if self._text.startswith(operator, self._at):
                raise UncertainCommand(f"{operator} is not understood")
        for operator in ("&&", "||", "|&", ";", "&", "|", "\n"):
            if self._text.startswith(operator, self._at):
                self._at += len(operator)
                return operator
        raise UncertainCommand(f"{self._peek()} is found where a command should end")

    def _parse_group(self) -> None:
        if self._text.startswith("((", self._at):
            raise UncertainCommand("arithmetic is not understood")
        self._at += 1
        self._enter_group()
        self._parse_commands(closing=")")
        self._depth -= 1

    def _parse_redirects(self) -> None:
        """After a group: redirections, and no words."""
        self._skip_blanks()
        while found := _REDIRECT.match(self._text, self._at):
            self._parse_redirect(found)
            self._skip_blanks()

    def _enter_group(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise UncertainCommand("commands are nested too deeply")

    def _parse_simple_command(self) -> None:
        words: list[ShellWord] = []
        assigns = redirected = False
        while True:
            self._skip_blanks()
            if self._peek() in ";&|\n)":  # or at the end, where it is the empty string
                break
            redirect = _REDIRECT.match(self._text, self._at)
            if redirect:
                self._parse_redirect(redirect)
                redirected = True
                continue
            if self._peek() == "(":
                raise UncertainCommand("a function or an array is not understood")
            assigned = None if words else _ASSIGNMENT.match(self._text, self._at)
            word = self._parse_word()
            if assigned is None:
                words.append(word)
            elif word.is_dynamic or not is_harmless_variable(
                assigned[1], word.text[assigned.end() - assigned.start() :]
            ):
                raise UncertainCommand(f"setting {assigned[1]} may change what a command does")
            else:
                assigns = True
        if words:
            self._add_command(tuple(words))
        elif not assigns or redirected:
            raise UncertainCommand(f"{self._peek() or 'the end'} is found where a command should begin")

    def _add_command(self, words: tuple[ShellWord, ...]) -> None:
        first = words[0]
        if first.is_dynamic or not first.text or "=" in first.text:
            raise UncertainCommand("which program runs is decided only when it runs")
        if first.text in RESERVED_WORDS or first.text[0] in "-%":
            raise UncertainCommand(f"{first.text} is a word of the shell's own language")
        if len(self.commands) >= MOST_COMMANDS:
            raise UncertainCommand(f"there are more than {MOST_COMMANDS} commands")
        self.commands.append(ParsedCommand(words, self._shell, self._has_piped_input, self._runs_after_others))

    def _parse_redirect(self, found: re.Match[str]) -> None:
        self._at = found.end()
        operator = found[2]
        if len(found[1]) > 1:
            raise UncertainCommand(f"{found[1][:40]} before {operator} is a number to some shells and a word to others")
        if operator in ("<", ">", ">>", ">&", "<&"):
            self._skip_blanks()
            began = self._at
            target = self._parse_word()
            if operator in (">&", "<&"):
                # As written: a quoted one is a file's name to some shells.
                if _DESCRIPTOR.fullmatch(self._text, began, self._at):
                    return
            elif not target.is_dynamic and target.text == "/dev/null":
                return
        raise UncertainCommand("input or output goes through a file")

    # ---- words ---------------------------------------------------------------------------------------------------

    def _parse_word(self) -> ShellWord:
        text, began, dynamic = self._text, self._at, False
        if text.startswith("=", began):
            raise UncertainCommand("a word that begins with = means a program to some shells")
        parts: list[str] = []
        while self._at < len(text):
            if found := _PLAIN.match(text, self._at):
                parts.append(found[0])
                self._at = found.end()
            elif text[self._at] in _ENDS_WORD:
                break
            else:
                dynamic |= self._parse_word_part(text[self._at], parts)
        if self._at == began:
            raise UncertainCommand("a word is missing")
        return ShellWord("".join(parts), dynamic)

    def _parse_word_part(self, char: str, parts: list[str]) -> bool:
        """Read past a quoted or expanded part of a word; whether its value is known only when it runs."""
        if char == '"':
            return self._parse_double_quotes(parts)
        if char in "$`":
            return self._parse_substitution(parts, quoted=False)
        if char in _GLOB_CHARS:
            parts.append(char)
            self._at += 1
            return True
        if char == "'":
            parts.append(self._parse_single_quotes())
        elif char == "\\":
            parts.append(self._parse_escape())
        else:
            raise UncertainCommand(f"{char!a} outside quotes is not understood")
        return False

    def _parse_single_quotes(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end == -1:
            raise UncertainCommand("a quote is not closed")
        inner = self._text[self._at + 1 : end]
        self._at = end + 1
        return inner

    def _parse_escape(self) -> str:
        following = self._text[self._at + 1 : self._at + 2]
        if not following:
            raise UncertainCommand("the text ends in a backslash")
        if following == "\n":
            raise UncertainCommand("a line is continued in the middle of something")
        if not following.isascii():
            raise UncertainCommand(f"{following!a} outside quotes is not understood")
        self._at += 2
        return following

    def _parse_double_quotes(self, parts: list[str]) -> bool:
        self._at += 1
        text, dynamic = self._text, False
        while self._at < len(text):
            if found := _PLAIN_IN_QUOTES.match(text, self._at):
                parts.append(found[0])
                self._at = found.end()
                continue
            char = text[self._at]
            if char == '"':
                self._at += 1
                return dynamic
            if char in "$`":
                dynamic |= self._parse_substitution(parts, quoted=True)
            elif text.startswith("\\\n", self._at):
                self._skip_continuation()
            elif text[self._at + 1 : self._at + 2] in _ESCAPES_IN_QUOTES:
                parts.append(self._parse_escape())
            else:
                parts.append(char)
                self._at += 1
        raise UncertainCommand("a quote is not closed")

    def _parse_substitution(self, parts: list[str], *, quoted: bool) -> bool:
        """Read past a `$` or a backquote; whether the value is known only when it runs."""
        if self._peek() == "`":
            self._parse_backquotes()
            self._runs_after_others = True  # the commands inside start before everything that follows
            return True
        self._at += 1
        following = self._text[self._at : self._at + 1]
        if following == "(":
            self._parse_group()
            self._runs_after_others = True
            return True
        variable = _VARIABLE.match(self._text, self._at)
        if variable:
            self._at = variable.end()
            after = self._text[self._at : self._at + 1]
            if after == "[":
                raise UncertainCommand("a subscript is not understood")
            if variable[0] == "$" and after in _BEGINS_AFTER_DOLLAR and not (quoted and after == '"'):
                raise UncertainCommand(f"$${after} is one thing to some shells and two to others")
            return True
        if following not in (_AFTER_DOLLAR_IN_QUOTES if quoted else _AFTER_DOLLAR):
            raise UncertainCommand(f"${following} is not understood")
        parts.append("$")
        return False

    def _parse_backquotes(self) -> None:
        end = self._text.find("`", self._at + 1)
        if end == -1:
            raise UncertainCommand("a backquote is not closed")
        inner = self._text[self._at + 1 : end]
        if "\\" in inner:
            raise UncertainCommand("a backslash inside backquotes is not understood")
        self._at = end + 1
        _Parser(
            inner,
            self._shell,
            self.commands,
            self._depth + 1,
            has_piped_input=self._has_piped_input,
            runs_after_others=self._runs_after_others,
        ).parse()

    # ---- characters ----------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_blanks(self, *, newlines: bool = False) -> None:
        blanks = _BLANKS_AND_NEWLINES if newlines else _BLANKS
        while True:
            if found := blanks.match(self._text, self._at):
                self._at = found.end()
            if not self._text.startswith("\\\n", self._at):
                return
            self._skip_continuation()

    def _skip_continuation(self) -> None:
        """Read past the end of a line that is continued in the next, if nothing can have begun before it."""
        if self._at and self._text[self._at - 1] not in " \t\n":
            raise UncertainCommand("a line is continued in the middle of something")
        self._at += 2
