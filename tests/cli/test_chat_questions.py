"""Questions about commands in `openclaw chat`: shown while the agent waits, to who opens it later, and answered."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.gateway.nodes.gateways import collect_events, next_of
from tests.gateway.rpc.gateways import within
from tests.gateway.wiring.gateways import serving
from tests.gateway.wiring.test_gateway import Served, environment
from tests.gateway.wiring.test_questions_in_conversations import CONFIG, Scene, scene
from tests.running import OPENCLAW

WAIT = 30.0
TOOL = '!tool laptop__system_run {"command":["ls"]}'


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("state")
    (folder / "openclaw.json").write_text(json.dumps(CONFIG))
    with serving(folder) as served:
        yield served


class Chat:
    """`openclaw chat` with its input and output in pipes; its notes are among the output."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child

    def type(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line.encode() + b"\n")

    async def read(self, part: str) -> str:
        """The output up to the line that holds this."""
        assert self._child.stdout is not None
        output = ""
        async with asyncio.timeout(WAIT):
            while part not in output:
                line = (await self._child.stdout.readline()).decode()
                assert line, output
                output += line
        return output


@contextlib.asynccontextmanager
async def chatting(gateway: Served, *words: str) -> AsyncIterator[Chat]:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        OPENCLAW, "chat", *words, env=environment(gateway.folder, OPENCLAW_GATEWAY_PORT=gateway.port), stdin=pipe,
        stdout=pipe, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield Chat(child)
    finally:
        assert child.stdin is not None
        child.stdin.close()
        try:
            async with asyncio.timeout(WAIT):
                await child.wait()
        except TimeoutError:
            child.kill()


async def question_code(chat: Chat) -> str:
    text = await chat.read("Without an answer it is denied in ")
    assert "May this command run on node" in text
    assert "| ls\n" in text
    return text.partition("(question ")[2].partition(",")[0]


@pytest.mark.parametrize("words", [(), ("--agent", "other")], ids=["a conversation", "a session of another agent"])
@pytest.mark.parametrize(("answer", "decision"), [("once", "allow-once"), ("deny", "deny")])
def test_a_question_is_a_line_of_the_chat_and_answered_there(
    gateway: Served, words: tuple[str, ...], answer: str, decision: str
) -> None:
    async def test() -> None:
        async with scene(gateway) as here, chatting(gateway, f"desk-{answer}", *words) as chat:
            chat.type(TOOL)
            code = await question_code(chat)
            chat.type(f"/approve {code} perhaps")
            await chat.read("Write /approve CODE once")
            chat.type(f"/approve {code} {answer}")
            ended = {"once": "allowed once", "deny": "denied"}[answer]
            await chat.read(f"Question {code}: {ended}.")
            assert await next_of(here.answers) == decision
            await chat.read(f'"{decision}"')

    within(test())


@pytest.mark.parametrize("words", [("late",), ("late", "--agent", "other")], ids=["a conversation", "a session"])
def test_a_chat_opened_after_the_question_shows_it(gateway: Served, words: tuple[str, ...]) -> None:
    async def test() -> None:
        async with scene(gateway) as here:
            await begin(here, *words)
            async with chatting(gateway, *words) as chat:
                code = await question_code(chat)
                chat.type(f"/approve {code} deny")
                assert await next_of(here.answers) == "deny"

    within(test())


async def begin(here: Scene, name: str, *agent: str) -> None:
    requests = collect_events(here.owner, "exec.approval.requested")
    if agent:
        params = {"sessionKey": f"agent:{agent[1]}:{name}", "message": TOOL, "idempotencyKey": "late-run"}
        await here.owner.call("chat.send", params)
        await next_of(requests)
    else:
        await here.ask(name)


def test_a_question_of_another_session_is_not_shown(gateway: Served) -> None:
    async def test() -> None:
        async with scene(gateway) as here, chatting(gateway, "mine", "--agent", "other") as chat:
            await chat.read("--")
            _, code = await here.ask("theirs")
            chat.type(f"/approve {code} once")
            assert "May this command" not in await chat.read(f"No question '{code}' waits here.")
            assert here.answers.empty()
            await here.write("theirs", f"/approve {code} deny")
            await next_of(here.answers)

    within(test())


def test_the_answer_of_an_order_by_option_is_not_mixed_with_the_question(gateway: Served) -> None:
    async def test() -> None:
        async with scene(gateway) as here:
            requests = collect_events(here.owner, "exec.approval.requested")
            child = await asyncio.create_subprocess_exec(
                OPENCLAW, "chat", "once", "-m", TOOL,
                env=environment(gateway.folder, OPENCLAW_GATEWAY_PORT=gateway.port),
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            id = (await next_of(requests))["id"]
            await here.owner.call("exec.approval.resolve", {"id": id, "decision": "allow-once"})
            async with asyncio.timeout(WAIT):
                output, notes = await child.communicate()
            assert json.loads(output)["decision"] == "allow-once"
            assert b"May this command run on node laptop?" in notes

    within(test())
