"""A question of another server's, through our own server, to the person behind our client: each era on either side."""

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, types
from mcp.client.stdio import stdio_client

from openclaw_mcp.core.errors import CannotAsk
from openclaw_mcp.core.model import LOCAL_CALLER, Caller, InputRequest, Json
from openclaw_mcp.mcp.client.server_pool import McpServerPool
from tests.mcp.client.servers import EVERYTHING, Person, call, odd, run, text
from tests.running import ROOT, everything_over_http

WAIT = 60.0
MODES = ["legacy", "2026-07-28"]
ERAS = ["handshake", "stateless"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with everything_over_http() as address:
        yield address


async def ada(context: Any, params: Any) -> types.ElicitResult:
    content: dict[str, Any] = {"color": "blue"} if "colour" in params.message else {"name": "Ada"}
    return types.ElicitResult(action="accept", content=content)


def call_through_our_server(mode: str, servers: Json, tool: str) -> str:
    async def visit() -> str:
        words = ["-m", "tests.mcp.client.bridge", json.dumps(servers)]
        bridge = StdioServerParameters(command=sys.executable, args=words, cwd=str(ROOT))
        async with (
            asyncio.timeout(WAIT),
            Client(stdio_client(bridge), mode=mode, elicitation_callback=ada) as client,
        ):
            result = await client.call_tool(tool, {})
            block = result.content[0]
            assert isinstance(block, types.TextContent)
            return block.text

    return asyncio.run(visit())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("era", ERAS)
def test_over_http_each_era_on_either_side(address: str, mode: str, era: str) -> None:
    servers = {"all": {"url": address, "protocol": era}}

    assert call_through_our_server(mode, servers, "all__test_input_required_result_multi_round") == "Ada likes blue"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("era", ERAS)
def test_over_a_pipe_each_era_on_either_side(mode: str, era: str) -> None:
    servers = {"all": {**EVERYTHING, "protocol": era}}

    assert call_through_our_server(mode, servers, "all__test_input_required_result_multi_round") == "Ada likes blue"


def test_a_client_that_answers_everything_is_asked_everything() -> None:
    class Able(Person):
        def can_ask(self, capability: str, mode: str = "") -> bool:
            return True

    async def scene() -> None:
        async with McpServerPool({"all": {**EVERYTHING, "protocol": "stateless"}}) as roster:
            server = roster.find("all")
            await server.start()
            able, deaf = Able(), Person()

            await call(server, "test_input_required_result_multiple_inputs", line=able)
            with pytest.raises(CannotAsk) as caught:
                await call(server, "test_missing_capability", line=deaf)

            assert {question.capability for question in able.asked} == {"elicitation", "sampling", "roots"}
            assert caught.value.capability == "sampling"

    run(scene())


@pytest.mark.parametrize("mode", MODES)
def test_over_a_pipe_that_does_not_say_whose_question_it_is(mode: str) -> None:
    answer = json.loads(call_through_our_server(mode, {"odd": odd()}, "odd__ask"))

    assert answer == {"action": "accept", "content": {"name": "Ada"}}


def test_with_two_callers_on_one_pipe_neither_is_asked_for_the_other() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd()}) as roster:
            server = roster.find("odd")
            await server.start()
            ada, bob = Person("Ada"), Person("Bob")
            stranger = Caller(kind="agent", name="bob", scopes=frozenset({"*"}))
            waiting = asyncio.ensure_future(call(server, "hang", line=bob, caller=stranger))
            await asyncio.sleep(0)

            answer = json.loads(text(await call(server, "ask", line=ada, caller=LOCAL_CALLER)))

            assert "Several callers" in answer["message"]
            assert not ada.asked
            assert not bob.asked
            waiting.cancel()
            await asyncio.wait([waiting])

    run(scene())


def test_a_caller_who_cannot_be_asked_counts_as_having_cancelled() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd()}) as roster:
            server = roster.find("odd")
            await server.start()

            assert json.loads(text(await call(server, "ask"))) == {"action": "cancel"}

    run(scene())


def test_the_clock_stands_still_while_a_person_thinks() -> None:
    class Slow(Person):
        async def ask(self, questions: Mapping[str, InputRequest]) -> Mapping[str, Json]:
            await asyncio.sleep(0.6)
            return await super().ask(questions)

    async def scene() -> None:
        async with McpServerPool({"odd": odd(requestTimeoutMs=300)}) as roster:
            server = roster.find("odd")
            await server.start()

            assert json.loads(text(await call(server, "ask", line=Slow())))["action"] == "accept"

    run(scene())
