"""Files that programs read in the current folder without being given their names: build files, and settings that start
programs. As far as we know.

In a name, `*` matches anything and `{}` is replaced by each argument. A person's yes is for these files as they were
when it was asked for. The table is never complete, so nothing is remembered because of it: `always_offer` decides that.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from .program_powers import BUILDERS, is_listed, plain_name, strip_version

_IMPLICIT_FILES: Final = """
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

_ANY_CONTENT: Final = re.compile(b"")
_GITLINK: Final = re.compile(rb"\0\0\xe0\0")
"""The mode of an entry that is another repository, whose settings count as well."""
_HARMLESS_GIT_SETTINGS: Final = (
    rb"repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|url|"
    rb"pushurl|fetch|remote|merge|rebase|prune|tagopt|name|email|defaultbranch|ff|autosetuprebase|vscode-merge-base"
)
_RISKY_GIT_SETTING: Final = re.compile(
    rb"(?im)^(?![ \t]*(?:"
    rb"|[#;].*"
    rb"|\[(?:core|remote|branch|user|init|pull|push)(?: \"[^\"\\\n]*\")?\]"
    rb"|(?:" + _HARMLESS_GIT_SETTINGS + rb")(?:[ \t]*=[^\\\n]*)?"
    rb")[ \t\r]*$)"
)
"""A line of git's settings that may start a program or refer to another place."""

_GIT_INDIRECTIONS: Final[dict[str, re.Pattern[bytes]]] = {
    "HEAD": _ANY_CONTENT,  # a repository without a .git, or the inside of one
    ".git": re.compile(rb"gitdir:"),
    ".git/config": _RISKY_GIT_SETTING,
    ".git/index": _GITLINK,
    **dict.fromkeys((".gitmodules", ".git/modules", ".git/commondir", ".git/sharedindex.*"), _ANY_CONTENT),
}
"""Files which, with this content, make git start a program or read other places."""


def _parse_table(lines: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in lines.strip().splitlines():
        programs, _, files = line.partition(":")
        for program in programs.split():
            found[program] = (*found.get(program, ()), *files.split())
    return found


_FILES_BY_PROGRAM: Final = _parse_table(_IMPLICIT_FILES)


def implicit_files(program: str) -> Sequence[str]:
    """The names of the files it looks for, as far as we know."""
    name = plain_name(program)
    return _FILES_BY_PROGRAM.get(name) or _FILES_BY_PROGRAM.get(strip_version(name), ())


def runs_folder_code(program: str) -> bool:
    """Whether it is known to run code of the current folder. What node looks for is beside its script."""
    name = plain_name(program)
    return is_listed(name, BUILDERS) or (bool(implicit_files(name)) and name not in ("node", "nodejs", "java"))


def indirection_patterns(program: str) -> Mapping[str, re.Pattern[bytes]]:
    """Files that make a program do more than read: their names, and the content that does it."""
    return _GIT_INDIRECTIONS if plain_name(program) == "git" else {}
