"""A message in a real Matrix room starts a real CLI; it uses our tools; its reply comes back into the room once."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ..gateway.agents.cli.scripted_model import ScriptedModel
from ..gateway.channels.synapse import Person, Synapse, synapse_at
from ..gateway.wiring.test_gateway import Served, serving
from .cli_clients import path
from .clis import CLIS, MODEL, environment, program
from .test_cli_bridge import JOB, PATIENCE, ask, secrets_in


class House(NamedTuple):
    """A gateway whose one agent is a CLI and has an account on Matrix; Ann is its owner."""

    served: Served
    ann: Person
    bot: Person


@pytest.fixture(scope="module")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    with synapse_at(tmp_path_factory.mktemp("synapse")) as server:
        yield server


@pytest.fixture(params=CLIS)
def house(request: pytest.FixtureRequest, synapse: Synapse, tmp_path: Path) -> Iterator[House]:
    cli, state = str(request.param), tmp_path / "state"
    state.mkdir()
    ann, bot = synapse.register("ann"), synapse.register("bot")
    matrix = {"homeserver": synapse.url, "accessToken": bot.token, "allowFrom": [ann.user]}
    matrix |= {"autoJoin": "allowlist", "autoJoinAllowlist": [ann.user]}
    with ScriptedModel() as model:
        env = {**path(), **environment(cli, tmp_path / "home", model.url)}
        agent = {"id": "main", "runtime": cli, "runtimeCommand": program(cli, tmp_path), "runtimeEnv": env}
        agent |= {"workspace": str(tmp_path / "work")} | ({"model": MODEL[cli]} if cli in MODEL else {})
        # Jobs are the owner's to make.
        owner = {"ownerAllowFrom": [ann.user]}
        config = {"agents": {"list": [agent]}, "channels": {"matrix": matrix}, "commands": owner}
        (state / "openclaw.json").write_text(json.dumps(config))
        with serving(state) as served:
            yield House(served, ann, bot)


def test_a_message_in_a_room_is_answered_once_and_the_tools_do_what_they_say(house: House) -> None:
    async def story() -> None:
        async with asyncio.timeout(PATIENCE * 2), house.ann.http:
            kitchen, garden = await meet(house, is_direct=True), await meet(house, name="garden")
            await house.ann.send(kitchen, text(first(garden)))
            assert await read(house, kitchen, 1) == ["All is done. I will remind you to water the plants."]
            assert await read(house, garden, 1) == ["hello over there"]
            again = json.dumps({"target": kitchen, "message": "It is forty-two."})
            await house.ann.send(kitchen, text(f"[[call message_send {again}]] [[say It is forty-two.]]"))
            await read(house, kitchen, 2)
            quiet(house)
            said = ["All is done. I will remind you to water the plants.", "It is forty-two."]
            assert await read(house, kitchen, 2) == said
            assert await read(house, garden, 1) == ["hello over there"]
            check_effects(house, kitchen)

    asyncio.run(story())


def first(garden: str) -> str:
    steps = [
        "[[call sessions_list {}]]",
        f"[[call cron_add {json.dumps({'job': JOB})}]]",
        f"[[call message_send {json.dumps({'target': garden, 'message': 'hello over there'})}]]",
        "[[say All is done. I will remind you to water the plants.]]",
    ]
    return " ".join(steps)


def check_effects(house: House, kitchen: str) -> None:
    jobs = ask(house.served, "cron.list", {})["jobs"]
    assert [(job["name"], job["delivery"]["channel"], job["delivery"]["to"]) for job in jobs] == [
        ("water", "matrix", kitchen)
    ]
    here = next(row for row in rows(house) if row.get("lastTo") == kitchen)
    history = ask(house.served, "chat.history", {"sessionKey": here["key"]})["messages"]
    listed = next(message for message in history if message.get("toolName") == "sessions_list")
    assert here["key"] in listed["content"][0]["text"]
    assert secrets_in(house.served.folder.parent) == []


def text(body: str) -> Any:
    return {"msgtype": "m.text", "body": body}


def rows(house: House) -> Any:
    return ask(house.served, "sessions.list", {})["sessions"]


async def meet(house: House, **more: Any) -> str:
    """A new room with both in it."""
    room = await house.ann.room(house.bot.user, **more)
    await house.ann.until_member(room, house.bot.user)
    return room


async def read(house: House, room: str, count: int) -> list[str]:
    """What the agent said there, as Ann sees it, once it is that many messages."""
    async with asyncio.timeout(PATIENCE):
        while True:
            seen = [one.text for one in await house.ann.sees(room) if one.sender.id == house.bot.user]
            if len(seen) >= count:
                return seen
            await asyncio.sleep(0.2)


def quiet(house: House) -> None:
    """Wait until nobody works and nothing is to be sent."""
    end = time.monotonic() + PATIENCE
    while any(row["hasActiveRun"] for row in rows(house)) or waiting(house):
        assert time.monotonic() < end
        time.sleep(0.2)


def waiting(house: House) -> Any:
    return ask(house.served, "outbox.list", {"status": "queued"})["items"]
