"""Sessions that outlive the proxy: in a file where it runs alone, in Redis where it does not; and what must not."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.net.files import StateBroken
from openclaw_mcp.protocol.bridge import derive_session_id
from openclaw_mcp.proxy.engine.app_session import AppRegistration
from openclaw_mcp.proxy.engine.session_file import SessionFile
from openclaw_mcp.proxy.settings import ProxySettings, place_sessions_file, read_settings
from openclaw_mcp.proxy.state import open_proxy

from .. import web_client
from ..running import OPENCLAW, READY_WAIT, process, read_line
from .engines import Redis, Start, one_redis, proxies, redis
from .proxies import ECHO, HOLD, Proxy, closed, proxy, soon, text_of

__all__ = ["one_redis", "proxies", "redis"]

SECRET = "5" * 64
OTHER_SECRET = "6" * 64
AWAY = "Bridge is not connected: the app is not running, or it is reconnecting; start it, then call again"


@pytest.fixture(params=["file", "redis"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ProxySettings:
    """Of a proxy that keeps its sessions."""
    if request.param == "redis":
        return ProxySettings(audit="off", redis_url=request.getfixturevalue("redis").url)
    return file_settings(tmp_path)


def file_settings(folder: Path, **fields: Any) -> ProxySettings:
    return ProxySettings(**{"audit": "off", "sessions_file": str(folder / "kept" / "sessions.sqlite"), **fields})


async def register(proxy: Proxy, secret: str, **body: Any) -> str:
    answer = await proxy.send("POST", "/v1/chat/sessions", {"tools": [ECHO], **body}, OpenClaw_Session_Secret=secret)
    assert answer.status == 200, answer.body
    id: str = answer.json["mcpSessionId"]
    return id


def with_secret(secret: str) -> Any:
    return {"additional_headers": {"OpenClaw-Session-Secret": secret}}


def stored_ids(settings: ProxySettings) -> set[str]:
    with contextlib.closing(sqlite3.connect(settings.sessions_file)) as database:
        return {id for (id,) in database.execute("SELECT id FROM sessions")}


def file_size(settings: ProxySettings) -> int:
    return Path(settings.sessions_file).stat().st_size


# ---- across a restart ----


def test_a_client_keeps_its_url_across_a_restart(settings: ProxySettings) -> None:
    async def main() -> None:
        async with proxy(settings) as first:
            id = (await first.create(device_id="desk", chat_id="c1", tools=[ECHO, HOLD]))["mcpSessionId"]
            before = (await first.send("GET", f"/v1/chat/sessions/{id}")).json
            async with first.app(id):
                assert (await first.call(id))["isError"] is False
        async with proxy(settings) as second:
            assert text_of(await second.call(id)) == AWAY, "answered at once, so that the client can try again"
            await second.offers(id, "echo_text", "hold")
            after = (await second.send("GET", f"/v1/chat/sessions/{id}")).json
            shown = ("mcpSessionId", "device_id", "chat_id", "created_at", "tools")
            assert [after[name] for name in shown] == [before[name] for name in shown]
            async with second.app(id):
                assert (await second.call(id))["structuredContent"] == {"echoed_text": "hello"}

    asyncio.run(main())


def test_a_handshake_client_needs_no_new_handshake(settings: ProxySettings) -> None:
    async def main() -> None:
        async with proxy(settings) as first:
            id = (await first.create())["mcpSessionId"]
            hello = web_client.rpc("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
            name = (await first.send("POST", f"/v1/mcp/{id}", hello)).headers["mcp-session-id"]
        async with proxy(settings) as second, second.app(id):
            assert (await second.rpc(id, "tools/list", MCP_Session_Id=name))["result"]["tools"]

    asyncio.run(main())


def test_new_tools_and_deletions_outlive_the_proxy_too(settings: ProxySettings) -> None:
    async def main() -> None:
        async with proxy(settings) as first:
            ids = [(await first.create())["mcpSessionId"] for _ in range(3)]
            assert (await first.send("PUT", f"/v1/chat/sessions/{ids[0]}/tools", [HOLD])).status == 200
            assert (await first.send("DELETE", f"/v1/chat/sessions/{ids[1]}")).status == 200
        async with proxy(settings) as second:
            await second.offers(ids[0], "hold")
            assert (await second.refused(ids[1]))[0] == 4404, "a deleted session is not resumed"
            assert (await second.send("POST", f"/v1/mcp/{ids[1]}", {})).status == 404
            await second.offers(ids[2], "echo_text", "hold")

    asyncio.run(main())


def test_calls_of_two_processes_have_no_number_in_common(settings: ProxySettings) -> None:
    """An app may answer a call of the proxy that was on the bridge to the next one."""

    async def main() -> None:
        numbers = []
        for _ in range(2):
            async with proxy(settings) as running:
                id = await register(running, SECRET, tools=[HOLD])
                async with running.app(id, **with_secret(SECRET)) as app:
                    waiting = asyncio.create_task(running.call(id, "hold"))
                    held = await app.holding()
                    await app.result(held, "done")
                    await soon(waiting)
                    numbers.append(held["request_id"])
        assert len(set(numbers)) == 2

    asyncio.run(main())


def test_a_session_that_is_not_used_after_a_restart_expires(tmp_path: Path) -> None:
    async def main() -> None:
        settings = file_settings(tmp_path, session_ttl=0.4)
        async with proxy(settings) as first:
            id = (await first.create())["mcpSessionId"]
        async with proxy(settings) as second:
            ended = asyncio.Event()
            second.state.session_ended.connect(lambda _: ended.set())
            await soon(ended.wait())
            assert (await second.send("POST", f"/v1/mcp/{id}", {})).status == 404
            assert (await second.refused(id))[0] == 4404
        assert stored_ids(settings) == set()
        async with proxy(settings) as third:
            assert (await third.send("GET", "/v1/chat/sessions")).json == {"sessions": []}

    asyncio.run(main())


# ---- secrets ----


def test_the_same_secret_is_the_same_session(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await register(proxy, SECRET, device_id="desk")
            assert id == derive_session_id(SECRET)
            async with proxy.app(id, **with_secret(SECRET)) as app:
                assert await register(proxy, SECRET, device_id="desk") == id, "a repeated request makes no second one"
                assert (await proxy.call(id))["isError"] is False, "and does not disturb the first"
                assert await register(proxy, SECRET, device_id="desk", tools=[HOLD]) == id
                await proxy.offers(id, "hold")
                assert await register(proxy, SECRET, device_id="lap", tools=[HOLD]) == id
                assert (await closed(app.socket))[0] == 4410, "other words make it another app's"
            [shown] = (await proxy.send("GET", "/v1/chat/sessions")).json["sessions"]
            assert (shown["mcpSessionId"], shown["device_id"]) == (id, "lap")
            assert SECRET not in json.dumps(shown)

    asyncio.run(main())


def test_a_session_with_a_secret_is_held_with_that_secret_alone(settings: ProxySettings) -> None:
    async def main() -> None:
        async with proxy(settings) as first:
            id = await register(first, SECRET)
            plain = (await first.create())["mcpSessionId"]
            other = await register(first, OTHER_SECRET)
        async with proxy(settings) as second:
            wrong: Any
            for wrong in ({}, with_secret(OTHER_SECRET), with_secret(id), with_secret("x")):
                assert (await second.refused(id, **wrong))[0] == 4403
            assert (await second.refused(other, **with_secret(SECRET)))[0] == 4403
            assert (await second.refused(plain, **with_secret(SECRET)))[0] == 4403
            async with second.app(id, **with_secret(SECRET)):
                assert (await second.call(id))["isError"] is False
            browser: Any = {
                "subprotocols": [
                    "openclaw-bridge",
                    "secret.NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NTU1NQ",
                ]
            }
            async with second.app(id, **browser):
                assert (await second.call(id))["isError"] is False
            async with second.app(plain):
                assert (await second.call(plain))["isError"] is False

    asyncio.run(main())


def test_a_deleted_session_is_gone_until_its_app_registers_it_again(settings: ProxySettings) -> None:
    async def main() -> None:
        async with proxy(settings) as first:
            id = await register(first, SECRET)
            await first.send("DELETE", f"/v1/chat/sessions/{id}")
        async with proxy(settings) as second:
            assert (await second.refused(id, **with_secret(SECRET)))[0] == 4404
            assert await register(second, SECRET) == id
            async with second.app(id, **with_secret(SECRET)):
                assert (await second.call(id))["isError"] is False

    asyncio.run(main())


@pytest.mark.parametrize("secret", ["short", "x" * 257])
def test_a_secret_that_can_be_guessed_is_refused(proxies: Start, secret: str) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            answer = await proxy.send("POST", "/v1/chat/sessions", {}, OpenClaw_Session_Secret=secret)
            assert answer.status == 422
            assert "32 to 256 that can't be guessed" in answer.json["detail"]
            assert secret not in answer.json["detail"]

    asyncio.run(main())


def test_no_secret_is_in_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        settings = file_settings(tmp_path)
        async with proxy(settings) as running:
            await register(running, SECRET)
            folder = Path(settings.sessions_file).parent
            files = sorted(folder.iterdir())
            assert files
            for file in files:
                assert SECRET.encode() not in file.read_bytes()
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    asyncio.run(main())


# ---- the file ----


def test_two_proxies_do_not_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.proxy.engine.session_file.LOCK_WAIT", 0.1)

    async def main() -> None:
        settings = file_settings(tmp_path)
        async with proxy(settings) as first:
            id = (await first.create())["mcpSessionId"]
            with pytest.raises(
                StateBroken, match=r"another proxy keeps its sessions in .*OPENCLAW_PROXY_SESSIONS_FILE"
            ):
                await contextlib.AsyncExitStack().enter_async_context(open_proxy(settings))
            assert (await first.send("GET", f"/v1/chat/sessions/{id}")).status == 200

    asyncio.run(main())


def not_a_database(path: Path) -> None:
    path.write_text("notes of somebody\n" * 300)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def unreadable_row(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE sessions SET registration = x'7b'")
        database.commit()


def a_number_for_tools(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE tool_lists SET tools = 42")


def of_the_future(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 9")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def no_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("a file")


BROKEN = [no_folder, not_a_database, cut_off, unreadable_row, a_number_for_tools, of_the_future, a_folder, a_link]


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_a_file_that_can_not_be_used_stops_the_start_and_is_left_alone(tmp_path: Path, damage: Any) -> None:
    settings = file_settings(tmp_path)
    path = Path(settings.sessions_file)

    async def write() -> None:
        async with proxy(settings) as first:
            await first.create()

    async def start() -> None:
        with pytest.raises(StateBroken, match=rf"{path.parent}.*OPENCLAW_PROXY_SESSIONS_FILE"):
            await contextlib.AsyncExitStack().enter_async_context(open_proxy(settings))

    asyncio.run(write())
    damage(path)
    found = path.read_bytes() if path.is_file() else None
    asyncio.run(start())
    assert (path.read_bytes() if path.is_file() else None) == found


def test_more_sessions_than_there_is_room_for_are_not_taken_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with proxy(file_settings(tmp_path)) as first:
            ids = [(await first.create(tools=[{"name": f"t{n}"}]))["mcpSessionId"] for n in range(5)]
        small = file_settings(tmp_path, most_sessions=3, most_sessions_of_a_peer=3, unclaimed=-1.0)
        async with proxy(small) as second:
            listed = (await second.send("GET", "/v1/chat/sessions")).json["sessions"]
            assert [session["mcpSessionId"] for session in listed] == ids[:1:-1], "the newest"
            newest = (await second.create())["mcpSessionId"]
            listed = (await second.send("GET", "/v1/chat/sessions")).json["sessions"]
            assert [session["mcpSessionId"] for session in listed] == [newest, ids[4], ids[3]], "the oldest gave way"
        assert stored_ids(small) == {newest, ids[4], ids[3]}

    asyncio.run(main())


def test_equal_tools_are_stored_once_and_removed_with_their_last_session(tmp_path: Path) -> None:
    async def main() -> None:
        settings = file_settings(tmp_path)
        large = [{"name": "large", "description": "d" * 1_000_000}]
        async with proxy(settings) as running:
            ids = [(await running.create(tools=large))["mcpSessionId"] for _ in range(20)]
        assert file_size(settings) < 2_000_000
        async with proxy(settings) as running:
            for id in ids[:-1]:
                await running.send("DELETE", f"/v1/chat/sessions/{id}")
            await running.offers(ids[-1], "large")
            await running.send("PUT", f"/v1/chat/sessions/{ids[-1]}/tools", [ECHO])
        with contextlib.closing(sqlite3.connect(settings.sessions_file)) as database:
            assert [json.loads(tools) for (tools,) in database.execute("SELECT tools FROM tool_lists")] == [[ECHO]]

    asyncio.run(main())


@contextlib.asynccontextmanager
async def with_full_disk(running: Proxy) -> AsyncIterator[None]:
    """No page more for the file, as on a full disk."""
    file: SessionFile = running.state.engine._file  # type: ignore[attr-defined]  # of the engine with a file
    pages = (await file._run(lambda: file._database.execute("PRAGMA page_count").fetchone()))[0]
    await file._run(lambda: file._database.execute(f"PRAGMA max_page_count = {pages}"))
    yield
    await file._run(lambda: file._database.execute("PRAGMA max_page_count = 1000000"))


def test_on_a_full_disk_no_session_is_promised_and_calls_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        settings = file_settings(tmp_path)
        large = [{"name": "large", "description": "d" * 100_000}]
        async with proxy(settings) as running:
            id = (await running.create())["mcpSessionId"]
            async with running.app(id) as app:
                async with with_full_disk(running):
                    refused = await running.send("POST", "/v1/chat/sessions", {"tools": large})
                    assert (refused.status, refused.headers["retry-after"]) == (503, "30")
                    assert "full" in refused.json["detail"]
                    assert (await running.send("PUT", f"/v1/chat/sessions/{id}/tools", large)).status == 503
                    await app.say(type="update_tools", tools=large)
                    assert "full" in (await soon(app.errors.get()))["reason"]
                    await running.offers(id, "echo_text", "hold")
                    assert (await running.call(id))["isError"] is False
                    listed = (await running.send("GET", "/v1/chat/sessions")).json["sessions"]
                    assert [session["mcpSessionId"] for session in listed] == [id], "the refused one is not there"
                created = await running.send("POST", "/v1/chat/sessions", {"tools": large})
                assert created.status == 200
        assert stored_ids(settings) == {id, created.json["mcpSessionId"]}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("pragma", "remedy"),
    [("query_only = 1", "make that file writable"), ("max_page_count = 1", "make room for that file")],
)
def test_a_session_that_cannot_be_kept_names_what_helps(tmp_path: Path, pragma: str, remedy: str) -> None:
    async def main() -> None:
        async with proxy(file_settings(tmp_path)) as running:
            file: SessionFile = running.state.engine._file  # type: ignore[attr-defined]
            await file._run(lambda: file._database.execute(f"PRAGMA {pragma}"))
            large = [{"name": "large", "description": "d" * 100_000}]
            refused = await running.send("POST", "/v1/chat/sessions", {"tools": large})
            assert refused.json["detail"].endswith(f"have its operator {remedy}")

    asyncio.run(main())


def damage_pages(path: Path) -> None:
    """All but the first, whose header is read at the start."""
    with path.open("r+b") as pages:
        size = pages.seek(0, os.SEEK_END)
        pages.seek(4096)
        pages.write(b"x" * (size - 4096))


def test_a_damaged_file_is_to_be_moved_away(tmp_path: Path) -> None:
    async def main() -> None:
        settings = file_settings(tmp_path)
        async with proxy(settings) as running:
            await running.create()
            file: SessionFile = running.state.engine._file  # type: ignore[attr-defined]
            await file._run(lambda: file._database.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
            await file._run(lambda: file._database.execute("PRAGMA cache_size = 0"))
            damage_pages(Path(settings.sessions_file))
            refused = await running.send("POST", "/v1/chat/sessions", {"tools": [ECHO]})
            assert refused.status == 503
            assert refused.json["detail"].endswith("have its operator move that file away and restart the proxy")

    asyncio.run(main())


def test_what_could_not_be_removed_is_removed_later(tmp_path: Path) -> None:
    async def main() -> None:
        settings = file_settings(tmp_path, session_ttl=0.6)
        async with proxy(settings) as running:
            ids = [(await running.create())["mcpSessionId"] for _ in range(2)]
            file: SessionFile = running.state.engine._file  # type: ignore[attr-defined]
            await file._run(lambda: file._database.execute("PRAGMA query_only = 1"))
            assert (await running.send("DELETE", f"/v1/chat/sessions/{ids[0]}")).status == 503
            assert (await running.send("GET", f"/v1/chat/sessions/{ids[0]}")).status == 404, "it has ended all the same"
            assert (await running.send("DELETE", f"/v1/chat/sessions/{ids[0]}")).status == 503, "and is still stored"
            await file._run(lambda: file._database.execute("PRAGMA query_only = 0"))
            assert (await running.send("DELETE", f"/v1/chat/sessions/{ids[0]}")).status == 200
            assert (await running.send("DELETE", "/v1/chat/sessions/unknown")).status == 200
        assert ids[0] not in stored_ids(settings)

    asyncio.run(main())


# ---- a real process ----


def run_proxy(folder: Path, port: int) -> Any:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENCLAW_")}
    environment |= {"OPENCLAW_STATE_DIR": str(folder), "OPENCLAW_PROXY_AUDIT": "off", "HOME": str(folder)}
    return process(OPENCLAW, "proxy", "--port", str(port), env=environment, stdout=subprocess.PIPE)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_every_registration_that_was_answered_outlives_the_process(tmp_path: Path, number: signal.Signals) -> None:
    """Killed while many are being registered."""
    port = free_port()

    async def register_until_killed(address: str, pid: int) -> list[str]:
        answered: list[str] = []

        async def one(index: int) -> None:
            with contextlib.suppress(OSError, Exception):
                for each in range(1000):
                    body = {"tools": [{"name": f"t{index}_{each}"}]}
                    made = await asyncio.to_thread(web_client.send, f"{address}/v1/chat/sessions", "POST", body)
                    answered.append(made.json["mcpSessionId"])
                    if len(answered) == 60:
                        os.kill(pid, number)

        await asyncio.gather(*(one(index) for index in range(4)))
        return answered

    with run_proxy(tmp_path, port) as child:
        address = read_line(child, READY_WAIT).decode().split()[-1]
        answered = asyncio.run(register_until_killed(address, child.pid))
        child.wait(READY_WAIT)
    assert len(answered) >= 60
    with run_proxy(tmp_path, port) as child:
        assert read_line(child, READY_WAIT).decode().split()[-1] == address
        listed = web_client.send(f"{address}/v1/chat/sessions", "GET").json["sessions"]
        assert set(answered) <= {session["mcpSessionId"] for session in listed}
        assert len(listed) <= len(answered) + 4, "at most those that were under way"
    assert [path.name for path in tmp_path.glob("*.sqlite")] == [f"proxy-{port}.sqlite"]


def test_a_start_with_a_broken_file_is_one_sentence(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / f"proxy-{port}.sqlite").write_text("no database\n" * 100)
    environment = {**os.environ, "OPENCLAW_STATE_DIR": str(tmp_path), "HOME": str(tmp_path)}
    words = [sys.executable, "-m", "openclaw_mcp", "proxy", "--port", str(port)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=READY_WAIT, check=False)
    assert done.returncode != 0
    [_, sentence] = done.stderr.strip().splitlines()
    assert "file is not a database; move that file away, and apps register again" in sentence


def test_where_sessions_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path))

    def placed(port: int = 8000, **variables: str) -> str:
        environment = {f"OPENCLAW_PROXY_{name}": value for name, value in variables.items()}
        return place_sessions_file(read_settings(environment), port=port).sessions_file

    assert placed() == str(tmp_path / "proxy-8000.sqlite")
    assert placed(SESSIONS_FILE="off") == "off"
    assert placed(SESSIONS_FILE="/elsewhere") == "/elsewhere"
    assert placed(REDIS_URL="redis://127.0.0.1") == ""
    for_up = place_sessions_file(read_settings({}), port=9, folder=str(tmp_path / "up"))
    assert for_up.sessions_file == str(tmp_path / "up" / "proxy-9.sqlite")
    assert placed(port=0) == "", "no client finds a proxy at any free port again"


def test_a_session_of_redis_is_registered_again_when_redis_has_lost_it(redis: Redis) -> None:
    async def main() -> None:
        async with proxy(ProxySettings(audit="off", redis_url=redis.url)) as running:
            id = await register(running, SECRET)
            redis.forget()
            assert await register(running, SECRET) == id
            async with running.app(id, **with_secret(SECRET)):
                assert (await running.call(id))["isError"] is False

    asyncio.run(main())


def test_another_app_with_the_same_token_does_not_replace_the_tools(settings: ProxySettings) -> None:
    async def main() -> None:
        async with proxy(settings) as here:
            id = await register(here, SECRET)
            tools = f"/v1/chat/sessions/{id}/tools"

            assert (await here.send("PUT", tools, [HOLD])).status == 403
            assert (await here.send("PUT", tools, [HOLD], OpenClaw_Session_Secret=OTHER_SECRET)).status == 403
            await here.offers(id, "echo_text")
            assert (await here.send("PUT", tools, [HOLD], OpenClaw_Session_Secret=SECRET)).status == 200
            await here.offers(id, "hold")

    asyncio.run(main())


def test_a_list_of_tools_that_sessions_share_is_read_once(tmp_path: Path) -> None:
    """A thousand sessions with one list of a megabyte would take a gigabyte at the start, and again at the next."""
    tools = b'[{"name": "large", "description": "' + b"d" * 1000 + b'"}]'

    async def main() -> None:
        async with SessionFile(tmp_path / "sessions.sqlite") as file:
            for name in "abc":
                await file.put(AppRegistration(id=name, created=0.0, about=b"{}"), tools)
            kept = await file.read_all()
        assert len(kept) == 3
        assert len({id(each.tools) for each in kept}) == 1

    asyncio.run(main())


def test_tools_of_an_app_that_leaves_meanwhile_are_the_same_in_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        async with proxy(file_settings(tmp_path)) as here:
            id = await register(here, SECRET)
            session = await here.state.find_session(id)
            replacing = asyncio.create_task(here.state.replace_tools(session, b'[{"name": "new"}]'))
            await asyncio.sleep(0)
            replacing.cancel()
            await asyncio.wait([replacing])
            await here.offers(id, "new")
        async with proxy(file_settings(tmp_path)) as next_one:
            await next_one.offers(id, "new")

    asyncio.run(main())


def test_no_session_is_acknowledged_when_the_file_was_removed(tmp_path: Path) -> None:
    settings = file_settings(tmp_path)
    file = Path(settings.sessions_file)

    async def main() -> None:
        async with proxy(settings) as running:
            await register(running, SECRET)
            await asyncio.to_thread(file.unlink)
            answer = await running.send("POST", "/v1/chat/sessions", {"tools": [ECHO]})
            assert answer.status == 503
            assert b"was moved away or removed" in answer.body

    asyncio.run(main())
