"""A running `openclaw gateway` whose agent is a model: from `chat.send` to `final`, as clients see it."""

import asyncio
import contextlib
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.agent import TurnCompleted
from openclaw_mcp.core.model import Json
from openclaw_mcp.gateway.wiring.embedded import EmbeddedGateway
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientProfile, Credentials
from openclaw_mcp.order.conversation import AgentOrder
from openclaw_mcp.order.local_order import run_local_order
from openclaw_mcp.protocol.gateway_frames import EventFrame

from ...rpc.gateways import BACKEND, EVERY
from ...wiring.gateways import serving
from ...wiring.test_gateway import Served
from .conversations import APIS, KEY, WAIT, provider
from .fake import FakeModel, Step, say

both = pytest.mark.parametrize("api", APIS)


def config_for(api: str, model: FakeModel, **agent: Any) -> Json:
    return {
        "models": {"providers": {"fake": provider(api, model)}},
        "agents": {"defaults": {"model": {"primary": "fake/m-1"}}, "list": [{"id": "main", **agent}]},
    }


@contextlib.contextmanager
def gateway(folder: Path, config: Json) -> Iterator[Served]:
    folder.mkdir(exist_ok=True)
    (folder / "openclaw.json").write_text(json.dumps(config))
    with serving(folder) as served:
        yield served


class Talker:
    """A client of the gateway that remembers the events it received."""

    def __init__(self, client: GatewayClient) -> None:
        self.client = client
        self.heard: list[EventFrame] = []
        self._news = asyncio.Event()
        client.events.connect(self._hear)

    def _hear(self, news: EventFrame) -> None:
        self.heard.append(news)
        self._news.set()

    async def send(self, message: str, **more: Any) -> str:
        run_id = str(uuid.uuid4())
        params = {"sessionKey": "main", "message": message, "idempotencyKey": run_id, **more}
        await self.client.call("chat.send", params)
        return run_id

    async def until(self, run_id: str, *states: str, within: float = WAIT) -> Json:
        """The first `chat` event of the run in one of these states."""
        async with asyncio.timeout(within):
            while True:
                for news in self.heard:
                    payload: Any = news.payload
                    if news.event == "chat" and payload.get("runId") == run_id and payload.get("state") in states:
                        found: Json = payload
                        return found
                self._news.clear()
                await self._news.wait()

    async def say(self, message: str, *, within: float = WAIT) -> Json:
        return await self.until(await self.send(message), "final", "error", "aborted", within=within)


@contextlib.asynccontextmanager
async def talking(served: Served) -> AsyncIterator[Talker]:
    received = ClientProfile(client=BACKEND, scopes=EVERY, caps=("tool-events",))
    async with GatewayClient(served.ws, received, credentials=Credentials(token=served.token)) as client:
        yield Talker(client)


def text_of(payload: Json) -> str:
    return str(payload["message"]["content"][-1]["text"])


@both
def test_a_message_is_answered_by_the_model_and_remembered(api: str, tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        async with talking(served) as talker:
            first = await talker.say("My name is Ada.")
            assert text_of(first) == "Hello from the model, streamed."
            deltas = [n for n in talker.heard if n.event == "chat" and n.payload.get("state") == "delta"]
            assert deltas
            history = await talker.client.call("chat.history", {"sessionKey": "main"})
            answer = history["messages"][-1]
            assert (answer["provider"], answer["model"]) == ("fake", "m-1")
            assert answer["usage"]["input"] == 100
            await talker.say("What is my name?")

    with FakeModel(say("Hello from the model, streamed.")) as model:
        with gateway(tmp_path / "state", config_for(api, model, systemPrompt="You are terse.")) as served:
            asyncio.run(scenario(served))
        sent = json.dumps(model.requests[1].body)
        for words in ("My name is Ada.", "Hello from the model", "What is my name?", "You are terse."):
            assert words in sent
        assert model.requests[0].key == KEY


@both
def test_the_key_stands_in_the_config_and_nowhere_else(api: str, tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        async with talking(served) as talker:
            failed = await talker.say("hello")
            assert failed["state"] == "error"
            assert failed["errorDetail"]["failoverReason"] == "auth"
            patch = {"agents": {"defaults": {"timeoutSeconds": 60}}}
            config = await talker.client.call("config.get")
            assert KEY not in json.dumps(config)
            await talker.client.call("config.patch", {"raw": json.dumps(patch), "baseHash": config["hash"]})
            assert KEY not in json.dumps([news.payload for news in talker.heard])

    with FakeModel(keys=("another",)) as model, gateway(tmp_path / "state", config_for(api, model)) as served:
        asyncio.run(scenario(served))
    holding = {file.name for file in served.folder.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()}
    assert holding == {"openclaw.json", "openclaw.json.bak"}


@both
def test_an_abort_reaches_the_provider(api: str, tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        async with talking(served) as talker:
            run_id = await talker.send("talk for long")
            await talker.until(run_id, "delta")
            assert not model.requests[0].gone.is_set()
            await talker.client.call("chat.abort", {"sessionKey": "main"})
            aborted = await talker.until(run_id, "aborted")
            assert text_of(aborted).startswith("word")
            assert await asyncio.to_thread(model.requests[0].gone.wait, WAIT)

    with (
        FakeModel(Step(say="word " * 2000, slow=0.02)) as model,
        gateway(tmp_path / "state", config_for(api, model)) as served,
    ):
        asyncio.run(scenario(served))


def test_a_run_may_take_only_so_long(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        async with talking(served) as talker:
            end = await talker.say("talk for long")
            assert (end["state"], end["errorKind"]) == ("error", "timeout")
            assert await asyncio.to_thread(model.requests[0].gone.wait, WAIT)

    with (
        FakeModel(Step(say="word " * 2000, slow=0.02)) as model,
        gateway(tmp_path / "state", config_for("openai", model, timeoutSeconds=1)) as served,
    ):
        asyncio.run(scenario(served))


def test_a_model_set_while_it_runs_answers_the_next_message(tmp_path: Path) -> None:
    async def scenario(served: Served, config: Json) -> None:
        async with talking(served) as talker:
            assert "demo agent" in text_of(await talker.say("hello"))
            result = await talker.client.call("config.get")
            raw = {"raw": json.dumps(config), **({"baseHash": result["hash"]} if result["exists"] else {})}
            await talker.client.call("config.patch", raw)
            assert text_of(await talker.say("hello")) == "A model now."

    with FakeModel(say("A model now.")) as model, serving(tmp_path) as served:
        asyncio.run(scenario(served, config_for("openai", model)))


def test_a_session_may_choose_another_model(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        async with talking(served) as talker:
            await talker.say("hello")
            await talker.client.call("sessions.patch", {"key": "main", "model": "fake/m-2"})
            await talker.say("hello")

    with FakeModel(say("ok")) as model, gateway(tmp_path / "state", config_for("openai", model)) as served:
        asyncio.run(scenario(served))
    assert [request.body["model"] for request in model.requests] == ["m-1", "m-2"]


def test_the_agent_within_another_program_is_the_model_too(tmp_path: Path) -> None:
    with FakeModel(say("From the model.")) as model:
        (tmp_path / "openclaw.json").write_text(json.dumps(config_for("openai", model)))
        result = asyncio.run(_embedded(tmp_path))
    assert result == "From the model."


async def _embedded(folder: Path) -> str:
    async with asyncio.timeout(WAIT), EmbeddedGateway(folder) as agent:
        events = [
            event async for event in run_local_order(agent, AgentOrder(message="hi", session_key="agent:main:main"))
        ]
    assert isinstance(events[-1], TurnCompleted)
    return events[-1].text or ""


# ---- another gateway's agent -----------------------------------------------------------------------------------------


def far(served: Served, **agent: Any) -> Json:
    entry = {"api": "openclaw", "baseUrl": served.ws, "apiKey": {"source": "file", "path": _token_file(served)}}
    return {
        "models": {"providers": {"home": entry}},
        "agents": {"list": [{"id": "main", "model": "home/main", **agent}]},
    }


def _token_file(served: Served) -> str:
    return str(served.folder / "gateway-token.txt")


def test_another_gateways_agent_answers_and_remembers(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        async with talking(served) as talker:
            assert text_of(await talker.say("My name is Ada.")) == "Hello from afar."
            assert [n for n in talker.heard if n.event == "chat" and n.payload.get("state") == "delta"]
            await talker.say("What is my name?")
            history = await talker.client.call("chat.history", {"sessionKey": "main"})
            assert history["messages"][-1]["model"] == "m-1"

    with (
        FakeModel(say("Hello from afar.")) as model,
        gateway(tmp_path / "far", config_for("openai", model)) as home,
        gateway(tmp_path / "near", far(home, systemPrompt="You are Bob.")) as served,
    ):
        asyncio.run(scenario(served))
    first, second = (json.dumps(request.body) for request in model.requests)
    assert "You are Bob." in first
    assert "My name is Ada." in second
    assert second.count("You are Bob.") == 1


def test_an_abort_stops_the_other_gateways_run(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        async with talking(served) as talker:
            run_id = await talker.send("talk for long")
            await talker.until(run_id, "delta")
            await talker.client.call("chat.abort", {"sessionKey": "main"})
            await talker.until(run_id, "aborted")
            assert await asyncio.to_thread(model.requests[0].gone.wait, WAIT)

    with (
        FakeModel(Step(say="word " * 2000, slow=0.02)) as model,
        gateway(tmp_path / "far", config_for("openai", model)) as home,
        gateway(tmp_path / "near", far(home)) as served,
    ):
        asyncio.run(scenario(served))


def test_trouble_of_the_other_gateway_is_said(tmp_path: Path) -> None:
    async def scenario(served: Served, words: str) -> None:
        async with talking(served) as talker:
            end = await talker.say("hello")
            assert end["state"] == "error"
            assert words in end["errorMessage"]

    with FakeModel(Step(status=400, error="scripted refusal")) as model:
        with gateway(tmp_path / "far", config_for("openai", model)) as home:
            with gateway(tmp_path / "near", far(home)) as served:
                asyncio.run(scenario(served, "scripted refusal"))
            lost = far(home)
        with gateway(tmp_path / "lost", lost) as served:
            asyncio.run(scenario(served, "no gateway answers"))


def test_a_gateway_that_passes_on_to_itself_comes_to_an_end(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        async with talking(served) as talker:
            end = await talker.say("hello")
            assert "passed on 3 times" in end["errorMessage"]

    with serving(tmp_path) as served:
        result = served.call("config.patch", json.dumps({"raw": json.dumps(far(served))}))
        assert result.returncode == 0, result.stderr
        asyncio.run(scenario(served))


def test_a_program_with_an_agent_in_it_starts_without_the_http_library() -> None:
    loaded = (
        "import sys, openclaw_mcp.gateway.wiring.embedded, openclaw_mcp.gateway.wiring.assembly; "
        "print('httpx' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "False"
