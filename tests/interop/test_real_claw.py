"""The 29 tools on a real OpenClaw gateway: which of them work there, seen from the other side."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.claw_methods import METHODS_BY_TOOL
from openclaw_mcp.net.gateway_client.client import CannotConnect
from openclaw_mcp.net.side_effects_file import read_effects
from tests.claw import gateways
from tests.claw.gateways import environment, failed, official, used
from tests.gateway.channels.telegram_server import TOKEN as TELEGRAM_TOKEN
from tests.gateway.channels.telegram_server import TelegramServer, telegram_server

from . import real


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    real.program()
    with real.gateway(tmp_path_factory.mktemp("theirs")) as url:
        yield url


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real gateway takes seconds over what takes ours milliseconds."""
    monkeypatch.setattr(gateways, "WAIT", 240.0)


def settings(url: str, tmp_path: Path) -> dict[str, str]:
    return environment(url, real.TOKEN, tmp_path / "effects") | {"REMOTECLAW_SESSION_KEY": "agent:main:claw"}


def test_every_tool_has_a_way_there(theirs: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with official(settings(theirs, tmp_path)) as client:
            await used(client, "agents_list")
            assert [tool.name for tool in (await client.list_tools()).tools] == list(METHODS_BY_TOOL)

    asyncio.run(work())


def test_session_tools(theirs: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with official(settings(theirs, tmp_path)) as client, real.client(theirs) as other:
            created = await other.call("sessions.create", {"label": "claw target"})
            sent = await used(client, "sessions_send", label="claw target", message="hello", timeout=60)
            assert sent["sessionKey"] == created["key"]
            assert sent["status"] == "error"  # no model is set up there: the run begins and fails
            assert "auth" in sent["error"].lower()

            rows = await used(client, "sessions_list", filter="claw target", limit=5)
            assert [row["key"] for row in rows["sessions"]] == [created["key"]]
            assert (await used(client, "sessions_history", sessionKey=created["key"]))["sessionKey"] == created["key"]
            assert (await used(client, "session_status", sessionKey=created["key"]))["run"]["active"] is False
            assert (await used(client, "session_status"))["exists"] is False
            assert "no session" in await failed(client, "session_status", sessionKey="agent:main:nobody")

            await other.call("sessions.create", {"key": "agent:main:claw"})
            child = await used(client, "sessions_spawn", prompt="look around", label="claw child")
            row = await other.call("sessions.describe", {"key": child["childSessionKey"]})
            assert row["session"]["parentSessionKey"] == "agent:main:claw"
            assert (await used(client, "subagents", action="list"))["status"] == "ok"
        assert read_effects(tmp_path / "effects").texts == ("hello",)

    asyncio.run(work())


@contextlib.contextmanager
def telegram() -> Iterator[TelegramServer]:
    """Telegram's stand-in, in a thread: a real gateway is waited for in this one."""
    ready, leave = threading.Event(), asyncio.Event()
    found: list[tuple[TelegramServer, asyncio.AbstractEventLoop]] = []

    async def stay() -> None:
        async with telegram_server() as server:
            found.append((server, asyncio.get_running_loop()))
            ready.set()
            await leave.wait()

    thread = threading.Thread(target=lambda: asyncio.run(stay()))
    thread.start()
    assert ready.wait(real.START_WAIT)
    server, loop = found[0]
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join()


def test_message_tools_with_a_channel_behind_it(tmp_path: Path) -> None:
    """Its Telegram has no `pin`, no `sendWithEffect` and no history, and says so. Files are left out: it takes them
    with a part that is built when it is installed, and we run no install scripts."""
    with telegram() as server:
        server.chat(4242, username="ann").topics.add(7)
        bot = {"enabled": True, "botToken": TELEGRAM_TOKEN, "apiRoot": server.url}
        with real.gateway(tmp_path / "theirs", channels={"telegram": bot}) as url:
            asyncio.run(_messages(url, tmp_path, server))
    effects = read_effects(tmp_path / "effects")
    assert effects.texts == ("hello", "and this", "in the thread", "to all")
    assert {(sent.provider, sent.to) for sent in effects.sent} == {("telegram", "4242")}


async def _messages(url: str, tmp_path: Path, server: TelegramServer) -> None:
    def texts() -> list[str]:
        return [message.text for message in server.sees(4242)]

    def last_call(method: str) -> Any:
        return [params for name, params in server.calls if name == method][-1]

    home = {"REMOTECLAW_CHANNEL": "telegram", "REMOTECLAW_ACCOUNT_ID": "default", "REMOTECLAW_TO": "4242"}
    async with official(settings(url, tmp_path) | home) as client:
        sent = await used(client, "message_send", target="4242", message="hello")
        id = sent["messageId"]
        await used(client, "message_reply", message="and this", replyToId=id)
        assert last_call("sendMessage")["reply_to_message_id"] == int(id)
        await used(client, "message_thread_reply", message="in the thread", threadId="7")
        assert server.sees(4242)[-1].thread == "7"
        assert (await used(client, "message_broadcast", targets=["4242"], message="to all"))["sent"] == 1
        assert texts() == ["hello", "and this", "in the thread", "to all"]
        await used(client, "message_react", emoji="👍", messageId=id)
        assert [one.emoji for one in server.sees(4242)[0].reactions] == ["👍"]
        await used(client, "message_delete", messageId=id)
        assert texts() == ["and this", "in the thread", "to all"]
        for name, arguments in _lacking().items():
            assert "Telegram" in await failed(client, name, **arguments), name


def _lacking() -> dict[str, dict[str, Any]]:
    return {
        "message_pin": {"messageId": "2"},
        "message_send_with_effect": {"target": "4242", "message": "hooray", "effectId": "1"},
        "message_read": {"limit": 5},
    }


def test_cron_tools(theirs: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with official(settings(theirs, tmp_path)) as client, real.client(theirs) as other:
            assert (await used(client, "cron_status"))["enabled"] is True
            schedule, payload = {"kind": "every", "everyMs": 86_400_000}, {"kind": "systemEvent", "text": "claw tea"}
            job = await used(client, "cron_add", job={"schedule": schedule, "payload": payload})
            assert (await other.call("cron.get", {"id": job["id"]}))["payload"]["text"] == "claw tea"
            assert [one["id"] for one in (await used(client, "cron_list", filter="claw tea"))["jobs"]] == [job["id"]]
            await used(client, "cron_update", jobId=job["id"], updates={"enabled": False})
            assert (await other.call("cron.get", {"id": job["id"]}))["enabled"] is False
            assert (await used(client, "cron_run", jobId=job["id"]))["ok"] is True
            assert "entries" in await used(client, "cron_runs", jobId=job["id"])
            assert "entries" in await used(client, "cron_runs", limit=3)
            assert (await used(client, "cron_remove", jobId=job["id"]))["removed"] is True
        assert len(read_effects(tmp_path / "effects").cron_added) == 1

    asyncio.run(work())


def test_gateway_tools(theirs: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with official(settings(theirs, tmp_path)) as client, real.client(theirs) as other:
            await used(client, "gateway_config_patch", patches={"ui": {"seamColor": "#aa0000"}})
            assert (await other.call("config.get"))["config"]["ui"]["seamColor"] == "#aa0000"
            assert (await used(client, "gateway_config_get", key="ui.seamColor"))["value"] == "#aa0000"
            assert "seamColr" in await failed(client, "gateway_config_patch", patches={"ui": {"seamColr": 1}})
            whole = (await used(client, "gateway_config_get"))["config"]
            applied = await used(client, "gateway_config_apply", config=whole)
            assert applied["ok"] is True
            assert (await used(client, "gateway_config_schema", key="gateway.auth"))["path"] == "gateway.auth"
            boot = (other.hello or {})["server"]["bootId"]
            restart = await used(client, "gateway_restart")
            assert restart["ok"] is True
            if restart["status"] == "scheduled":  # else it waits for work of its own, for as long as that takes
                await _another_boot(theirs, boot)
            assert (await used(client, "agents_list"))["defaultId"] == "main"

    asyncio.run(work())


async def _another_boot(url: str, boot: str) -> None:
    async with asyncio.timeout(real.START_WAIT):
        while True:
            await asyncio.sleep(0.5)
            try:
                async with real.client(url) as other:
                    if (other.hello or {})["server"]["bootId"] != boot:
                        return
            except CannotConnect:
                continue
