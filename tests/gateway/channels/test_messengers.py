"""A running gateway between a person on a messenger and the demo agent; also when it is killed while it sends."""

import asyncio
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openclaw_mcp.core.agent import Attachment
from tests.gateway.wiring.test_gateway import Served, environment
from tests.gateway.wiring.test_questions_in_conversations import RUN, scene
from tests.running import END_WAIT, OPENCLAW

from .contract import WAIT
from .synapse import Person, Synapse
from .telegram_server import TOKEN, TelegramServer, served, telegram_server

KILLS = int(os.environ.get("OPENCLAW_KILLS", "4"))
"""Each costs a start of the gateway; the moment of the kill is exact, so that a few show as much as many."""
Say = Callable[[str], Awaitable[None]]
LONG = 200.0 + 100.0 * KILLS  # seconds; a busy machine starts a gateway in ten


class Gateway:
    """`openclaw gateway` in a process group of its own, which can be killed and started again."""

    def __init__(self, folder: Path, channels: Any, **sections: Any) -> None:
        self.folder = folder
        self.child: subprocess.Popen[bytes] | None = None
        (folder / "openclaw.json").write_text(json.dumps({"channels": channels, **sections}))

    async def start(self) -> Served:
        words = (OPENCLAW, "gateway", "--port", "0")
        self.child = subprocess.Popen(  # noqa: ASYNC220  (started and left alone)
            words, env=environment(self.folder), stdout=subprocess.PIPE, start_new_session=True
        )
        return await asyncio.to_thread(Served, self.child, self.folder)

    def kill(self) -> None:
        assert self.child is not None
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)

    async def dead(self) -> None:
        assert self.child is not None
        assert self.child.stdout is not None
        await asyncio.to_thread(self.child.wait, WAIT)
        self.child.stdout.close()

    async def aclose(self) -> None:
        if self.child is not None:
            self.kill()
            await asyncio.to_thread(self.child.wait, END_WAIT)
            if self.child.stdout is not None:
                self.child.stdout.close()


@asynccontextmanager
async def gateway(folder: Path, channels: Any, **sections: Any) -> AsyncIterator[Gateway]:
    running = Gateway(folder, channels, **sections)
    try:
        yield running
    finally:
        await running.aclose()


def bounded(scenario: Any, seconds: float = WAIT * 4) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(seconds):
            await scenario()

    asyncio.run(in_time())


async def until(fits: Callable[[], Any]) -> None:
    while not await fits():  # noqa: ASYNC110  (another program's state)
        await asyncio.sleep(0.1)


def answers(texts: list[str]) -> Counter[str]:
    """How often each thing said came back."""
    return Counter(text.rpartition("You said: ")[2] for text in texts if "You said: " in text)


# ---- Matrix ----


@asynccontextmanager
async def ann_and_bot(synapse: Synapse) -> AsyncIterator[tuple[Person, Person]]:
    ann, bot = synapse.register("ann"), synapse.register("bot")
    try:
        yield ann, bot
    finally:
        await ann.http.aclose()
        await bot.http.aclose()


def matrix(url: str, ann: Person, bot: Person) -> Any:
    return {
        "matrix": {
            "homeserver": url,
            "accessToken": bot.token,
            "autoJoin": "allowlist",
            "autoJoinAllowlist": [ann.user],
            "dmPolicy": "allowlist",
            "allowFrom": [ann.user],
        }
    }


async def matrix_answers(ann: Person, room: str) -> Counter[str]:
    return answers([message.text for message in await ann.sees(room)])


def test_a_message_in_a_matrix_room_is_answered_once(synapse: Synapse, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ann_and_bot(synapse) as (ann, bot), gateway(tmp_path, matrix(synapse.url, ann, bot)) as running:
            instance = await running.start()
            room = await ann.room(bot.user, is_direct=True)
            await ann.until_member(room, bot.user)
            for text in ("one", "two"):
                await ann.send(room, {"msgtype": "m.text", "body": text})

            async def answered() -> bool:
                return set(await matrix_answers(ann, room)) == {"one", "two"}

            await until(answered)
            status = json.loads((await asyncio.to_thread(instance.call, "channels.status", "{}")).stdout)
            (account,) = status["channelAccounts"]["matrix"]
            assert (account["connected"], account["userId"]) == (True, bot.user)
            assert bot.token not in json.dumps(status)
            assert await matrix_answers(ann, room) == {"one": 1, "two": 1}

    bounded(scenario)


OWNED = {"tools": {"allow": ["nodes"]}}


async def reads(show: Callable[[], Awaitable[list[str]]], beginning: str) -> str:
    """The first message that begins so, once it is there."""
    while True:
        for text in await show():
            if text.startswith(beginning):
                return text
        await asyncio.sleep(0.1)


async def answers_a_question(instance: Served, show: Callable[[], Awaitable[list[str]]], say: Say) -> None:
    """A person has the agent run a command on a node that asks first, and allows it in that conversation."""
    async with scene(instance) as here:
        await say(RUN)
        text = await reads(show, "May this command run")
        code = text.partition("(question ")[2][:6]
        assert "| ls" in text
        await say(f"/approve {code} once")
        assert await reads(show, f"Question {code}") == f"Question {code}: allowed once."
        assert await here.answers.get() == "allow-once"


def test_a_question_is_answered_in_its_matrix_room(synapse: Synapse, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ann_and_bot(synapse) as (ann, bot):
            owner = {"commands": {"ownerAllowFrom": [f"matrix:{ann.user}"]}}
            async with gateway(tmp_path, matrix(synapse.url, ann, bot), **OWNED, **owner) as running:
                instance = await running.start()
                room = await ann.room(bot.user, is_direct=True)
                await ann.until_member(room, bot.user)

                async def show() -> list[str]:
                    return [message.text for message in await ann.sees(room)]

                async def say(text: str) -> None:
                    await ann.send(room, {"msgtype": "m.text", "body": text})

                await answers_a_question(instance, show, say)

    bounded(scenario)


class Between:
    """Stands between gateway and homeserver, and may do something once a new message has been taken there."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.taken: Callable[[], None] | None = None
        self.seen: set[str] = set()
        self.http = httpx.AsyncClient(timeout=90)

    async def __call__(self, request: Request) -> Response:
        url = f"{self.target}{request.scope['raw_path'].decode()}?{request.url.query}"
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        answer = await self.http.request(request.method, url, content=await request.body(), headers=headers)
        if "/send/m.room.message/" in url:
            fresh, self.seen = url not in self.seen, {*self.seen, url}
            if fresh and self.taken is not None:
                taken, self.taken = self.taken, None
                taken()
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))


def test_a_gateway_killed_while_it_sends_to_matrix_has_sent_once(synapse: Synapse, tmp_path: Path) -> None:
    async def scenario() -> None:
        between = Between(synapse.url)
        app = Starlette(routes=[Route("/{path:path}", between.__call__, methods=["GET", "PUT", "POST"])])
        async with (
            ann_and_bot(synapse) as (ann, bot),
            served(app) as url,
            gateway(tmp_path, matrix(url, ann, bot)) as running,
        ):
            await running.start()
            room = await ann.room(bot.user, is_direct=True)
            await ann.until_member(room, bot.user)
            texts = []
            for number in range(KILLS):
                between.taken = running.kill
                texts.append(f"number {number}")
                await ann.send(room, {"msgtype": "m.text", "body": texts[-1]})
                await running.dead()
                await running.start()
            await ann.send(room, {"msgtype": "m.text", "body": "the end"})

            async def answered() -> bool:
                return set(await matrix_answers(ann, room)) == {*texts, "the end"}

            await until(answered)
            assert set((await matrix_answers(ann, room)).values()) == {1}
            assert len(between.seen) == KILLS + 1
            print(f"{KILLS} kills, {len(texts) + 1} answers on Matrix, each once")
            await running.aclose()
            await between.http.aclose()

    bounded(scenario, LONG)


# ---- Telegram ----

ANN = 4242


def telegram(server: TelegramServer, **more: Any) -> Any:
    rules = {"dmPolicy": "allowlist", "allowFrom": [ANN]}
    return {"telegram": {"botToken": TOKEN, "baseUrl": server.url, **rules, **more}}


def telegram_answers(server: TelegramServer) -> Counter[str]:
    mine = [message for message in server.sees(ANN) if message.sender.id == str(server.me["id"])]
    return answers([message.text for message in mine])


def test_a_gateway_killed_while_it_sends_to_telegram_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with telegram_server() as server, gateway(tmp_path, telegram(server)) as running:
            server.chat(ANN, "private", first_name="Ann")
            killed: set[str] = set()

            def kill(text: str) -> None:
                if text not in killed and len(killed) < KILLS:
                    killed.add(text)
                    running.kill()

            server.taken = kill
            await running.start()
            texts = []
            for number in range(KILLS):
                texts.append(f"number {number}")
                server.say(ANN, texts[-1])
                await running.dead()
                await running.start()
            server.say(ANN, "the end")

            async def answered() -> bool:
                return set(telegram_answers(server)) == {*texts, "the end"}

            await until(answered)
            assert max(telegram_answers(server).values()) == 2  # what was in flight, and never more
            twice = sum(count == 2 for count in telegram_answers(server).values())
            print(f"{KILLS} kills, {len(texts) + 1} answers on Telegram, none lost, {twice} of them twice")
            assert TOKEN.partition(":")[2] not in (tmp_path / "gateway.log").read_text()
            await running.aclose()

    bounded(scenario, LONG)


def test_a_question_is_answered_in_its_telegram_chat(tmp_path: Path) -> None:
    async def scenario() -> None:
        owner = {"commands": {"ownerAllowFrom": [f"telegram:{ANN}"]}}
        async with telegram_server() as server, gateway(tmp_path, telegram(server), **OWNED, **owner) as running:
            server.chat(ANN, "private", first_name="Ann")
            instance = await running.start()

            async def show() -> list[str]:
                return [message.text for message in server.sees(ANN)]

            async def say(text: str) -> None:
                server.say(ANN, text)

            await answers_a_question(instance, show, say)
            await running.aclose()

    bounded(scenario)


def test_a_strangers_file_is_not_fetched(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with telegram_server() as server, gateway(tmp_path, telegram(server)) as running:
            server.chat(ANN, "private", first_name="Ann")
            server.chat(666, "private", first_name="Mallory")
            await running.start()
            for who in (666, ANN):
                file = server.file(Attachment(mime_type="text/plain", name=f"{who}.txt", data=b"hello"))
                server.say(who, f"a file of {who}", person={"id": who, "first_name": "X"}, document=file)

            async def answered() -> bool:
                return any(f"a file of {ANN}" in text for text in telegram_answers(server))

            await until(answered)
            assert [name for name, _ in server.calls].count("getFile") == 1
            await running.aclose()

    bounded(scenario)


def test_a_webhook_of_a_running_gateway_is_reached_with_the_secret_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with telegram_server() as server:
            server.chat(ANN, "private", first_name="Ann")
            channels = telegram(server, webhookUrl="http://127.0.0.1/channels/telegram/default")
            async with gateway(tmp_path, channels) as running, httpx.AsyncClient() as unknown:
                instance = await running.start()

                async def hooked() -> bool:
                    return server.hook is not None

                await until(hooked)
                assert server.hook is not None
                server.hook["url"] = f"{instance.http}/channels/telegram/default"
                assert (await unknown.post(server.hook["url"], json={"update_id": 1})).status_code == 401
                server.say(ANN, "by hook")
                assert await server.bring() == [200]

                async def answered() -> bool:
                    return telegram_answers(server) == {"by hook": 1}

                await until(answered)
                await running.aclose()

    bounded(scenario)
