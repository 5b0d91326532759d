"""Every tool called by a real MCP client on our running gateway, and its effect seen on the other side."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from openclaw_mcp.core.claw_methods import METHODS_BY_TOOL
from openclaw_mcp.core.model import Json, Text
from openclaw_mcp.mcp.client.server_pool import McpServerPool
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.side_effects_file import read_effects
from tests.gateway.wiring.gateways import serving
from tests.gateway.wiring.test_gateway import Served
from tests.mcp.client.servers import call as call_server

from .gateways import SERVER, WAIT, environment, official, operator, used

Use = Callable[..., Awaitable[Any]]
HOME = {"CHANNEL": "local", "ACCOUNT_ID": "default", "TO": "room-1", "THREAD_ID": "t1"}
REST = 20.0  # seconds a gateway may take to come back


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("gateway")) as served:
        yield served


@contextlib.asynccontextmanager
async def own_client(env: dict[str, str]) -> AsyncIterator[Use]:
    """Our own MCP client."""
    async with asyncio.timeout(WAIT), McpServerPool({"claw": {"command": SERVER, "env": env}}) as roster:
        assert await roster.start() == {}
        (server,) = roster.sources().values()

        async def use(name: str, /, **arguments: Any) -> Any:
            result = await call_server(server, name, arguments)
            assert not result.failed, result
            assert result.structured is not UNSET
            (block,) = result.content
            assert isinstance(block, Text)
            assert json.loads(block.text) == result.structured
            return result.structured

        yield use


@contextlib.asynccontextmanager
async def official_client(env: dict[str, str]) -> AsyncIterator[Use]:
    async with official(env) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == list(METHODS_BY_TOOL)

        async def use(name: str, /, **arguments: Any) -> Any:
            return await used(client, name, **arguments)

        yield use


CLIENTS = {"official": official_client, "own": own_client}


class Scene:
    """A client of the tool server, another client of the gateway, and the conversation both see."""

    def __init__(self, use: Use, other: GatewayClient, room: str, effects: Path) -> None:
        self.use = use
        self.other = other
        self.room = room
        self.effects = effects

    async def messages(self, room: str | None = None) -> list[Json]:
        read = await self.other.call("local.read", {"conversation": room or self.room})
        return list(read["messages"])

    async def texts(self, room: str | None = None) -> list[str]:
        return [message["text"] for message in await self.messages(room)]

    async def message(self, text: str) -> Json:
        return next(message for message in await self.messages() if message["text"] == text)


@contextlib.asynccontextmanager
async def scene(gateway: Served, tmp_path: Path, client: str, room: str) -> AsyncIterator[Scene]:
    effects = tmp_path / "effects.ndjson"
    env = environment(gateway.ws, gateway.token, effects, **HOME | {"TO": room})
    env["REMOTECLAW_SESSION_KEY"] = f"agent:main:cli-{room}"
    async with operator(gateway.ws, gateway.token) as other, CLIENTS[client](env) as use:
        yield Scene(use, other, room, effects)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_seven_session_tools(gateway: Served, tmp_path: Path, client: str) -> None:
    async def work() -> None:
        async with scene(gateway, tmp_path, client, f"s-{client}") as here:
            use, own = here.use, f"agent:main:cli-s-{client}"
            await here.other.call("sessions.patch", {"key": f"ops-{client}", "label": f"Ops {client}"})

            reply = await use("sessions_send", label=f"Ops {client}", message="are you well?", timeout=20)
            assert (reply["status"], reply["sessionKey"]) == ("ok", f"agent:main:ops-{client}")
            assert "are you well?" in reply["reply"]

            rows = await use("sessions_list", filter=f"ops-{client}")
            assert [row["label"] for row in rows["sessions"]] == [f"Ops {client}"]
            history = await use("sessions_history", sessionKey=f"ops-{client}")
            assert [message["role"] for message in history["messages"]] == ["user", "assistant"]
            page = await here.other.call("chat.history", {"sessionKey": f"ops-{client}"})
            assert page["messages"][0]["content"] == "are you well?"

            assert (await use("agents_list"))["defaultId"] == "main"
            assert (await use("session_status"))["exists"] is False
            status = await use("session_status", sessionKey=f"ops-{client}")
            assert (status["run"]["active"], status["run"]["status"]) == (False, "done")

            child = await use("sessions_spawn", prompt="!sleep 600", label=f"sleeper {client}")
            assert child["status"] == "accepted"
            key = child["childSessionKey"]
            busy = await here.other.call("sessions.describe", {"key": key})
            assert (busy["session"]["spawnedBy"], busy["session"]["hasActiveRun"]) == (own, True)
            assert [run["childSessionKey"] for run in (await use("subagents", action="list"))["runs"]] == [key]
            assert (await use("subagents", action="cancel", runId=child["runId"]))["terminated"] == 1
            stopped = await here.other.call("sessions.describe", {"key": key})
            assert (stopped["session"]["hasActiveRun"], stopped["session"]["status"]) == (False, "killed")
            assert (await use("subagents", action="status", runId=child["runId"]))["run"]["status"] == "killed"
        assert [(sent.tool, sent.to) for sent in read_effects(here.effects).sent] == [
            ("sessions_send", f"agent:main:ops-{client}")
        ]

    asyncio.run(work())


def test_the_ten_messaging_tools(gateway: Served, tmp_path: Path, client: str) -> None:
    file = gateway.folder / "media" / "plan.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_text("the plan")

    async def work() -> None:
        async with scene(gateway, tmp_path, client, f"room-{client}") as here:
            use, room, side = here.use, here.room, f"side-{client}"
            sent = await use("message_send", target=room, message="hello")
            id = sent["payload"]["messageId"]
            assert await here.texts() == ["hello"]
            assert (await here.message("hello"))["threadId"] == "t1"  # the run's own thread

            await use("message_reply", message="and this", replyToId=id)
            assert (await here.message("and this"))["replyToId"] == id
            await use("message_thread_reply", message="elsewhere", threadId="t2")
            assert (await here.message("elsewhere"))["threadId"] == "t2"

            received = await use("message_broadcast", targets=[room, side], message="to all")
            assert received["sent"] == 2
            assert (await here.texts(side), "to all" in await here.texts()) == (["to all"], True)

            await use("message_react", emoji="👍", messageId=id)
            assert (await here.message("hello"))["reactions"][0]["emoji"] == "👍"
            await use("message_pin", messageId=id)
            assert (await here.message("hello"))["pinned"] is True
            await use("message_pin", messageId=id, remove=True)
            assert "pinned" not in await here.message("hello")

            await use("message_send_attachment", target=side, file=str(file), caption="the file")
            (attached,) = [message for message in await here.messages(side) if message["text"] == "the file"]
            assert (attached["attachments"][0]["name"], attached["attachments"][0]["size"]) == ("plan.txt", 8)
            await use("message_send_with_effect", target=side, message="hooray", effectId="confetti")
            assert (await here.texts(side))[-1] == "hooray"

            read = await use("message_read", limit=50)
            assert read["payload"]["messages"] == [m for m in await here.messages() if m.get("threadId") == "t1"]
            await use("message_delete", messageId=id)
            assert "hello" not in await here.texts()
            await use("message_send", message=r"C:\new\notes")
            assert (await here.texts())[-1] == r"C:\new\notes"
            await use("message_send", media=str(file))
            assert (await here.messages())[-1]["attachments"][0]["name"] == "plan.txt"
        effects = read_effects(here.effects)
        assert [(sent.tool, sent.to, sent.text) for sent in effects.sent] == [
            ("message", room, "hello"),
            ("message", room, "and this"),
            ("message", room, "elsewhere"),
            ("message", room, "to all"),
            ("message", side, "to all"),
            ("message", side, "the file"),
            ("message", side, "hooray"),
            ("message", room, r"C:\new\notes"),
            ("message", room, ""),
        ]
        assert {(sent.provider, sent.account) for sent in effects.sent} == {("local", "default")}
        assert effects.media_urls == (str(file), str(file))

    asyncio.run(work())


def test_the_seven_cron_tools(gateway: Served, tmp_path: Path, client: str) -> None:
    async def work() -> None:
        async with scene(gateway, tmp_path, client, f"cron-{client}") as here:
            use = here.use
            assert (await use("cron_status"))["enabled"] is True
            schedule = {"kind": "every", "everyMs": 86_400_000}
            payload = {"kind": "agentTurn", "message": "water the plants"}
            job = await use("cron_add", job={"name": f"plants {client}", "schedule": schedule, "payload": payload})
            id = job["id"]
            assert (await here.other.call("cron.get", {"id": id}))["payload"]["message"] == "water the plants"

            assert [one["id"] for one in (await use("cron_list", filter=f"plants {client}"))["jobs"]] == [id]
            assert (await use("cron_list", filter="nothing of the kind"))["jobs"] == []
            await use("cron_update", jobId=id, updates={"enabled": False})
            assert (await here.other.call("cron.get", {"id": id}))["enabled"] is False

            assert (await use("cron_run", jobId=id))["enqueued"] is True
            runs: list[Json] = []
            while not runs:
                runs = (await use("cron_runs", jobId=id, limit=5))["entries"]
            assert (runs[0]["jobId"], runs[0]["status"]) == (id, "ok")
            assert "water the plants" in (await here.texts())[-1]  # announced in the run's own conversation
            assert id in [entry["jobId"] for entry in (await use("cron_runs"))["entries"]]

            assert (await use("cron_remove", jobId=id))["removed"] is True
            assert id not in [
                one["id"] for one in (await here.other.call("cron.list", {"includeDisabled": True}))["jobs"]
            ]
        assert [added.job_id for added in read_effects(here.effects).cron_added] == [id]

    asyncio.run(work())


def test_the_five_gateway_tools(tmp_path: Path, client: str) -> None:
    with serving(tmp_path / "gateway") as gateway:
        asyncio.run(_five_gateway_tools(gateway, tmp_path, client))


async def _five_gateway_tools(gateway: Served, tmp_path: Path, client: str) -> None:
    def on_disk() -> Any:
        return json.loads((gateway.folder / "openclaw.json").read_text())

    async with scene(gateway, tmp_path, client, "g") as here:
        use = here.use
        await use("gateway_config_patch", patches={"ui": {"seamColor": "#aaaaaa"}})
        assert on_disk()["ui"] == {"seamColor": "#aaaaaa"}
        result = await use("gateway_config_get", key="ui.seamColor")
        assert result["value"] == "#aaaaaa"
        whole = (await use("gateway_config_get"))["config"]
        await use("gateway_config_apply", config={**whole, "ui": {"seamColor": "#bbbbbb"}})
        assert on_disk()["ui"] == {"seamColor": "#bbbbbb"}
        assert "properties" in (await use("gateway_config_schema"))["schema"]
        assert (await use("gateway_config_schema", key="session"))["path"] == "session"

        async def boot() -> str:
            async with operator(gateway.ws, gateway.token) as other:
                assert other.hello is not None
                return str(other.hello["server"]["bootId"])

        before = await boot()
        assert (await use("gateway_restart", reason="a test"))["status"] == "scheduled"
        async with asyncio.timeout(REST):
            while True:
                with contextlib.suppress(Exception):
                    if await boot() != before:
                        break
                await asyncio.sleep(0.2)
        assert (await use("agents_list"))["defaultId"] == "main"


# ---- under a grant ---------------------------------------------------------------------------------------------------


async def _granted(other: GatewayClient, tmp_path: Path, gateway: Served, **wanted: Any) -> dict[str, str]:
    grant = await other.call("attach.grant", {"sessionKey": "attached", "channel": "local", "to": "den", **wanted})
    entry = grant["stdioConfig"]["mcpServers"]["openclaw"]
    effects = {"SIDE_EFFECTS_FILE": str(tmp_path / "effects.ndjson")}
    received = {name.removeprefix("REMOTECLAW_"): value for name, value in entry["env"].items()}
    path = Path(effects["SIDE_EFFECTS_FILE"])
    return environment(gateway.ws, grant["token"], path, **received | effects | {"GATEWAY_TOKEN": grant["token"]})


def test_a_run_under_a_grant_acts_in_its_own_place(gateway: Served, tmp_path: Path) -> None:
    async def work() -> None:
        async with operator(gateway.ws, gateway.token) as other:
            await other.call("sessions.patch", {"key": "private", "label": "Private"})
            env = await _granted(other, tmp_path, gateway, accountId="default")
            # The agent edits what it was given: another session, another conversation.
            forged = env | {"REMOTECLAW_SESSION_KEY": "agent:main:private", "REMOTECLAW_TO": ""}
            async with official(forged) as client:

                async def refused(name: str, **arguments: Any) -> str:
                    result = await client.call_tool(name, arguments)
                    assert result.is_error, result
                    return str(result.content[0].text)  # type: ignore[union-attr]

                child = await used(client, "sessions_spawn", prompt="!say done")
                row = await other.call("sessions.describe", {"key": child["childSessionKey"]})
                assert row["session"]["spawnedBy"] == "agent:main:attached"
                await used(client, "message_reply", message="from the den")
                den = await other.call("local.read", {"conversation": "den"})
                assert [message["text"] for message in den["messages"]] == ["from the den"]

                assert "out of sight" in await refused("sessions_history", sessionKey="private")
                assert "out of sight" in await refused("session_status", sessionKey="private")
                assert "out of sight" in await refused("sessions_send", label="Private", message="x")
                keys = {row["key"] for row in (await used(client, "sessions_list"))["sessions"]}
                assert "agent:main:private" not in keys
                assert child["childSessionKey"] in keys
                assert (await used(client, "cron_status"))["enabled"] is True  # the owner's grant

    asyncio.run(work())


def test_a_strangers_run_has_no_more_than_the_rules_leave_it(gateway: Served, tmp_path: Path) -> None:
    async def work() -> None:
        async with operator(gateway.ws, gateway.token) as other:
            env = await _granted(other, tmp_path, gateway, senderIsOwner=False)
            forged = {name: value for name, value in env.items() if name != "REMOTECLAW_TOOLS"}
            forged["REMOTECLAW_SENDER_IS_OWNER"] = "true"
            async with official(env) as honest, official(forged) as client:
                menu = [tool.name for tool in (await honest.list_tools()).tools]
                assert not any(name.startswith(("cron_", "gateway_")) for name in menu)
                for name in METHODS_BY_TOOL:
                    if name not in menu:
                        result = await client.call_tool(name, _least(name))
                        assert result.is_error, name
                assert [tool.name for tool in (await client.list_tools()).tools] == menu

    asyncio.run(work())


def _least(name: str) -> Json:
    """Arguments that would do something, were they let through."""
    if name == "cron_add":
        return {
            "job": {"schedule": {"kind": "every", "everyMs": 60000}, "payload": {"kind": "systemEvent", "text": "x"}}
        }
    return {"jobId": "x", "updates": {}, "config": {}, "patches": {"session": {}}}
