"""The rules a node starts with, judged by what their programs can read, write and start; and what programs inherit."""

from pathlib import Path

import pytest

from openclaw_mcp.core.errors import OpenClawError, ToolDenied
from openclaw_mcp.node.exec.rules import DEFAULT_POLICY

from .evaluating import rules, run, verdict

SECRET = "tok-3f9a77c1d2"

ALLOWED = {
    # what the wildcard stands for: what its program can read, write and start with any words at all
    "echo *": "its words, and names of files through patterns",
    "uname *": "facts of the kernel",
    "df *": "disks, and whether a path exists",
    "ls *": "names, sizes and owners of files, never what is in them",
    "which *": "where programs lie",
    "date +*": "the time; not -f and -s, which a wildcard never means",
    # and those without one: exactly these words
    "hostname": "",
    "whoami": "",
    "id": "",
    "date": "",
    "uptime": "",
    "pwd": "",
    "true": "",
    "false": "",
    "nproc": "",
    "arch": "",
}


def test_every_rule_that_allows_has_been_judged() -> None:
    assert {rule.pattern for rule in DEFAULT_POLICY.rules if rule.action == "allow"} == set(ALLOWED)
    assert DEFAULT_POLICY.default_action == "prompt"


ATTEMPTS = [
    "xargs -a {file} echo",
    "xargs -a{file} echo",
    "xargs --arg-file={file} echo",
    "xargs --arg-file {file} echo",
    "xargs --arg-f={file} echo",
    "xargs -ta {file} echo",
    "xargs -0 -a {file}",
    "xargs -a {file} ls",
    "env xargs -a {file} uname",
    "nice -n 1 xargs -a {file} which",
    "echo x | xargs -a {file} df",
    "sh -c 'xargs -a {file} echo'",
    "date -f {file}",
    "date -f{file}",
    "date -uf {file}",
    "date -Rf{file}",
    "date --file={file}",
    "date --file {file}",
    "date --fi={file}",
    "date --f={file}",
    "date +%s -f {file}",
    "date +%s -f{file}",
    "date +%s -uf {file}",
    "date +%s -Rf {file}",
    "date +%s --file={file}",
    "date +%s --fil {file}",
    "date +%s -u --utc --f={file}",
    "date '+%s' '-f' '{file}'",
    "env date +%s -f {file}",
    "timeout 3 date +%s -f {file}",
    "/usr/bin/date +%s -f {file}",
    "echo -f {file} | xargs date +%s",
    "echo {file} | xargs date +%s -f",
    "echo {file} | xargs -I X date +%s -fX",
    "find {file} -exec date +%s -f {{}} +",
    "date +%s $(echo -f {file})",
    "date +%s $X -f {file}",
    "echo $(< {file})",
    "echo `cat {file}`",
    'echo "$(cat {file})"',
    "echo < {file} | xargs echo",
    "xargs echo < {file}",
    "echo x | xargs -I X cat {file}",
    "ls $(cat {file})",
    "uname $(cat {file})",
    "which `cat {file}`",
    "find -files0-from {file}",
    "hostname -F {file}",
    "id $(cat {file})",
    "sh {file}",
    "sh -v {file}",
    "bash {file}",
    ". {file}",
    "nproc --all $(cat {file})",
    "df $(cat {file})",
    "printf %s $(cat {file})",
    "test -f {file} && cat {file}",
    "env -S 'cat {file}'",
    "busybox cat {file}",
    "xargs -I X -a {file} echo X",
]


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_nothing_the_default_rules_allow_prints_a_file(tmp_path: Path, attempt: str) -> None:
    file = tmp_path / "token.txt"
    file.write_text(f"{SECRET}\n")

    try:
        result = run(tmp_path / "state", DEFAULT_POLICY, attempt.format(file=file), cwd=str(tmp_path), timeoutMs=5000)
    except OpenClawError as refused:
        assert SECRET not in str(refused)
    else:
        assert SECRET not in result["stdout"] + result["stderr"]


@pytest.mark.parametrize(
    "words",
    ["-s 12:00", "--set=12:00", "--se 12:00", "+%s -s 12:00", "+%s --set 12:00", "-us12:00", "+%s -us 12:00"],
)
def test_nothing_the_default_rules_allow_sets_the_clock(tmp_path: Path, words: str) -> None:
    for policy in (DEFAULT_POLICY, rules("prompt", allow=("date *",))):
        assert verdict(tmp_path, policy, ["date", *words.split()]) == "prompt"


SETS_THE_CLOCK = (
    "11171000",
    "+%s 11171000",
    "+%s 111710002026.30",
    "-u 11171000",
    "+%s -u 11171000",
    "11171000 +%s",
    "+%s -- 11171000",
    "-n 11171000",
    "-j 11171000",
    "+%s -D %s 5",
    "+%s -v +1d 11171000",
    "-d yesterday 11171000",
    "+%s -d x 11171000",
    "+%s -I 11171000",
    "+%s --date=x 11171000",
    "-uf dates.txt",
    "+%s -uI -s 12:00",
    "-us12:00",
    "+%s -z x",
    "+%s --fil=x",
    "@5",
)


@pytest.mark.parametrize("words", SETS_THE_CLOCK)
@pytest.mark.parametrize("program", ["date", "busybox date", "/usr/bin/date", "env date", "./today"])
def test_no_word_that_some_date_takes_for_a_new_time_is_meant_by_a_wildcard(
    tmp_path: Path, program: str, words: str
) -> None:
    (tmp_path / "today").symlink_to("/usr/bin/date")
    own = f"{tmp_path.resolve()}/today *"

    for policy in (DEFAULT_POLICY, rules("prompt", allow=("date *", "/usr/bin/date *")), rules("prompt", allow=(own,))):
        if policy.rules[0].pattern == own and program == "./today":
            continue  # a name of their own is theirs to know
        assert verdict(tmp_path / "s", policy, [*program.split(), *words.split()], cwd=tmp_path) == "prompt"


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        ("-u +%s", "date *"),
        ("+%s", "date +*"),
        ("+%s --date=yesterday", "date +*"),
        ("-d @5 +%s", "date *"),
        ("-Iseconds", "date *"),
        ("--rfc-3339=seconds", "date *"),
        ("11171000", "date 11171000"),
        ("+%F -u", "date +*"),
        ("+%FT%T%z -d yesterday", "date +*"),
        ("+%s -Iseconds", "date +*"),
        ("-d friday +%F", "date *"),
        ("-r file", "date *"),
        ("-f dates.txt", "date -f *"),
        ("-f dates.txt", "date -f dates.txt"),
        ("--set=12:00", "date --set=12:00"),
    ],
)
def test_dates_other_words_are_meant_and_those_a_rule_writes_itself(tmp_path: Path, words: str, pattern: str) -> None:
    assert verdict(tmp_path, rules("prompt", allow=(pattern,)), ["date", *words.split()]) == "allow"


@pytest.mark.parametrize("words", ["nobody", "-g", "root x"])
@pytest.mark.parametrize("program", ["id", "hostname", "whoami", "date", "pwd", "nproc", "true", "arch", "uptime"])
def test_a_rule_without_a_wildcard_means_no_further_word(tmp_path: Path, program: str, words: str) -> None:
    assert verdict(tmp_path, DEFAULT_POLICY, [program, *words.split()]) == "prompt"
    assert verdict(tmp_path, DEFAULT_POLICY, ["sh", "-c", f"{program} $x"]) == "prompt"


# ---- what xargs feeds ----

EXACT = rules("prompt", allow=("git status", "git log X", "echo *", "echo"))


@pytest.mark.parametrize(
    ("options", "command", "expected"),
    [
        ("-I X", "git status", "allow"),
        ("-I X", "git log X", "prompt"),
        ("-I X", "echo X", "allow"),
        ("-I X", "git log", "prompt"),
        ("", "git status", "prompt"),
        ("-n 1", "git status", "prompt"),
        ("-L 1", "git status", "prompt"),
        ("-I X -L 1", "git status", "prompt"),
        ("-I X -L1", "git status", "prompt"),
        ("-IX -L 1", "git status", "prompt"),
        ("-L 1 -I X", "git status", "prompt"),
        ("-I X -n 1", "git status", "prompt"),
        ("-n1 -IX", "git status", "prompt"),
        ("-I X --max-args=1", "git status", "prompt"),
        ("-I X --max-lines=1", "git status", "prompt"),
        ("--max-lines 1 -I X", "git status", "prompt"),
        ("-I X -I Y", "git status", "prompt"),
        ("-IX -IY", "echo X", "prompt"),
        ("-I X -I X", "git status", "allow"),
        ("-i", "git status", "prompt"),
        ("-iX", "git status", "prompt"),
        ("-l", "git status", "prompt"),
        ("-l1 -I X", "git status", "prompt"),
        ("--replace", "git status", "prompt"),
        ("--replace=X", "git log X", "prompt"),
        ("-0I X", "git status", "prompt"),
        ("-I X -P 4 -t", "git status", "allow"),
        ("-I git", "git status", "prompt"),
        ("-I s", "git status", "prompt"),
        ("-I i", "git status", "prompt"),
        ("-J X", "git log X", "prompt"),
        ("-o", "git status", "prompt"),
        ("-- -I X", "git status", "prompt"),
        ("-I", "X git status", "allow"),
        ("-E X -I X", "git status", "allow"),
        ("-I X env", "git status", "allow"),
        ("-I X env", "git log X", "prompt"),
        ("-I X xargs", "git status", "prompt"),
    ],
)
def test_what_xargs_feeds_a_command_is_not_overlooked(
    tmp_path: Path, options: str, command: str, expected: str
) -> None:
    argv = ["xargs", *options.split(), *command.split()]

    assert verdict(tmp_path, EXACT, argv) == expected
    assert verdict(tmp_path, EXACT, ["sh", "-c", f"echo a | {' '.join(argv)}"]) == expected


# ---- what programs inherit ----

PASSED = {
    "HOME": "/home/somebody",
    "USER": "somebody",
    "LOGNAME": "somebody",
    "SHELL": "/bin/sh",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "TZ": "UTC",
    "TERM": "xterm",
    "TMPDIR": "/tmp",
    "DISPLAY": ":7",
    "WAYLAND_DISPLAY": "wayland-7",
    "XDG_RUNTIME_DIR": "/run/user/7",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/7/bus",
    "XAUTHORITY": "/home/somebody/.Xauthority",
    "SSH_AUTH_SOCK": "/run/user/7/agent",
    "https_proxy": "http://proxy.example:3128",
    "NO_PROXY": "localhost",
}
HELD_BACK = [
    "OPENCLAW_GATEWAY_TOKEN",
    "OPENCLAW_MCP_TOKEN",
    "OPENCLAW_NODE_TOKEN",
    "REMOTECLAW_GATEWAY_TOKEN",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "ELEVENLABS_API_KEY",
    "GITHUB_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "DATABASE_URL",
    "PGPASSWORD",
    "MYSQL_PWD",
    "SENTRY_DSN",
    "VAULT",
    "PLAIN",
    "lowercase",
    "LC_SECRET",
    "LANG_KEY",
    "XDG_SECRET",
    "HOME_PASSWORD",
    "OPENCLAW_STORE_URL",
    "BASH_ENV",
    "ENV",
    "PS4",
    "PYTHONPATH",
    "GIT_ASKPASS",
    "BASH_FUNC_ls%%",
]


def test_programs_start_with_a_short_list_of_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PASSED.items():
        monkeypatch.setenv(name, value)
    for name in HELD_BACK:
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("HTTP_PROXY", f"http://me:{SECRET}@proxy.example:3128")
    policy = rules("prompt", allow=("env", "echo *"))

    output = run(tmp_path, policy, ["env"])["stdout"]
    names = " ".join(f"${name}" for name in HELD_BACK if name.isidentifier())
    echoed = run(tmp_path, DEFAULT_POLICY, f"echo $HTTP_PROXY {names}")["stdout"]

    assert SECRET not in output + echoed
    assert PASSED.items() <= dict(line.partition("=")[::2] for line in output.splitlines()).items()


@pytest.mark.parametrize("name", ["PLAIN", "VAULT", "DATABASE_URL"])
@pytest.mark.parametrize("text", ["echo ${}", "echo ${{{}}}", 'echo "${}"', "echo a${}b", "ls ${}", "which ${}"])
def test_no_variable_of_ours_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(name, SECRET)

    result = run(tmp_path, DEFAULT_POLICY, text.format(name))

    assert SECRET not in result["stdout"] + result["stderr"]


def test_a_variable_the_caller_gives_still_reaches_the_program(tmp_path: Path) -> None:
    assert run(tmp_path, rules("allow"), ["date", "+%Z"], env={"TZ": "XYZ3"})["stdout"] == "XYZ\n"
    with pytest.raises(ToolDenied):
        run(tmp_path, DEFAULT_POLICY, ["date"], env={"COLOUR": "red"})
