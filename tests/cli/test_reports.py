"""`openclaw doctor`, `status` and `sessions` as a person with a problem runs them."""

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.test_up import ANY_PORT
from tests.cli.test_up import openclaw as run_up
from tests.gateway.wiring.gateways import serving
from tests.order.test_server import order, server
from tests.programs import need_own
from tests.running import OPENCLAW

NOBODY = "1"


def openclaw(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENCLAW_", "OPENAI_"))}
    settings = {**clean, "HOME": str(folder), "OPENCLAW_STATE_DIR": str(folder), "OPENCLAW_GATEWAY_PORT": NOBODY}
    return subprocess.run(
        [OPENCLAW, *words], capture_output=True, text=True, timeout=90, env=settings | more, check=False
    )


def report(folder: Path, command: str, **more: str) -> tuple[int, Any]:
    result = openclaw(folder, command, "--json", **more)
    return result.returncode, json.loads(result.stdout)


def troubles(answer: Any) -> list[Any]:
    return [finding for finding in answer["findings"] if finding["state"] == "attention"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "state"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
def used(folder: Path) -> Path:
    """A state directory in which two conversations took place."""
    with server(folder) as one:
        order(one, "remember blue", id=1, sessionKey="colours")
        order(one, "and again", id=2, sessionKey="colours")
        order(one, "a secret", id=3, sessionKey="agent:main:team:w2")
    return folder


# ---- doctor ----


def test_a_new_state_directory_is_in_order(folder: Path) -> None:
    result = openclaw(folder, "doctor")

    assert result.returncode == 0, result.stdout
    assert "Everything is in order." in result.stdout
    for area in ("program", "state", "tokens", "config", "store", "gateway", "agents", "cli agents", "node", "clients"):
        assert area in result.stdout


@pytest.mark.parametrize("command", ["doctor", "status"])
def test_a_state_directory_that_is_not_there_is_not_created(tmp_path: Path, command: str) -> None:
    folder = tmp_path / "absent"

    result = openclaw(folder, command)

    assert result.returncode == 0, result.stdout + result.stderr
    assert not folder.exists()


def test_a_used_state_directory_is_in_order(used: Path) -> None:
    status, answer = report(used, "doctor")

    assert (status, answer["ok"], troubles(answer)) == (0, True, [])
    assert any(found["area"] == "store" and "intact" in found["says"] for found in answer["findings"])


def _open_folder(folder: Path) -> None:
    folder.chmod(0o755)


def _empty_token(folder: Path) -> None:
    (folder / "gateway-token.txt").write_text("\n")


def _open_token(folder: Path) -> None:
    (folder / "gateway-token.txt").write_text("x" * 64)
    (folder / "gateway-token.txt").chmod(0o644)


def _config(value: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "openclaw.json").write_text(value if isinstance(value, str) else json.dumps(value))
        (folder / "openclaw.json").chmod(0o600)

    return write


def _damaged_store(folder: Path) -> None:
    (folder / "openclaw.sqlite").write_bytes(b"certainly no database")
    (folder / "openclaw.sqlite").chmod(0o600)


def _newer_store(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "openclaw.sqlite")) as connection:
        connection.executescript(
            "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('9999')"
        )
    (folder / "openclaw.sqlite").chmod(0o600)


def _lost_connection(folder: Path) -> None:
    settings = {**os.environ, "HOME": str(folder), "OPENCLAW_STATE_DIR": str(folder)}
    subprocess.run(
        [OPENCLAW, "connect", "cursor", "--surface", "order", "--yes"],
        env=settings, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    (folder / ".cursor" / "mcp.json").write_text("{}")


MODEL = {"agents": {"defaults": {"model": "openai/gpt-x"}}}
UNSET = {"gateway": {"auth": {"token": "${NOBODY_SET_THIS}"}}}
CLI = {"agents": {"list": [{"id": "main", "runtime": "claude", "runtimeCommand": "no-such-claude"}]}}
WRONG = {"agents": {"list": [{"id": "main", "runtime": "cluade"}]}}
SERVER = {"mcp": {"servers": {"files": {"command": "no-such-server"}}}}


@pytest.mark.parametrize(
    ("spoil", "area", "says", "remedy"),
    [
        (_open_folder, "state", "others may look", "chmod 700"),
        (_empty_token, "tokens", "is empty", "remove it"),
        (_open_token, "secrets", "others may read", "chmod 600"),
        (_config("{ nonsense"), "config", "", "openclaw config validate"),
        (_config({"gateway": {"port": "many"}}), "config", "gateway.port", "openclaw config validate"),
        (_config(UNSET), "config", "NOBODY_SET_THIS", "set it"),
        (_damaged_store, "store", "damaged", "openclaw doctor"),
        (_newer_store, "store", "newer version", "upgrade"),
        (_config(MODEL), "agents", "OPENAI_API_KEY", "set the key"),
        (_config({"agents": {"defaults": {"model": "nobody/m"}}}), "agents", "models.providers.nobody", "config set"),
        (_config(WRONG), "config", "agents.list.0.runtime: must be one of demo, ", "openclaw config validate"),
        (_config(CLI), "agents", "no-such-claude", "npm install -g"),
        (_config(SERVER), "servers", "no-such-server", "install it"),
        (_lost_connection, "clients", "Cursor no longer has", "openclaw connect cursor"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(
    folder: Path, spoil: Callable[[Path], None], area: str, says: str, remedy: str
) -> None:
    spoil(folder)

    status, answer = report(folder, "doctor")

    assert (status, answer["ok"]) == (1, False)
    (found,) = [found for found in troubles(answer) if found["area"] == area]
    assert says in found["says"]
    assert remedy in found["remedy"]


def test_a_key_that_is_there_is_reported_and_never_shown(folder: Path) -> None:
    _config(MODEL)(folder)

    result = openclaw(folder, "doctor", OPENAI_API_KEY="sk-very-secret")

    assert result.returncode == 0, result.stdout
    assert "its key is set" in result.stdout
    assert "sk-very-secret" not in result.stdout + result.stderr


def test_no_secret_in_an_address_is_shown(folder: Path) -> None:
    servers = {
        "a": {"url": "http://u:hush-1@127.0.0.1:1/mcp?access_token=hush-2"},
        "b": {"url": "http://127.0.0.1:1/mcp?key=${SEK}"},
    }
    provider = {"api": "openai", "baseUrl": "http://u:hush-3@127.0.0.1:1/${SEK}"}
    model = {"agents": {"defaults": {"model": "lab/m"}}, "models": {"providers": {"lab": provider}}}
    _config({"mcp": {"servers": servers}, **model})(folder)

    doctor, status = (openclaw(folder, command, SEK="hush-4") for command in ("doctor", "status"))

    assert "a is at http://127.0.0.1:1/***;" in doctor.stdout
    assert "b is at http://127.0.0.1:1/mcp?key=${SEK};" in doctor.stdout
    assert "agent main uses lab/m at http://127.0.0.1:1/***;" in doctor.stdout
    assert "hush" not in doctor.stdout + doctor.stderr + status.stdout + status.stderr


def test_a_running_gateway_is_distinguished_from_another_program(folder: Path) -> None:
    with serving(folder) as served:
        status, answer = report(folder, "doctor", OPENCLAW_GATEWAY_PORT=served.ws.rpartition(":")[2])
    assert status == 0, troubles(answer)
    assert any(found["area"] == "gateway" and "our gateway" in found["says"] for found in answer["findings"])


def test_the_process_that_holds_the_gateways_port_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger, _hanging_up(stranger):
        status, answer = report(folder, "doctor", OPENCLAW_GATEWAY_PORT=str(stranger.getsockname()[1]))
    assert status == 1
    (found,) = troubles(answer)
    assert found["area"] == "gateway"
    assert f"process {os.getpid()}" in found["says"]


@contextlib.contextmanager
def _hanging_up(listener: socket.socket) -> Iterator[None]:
    """Every client is refused."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


# ---- status ----


def test_status_tells_what_runs_and_that_it_answers(folder: Path) -> None:
    try:
        assert run_up("up", folder, "--detach", *ANY_PORT).returncode == 0
        status, answer = report(folder, "status", OPENCLAW_GATEWAY_PORT="")
        _, examined = report(folder, "doctor", OPENCLAW_GATEWAY_PORT="")
    finally:
        run_up("down", folder)

    assert status == 0, troubles(answer)
    sentences = {found["area"]: found["says"] for found in answer["findings"]}
    assert {"up", "gateway", "node", "proxy", "sessions", "channels", "cron", "agents"} <= sentences.keys()
    assert answer["gateway"]["answers"] is True
    assert any(found["area"] == "gateway" and "our gateway" in found["says"] for found in examined["findings"])
    assert sentences["channels"] == "local default running"


def test_status_without_a_gateway_says_who_answers_orders(used: Path) -> None:
    result = openclaw(used, "status")

    assert result.returncode == 0, result.stdout
    assert "the agent in the server's own process" in result.stdout
    assert "2 in " in result.stdout


def test_status_fails_when_what_was_started_is_gone(folder: Path) -> None:
    assert run_up("up", folder, "--detach", *ANY_PORT).returncode == 0
    process = psutil.Process(json.loads((folder / "up.json").read_text())["pid"])
    for each in (*process.children(recursive=True), process):
        each.kill()
    process.wait(20)

    status, answer = report(folder, "status")
    stopped = run_up("down", folder)
    after, _ = report(folder, "status")

    assert status == 1
    (found,) = troubles(answer)
    assert found["says"].startswith(f"process {process.pid} is gone: it was killed, it crashed")
    assert "openclaw restart" in found["remedy"]
    assert (stopped.returncode, after) == (0, 0), "once it is to be down, nothing is wrong"


def test_status_fails_when_work_waits_for_a_gateway(folder: Path) -> None:
    _config({"channels": {"telegram": {"botToken": "1:x"}}})(folder)
    with serving(folder) as served:
        added = openclaw(
            folder, "cron", "add", "--every", "1h", "--message", "x", "--no-deliver", "--port",
            served.ws.rpartition(":")[2],
        )  # fmt: skip
        assert added.returncode == 0, added.stderr

    status, answer = report(folder, "status")

    assert status == 1
    assert [(found["area"], found["says"]) for found in troubles(answer)] == [
        ("channels", "telegram should be answered, and no gateway runs"),
        ("cron", "1 job should run when due, and no gateway runs"),
    ]


@pytest.mark.parametrize("command", ["status", "doctor"])
@pytest.mark.parametrize(
    ("spoil", "area", "says"),
    [
        ("remount,ro", "store", "is read-only"),
        ("remount,size=1m", "disk", "is full: "),
        ("remount,nr_inodes=8", "disk", "can hold no further file"),
    ],
    ids=["read-only", "full", "inodes"],
)
def test_a_full_disk_and_a_read_only_store_are_reported(
    folder: Path, command: str, spoil: str, area: str, says: str
) -> None:
    """In a name space of its own, a disk that the test makes."""
    script = f"""mount -t tmpfs -o size=64m,mode=700 disk {folder}
        {OPENCLAW} config set gateway.port 1
        cp /dev/null {folder}/openclaw.sqlite; chmod 600 {folder}/openclaw.sqlite
        mount -o {spoil} {folder}
        case {spoil} in *inodes*) for n in 1 2 3 4 5 6 7 8; do touch {folder}/$n 2>&- || break; done; esac
        {OPENCLAW} {command} --json"""
    settings = {"PATH": os.environ["PATH"], "HOME": str(folder), "OPENCLAW_STATE_DIR": str(folder)}
    result = subprocess.run(
        [*need_own("mounts"), "sh", "-ec", script], env=settings, capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip

    assert result.returncode == 1, result.stdout + result.stderr
    answer = json.loads(result.stdout.partition("\n")[2])
    assert any(found["area"] == area and says in found["says"] for found in troubles(answer)), troubles(answer)


@pytest.mark.parametrize(
    ("config", "more", "says"),
    [
        (MODEL, {}, "OPENAI_API_KEY"),
        ({}, {"OPENCLAW_GATEWAY_URL": "ws://127.0.0.1:1"}, "ws://127.0.0.1:1"),
        ({"gateway": {"mode": "remote", "remote": {"url": "ws://127.0.0.1:1"}}}, {}, "ws://127.0.0.1:1"),
        ({"gateway": {"port": "many"}}, {}, "gateway.port"),
    ],
)
def test_status_fails_when_an_order_would(folder: Path, config: Any, more: dict[str, str], says: str) -> None:
    _config(config)(folder)

    result = openclaw(folder, "status", **more)

    assert result.returncode == 1, result.stdout
    assert says in result.stdout


# ---- sessions ----


def test_sessions_are_read_from_the_store_when_no_gateway_runs(used: Path) -> None:
    result = openclaw(used, "sessions", "--json")

    assert result.returncode == 0, result.stderr
    listed = json.loads(result.stdout)["sessions"]
    assert len(listed) == 2
    found = next(row for row in listed if row["key"] == "agent:main:colours")
    assert found["messageCount"] == 4
    table = openclaw(used, "sessions").stdout
    assert "agent:main:colours" in table
    assert "remember blue" in table


def test_sessions_are_asked_of_a_running_gateway(used: Path) -> None:
    with serving(used) as served:
        result = openclaw(used, "sessions", "--json", OPENCLAW_GATEWAY_PORT=served.ws.rpartition(":")[2])
    answer = json.loads(result.stdout)
    assert answer["from"] == served.ws
    assert {row["key"]: row["messageCount"] for row in answer["sessions"]}["agent:main:colours"] == 4


@pytest.mark.parametrize("gateway", [False, True])
def test_the_messages_of_a_session_are_shown_and_found(used: Path, gateway: bool) -> None:
    with serving(used) if gateway else contextlib.nullcontext() as served:
        port = {} if served is None else {"OPENCLAW_GATEWAY_PORT": served.ws.rpartition(":")[2]}
        shown = openclaw(used, "sessions", "show", "colours", **port)
        newest = openclaw(used, "sessions", "show", "agent:main:colours", "--limit", "1", **port)
        as_json = json.loads(openclaw(used, "sessions", "show", "colours", "--json", **port).stdout)
        unknown = openclaw(used, "sessions", "show", "shapes", **port)
        listed = json.loads(openclaw(used, "sessions", "--json", **port).stdout)["sessions"]
        other = next(row["key"] for row in listed if row["key"] != "agent:main:colours")
        by_ending = openclaw(used, "sessions", "show", other.rpartition(":")[2], **port)
        found = openclaw(used, "sessions", "search", "remember", "blu", **port)
        found_json = json.loads(openclaw(used, "sessions", "--json", "search", "secret", **port).stdout)
        nothing = openclaw(used, "sessions", "search", "no such word", **port)

    assert shown.stdout.startswith("agent:main:colours: 4 messages, last used 20")
    lines = shown.stdout.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("20")] == ["user", "assistant"] * 2
    assert "  remember blue" in lines
    assert "The newest 1 of them; --limit shows more." in newest.stdout
    assert (as_json["session"]["key"], as_json["totalMessages"], len(as_json["messages"])) == (
        "agent:main:colours", 4, 4,
    )  # fmt: skip
    assert by_ending.stdout.startswith(f"{other}: 2 messages")
    assert unknown.returncode == 1
    assert "there is no session 'shapes' in " in unknown.stderr
    assert "  agent:main:colours  user\n  remember blue\n" in found.stdout
    assert {hit["sessionKey"] for hit in found_json["results"]} & {"agent:main:colours"} == set()
    assert found_json["count"] == len(found_json["results"]) >= 1
    assert nothing.stdout.startswith("No message in ")


@pytest.mark.parametrize("named", ["openclaw.sqlite", "file"])
def test_a_store_is_read_by_its_file_and_left_as_it_is(used: Path, named: str) -> None:
    file = used / "openclaw.sqlite"
    before = file.read_bytes()

    result = openclaw(used, "sessions", "--store", str(file) if named != "file" else named)

    assert result.returncode == 0, result.stderr
    assert "agent:main:colours" in result.stdout
    assert file.read_bytes() == before


@pytest.mark.parametrize(("content", "says"), [(None, "no store"), (b"", "can't be read"), (b"hello", "can't be read")])
def test_a_file_that_is_no_store_is_refused(folder: Path, content: bytes | None, says: str) -> None:
    file = folder / "other.sqlite"
    if content is not None:
        file.write_bytes(content)

    result = openclaw(folder, "sessions", "--store", str(file))

    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert says in result.stderr
    assert str(file) in result.stderr
