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


class GatewayHarness(NamedTuple):
    """A gateway whose one agent is a CLI and has an account on Matrix; Ann is its owner."""

    served: Served
    ann: Person
    bot: Person


@pytest.fixture(scope="module")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    with synapse_at(tmp_path_factory.mktemp("synapse")) as server:
        yield server


@pytest.fixture(params=CLIS)
def harness(request: pytest.FixtureRequest, synapse: Synapse, tmp_path: Path) -> Iterator[GatewayHarness]:
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
            yield GatewayHarness(served, ann, bot)


def test_a_message_in_a_room_is_answered_once_and_the_tools_do_what_they_say(harness: GatewayHarness) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE * 2), harness.ann.http:
            kitchen, garden = await meet(harness, is_direct=True), await meet(harness, name="garden")
            await harness.ann.send(kitchen, text(first(garden)))
            assert await read(harness, kitchen, 1) == ["All is done. I will remind you to water the plants."]
            assert await read(harness, garden, 1) == ["hello over there"]
            again = json.dumps({"target": kitchen, "message": "It is forty-two."})
            await harness.ann.send(kitchen, text(f"[[call message_send {again}]] [[say It is forty-two.]]"))
            await read(harness, kitchen, 2)
            quiet(harness)
            expected = ["All is done. I will remind you to water the plants.", "It is forty-two."]
            assert await read(harness, kitchen, 2) == expected
            assert await read(harness, garden, 1) == ["hello over there"]
            check_effects(harness, kitchen)

    asyncio.run(scenario())


def first(garden: str) -> str:
    steps = [
        "[[call sessions_list {}]]",
        f"[[call cron_add {json.dumps({'job': JOB})}]]",
        f"[[call message_send {json.dumps({'target': garden, 'message': 'hello over there'})}]]",
        "[[say All is done. I will remind you to water the plants.]]",
    ]
    return " ".join(steps)


def check_effects(harness: GatewayHarness, kitchen: str) -> None:
    jobs = ask(harness.served, "cron.list", {})["jobs"]
    assert [(job["name"], job["delivery"]["channel"], job["delivery"]["to"]) for job in jobs] == [
        ("water", "matrix", kitchen)
    ]
    here = next(row for row in rows(harness) if row.get("lastTo") == kitchen)
    history = ask(harness.served, "chat.history", {"sessionKey": here["key"]})["messages"]
    listed = next(message for message in history if message.get("toolName") == "sessions_list")
    assert here["key"] in listed["content"][0]["text"]
    assert secrets_in(harness.served.folder.parent) == []


def text(body: str) -> Any:
    return {"msgtype": "m.text", "body": body}


def rows(harness: GatewayHarness) -> Any:
    return ask(harness.served, "sessions.list", {})["sessions"]


async def meet(harness: GatewayHarness, **more: Any) -> str:
    """A new room with both in it."""
    room = await harness.ann.room(harness.bot.user, **more)
    await harness.ann.until_member(room, harness.bot.user)
    return room


async def read(harness: GatewayHarness, room: str, count: int) -> list[str]:
    """What the agent said there, as Ann sees it, once it is that many messages."""
    async with asyncio.timeout(PATIENCE):
        while True:
            texts = [one.text for one in await harness.ann.sees(room) if one.sender.id == harness.bot.user]
            if len(texts) >= count:
                return texts
            await asyncio.sleep(0.2)


def quiet(harness: GatewayHarness) -> None:
    """Wait until no run is active and nothing is to be sent."""
    end = time.monotonic() + PATIENCE
    while any(row["hasActiveRun"] for row in rows(harness)) or waiting(harness):
        assert time.monotonic() < end
        time.sleep(0.2)


def waiting(harness: GatewayHarness) -> Any:
    return ask(harness.served, "outbox.list", {"status": "queued"})["items"]
