"""`openclaw connect` on a running `openclaw up`, and then the real CLIs' own word on what they are connected to."""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ..cli.test_up import ANY_PORT
from ..gateway.agents.cli.scripted_model import ScriptedModel, read_responses
from ..running import OPENCLAW, process, read_line
from .cli_clients import Server, claude, path, run
from .clis import CLIS, environment, program, write

CLIENT = {"claude": "claude-code"}
"""What a CLI is called by `connect`, where that is not its own name."""
FILES = {
    "claude": (".claude.json", "mcpServers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
    "codex": (".codex/config.toml", "mcp_servers"),
    "opencode": (".config/opencode/opencode.json", "mcp"),
}
"""Where a CLI keeps its servers."""
OURS = ("openclaw-node", "openclaw", "openclaw-tools")
TOKENS = {"OPENCLAW_NODE_TOKEN": "mcp-token.txt", "OPENCLAW_GATEWAY_TOKEN": "gateway-token.txt"}
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
BARE_PATH = f"{Path(OPENCLAW).parent}:/usr/bin:/bin"


class Home(NamedTuple):
    """A person's home with everything up, and a CLI that has a server of theirs already."""

    cli: str
    folder: Path
    env: dict[str, str]
    program: str
    model: ScriptedModel

    @property
    def file(self) -> Path:
        return self.folder / FILES[self.cli][0]

    def openclaw(self, command: str, *words: str) -> str:
        result = subprocess.run(
            [OPENCLAW, command, CLIENT.get(self.cli, self.cli), "--yes", *words],
            env={"HOME": str(self.folder), "PATH": BARE_PATH},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        return result.stdout

    def settings(self) -> Any:
        text = self.file.read_text()
        return tomllib.loads(text) if self.cli == "codex" else json.loads(text)

    def ask(self, *words: str, prompt: str = "", **more: str) -> str:
        status, out, err = run([self.program, *words], {**self.env, **more}, self.folder / "work", prompt)
        assert status == 0, err[-2000:]
        return COLOUR.sub("", out + err)

    def connected(self, names: tuple[str, ...], **more: str) -> None:
        """It says of each that it is connected; Codex, which does not try, has tools of each in a turn."""
        if self.cli == "codex":
            listing = json.loads(self.ask("mcp", "list", "--json", **more))
            assert {server["name"] for server in listing if server["enabled"]} == {*names, "mine"}
            self.ask("exec", "--json", "--skip-git-repo-check", "-", prompt="[[say hello]]", **more)
            offered = [tool for _, _, body in self.model.log for tool in read_responses(body).tools]
            spaces = {re.sub(r"\W", "_", space or "") for _, space in offered}
            assert {f"mcp__{name.replace('-', '_')}" for name in (*names, "mine")} <= spaces
            return
        listing = self.ask("mcp", "list", **more)
        for name in (*names, "mine"):
            line = next((line for line in listing.splitlines() if re.match(rf"\W*{name}(?![\w-])", line)), "")
            assert re.search(r"[✔✓]", line), listing
            assert re.search(r"\bconnected\b", line, re.IGNORECASE), listing


@pytest.fixture(params=CLIS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    cli, folder = str(request.param), tmp_path / "home"
    (folder / "work").mkdir(parents=True)
    up = (OPENCLAW, "up", *ANY_PORT)
    with ScriptedModel() as model:
        env = {**path(), **environment(cli, folder, model.url), "GEMINI_CLI_TRUST_WORKSPACE": "true"}
        add_mine(cli, folder / FILES[cli][0])
        settings = {"HOME": str(folder), "PATH": os.environ["PATH"]}
        with process(*up, env=settings, stdout=subprocess.PIPE) as child:
            for _ in range(4):  # a head and three surfaces
                read_line(child, 60)
            yield Home(cli, folder, env, program(cli, tmp_path), model)


def add_mine(cli: str, file: Path) -> None:
    """A server of the person's own."""
    words = [OPENCLAW, "echo"]
    match cli:
        case "claude":
            write(file, {"numStartups": 3, "mcpServers": {"mine": claude(Server(command=tuple(words)))}})
        case "codex":
            table = f'\n[mcp_servers.mine] # keep\ncommand = "{words[0]}"\nargs = ["echo"]\n'
            file.write_text(file.read_text() + table)
        case "gemini":
            write(
                file, json.loads(file.read_text()) | {"mcpServers": {"mine": {"command": OPENCLAW, "args": ["echo"]}}}
            )
        case _:
            write(file, json.loads(file.read_text()) | {"mcp": {"mine": {"type": "local", "command": words}}})


def test_it_says_it_is_connected_and_afterwards_all_is_as_before(home: Home) -> None:
    found, before = home.file.read_bytes(), home.settings()

    home.openclaw("connect")
    written = home.file.read_bytes()
    home.connected(OURS)
    settings = home.settings()
    rewritten = home.file.read_bytes() != written
    home.openclaw("disconnect")

    if not rewritten:
        assert home.file.read_bytes() == found
    under = FILES[home.cli][1]
    assert home.settings()[under] == before[under]
    assert home.settings() == {**settings, under: before[under]}


def test_it_says_it_is_connected_by_address(home: Home) -> None:
    found = home.file.read_bytes()

    output = home.openclaw("connect", "--http")
    written = home.file.read_bytes()
    tokens = {name: (home.folder / ".openclaw-mcp" / file).read_text().strip() for name, file in TOKENS.items()}
    assert not [token for token in tokens.values() if token.encode() in written]
    # OpenCode finds the tokens in their files; the others are given what `connect` asked for.
    assert [name in output for name in TOKENS] == [home.cli != "opencode"] * 2
    home.connected(("openclaw-node", "openclaw-tools"), **({} if home.cli == "opencode" else tokens))
    rewritten = home.file.read_bytes() != written
    home.openclaw("disconnect")

    assert home.file.read_bytes() == found or rewritten
    assert set(home.settings()[FILES[home.cli][1]]) == {"mine"}
