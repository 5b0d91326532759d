"""Shell texts by the hundred thousand: plain ones, ones with something hidden in them, and ones bent out of shape."""

import random

from tests.node.exec.bypasses import attempts


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CONTINUED = "\\\n"
HIDDEN = _words(r"""
    $(pwn) `pwn` ;pwn |pwn &pwn &&pwn ||pwn >made >>made <made ${x:-$(pwn)} $((a[$(pwn)])) $[a[$(pwn)]] <(pwn)
    a[$(pwn)]
""")
"""What must not take effect where the reader has not seen it."""
COMMANDS = _words(r"""
    echo echo echo echo echo true printf test [ ls tool id pwd : false uname
""")
ALONE = _words(r"""
    exit shift ulimit umask return kill break continue exec command
""")
"""Builtins that would disturb the texts after them."""
WRAPPERS = (
    "env",
    "env -i",
    "env LANG=C",
    "nice -n 5",
    "nohup",
    "timeout 5",
    "stdbuf -o0",
    "command",
    "command -p",
    "exec",
    "exec -c",
    "xargs",
    "xargs -n1",
    "sh -c",
    "dash -c",
    "bash -c",
)
PLAIN = _words(r"""
    a b x v e _ 0 1 2 10 a.txt -n -e -v -eq -lt = == != -f -t -o ! ./a /dev/null x=1 a=b a+=b %s %d a:b @ + , %
    1.5 08 0x1 LANG
""")
TESTS = _words("-eq -lt = != -f -nt -t -v -o -a == -ef -R -n")
VARIABLES = _words(r"""
    $x $v $e ${x} $1 $@ $* $# $? $$ $! $- $0 $_ ${v} $10 $LANG
""")
GLOBS = _words(r"""
    * ? [a-z] a* ~ ~/a [!a] ~root [a] *.txt
""")
OPERATORS = _words(r"""
    ; & | && || |& ;; &> >& <& >| <> << <<- <<< 2>&1 >/dev/null </dev/null 2>/dev/null >&2 1>&2 <&- >&- >&1-
    12>&1 ( ) { } (( )) [[ ]] ;& &! &|
""")
ODD = _words(r"""
    $ $$ $' $" ${ $( $(( $[ ` ' " \ # ! ^ = ~ { } [ ] * ? % : - + @ , | & ; < > ( ) {a,b} $'a' $"a" $'\x61' ?( +( @( !(
    <( >( =( \\ \' \" \$ \` '' "" ~+ ~- =ls %1 {fd}>made &>made >&made 1>made >!made
""")
STRANGE = tuple("\r\v\f\b\x01\x7f\x1b\xa0\x85\u2028\u3000\u0661\uff11\x81\x88\ufeff\u200b\u0101\xe9\u20ac\U0001f600")
PLACES = (
    'echo "$@(pwn)"',
    "echo $@(pwn)",
    'echo "@pwn@"',
    "echo '@pwn@'",
    "echo x@pwn@",
    "echo x@ pwn",
    'echo "x@" @ pwn',
    "echo $@'@;pwn@'",
    "echo @'\\@';pwn@'@",
    "echo @'\\'@'@;pwn@'",
    "echo @$@'\\@';pwn #@'",
    "echo `@echo pwn@`",
    'echo "`@echo pwn@`"',
    "echo $(@echo pwn@)",
    'echo "$(@echo pwn@)"',
    "echo @ $(echo '@' \"@\")",
    "echo @>@made",
    "echo 2@>@&@1@",
    "echo @'pwn@' \"@pwn\"@",
    'echo \\@pwn \\@ "\\@pwn"',
    "@echo@ x@",
    "echo x@\nuname@",
    "tool @x@ '@' \"@\"",
    'uname "@$x@" @',
    "(echo @) @",
    "echo x @ echo y",
    "@ LANG=C@ echo",
    "test @ x",
    "printf '@' @",
)
SPECIAL = (
    *("\\\n", "\\\n", "\n", " ", "\t"),
    *_words(r"""
    $ ` ' " \ ( ) { } [ ] < > | & ; # ! * ? ~ = % ^ - : , 1 2 x _ $x $$ $# $? $! $- $* $1 ${x} '' "" \\ /dev/null é €
"""),
)
SETTINGS = (
    "LANG=C",
    "LC_ALL=C.UTF-8",
    "TZ=UTC",
    "COLUMNS=80",
    "COLUMNS='a[$(pwn)]'",
    "LINES=v",
    "x=1",
    "LANG=$x",
    "TERM='$(pwn)'",
    "LANG+=x",
)


class Maker:
    """A source of texts; the same seed makes the same texts."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._seeds = sorted({argv[2] for argv in attempts() if argv[1:2] == ["-c"] and argv[2]})

    def text(self) -> str:
        way = self._chance.random()
        if way < 0.3:
            return self.crowded()
        if way < 0.35:
            text = self._chance.choice(self._seeds).replace("rm victim", self._chance.choice(("pwn", "rm victim")))
        else:
            text = self.commands(depth=0)
        for _ in range(self._chance.choice((0, 0, 1, 1, 1, 2, 2, 3, 5))):
            text = self.bent(text)
        return text

    # ---- texts as a person might write them, and a little worse ------------------------------------------------------

    def crowded(self) -> str:
        """A few special characters in a row, where something could begin or end."""
        chance = self._chance
        text = chance.choice(PLACES)
        while "@" in text:
            special = "".join(chance.choice(SPECIAL) for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 3, 4))))
            text = text.replace("@", special, 1)
        return text

    def commands(self, depth: int) -> str:
        count = self._chance.choice((1, 1, 1, 1, 1, 2, 2, 3))
        text = self.command(depth)
        for _ in range(count - 1):
            between = self._chance.choice(
                (" && ", " || ", "; ", "; ", " && ", " | ", " & ", "\n", "\n\n", ";", "|", "&", "&&", " |& ", ";\n")
            )
            text += between + self.command(depth)
        return text + self._chance.choice(("", "", "", "", "", "", "", "", "\n", ";", ";", " &", " \\\n"))

    def command(self, depth: int) -> str:
        chance = self._chance
        if depth < 2 and chance.random() < 0.02:
            return f"({self.commands(depth + 1)})" + chance.choice(("", " 2>&1", " >/dev/null"))
        name = chance.choice(COMMANDS) if chance.random() < 0.99 else chance.choice(ALONE)
        if name in ("ls", "tool", "id", "uname", "which") and chance.random() < 0.93:
            name = "echo"  # starting a program takes a hundred times as long
        words = [self.blurred(name), *self.arguments(name, depth)]
        if chance.random() < 0.04:
            words.insert(0, chance.choice(SETTINGS))
        if chance.random() < 0.12:
            words.insert(
                chance.randrange(len(words) + 1),
                chance.choice(
                    ("2>&1", ">/dev/null", "</dev/null", "2>/dev/null", ">&2", "<&-", "2>&-", "> /dev/null", "0<&1")
                ),
            )
        text = words[0]
        for word in words[1:]:
            text += chance.choice((" ", " ", " ", " ", "  ", "\t", " \\\n", " \\\n  ")) + word
        for _ in range(chance.choice((1, 1, 1, 2, 3)) if chance.random() < 0.01 else 0):
            wrapper = chance.choice(WRAPPERS)
            text = f"{wrapper} {quoted(text)}" if wrapper.endswith("-c") else f"{wrapper} {text}"
        return text

    def arguments(self, name: str, depth: int) -> list[str]:
        chance = self._chance
        if name in ("test", "["):
            end = ["']'"] if name == "[" else []
            operator = chance.choice(TESTS)
            shape = chance.choice(([1, operator, 1], [1, operator, 1], [operator, 1], ["!", operator, 1], [1]))
            return [str(part) if part != 1 else self.operand(depth) for part in shape] + end
        if name == "printf":
            format = "".join(
                chance.choice(
                    (
                        "%s",
                        "%d",
                        "%b",
                        "%%",
                        "x",
                        "\\n",
                        "%5s",
                        "%-3d",
                        "%c",
                        "%x",
                        "%f",
                        "%q",
                        "%n",
                        "%B",
                        "%(",
                        "%*d",
                        "\\045d",
                        "\\x25d",
                        "%T",
                        "%P",
                    )
                )
                for _ in range(chance.randrange(1, 4))
            )
            return [quoted(format), *(self.operand(depth) for _ in range(chance.randrange(0, 3)))]
        if name in ("exit", "shift", "return", "ulimit", "kill", "break", "continue", "umask"):
            return [self.operand(depth) for _ in range(chance.randrange(0, 3))]
        return [self.word(depth) for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3)))]

    def operand(self, depth: int) -> str:
        return (
            self._chance.choice(
                (
                    "0",
                    "1",
                    "-1",
                    "v",
                    "x",
                    "_",
                    "'a[$(pwn)]'",
                    "'x[`pwn`]'",
                    '"a[\\$(pwn)]"',
                    "1+1",
                    "08",
                    "argv",
                    "-n",
                    "unlimited",
                )
            )
            if self._chance.random() < 0.8
            else self.word(depth)
        )

    def word(self, depth: int) -> str:
        return "".join(self.part(depth) for _ in range(self._chance.choice((1, 1, 1, 1, 2, 3))))

    def part(self, depth: int) -> str:
        chance = self._chance
        match chance.choice("pppppppsssssddddddddddvveevveegglbn"):
            case "p":
                return chance.choice(PLAIN)
            case "s":
                return quoted(self.inner(single=True))
            case "d":
                return f'"{self.inner(single=False)}"'
            case "v":
                return chance.choice(VARIABLES)
            case "g":
                return chance.choice(GLOBS)
            case "e":
                return "\\" + chance.choice("$`\"'\\;&|()<>*?[]#~=! ab{}^%")
            case "l":
                return chance.choice(("$", "$", '"$"', "$/", "$.", "$%"))
            case "b" if depth < 2:
                return f"`{self.commands(depth + 1)}`"
            case "n" if depth < 2:
                return f"$({self.commands(depth + 1)})" if chance.random() < 0.9 else f'"$({self.commands(depth + 1)})"'
            case _:
                return "a"

    def inner(self, *, single: bool) -> str:
        """What stands in quotes: plain words, odd characters, and what would be dangerous outside them."""
        chance = self._chance
        text = ""
        for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4))):
            match chance.choice("pphhossxcn"):
                case "p":
                    text += chance.choice(PLAIN)
                case "h":
                    text += (
                        chance.choice(HIDDEN)
                        .replace("$", "$" if single else "\\$")
                        .replace("`", "`" if single else "\\`")
                    )
                case "o":
                    text += chance.choice(ODD)
                case "s":
                    text += chance.choice((" ", "\n", "\t", "$", "\\"))
                case "x":
                    text += chance.choice(STRANGE)
                case "c":
                    text += chance.choice((" \\\n", "\\\n"))
                case _:
                    text += chance.choice(VARIABLES)
        return text.replace("'", "") if single else text

    def blurred(self, name: str) -> str:
        if self._chance.random() < 0.9:
            return name
        at = self._chance.randrange(len(name) + 1)
        return self._chance.choice(
            (quoted(name), f'"{name}"', "\\" + name, name[:at] + "''" + name[at:], name[:at] + CONTINUED + name[at:])
        )

    # ---- and out of shape --------------------------------------------------------------------------------------------

    def bent(self, text: str) -> str:
        chance = self._chance
        at = chance.randrange(len(text) + 1)
        match chance.randrange(12):
            case 0 | 1 | 2:
                return text[:at] + CONTINUED + text[at:]
            case 3:
                return text[:at] + chance.choice(ODD) + text[at:]
            case 4:
                return text[:at] + chance.choice(OPERATORS) + text[at:]
            case 5:
                return text[:at] + chance.choice(HIDDEN) + text[at:]
            case 6:
                return text[:at] + chance.choice(STRANGE) + text[at:]
            case 7:
                return text[:at] + text[at + chance.randrange(1, 4) :]
            case 8:
                end = min(len(text), at + chance.randrange(1, 12))
                return text[:end] + text[at:end] + text[end:]
            case 9:
                return text[:at] + chr(chance.randrange(1, 128)) + text[at + 1 :]
            case 10:
                other = self._chance.choice(self._seeds)
                return text[:at] + other[chance.randrange(len(other)) :]
            case _:
                found = [place for place, char in enumerate(text) if char in "$&|<>;`\"'(){}\\#"]
                after = chance.choice(found) + 1 if found else at
                return text[:after] + CONTINUED * chance.choice((1, 1, 2)) + text[after:]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
