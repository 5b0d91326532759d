"""The matrix channel in encrypted rooms of a real Synapse; the person uses a whole encrypting client."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from nio import AsyncClient, AsyncClientConfig, MegolmEvent
from nio.crypto import decrypt_attachment

from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.channel import Channel, ChatAddress, InboundMessage, OutboundMessage, StoredMessage
from openclaw_mcp.gateway.channels.matrix import MatrixChannel, MatrixSettings

from .contract import PIXEL, ChannelContract, HarnessFactory, has, key, one, receive_next, until
from .synapse import Person, Synapse, read_messages
from .test_matrix import running

RULE = {"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}


class EncryptedWorld:
    """Ann writes and reads through nio, and looks at the ciphertext through plain requests."""

    effect: str | None = None
    channel: Channel

    def __init__(self, channel: MatrixChannel, ann: Person, client: AsyncClient, bot: str, token: str) -> None:
        self.channel = channel
        self.token = token
        self.ann = ann
        self.client = client
        self.bot = bot
        self.received: asyncio.Queue[InboundMessage] = asyncio.Queue()
        self.address = self.elsewhere = self.nowhere = self.at("!nowhere:matrix.test")

    def at(self, room: str) -> ChatAddress:
        return ChatAddress(channel="matrix", account="default", to=room)

    async def meet(self) -> str:
        powers = {"events": {"m.room.pinned_events": 0}}
        room = await self.ann.room(self.bot, initial_state=[RULE], power_level_content_override=powers)
        await self.ann.until_member(room, self.bot)
        while room not in self.client.rooms or self.bot not in self.client.rooms[room].users:
            await self.client.synced.wait()
        return room

    async def say(
        self, text: str, *, attachments: Sequence[Attachment] = (), reply_to: str | None = None,
        address: ChatAddress | None = None,
    ) -> str:  # fmt: skip
        place = address or self.address
        content: dict[str, Any] = {"msgtype": "m.text", "body": text}
        if attachments:
            file = attachments[0]
            assert file.data is not None
            answer, keys = await self.client.upload(
                BytesIO(file.data), content_type=file.mime_type, encrypt=True, filesize=len(file.data)
            )
            info = {"mimetype": file.mime_type, "size": len(file.data)}
            sealed = {**(keys or {}), "url": answer.content_uri}
            content = {"msgtype": "m.image", "body": text, "filename": file.name, "file": sealed, "info": info}
        if place.thread is not None:
            inside = {"rel_type": "m.thread", "event_id": place.thread, "is_falling_back": True}
            content["m.relates_to"] = {**inside, "m.in_reply_to": {"event_id": place.thread}}
        elif reply_to is not None:
            content["m.relates_to"] = {"m.in_reply_to": {"event_id": reply_to}}
        sent = await self.client.room_send(place.to, "m.room.message", content, ignore_unverified_devices=True)
        return str(sent.event_id)

    async def events(self, room: str) -> list[Any]:
        return [self.opened(event, room) for event in await self.ann.events(room)]

    def opened(self, event: Any, room: str) -> Any:
        if event["type"] != "m.room.encrypted" or not event["content"]:
            return event
        sealed = MegolmEvent.from_dict({**event, "room_id": room})
        assert isinstance(sealed, MegolmEvent)
        assert self.client.olm is not None
        inner = self.client.olm.decrypt_event(sealed, room)
        return {**event, "type": inner.source["type"], "content": inner.source["content"]} if inner else event

    async def sees(self, address: ChatAddress | None = None) -> Sequence[StoredMessage]:
        room = (address or self.address).to
        return read_messages(await self.events(room), await self.ann.pinned(room))

    async def sees_typing(self) -> bool:
        return self.bot in await self.ann.typing(self.address.to)


@asynccontextmanager
async def nio_client(person: Person, folder: Path) -> AsyncIterator[AsyncClient]:
    """An encrypting client at work for a person."""
    config = AsyncClientConfig(store_sync_tokens=False, encryption_enabled=True)
    client = AsyncClient(person.url, person.user, store_path=str(folder), config=config)
    whoami = await person.call("GET", "/account/whoami")
    client.restore_login(person.user, whoami["device_id"], person.token)
    await client.sync(timeout=0, full_state=True)
    await client.keys_upload()
    syncing = asyncio.create_task(client.sync_forever(timeout=5000))
    try:
        yield client
    finally:
        syncing.cancel()
        with suppress(asyncio.CancelledError):
            await syncing
        await client.close()
        assert client.store is not None
        client.store.database.close()


@asynccontextmanager
async def encrypted_world(synapse: Synapse, folder: Path) -> AsyncIterator[EncryptedWorld]:
    ann, bot = synapse.register("ann"), synapse.register("bot")
    config = {"homeserver": synapse.url, "accessToken": bot.token, "autoJoin": "always", "encryption": True}
    channel = MatrixChannel(MatrixSettings.read(config), account="default", folder=folder / "bot")
    try:
        async with nio_client(ann, folder) as client:
            harness = EncryptedWorld(channel, ann, client, bot.user, bot.token)
            async with running(channel, harness.received.put):
                harness.address = harness.at(await harness.meet())
                harness.elsewhere = harness.at(await harness.meet())
                yield harness
    finally:
        await channel.aclose()
        await ann.http.aclose()
        await bot.http.aclose()


@pytest.fixture
def harness(synapse: Synapse, tmp_path: Path) -> HarnessFactory:
    return lambda: encrypted_world(synapse, tmp_path)


class TestEncryptedMatrix(ChannelContract):
    """Every promise of the contract, in encrypted rooms."""

    lacks = ("test_an_effect_goes_along",)


def run_scenario(harness: HarnessFactory, scenario: Any) -> None:
    ChannelContract().run_scenario(harness, scenario)


def test_the_server_sees_neither_words_nor_files(harness: HarnessFactory) -> None:
    async def scenario(harness: EncryptedWorld) -> None:
        picture = Attachment(mime_type="image/png", name="secret.png", data=PIXEL)
        message = OutboundMessage(text="secret words", attachments=(picture,))
        receipt = await harness.channel.send(harness.address, message, key=key())
        raw = next(e for e in await harness.ann.events(harness.address.to) if e["event_id"] == receipt.message_id)
        assert raw["type"] == "m.room.encrypted"
        assert "secret" not in json.dumps(raw)
        stored = one(await until(harness, has(receipt.message_id)), receipt.message_id)
        file = stored.extra["content"]["file"]
        data = await harness.ann.download(file["url"])
        assert data != PIXEL
        assert decrypt_attachment(data, file["key"]["k"], file["hashes"]["sha256"], file["iv"]) == PIXEL

    run_scenario(harness, scenario)


def test_an_edit_a_thread_and_a_read_work_on_what_is_inside(harness: HarnessFactory) -> None:
    async def scenario(harness: EncryptedWorld) -> None:
        await harness.say("theirs")
        await receive_next(harness)
        sent = await harness.channel.send(harness.address, OutboundMessage(text="ours"), key=key())
        await harness.channel.edit(harness.address, sent.message_id, "ours, better")
        messages = await harness.channel.read(harness.address, limit=5)
        assert [(message.text, message.edited) for message in messages] == [("theirs", False), ("ours, better", True)]

    run_scenario(harness, scenario)


def test_keys_survive_a_restart(harness: HarnessFactory, synapse: Synapse, tmp_path: Path) -> None:
    async def scenario(harness: EncryptedWorld) -> None:
        await harness.say("before")
        assert (await receive_next(harness)).text == "before"
        config = {"homeserver": synapse.url, "accessToken": harness.token, "encryption": True}
        again = MatrixChannel(MatrixSettings.read(config), account="default", folder=tmp_path / "bot")
        messages = await again.read(harness.address, limit=5)
        await again.aclose()
        assert [message.text for message in messages] == ["before"]
        with closing(sqlite3.connect(tmp_path / "bot" / "keys.sqlite")) as keys, keys:
            assert keys.execute("select count(*) from accounts").fetchone() == (1,)
        keys.close()

    run_scenario(harness, scenario)


def test_a_message_whose_key_comes_late_is_heard_then(harness: HarnessFactory) -> None:
    async def scenario(harness: EncryptedWorld) -> None:
        room, olm = harness.address.to, harness.client.olm
        assert olm is not None
        await harness.client.keys_claim(harness.client.get_missing_sessions(room))
        olm.create_outbound_group_session(room)
        _, keys = olm.share_group_session(room, [harness.bot], ignore_unverified_devices=True)
        olm.outbound_group_sessions[room].mark_as_shared()  # which is not so yet
        early = await harness.say("too early")
        await harness.ann.send(room, {"msgtype": "m.text", "body": "in the open"})
        assert (await receive_next(harness)).text == "in the open"
        await harness.ann.call("PUT", f"/sendToDevice/m.room.encrypted/{key()}", keys)
        late = await receive_next(harness)
        assert (late.id, late.text) == (early, "too early")

    run_scenario(harness, scenario)
