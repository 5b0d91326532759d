"""A command behind an order waits for a person: the client learns it, and its user may answer. Real programs."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import ElicitResult

from openclaw_mcp.core.gateway_events import RemoteApproval, RemoteApprovalRequest
from openclaw_mcp.order.approvals import ApprovalAsked, RemoteApprovals
from tests.gateway.nodes.gateways import collect_events, next_of
from tests.gateway.rpc.gateways import within
from tests.gateway.wiring.gateways import serving
from tests.gateway.wiring.test_gateway import Served
from tests.gateway.wiring.test_questions_in_conversations import CONFIG, RUN, Scene, scene
from tests.running import OPENCLAW

MODES = ["legacy", "auto"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("state")
    (folder / "openclaw.json").write_text(json.dumps(CONFIG))
    with serving(folder) as served:
        yield served


class Orders:
    """An MCP client of `openclaw mcp-server`, and what its user was told and asked."""

    def __init__(self) -> None:
        self.progress: asyncio.Queue[str] = asyncio.Queue()
        self.questions: asyncio.Queue[str] = asyncio.Queue()
        self.answer: asyncio.Future[ElicitResult] = asyncio.get_running_loop().create_future()
        self.client: Any = None

    async def elicited(self, context: Any, params: Any) -> ElicitResult:
        self.questions.put_nowait(params.message)
        return await asyncio.shield(self.answer)

    async def told(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.put_nowait(message or "")

    def order(self) -> "asyncio.Task[Any]":
        call = self.client.call_tool("order_openclaw", {"message": RUN}, progress_callback=self.told)
        return asyncio.ensure_future(call)

    async def wait_for(self, beginning: str) -> str:
        while True:
            message = str(await next_of(self.progress))
            if message.startswith(beginning):
                return message


@contextlib.asynccontextmanager
async def ordering(gateway: Served, mode: Any, *, can_ask: bool = True) -> AsyncIterator[tuple[Scene, Orders]]:
    env = {**os.environ, "OPENCLAW_STATE_DIR": str(gateway.folder), "OPENCLAW_GATEWAY_PORT": gateway.port}
    server = stdio_client(StdioServerParameters(command=OPENCLAW, args=["mcp-server"], env=env))
    orders = Orders()
    callback = orders.elicited if can_ask else None
    async with scene(gateway) as here, Client(server, mode=mode, elicitation_callback=callback) as client:
        orders.client = client
        yield here, orders


@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_the_user_of_a_client_that_can_ask_decides(gateway: Served, mode: str, allow: bool) -> None:
    async def test() -> None:
        async with ordering(gateway, mode) as (here, orders):
            result = orders.order()
            question = await next_of(orders.questions)
            assert question.startswith("May this command run on node laptop?")
            assert "\n| ls\n" in question
            orders.answer.set_result(ElicitResult(action="accept", content={"allow": allow}))
            decision = "allow-once" if allow else "deny"
            assert await next_of(here.answers) == decision
            assert decision in (await result).content[0].text
            assert orders.questions.empty()

    within(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_can_not_ask_learns_what_is_waited_for_and_where_to_answer(gateway: Served, mode: str) -> None:
    async def test() -> None:
        async with ordering(gateway, mode, can_ask=False) as (here, orders):
            requests = collect_events(here.owner, "exec.approval.requested")
            result = orders.order()
            waits = await orders.wait_for("waiting until a person allows a command on node laptop: ")
            assert waits.endswith(": ls — answer in `openclaw approvals --gateway`")
            id = (await next_of(requests))["id"]
            await here.owner.call("exec.approval.resolve", {"id": id, "decision": "allow-once"})
            await orders.wait_for("the command was allowed")
            assert "allow-once" in (await result).content[0].text

    within(test())


def test_a_question_that_another_person_answers_is_taken_back_from_the_client(gateway: Served) -> None:
    async def test() -> None:
        async with ordering(gateway, "legacy") as (here, orders):
            requests = collect_events(here.owner, "exec.approval.requested")
            result = orders.order()
            await next_of(orders.questions)
            id = (await next_of(requests))["id"]
            await here.owner.call("exec.approval.resolve", {"id": id, "decision": "deny"})
            assert "deny" in (await result).content[0].text

    within(test())


def test_an_answer_of_the_client_that_comes_too_late_changes_nothing(gateway: Served) -> None:
    async def test() -> None:
        async with ordering(gateway, "auto") as (here, orders):
            requests = collect_events(here.owner, "exec.approval.requested")
            result = orders.order()
            await next_of(orders.questions)
            id = (await next_of(requests))["id"]
            await here.owner.call("exec.approval.resolve", {"id": id, "decision": "deny"})
            assert await next_of(here.answers) == "deny"
            orders.answer.set_result(ElicitResult(action="accept", content={"allow": True}))
            assert "deny" in (await result).content[0].text

    within(test())


def test_a_dismissed_form_is_no_answer(gateway: Served) -> None:
    async def test() -> None:
        async with ordering(gateway, "legacy") as (here, orders):
            requests = collect_events(here.owner, "exec.approval.requested")
            result = orders.order()
            id = (await next_of(requests))["id"]
            await next_of(orders.questions)
            orders.answer.set_result(ElicitResult(action="cancel"))
            assert [asked["id"] for asked in await here.owner.call("exec.approval.list")] == [id]
            await here.owner.call("exec.approval.resolve", {"id": id, "decision": "allow-once"})
            assert "allow-once" in (await result).content[0].text

    within(test())


@pytest.mark.parametrize("command", ["x" * 5000, "echo " + "\u200b" * 1000 + "; rm -rf ~"])
def test_a_command_that_is_not_shown_whole_is_not_put_to_the_client(command: str) -> None:
    class NoGateway:
        async def call(self, method: str, params: Any = None, *, within: float | None = None) -> Any:
            raise AssertionError(method)

    asked = RemoteApproval(id="1", request=RemoteApprovalRequest(command=command, host="a\nb"))
    (event,) = RemoteApprovals(NoGateway()).read(asked)

    assert isinstance(event, ApprovalAsked)
    assert event.send_answer is None
    assert event.question == ""
    assert event.notice.endswith("answer in `openclaw approvals --gateway`")
    assert "\n" not in event.notice


def test_orders_of_the_same_words_stay_apart(gateway: Served) -> None:
    """Clients of one server share its token: what one is asked is not for the other, nor is its answer."""

    async def test() -> None:
        async with ordering(gateway, "auto") as (here, orders):
            requests = collect_events(here.owner, "exec.approval.requested")
            first = orders.order()
            await next_of(orders.questions)
            second = orders.order()
            await next_of(orders.questions)
            assert (await next_of(requests))["id"] != (await next_of(requests))["id"]
            orders.answer.set_result(ElicitResult(action="accept", content={"allow": True}))
            assert [await next_of(here.answers), await next_of(here.answers)] == ["allow-once", "allow-once"]
            for result in await asyncio.gather(first, second):
                assert "allow-once" in result.content[0].text
            assert orders.questions.empty()
            assert here.answers.empty()

    within(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_command_that_the_client_shows_only_in_part_is_not_for_its_user_to_allow(gateway: Served, mode: str) -> None:
    async def test() -> None:
        async with ordering(gateway, mode) as (here, orders):
            here.question["command"] = f"ls {'x' * 3000}; rm -rf /"
            requests = collect_events(here.owner, "exec.approval.requested")
            result = orders.order()
            waits = await orders.wait_for("waiting until a person allows a command on node ")
            assert "answer in `openclaw approvals --gateway`" in waits
            id = (await next_of(requests))["id"]
            await here.owner.call("exec.approval.resolve", {"id": id, "decision": "deny"})
            assert "deny" in (await result).content[0].text
            assert orders.questions.empty()

    within(test())
