"""Rules that let through more than they say: what a wildcard never means, and what is said before one is made."""

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from openclaw_mcp.node.exec.approvals import POLICY_FILE
from openclaw_mcp.node.exec.program_powers import LAUNCHERS, READ_ONLY_PROGRAMS, can_start_programs, can_write
from openclaw_mcp.node.exec.rule_risks import assess_pattern, assess_policy, unknown_program_warning
from openclaw_mcp.node.exec.rules import DEFAULT_POLICY, ExecPolicy, Rule
from openclaw_mcp.node.exec.shell_reader import word_set
from tests.running import OPENCLAW

from .evaluating import approvals_of, real, rules, script, verdict

START_OTHERS = sorted(
    word_set("""
    sh bash dash zsh fish ksh mksh tcsh ash rbash busybox toybox coreutils bash-static zsh5 python python3
    python3.11 python2.7 python3.12-dbg pypy3 perl perl5.36.0 ruby ruby3.1 node node18 nodejs php php8.2 lua5.4
    luajit tclsh8.6 guile-3.0 awk gawk mawk nawk original-awk sed ed ex vi vim vim.basic nvim emacs emacs-nox nano
    R Rscript octave julia gnuplot ghci runghc ocaml sbcl erl elixir iex java java17 jshell mono dotnet groovy
    scala kotlin swift dc m4 sqlite3 psql mysql gdb split sort run-parts cmake ctest tar bsdtar cpio zip 7z rsync
    scp sftp ssh ssh-keygen autossh mosh sshpass install start-stop-daemon gcc gcc-12 g++-12 cc c++ c99 clang
    clang-15 clang++-15 x86_64-linux-gnu-gcc-12 gfortran-12 cpp-12 ld ld.gold as rustc go go1.21 tcc make gmake
    ninja meson bazel gradle mvn ant rake just task tox nox pytest poetry pdm hatch conda bundle gem composer npm
    npx pnpm yarn pip pip3 pip3.11 pipx uv uvx cargo git git-lfs hg svn man less more most bat pager view editor
    sensible-editor find fd fdfind xargs parallel entr watch watchexec inotifywait env nohup nice ionice timeout
    stdbuf time setsid setarch linux32 linux64 prlimit taskset chrt numactl cgexec flock faketime eatmydata
    fakeroot chroot proot schroot unshare nsenter capsh setpriv systemd-run systemd-nspawn systemctl journalctl
    dbus-send dbus-run-session gdbus busctl firejail bwrap flatpak snap strace ltrace perf valgrind bpftrace
    screen tmux dtach script unbuffer expect socat nc ncat nmap tcpdump tshark ansible ansible-playbook salt
    puppet vagrant terraform packer docker docker-compose podman kubectl helm lxc qemu-x86_64 qemu-system-x86_64
    wine at batch crontab cron service apt apt-get dpkg rpm dnf yum pacman brew update-alternatives sudo su doas
    pkexec runuser rg ag ack zgrep diff3 sdiff patch w3m lynx links elinks mutt mail mailx openssl gpg gpg2
    logrotate ip ffmpeg mpv convert magick pandoc latex pdflatex lualatex groff xdg-open gio xterm
    x-terminal-emulator xvfb-run ld.so ld-linux-x86-64.so.2 wget aria2c yt-dlp tee mc ranger fzf dialog
    emacsclient rlwrap torsocks proxychains4 gs exiftool rename dmesg openclaw claude codex
    busybox.static busybox-static toybox-x86_64 msgexec msgfilter runcon choom uclampset memusage sotruss prove cpan
    pg_virtualenv fakeroot-sysv fakeroot-tcp valgrind.bin gdbtui pdb3 lli lli-14 not-14 logsave pasuspender padsp
    rtcwake jexec gcore rpcgen opt-14 llc direnv mise pyenv asdf foreman honcho pm2 jest mocha scons zig
""")
)
"""By script, option, setting or nature; versions and cross compilers among them."""


@pytest.mark.parametrize("program", START_OTHERS)
def test_a_wildcard_for_the_program_never_means_one_that_starts_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """Neither where the system has it, nor in a folder of the user's own, nor under an innocent name."""
    own = tmp_path / "bin"
    script(own / program)
    (own / "zzz").symlink_to(program)
    patterns = (
        "*",
        "* *",
        "?* *",
        f"{program[0]}* *",
        f"{program[:-1]}? *",
        "z* *",
        "/usr/bin/* *",
        "/bin/* *",
        f"{own}/* *",
    )
    approvals = approvals_of(tmp_path / "state", rules("prompt", allow=patterns))
    ways = [[program, "x"], [f"/usr/bin/{program}", "x"], ["nice", program, "x"], ["sh", "-c", f"{program} x"]]

    assert [argv for argv in ways if approvals.evaluate(argv).action == "allow"] == []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}{os.environ['PATH']}")
    ways += [[f"{own}/{program}", "x"], [f"{own}/zzz", "x"], ["zzz", "x"]]
    assert [argv for argv in ways if approvals.evaluate(argv).action == "allow"] == []


def test_of_the_systems_own_programs_a_wildcard_means_only_those_that_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every program of this machine is tried."""
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    policy = rules("prompt", allow=("*", "* *", "/usr/bin/* *", "/usr/sbin/* *", "/bin/* *"))
    approvals = approvals_of(tmp_path, policy)
    names = {each.name for folder in ("/usr/bin", "/usr/sbin") for each in Path(folder).iterdir()}

    allowed = {name for name in names if approvals.evaluate([name, "x"]).action == "allow"}

    assert allowed <= READ_ONLY_PROGRAMS
    assert {"ls", "cat", "grep", "wc", "stat"} <= allowed


def test_no_program_that_looks_is_known_to_do_more() -> None:
    assert [name for name in sorted(READ_ONLY_PROGRAMS) if can_start_programs(name) or can_write(name)] == []
    assert not READ_ONLY_PROGRAMS & LAUNCHERS


@pytest.mark.parametrize(
    ("pattern", "argv", "expected"),
    [
        ("* *", ["ls", "-l"], "allow"),
        ("l* *", ["ls"], "allow"),
        ("/usr/bin/* *", ["cat", "x"], "allow"),
        ("{own}/* *", ["{own}/my-tool", "x"], "allow"),
        ("{own}/* *", ["my-tool", "x"], "allow"),
        ("my-* *", ["my-tool", "x"], "allow"),
        ("{own}/* *", ["ls"], "prompt"),
        ("{own}/*", ["{own}/below/my-tool"], "prompt"),
        ("{own}/*/my-tool *", ["{own}/below/my-tool"], "allow"),
        ("{own}/my-tool *", ["my-tool"], "allow"),
        ("{own}/my-tool *", ["./my-tool"], "prompt"),
        ("{own}/../own/my-tool *", ["my-tool"], "prompt"),
        ("my-tool *", ["{own}/my-tool"], "allow"),
        ("my-tool *", ["{own}/below/my-tool"], "prompt"),
        ("my-*", ["{own}/my-tool"], "prompt"),
        ("* --version", ["my-tool", "--version"], "allow"),
        ("* --version", ["git", "--version"], "prompt"),
    ],
)
def test_rules_for_paths_and_for_names_like_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, argv: list[str], expected: str
) -> None:
    own = tmp_path.resolve() / "bin"
    script(own / "my-tool")
    script(own / "below" / "my-tool")
    script(tmp_path / "work" / "my-tool")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}{os.environ['PATH']}")
    policy = rules("prompt", allow=(pattern.format(own=own),))

    words = [word.format(own=own) for word in argv]

    assert verdict(tmp_path / "state", policy, words, cwd=tmp_path / "work") == expected


# ---- warnings about a rule ----

RUN_WHAT_THEY_ARE_FED = """
    python3
    python3 -u
    python3 -i
    python3 -
    python3 /dev/stdin
    perl
    perl -w
    ruby
    node
    node -i
    php
    lua5.4
    sh
    sh -s
    bash -s x
    bash -x
    dash
    zsh -e
    mksh
    fish
    ssh host
    ssh -p 22 host
    su
    su root
    awk -f -
    sed -f -
    make -f -
    make -f /dev/stdin
    sqlite3 db
    psql
    mysql db
    at now
    batch
    crontab -
    bc
    ed x
    gdb
    docker build -
    kubectl apply -f -
    git apply -
    gcc -xc -
    xargs
    parallel
    /usr/bin/python3
    python3 -E
    python3 -v
    perl -n
    sqlite3 -batch db
    psql -h host db
    ssh -c aes128-ctr host
    ssh host bash
    ssh host sudo sh
    ssh host 'sudo bash'
    ssh -T host sh -s
    ssh -i key host python3
    setsid bash
    setsid python3 -u
    setsid env python3
    taskset 1 python3
    flock l sh
    chroot /x
    chroot /x sh
    unshare -r
    unshare sh
    nsenter -t 1 -m
    strace -f bash
    systemd-run --pipe bash
    dbus-run-session sh
    prlimit sh
    script -q /dev/null
    screen
    fakeroot
    fakeroot sh
    su root -c bash
    docker run -i alpine
    docker exec -i web sh
    docker run -i --rm alpine sh
    kubectl exec -i pod -- sh
    conda run python
    uv run python
    poetry run python
    bundle exec irb
    direnv exec . bash
    npx node
    gosu x sh
    zsh -c bash
    python3 manage.py shell
    django-admin shell
    flask shell
    rails console
    rails c
    terraform console
    git apply
    patch
    patch -p1
    cpio -i
"""
RUN_WHAT_THEY_NAME = """
    python3 script.py
    python3 -m http.server
    python3 -c 'print(1)'
    python3 --version
    perl -e 1
    bash run.sh
    bash -c id
    node app.js
    ssh host uptime
    su root -c id
    sqlite3 db .tables
    psql -c x
    ls
    cat x
    awk 1 file
    gdb --version
    node -v
    ssh -i key host uptime
    ssh host ls bash.txt
    setsid python3 /srv/x.py
    docker ps
    docker exec -i web ls
    kubectl get node
    crontab -l
    man bash
    apt install python3
    fakeroot make
    flock l make
    psql -h host -c x db
    mysql -e 'select 1'
    nice python3
    tee out
"""

ANY_FOLDERS = """
    python3 script.py: script.py: python3 /PATH/script.py
    python3 -u script.py arg: script.py: python3 -u /PATH/script.py arg
    python3 ./script.py: ./script.py: python3 /PATH/script.py
    python3.11 sub/script.py: sub/script.py: python3.11 /PATH/sub/script.py
    bash deploy.sh: deploy.sh: bash /PATH/deploy.sh
    bash -x deploy: deploy: bash -x /PATH/deploy
    zsh x.zsh: x.zsh: zsh /PATH/x.zsh
    node app.js: app.js: node /PATH/app.js
    node -r ./x.js /srv/app.js: ./x.js: node -r /PATH/x.js /srv/app.js
    ruby x.rb: x.rb: ruby /PATH/x.rb
    perl x.pl: x.pl: perl /PATH/x.pl
    php x.php: x.php: php /PATH/x.php
    java -jar app.jar: app.jar: java -jar /PATH/app.jar
    awk -f x.awk data: x.awk: awk -f /PATH/x.awk data
    sed --file=x.sed data: x.sed: sed --file=/PATH/x.sed data
    psql -f x.sql: x.sql: psql -f /PATH/x.sql
    Rscript x.R: x.R: Rscript /PATH/x.R
    ansible-playbook site.yml: site.yml: ansible-playbook /PATH/site.yml
    setsid python3 x.py: x.py: setsid python3 /PATH/x.py
    python3 -m http.server: http.server: python3 -I -m http.server
"""
"""Rules, the word by which the folder decides, and the rule that is offered instead."""
NO_FOLDERS = """
    python3 /srv/script.py
    python3 -u /srv/script.py data.csv
    python3 -I -m http.server
    python3 -c 'print(1)'
    bash /srv/deploy.sh prod
    node /srv/app.js
    java -jar /srv/app.jar
    awk -f /srv/x.awk data
    awk 1 file
    sed -n 1p file
    ssh host bash run.sh
    ps -eo pid,comm
    pgrep -x bash
"""
RUN_WHAT_THE_FOLDER_SAYS = """
    make test
    eslint .
    jest
    vite build
    terraform apply
    composer install
    mix test
    rspec
    pre-commit run
    mypy .
    latexmk x.tex
    dotnet build
    bazel build x
    deno task x
    bun test
    flask run
    scons
    vagrant up
    invoke x
    fab x
    sbt test
    stack build
    cabal build
    lein test
    nix build
    gulp
    grunt
    swift build
    dune build
    taskset 1 make
"""
SHOW_OTHER_PROGRAMS = """
    ps *
    ps aux
    ps eww -p *
    /bin/ps *
    pgrep *
    pgrep -a x
    pstree *
    pmap *
    top *
    top -b -n1
    htop *
    w *
    w
"""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("pattern", _lines(RUN_WHAT_THEY_ARE_FED))
def test_a_rule_for_what_runs_its_input_is_grave_without_a_wildcard_too(pattern: str) -> None:
    risk = assess_pattern(pattern)

    assert risk is not None
    assert risk.severe
    assert risk in assess_policy(rules("prompt", allow=(pattern,)))


@pytest.mark.parametrize("pattern", _lines(RUN_WHAT_THEY_NAME))
def test_a_rule_for_what_runs_its_own_words_is_not(pattern: str) -> None:
    risk = assess_pattern(pattern)

    assert risk is None or not risk.severe


@pytest.mark.parametrize("line", _lines(ANY_FOLDERS))
def test_a_script_that_depends_on_the_folder_is_named_with_what_does_not(line: str) -> None:
    """The caller chooses the folder."""
    pattern, word, instead = line.split(": ")

    risk = assess_pattern(pattern)

    assert risk is not None
    assert f"the {word} of any folder" in str(risk)
    assert repr(instead) in risk.safer_alternative
    assert risk in assess_policy(rules("prompt", allow=(pattern,)))


@pytest.mark.parametrize("pattern", _lines(NO_FOLDERS))
def test_a_script_has_no_warning_wherever_it_is_started(pattern: str) -> None:
    assert assess_pattern(pattern) is None


@pytest.mark.parametrize("pattern", _lines(RUN_WHAT_THE_FOLDER_SAYS))
def test_a_program_that_obeys_its_folder_has_a_warning(pattern: str) -> None:
    risk = assess_pattern(pattern)

    assert risk is not None
    assert "anything the folder it runs in tells" in str(risk)
    assert risk in assess_policy(rules("prompt", allow=(pattern,)))


@pytest.mark.parametrize("pattern", _lines(SHOW_OTHER_PROGRAMS))
def test_a_program_that_shows_others_has_a_warning_about_their_arguments(pattern: str) -> None:
    risk = assess_pattern(pattern)

    assert risk is not None
    assert "printing what your other programs were started with" in str(risk)


@pytest.mark.parametrize("program", ["ps", "pgrep", "pstree", "top", "htop", "w", "pmap"])
def test_a_wildcard_for_the_program_never_means_one_that_shows_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """They print other programs' variables: tokens. Neither the system's own nor one in a folder of the user's."""
    own = tmp_path / "bin"
    script(own / program)
    (own / "zzz").symlink_to(program)
    patterns = ("*", "* *", f"{program[0]}* *", f"?{program[1:]} *", "/usr/bin/* *", "/bin/* *", f"{own}/* *", "z* *")
    approvals = approvals_of(tmp_path / "state", rules("prompt", allow=patterns))
    ways = [[program, "x"], ["nice", program, "eww"], ["sh", "-c", f"{program} eww"], ["busybox", program]]
    assert [argv for argv in ways if approvals.evaluate(argv).action == "allow"] == []

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}{os.environ['PATH']}")
    ways += [[f"{own}/{program}", "x"], [f"{own}/zzz", "x"], ["zzz"]]
    assert [argv for argv in ways if approvals.evaluate(argv).action == "allow"] == []


@pytest.mark.parametrize("pattern", ["cat *", "grep *", "tail -n 5 *", "strings *", "* *"])
def test_a_program_that_prints_files_has_a_warning_about_proc(pattern: str) -> None:
    assert "through /proc what your programs were started with" in str(assess_pattern(pattern))


def test_an_answer_that_was_remembered_is_no_such_rule() -> None:
    bound = Rule(pattern="python3", action="allow", cwd="/", files={})

    assert assess_policy(ExecPolicy(default_action="prompt", rules=(bound,))) == []


@pytest.mark.parametrize(
    ("pattern", "reply"),
    [("frobnicate *", True), ("frobnicate x ?", True), ("./my-tool *", True), ("frobnicate x", False), ("ls *", False),
     ("seq *", False), ("date +*", False), ("git *", False), ("* *", False), ("which *", False), ("rm *", False)],
)  # fmt: skip
def test_a_wildcard_for_an_unknown_program_has_a_warning(pattern: str, reply: bool) -> None:
    assert bool(unknown_program_warning(pattern)) is reply


@pytest.mark.parametrize("program", START_OTHERS)
def test_a_rule_for_a_program_that_starts_others_is_grave(program: str) -> None:
    for pattern in (f"{program} *", f"/usr/bin/{program} *", f"{program} x *", f"{program} --flag ?"):
        risk = assess_pattern(pattern)
        assert risk is not None
        assert risk.severe
        assert risk.safer_alternative


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("git *", "starting any other program"),
        ("git log *", "writing, changing or removing"),
        ("ssh host *", "talking to other machines"),
        ("sudo *", "acting as another user"),
        ("cat *", "printing any file"),
        ("curl *", "talking to other machines"),
        ("rm *", "writing, changing or removing"),
        ("*", "every program"),
        ("* *", "every program"),
        ("g* *", "every program named like g*"),
        ("/usr/bin/* *", "every program in /usr/bin"),
        ("/opt/tools/*", "every program in /opt/tools"),
        ("make test", "anything the folder it runs in tells make to run"),
        ("git status", "anything the folder it runs in tells git to run"),
    ],
)
def test_what_a_rule_lets_through_is_reported(pattern: str, says: str) -> None:
    risk = assess_pattern(pattern)

    assert risk is not None
    assert says in str(risk)


@pytest.mark.parametrize("pattern", [rule.pattern for rule in DEFAULT_POLICY.rules if rule.action == "allow"])
def test_the_default_rules_let_through_what_they_say(pattern: str) -> None:
    assert assess_pattern(pattern) is None


@pytest.mark.parametrize(
    "pattern", ["seq *", "git rev-parse HEAD", "expr *", "sleep ?", "basename *", "ssh host uptime"]
)
def test_a_harmless_rule_has_no_warning(pattern: str) -> None:
    assert assess_pattern(pattern) is None


def test_a_link_of_ones_own_to_such_a_program_is_known_for_it(tmp_path: Path) -> None:
    (tmp_path / "g").symlink_to(real("git"))

    risk = assess_pattern("g *", lambda _: str((tmp_path / "g").resolve()))

    assert risk is not None
    assert risk.severe


def test_rules_switched_off_or_against_something_are_no_risk() -> None:
    assert assess_policy(rules("prompt", deny=("git *", "*"))) == []
    assert [risk.pattern for risk in assess_policy(rules("allow", allow=("git *", "ls *")))] == [
        "default allow",
        "git *",
    ]


# ---- at the terminal ----


def command(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [OPENCLAW, "approvals", *words, "--state-dir", str(state)]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)


def patterns_in(state: Path) -> list[str]:
    return [rule["pattern"] for rule in json.loads((state / POLICY_FILE).read_text())["rules"]]


@pytest.mark.parametrize(
    "words",
    [("allow", "git *"), ("allow", "*"), ("allow", "sudo *"), ("allow", "setsid bash"), ("allow", "ssh host bash"),
     ("default", "allow")],
)  # fmt: skip
def test_a_grave_rule_needs_a_second_yes(tmp_path: Path, words: tuple[str, str]) -> None:
    approvals_of(tmp_path, DEFAULT_POLICY)
    before = (tmp_path / POLICY_FILE).read_text()

    refused = command(tmp_path, *words)
    unchanged = (tmp_path / POLICY_FILE).read_text()
    confirmed = command(tmp_path, *words, "--yes")

    assert refused.returncode == 1
    assert "lets through" in refused.stdout
    assert "Safer: " in refused.stdout
    assert "add --yes if you mean it" in refused.stderr
    assert unchanged == before
    assert confirmed.returncode == 0
    assert "lets through" in confirmed.stdout
    assert (tmp_path / POLICY_FILE).read_text() != before


@pytest.mark.parametrize(
    ("typed", "confirmed"), [("y", True), ("YES", True), ("n", False), ("", False), ("maybe", False)]
)
def test_at_a_terminal_it_is_asked_once_more(tmp_path: Path, typed: str, confirmed: bool) -> None:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{typed}\n".encode())
        argv = [OPENCLAW, "approvals", "allow", "awk *", "--state-dir", str(tmp_path)]
        result = subprocess.run(argv, stdin=theirs, capture_output=True, text=True, check=False, timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)

    assert "[y/N]" in result.stdout
    assert result.returncode == (0 if confirmed else 1)
    assert ("awk *" in patterns_in(tmp_path)) == confirmed


def test_a_rule_that_only_reads_or_writes_is_made_with_a_word_and_others_without(tmp_path: Path) -> None:
    reply, silent = command(tmp_path, "allow", "cat *"), command(tmp_path, "allow", "seq *")

    script_of_any_folder, viewer = command(tmp_path, "allow", "python3 x.py"), command(tmp_path, "allow", "ps *")

    assert reply.returncode == silent.returncode == script_of_any_folder.returncode == viewer.returncode == 0
    assert "printing any file you can read" in reply.stdout
    assert "'python3 /PATH/x.py'" in script_of_any_folder.stdout
    assert "printing what your other programs were started with" in viewer.stdout
    assert silent.stdout == ""
    assert patterns_in(tmp_path)[:4] == ["ps *", "python3 x.py", "seq *", "cat *"]
    assert command(tmp_path, "deny", "git *").stdout == ""


def test_the_doctor_lists_the_rules_that_let_through_more_than_they_say(tmp_path: Path) -> None:
    def found() -> list[tuple[str, str]]:
        argv = [OPENCLAW, "doctor", "--json", "--state-dir", str(tmp_path)]
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        return [
            (each["state"], each["says"]) for each in json.loads(result.stdout)["findings"] if each["area"] == "rules"
        ]

    (fresh,) = found()
    approvals_of(
        tmp_path,
        rules("prompt", allow=("git *", "cat *", "seq *", "git rev-parse HEAD", "ps *", "python3 x.py", "setsid sh")),
    )
    listed = found()
    approvals_of(tmp_path, DEFAULT_POLICY)
    (clean,) = found()

    assert fresh[0] == "note"
    assert [state for state, _ in listed] == ["attention", "note", "note", "note", "attention"]
    assert "'git *' lets through" in listed[0][1]
    assert "'cat *' lets through" in listed[1][1]
    assert clean[0] == "fine"
