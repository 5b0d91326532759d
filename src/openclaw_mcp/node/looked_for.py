"""What programs look for where they stand: files they build or run, and settings that start others.

Of a name, `*` stands for anything and `{}` for each word the program is given. A list is in full or it is not: for a
program that can start others and has no full list, no answer is remembered, since what it runs can't be told.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from .powers import STARTERS, listed, plain_name, starts_others, unversioned
from .shell import words

SHELLS: Final = words("""
    sh bash rbash dash ash hush ksh ksh93 rksh mksh lksh pdksh oksh loksh zsh rzsh yash posh bosh osh csh tcsh fish
""")

_NOTHING: Final = (
    words("""
    python pypy perl php lua luajit tclsh guile julia ruby awk gawk mawk nawk sed bc dc ed
    env xargs find fd fdfind nohup nice ionice timeout stdbuf time gtime . source eval exec command builtin coproc trap
    setsid setarch linux32 linux64 i386 x86_64 prlimit taskset chrt numactl flock watch chronic ifne unbuffer script
    strace ltrace sudo doas su runuser chroot unshare nsenter setpriv fakeroot systemd-run systemctl systemd-cat
    systemd-inhibit journalctl loginctl machinectl hostnamectl timedatectl localectl resolvectl networkctl busctl
    dbus-send gdbus service busybox toybox coreutils ssh slogin scp sftp ssh-add ssh-agent ssh-copy-id sshpass rsync nc
    ncat netcat socat telnet ftp openssl gpg gpg2 gpgv wget
    sort split csplit tee install ginstall tar gtar bsdtar cpio zip unzip 7z 7za 7zr patch sdiff diff3 rg zgrep zdiff
    zcmp zcat bzcat xzcat zless zmore less more man apropos whatis info open xdg-open print edit see compose
    gcc g++ cc c++ c89 c99 cpp clang clang++ gfortran ld as ar ranlib nm objdump objcopy strip ldd javac rustc
    sqlite sqlite3 psql mysql mariadb redis-cli apt apt-get dpkg ip tc dmesg mount umount ldconfig modprobe insmod
    depmod udevadm nmcli crontab at batch top fuser kubectl
    """)
    | SHELLS
)
"""Programs that can start others and look for nothing in the folder they stand in: what runs is what they are given."""

_IN_FULL: Final = """
    make gmake: GNUmakefile* makefile* Makefile* s.* RCS/* SCCS/*
    ninja samu: build.ninja
    node nodejs: package.json node.config.json
    npm: package.json package-lock.json npm-shrinkwrap.json .npmrc binding.gyp server.js node_modules/.bin/{}
    npm: node_modules/.package-lock.json
    yarn: package.json yarn.lock .yarnrc.yml .yarnrc .npmrc .pnp.* yarn.config.cjs binding.gyp node_modules/.bin/{}
    yarn: .yarn/releases/* .yarn/plugins/* .yarn/plugins/*/*
    pnpm: package.json package.yaml package.json5 pnpm-lock*.yaml pnpm-workspace.yaml .npmrc .pnpmfile.* binding.gyp
    pnpm: node_modules/.bin/{}
    pip: setup.py setup.cfg pyproject.toml pylock*.toml MANIFEST.in
    uv: setup.py setup.cfg pyproject.toml uv.toml uv.lock .python-version* .venv/pyvenv.cfg .venv/bin/{}
    poetry: setup.py setup.cfg pyproject.toml poetry.toml poetry.lock .venv/pyvenv.cfg .venv/bin/{}
    cargo: Cargo.toml Cargo.lock build.rs .cargo/config.toml .cargo/config rust-toolchain rust-toolchain.toml
    cargo: src/*.rs src/bin/* src/bin/*/main.rs tests/*.rs tests/*/main.rs examples/*.rs examples/*/main.rs
    cargo: benches/*.rs benches/*/main.rs
    rustup: rust-toolchain rust-toolchain.toml
    gem: Gemfile Gemfile.lock gem.deps.rb gem.deps.rb.lock
    bundle bundler: Gemfile Gemfile.lock gems.rb gems.locked .bundle/config *.gemspec
    rake: Rakefile rakefile Rakefile.rb rakefile.rb rakelib/*.rake
    composer: composer.json composer.lock auth.json vendor/composer/installed.* vendor/bin/{}
    docker docker-compose podman podman-compose nerdctl: Dockerfile* Containerfile* .dockerignore .containerignore
    docker docker-compose podman podman-compose nerdctl: compose.y*ml compose.override.y*ml .env
    docker docker-compose podman podman-compose nerdctl: docker-compose.y*ml docker-compose.override.y*ml
    git: .git .git/config .git/config.worktree .git/hooks/* .git/info/attributes .gitattributes
    gdb: .gdbinit
    valgrind: .valgrindrc
    rscript: .Rprofile .Renviron
    java: .hotspotrc .hotspot_compiler
"""

_IN_PART: Final = """
    just: justfile Justfile .justfile .env
    npx bunx pnpx: package.json .npmrc pnpm-workspace.yaml .pnpmfile.cjs
    bun: package.json bunfig.toml .npmrc .env
    deno: deno.json deno.jsonc package.json .npmrc
    tsx ts-node: package.json tsconfig.json
    jest mocha vitest eslint prettier webpack vite rollup: package.json *.config.*js *.config.*ts .mocharc.*
    go: go.mod go.work go.sum
    rspec: .rspec
    irb: .irbrc
    prove: .proverc
    pytest py.test: pytest.ini .pytest.ini pyproject.toml tox.ini setup.cfg conftest.py
    unittest: test*.py
    tox: tox.ini pyproject.toml setup.cfg tox.toml
    nox: noxfile.py
    invoke inv: tasks.py invoke.yaml
    fab: fabfile.py
    mypy pylint ruff flake8: mypy.ini .mypy.ini pyproject.toml setup.cfg .pylintrc pylintrc
    pipx uvx pdm hatch flit pipenv: setup.py setup.cfg pyproject.toml Pipfile uv.toml
    pre-commit: .pre-commit-config.yaml
    sphinx-build: conf.py
    mkdocs: mkdocs.yml
    flask: .flaskenv .env app.py wsgi.py
    cmake ctest: CMakeLists.txt CMakePresets.json CMakeUserPresets.json CMakeCache.txt build.ninja Makefile
    ctest: CTestTestfile.cmake
    meson: meson.build build.ninja
    scons: SConstruct Sconstruct sconstruct
    gradle gradlew: build.gradle build.gradle.kts settings.gradle settings.gradle.kts gradle.properties gradle/wrapper/*
    mvn mvnw: pom.xml .mvn/*
    ant: build.xml
    sbt: build.sbt project/*
    bazel bazelisk: WORKSPACE WORKSPACE.bazel MODULE.bazel BUILD BUILD.bazel .bazelrc
    vagrant: Vagrantfile
    terraform tofu: *.tf *.tfvars .terraformrc
    ansible ansible-playbook: ansible.cfg
    task go-task: Taskfile.yml Taskfile.yaml taskfile.yml Taskfile.dist.yml
    foreman honcho overmind: Procfile .env
    hg: .hg/hgrc
    lldb: .lldbinit
    r: .Rprofile .Renviron
    octave: .octaverc
    ghci: .ghci
    erl: .erlang
    iex mix elixir: .iex.exs mix.exs
    stack cabal: stack.yaml package.yaml cabal.project
    latexmk: latexmkrc .latexmkrc
    nix nix-shell nix-build: flake.nix default.nix shell.nix
    dotnet: global.json Directory.Build.props *.csproj *.sln
    direnv: .envrc
    vim vi nvim ex: .exrc .vimrc .nvimrc
    emacs: .dir-locals.el
"""
"""What is known of the rest: a yes is for these files as they were, and others are not watched."""

_ANYTHING: Final = re.compile(b"")
_INCLUDES: Final = re.compile(rb"(?i)\[\s*include|hookspath")
_GITLINK: Final = re.compile(rb"\0\0\xe0\0")
"""The mode of an entry that is another repository, whose settings count as well."""

_LEADS_ON: Final[dict[str, dict[str, re.Pattern[bytes]]]] = {
    "git": {
        "HEAD": _ANYTHING,  # a repository without a .git, or the inside of one
        ".git": re.compile(rb"gitdir:"),
        ".git/config": _INCLUDES,
        ".git/config.worktree": _INCLUDES,
        ".git/index": _GITLINK,
        **dict.fromkeys((".gitmodules", ".git/modules", ".git/commondir", ".git/sharedindex.*"), _ANYTHING),
        **dict.fromkeys((".git/rebase-*", ".git/sequencer"), _ANYTHING),  # their lists hold commands
    },
    "poetry": {".poetry": _ANYTHING},
}
"""Files which, with this in them, make a program look in other places: then its list is not in full."""


def _by_program(lines: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in lines.strip().splitlines():
        programs, _, files = line.partition(":")
        for program in programs.split():
            found[program] = (*found.get(program, ()), *files.split())
    return found


_FULL: Final = dict.fromkeys(_NOTHING, ()) | _by_program(_IN_FULL)
_PART: Final = _by_program(_IN_PART)
_NAMES: Final = _PART | _FULL
_KNOWN: Final = frozenset(_FULL)
_UNSURE: Final = frozenset(_PART)


def looked_for(program: str) -> Sequence[str]:
    """The names of what it looks for, as far as we know."""
    name = plain_name(program)
    return _NAMES.get(name) or _NAMES.get(unversioned(name), ())


def leads_on(program: str) -> Mapping[str, re.Pattern[bytes]]:
    """What makes it look for more than that: the names of files, and what must not stand in them."""
    return _LEADS_ON.get(plain_name(program), {})


def is_in_full(program: str) -> bool:
    """Whether it looks for nothing by itself but what is listed. Taken to be so of a program that starts no others, and
    of a script, which is what it reads."""
    name = plain_name(program)
    return listed(name, _KNOWN) or name.endswith(".sh") or not (starts_others(name) or listed(name, _UNSURE))


def may_look_for_more(word: str) -> bool:
    """Whether a word is the name of a program of which that can't be said, should the command start it."""
    name = plain_name(word)
    return not listed(name, _KNOWN) and (listed(name, STARTERS) or listed(name, _UNSURE))
