"""A long order, followed by its client: progress, polling, stopping, looking back. A model on loopback."""

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.gateway.agents.models.fake import FakeModel, Step, say
from tests.gateway.wiring.gateways import serving
from tests.order.test_server import server, settings, text_of
from tests.order.test_whole import DRAW, config
from tests.running import OPENCLAW, StdioServer, process

WAIT = 60.0  # seconds
POLL = 0.05
ERAS = ("legacy", "2026-07-28")
POLLS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "poller", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}
LOOKING = Step(say="Looking around.", calls=((DRAW, {}),))
HELD = say("never told to the end", hang=3600.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def configured(folder: Path, model: FakeModel) -> None:
    (folder / "openclaw.json").write_text(json.dumps(config(model)))


@asynccontextmanager
async def official(folder: Path, era: str) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(command=OPENCLAW, args=["mcp-server"], env=settings(folder))
    async with asyncio.timeout(WAIT), Client(stdio_client(parameters), mode=era) as client:
        yield client


@pytest.mark.parametrize("era", ERAS)
def test_a_client_receives_the_text_so_far_and_the_tool_in_use(folder: Path, era: str) -> None:
    received: list[str | None] = []

    async def on_event(progress: float, total: float | None, message: str | None) -> None:
        received.append(message)

    async def scenario() -> None:
        async with official(folder, era) as client:
            await client.call_tool("order_openclaw", {"message": "Draw"}, progress_callback=on_event)

    with FakeModel(LOOKING, say("Here it is.")) as model:
        configured(folder, model)
        asyncio.run(scenario())
    assert received[0] is not None
    assert "Looking around.".startswith(received[0])
    assert f"using {DRAW}" in received
    assert received[-1] is not None
    assert received[-1].startswith("Looking around.\n\n")


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_cancels_stops_the_model(folder: Path, era: str) -> None:
    async def scenario(model: FakeModel) -> Any:
        async with official(folder, era) as client:
            order = asyncio.ensure_future(
                client.call_tool("order_openclaw", {"message": "think", "sessionKey": "stopped"})
            )
            request = await asyncio.to_thread(model.wait_for, 1)
            order.cancel()
            assert await asyncio.to_thread(request.gone.wait, WAIT)
            again = await client.call_tool("order_openclaw", {"message": "and now?", "sessionKey": "stopped"})
            return again.content[0]

    with FakeModel(HELD, say("Free again.")) as model:
        configured(folder, model)
        assert asyncio.run(scenario(model)).text == "Free again."


def test_a_client_that_is_gone_stops_the_model_and_the_server(folder: Path) -> None:
    with FakeModel(HELD) as model:
        configured(folder, model)
        with server(folder) as one:
            started(one, "think")
            request = model.wait_for(1)
            for pipe in (one.child.stdin, one.child.stdout):
                assert pipe is not None
                pipe.close()
            assert one.child.wait(WAIT) is not None
            assert request.gone.wait(WAIT)


def test_a_server_reported_to_end_stops_its_run_in_the_gateway(folder: Path) -> None:
    with FakeModel(HELD) as model:
        configured(folder, model)
        with serving(folder) as gateway, server(folder, OPENCLAW_GATEWAY_PORT=gateway.port) as one:
            started(one, "think")
            request = model.wait_for(1)
            one.child.terminate()
            assert one.child.wait(WAIT) == 0
            assert request.gone.wait(WAIT)
            assert gateway.child.poll() is None


def test_a_gateway_that_dies_fails_the_order_and_the_next_is_carried_out_here(folder: Path) -> None:
    with FakeModel(HELD, say("Here.")) as model:
        configured(folder, model)
        with serving(folder) as gateway, server(folder, OPENCLAW_GATEWAY_PORT=gateway.port) as one:
            started(one, "think")
            model.wait_for(1)
            gateway.child.kill()
            lost = one.receive(WAIT)["result"]
            assert lost["isError"] is True
            assert "the gateway went away" in lost["content"][0]["text"]
            assert "what became of this is not known" in lost["content"][0]["text"]
            params = {"name": "order_openclaw", "arguments": {"message": "again", "sessionKey": "another"}}
            one.send({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
            assert text_of(one.receive(WAIT)["result"]) == "Here."


def test_nothing_of_the_token_or_of_what_is_said_is_logged_however_much_is(folder: Path) -> None:
    with FakeModel(say("the answer")) as model:
        configured(folder, model)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
        with serving(folder) as gateway:
            env = settings(folder, OPENCLAW_GATEWAY_PORT=gateway.port)
            with process(OPENCLAW, "mcp-server", "--verbose", env=env, **pipes) as child:
                started(StdioServer(child), "the question")
                assert text_of(StdioServer(child).receive(WAIT)["result"]) == "the answer"
                child.terminate()
                assert child.stderr is not None
                logged = child.stderr.read().decode()
            token = gateway.token.strip()
    assert "orders go to the gateway at ws://" in logged
    for secret in ("the question", "the answer", token[-8:], token[:8]):
        assert secret not in logged


def started(one: StdioServer, message: str, **more: Any) -> None:
    params = {"name": "order_openclaw", "arguments": {"message": message}, **more}
    one.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


def polled(one: StdioServer, task: str, until: set[str]) -> Any:
    """As a client does it: asked now and then."""
    for id in range(100, 100 + int(WAIT / POLL)):
        found = one.ask("tasks/get", {"taskId": task, "_meta": POLLS}, id=id)["result"]
        if found["status"] in until:
            return found
        time.sleep(POLL)
    pytest.fail(f"still {found}")


def test_a_client_that_polls_gets_the_answer_when_it_is_there(folder: Path) -> None:
    with FakeModel(LOOKING, say("Here it is.", slow=0.05)) as model:
        configured(folder, model)
        with server(folder) as one:
            started(one, "Draw", _meta=POLLS)
            task = one.receive(WAIT)["result"]
            assert (task["resultType"], task["status"]) == ("task", "working")
            result = polled(one, task["taskId"], {"completed", "failed", "cancelled"})

    assert result["status"] == "completed"
    assert text_of(result["result"]) == "Looking around.\n\nHere it is."
    assert [block["type"] for block in result["result"]["content"]] == ["text", "image"]


def test_a_polled_order_that_is_cancelled_stops_the_model(folder: Path) -> None:
    with FakeModel(HELD) as model:
        configured(folder, model)
        with server(folder) as one:
            started(one, "think", _meta=POLLS)
            task = one.receive(WAIT)["result"]["taskId"]
            request = model.wait_for(1)
            one.ask("tasks/cancel", {"taskId": task, "_meta": POLLS}, id=2)
            assert request.gone.wait(WAIT)
            assert polled(one, task, {"completed", "failed", "cancelled"})["status"] == "cancelled"


@pytest.mark.parametrize("era", ERAS)
def test_a_client_reads_what_was_said_in_a_session(folder: Path, era: str) -> None:
    async def scenario() -> Any:
        async with official(folder, era) as client:
            await client.call_tool("order_openclaw", {"message": "my colour is mauve", "sessionKey": "colours"})
            listed = (await client.list_resources()).resources
            templates = (await client.list_resource_templates()).resource_templates
            assert [str(template.uri_template) for template in templates] == ["openclaw://sessions/{key}"]
            (one,) = listed
            assert one.name == "agent:main:colours"
            return (await client.read_resource(one.uri)).contents[0]

    with FakeModel(say("Noted.")) as model:
        configured(folder, model)
        read = asyncio.run(scenario())
    roles = [(message["role"], message["content"]) for message in json.loads(read.text)]
    assert [role for role, _ in roles] == ["user", "assistant"]
    assert "mauve" in json.dumps(roles[0])
    assert "Noted." in json.dumps(roles[1])
