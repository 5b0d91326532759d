"""Families of commands against families of rules: denies that span words, open words, nesting, and every limit."""

import shlex
from pathlib import Path

import pytest

from openclaw_mcp.core.errors import ToolArguments
from openclaw_mcp.node.exec.approvals import POLICY_FILE, BadPolicy
from openclaw_mcp.node.exec.rules import ExecPolicy, Rule
from openclaw_mcp.node.system import parse_run_request

from .evaluating import approvals_of, rules, run, verdict

# ---- denies across program and arguments ----

FORBIDDEN = {
    "*--force*": """
        git push --force
        git push origin --force x
        nice git push --force
        git push --force-with-lease
        GIT PUSH --FORCE
        env LANG=C git push --force
        /usr/bin/git push --force
        git push $x
        git push `echo x`
        git $x main
        git push "$x"
        xargs git push
        echo a | xargs -I X git push X
        find . -exec git push {} ;
        sh -c 'git push --force'
        cp --force a b
    """,
    "git*push*": """
        git push
        git -C . push x
        /usr/bin/git push
        git $x
        git -c a=b push
        nohup git push
    """,
    "* -rf *": """
        cp -rf x y
        nice cp -rf x y
        cp $x y
        chmod -rf x y
    """,
    "*secret*": """
        cat secret
        cat ./a/secret.txt
        cat $x
        cat *
        ./secret x
        cat 'my secret file'
        cat SECRET
    """,
    "c?t *": """
        cat x
        /bin/cat x
        env cat x
        CAT x
        cut $x
    """,
    "git?push*": """
        git push
        git push x
    """,
    "* *": """
        ls x
        git x
        ./x y
    """,
    "*/git *": """
        git x
        /usr/bin/git x
        env git x
    """,
    "git push * --force": """
        git push x --force
        git push a b --force
        git push $x
    """,
    "cat * my*file": """
        cat x my-file
        cat $x
        cat 'x my file' my-file
    """,
}
UNTOUCHED = {
    "*--force*": """
        git push
        ls -l
        git push -f
        cat x
    """,
    "git*push*": """
        git log
        ls push
        cat git-push
        cp $x
    """,
    "* -rf *": """
        cp -r -f x y
        ls
    """,
    "c?t *": """
        coat x
        cp x y
        chat x
    """,
    "*/git *": """
        ls /git
    """,
    "git push * --force": """
        git push x
        git log x --force
    """,
}


def _rows(family: dict[str, str]) -> list[tuple[str, str]]:
    return [(pattern, line.strip()) for pattern, lines in family.items() for line in lines.strip().splitlines()]


def _argv(text: str) -> list[str]:
    return ["sh", "-c", text] if any(char in text for char in "$`*'\"|") else shlex.split(text)


@pytest.mark.parametrize(("pattern", "text"), _rows(FORBIDDEN))
def test_a_deny_is_found_wherever_it_might_fit(tmp_path: Path, pattern: str, text: str) -> None:
    assert verdict(tmp_path, rules("allow", deny=(pattern,)), _argv(text)) == "deny"


@pytest.mark.parametrize(("pattern", "text"), _rows(UNTOUCHED))
def test_a_deny_is_not_found_where_it_cannot_fit(tmp_path: Path, pattern: str, text: str) -> None:
    assert verdict(tmp_path, rules("allow", deny=(pattern,)), _argv(text)) == "allow"


# ---- denies against what a program is asked to start ----

STARTS_RM_BY_ARGUMENT = """
    setsid rm x
    setsid -w rm x
    setsid /bin/rm x
    setsid env rm x
    setsid setsid rm x
    setsid sh -c 'rm x'
    setsid sh -c rm
    chrt -o 0 rm x
    taskset 1 rm x
    taskset -c 1 RM x
    unshare rm x
    unshare -r -- rm x
    flock l rm x
    flock l -c 'rm x'
    strace -f -o out rm x
    prlimit --nofile=5 rm x
    script -c 'rm x' /dev/null
    watch rm x
    watch 'ls; rm x'
    chroot / rm x
    setarch -R rm x
    linux64 rm x
    runuser -u root rm x
    su -c 'rm x'
    su root -c 'echo x && rm x'
    setpriv rm x
    capsh -- -c 'rm x'
    /lib64/ld-linux-x86-64.so.2 /bin/rm x
    busybox setsid rm x
    busybox flock l rm x
    busybox chroot / rm x
    nsenter -t 1 rm x
    ssh-agent rm x
    ssh host rm x
    ssh host 'cd /srv && rm x'
    ssh host 'for f in *; do rm $f; done'
    ssh host sh -c 'env -i rm x'
    dbus-run-session rm x
    choom -n 0 rm x
    uclampset rm x
    pkexec rm x
    fakeroot rm x
    systemd-run --pipe rm x
    start-stop-daemon --start --exec=/bin/rm -- x
    xvfb-run rm x
    docker exec web rm x
    docker run --rm alpine sh -c 'rm x'
    kubectl exec pod -- rm x
    uv run rm x
    npx rm x
    mksh -c 'rm x'
    mksh -e -c 'ls; rm x'
    lksh -c 'rm x'
    zsh -c 'rm x'
    zsh -fc 'rm x'
    zsh -c '=rm x'
    zsh -c 'for f in *; { rm $f }'
    zsh-5.9 -c 'rm x'
    ksh93 -c 'rm x'
    yash -c 'rm x'
    yash -c 'nice rm x'
    fish -c 'rm x'
    tcsh -c 'rm x'
"""
NAMES_RM = """
    git rm x
    docker rm x
    man rm
    sort --compress-program=rm x
    split --filter='rm x' f
    tar cf x --checkpoint-action=exec='rm x' y
    make rm
    acme.sh rm
    setsid $(echo rm) x
    unshare -r $x
"""
NOTHING_OF_RM = """
    setsid ls x
    ssh host uptime
    ssh host 'echo rm'
    zsh -c 'ls; echo rm'
    zsh script.zsh
    git log
    git commit -m 'rm x'
    taskset 1 ls rmx
    echo rm
    cat rm
    ls setsid rm
    find . -name rm
    docker exec web ls
"""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("text", _lines(STARTS_RM_BY_ARGUMENT))
def test_a_deny_is_found_in_what_a_program_is_asked_to_start(tmp_path: Path, text: str) -> None:
    """Whether it is given as words or as text for a shell."""
    for policy in (
        rules("allow", deny=("rm *",)),
        rules("allow", deny=("r? *",)),
        rules("prompt", deny=("/bin/rm *", "rm")),
    ):
        approvals = approvals_of(tmp_path, policy)
        assert approvals.evaluate(shlex.split(text)).action == "deny", policy
    assert approvals_of(tmp_path, rules("allow", deny=("rm *",))).evaluate(["sh", "-c", text]).action == "deny"


@pytest.mark.parametrize("text", _lines(NAMES_RM))
def test_where_a_word_only_names_what_is_denied_a_person_is_asked(tmp_path: Path, text: str) -> None:
    assert verdict(tmp_path, rules("allow", deny=("rm *",)), ["sh", "-c", text]) == "prompt"


@pytest.mark.parametrize("text", _lines(NOTHING_OF_RM))
def test_what_starts_and_names_nothing_that_is_denied_is_not_touched(tmp_path: Path, text: str) -> None:
    assert verdict(tmp_path, rules("allow", deny=("rm *",)), ["sh", "-c", text]) == "allow"


@pytest.mark.parametrize("text", _lines(STARTS_RM_BY_ARGUMENT) + _lines(NAMES_RM))
def test_a_deny_changes_nothing_for_a_program_a_rule_before_it_allows(tmp_path: Path, text: str) -> None:
    """First match first: a rule that allows `ssh *` allows all it can do."""
    argv = shlex.split(text)
    if argv[0] == "busybox":
        argv = argv[1:]  # opened, so the rule has to name the applet
    allow = Rule(pattern=f"{argv[0]} *", action="allow")
    policy = ExecPolicy(default_action="deny", rules=(allow, Rule(pattern="rm *", action="deny")))
    approvals = approvals_of(tmp_path, policy)

    assert approvals.evaluate(argv).action == "allow" or argv[0].startswith("/")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("setsid git push x", "deny"),
        ("setsid git log", "allow"),
        ("ssh h 'git push'", "deny"),
        ("setsid git $x", "deny"),
    ],
)
def test_a_deny_for_some_arguments_is_found_by_them(tmp_path: Path, text: str, expected: str) -> None:
    policy = rules("allow", deny=("git push *",))

    assert verdict(tmp_path, policy, ["sh", "-c", text]) == expected


def test_a_question_is_found_in_what_a_program_is_asked_to_start(tmp_path: Path) -> None:
    policy = ExecPolicy(default_action="allow", rules=(Rule(pattern="git push *", action="prompt"),))

    assert verdict(tmp_path, policy, ["setsid", "git", "push"]) == "prompt"


def test_too_many_words_to_look_at_are_asked_about_in_no_time(tmp_path: Path) -> None:
    policy = rules("allow", deny=("rm -rf *", "*--force*", "git*push*"))

    assert verdict(tmp_path, policy, ["setsid", *["rm"] * 4000]) == "prompt"
    assert verdict(tmp_path, policy, ["zsh", "-c", "; ".join(f"a{at}" for at in range(200))]) == "prompt"


@pytest.mark.parametrize(
    ("before", "pattern", "text"),
    [
        ("/usr/bin/*", "xargs ls", "xargs ls"),
        ("busybox ls", "*--force*", "busybox $x"),
        ("env ls", "env *", "env $x ls"),
        ("sh -c x", "sh *", "sh -c $x"),
        ("x*", "xargs *", "xargs ls"),
        ("nice -n 1 *", "nice *", "nice -n $x ls"),
        ("find . *", "find *", "find $x"),
    ],
)
def test_a_question_that_only_might_fit_hides_no_deny_after_it(
    tmp_path: Path, before: str, pattern: str, text: str
) -> None:
    ask = Rule(pattern=before, action="prompt")
    policy = ExecPolicy(default_action="allow", rules=(ask, Rule(pattern=pattern, action="deny")))

    assert verdict(tmp_path, policy, ["sh", "-c", text] if "$" in text else text.split()) == "deny"


def test_comparing_with_open_words_is_bounded(tmp_path: Path) -> None:
    """A long pattern and a long command with a gap: counted as fitting, in no time."""
    policy = rules("allow", deny=("*" + "a*" * 2000,))

    assert verdict(tmp_path, policy, ["sh", "-c", f"cat {'b' * 60_000} $x"]) == "deny"


# ---- words of a shell that may evaluate what they are given ----


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("test -f x", "allow"),
        ("printf %s x", "allow"),
        ("test -f x && printf %s x", "allow"),
        ("test $x", "prompt"),
        ("test -f $x", "prompt"),
        ("test -v x", "prompt"),
        ("test -v 'a[0]'", "prompt"),
        ("[ $x ]", "prompt"),
        ("[ -n `echo x` ]", "prompt"),
        ('[ "$x" = y ]', "prompt"),
        ("[ -v x ]", "prompt"),
        ("printf $x", "prompt"),
        ("printf %s $x", "prompt"),
        ('printf "%d" "$x"', "prompt"),
        ("printf -v x y", "prompt"),
        ("printf -vx y", "prompt"),
        ("printf %s *", "prompt"),
        ("test -f ~/x", "prompt"),
    ],
)
def test_an_open_word_of_test_and_printf_is_not_for_a_rule_to_allow(
    tmp_path: Path, shell: str, text: str, expected: str
) -> None:
    policy = rules("prompt", allow=("test *", "[ *", "printf *", "echo *"))

    assert verdict(tmp_path, policy, [shell, "-c", text]) == expected


# ---- rules against open words ----


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("cat *", "cat $x", "allow"),
        ("cat x", "cat $x", "prompt"),
        ("cat x *", "cat x $y", "prompt"),
        ("cat ?", "cat $x", "prompt"),
        ("cat", "cat $x", "prompt"),
        ("cat *", "$x y", "prompt"),
        ("cat *", "c$x y", "prompt"),
        ("cat *", "cat x; $y", "prompt"),
        ("* x", "cat $x", "prompt"),
        ("ca* *", "cat $x", "allow"),
    ],
)
def test_an_open_word_is_covered_only_by_a_rule_for_any_arguments(
    tmp_path: Path, pattern: str, text: str, expected: str
) -> None:
    assert verdict(tmp_path, rules("prompt", allow=(pattern,)), ["sh", "-c", text]) == expected


# ---- every limit, by its number ----


@pytest.mark.parametrize("wrapper", [["env"], ["nice"], ["nohup"], ["timeout", "3"], ["env", "LANG=C"]])
@pytest.mark.parametrize(("depth", "expected"), [(1, "allow"), (8, "allow"), (9, "prompt"), (50, "prompt")])
def test_wrappers_within_wrappers_are_opened_eight_deep(
    tmp_path: Path, wrapper: list[str], depth: int, expected: str
) -> None:
    assert verdict(tmp_path, rules("prompt", allow=("ls *",)), [*wrapper * depth, "ls"]) == expected


@pytest.mark.parametrize(("count", "expected"), [(256, "allow"), (257, "prompt"), (5000, "prompt")])
def test_a_text_holds_at_most_256_commands(tmp_path: Path, count: int, expected: str) -> None:
    policy = rules("prompt", allow=("true", "echo *"))

    assert verdict(tmp_path, policy, ["sh", "-c", "true;" * count]) == expected
    assert verdict(tmp_path, policy, ["sh", "-c", "nice true\n" * count]) == expected


@pytest.mark.parametrize(("length", "expected"), [(65_536, "allow"), (65_537, "prompt")])
def test_a_text_is_at_most_65536_characters_long(tmp_path: Path, length: int, expected: str) -> None:
    text = "echo " + "x" * (length - 5)

    assert verdict(tmp_path, rules("prompt", allow=("echo *",)), ["sh", "-c", text]) == expected


@pytest.mark.parametrize(("count", "length", "fits"), [(2000, 4096, True), (2001, 1, False), (1, 4097, False)])
def test_there_are_at_most_2000_rules_of_4096_characters(tmp_path: Path, count: int, length: int, fits: bool) -> None:
    many = tuple(Rule(pattern="x" * (length if at == 0 else 1), action="deny") for at in range(count))
    policy = ExecPolicy(default_action="prompt", rules=many)

    if fits:
        approvals_of(tmp_path, policy)
        return
    with pytest.raises(BadPolicy, match=r"2000 rules|4096 characters"):
        approvals_of(tmp_path, policy)


@pytest.mark.parametrize(("size", "fits"), [(4_194_304, True), (4_194_305, False)])
def test_a_rules_file_is_at_most_four_mebibytes(tmp_path: Path, size: int, fits: bool) -> None:
    approvals = approvals_of(tmp_path, rules("prompt"))
    text = b'{"defaultAction": "prompt"}'
    (tmp_path / POLICY_FILE).write_bytes(text + b" " * (size - len(text)))

    if fits:
        assert approvals.load_policy() == rules("prompt")
        return
    with pytest.raises(BadPolicy):
        approvals.load_policy()


@pytest.mark.parametrize(("count", "fits"), [(4096, True), (4097, False)])
def test_a_command_has_at_most_4096_words(count: int, fits: bool) -> None:
    if fits:
        assert len(parse_run_request({"command": ["echo"] * count}).argv) == count
        return
    with pytest.raises(ToolArguments, match="4096"):
        parse_run_request({"command": ["echo"] * count})


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [({}, 30), ({"timeoutMs": 1}, 0.001), ({"timeoutMs": 600_000}, 600), ({"timeoutMs": 600_001}, 600),
     ({"timeoutMs": 10**12}, 600), ({"timeoutMs": 0}, 30), ({"timeoutMs": -5}, 30), ({"timeout": 50}, 0.05)],
)  # fmt: skip
def test_a_command_runs_thirty_seconds_by_default_and_ten_minutes_at_most(
    limits: dict[str, int], seconds: float
) -> None:
    assert parse_run_request({"command": ["true"], **limits}).seconds == seconds


@pytest.mark.parametrize(("size", "whole"), [(1_048_576, True), (1_048_577, False)])
def test_a_mebibyte_of_output_is_kept(tmp_path: Path, size: int, whole: bool) -> None:
    result = run(tmp_path, rules("allow"), ["head", "-c", str(size), "/dev/zero"])

    assert result["truncated"] is not whole
    assert (len(result["stdout"]) == size) is whole
