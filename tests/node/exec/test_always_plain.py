"""For which commands *always* is on offer: where their form alone says what they load and start, and nowhere else."""

import sys
from pathlib import Path

import pytest

from openclaw_mcp.node.exec.approvals import UNWATCHED_NOTICE

from .evaluating import script
from .test_always import PLAIN_PATH, Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PATH", PLAIN_PATH)
    machine = Machine(tmp_path)
    for name in ("s.js", "s.pl", "s.rb", "s.php", "s.lua", "x.c", "Foo.java", "app/index.js", "app.js", "mods/a.jar"):
        (machine.here / name).parent.mkdir(exist_ok=True)
        (machine.here / name).write_text("")
    script(machine.here / "jest")
    script(machine.here / "gradlew")
    return machine


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


PLAIN = """
    python3 script.py
    python3 -u -B script.py a b
    python3 -uB ./script.py -m pytest
    python3 -I sub/x.py
    /usr/bin/perl s.pl
    perl -w s.pl -d
    ruby s.rb
    node s.js --test
    node --no-warnings ./s.js
    php s.php
    lua s.lua
    bash run.sh
    sh -eu run.sh x
    zsh -e run.sh
    ./run.sh
    ./run.sh make
    env timeout 5 python3 script.py
    cat a.txt
    cp a.txt b.txt
    find . -name x
    sort -rn a.txt
    sed -n 1,20p a.txt
    jq .x a.txt
    git status
    git log -5
    git diff a.txt
"""


@pytest.mark.parametrize("command", _lines(PLAIN))
def test_always_is_on_offer_for_a_plain_form(machine: Machine, command: str) -> None:
    assert machine.run(*command.split()) == 1
    assert machine.asked[-1].always
    assert UNWATCHED_NOTICE not in machine.asked[-1].detail
    assert machine.run(*command.split()) == 0


ONCE = """
    node --test
    node --test s.js
    node -r hook s.js
    node -r ./app.js s.js
    node --require=./app.js s.js
    node --import hook s.js
    node --loader hook s.js
    node --env-file=a.txt s.js
    node --watch s.js
    node --run build
    node app
    node ./app
    node .
    node inspect s.js
    node -e 1
    node
    python3 -m json.tool a.txt
    python3 -m mod
    python3 -mmod
    python3 -um mod
    python3 -m venv --help
    python3 -m build
    python3 -c pass
    python3 -i script.py
    python3 -W error script.py
    python3 -X dev script.py
    python3 sub
    python3 .
    python3 ~/script.py
    python3 gone.py
    python3
    perl -d s.pl
    perl -I. s.pl
    perl -Mx s.pl
    perl -e 1
    ruby -r./x s.rb
    ruby -I. s.rb
    php -c . s.php
    php -d auto_prepend_file=a.txt s.php
    lua -l x s.lua
    bash -c
    bash --rcfile a.txt run.sh
    bash --init-file a.txt run.sh
    zsh -l run.sh
    javac Foo.java
    java Foo.java
    java -p mods -m app
    java -cp . Main
    java -jar mods/a.jar
    gcc x.c
    gcc -B. -c x.c
    gcc -specs=a.txt x.c
    gcc -fplugin=./a.txt x.c
    cc x.c
    awk -f a.txt
    sed -f a.txt a.txt
    sed -n 1e a.txt
    sed -n -i 1p a.txt
    sort --compress-program=./run.sh a.txt
    git -c core.hooksPath=hooks status
    git -c include.path=a.txt status
    git --exec-path=x status
    git --config-env=a=b status
    git --git-dir=x status
    git --work-tree=x status
    git -C sub status
    git checkout -q HEAD
    git commit -m x
    git push origin main
    git pull
    git fetch ../r.git
    git foo
    make
    make -f a.txt
    ninja
    npm version 1.0.1
    npm ci
    npm test
    npm test -w p
    npx tool
    yarn install
    pnpm i
    cargo run
    go build
    rustc x.rs
    docker build .
    docker buildx bake
    docker compose up
    pip install .
    uv run x
    poetry install
    pytest
    tar xf a.txt
    ssh host uptime
    rsync a b
    sqlite3 a.txt
    run-parts sub
    watch ls
    strace ls
    setsid python3 script.py
    some-program
    some-program a.txt
    ./jest
    ./gradlew build
    node ./jest
"""


@pytest.mark.parametrize("command", _lines(ONCE))
def test_always_is_not_on_offer_for_anything_else(machine: Machine, command: str) -> None:
    for _ in range(2):
        assert machine.run(*command.split()) == 1
        assert not machine.asked[-1].always
        assert UNWATCHED_NOTICE in machine.asked[-1].detail


# ---- whose interpreter it is ----


def _venv(folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python3").symlink_to("/usr/bin/python3")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")


@pytest.mark.parametrize("command", [".venv/bin/python3 script.py", "{here}/.venv/bin/python3 script.py", "./tool"])
def test_the_interpreter_of_a_virtual_environment_is_not_the_one_installed(machine: Machine, command: str) -> None:
    _venv(machine.here / ".venv")
    (machine.here / "tool").write_text(f"#!{machine.here}/.venv/bin/python3\nprint(1)\n")
    (machine.here / "tool").chmod(0o755)

    assert machine.run(*command.replace("{here}", str(machine.here)).split()) == 1
    assert not machine.asked[-1].always


def _shim(folder: Path) -> None:
    script(folder / "bin/python3", "exec /usr/bin/python3")


def _one_for_many(folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/volta-shim").write_bytes(Path(sys.executable).read_bytes()[:64])
    (folder / "bin/volta-shim").chmod(0o755)
    (folder / "bin/python3").symlink_to("volta-shim")


@pytest.mark.parametrize("make", [_venv, _shim, _one_for_many])
@pytest.mark.parametrize("argv", [("python3", "script.py"), ("sh", "-c", "python3 script.py"), ("./by-env",)])
def test_nor_is_one_on_the_path_that_reads_more(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: object, argv: tuple[str, ...]
) -> None:
    assert callable(make)
    make(tmp_path / ".volta")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/.volta/bin:{PLAIN_PATH}")
    (machine.here / "by-env").write_text("#!/usr/bin/env python3\nprint(1)\n")
    (machine.here / "by-env").chmod(0o755)

    assert machine.run(*argv) == 1
    assert not machine.asked[-1].always


FIRST_LINES = {
    "#!/bin/sh": True,
    "#!/bin/sh -e": True,
    "#! /bin/bash": True,
    "#!/usr/bin/env python3": True,
    "#!/usr/bin/env bash": True,
    "#!/usr/bin/perl -w": True,
    "#!/usr/bin/python3 -u": True,
    "#!/bin/bash -eu": True,
    "#!/usr/bin/perl -d": False,
    "#!/usr/bin/perl t.pl": False,
    "#!/usr/bin/perl ./run.sh": False,
    "#!/bin/sh ./run.sh": False,
    "#!/bin/sh run.sh": False,
    "#!/bin/bash sub/../run.sh": False,
    "#!/usr/bin/bash {here}/run.sh": False,
    "#!/usr/bin/python3 script.py": False,
    "#!/usr/bin/python3 -": False,
    "#!/bin/sh --": False,
    "#!/usr/bin/env -S python3 -m mod": False,
    "#!/usr/bin/env A=b": False,
    "#!/usr/bin/env ./run.sh": False,
    "#!/usr/bin/env pytest": False,
    "#!/usr/bin/make -f": False,
    "#!/usr/bin/awk -f": False,
    "#!./run.sh": False,
    "#!python3": False,
    "#!/bin/sh -c ls": False,
    "print(1)": False,
    "": False,
}


@pytest.mark.parametrize("line", FIRST_LINES)
def test_a_script_started_by_its_path_counts_as_its_first_line_has_it_started(machine: Machine, line: str) -> None:
    (machine.here / "t.pl").write_text("print 1;\n")
    script(machine.here / "tool").write_text(f"{line.replace('{here}', str(machine.here))}\nprint(1)\n")

    assert machine.run("./tool", "x") == 1
    assert machine.asked[-1].always is FIRST_LINES[line]


READ_BY_ITSELF = {
    "print 1;": True,
    "# a comment": True,
    "#!/usr/bin/{name}": True,
    "#! /usr/local/bin/{name} -w": True,
    "#!/usr/bin/env {name}": True,
    "#!/usr/bin/{name} -w\nprint '#!/bin/sh';": True,
    "#!/usr/bin/{name} -d": False,
    "#!/usr/bin/{name} -w -d": False,
    "#!/usr/bin/{name} -wd": False,
    "#!/usr/bin/{name} -I. -Mx": False,
    "#!/usr/bin/{name} -r./x": False,
    "#!/usr/bin/{name} t.pl": False,
    "#!/usr/bin/env -S {name} -d": False,
    "#!{name} -d": False,
    "#!/bin/sh": False,
    "#!/bin/sh -- # -*- {name} -*- -d": False,
    "#!/usr/bin/python3": False,
    " #!/usr/bin/{name} -d": False,
    ":#!/usr/bin/{name} -d": False,
    "\ufeff#!/usr/bin/{name} -d": False,
    "# line 1\n#!/usr/bin/{name} -d": False,
    "#!/usr/bin/{name} -d\r": False,
    "#\0!\0": False,
}
"""First lines of scripts for interpreters that read them even where the script is a word."""


@pytest.mark.parametrize("line", READ_BY_ITSELF)
@pytest.mark.parametrize(
    "command", ["perl s.pl", "perl -w ./s.pl x", "/usr/bin/perl s.pl", "env perl s.pl", "ruby s.rb", "ruby -w ./s.rb"]
)
def test_what_perl_and_ruby_read_in_a_scripts_first_line_counts_as_a_word(
    machine: Machine, command: str, line: str
) -> None:
    name = "ruby" if "ruby" in command else "perl"
    for script_name in ("s.pl", "s.rb"):
        (machine.here / script_name).write_text(f"{line.replace('{name}', name)}\nprint 1;\n", newline="")

    assert machine.run(*command.split()) == 1
    assert machine.asked[-1].always is READ_BY_ITSELF[line]


@pytest.mark.parametrize("command", ["python3 s.pl", "node s.pl", "sh s.pl"])
def test_for_others_the_first_line_of_a_script_that_is_a_word_is_a_comment(machine: Machine, command: str) -> None:
    (machine.here / "s.pl").write_text("#!/usr/bin/perl -d\n")

    assert machine.run(*command.split()) == 1
    assert machine.asked[-1].always


def test_an_answer_an_older_version_remembered_is_asked_for_again(machine: Machine) -> None:
    older = (
        '{"pattern": "make", "action": "allow", "description": "always allowed by a person", "cwd": "%s", "files": {}}'
    )
    rule = older % machine.there.resolve()
    (machine.there / "Makefile").unlink()
    (machine.state / "exec-policy.json").write_text(f'{{"defaultAction": "prompt", "rules": [{rule}]}}')

    assert machine.run("make", cwd=machine.there) == 1
