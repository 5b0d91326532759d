"""What programs look for where they stand: files they build or run, and settings that start others."""

from collections.abc import Sequence
from typing import Final

_LINES: Final = """
    make gmake: GNUmakefile makefile Makefile
    just: justfile Justfile .justfile .env
    npm npx pnpm node: package.json .npmrc pnpm-workspace.yaml .pnpmfile.cjs
    yarn: package.json .yarnrc.yml .yarnrc .npmrc
    bun bunx: package.json bunfig.toml .npmrc .env
    deno: deno.json deno.jsonc package.json .npmrc
    tsx ts-node: package.json tsconfig.json
    jest mocha vitest eslint prettier webpack vite rollup: package.json *.config.*js *.config.*ts .mocharc.*
    cargo rustc rustup: Cargo.toml build.rs .cargo/config.toml .cargo/config rust-toolchain rust-toolchain.toml
    go: go.mod go.work
    rake: Rakefile rakefile Rakefile.rb rakefile.rb
    bundle bundler: Gemfile .bundle/config
    rspec: .rspec
    irb: .irbrc
    prove: .proverc
    pytest py.test: pytest.ini .pytest.ini pyproject.toml tox.ini setup.cfg conftest.py
    tox: tox.ini pyproject.toml setup.cfg tox.toml
    nox: noxfile.py
    invoke inv: tasks.py invoke.yaml
    fab: fabfile.py
    mypy pylint ruff flake8: mypy.ini .mypy.ini pyproject.toml setup.cfg .pylintrc pylintrc
    pip pipx uv uvx poetry pdm hatch flit pipenv: setup.py setup.cfg pyproject.toml Pipfile uv.toml
    pre-commit: .pre-commit-config.yaml
    sphinx-build: conf.py
    mkdocs: mkdocs.yml
    flask: .flaskenv .env app.py wsgi.py
    cmake ctest: CMakeLists.txt CMakePresets.json CMakeUserPresets.json CMakeCache.txt build.ninja Makefile
    ctest: CTestTestfile.cmake
    ninja samu: build.ninja
    meson: meson.build build.ninja
    scons: SConstruct Sconstruct sconstruct
    gradle gradlew: build.gradle build.gradle.kts settings.gradle settings.gradle.kts gradle.properties gradle/wrapper/*
    mvn mvnw: pom.xml .mvn/*
    ant: build.xml
    sbt: build.sbt project/*
    bazel bazelisk: WORKSPACE WORKSPACE.bazel MODULE.bazel BUILD BUILD.bazel .bazelrc
    docker docker-compose podman podman-compose nerdctl: Dockerfile Containerfile compose.y*ml compose.override.y*ml
    docker docker-compose podman podman-compose nerdctl: docker-compose.y*ml docker-compose.override.y*ml .env
    vagrant: Vagrantfile
    terraform tofu: *.tf *.tfvars .terraformrc
    ansible ansible-playbook: ansible.cfg
    task go-task: Taskfile.yml Taskfile.yaml taskfile.yml Taskfile.dist.yml
    composer: composer.json
    foreman honcho overmind: Procfile .env
    git: .git .git/config .git/config.worktree .git/hooks/* .git/info/attributes .gitattributes .gitmodules .husky/*
    hg: .hg/hgrc
    gdb: .gdbinit
    lldb: .lldbinit
    valgrind: .valgrindrc
    R Rscript: .Rprofile .Renviron
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


def _by_program() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in _LINES.strip().splitlines():
        programs, _, files = line.partition(":")
        for program in programs.split():
            found[program] = (*found.get(program, ()), *files.split())
    return found


_BY_PROGRAM: Final = _by_program()


def looked_for(program: str) -> Sequence[str]:
    """Their names, of which the last part may be a pattern."""
    return _BY_PROGRAM.get(program) or _BY_PROGRAM.get(program.rstrip("0123456789."), ())
