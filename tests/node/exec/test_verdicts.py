"""Which rule decides, and what is reported about it: rules against commands on a machine of a few programs."""

import shlex

import pytest

from openclaw_mcp.node.exec.rules import (
    Action,
    CommandBinding,
    ExecPolicy,
    ExecVerdict,
    Rule,
    add_remembered_rules,
    evaluate_policy,
)
from openclaw_mcp.node.exec.shell_reader import ParsedCommand, ShellWord
from openclaw_mcp.node.exec.wrappers import unwrap

FILES = {name: f"/usr/bin/{name}" for name in ("ls", "cat", "date", "rm", "git", "make", "id", "setsid")}
PLACES = {**FILES, **{path: path for path in FILES.values()}, "/bin/rm": "/usr/bin/rm", "/bin/ls": "/usr/bin/ls"}


def _judged(rules: str, line: str, *, default: Action = "prompt", **more: object) -> ExecVerdict:
    """`rules`: one after the other, as `allow ls *`. A line with a shell's signs is given to a shell."""
    exec_rules = tuple(
        Rule(pattern=pattern, action=action, **more)  # type: ignore[arg-type]
        for action, _, pattern in (rule.strip().partition(" ") for rule in rules.split(",") if rule)
    )
    words = ["sh", "-c", line] if any(char in line for char in ";|$") else shlex.split(line)
    reading = unwrap([ParsedCommand(tuple(map(ShellWord, words)))])
    return evaluate_policy(ExecPolicy(default_action=default, rules=exec_rules), reading, locate=PLACES.get)


VERDICTS = [
    # ---- the strictest, and of two that are alike the first ----
    ("allow ls *", "ls x", "allow", "every command is allowed by a rule"),
    ("allow ls *", "ls; git x; make", "prompt", "no rule covers 'git'"),
    ("allow ls *, deny make", "git x; make", "deny", "the rule deny 'make' covers 'make'"),
    ("deny git *, deny make", "git x; make", "deny", "the rule deny 'git *' covers 'git'"),
    ("deny nice *, deny rm *", "nice rm x", "deny", "the rule deny 'rm *' covers 'rm'"),
    ("deny nice *, allow ls", "nice ls", "deny", "the rule deny 'nice *' covers 'nice'"),
    ("allow ls *", "ls; echo ${x:-y}", "prompt", "no rule can vouch for it: ${ is not understood"),
    ("", "git x; echo ${x:-y}", "prompt", "no rule covers 'git'"),
    ("allow ls *", "$x;", "prompt", "no rule can vouch for it: which program runs is decided only when it runs"),
    ("allow ls *", "sh -c ''", "prompt", "no rule can vouch for it: there is no command in it"),
    ("prompt git *", "git $x", "prompt", "the rule prompt 'git *' covers 'git'"),
    ("prompt git x", "git $x", "prompt", "no rule covers 'git'"),
    ("prompt git x", "git x", "prompt", "the rule prompt 'git x' covers 'git'"),
    # ---- the first that fits ----
    ("allow ls x, deny ls *", "ls x", "allow", "every"),
    ("allow ls x, deny ls *", "ls y", "deny", "the rule deny 'ls *'"),
    ("deny ls x, allow ls *", "ls x", "deny", "the rule deny 'ls x'"),
    ("prompt ls x, allow ls *", "ls x", "prompt", "the rule prompt 'ls x'"),
    ("prompt ls x, allow ls *", "ls $x", "prompt", "the rule prompt 'ls x'"),
    ("prompt ls x, allow ls *", "ls y", "allow", "every"),
    # ---- programs ----
    ("allow ls", "ls", "allow", "every"),
    ("allow ls", "ls x", "prompt", "no rule covers 'ls'"),
    ("allow ls *", "/usr/bin/ls", "prompt", "no rule covers '/usr/bin/ls'"),
    ("allow /usr/bin/ls *", "ls x", "allow", "every"),
    ("allow /usr/bin/ls *", "/bin/ls x", "allow", "every"),
    ("allow /usr/bin/l? *", "ls x", "allow", "every"),
    ("allow /usr/bin/l* *", "ls x", "allow", "every"),
    ("allow /usr/bin/?s *", "ls x", "allow", "every"),
    ("allow /usr/?/ls *", "ls x", "prompt", "no rule covers"),
    ("allow /usr/*ls *", "ls x", "prompt", "no rule covers"),
    ("allow /usr/bin/ca *", "cat x", "prompt", "no rule covers"),
    ("allow l? *", "ls x", "allow", "every"),
    ("allow l? *", "/usr/bin/ls x", "prompt", "no rule covers"),
    ("allow l *", "ls x", "prompt", "no rule covers"),
    ("allow * x", "nosuch x", "prompt", "no rule covers"),
    ("deny rm *", "/bin/rm x", "deny", "the rule deny 'rm *' covers '/bin/rm'"),
    ("deny /usr/bin/rm", "rm", "deny", "the rule deny '/usr/bin/rm'"),
    ("deny /bin/rm *", "/usr/bin/rm x", "deny", "the rule deny '/bin/rm *'"),
    ("deny RM *", "rm x", "deny", "the rule deny 'RM *'"),
    ("deny rm *", "RM x", "deny", "the rule deny 'rm *'"),
    # ---- arguments ----
    ("allow ls a *", "ls a", "allow", "every"),
    ("allow ls a *", "ls a b", "allow", "every"),
    ("allow ls a *", "ls ab", "prompt", "no rule covers"),
    ("allow ls a?", "ls ab", "allow", "every"),
    ("allow ls a?", "ls a", "prompt", "no rule covers"),
    ("allow ls [ab]", "ls a", "prompt", "no rule covers"),
    ("allow ls A", "ls a", "prompt", "no rule covers"),
    ("deny git push *", "git push", "deny", "the rule deny 'git push *'"),
    ("deny git push *", "git PUSH x", "deny", "the rule deny 'git push *'"),
    ("deny git push *", "git Push", "deny", "the rule deny 'git push *'"),
    ("deny git push *", "git $x", "deny", "the rule deny 'git push *'"),
    ("deny git push *", "git pushed", "prompt", "no rule covers 'git'"),
    ("deny g* --force", "git a --force", "deny", "the rule deny 'g* --force'"),
    ("deny *a?c*", "git $x abc", "deny", "the rule deny '*a?c*'"),
    ("deny git*b", "git $x a", "prompt", "no rule covers 'git'"),
    ("deny git*b", "git a $x", "deny", "the rule deny 'git*b'"),
    ("deny git b?", "git $x b", "deny", "the rule deny 'git b?'"),
    ("deny gi* 'a b'", "git 'a b'", "deny", "the rule deny \"gi* 'a b'\""),
    ("deny gi* a b", "git 'a b'", "deny", "the rule deny 'gi* a b'"),
    ("allow ls ab", "ls", "prompt", "no rule covers"),
    ("allow ls a b", "ls a", "prompt", "no rule covers"),
    ("deny git ab", "git", "prompt", "no rule covers"),
    ("deny git", "git x", "deny", "the rule deny 'git'"),
    ("deny git *", "git", "deny", "the rule deny 'git *'"),
    ("deny G?T x", "git x", "deny", "the rule deny 'G?T x'"),
    ("deny gi? a'b", "git a'b;", "prompt", "no rule can vouch"),
    ("deny git**b", "git a $x", "deny", "the rule deny 'git**b'"),
    ("deny git*?b?*", "git $x ab", "deny", "the rule deny 'git*?b?*'"),
    ("deny git*x", "git $x 'a*'", "prompt", "no rule covers 'git'"),
    ("allow ca? *", "ls x", "prompt", "no rule covers"),
    ("allow /usr/bin/ls *", "nosuch x", "prompt", "no rule covers"),
    # ---- what a wildcard means of dates ----
    *[
        ("allow date *", f"date {words}", "allow", "every")
        for words in ("", "+%s", "-u", "-d x", "-r x", "--date x", "--reference x", "--date=x", "-u -d x +%s", "-dx")
    ],
    *[
        ("allow date *", f"date {words}", "prompt", "no rule covers 'date'")
        for words in ("-s x", "-f x", "0101", "-d x y", "-u y", "--set=x", "-d x -s y", "+%s y", "-d x --file y")
    ],
    ("allow date -s *", "date -s x", "allow", "every"),
    ("allow date -s *", "date -s x y", "prompt", "no rule covers"),
    ("allow date -s *", "date -s x +%s", "allow", "every"),
    ("allow date -d x", "date -d x", "allow", "every"),
    ("allow date 0101", "date 0101", "allow", "every"),
    ("allow /usr/bin/date *", "date 0101", "prompt", "no rule covers"),
    ("allow date x *", "date x y", "prompt", "no rule covers"),
    ("allow date *", "date $x", "prompt", "no rule covers"),
    ("allow date *", "date +%s$x", "prompt", "no rule covers"),
    ("allow date *", "date -d $x", "prompt", "no rule covers"),
    ("allow date *", "date -d", "allow", "every"),
]


@pytest.mark.parametrize(("rules", "line", "action", "reply"), VERDICTS)
def test_a_command_is_judged_by_the_rule_that_decides_which_is_reported(
    rules: str, line: str, action: Action, reply: str
) -> None:
    found = _judged(rules, line)

    assert (found.action, found.reason[: len(reply)]) == (action, reply)


@pytest.mark.parametrize(
    ("rules", "line", "action"),
    [
        ("deny rm *", "ls", "allow"),
        ("deny rm *", "setsid rm x", "deny"),
        ("deny rm *", "git rm x", "prompt"),
        ("prompt rm *", "setsid rm x", "prompt"),
        ("deny rm *", "setsid ls", "allow"),
        ("deny rm *", "setsid $x", "prompt"),
        ("allow setsid *, deny rm *", "setsid rm x", "allow"),
        ("allow rm x, deny rm *", "setsid rm x", "allow"),
        ("allow rm x, deny rm *", "setsid rm y", "deny"),
        ("deny *", "nice ls", "deny"),
        ("deny /bin/rm *", "setsid rm x", "deny"),
        ("deny r? *", "setsid rm x", "deny"),
        ("deny rm *", "setsid /bin/rm x", "deny"),
        ("prompt rm x, deny rm *", "setsid rm x", "prompt"),
        ("prompt git *, deny rm *", "git rm x", "prompt"),
        ("deny nice *", "nice ls", "deny"),
        ("allow nice ls, deny nice *", "nice ls", "allow"),
        ("prompt nice *, deny nice *", "nice ls", "prompt"),
        ("prompt nice x, deny nice *", "nice ls", "deny"),
    ],
)
def test_where_everything_else_is_allowed_a_rule_still_finds_what_it_is_against(
    rules: str, line: str, action: Action
) -> None:
    assert _judged(rules, line, default="allow").action == action
    assert _judged(rules, line, default="allow", enabled=False).action == "allow"


def test_text_that_can_not_be_read_is_denied_where_everything_is_that_no_rule_allows() -> None:
    for default, action in (("allow", "prompt"), ("prompt", "prompt"), ("deny", "deny")):
        found = _judged("allow ls *", "ls; echo ${x:-y}", default=default)  # type: ignore[arg-type]
        assert (found.action, found.certain, found.commands) == (action, False, ())
    held = _judged("allow ls *", "ls; git x; make")
    assert held.certain
    assert [piece.words[0].text for piece in held.commands] == ["git", "make"]


@pytest.mark.parametrize("shells", [None, (), ("sh",), ("bash",), ("bash", "sh")])
def test_a_rule_may_be_for_some_shells(shells: tuple[str, ...] | None) -> None:
    in_sh, directly = (_judged("allow ls *", line, shells=shells).action for line in ("ls;", "ls"))

    assert in_sh == ("prompt" if shells == ("bash",) else "allow")
    assert directly == ("prompt" if shells else "allow")


@pytest.mark.parametrize(
    ("cwd", "files", "description", "found", "holds"),
    [
        ("/a", None, None, CommandBinding("/a", {"x": "1"}), True),
        ("/a", None, None, CommandBinding("/b", {}), False),
        ("/a", {"x": "1"}, None, CommandBinding("/a", {"x": "1"}), True),
        ("/a", {"x": "1"}, None, CommandBinding("/a", {"x": "2"}), False),
        ("/a", {"x": "1"}, None, CommandBinding("/b", {"x": "1"}), False),
        (None, {}, None, CommandBinding("/a", {}), True),
        (None, {}, None, CommandBinding("/a", {"x": "1"}), False),
        (None, None, "always allowed by a person", CommandBinding("/a", {}), True),
        (None, None, "always allowed by a person", CommandBinding("/a", {"x": "1"}), False),
        (None, {"x": "1"}, "always allowed by a person", CommandBinding("/a", {"x": "1"}), True),
        (None, {"x": "1"}, "always allowed by a person", CommandBinding("/a", {}), False),
        ("/a", None, "always allowed by a person", CommandBinding("/a", {"x": "1"}), True),
        ("/a", None, "always allowed by a person", CommandBinding("/b", {}), False),
        (None, None, "by hand", None, True),
        ("/a", None, None, None, False),
    ],
)
def test_a_rule_that_is_bound_holds_where_everything_is_as_it_was(
    cwd: str | None, files: dict[str, str] | None, description: str | None, found: CommandBinding | None, holds: bool
) -> None:
    rule = Rule(pattern="ls *", action="allow", cwd=cwd, files=files, description=description)
    reading = unwrap([ParsedCommand((ShellWord("ls"),))])
    policy = ExecPolicy(default_action="prompt", rules=(rule,))

    assert evaluate_policy(policy, reading, locate=PLACES.get, bind=lambda _: found).action == (
        "allow" if holds else "prompt"
    )
    assert rule.is_bound is (description != "by hand")


@pytest.mark.parametrize(("length", "action"), [(1024, "allow"), (1025, "deny")])
def test_a_long_pattern_and_a_long_command_with_a_gap_count_as_fitting(length: int, action: Action) -> None:
    """From a mebi of comparisons on."""
    command = "nosuch $x ".ljust(length + 2, "b")  # compared as `nosuch* bbb`

    assert _judged("deny *" + "z" * 1023, command, default="allow").action == action


# ---- what an answer is remembered as ----

HERE = CommandBinding("/a", {"x": "1"})


def _piece(line: str, shell: str | None = None) -> ParsedCommand:
    return ParsedCommand(tuple(ShellWord(word, is_dynamic=word == "$x") for word in shlex.split(line)), shell)


@pytest.mark.parametrize(
    ("piece", "bound", "pattern"),
    [
        (_piece("make x"), HERE, "make x"),
        (_piece("make 'a b'"), HERE, "make 'a b'"),
        (_piece("./make x"), CommandBinding("/a", {}, "/a/make"), "/a/make x"),
        (_piece("make", "sh"), HERE, "make"),
        (_piece("make $x"), HERE, None),
        (_piece("make '*'"), HERE, None),
        (_piece("make '?'"), HERE, None),
        (_piece("'a b' x"), HERE, None),
        (_piece("make 'a\nb'"), HERE, None),
        (_piece("make x"), None, None),
        (_piece("make x"), CommandBinding("/a", None), None),
        (_piece("make " + "x" * 4091), HERE, "make " + "x" * 4091),
        (_piece("make " + "x" * 4092), HERE, None),
    ],
)
def test_an_answer_is_remembered_as_exactly_what_was_asked(
    piece: ParsedCommand, bound: CommandBinding | None, pattern: str | None
) -> None:
    by_hand = Rule(pattern="make x", action="allow")
    policy = ExecPolicy(default_action="prompt", rules=(by_hand,))

    changed = add_remembered_rules(policy, [piece], [bound])

    if pattern is None:
        assert changed is None
        return
    assert changed is not None
    assert bound is not None
    shells = (piece.shell,) if piece.shell else None
    fresh = Rule(
        pattern=pattern,
        action="allow",
        shells=shells,
        cwd="/a",
        files=bound.files,
        description="always allowed by a person",
    )
    assert changed.rules == (fresh, by_hand)
    assert add_remembered_rules(changed, [piece], [bound]) == changed


def test_a_later_answer_takes_the_place_of_an_earlier_one_of_the_same_words_and_folder() -> None:
    policy = ExecPolicy(default_action="prompt")
    for bound in (CommandBinding("/a", {"x": "1"}), CommandBinding("/b", {"x": "1"}), CommandBinding("/a", {"x": "2"})):
        changed = add_remembered_rules(policy, [_piece("make x"), _piece("git x")], [bound, bound])
        assert changed is not None
        policy = changed

    assert [(rule.pattern, rule.cwd, rule.files) for rule in policy.rules] == [
        ("make x", "/a", {"x": "2"}),
        ("git x", "/a", {"x": "2"}),
        ("make x", "/b", {"x": "1"}),
        ("git x", "/b", {"x": "1"}),
    ]
    assert add_remembered_rules(policy, [_piece("make x"), _piece("git $x")], [HERE, HERE]) is None
