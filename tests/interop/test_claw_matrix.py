"""The messaging tools in a real Matrix room: called by a real MCP client, seen by another member of the room."""

import asyncio
import json
from pathlib import Path
from typing import Any

from openclaw_mcp.core.channel import StoredMessage
from openclaw_mcp.net.side_effects_file import read_effects

from ..claw.gateways import environment, failed, official, used
from ..gateway.channels.synapse import Person, synapse_at
from ..gateway.wiring.test_gateway import Served, serving


class Room:
    """A room as Ann sees it."""

    def __init__(self, ann: Person, id: str) -> None:
        self.ann = ann
        self.id = id

    async def messages(self) -> list[StoredMessage]:
        return list(await self.ann.sees(self.id))

    async def message(self, text: str) -> StoredMessage:
        return next(message for message in await self.messages() if message.text == text)


def test_what_is_done_with_the_tools_is_seen_in_the_room(tmp_path: Path) -> None:
    folder, state = tmp_path / "synapse", tmp_path / "state"
    folder.mkdir()
    state.mkdir()
    with synapse_at(folder) as synapse:
        ann, bot = synapse.register("ann"), synapse.register("bot")
        matrix = {"homeserver": synapse.url, "accessToken": bot.token, "allowFrom": [ann.user]}
        matrix |= {"autoJoin": "allowlist", "autoJoinAllowlist": [ann.user]}
        (state / "openclaw.json").write_text(json.dumps({"channels": {"matrix": matrix}}))
        with serving(state) as served:
            asyncio.run(_story(served, tmp_path, ann, bot))


async def _story(served: Served, tmp_path: Path, ann: Person, bot: Person) -> None:
    power = {"users": {bot.user: 100}}
    async with ann.http:
        ids = [await ann.room(bot.user, power_level_content_override=power, name=name) for name in ("den", "garden")]
        for id in ids:
            await ann.until_member(id, bot.user)
        den, garden = (Room(ann, id) for id in ids)
        question = await ann.send(den.id, {"msgtype": "m.text", "body": "who is there?"})
        home = {"CHANNEL": "matrix", "ACCOUNT_ID": "default", "TO": den.id}
        async with official(environment(served.ws, served.token, tmp_path / "effects", **home)) as client:
            await _sent(client, tmp_path, den, garden, question)
            await _touched(client, den)
    effects = read_effects(tmp_path / "effects")
    assert effects.texts == ("hello", "me", "below", "to all", "to all", "the plan")
    assert {sent.provider for sent in effects.sent} == {"matrix"}


async def _sent(client: Any, tmp_path: Path, den: Room, garden: Room, question: str) -> None:
    media = tmp_path / "state" / "media"
    media.mkdir()
    (media / "plan.txt").write_text("the plan")
    await used(client, "message_send", target=den.id, message="hello")
    await used(client, "message_reply", message="me", replyToId=question)
    assert (await den.message("me")).reply_to == question
    await used(client, "message_thread_reply", message="below", threadId=question)
    assert (await den.message("below")).thread == question
    assert (await used(client, "message_broadcast", targets=[den.id, garden.id], message="to all"))["sent"] == 2
    assert [message.text for message in await garden.messages()] == ["to all"]
    file = str(media / "plan.txt")
    await used(client, "message_send_attachment", target=garden.id, file=file, caption="the plan")
    (attached,) = (await garden.messages())[-1].attachments
    assert (attached.name, attached.size) == ("plan.txt", 8)
    words = await failed(client, "message_send_with_effect", target=den.id, message="hooray", effectId="confetti")
    assert "effect" in words  # Matrix has none


async def _touched(client: Any, den: Room) -> None:
    id = (await den.message("hello")).id
    await used(client, "message_react", emoji="👍", messageId=id)
    assert [one.emoji for one in (await den.message("hello")).reactions] == ["👍"]
    await used(client, "message_pin", messageId=id)
    assert (await den.message("hello")).pinned
    read = (await used(client, "message_read", limit=50))["payload"]["messages"]
    assert {"who is there?", "hello", "me", "to all"} <= {message["text"] for message in read}
    await used(client, "message_delete", messageId=id)
    assert "hello" not in [message.text for message in await den.messages()]
