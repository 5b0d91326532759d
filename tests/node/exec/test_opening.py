"""What wrappers would start, line by line: the commands that need a rule, those that are only noted so that a rule may
forbid them, and where it is not certain, why."""

import shlex

import pytest

from openclaw_mcp.node.exec.shell_reader import ParsedCommand, ShellWord
from openclaw_mcp.node.exec.wrappers import UnwrapResult, unwrap

OPENED = [
    ("ls a", "ls a", ""),
    ("nohup ls a", "ls a", "nohup ls a"),
    ("nohup -- ls", "ls", "nohup -- ls"),
    ("nohup", "nohup", "nohup"),
    ("nice ls", "ls", "nice ls"),
    ("nice -n 5 ls", "ls", "nice -n 5 ls"),
    ("nice -n5 ls", "ls", "nice -n5 ls"),
    ("nice -5 ls", "ls", "nice -5 ls"),
    ("nice --adjustment=5 ls", "ls", "nice --adjustment=5 ls"),
    ("nice --adjustment 5 ls", "ls", "nice --adjustment 5 ls"),
    ("nice -n -5 ls", "ls", "nice -n -5 ls"),
    ("ionice -t -c 3 -n 1 ls", "ls", "ionice -t -c 3 -n 1 ls"),
    ("time -p ls", "ls", "time -p ls"),
    ("stdbuf -o L -eL --input=0 ls", "ls", "stdbuf -o L -eL --input=0 ls"),
    ("timeout 3 ls", "ls", "timeout 3 ls"),
    ("timeout -k 1 -s KILL --foreground 3 ls", "ls", "timeout -k 1 -s KILL --foreground 3 ls"),
    ("timeout 3", "timeout 3", "timeout 3"),
    ("timeout", "timeout", "timeout"),
    ("env LANG=C ls", "ls", "env LANG=C ls"),
    ("env -u LANG ls", "ls", "env -u LANG ls"),
    ("env -uLANG ls", "ls", "env -uLANG ls"),
    ("env -0 LANG=C TZ=UTC ls x=y", "ls x=y", "env -0 LANG=C TZ=UTC ls x=y"),
    ("env LANG=C", "env LANG=C", "env LANG=C"),
    ("env", "env", "env"),
    ("env -- LANG=C ls", "ls", "env -- LANG=C ls"),
    ("env LANG=C -- ls", "-- ls", "env LANG=C -- ls"),
    ("xargs ls a", "then ls a <>", "xargs ls a"),
    ("xargs", "then echo <>", "xargs"),
    ("xargs -0 -n 1 ls", "then ls <>", "xargs -0 -n 1 ls"),
    ("xargs -I X ls aXb c", "then ls <aXb> c", "xargs -I X ls aXb c"),
    ("xargs -IX ls X", "then ls <X>", "xargs -IX ls X"),
    ("xargs -I X -I X ls X", "then ls <X>", "xargs -I X -I X ls X"),
    ("xargs -n 1 -L 1 ls", "then ls <>", "xargs -n 1 -L 1 ls"),
    ("xargs --max-lines=1 ls", "then ls <>", "xargs --max-lines=1 ls"),
    ("sudo ls a", "sudo ls a / then ls a", "sudo ls a"),
    ("sudo -n -u root ls", "sudo -n -u root ls / then ls", "sudo -n -u root ls"),
    ("sudo -n", "sudo -n", "sudo -n"),
    ("doas -u root ls", "doas -u root ls / then ls", "doas -u root ls"),
    ("command ls", "command ls", "ls / command ls"),
    ("exec ls", "exec ls", "ls / exec ls"),
    ("builtin ls", "builtin ls", "ls / builtin ls"),
    ("find .", "find .", "find ."),
    ("find . -exec ls {} ;", "find . -exec ls '{}' ';' / then ls <{}>", "find . -exec ls '{}' ';'"),
    ("find . -exec ls {} +", "find . -exec ls '{}' + / then ls <{}>", "find . -exec ls '{}' +"),
    ("find . -ok ls {} ;", "find . -ok ls '{}' ';' / then ls <{}>", "find . -ok ls '{}' ';'"),
    ("find . -okdir ls {} ;", "find . -okdir ls '{}' ';' / then ls <{}>", "find . -okdir ls '{}' ';'"),
    ("find . -execdir ls {} +", "find . -execdir ls '{}' + / then ls <{}>", "find . -execdir ls '{}' +"),
    ("find . -exec ./ls {} ;", "find . -exec ./ls '{}' ';' / then ./ls <{}>", "find . -exec ./ls '{}' ';'"),
    ("find . -exec ls a{}b c ;", "find . -exec ls 'a{}b' c ';' / then ls <a{}b> c", "find . -exec ls 'a{}b' c ';'"),
    (
        "find . -exec ls ; -exec id ;",
        "find . -exec ls ';' -exec id ';' / then ls / then id",
        "find . -exec ls ';' -exec id ';'",
    ),
    (
        "find . -exec ls ; -name x -exec id {} +",
        "find . -exec ls ';' -name x -exec id '{}' + / then ls / then id <{}>",
        "find . -exec ls ';' -name x -exec id '{}' +",
    ),
    ("find . -exec nice ls ;", "find . -exec nice ls ';' / then ls", "find . -exec nice ls ';' / then nice ls"),
    ("find -L -H -P . -name x", "find -L -H -P . -name x", "find -L -H -P . -name x"),
    ("find -L . -D x", "find -L . -D x", "find -L . -D x"),
    ("find . -O3", "find . -O3", "find . -O3"),
    (
        "find . -exec sh -c 'rm x' ;",
        "find . -exec sh -c 'rm x' ';' / sh: then rm x",
        "find . -exec sh -c 'rm x' ';' / then sh -c 'rm x'",
    ),
    ("busybox ls a", "ls a", "busybox ls a"),
    ("busybox", "busybox", "busybox"),
    ("busybox --list", "busybox --list", "busybox --list"),
    ("busybox busybox ls", "ls", "busybox busybox ls / busybox ls"),
    ("busybox sh -c 'ls; id'", "sh: ls / sh: then id", "busybox sh -c 'ls; id' / sh -c 'ls; id'"),
    ("busybox env ls", "ls", "busybox env ls / env ls"),
    ("coreutils", "coreutils", "coreutils"),
    ("coreutils --coreutils-prog=ls a", "ls a", "coreutils --coreutils-prog=ls a"),
    ("coreutils --coreutils-prog-shebang=ls a", "ls a", "coreutils --coreutils-prog-shebang=ls a"),
    ("coreutils --coreutils-prog= a", "coreutils --coreutils-prog= a", "coreutils --coreutils-prog= a"),
    ("coreutils --help=ls a", "coreutils --help=ls a", "coreutils --help=ls a"),
    ("busybox --coreutils-prog=ls a", "busybox --coreutils-prog=ls a", "busybox --coreutils-prog=ls a"),
    ("toybox ls", "ls", "toybox ls"),
    ("coreutils --coreutils-prog=env ls", "ls", "coreutils --coreutils-prog=env ls / env ls"),
    ("sh -c ls", "sh: ls", "sh -c ls"),
    ("sh -c 'ls; id | cat'", "sh: ls / sh: then id / sh: then fed cat", "sh -c 'ls; id | cat'"),
    ("sh -ec ls a b", "sh: ls", "sh -ec ls a b"),
    ("sh -e -c ls", "sh: ls", "sh -e -c ls"),
    ("sh -c -e ls", "sh: ls", "sh -c -e ls"),
    ("sh -c -- ls", "sh: ls", "sh -c -- ls"),
    ("sh -- script a", "sh -- script a", "sh -- script a"),
    ("sh script a", "sh script a", "sh script a"),
    ("sh ./script", "sh ./script", "sh ./script"),
    ("sh -e script", "sh -e script", "sh -e script"),
    ("bash --norc --noprofile --posix -c ls", "bash: ls", "bash --norc --noprofile --posix -c ls"),
    ("bash --posix script", "bash --posix script", "bash --posix script"),
    ("sh $x", "sh <>", "sh <>"),
    ("sh -c 'ls $x'", "sh: ls <>", "sh -c 'ls $x'"),
    ("sh -c 'sh -c ls'", "sh: ls", "sh -c 'sh -c ls' / sh: sh -c ls"),
    ("sh -c '/bin/ls'", "sh: /bin/ls", "sh -c /bin/ls"),
    ("sh -c 'exec ls'", "sh: ls", "sh -c 'exec ls' / sh: exec ls"),
    ("sh -c 'command ls'", "sh: ls", "sh -c 'command ls' / sh: command ls"),
    ("sh -c 'nice ls'", "ls", "sh -c 'nice ls' / sh: nice ls"),
    ("sh -c 'command sh -c ls'", "sh: ls", "sh -c 'command sh -c ls' / sh: command sh -c ls / sh: sh -c ls"),
    ("sh -c 'ls | xargs id'", "sh: ls / then fed id <>", "sh -c 'ls | xargs id' / sh: fed xargs id"),
    ("sh -c 'ls; timeout 3 id'", "sh: ls / then id", "sh -c 'ls; timeout 3 id' / sh: then timeout 3 id"),
    ("sh -c 'ls | busybox id'", "sh: ls / fed id", "sh -c 'ls | busybox id' / sh: fed busybox id"),
    ("sh -c 'ls; busybox id'", "sh: ls / then id", "sh -c 'ls; busybox id' / sh: then busybox id"),
    (
        "sh -c 'ls | sh -c id; sh -c wc'",
        "sh: ls / sh: fed id / sh: then wc",
        "sh -c 'ls | sh -c id; sh -c wc' / sh: fed sh -c id / sh: then sh -c wc",
    ),
    ("sh -c 'ls | timeout 3 id'", "sh: ls / fed id", "sh -c 'ls | timeout 3 id' / sh: fed timeout 3 id"),
    ("-sh -c ls", "-sh -c ls", ""),
    ("./sh -c ls", "./sh -c ls", "sh: ls / ./sh -c ls"),
    ("./env rm x", "./env rm x", "rm x / ./env rm x"),
    ("/x/ENV rm x", "/x/ENV rm x", "rm x / /x/ENV rm x"),
    ("./xargs rm", "./xargs rm", "then rm <> / ./xargs rm"),
    (
        "./find . -exec rm x ;",
        "./find . -exec rm x ';'",
        "./find . -exec rm x ';' / then rm x / ./find . -exec rm x ';'",
    ),
    ("./busybox rm x", "./busybox rm x", "rm x / ./busybox rm x"),
    (
        "./coreutils --coreutils-prog=rm x",
        "./coreutils --coreutils-prog=rm x",
        "rm x / ./coreutils --coreutils-prog=rm x",
    ),
    ("./env ./env rm", "./env ./env rm", "rm / ./env ./env rm / ./env rm"),
    ("./env -i rm", "./env -i rm", "./env -i rm"),
    ("./sh -c 'ls; rm x; ${'", "./sh -c 'ls; rm x; ${'", "sh: ls / sh: then rm x / ./sh -c 'ls; rm x; ${'"),
    ("ENV rm x", "ENV rm x", "rm x / ENV rm x"),
    ("nohup ./nohup rm x", "./nohup rm x", "nohup ./nohup rm x / rm x / ./nohup rm x"),
    ("env 'LANG'", "LANG", "env LANG"),
    ("env -u LANG -u TZ -v ls", "ls", "env -u LANG -u TZ -v ls"),
    ("env --unset=LANG --null ls", "ls", "env --unset=LANG --null ls"),
    ("env -- -u ls", "-u ls", "env -- -u ls"),
    ("nohup -- -x", "-x", "nohup -- -x"),
    ("time ls", "ls", "time ls"),
    ("timeout 3 -k ls", "-k ls", "timeout 3 -k ls"),
    ("timeout -- 3 ls", "ls", "timeout -- 3 ls"),
    ("timeout -k1 3 ls", "ls", "timeout -k1 3 ls"),
    ("timeout --kill-after=1 3 ls", "ls", "timeout --kill-after=1 3 ls"),
    ("timeout --kill-after 1 --signal KILL 3 ls", "ls", "timeout --kill-after 1 --signal KILL 3 ls"),
    ("xargs -L 1 ls", "then ls <>", "xargs -L 1 ls"),
    ("xargs -L1 ls {}", "then ls '{}' <>", "xargs -L1 ls '{}'"),
    ("xargs nice ls", "then ls <>", "xargs nice ls / then nice ls <>"),
    ("xargs -I X nice ls X", "then ls <X>", "xargs -I X nice ls X / then nice ls <X>"),
    ("xargs sh -c 'ls; id'", "sh: then ls / sh: then id", "xargs sh -c 'ls; id' / then sh -c 'ls; id' <>"),
    ("xargs env LANG=C ls", "then ls <>", "xargs env LANG=C ls / then env LANG=C ls <>"),
    ("sudo nice ls", "sudo nice ls / then ls", "sudo nice ls / then nice ls"),
    ("sudo ls $x", "sudo ls <> / then ls <>", "sudo ls <>"),
    ("sudo ls a=b", "sudo ls a=b / then ls a=b", "sudo ls a=b"),
    ("doas LANG=C", "doas LANG=C / then LANG=C", "doas LANG=C"),
    ("doas -n", "doas -n", "doas -n"),
    ("find", "find", "find"),
    ("find -L", "find -L", "find -L"),
    ("find . -exec ls -L ;", "find . -exec ls -L ';' / then ls -L", "find . -exec ls -L ';'"),
    ("find . -ok ./ls ;", "find . -ok ./ls ';' / then ./ls", "find . -ok ./ls ';'"),
    ("find . -exec ls {} ; +", "find . -exec ls '{}' ';' + / then ls <{}>", "find . -exec ls '{}' ';' +"),
    (
        "find . -exec ls ; ; -exec id ;",
        "find . -exec ls ';' ';' -exec id ';' / then ls / then id",
        "find . -exec ls ';' ';' -exec id ';'",
    ),
    ("sh -c ls -x", "sh: ls", "sh -c ls -x"),
    ("sh -c '' x", "", "sh -c '' x"),
    ("sh -c 'ls;'", "sh: ls", "sh -c 'ls;'"),
    ("sh -ev script", "sh -ev script", "sh -ev script"),
    ("sh -f -u -x -v -e -c ls", "sh: ls", "sh -f -u -x -v -e -c ls"),
    ("bash -c 'ls |& cat'", "bash: ls / bash: fed cat", "bash -c 'ls |& cat'"),
    (
        "sh -c 'find . -exec ls \\;'",
        "sh: find . -exec ls ';' / then ls",
        "sh -c 'find . -exec ls \\;' / sh: find . -exec ls ';'",
    ),
    (
        "sh -c 'ls | find . -exec id \\;'",
        "sh: ls / sh: fed find . -exec id ';' / then fed id",
        "sh -c 'ls | find . -exec id \\;' / sh: fed find . -exec id ';'",
    ),
    ("bash -c 'builtin echo x'", "bash: echo x", "bash -c 'builtin echo x' / bash: builtin echo x"),
    ("bash -c 'exec sh -c ls'", "sh: ls", "bash -c 'exec sh -c ls' / bash: exec sh -c ls / bash: sh -c ls"),
    (
        "sh -c 'command time ls'",
        "sh: ls",
        "sh -c 'command time ls' / sh: command time ls / sh: time ls",
    ),
    ("dash -c ls", "dash: ls", "dash -c ls"),
    ("ash -c ls", "ash: ls", "ash -c ls"),
    ("ksh -c ls", "ksh: ls", "ksh -c ls"),
    ("rbash -c ls", "rbash: ls", "rbash -c ls"),
    ("nice ./ls", "./ls", "nice ./ls"),
    ("busybox nice ./ls", "./ls", "busybox nice ./ls / nice ./ls"),
    ("nohup sh script", "sh script", "nohup sh script / sh script"),
    ("./nice -n 5 rm x", "./nice -n 5 rm x", "rm x / ./nice -n 5 rm x"),
    ("./sudo rm x", "./sudo rm x", "./sudo rm x / then rm x / ./sudo rm x"),
    ("./nice ./ls", "./nice ./ls", "./ls / ./nice ./ls"),
    ("./nice nice rm", "./nice nice rm", "rm / ./nice nice rm / nice rm"),
    ("./sh script", "./sh script", "./sh script / ./sh script"),
    ("./timeout 3", "./timeout 3", "./timeout 3 / ./timeout 3"),
    ("./Sh -c rm", "./Sh -c rm", "sh: rm / ./Sh -c rm"),
    (
        "/x/find . -exec /y/env rm ;",
        "/x/find . -exec /y/env rm ';'",
        "/x/find . -exec /y/env rm ';' / then rm / /x/find . -exec /y/env rm ';' / then /y/env rm",
    ),
    ("nice ./nice ./nice rm", "./nice ./nice rm", "nice ./nice ./nice rm / rm / ./nice ./nice rm / ./nice rm"),
]
UNOPENED = {
    "the option -x of nohup is not understood": ["nohup -x ls"],
    "nice -n has no value of its own": ["nice -n", "nice -n $x ls"],
    "the option -x of nice is not understood": ["nice -x ls"],
    "the option --adjustment= of nice is not understood": ["nice --adjustment= ls"],
    "the option -٣ of nice is not understood": ["nice -٣ ls"],
    "the option -5x of nice is not understood": ["nice -5x ls"],
    "the option - of nice is not understood": ["nice - ls"],
    "the option -5 of ionice is not understood": ["ionice -5 ls"],
    "timeout's arguments are decided only when it runs": ["timeout $x ls"],
    "env -u PATH may change what a command does": ["env -u PATH ls"],
    "setting PATH may change what a command does": ["env PATH=. ls"],
    "the option -i of env is not understood": ["env -i ls"],
    "xargs -I is given twice": ["xargs -I X -I Y ls X"],
    "xargs -I and -n contradict each other": ["xargs -I X -n 1 ls", "xargs -n 1 -I X ls"],
    "which program runs is decided only when it runs": [
        "'' x",
        "nice ''",
        "xargs -I X X y",
        "find . -exec {} + ",
        "busybox $x",
        "coreutils --coreutils-prog=l$x",
        "coreutils --coreutils-prog=$x",
        "coreutils $x",
        "xargs -I '' ls X",
        "nice $x ls",
        "env LANG=C $x",
        "sudo $x",
    ],
    "xargs -I and -L contradict each other": ["xargs -I X -L 1 ls"],
    "xargs -I and --max-lines contradict each other": ["xargs -I X --max-lines=1 ls"],
    "xargs -I and --max-args contradict each other": ["xargs -I X --max-args=1 ls"],
    "the option --max-lines of xargs is not understood": ["xargs --max-lines ls"],
    "the option -a of xargs is not understood": ["xargs -a x ls"],
    "sudo sets a variable that may change what a command does": ["sudo LANG=C ls", "sudo PATH=. ls"],
    "find -exec ends in a + that does not stand right after {}": ["find . -exec ls {} x +", "find . -exec ls x + ;"],
    "find -ok ends in a + that does not stand right after {}": ["find . -ok ls {} +"],
    "./ls depends on the folder it is started in": [
        "find . -execdir ./ls {} ;",
        "sh -c './ls'",
        "sh -c 'env ./ls'",
        "find . -execdir nice ./ls ;",
        "find . -okdir ./ls ;",
        "sh -c 'find . -exec ./ls \\;'",
        "sh -c 'nice nice ./ls'",
        "sh -c 'busybox find . -exec ./ls \\;'",
        "sh -c 'xargs ./ls'",
        "nice sh -c ./ls",
    ],
    "find -exec has no command or no end": [
        "find . -exec ls",
        "find . -exec ;",
        "find . -exec + ;",
        "sh -c 'timeout 3 find . -exec ./ls ;'",
        "sh -c 'ls | find . -exec id ;'",
    ],
    "the option -D of find is not understood": [
        "find -L -D tree .",
        "find -D tree .",
        "find -H -D tree .",
        "find -P -D tree .",
    ],
    "the option -O3 of find is not understood": ["find -O3 ."],
    "the option --help of find is not understood": ["find --help"],
    "find -delete changes files": ["find . -delete", "find . -exec ls {} ; -delete", "find . -delete -exec ls ;"],
    "find -fprint changes files": ["find . -fprint x"],
    "find -fls changes files": ["find . -fls x"],
    "find -fprint0 changes files": ["find . -fprint0 x"],
    "find -fprintf changes files": ["find . -fprintf x y"],
    "find -files0-from reads names from a file": ["find . -files0-from x"],
    "find -exec holds a word of find's own": [
        "find . -exec ls -delete ;",
        "find . -exec ls -exec ;",
        "find . -exec ls -files0-from ;",
    ],
    "find's arguments are decided only when it runs": ["find $x"],
    "busybox takes ./ls for a name of its own": ["busybox ./ls"],
    "a shell reads its commands from elsewhere": [
        "sh",
        "sh -c",
        "sh -e",
        "sh -x --",
        "sh /dev/stdin",
        "sh /proc/self/fd/0",
        "sh -- -c",
        "sh -- /dev/stdin",
        "sh --posix",
    ],
    "the shell option --login is not understood": ["bash --login -c ls"],
    "the shell option -l is not understood": ["sh -l script"],
    "the shell option -s is not understood": ["sh -s"],
    "the shell option - is not understood": ["sh -", "sh -$x"],
    "the shell option +e is not understood": ["sh +e -c ls"],
    "the shell option +x is not understood": ["sh +x script"],
    "the shell option -o is not understood": ["sh -o pipefail -c ls"],
    "the shell's text is decided only when it runs": ["sh -c $x", "xargs -I X sh -c 'ls X'"],
    "${ is not understood": ["sh -c 'ls; ${x:-y}'"],
    "time is a word of the shell's own language": ["sh -c 'time ls'"],
    "coreutils takes ./ls for a name of its own": ["coreutils --coreutils-prog=./ls"],
    "xargs -I has no value of its own": ["xargs -I", "xargs -I $x ls"],
    "nice's options are decided only when it runs": ["nice -$x ls"],
    "setting LANG may change what a command does": ["env LANG=$x ls"],
    "timeout -s has no value of its own": ["timeout -s"],
    "the option -0r of xargs is not understood": ["xargs -0r -n 1 ls"],
    "the option -O2 of find is not understood": ["find -L -O2 ."],
    "find -okdir ends in a + that does not stand right after {}": ["find . -okdir ls {} +"],
    "builtin can change what the shell does next": ["sh -c 'builtin ls'"],
}


def _opened(line: str) -> UnwrapResult:
    """A line of words, where `$x` makes one that is decided only when it runs."""
    words = (
        ShellWord(word.replace("$x", ""), is_dynamic=True) if "$x" in word and " " not in word else ShellWord(word)
        for word in shlex.split(line)
    )
    return unwrap([ParsedCommand(tuple(words))])


def _to_text(pieces: tuple[ParsedCommand, ...]) -> str:
    """As in the table: the shell that starts it, what else there is to say, and open words in angles."""
    return " / ".join(
        (f"{piece.shell}: " if piece.shell else "")
        + ("then " if piece.runs_after_others else "")
        + ("fed " if piece.has_piped_input else "")
        + " ".join(f"<{word.text}>" if word.is_dynamic else shlex.quote(word.text) for word in piece.words)
        for piece in pieces
    )


@pytest.mark.parametrize(("line", "started", "noted"), OPENED)
def test_a_wrapper_is_what_it_would_start(line: str, started: str, noted: str) -> None:
    opened = _opened(line)

    assert opened.uncertainties == ()
    assert _to_text(opened.commands) == started
    assert _to_text(opened.deny_candidates) == noted


@pytest.mark.parametrize(("why", "line"), [(why, line) for why, lines in UNOPENED.items() for line in lines])
def test_what_it_would_start_is_not_guessed(why: str, line: str) -> None:
    assert _opened(line).uncertainties == (why,)


def test_what_a_copy_would_start_is_looked_for_as_deep_as_in_a_wrapper() -> None:
    assert _to_text(_opened("./nice " + "nice " * 6 + "rm x").deny_candidates).startswith("rm x / ")
    assert _to_text(_opened("nice ./nice " + "nice " * 5 + "rm x").deny_candidates).split(" / ")[1] == "rm x"


def test_a_name_that_may_mean_another_file_to_a_wrapper_is_not_guessed() -> None:
    steady = {"nice", "ls"}.__contains__
    known = unwrap([ParsedCommand((ShellWord("nice"), ShellWord("ls")))], is_process_independent=steady)
    other = unwrap([ParsedCommand((ShellWord("nice"), ShellWord("git")))], is_process_independent=steady)

    assert known.uncertainties == ()
    assert other.uncertainties == ("git may mean another file to the program that starts it",)


def test_what_was_opened_before_a_doubt_is_still_reported() -> None:
    opened = _opened("sh -c 'nice rm x; env -i ls; id'")

    assert _to_text(opened.commands) == "rm x"
    assert _to_text(opened.deny_candidates).endswith("sh: nice rm x / sh: then env -i ls")


def _copies(*sizes: int) -> str:
    """A shell's text in which files that only bear a shell's name are given so many commands each."""
    return "; ".join(f"/x/sh -c '{';'.join(['ls'] * size)}'" for size in sizes)


@pytest.mark.parametrize(
    ("within", "beyond", "why"),
    [
        ("nice " * 8 + "ls", "nice " * 9 + "ls", "programs that start programs are nested too deeply"),
        (
            "sh -c '" + "nice " * 7 + "ls'",
            "sh -c '" + "nice " * 8 + "ls'",
            "programs that start programs are nested too deeply",
        ),
        ("find ." + " -exec ls ;" * 255, "find ." + " -exec ls ;" * 256, "there are more than 256 commands"),
        (
            f"sh -c {shlex.quote(_copies(*[255] * 9, 254))}",
            f"sh -c {shlex.quote(_copies(*[255] * 10))}",
            "more than 2560 commands start others",
        ),
    ],
    ids=["wrappers in wrappers", "a shell among them", "commands", "what is only noted"],
)
def test_there_is_an_end_to_what_is_opened(within: str, beyond: str, why: str) -> None:
    assert _opened(within).uncertainties == ()
    assert _opened(beyond).uncertainties == (why,)


@pytest.mark.parametrize("wrapper", ["busybox", "coreutils", "toybox", "xargs", "find . -exec", "sh -c", "env", "nice"])
def test_each_counts_as_one_wrapper_more(wrapper: str) -> None:
    inner = "nice " * 8 + "ls"
    end = " ;" if wrapper.startswith("find") else ""

    line = f"{wrapper} {shlex.quote(inner) if wrapper == 'sh -c' else inner}{end}"
    shorter = line.replace("nice ls", "ls")

    assert _opened(line).uncertainties == ("programs that start programs are nested too deeply",)
    assert _opened(shorter).uncertainties == ()
