"""The real Gemini CLI, and messages that name files for it to read before its model is asked."""

import json
from pathlib import Path

import pytest

from ..gateway.agents.cli.gateways import CALLER, STRANGER
from ..gateway.agents.cli.scripted_model import ScriptedModel
from .test_cli_agents import answer_text, final
from .test_cli_confinement import SECRET, Attacked

SPELT = [
    "@inside.txt", "@x/../inside.txt", "mail me@x/../inside.txt", "@a,b@x/y/../../inside.txt", "@x/../sub/deep.txt",
    '@"x/../inside.txt"', "@x\\ y/../inside.txt", '@"x y"/../inside.txt', "@x\u00a0/../inside.txt", "@x/..",
    f"@{'x' * 2000}/../inside.txt", '\\@a"b@x" y/../inside.txt',
]  # fmt: skip
"""Names of files in the workspace, as Gemini resolves them: `x/..` is nothing, though there is no `x`."""
WORD = "BOBS-PRIVATE-WORD"


def test_gemini_reads_no_file_of_the_workspace_that_a_message_names(tmp_path: Path) -> None:
    with ScriptedModel() as model:
        world = Attacked("gemini", tmp_path, model)
        deep = tmp_path / "work" / "sub" / "deep.txt"
        deep.parent.mkdir()
        deep.write_text(SECRET)
        read = []
        for spelt in SPELT:
            before = len(world.asked)
            assert answer_text(world.run(f"look {spelt} now [[say hi]]", caller=CALLER)) == "hi"
            read += [spelt] if SECRET in json.dumps(world.asked[before:]) else []
        world.folders.close()
    assert read == []


@pytest.mark.parametrize("place", ["home/.gemini/tmp/work", "home/.gemini/tmp/work/chats", "state/confined/main"])
def test_gemini_tells_nobody_what_others_said_to_the_agent(tmp_path: Path, place: str) -> None:
    """The way there leads out of the folder the run works in, to where Gemini keeps sessions."""
    with ScriptedModel() as model:
        world = Attacked("gemini", tmp_path, model)
        first = final(world.run(f"my private word is {WORD} [[say hi]]", caller=STRANGER, session_key="agent:main:bob"))
        before = len(world.asked)
        text = f"look @x/../../../../../{place} now [[say hi]]"
        assert answer_text(world.run(text, caller=STRANGER, session_key="agent:main:eve")) == "hi"
        assert WORD not in json.dumps(world.asked[before:])
        world.run("and? [[say hi]]", caller=STRANGER, session_key="agent:main:bob", resume=first.resume)
        assert WORD in json.dumps(world.asked[-1]), "Bob's own conversation goes on"
        world.folders.close()
