"""`openclaw doctor`, `status` and `sessions`: each finding with its remedy."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .running import OPENCLAW
from .test_gateway import WAIT, Served, environment, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("state")) as house:
        sent = {"sessionKey": "agent:main:garden", "message": "!say tulips", "idempotencyKey": "r1"}
        house.call("chat.send", json.dumps(sent))
        house.call("agent.wait", '{"runId":"r1","timeoutMs":20000}')
        yield house


def command(folder: Path, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    # A port nobody listens on: the developer's own gateway is none of this test's business.
    known = {"OPENCLAW_GATEWAY_PORT": "9", "PATH": f"{Path(OPENCLAW).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        [OPENCLAW, *words],
        env=environment(folder, **known | more),
        capture_output=True,
        text=True,
        timeout=WAIT * 2,
        check=False,
    )


def findings(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """The worst finding about each thing."""
    found: dict[str, Any] = {}
    for finding in json.loads(done.stdout)["findings"]:
        about, order = finding["about"], ("ok", "warning", "error")
        if about not in found or order.index(finding["level"]) > order.index(found[about]["level"]):
            found[about] = finding
    return found


def test_a_fresh_place_is_sound_and_says_what_is_still_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    done = command(tmp_path, "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = findings(done)
    levels = {about: found[about]["level"] for about in ("program", "state directory", "config", "token", "store")}
    assert levels == dict.fromkeys(levels, "ok")
    assert "no model is set up" in found["agent main"]["words"]
    assert "openclaw gateway" in found["gateway"]["remedy"]
    told = command(tmp_path, "doctor").stdout
    assert "         -> start it with openclaw gateway" in told
    assert told.splitlines()[-1] == "0 errors, 2 warnings"


def test_what_is_broken_is_named_with_its_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "openclaw.json").write_text('{"gateway": {"port": "many"}}')
    token = tmp_path / "gateway-token.txt"
    token.write_text("secret-token")
    token.chmod(0o644)
    (tmp_path / "openclaw.sqlite").write_bytes(b"this is no database at all" * 100)
    done = command(tmp_path, "doctor", "--json")
    assert done.returncode == 1
    assert "secret-token" not in done.stdout
    found = findings(done)
    assert found["state directory"]["remedy"] == f"chmod 700 {tmp_path}"
    assert (found["config"]["level"], found["token"]["remedy"]) == ("error", f"chmod 600 {token}")
    assert "gateway.port" in found["config"]["words"]
    assert (found["store"]["level"], "backup" in found["store"]["remedy"]) == ("error", True)


def test_an_agent_without_a_credential_is_named(tmp_path: Path) -> None:
    config = {"agents": {"list": [{"id": "main", "runtime": "openai", "model": "openai/gpt-x"}]}}
    (tmp_path / "openclaw.json").write_text(json.dumps(config))
    found = findings(command(tmp_path, "status", "--json"))["agent main"]
    assert (found["level"], "OPENAI_API_KEY" in found["remedy"]) == ("warning", True)
    found = findings(command(tmp_path, "status", "--json", OPENAI_API_KEY="k-123"))["agent main"]
    assert found["level"] == "ok"
    assert "k-123" not in json.dumps(found)


def test_a_gateway_that_goes_is_told_of(served: Served) -> None:
    done = command(served.folder, "status", OPENCLAW_GATEWAY_PORT=served.port)
    assert done.returncode == 0, done.stderr
    assert f"gateway: ws://127.0.0.1:{served.port} answers" in done.stdout
    assert "sessions 1, in" in done.stdout
    assert "cron     0 jobs" in done.stdout
    wrong = command(served.folder, "doctor", "--json", "--token", "wrong", OPENCLAW_GATEWAY_PORT=served.port)
    assert wrong.returncode == 1
    found = findings(wrong)["gateway"]
    assert (found["level"], "--token" in found["remedy"]) == ("error", True)


@pytest.mark.parametrize("words", [(), ("--store", "file")])
def test_sessions_are_the_same_from_the_gateway_and_from_the_disk(served: Served, words: tuple[str, ...]) -> None:
    more = {"OPENCLAW_GATEWAY_PORT": served.port} if not words else {}
    told = json.loads(command(served.folder, "sessions", "--json", *words, **more).stdout)
    (row,) = told["sessions"]
    assert (told["count"], row["key"]) == (1, "agent:main:garden")
    shown = command(served.folder, "sessions", *words, **more).stdout
    assert shown.startswith("1 sessions in ")
    assert "agent:main:garden" in shown


def test_sessions_of_a_store_that_is_none_are_refused(tmp_path: Path) -> None:
    none = command(tmp_path, "sessions", "--store", "file")
    assert (none.returncode, "nothing is kept" in none.stderr) == (1, True)
    other = tmp_path / "other"
    other.write_text("no database" * 1000)
    wrong = command(tmp_path, "sessions", "--store", str(other))
    assert (wrong.returncode, "openclaw doctor" in wrong.stderr) == (1, True)
    assert not (tmp_path / "openclaw.sqlite").exists()  # looking makes nothing
