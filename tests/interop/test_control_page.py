"""The real Control UI in a real Chromium, on our gateway with a scripted model: chats, sessions, jobs.

Its files are served from another port, as a page behind any web server is; the gateway allows it because it is a page
of this machine. `CONTROL_PAGE_PICTURES`, a folder, keeps pictures of what was seen.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ..gateway.agents.models.fake import FakeModel, Request, Step, say
from ..gateway.wiring.test_gateway import Served, serving
from . import control_page, real
from .control_page import ControlPage

PATIENCE = 240.0  # seconds for a story
ANSWER = "Herons stand still, then they strike; the river does not notice, and the evening goes on."
CARD = {"id": "m-1", "name": "Scripted", "contextWindow": 64000, "input": ["text"], "cost": {"input": 1, "output": 2}}


def answer(request: Request) -> Step:
    endless = "egrets" in json.dumps(request.body["messages"][-1])
    return say("Egrets wade. " * 500 if endless else ANSWER, slow=0.2)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    real.program()
    folder = tmp_path_factory.mktemp("ours")
    with FakeModel(answer) as model:
        entry = {"baseUrl": f"{model.url}/v1", "apiKey": "k", "api": "openai", "models": [CARD]}
        config = {"models": {"providers": {"fake": entry}}, "agents": {"defaults": {"model": "fake/m-1"}}}
        (folder / "openclaw.json").write_text(json.dumps(config))
        with serving(folder) as served:
            yield served


@asynccontextmanager
async def opened(ours: Served, folder: Path) -> AsyncIterator[tuple[ControlPage, str]]:
    """The page with its chat open, and its site. Nothing that it asks is refused, and its code meets no surprise."""
    with control_page.site() as site:
        async with asyncio.timeout(PATIENCE), control_page.tab(folder / "profile") as page:
            await page.open(control_page.address(site, "chat", ours.ws, ours.token))
            await page.click("button", "Switch to")
            await page.until("!!__find('textarea', '')")
            yield page, site
            assert page.refused() == {}
            assert page.problems == []


async def keep_picture(page: ControlPage, name: str) -> None:
    if folder := os.environ.get("CONTROL_PAGE_PICTURES"):
        await asyncio.to_thread(Path(folder, f"{name}.png").write_bytes, await page.picture())


async def say_in_chat(page: ControlPage, text: str) -> None:
    await page.click("textarea")
    await page.insert(text)
    await page.until(f"__find('textarea', '').value === {json.dumps(text)}")
    await page.press("Enter")


async def begin_conversation(page: ControlPage, text: str) -> None:
    await page.click("a", "New conversation")
    await page.until_says("say what to do")
    await say_in_chat(page, text)


def ask(ours: Served, method: str, params: Any) -> Any:
    result = ours.call(method, json.dumps(params))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_message_is_answered_while_the_page_looks_on(ours: Served, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(ours, tmp_path) as (page, _):
            await page.until_says("Type a message below")
            await page.until_says("Scripted")  # the model it may choose
            await keep_picture(page, "chat-empty")
            await say_in_chat(page, "Tell me of herons")
            await page.until_says("Herons stand")
            assert "goes on" not in await page.text()  # it comes in pieces
            await keep_picture(page, "chat-streaming")
            await page.until_says("the evening goes on.")
            await page.until_says("output tokens")
            await keep_picture(page, "chat-answered")

    asyncio.run(story())
    history = ask(ours, "chat.history", {"sessionKey": "main"})["messages"]
    assert [message["role"] for message in history] == ["user", "assistant"]
    assert history[1]["content"][0]["text"] == ANSWER


def test_a_running_answer_is_stopped_by_its_button(ours: Served, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(ours, tmp_path) as (page, _):
            await begin_conversation(page, "Tell me of egrets")
            await page.until_says("Egrets wade.")
            await page.click("button", "Stop")
            await page.until("!__find('button', 'Stop')")
            await keep_picture(page, "chat-stopped")

    asyncio.run(story())
    newest = ask(ours, "sessions.list", {"limit": 1})["sessions"][0]
    assert (newest["status"], newest["hasActiveRun"]) == ("killed", False)


def test_a_new_conversation_is_listed_found_by_its_words_and_opened_by_its_link(ours: Served, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(ours, tmp_path) as (page, site):
            await begin_conversation(page, "Count the kingfishers")
            await page.until_says("the evening goes on.")
            link = await page.until("location.pathname.startsWith('/chat/main/') && location.pathname")
            await page.open(f"{site}/sessions")
            await page.until_says("(dashboard)")
            await page.write("input[placeholder^='Search exact']", "kingfishers")
            await page.click("button", "Search")
            await page.until_says("Count the kingfishers")
            await keep_picture(page, "sessions")
            await page.open(f"{site}{link}")
            await page.until_says("the evening goes on.")
            await page.until_says("Message main")
            await keep_picture(page, "chat-by-link")

    asyncio.run(story())


def test_a_job_is_made_seen_and_run_on_the_cron_page(ours: Served, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(ours, tmp_path) as (page, site):
            await page.open(f"{site}/cron")
            await page.click("button", "New automation")
            await page.write("textarea", "Say good morning")
            await page.write("input[placeholder='Morning brief']", "Morning herons")
            await page.click("button", "Create & run now")
            await page.until_says("Every 30m")
            await page.until_says("Morning herons")
            await keep_picture(page, "cron")
            await page.open(f"{site}/cron")
            await page.click("button,a,[role=tab]", "Run history")
            await page.until_says("Morning herons")
            await keep_picture(page, "cron-runs")

    asyncio.run(story())
    (job,) = ask(ours, "cron.list", {})["jobs"]
    assert (job["name"], job["schedule"]["everyMs"]) == ("Morning herons", 1_800_000)
    assert ask(ours, "cron.runs", {"id": job["id"]})["entries"]


def test_the_page_of_another_site_is_refused(ours: Served, tmp_path: Path) -> None:
    async def story() -> None:
        with control_page.site() as site:
            elsewhere = site.replace("127.0.0.1", "control.example")
            async with asyncio.timeout(PATIENCE), control_page.tab(tmp_path / "profile") as page:
                await page.open(control_page.address(elsewhere, "chat", ours.ws, ours.token))
                await page.click("button", "Switch to")
                await page.until("!__find('button', 'Switch to')")
                await page.until_says("Gateway")
                await keep_picture(page, "refused-origin")
                assert page.answers == []  # not even the handshake was answered

    asyncio.run(story())
