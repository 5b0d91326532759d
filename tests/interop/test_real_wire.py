"""The same requests to a real gateway and to ours: chat commands, endings, sessions, refusals, answered alike."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.protocol.gateway_frames import EventFrame

from ..gateway.agents.models.fake import FakeModel, Request, Step, say
from ..gateway.agents.models.test_gateway import gateway as our_gateway
from . import real

PATIENCE = 120.0  # seconds; the first turn of a real gateway is slow
COST = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
CARD = {"id": "m-1", "name": "M", "reasoning": False, "input": ["text"], "cost": COST, "contextWindow": 64_000}

HOLD = "Hold on until you are stopped."

Question = Callable[["Asker"], Awaitable[Any]]


def answer(request: Request) -> Step:
    """The model answers at once, but for one message."""
    latest = [each for each in request.body.get("messages", ()) if each["role"] == "user"][-2:]
    return say("Well.", hang=PATIENCE if HOLD in str(latest) else 0.0)


class Asker:
    """An operator's client, and the events it was sent."""

    def __init__(self, client: GatewayClient) -> None:
        self.client = client
        self.events: list[EventFrame] = []
        self._news = asyncio.Event()
        client.events.connect(self._on_event)

    def _on_event(self, event: EventFrame) -> None:
        self.events.append(event)
        self._news.set()

    async def call(self, method: str, **params: Any) -> Any:
        return await self.client.call(method, params, within=PATIENCE)

    async def refusal(self, method: str, **params: Any) -> tuple[str, str]:
        try:
            await self.call(method, **params)
        except RpcError as exc:
            return exc.kind, str(exc).removeprefix("Error: ").partition(".")[0]
        return "none", ""

    async def send(self, key: str, text: str, run: str, **more: Any) -> Any:
        return await self.call("chat.send", sessionKey=key, message=text, idempotencyKey=run, **more)

    async def until(self, name: str, **fields: Any) -> Any:
        async with asyncio.timeout(PATIENCE):
            while True:
                for event in self.events:
                    payload = event.payload or {}
                    if event.event == name and all(payload.get(key) == value for key, value in fields.items()):
                        return payload
                self._news.clear()
                await self._news.wait()

    async def say(self, key: str, text: str) -> Any:
        run = str(uuid.uuid4())
        await self.send(key, text, run)
        return await self.until("chat", runId=run, state="final")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Question], tuple[Any, Any]]]:
    """Asks a real gateway and ours, each with the scripted model behind it; their answers."""
    real.program()
    folder = tmp_path_factory.mktemp("wire")
    with FakeModel(answer) as model:
        entry = {"baseUrl": f"{model.url}/v1", "apiKey": "k", "api": "openai-completions"}
        theirs = {**entry, "models": [{**CARD, "maxTokens": 8192}]}
        mine = {**entry, "models": [{"id": "m-1", "contextWindow": 64_000}]}
        agents = {"defaults": {"model": {"primary": "fake/m-1"}}}
        with (
            real.gateway(
                folder / "real", models={"mode": "merge", "providers": {"fake": theirs}}, agents=agents
            ) as url,
            our_gateway(
                folder / "ours",
                {"models": {"providers": {"fake": mine}}, "agents": {"defaults": {"model": "fake/m-1"}}},
            ) as served,
        ):

            async def ask(question: Question, url: str, token: str) -> Any:
                async with asyncio.timeout(PATIENCE * 2), real.client(url, token) as client:
                    return await question(Asker(client))

            def asked(question: Question) -> tuple[Any, Any]:
                return (
                    asyncio.run(ask(question, served.ws, served.token)),
                    asyncio.run(ask(question, url, real.TOKEN)),
                )

            yield asked


def alike(both: Callable[[Question], tuple[Any, Any]], question: Question) -> Any:
    ours, theirs = both(question)
    assert ours == theirs
    return ours


def test_a_command_is_answered_alike(both: Any) -> None:
    async def question(asker: Asker) -> Any:
        key, found = "agent:main:commands", list[tuple[Any, ...]]()
        for text in ("/help", "/status", "/model", "/whoami", "/new"):
            run = str(uuid.uuid4())
            first = await asker.send(key, text, run)
            end = await asker.until("chat", runId=run, state="final")
            again = await asker.send(key, text, run)
            waited = await asker.call("agent.wait", runId=run, timeoutMs=5000)
            page = await asker.call("chat.history", sessionKey=key)
            asked, answer = page["messages"][-2:]
            streams = [each for each in asker.events if each.event == "agent" and each.payload["runId"] == run]
            found.append(
                (first["status"], again["status"], waited["status"], end["seq"], end["message"]["model"], len(streams))
            )
            found.append((asked["role"], asked["content"], answer["role"], answer["provider"], answer["model"]))
        return found

    assert len(alike(both, question)) == 10


def test_a_word_that_is_no_command_goes_to_the_model_alike(both: Any) -> None:
    async def question(asker: Asker) -> Any:
        end = await asker.say("agent:main:words", "/nosuch thing")
        return end["message"]["content"][0]["text"]

    assert alike(both, question) == "Well."


def test_stop_answers_alike(both: Any) -> None:
    async def question(asker: Asker) -> Any:
        return await asker.send("agent:main:stopped", "/stop", str(uuid.uuid4()))

    assert alike(both, question) == {"ok": True, "aborted": False, "runIds": []}


def test_a_session_of_a_new_id_is_made_alike(both: Any) -> None:
    async def question(asker: Asker) -> Any:
        params = {"sessionId": "own-id", "message": "hi", "idempotencyKey": str(uuid.uuid4())}
        await asker.client.call("agent", params, within=PATIENCE, final=True)
        found = await asker.call("sessions.resolve", sessionId="own-id")
        row = (await asker.call("sessions.describe", key=found["key"]))["session"]
        return found, row["sessionId"], row["classification"]

    assert alike(both, question)[1:] == ("own-id", "explicit")


def test_refusals_have_the_same_code(both: Any) -> None:
    async def question(asker: Asker) -> Any:
        poll = {"question": "?", "options": ["a", "b"]}
        event = {"schedule": {"kind": "every", "everyMs": 60_000}, "payload": {"kind": "systemEvent", "text": "x"}}
        return [
            await asker.refusal("send", to="x", message="hi", idempotencyKey="w1"),
            await asker.refusal("poll", to="x", **poll, idempotencyKey="w2"),
            await asker.refusal("sessions.create", key="agent:main:child", parentSessionKey="agent:main:nobody"),
            (await asker.refusal("cron.add", name="x", sessionTarget="isolated", wakeMode="now", **event))[0],
            (await asker.refusal("node.pending.enqueue", nodeId="nobody", type="status.request"))[0],
            await asker.refusal("channels.pairing.list", channel="nobody"),
            (await asker.call("sessions.describe", key="agent:main:child"))["session"],
        ]

    answers = alike(both, question)
    assert answers[0] == ("INVALID_REQUEST", "Channel is required (no configured channels detected)")


def test_rows_and_limits_are_alike(both: Any) -> None:
    async def question(asker: Asker) -> Any:
        key = "agent:main:rows"
        await asker.say(key, "hello there")
        await asker.say(key, "and again")
        row = (await asker.call("sessions.describe", key=key))["session"]
        await asker.call("sessions.patch", key=key, unread=False)
        read = (await asker.call("sessions.describe", key=key))["session"]
        defaults = (await asker.call("sessions.list", limit=1))["defaults"]
        assert asker.client.hello is not None
        policy = asker.client.hello["policy"]
        kinds = row["classification"], row["kind"], row["unread"], read["unread"]
        return kinds, defaults["contextTokens"], sorted(policy["attachments"])

    assert alike(both, question) == (("direct", "direct", True, False), 64_000, ["maxBytes", "maxImageBytes"])


def test_the_states_of_a_run_and_its_task_are_published_alike(both: Any) -> None:
    async def question(asker: Asker) -> Any:
        await asker.say("agent:main:states", "warm up")
        run = str(uuid.uuid4())
        await asker.send("agent:main:states", "go", run)
        await asker.until("chat", runId=run, state="final")
        mine = [each.payload for each in asker.events if each.event == "agent" and each.payload["runId"] == run]
        states = [(each["seq"], each["data"]["phase"]) for each in mine if each["stream"] == "run_status"]
        params = {"sessionKey": "agent:main:tasks", "message": "do it", "idempotencyKey": str(uuid.uuid4())}
        await asker.client.call("agent", params, within=PATIENCE, final=True)
        tasks = [each.payload["task"] for each in asker.events if each.event == "task"]
        names = ("kind", "runtime", "status", "title", "sessionKey", "deliveryStatus")
        return states, {name: tasks[-1][name] for name in names}, tasks[0]["status"]

    alike(both, question)


def test_a_grant_names_an_http_server_alike(both: Any) -> None:
    async def question(asker: Asker) -> Any:
        grant = await asker.call("attach.grant", sessionKey="main", ttlMs=60_000)
        entry = grant["mcpConfig"]["mcpServers"]["openclaw"]
        assert grant["env"]["OPENCLAW_MCP_TOKEN"] == grant["token"]
        url = entry.pop("url")
        revoked = await asker.call("attach.revoke", token=grant["token"])
        return grant["sessionKey"], entry, url.startswith("http://127.0.0.1:"), url.rpartition("/")[2], revoked

    alike(both, question)


@pytest.mark.parametrize("name", ["X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP", "Forwarded"])
def test_a_forwarded_upgrade_is_refused_alike(both: Any, name: str) -> None:
    async def question(asker: Asker) -> Any:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(asker.client.url, additional_headers={name: "192.0.2.1"}, proxy=None):
                pass
        response = refused.value.response
        return response.status_code, b"Proxy client attribution is required" in (response.body or b"")

    assert alike(both, question) == (403, True)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("chat.send", {"sessionKey": "agent:main:ends", "message": "/new", "idempotencyKey": "ends-new"}),
        ("sessions.reset", {"key": "agent:main:ends"}),
        ("sessions.delete", {"key": "agent:main:ends"}),
    ],
    ids=["new", "reset", "delete"],
)
def test_a_run_that_ends_with_its_session_is_reported_alike(both: Any, method: str, params: dict[str, Any]) -> None:
    async def question(asker: Asker) -> Any:
        key, run = "agent:main:ends", str(uuid.uuid4())
        await asker.send(key, HOLD, run)
        await asker.until("chat", runId=run, state="status", phase="starting_model")
        await asker.call(method, **params)
        end = await asker.until("chat", runId=run, state="aborted")
        waited = await asker.call("agent.wait", runId=run, timeoutMs=5000)
        return end["stopReason"], waited["status"], waited["stopReason"]

    alike(both, question)
