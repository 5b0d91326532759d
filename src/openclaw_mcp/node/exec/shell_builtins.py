"""Commands a shell runs itself, and what they may do with their arguments. Pure.

A builtin is no program: it may run text, change what the words after it mean, or compute a word as arithmetic, and
computing `a[$(touch x)]` runs `touch`, quoted or not. Shells differ in their builtins: those of all count.
"""

import re
from collections.abc import Sequence
from typing import Final

from .shell_reader import BASH_NAMES, ParsedCommand, ShellWord, UncertainCommand, word_set

LITERAL_BUILTINS: Final = word_set("""
    : echo true false pwd cd chdir type which where whence times umask dirs help caller cat realpath rename mknod
    basename dirname cp cut ln mktemp mv getconf log kill sleep command exec
""")
"""What they are given is text or the name of a file; `command` and `exec` are opened like other wrappers."""

NUMERIC_BUILTINS: Final = word_set("exit return break continue shift logout bye")
LIMIT_BUILTINS: Final = word_set("ulimit limit unlimit")
"""Some shells compute their words: only numbers are read, and options where there are any."""

STATE_CHANGING_BUILTINS: Final = word_set("""
    - . alias autoload bg bind bindkey builtin compadd comparguments compcall compctl compdescribe compfiles compgen
    compgroups complete compopt compound compquote compset comptags comptry compvalues declare disable disown echotc
    echoti emulate enable enum eval export fc fg float functions getln getopts global hash hist history integer jobs
    let local login mapfile nameref noglob popd print private pushd pushln r read readarray readonly redirect rehash
    run-help sched set setopt shopt source stop suspend trap ttyctl typeset unalias unfunction unhash unset unsetopt
    vared wait which-command zcompile zformat zle zmodload zparseopts zregexparse zstyle alarm vmstate
""")
"""They run text, or change what the words after them mean."""

LAUNCHING_BUILTINS: Final = frozenset({"command", "builtin", "exec"})
"""Words of a shell that start what follows them."""

_MKSH_ALIASES: Final = word_set("autoload functions hash history integer local login nameref r type")
"""What mksh replaces by other words, after `nohup` too."""

_OPTIONLESS_BUILTINS: Final = frozenset({"command", "exec"})
"""To some shells what looks like an option is the program; `-p`, `-c` and `-l` have the program found elsewhere, or a
shell read files of its own."""

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{0,18})?")
_OPTION: Final = re.compile(r"-[A-Za-z]+")
_NUMERIC_OPERATORS: Final = word_set("-eq -ne -lt -le -gt -ge -t")
_TEST_OPERATORS: Final = word_set("-a -b -c -d -e -f -g -h -k -n -o -p -r -s -u -w -x -z -G -L -N -O -S -ef -nt -ot")
_STRING_FORMAT: Final = re.compile(r"(?:[^%\\]|\\[abefnrtv\\\"']|%%|%-?[0-9]{0,4}(?:\.[0-9]{1,4})?[sbc])*")
_NUMBER_FORMAT: Final = re.compile(
    r"(?:[^%\\]|\\[abefnrtv\\\"']|%%|%[ +#0-]?[0-9]{0,4}(?:\.[0-9]{1,4})?[sbcdiouxXeEfgG])*"
)


def check_builtin(command: ParsedCommand) -> None:
    """Raise UncertainCommand if a shell may do more with the words of `command` than take them literally."""
    if command.shell is None:
        return
    name, given = command.words[0].text, command.words[1:]
    if name == "builtin" and command.shell in BASH_NAMES:
        return
    if name in STATE_CHANGING_BUILTINS:
        raise UncertainCommand(f"{name} can change what the shell does next")
    if (
        (name in ("test", "[") and not _compares_only(given))
        or (name == "printf" and not _prints_only(given))
        or (name in NUMERIC_BUILTINS and not all(_matches(word, _NUMBER) for word in given))
        or (name in LIMIT_BUILTINS and not all(_matches(word, _NUMBER) or _matches(word, _OPTION) for word in given))
        or (name == "nohup" and given and given[0].text in _MKSH_ALIASES)
        or (name in _OPTIONLESS_BUILTINS and given and given[0].text.startswith("-"))
        # exec starts programs, in mksh builtins too: a shell's own word after it is the one or the other.
        or (name == "exec" and given and given[0].text in LAUNCHING_BUILTINS)
    ):
        raise UncertainCommand(f"{name} may evaluate its words")


def _compares_only(arguments: Sequence[ShellWord]) -> bool:
    """Whether all shells only compare strings or look at files, or compare what already are numbers."""
    if any(word.is_dynamic for word in arguments):
        return False
    texts = [word.text for word in arguments]
    if not _NUMERIC_OPERATORS.isdisjoint(texts):
        return all(
            text in _NUMERIC_OPERATORS or text in _TEST_OPERATORS or text in ("!", "]") or _WHOLE_NUMBER.fullmatch(text)
            for text in texts
        )
    return all(not text.startswith("-") or text in _TEST_OPERATORS or _WHOLE_NUMBER.fullmatch(text) for text in texts)


def _prints_only(arguments: Sequence[ShellWord]) -> bool:
    """Whether all shells only print: no variable is set, and nothing is computed that isn't a number already."""
    if any(word.is_dynamic for word in arguments) or not arguments or arguments[0].text.startswith("-"):
        return False
    format, *values = arguments
    if not values or _STRING_FORMAT.fullmatch(format.text):
        return True
    return _NUMBER_FORMAT.fullmatch(format.text) is not None and all(_matches(value, _NUMBER) for value in values)


def _matches(word: ShellWord, pattern: re.Pattern[str]) -> bool:
    return not word.is_dynamic and pattern.fullmatch(word.text) is not None
