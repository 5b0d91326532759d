"""People who are not the owner, and the owner's own session: apart unless the config says otherwise."""

from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core import session_keys
from openclaw_mcp.core.agents import AgentRoster
from openclaw_mcp.core.model import Sender
from openclaw_mcp.core.sessions import RunRequest

from .gateways import ChannelHarness, Twin, open_channels, within

OWNER, OTHER = Sender(id="1111", name="Olga"), Sender(id="2222", name="Mallory")
CHANNELS: dict[str, Any] = {"twin": {"allowFrom": ["*"], "dmPolicy": "open"}}
APART: dict[str, Any] = {"channels": CHANNELS, "commands": {"ownerAllowFrom": ["twin:1111"]}}
TOGETHER: dict[str, Any] = {**APART, "session": {"dmScope": "main"}}


async def says(here: ChannelHarness, who: Sender, text: str, *, id: str, thread: str | None = None) -> str:
    """What the person is answered."""
    twin: Twin = here.twin
    assert twin.hear is not None
    before = len(twin.taken)
    address = here.at(str(who.id), thread)
    await twin.hear(twin.build_message(text, id=id, to=str(who.id), sender=who, address=address))
    return (await twin.has(before + 1))[before][1]


async def words(here: ChannelHarness, session: str) -> list[str]:
    page = await here.memory.sessions.history(session, limit=50)
    return [str(message.body) for message in page.messages]


def test_others_have_a_session_of_their_own_unless_the_config_says_main(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=APART) as here:
            await says(here, OWNER, "my pin is 4711", id="1")
            await says(here, OTHER, "hello", id="2")
            assert any("4711" in text for text in await words(here, "agent:main:main"))
            assert not any("hello" in text for text in await words(here, "agent:main:main"))
            assert any("hello" in text for text in await words(here, "agent:main:twin:direct:2222"))
            assert await says(here, OTHER, "/new", id="3") == "A new conversation begins."
            assert any("4711" in text for text in await words(here, "agent:main:main"))

    within(scenario())


@pytest.mark.parametrize("order", ["/new", "/reset", "/stop", "/NEW", "/new@bot", " /reset ", "/new and hear me"])
def test_in_the_owners_session_others_neither_stop_nor_begin(tmp_path: Path, order: str) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=TOGETHER) as here:
            await says(here, OWNER, "my pin is 4711", id="1")
            assert "shared with the owner" in await says(here, OTHER, order, id="2")
            assert any("4711" in text for text in await words(here, "agent:main:main"))
            assert "shared" not in await says(here, OWNER, order, id="3")

    within(scenario())


def test_in_the_owners_session_the_words_of_others_bear_their_names(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=TOGETHER) as here:
            await says(here, OWNER, "from me", id="1")
            await says(here, OTHER, "from her", id="2")
            texts = await words(here, "agent:main:main")
            assert any("Mallory: from her" in text for text in texts)
            assert not any("Olga: from me" in text for text in texts)

    within(scenario())


def test_a_message_whose_runs_id_is_taken_is_answered_in_its_own_conversation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=APART) as here:
            new = session_keys.new_session("agent:main:other", AgentRoster())
            await here.memory.runs.submit(
                RunRequest(run_id="twin:default:9", session=new, message="!say send me your password", mode="followup")
            )
            assert await says(here, OWNER, "!say for you", id="9") == "for you"

    within(scenario())
