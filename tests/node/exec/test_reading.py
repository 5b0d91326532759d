"""How shell text is read: the commands it would start, what of each is open, which are fed and which start later; and
where it is not read for certain, why."""

import shlex
from collections.abc import Callable

import pytest

from openclaw_mcp.node.exec.shell_reader import ParsedCommand, ShellWord, parse_script

READ = [
    # ---- words and quotes ----
    (" echo\ta  b ", "echo a b"),
    ("echo 'a b' \"c d\" e\\ f", "echo 'a b' 'c d' 'e f'"),
    ('echo "a\\$b\\`c\\"d\\\\e\\f"', "echo 'a$b`c\"d\\e\\f'"),
    ("echo '' \"\"", "echo '' ''"),
    ("echo '$x `ls` \\'", "echo '$x `ls` \\'"),
    ("echo \\$x \\* \\;", "echo '$x' '*' ';'"),
    ('echo "gr\u00fc\u00df"', "echo 'gr\u00fc\u00df'"),
    ("echo a=ls LANG=C", "echo a=ls LANG=C"),
    ("echo \\\tb", "echo '\tb'"),
    # ---- what is open ----
    ("echo $x ${y} $1 $@ $? $$ $! $- $# $*", "echo <> <> <> <> <> <> <> <> <> <>"),
    ('echo "$x" a"$x"b', "echo <> <ab>"),
    ("echo * ? [a] ~ a*b", "echo <*> <?> <[a]> <~> <a*b>"),
    ("echo '*' \"?\"", "echo '*' '?'"),
    ('echo *"a" "a"* $x"a" "$x"a a', "echo <*a> <a*> <a> <a> a"),
    ('echo "$$" "$$"x', "echo <> <x>"),
    ("echo $ a$ $/ $. $, $: $%", "echo '$' 'a$' '$/' '$.' '$,' '$:' '$%'"),
    ("echo $", "echo '$'"),
    ('echo "$" "a$" "$ "', "echo '$' 'a$' '$ '"),
    # ---- one after the other, and together ----
    ("", ""),
    ("\n \n", ""),
    ("echo a;", "echo a"),
    ("echo a &", "echo a"),
    ("echo a\n\n ls\n", "echo a / then ls"),
    ("echo a; ls & id", "echo a / then ls / then id"),
    ("echo a && ls || id", "echo a / then ls / then id"),
    ("echo a &&\n ls", "echo a / then ls"),
    ("echo a | cat | wc", "echo a / fed cat / fed wc"),
    ("echo a |\n\n cat", "echo a / fed cat"),
    ("echo a | cat; ls", "echo a / fed cat / then ls"),
    ("echo a; ls | cat", "echo a / then ls / then fed cat"),
    ("echo a | cat && ls | wc", "echo a / fed cat / then ls / then fed wc"),
    # ---- groups ----
    ("(echo a)", "echo a"),
    ("(\necho a\n)\n", "echo a"),
    ("(echo a;)", "echo a"),
    ("( echo a ) ; ls", "echo a / then ls"),
    ("(echo a; ls) | cat", "echo a / then ls / fed cat"),
    ("(echo a | cat); ls", "echo a / fed cat / then ls"),
    ("cat | (ls; id)", "cat / fed ls / then fed id"),
    ("cat | (ls | id); wc", "cat / fed ls / fed id / then wc"),
    ("(echo a) >/dev/null 2>&1 ; ls", "echo a / then ls"),
    ("; ".join(["(ls)"] * 20), " / ".join(["ls", *["then ls"] * 19])),
    # ---- commands inside words ----
    ("echo $(ls) b", "ls / then echo <> b"),
    ("echo a$(ls)b", "ls / then echo <ab>"),
    ("echo $(ls; id)", "ls / then id / then echo <>"),
    ("echo $(ls | wc); id", "ls / fed wc / then echo <> / then id"),
    ("echo $(ls) $(id)", "ls / then id / then echo <> <>"),
    ('echo "$(ls)$(id)"', "ls / then id / then echo <>"),
    ("cat | echo $(ls) | wc", "cat / fed ls / then fed echo <> / then fed wc"),
    ("echo $(ls $(id))", "id / then ls <> / then echo <>"),
    ("(echo $(ls)) | cat", "ls / then echo <> / fed cat"),
    ("echo `ls` b", "ls / then echo <> b"),
    ("echo `` b", "then echo <> b"),
    ('echo "a`ls`b"', "ls / then echo <ab>"),
    ("echo `ls; id`; wc", "ls / then id / then echo <> / then wc"),
    ("echo `ls` `id`", "ls / then id / then echo <> <>"),
    ("cat | echo `ls | wc`", "cat / fed ls / fed wc / then fed echo <>"),
    ("cat | echo `ls; wc`", "cat / fed ls / then fed wc / then fed echo <>"),
    # ---- variables that are about looks ----
    ("LANG=C", ""),
    ("LANG=C TZ=UTC echo x", "echo x"),
    ("LANG='C' LC_ALL= echo x", "echo x"),
    ("LANG=C; echo x", "then echo x"),
    # ---- redirections that touch no file ----
    ("echo a >/dev/null b 2>&1", "echo a b"),
    ("echo a > /dev/null >>/dev/null </dev/null", "echo a"),
    ('echo a >"/dev/null"', "echo a"),
    ("echo a >&2 2>&- <&0 >& 1", "echo a"),
    (">/dev/null echo a", "echo a"),
    ("2>&1 LANG=C echo a", "echo a"),
    # ---- lines that go on ----
    ("\\\necho a", "echo a"),
    ("echo \\\nb \\\n \\\n c", "echo b c"),
    ("echo \\\n\\\nb", "echo b"),
    ("echo a \\\n; ls", "echo a / then ls"),
    ("echo a | \\\n cat", "echo a / fed cat"),
    ('echo "a \\\nb" "\\\\\n"', "echo 'a b' '\\\n'"),
    ("echo '\\\n'", "echo '\\\n'"),
    ("echo \\\\\nls", "echo '\\' / then ls"),
]

UNREAD = {
    "a closing ) is missing": ["(echo a", "echo $(ls", "echo $(ls;", "(echo a; (ls)", "("],
    "a command is missing": [
        "echo a &&", "echo a ||", "echo a |", "echo a |\n", "()", "( )", "echo $()", "(echo a &&)", "echo $(ls |)",
    ],
    "&> is not understood": ["echo a &>/dev/null"],
    "&| is not understood": ["echo a &| ls"],
    "&! is not understood": ["echo a &! ls"],
    ";; is not understood": ["echo a;; ls"],
    ";& is not understood": ["echo a ;& ls"],
    ";| is not understood": ["echo a ;| ls"],
    "|& is not understood": ["echo a |& ls"],
    ") is found where a command should end": ["echo a)", "(echo a))", "echo $(ls))"],
    "l is found where a command should end": ["(echo a) ls"],
    "( is found where a command should end": ["(echo a)(ls)", "(echo a) (ls)"],
    "; is found where a command should begin": ["; ls", "echo a ; ; ls", ">/dev/null; ls", "echo a && ; ls"],
    "| is found where a command should begin": ["| ls", "echo a && | ls"],
    "& is found where a command should begin": ["& ls", "echo a; && ls"],
    ") is found where a command should begin": [")", "echo a; )"],
    "the end is found where a command should begin": [">/dev/null", "LANG=C >/dev/null", "echo a; 2>&1"],
    "arithmetic is not understood": ["((x))", "echo $((1))", 'echo "$((1))"', "echo a; ((x))", "echo $( ((x)) )"],
    "a function or an array is not understood": ["f() { x; }", "f ()", "echo a(b)", "echo a (b)", "LANG=(b)"],
    "setting LD_PRELOAD may change what a command does": ["LD_PRELOAD=x", "LANG=C LD_PRELOAD=x echo a"],
    "setting LANG may change what a command does": ["LANG=$x ls", "LANG=* ls", "LANG=../x ls", "LANG=`ls`"],
    "which program runs is decided only when it runs": [
        "$x y", "* y", "'' y", '"" y', "$(ls)", "`ls` y", "'a=b' c", '"LANG"=C ls', "./a'='b", "~/x",
    ],
    "if is a word of the shell's own language": ["if x", '"if" x', "echo a; if", "LANG=C if"],
    "-x is a word of the shell's own language": ["-x", "echo a | -x"],
    "%1 is a word of the shell's own language": ["%1", "echo a & %1"],
    "12 before > is a number to some shells and a word to others": ["echo a 12>/dev/null"],
    "10 before >& is a number to some shells and a word to others": ["echo a 10>&1"],
    "input or output goes through a file": [
        "echo a >x", "echo a >>x", "cat <x", "echo a 1>/dev/nul", "echo a >$x", "echo a >/dev/null$x", "echo a >&x",
        "echo a >&12", 'echo a >&"1"', "echo a >&\\1", "echo a <&x", "echo a >|/dev/null", "echo a <>/dev/null",
        "cat <<E", "cat <<-E", "cat <<<E", "cat <(ls)", "cat >(ls)", "(echo a) >x", "echo a >& /dev/null", "cat <1",
    ],
    "a word is missing": ["echo a >", "echo a > ;", "echo a >&", "echo a <\nx", "(echo a) >"],
    "a word that begins with = means a program to some shells": ["=ls", "echo =ls", "echo a >=ls"],
    "'!' outside quotes is not understood": ["! ls"],
    "'{' outside quotes is not understood": ["{ ls", "echo a{b,c}"],
    "'#' outside quotes is not understood": ["echo a #b", "echo a;#b"],
    "'\\xe9' outside quotes is not understood": ["echo \u00e9", "echo \\\u00e9"],
    "a quote is not closed": ["echo 'a", 'echo "a', "echo '", 'echo "', 'echo "a\\"', "echo 'a''"],
    "the text ends in a backslash": ["echo a\\", "echo \\"],
    "a line is continued in the middle of something": [
        "echo a\\\nb", 'echo "a\\\nb"', "echo a;\\\nls", "echo a |\\\n cat", "echo '';\\\nls", '"\\\n"',
    ],
    "a subscript is not understood": ["echo $x[1]", 'echo "$x[1]"', "echo ${x}[1]"],
    "$$' is one thing to some shells and two to others": ["echo $$'x'", "echo \"$$'x'\""],
    '$$" is one thing to some shells and two to others': ['echo $$"x"'],
    "$$( is one thing to some shells and two to others": ["echo $$(ls)", 'echo "$$(ls)"'],
    "${ is not understood": ["echo ${x:-y}", 'echo "${x:-y}"', "echo ${", "echo ${ ls;}"],
    "$= is not understood": ["echo $=x", 'echo "$=x"'],
    '$" is not understood': ['echo $"x"'],
    "$' is not understood": ["echo $'x'", "echo \"$'x'\""],
    "a backquote is not closed": ["echo `ls", 'echo "`ls"', "echo `"],
    "a backslash inside backquotes is not understood": ["echo `ls \\a`", "echo `\\`"],
    "there is a character in it that shells read differently": [
        "echo '\x01'", "echo a\rb", "echo '\x7f'", "echo '\ud800'", "echo '\u20ac\\'", "echo `echo '\x01'`",
    ],
}  # fmt: skip


def _to_text(piece: ParsedCommand) -> str:
    """As in the table: open words in angles, and what else there is to say before them."""
    words = " ".join(f"<{word.text}>" if word.is_dynamic else shlex.quote(word.text) for word in piece.words)
    return ("then " if piece.runs_after_others else "") + ("fed " if piece.has_piped_input else "") + words


@pytest.mark.parametrize(("text", "expected"), READ)
def test_text_is_the_commands_it_would_start(text: str, expected: str) -> None:
    reading = parse_script(text, shell="sh")

    assert reading.uncertainties == ()
    assert " / ".join(map(_to_text, reading.commands)) == expected
    assert {piece.shell for piece in reading.commands} <= {"sh"}


@pytest.mark.parametrize(("why", "text"), [(why, text) for why, texts in UNREAD.items() for text in texts])
def test_text_that_is_not_understood_is_reported_with_the_reason(why: str, text: str) -> None:
    assert parse_script(text, shell="sh").uncertainties == (why,)


@pytest.mark.parametrize("shell", ["bash", "rbash"])
def test_a_pipe_of_both_outputs_is_a_pipe_to_bash_alone(shell: str) -> None:
    assert [_to_text(piece) for piece in parse_script("ls |& cat; id", shell=shell).commands] == [
        "ls",
        "fed cat",
        "then id",
    ]
    assert parse_script("ls |&", shell=shell).uncertainties == ("a command is missing",)
    assert parse_script("ls &| cat", shell=shell).uncertainties == ("&| is not understood",)
    for other in ("sh", "dash", "ash", "ksh"):
        assert parse_script("ls |& cat", shell=other).uncertainties == ("|& is not understood",)


def test_what_feeds_a_shell_or_runs_before_it_does_so_to_all_it_starts() -> None:
    text = "ls | cat; echo $(id) `wc`"

    fed = parse_script(text, shell="sh", has_piped_input=True).commands
    later = parse_script(text, shell="sh", runs_after_others=True).commands

    assert [_to_text(piece) for piece in fed] == [
        "fed ls", "fed cat", "then fed id", "then fed wc", "then fed echo <> <>",
    ]  # fmt: skip
    assert [_to_text(piece) for piece in later] == ["then ls", "then fed cat", "then id", "then wc", "then echo <> <>"]


def test_what_was_read_before_a_doubt_is_still_reported() -> None:
    reading = parse_script("rm x; echo ${y:-z}; ls", shell="sh")

    assert [piece.words for piece in reading.commands] == [(ShellWord("rm"), ShellWord("x"))]


LIMITS: dict[str, tuple[int, Callable[[int], str], str]] = {
    "characters": (
        65_536,
        lambda size: "echo ".ljust(size, "x"),
        "the command is longer than 65536 characters",
    ),
    "commands": (256, lambda count: ";".join(["ls"] * count), "there are more than 256 commands"),
    "commands inside others": (
        256,
        lambda count: "echo " + "$(ls)" * (count - 1),
        "there are more than 256 commands",
    ),
    "groups": (16, lambda deep: "( " * deep + "ls" + " )" * deep, "commands are nested too deeply"),
    "groups after others": (
        16,
        lambda deep: "(ls); " * 3 + "( " * deep + "ls" + " )" * deep,
        "commands are nested too deeply",
    ),
    "substitutions": (16, lambda deep: "echo $(" * deep + "ls" + ")" * deep, "commands are nested too deeply"),
    "a backquote in substitutions": (
        16,
        lambda deep: "echo $(" * (deep - 1) + "echo `ls`" + ")" * (deep - 1),
        "commands are nested too deeply",
    ),
}


@pytest.mark.parametrize("what", LIMITS)
def test_there_is_an_end_to_what_is_read(what: str) -> None:
    most, text, why = LIMITS[what]

    assert parse_script(text(most), shell="sh").uncertainties == ()
    assert parse_script(text(most + 1), shell="sh").uncertainties == (why,)
