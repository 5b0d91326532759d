"""A gateway's operators as one more way to reach a person: asked, answered, taken back, absent."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from openclaw_mcp.core.errors import OpenClawError
from openclaw_mcp.core.model import Caller, ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.node.gateway_questions import GatewayPrompter
from openclaw_mcp.node.invocations import Invocations
from openclaw_mcp.node.questions import PromptRouter, UserQuestion

from .media.making import call

QUESTION = UserQuestion(id="q", kind="exec", title="May it run?", detail="ls", why="no rule", asker="me", always=True)


class Gateway:
    """Answers as it is set up, and keeps what it was asked."""

    def __init__(self, decision: Any) -> None:
        self.decision = decision
        self.received: list[tuple[str, Any]] = []
        self.asked = asyncio.Event()

    async def tell(self, method: str, params: Any) -> Any:
        self.received.append((method, params))
        self.asked.set()
        if isinstance(self.decision, Exception):
            raise self.decision
        if self.decision == "never" and method == "exec.approval.request":
            await asyncio.Event().wait()
        return {"id": params["id"], "decision": self.decision}


def on_gateway(on: Callable[[], bool] = lambda: True) -> GatewayPrompter:
    return GatewayPrompter(ask_on_gateway=on, seconds=lambda: 5)


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        ("allow-once", "once"),
        ("allow-always", "once"),
        ("deny", "deny"),
        (None, None),
        ("perhaps", None),
        ({"odd": 1}, None),
        (OpenClawError("an older gateway"), None),
    ],
)
def test_an_operator_far_away_says_yes_once_or_no(decision: Any, answer: str | None) -> None:
    async def test() -> None:
        gateway, asker = Gateway(decision), on_gateway()
        with asker.attach(gateway.tell):
            assert await asker.ask(QUESTION) == answer
        ((method, params),) = gateway.received
        assert (method, params["command"], params["timeoutMs"]) == ("exec.approval.request", "ls", 5000)
        assert params["unavailableDecisions"] == ["allow-always"]

    asyncio.run(test())


def test_it_is_there_while_a_gateway_is_and_the_setting_is_on() -> None:
    async def test() -> None:
        on = True
        asker = on_gateway(lambda: on)
        assert not asker.is_available()
        assert await asker.ask(QUESTION) is None
        with asker.attach(Gateway(None).tell):
            assert asker.is_available()
            on = False
            assert not asker.is_available()
        assert not asker.is_available()

    asyncio.run(test())


def test_a_question_answered_elsewhere_is_taken_back() -> None:
    class Quick:
        keeps_questions = False

        def is_available(self) -> bool:
            return True

        async def ask(self, question: UserQuestion) -> Any:
            await gateway.asked.wait()
            return "once"

    gateway = Gateway("never")

    async def test() -> None:
        asker = on_gateway()
        asking = PromptRouter([asker, Quick()], seconds=lambda: 5, ask_in_client=lambda: False)
        with asker.attach(gateway.tell):
            assert await asking.ask(call("system.run"), QUESTION, how_to_allow="") == "once"
        request, taken_back = gateway.received
        assert taken_back == ("exec.approval.resolve", {"id": request[1]["id"], "decision": "deny"})

    asyncio.run(test())


def test_a_question_whose_time_is_up_is_not_taken_back() -> None:
    """The gateway's own clock ends it: taken back, it would be reported as answered at the node."""
    gateway = Gateway("never")

    async def test() -> None:
        asker = GatewayPrompter(ask_on_gateway=lambda: True, seconds=lambda: 0.3)
        asking = PromptRouter([asker], seconds=lambda: 0.3, ask_in_client=lambda: False)
        with asker.attach(gateway.tell), pytest.raises(OpenClawError):
            await asking.ask(call("system.run"), QUESTION, how_to_allow="")
        assert [method for method, _ in gateway.received] == ["exec.approval.request"]

    asyncio.run(test())


def test_a_question_about_an_invocation_names_it_so_that_the_gateway_knows_whose_run_waits() -> None:
    gateway, asker = Gateway("allow-once"), on_gateway()
    router = PromptRouter([asker], seconds=lambda: 5, ask_in_client=lambda: False)

    class Tools:
        changed: Signal[None] = Signal()

        async def list(self, caller: Caller) -> list[ToolSpec]:
            return []

        async def call(self, invoked: ToolCall) -> ToolResult:
            return text_result(await router.ask(invoked, QUESTION, how_to_allow=""))

    async def test() -> None:
        invocations = Invocations(Tools(), gateway.tell)
        with asker.attach(gateway.tell):
            invocations.on_event("node.invoke.request", {"id": "call-7", "command": "system.run"})
            while not any(method == "node.invoke.result" for method, _ in gateway.received):
                gateway.asked.clear()
                async with asyncio.timeout(5):
                    await gateway.asked.wait()
            await router.ask(call("system.run"), QUESTION, how_to_allow="")
        await invocations.aclose()
        asked = [params for method, params in gateway.received if method == "exec.approval.request"]
        assert [params.get("toolCallId") for params in asked] == ["call-7", None]

    asyncio.run(test())
