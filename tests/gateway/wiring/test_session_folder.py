"""A session with a folder of its own, set by its owner: what it is for other senders there."""

import json
from pathlib import Path

from tests.gateway.agents.models.fake import FakeModel, say
from tests.gateway.wiring.gateways import world
from tests.gateway.wiring.test_other_senders import GROUP, MALLORY, OPEN, behind, demo, send


def project_in(tmp_path: Path) -> tuple[Path, Path]:
    state, project = tmp_path / "state", tmp_path / "project"
    state.mkdir()
    project.mkdir()
    (project / "notes.txt").write_text("PROJECT-NOTES")
    (project / "AGENTS.md").write_text("PROJECT-RULES")
    return state, project


def test_only_the_owners_runs_send_files_of_a_sessions_folder(tmp_path: Path) -> None:
    state, project = project_in(tmp_path)
    arguments = {"action": "send", "message": "here", "media": str(project / "notes.txt")}
    order = f"!tool message {json.dumps(arguments)}"
    with world(state, {"channels": OPEN, "agents": {"list": [{"id": "main"}]}}) as server:
        send(server, "hi")
        server.ask("sessions.patch", key=GROUP, cwd=str(project))
        assert "files are sent from" in demo(server, order, sender=MALLORY)
        assert '"sent"' in demo(server, order)


def test_only_the_owners_runs_are_told_of_a_sessions_folder(tmp_path: Path) -> None:
    state, project = project_in(tmp_path)
    with FakeModel(say("one"), say("two")) as model, world(state, behind("openai", model)) as server:
        server.ask("sessions.create", key=GROUP)
        server.ask("sessions.patch", key=GROUP, cwd=str(project))
        send(server, "hi", sender=MALLORY)
        send(server, "hi")
        mallorys, owners = (json.dumps(model.wait_for(n).body) for n in (1, 2))
    assert [word in mallorys for word in ("PROJECT-RULES", str(project))] == [False, False]
    assert "PROJECT-RULES" in owners
