"""In which folders of the PATH a bare name means a program: the system's and well-known ones, never a project's."""

import os
from pathlib import Path

import pytest

from openclaw_mcp.node.exec.rules import DEFAULT_POLICY, ExecPolicy

from .evaluating import rules, script, verdict

LOOKING = rules("prompt", allow=("ls *", "echo *"))
COMMANDS = [["ls", "-l"], ["env", "ls"], ["sh", "-c", "echo a; ls"]]

PROJECTS = {
    "packages": ("proj/node_modules/.bin", ""),
    "packages of another user's": ("x/node_modules/tool/bin", ""),
    "a virtual environment": ("proj/.venv/bin", "proj/.venv/pyvenv.cfg"),
    "a repository": ("proj/bin", "proj/.git/config"),
    "a worktree": ("proj/tools/bin", "proj/.git"),
    "a repository of Mercurial": ("proj/bin", "proj/.hg/store"),
    "a checkout of Subversion": ("proj/bin", "proj/.svn/entries"),
    "a repository of Jujutsu": ("proj/bin", "proj/.jj/repo"),
    "an unpacked archive": ("proj/vendor/bin", "proj/composer.json"),
    "an environment of conda": ("proj/env/bin", "proj/env/conda-meta/history"),
    "packages of pdm": ("proj/__pypackages__/3.11/bin", "proj/pyproject.toml"),
    "programs of yarn": ("proj/.yarn/bin", "proj/.pnp.cjs"),
    "what cargo built": ("proj/target/debug", "proj/Cargo.toml"),
    "a folder without any sign": ("proj/bin", ""),
    "a repository in the home folder": ("home/proj/bin", "home/proj/.git/config"),
    "one of Mercurial in the home folder": ("home/proj/bin", "home/proj/.hg/store"),
    "a folder of the home folder without any sign": ("home/proj/bin", ""),
    "an agent's workspace": ("home/.openclaw-mcp/workspaces/main/bin", "home/.openclaw-mcp/workspaces/main/.git"),
    "a worktree of a coding agent": ("home/.claude/worktrees/x/bin", "home/.claude/worktrees/x/.git"),
    "conda's own folder": ("home/miniconda3/bin", "home/miniconda3/conda-meta/history"),
    "a repository in a well-known place": ("home/bin", "home/bin/.git/config"),
    "a repository around a well-known place": ("home/.local/bin", "home/.local/.hg/store"),
    "an environment that a version manager keeps": ("home/.pyenv/versions/x/bin", "home/.pyenv/versions/x/pyvenv.cfg"),
    "a folder below a well-known one": ("home/bin/proj", ""),
    "a plugin of a version manager": ("home/.pyenv/plugins/x/bin", "home/.pyenv/plugins/x/.git/config"),
}
OWN = {
    "a folder of the user's": ("home/bin", ""),
    "a hidden one": ("home/.local/bin", ""),
    "a home folder that is a repository": ("home/.local/bin", "home/.git/config"),
    "a home folder with packages": ("home/.local/bin", "home/package.json"),
    "Rust": ("home/.cargo/bin", ""),
    "Go": ("home/go/bin", ""),
    "Volta": ("home/.volta/bin", ""),
    "Bun": ("home/.bun/bin", ""),
    "Deno": ("home/.deno/bin", ""),
    "npm": ("home/.npm-global/bin", ""),
    "shims of a version manager": ("home/.pyenv/shims", "home/.pyenv/.git/config"),
    "a version manager": ("home/.pyenv/bin", "home/.pyenv/.git/config"),
    "a version": ("home/.pyenv/versions/3.12.1/bin", "home/.pyenv/.git/config"),
    "a version of Node": ("home/.nvm/versions/node/v22.1.0/bin", "home/.nvm/package.json"),
    "a version that asdf installed": ("home/.asdf/installs/ruby/3.3.0/bin", "home/.asdf/.git/config"),
}


@pytest.mark.parametrize("kind", [*PROJECTS, *OWN])
@pytest.mark.parametrize("policy", [LOOKING, DEFAULT_POLICY], ids=["own rules", "default rules"])
def test_a_bare_name_means_no_program_of_a_project_wherever_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, policy: ExecPolicy
) -> None:
    folder, sign = (PROJECTS | OWN)[kind]
    name = "ls" if policy is LOOKING else "date"
    script(tmp_path / folder / name)
    if sign:
        (tmp_path / sign).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / sign).write_text("")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    for cwd in (tmp_path / "elsewhere", Path("/usr")):
        expected = "prompt" if kind in PROJECTS else "allow"
        for argv in COMMANDS if policy is LOOKING else [["date"]]:
            assert verdict(tmp_path / "state", policy, argv, cwd=cwd) == expected, argv


def test_it_means_no_program_in_the_state_directory_wherever_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home folder in the state directory: what is well known elsewhere is an agent's there."""
    state = tmp_path / "state"
    script(state / "workspaces/main/bin/ls")
    monkeypatch.setenv("HOME", str(state / "workspaces/main"))
    monkeypatch.setenv("PATH", f"{state}/workspaces/main/bin{os.pathsep}/usr/bin{os.pathsep}/bin")

    assert verdict(state, LOOKING, ["ls"], cwd=Path("/usr")) == "prompt"
    assert verdict(tmp_path / "other", LOOKING, ["ls"], cwd=Path("/usr")) == "allow"


@pytest.mark.parametrize("sign", ["", ".git", "package.json"])
def test_a_link_in_a_well_known_place_means_where_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    script(tmp_path / "home/proj/bin/ls")
    if sign:
        (tmp_path / "home/proj" / sign).write_text("")
    (tmp_path / "home/bin").symlink_to("proj/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}/home/bin{os.pathsep}/usr/bin{os.pathsep}/bin")

    assert verdict(tmp_path / "state", LOOKING, ["ls"], cwd=Path("/usr")) == "prompt"


def test_a_folder_that_root_alone_fills_is_trusted_outside_of_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any folder of the system's that has a program in it will do; none is made."""
    folder = Path("/usr/lib/git-core")
    if not (folder / "git-status").exists() or folder.stat().st_uid != 0:
        pytest.skip("no git in /usr/lib/git-core")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    policy = rules("prompt", allow=("git-status",))

    assert verdict(tmp_path / "state", policy, ["git-status"], cwd=tmp_path) == "allow"
    monkeypatch.setenv("HOME", "/usr/lib")
    assert verdict(tmp_path / "state", policy, ["git-status"], cwd=tmp_path) == "prompt"
