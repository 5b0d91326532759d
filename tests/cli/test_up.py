"""Everything at once, as a newcomer starts it."""

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from openclaw_mcp.cli.logging_setup import PrivateLogHandler
from tests.running import OPENCLAW, process, read_line
from tests.web_client import rpc, send

ANY_PORT = ("--gateway-port", "0", "--node-port", "0", "--proxy-port", "0")


def words(command: str, folder: Path, *more: str) -> list[str]:
    return [OPENCLAW, command, "--state-dir", str(folder), *more]


def openclaw(command: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "HOME": str(folder)}
    return subprocess.run(
        words(command, folder, *more), capture_output=True, text=True, timeout=90, env=settings, check=False
    )


def table(lines: list[str]) -> dict[str, tuple[str, str]]:
    """Address and token of each surface."""
    return {line.split()[0]: (line.split()[1], line.split()[2]) for line in lines[1:4]}


def addresses(folder: Path) -> dict[str, str]:
    """Those of the surfaces that are up."""
    surfaces = json.loads((folder / "up.json").read_text())["surfaces"]
    return {surface["name"]: surface["address"] for surface in surfaces}


def until_there(folder: Path, name: str) -> str:
    """The address of a surface, once it has one."""
    end = time.monotonic() + 20
    while not (address := addresses(folder)[name]):
        assert time.monotonic() < end
        time.sleep(0.1)
    return address


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    started = openclaw("up", tmp_path, "--detach", *ANY_PORT)
    assert started.returncode == 0, started.stderr
    yield tmp_path, started.stdout
    openclaw("down", tmp_path)


@pytest.fixture(scope="module")
def one_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """For tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("up")
    started = openclaw("up", folder, "--detach", *ANY_PORT)
    assert started.returncode == 0, started.stderr
    yield folder
    openclaw("down", folder)


def alone(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command that knows its state directory and nothing else."""
    settings = {"PATH": os.environ["PATH"], "HOME": str(folder), "OPENCLAW_STATE_DIR": str(folder)}
    return subprocess.run([OPENCLAW, *command], capture_output=True, text=True, timeout=60, env=settings, check=False)


def test_every_surface_answers_at_the_printed_address(tmp_path: Path) -> None:
    settings = {**os.environ, "HOME": str(tmp_path)}
    with process(*words("up", tmp_path, *ANY_PORT), stdout=subprocess.PIPE, env=settings) as child:
        rows = table([read_line(child, 60).decode() for _ in range(4)])
        assert send(rows["proxy"][0] + "/health", "GET").body == b"ok"
        for name in ("node", "gateway"):
            address, token = rows[name]
            bearer = f"Bearer {Path(token).read_text().strip()}"
            listed = send(address, "POST", rpc("tools/list"), Authorization=bearer)
            assert listed.status == 200, listed.body
            assert send(address, "POST", rpc("tools/list")).status == 401
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(20) == 0
    assert not (tmp_path / "up.json").exists()


@pytest.mark.parametrize("surface", ["gateway", "node", "proxy"])
def test_a_taken_port_is_named_with_who_holds_it_and_the_option_that_chooses_another(
    one_up: Path, surface: str, tmp_path: Path
) -> None:
    number = str(urlsplit(addresses(one_up)[surface]).port)

    result = openclaw("up", tmp_path, *ANY_PORT, f"--{surface}-port", number)

    assert result.returncode == 1
    assert f"port {number}" in result.stderr
    assert "(process " in result.stderr
    assert f"another with --{surface}-port" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    behind = openclaw("up", tmp_path, "--detach", *ANY_PORT, f"--{surface}-port", number)
    assert behind.returncode == 1
    assert f"port {number}" in behind.stderr


def test_the_node_listens_where_its_settings_say(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        numbers = [free.getsockname()[1] for free in (one, other)]
    (tmp_path / "node.json").write_text(json.dumps({"mcpPort": numbers[0]}))
    settings = {**os.environ, "HOME": str(tmp_path), "OPENCLAW_MCP_PORT": ""}
    for wanted, setting in zip(numbers, ("", str(numbers[1])), strict=True):
        command = words("up", tmp_path, "--gateway-port", "0", "--proxy-port", "0")
        with process(*command, stdout=subprocess.PIPE, env=settings | {"OPENCLAW_MCP_PORT": setting}) as child:
            rows = table([read_line(child, 60).decode() for _ in range(4)])
        assert urlsplit(rows["node"][0]).port == wanted


def test_a_node_that_is_switched_off_has_no_address_and_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"enableMcpServer": false}')
    started = openclaw("up", tmp_path, "--detach", *ANY_PORT)
    assert started.returncode == 0, started.stderr
    try:
        assert re.search(r"^node +off in node\.json +- ", started.stdout, re.MULTILINE), started.stdout
        assert addresses(tmp_path)["node"] == ""
        status = alone(tmp_path, "status")
        assert status.returncode == 0, status.stdout
        assert "off in node.json" in status.stdout
        demo = alone(tmp_path, "demo")
        assert demo.returncode == 0, demo.stdout + demo.stderr
        assert "left out: it is off in node.json" in demo.stdout
        assert "The other three surfaces work." in demo.stdout
        all_by_address = alone(tmp_path, "connect", "cursor", "--http", "--print")
        assert all_by_address.returncode == 0, all_by_address.stderr
        assert "openclaw-node" not in all_by_address.stdout
        assert "off in node.json" in all_by_address.stderr
        this_one = alone(tmp_path, "connect", "cursor", "--surface", "node", "--http", "--print")
        assert (this_one.returncode, this_one.stdout, len(this_one.stderr.splitlines())) == (1, "", 1)
        (tmp_path / "node.json").write_text('{"enableMcpServer": true}')
        assert send(until_there(tmp_path, "node"), "GET").status == 401, "switched on, it is where it is said to be"
    finally:
        openclaw("down", tmp_path)


def test_an_apps_tools_are_connected_through_the_proxy_that_is_up(one_up: Path) -> None:
    address = addresses(one_up)["proxy"]

    result = alone(one_up, "connect", "cursor", "--surface", "proxy", "--session", "s1", "--print")
    entry = json.loads(result.stdout)["mcpServers"]["openclaw-app"]
    assert entry["args"] == ["proxy", "--stdio", "--session", "s1"], "the program finds the proxy when it starts"
    request = json.dumps(rpc("tools/list")) + "\n"
    environment = {"PATH": os.environ["PATH"], "HOME": str(one_up), **entry["env"]}
    process = subprocess.run(
        [entry["command"], *entry["args"]], input=request, env=environment, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert "the proxy knows no such session" in process.stdout, process.stdout + process.stderr
    by_address = alone(one_up, "connect", "cursor", "--surface", "proxy", "--session", "s1", "--print", "--http")
    assert json.loads(by_address.stdout)["mcpServers"]["openclaw-app"]["url"] == f"{address}/v1/mcp/s1"


def test_it_runs_in_the_background_until_it_is_stopped(detached: tuple[Path, str]) -> None:
    folder, output = detached
    rows = table(output.splitlines())
    assert send(rows["proxy"][0] + "/health", "GET").body == b"ok"
    pid = json.loads((folder / "up.json").read_text())["pid"]
    assert openclaw("logs", folder).stdout
    again = openclaw("up", folder, *ANY_PORT)
    assert again.returncode == 1
    assert f"process {pid}" in again.stderr

    stopped = openclaw("down", folder)

    assert stopped.returncode == 0, stopped.stderr
    assert not psutil.pid_exists(pid)
    assert "not up" in openclaw("down", folder).stdout


def test_a_restart_keeps_the_ports_and_is_another_process(detached: tuple[Path, str]) -> None:
    folder, _ = detached
    before, pid = addresses(folder), json.loads((folder / "up.json").read_text())["pid"]

    result = openclaw("restart", folder)

    assert result.returncode == 0, result.stderr
    assert addresses(folder) == before
    assert json.loads((folder / "up.json").read_text())["pid"] != pid
    assert not psutil.pid_exists(pid)


def test_a_restart_whose_output_is_not_read_starts_it_again(detached: tuple[Path, str]) -> None:
    folder, _ = detached
    pid = json.loads((folder / "up.json").read_text())["pid"]
    settings = {**os.environ, "HOME": str(folder), "PYTHONUNBUFFERED": "1"}
    unread, output = os.pipe()
    os.close(unread)
    try:
        subprocess.run(words("restart", folder), stdout=output, timeout=90, env=settings, check=False)
    finally:
        os.close(output)

    assert json.loads((folder / "up.json").read_text())["pid"] != pid


def test_a_restart_of_what_is_not_up_starts_it(tmp_path: Path) -> None:
    result = openclaw("restart", tmp_path, *ANY_PORT)
    try:
        assert result.returncode == 0, result.stderr
        assert "was not up" in result.stdout
        assert addresses(tmp_path)["gateway"]
    finally:
        openclaw("down", tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("openclaw.json", '{"tools": {"allow": ["a"], "alsoAllow": ["b"]}}', "has both allow and alsoAllow"),
        ("node.json", '{"mcpPort": -1}', "mcpPort must be between"),
    ],
)
def test_a_restart_stops_nothing_that_could_not_start_again(
    detached: tuple[Path, str], name: str, text: str, reason: str
) -> None:
    folder, _ = detached
    before = (folder / "up.json").read_bytes()
    (folder / name).write_text(text)

    result = openclaw("restart", folder)

    assert result.returncode == 1
    assert "nothing was stopped" in result.stderr
    assert reason in result.stderr
    assert (folder / "up.json").read_bytes() == before
    assert send(addresses(folder)["proxy"] + "/health", "GET").body == b"ok"


def test_a_restart_that_failed_is_repeated_on_the_same_ports(detached: tuple[Path, str]) -> None:
    folder, _ = detached
    before = addresses(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        failed = openclaw("restart", folder, "--proxy-port", str(taken.getsockname()[1]))
    assert failed.returncode == 1
    assert "openclaw restart starts it again" in alone(folder, "status").stdout

    result = openclaw("restart", folder)

    assert result.returncode == 0, result.stderr
    assert addresses(folder) == before


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_a_restart_that_was_interrupted_is_repeated_on_the_same_ports(
    detached: tuple[Path, str], sign: signal.Signals
) -> None:
    folder, _ = detached
    before = addresses(folder)
    up = psutil.Process(json.loads((folder / "up.json").read_text())["pid"])
    settings = {**os.environ, "HOME": str(folder)}
    up.suspend()
    try:
        with process(*words("restart", folder), env=settings) as restarting:
            until_told_to_stop(up)
            os.kill(restarting.pid, sign)
            restarting.wait(20)
    finally:
        up.resume()
    up.wait(30)
    assert "openclaw restart starts it again" in alone(folder, "status").stdout

    result = openclaw("restart", folder)

    assert result.returncode == 0, result.stderr
    assert addresses(folder) == before
    assert not (folder / "restart.json").exists()


def until_told_to_stop(suspended: psutil.Process) -> None:
    """Its restart is planned by then; the signal itself waits until the process goes on."""
    status, end = Path(f"/proc/{suspended.pid}/status"), time.monotonic() + 20
    while not (int(status.read_text().split("ShdPnd:")[1].split()[0], 16) >> signal.SIGTERM - 1) & 1:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_of_two_starts_at_once_one_serves(tmp_path: Path) -> None:
    """Two would each take jobs and messages, and `down` would stop one of them."""
    with all_ended(str(tmp_path)):
        settings = {**os.environ, "HOME": str(tmp_path)}
        command = words("up", tmp_path, "--detach", *ANY_PORT)
        starts = [subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                  for _ in range(3)]  # fmt: skip
        complaints = [start.communicate(timeout=90)[1] for start in starts]
        assert sorted(start.returncode for start in starts) == [0, 1, 1], complaints
        expected = re.compile(r"openclaw(?: up:)? .*already up.*\n|openclaw up: .*\n")
        assert all(text == "" or expected.fullmatch(text) for text in complaints), complaints
        assert alone(tmp_path, "status").returncode == 0
        assert openclaw("down", tmp_path).returncode == 0
        assert not [one for one in psutil.process_iter() if home_of(one) == str(tmp_path)]


def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / "restart.json").mkdir()
    result = openclaw("down", tmp_path)
    assert result.returncode == 1
    assert f"{tmp_path / 'restart.json'} can't be removed" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_detached_start_that_fails_unexpectedly_shows_the_cause(tmp_path: Path) -> None:
    broken = tmp_path / "packages" / "sqlalchemy"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('the library is of another machine')\n")
    settings = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(broken.parent)}

    result = subprocess.run(
        words("up", tmp_path, "--detach", *ANY_PORT), env=settings, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip

    assert result.returncode == 1
    assert "unexpected error: RuntimeError: the library is of another machine" in result.stderr
    assert "up.err" in result.stderr
    assert "in <module>" in (tmp_path / "up.err").read_text()


def test_however_the_wish_is_written_it_detaches_once(tmp_path: Path) -> None:
    with all_ended(mark := str(tmp_path)):
        settings = {**os.environ, "HOME": mark, "OPENCLAW_STATE_DIR": mark}
        command = [OPENCLAW, "up", "-dv", *ANY_PORT]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=settings, check=False)
        assert result.returncode == 0, result.stderr
        assert "openclaw down stops it" in result.stdout
        assert " INFO " in (tmp_path / "up.err").read_text(), "what it says goes on being said"


@pytest.mark.parametrize("command", [("up", "--detach", *ANY_PORT), ("demo",)], ids=["up", "demo"])
def test_nothing_is_imported_from_the_folder_it_is_started_in(tmp_path: Path, command: tuple[str, ...]) -> None:
    """That folder may be anybody's project."""
    here, state = tmp_path / "here", tmp_path / "state"
    here.mkdir()
    for name in ("openclaw_mcp", "msgspec", "uvicorn", "sqlalchemy", "psutil"):
        (here / f"{name}.py").write_text(f"open({str(here / 'imported')!r}, 'a').write(__name__)")
    settings = {**os.environ, "HOME": str(tmp_path)}
    command = (OPENCLAW, *command, "--state-dir", str(state))
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=here, env=settings, check=False)
    openclaw("down", state)

    assert not (here / "imported").exists()
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def all_ended(home: str) -> Iterator[None]:
    """Every process with this home is gone afterwards, with all it started: once more would be once more for ever."""
    try:
        yield
    finally:
        for _ in range(100):
            theirs = [one for one in psutil.process_iter() if home_of(one) == home]
            for one in theirs:
                with contextlib.suppress(psutil.Error):
                    one.kill()
            if not theirs:
                break


def home_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("HOME") if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, OSError):
        return None


def test_after_a_kill_it_starts_again(detached: tuple[Path, str]) -> None:
    folder, _ = detached
    pid = json.loads((folder / "up.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=10)

    examined = openclaw("doctor", folder)
    assert examined.returncode == 1
    assert f"process {pid} is gone" in examined.stdout
    assert openclaw("up", folder, "--detach", *ANY_PORT).returncode == 0


@pytest.mark.parametrize("which", [(), ("--gateway",)])
def test_questions_are_not_waited_for_where_nobody_can_answer(one_up: Path, which: tuple[str, ...]) -> None:
    settings = {"PATH": os.environ["PATH"], "HOME": str(one_up), "OPENCLAW_STATE_DIR": str(one_up)}
    result = subprocess.run(
        [OPENCLAW, "approvals", *which], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        env=settings, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "questions are answered in a terminal" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("nodes", "list"),
        ("nodes", "list", "--json"),
        ("channels",),
        ("cron", "list"),
        ("gateway", "call", "health"),
        ("chat", "-m", "Good day"),
    ],
    ids=" ".join,
)
def test_a_command_finds_the_gateway_that_is_up(one_up: Path, command: tuple[str, ...]) -> None:
    result = alone(one_up, *command)

    assert result.returncode == 0, result.stderr


def test_a_command_finds_the_gateway_where_the_config_puts_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    (tmp_path / "openclaw.json").write_text(json.dumps({"gateway": {"port": number}}))
    with process(*words("gateway", tmp_path), stdout=subprocess.PIPE) as child:
        assert str(number) in read_line(child, 60).decode()
        result = alone(tmp_path, "nodes", "list")

    assert result.returncode == 0, result.stderr


def test_an_address_that_is_none_is_refused_in_one_line(one_up: Path) -> None:
    result = alone(one_up, "nodes", "list", "--url", "ws://127.0.0.1:many")

    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1), result.stderr


def test_the_token_kept_here_is_shown_to_no_other_gateway_of_this_machine(one_up: Path, tmp_path: Path) -> None:
    """The other one has the same token, so that it would accept any caller that has it."""
    shutil.copy(one_up / "gateway-token.txt", tmp_path)
    with process(*words("gateway", tmp_path, "--port", "0"), stdout=subprocess.PIPE) as child:
        url = read_line(child, 60).decode().split()[1]
        command = ("gateway", "call", "health", "--url", url)
        withheld, accepted = alone(one_up, *command), alone(tmp_path, *command)

    assert accepted.returncode == 0, accepted.stderr
    assert withheld.returncode == 1, withheld.stdout


@pytest.mark.parametrize("command", [("up",), ("nodes", "list"), ("config", "get"), ("audit",)], ids=" ".join)
def test_a_config_that_cannot_be_used_is_named_with_its_file(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "openclaw.json").write_text('{"gateway": {"prot": 1}}')

    result = alone(tmp_path, *command)

    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert f"invalid config in {tmp_path / 'openclaw.json'}: " in result.stderr


def test_the_demo_runs_as_a_module_from_any_folder(tmp_path: Path) -> None:
    settings = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "openclaw_mcp", "demo"]

    result = subprocess.run(command, env=settings, cwd="/", capture_output=True, text=True, timeout=120, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "All four surfaces work." in result.stdout


@pytest.mark.parametrize("command", ["up -d", "demo"])
def test_in_a_folder_that_is_gone_it_says_so(tmp_path: Path, command: str) -> None:
    gone, state = tmp_path / "gone", tmp_path / "state"
    gone.mkdir()
    settings = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OPENCLAW_STATE_DIR": str(state)}
    script = f'rmdir "$PWD" && exec "$0" {command}'
    result = subprocess.run(
        ["sh", "-c", script, OPENCLAW], cwd=gone, env=settings, capture_output=True, text=True, timeout=60, check=False
    )

    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "the folder you are in is gone" in result.stderr


def test_the_log_can_be_read_and_followed(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "gateway.log").write_text("zero\none\ntwo\n")
    assert openclaw("logs", folder, "-n", "2").stdout == "one\ntwo\n"

    with process(*words("logs", folder, "-f", "-n", "1"), stdout=subprocess.PIPE) as child:
        assert read_line(child) == b"two\n"
        (folder / "gateway.log").rename(folder / "gateway.log.1")
        (folder / "gateway.log").write_text("three\n")
        assert read_line(child) == b"three\n"


def test_a_missing_log_is_explained(tmp_path: Path) -> None:
    result = openclaw("logs", tmp_path)

    assert result.returncode == 1
    assert "openclaw up" in result.stderr


def test_its_node_joins_its_own_gateway_when_the_settings_say_so(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"enableNodeMode": true, "displayName": "here"}')
    assert openclaw("up", tmp_path, "--detach", *ANY_PORT).returncode == 0
    try:
        address = json.loads((tmp_path / "up.json").read_text())["surfaces"][2]["address"]
        url = address.replace("http", "ws").removesuffix("/mcp")
        for _ in range(100):
            listing = openclaw("gateway", tmp_path, "call", "node.list", "--url", url)
            if '"connected": true' in listing.stdout:
                break
            time.sleep(0.1)
        assert '"displayName": "here"' in listing.stdout, listing.stdout + listing.stderr
    finally:
        openclaw("down", tmp_path)


def sessions_listed(command: str, settings: dict[str, str]) -> dict[str, object]:
    """What a client gets that starts the tools' server with these settings."""
    request = json.dumps(rpc("tools/call", {"name": "sessions_list", "arguments": {}})) + "\n"
    process = subprocess.run(
        [command], input=request, env=settings, capture_output=True, text=True, timeout=60, check=True
    )
    result: dict[str, object] = json.loads(process.stdout)["result"]
    return result


def test_a_token_of_ones_own_in_the_config_is_the_one_every_program_here_uses(tmp_path: Path) -> None:
    """The table, the clients' entries and our own commands all look into one file: it holds the token that is asked
    for, and a new one once the config names none."""
    settings = {**os.environ, "HOME": str(tmp_path), "OPENCLAW_STATE_DIR": str(tmp_path)}
    by_address = openclaw("connect", tmp_path, "cursor", "--surface", "tools", "--http", "--yes")
    assert by_address.returncode == 0, by_address.stderr
    own = (tmp_path / "gateway-token.txt").read_text()
    by_program = openclaw("connect", tmp_path, "cursor", "--surface", "tools", "--yes")
    assert by_program.returncode == 0, by_program.stderr
    subprocess.run([OPENCLAW, "config", "set", "gateway.auth.token", "of-my-own-choice"], env=settings, check=True)

    started = openclaw("up", tmp_path, "--detach", *ANY_PORT)
    assert started.returncode == 0, started.stderr
    try:
        address, token = table(started.stdout.splitlines())["gateway"]
        assert Path(token).read_text() == "of-my-own-choice"
        assert Path(token).stat().st_mode & 0o077 == 0
        listed = send(address, "POST", rpc("tools/list"), Authorization="Bearer of-my-own-choice")
        assert listed.status == 200, listed.body
        assert send(address, "POST", rpc("tools/list"), Authorization=f"Bearer {own}").status == 401
        entry = json.loads((tmp_path / ".cursor" / "mcp.json").read_text())["mcpServers"]["openclaw-tools"]
        number = address.rpartition(":")[2].partition("/")[0]
        environment = {**settings, **entry["env"], "REMOTECLAW_GATEWAY_URL": f"ws://127.0.0.1:{number}"}
        assert not sessions_listed(entry["command"], environment).get("isError")
    finally:
        openclaw("down", tmp_path)

    (tmp_path / "openclaw.json").write_text("{}")
    assert openclaw("connect", tmp_path, "cursor", "--surface", "tools", "--http", "--yes").returncode == 0
    assert (tmp_path / "gateway-token.txt").read_text() not in ("of-my-own-choice", own)
    assert not (tmp_path / "gateway-token-chosen").exists()


def test_a_token_from_the_environment_is_put_on_no_disk(tmp_path: Path) -> None:
    settings = {**os.environ, "HOME": str(tmp_path), "OPENCLAW_GATEWAY_TOKEN": "only-in-mind"}
    with process(*words("up", tmp_path, *ANY_PORT), stdout=subprocess.PIPE, env=settings) as child:
        rows = table([read_line(child, 60).decode() for _ in range(4)])
        assert rows["gateway"][1] == "$OPENCLAW_GATEWAY_TOKEN"
        result = subprocess.run(
            words("connect", tmp_path, "cursor", "--surface", "tools", "--yes"), env=settings, capture_output=True,
            text=True, timeout=60, check=True,
        )  # fmt: skip
        assert "start Cursor with it in its environment" in result.stdout
        entry = json.loads((tmp_path / ".cursor" / "mcp.json").read_text())["mcpServers"]["openclaw-tools"]
        environment = {**settings, **entry["env"]}
        assert not sessions_listed(entry["command"], environment).get("isError")
    files = [path for path in tmp_path.rglob("*") if path.is_file() and b"only-in-mind" in path.read_bytes()]
    assert files == []


# ---- files of the state directory -----------------------------------------------------------------------------------


def serve_briefly(folder: Path) -> subprocess.CompletedProcess[str]:
    """Start a gateway that says why it can't, or is stopped as soon as it serves."""
    command = [OPENCLAW, "gateway", "--port", "0", "--state-dir", str(folder)]
    with process(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        first_line = child.stdout.readline()
        if first_line:
            child.send_signal(signal.SIGINT)
        out, complaint = child.communicate(timeout=60)
        return subprocess.CompletedProcess(command, child.returncode, (first_line + out).decode(), complaint.decode())


@pytest.mark.parametrize("target", ["a file", "nothing", "a device", "a folder"])
@pytest.mark.parametrize("name", ["gateway.log", ".openclaw.json.lock"])
def test_what_is_written_here_goes_through_no_link(tmp_path: Path, name: str, target: str) -> None:
    folder, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    if target == "a file":
        elsewhere.write_text("mine")
        elsewhere.chmod(0o644)
    elif target == "a folder":
        elsewhere.mkdir()
    (folder / name).symlink_to("/dev/null" if target == "a device" else elsewhere)

    change = [OPENCLAW, "config", "set", "ui.seamColor", "x", "--state-dir", str(folder)]
    locked = name.endswith(".lock")
    result = (
        subprocess.run(change, capture_output=True, text=True, timeout=60, check=False)
        if locked
        else serve_briefly(folder)
    )

    assert result.returncode == 1
    assert f"{folder / name} is a link" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert elsewhere.exists() == (target in ("a file", "a folder"))
    if target == "a file":
        assert (elsewhere.read_text(), elsewhere.stat().st_mode & 0o777) == ("mine", 0o644)


def test_a_log_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gateway.log")

    result = serve_briefly(tmp_path)

    assert result.returncode == 1
    assert "gateway.log" in result.stderr


def test_a_log_that_has_another_name_too_is_begun_again(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    elsewhere.write_text("mine")
    (folder / "gateway.log").hardlink_to(elsewhere)

    assert serve_briefly(folder).stdout.startswith("gateway")

    assert elsewhere.read_text() == "mine"
    assert (folder / "gateway.log").stat().st_mode & 0o777 == 0o600
    assert (folder / "gateway.log").stat().st_nlink == 1


def test_a_log_others_could_read_is_made_private_and_kept(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    log.write_text("before\n")
    log.chmod(0o644)

    assert serve_briefly(tmp_path).stdout.startswith("gateway")

    assert log.stat().st_mode & 0o777 == 0o600
    assert log.read_text().startswith("before\n")


def test_a_log_that_is_full_is_put_away_and_no_link_takes_its_place(tmp_path: Path) -> None:
    script = """
import logging, pathlib, sys
from openclaw_mcp.cli import logging_setup
folder = pathlib.Path(sys.argv[1])
log = folder / logging_setup.LOG_FILE
log.write_bytes(b"x" * (logging_setup.LOG_BYTES - 10))
logging_setup.log_to_file(folder, verbose=False)
logging.getLogger("a").info("the first of a new file")
print((folder / "gateway.log.1").stat().st_size, oct(log.stat().st_mode & 0o777), log.read_text().count("the first"))
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.split() == [str((5 << 20) - 10), "0o600", "1"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_log_on_a_full_disk_is_reported_once_and_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = PrivateLogHandler(tmp_path / "gateway.log", encoding="utf-8")
    line = logging.LogRecord("a", logging.INFO, "", 0, "a line", None, None)
    stream = log.stream
    with Path("/dev/full").open("w") as full:
        for _ in range(2):
            log.stream = full
            log.emit(line)
            log.emit(line)
            log.stream = stream
            log.emit(line)
            output = capsys.readouterr().err
            assert len(output.splitlines()) == 1
            assert f"{tmp_path / 'gateway.log'} can't be written" in output
        with contextlib.suppress(OSError):
            full.close()
    log.close()
    assert (tmp_path / "gateway.log").read_text() == "a line\n" * 2


def test_a_link_in_the_place_of_the_log_is_not_read_out(tmp_path: Path) -> None:
    folder, secret = tmp_path / "state", tmp_path / "secret"
    folder.mkdir(mode=0o700)
    secret.write_text("my secret\n")
    (folder / "gateway.log").symlink_to(secret)

    result = openclaw("logs", folder)

    assert (result.returncode, result.stdout) == (1, "")
    assert "is a link" in result.stderr


def test_complaints_of_a_detached_start_replace_what_is_there_and_no_more(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    elsewhere.write_text("mine")
    (folder / "up.err").symlink_to(elsewhere)
    (folder / "openclaw.json").write_text("{ broken")

    result = openclaw("up", folder, "-d")

    assert result.returncode == 1
    assert elsewhere.read_text() == "mine"
    assert not (folder / "up.err").is_symlink()
    assert (folder / "up.err").stat().st_mode & 0o777 == 0o600
