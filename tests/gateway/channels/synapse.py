"""A real Synapse on loopback, and people with accounts on it who look at rooms with their own eyes."""

import asyncio
import contextlib
import hashlib
import hmac
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.channel import FileSummary, Reaction, StoredMessage
from openclaw_mcp.core.model import Sender
from tests.programs import need_pypi

START_WAIT = 90.0  # seconds; half a minute on a slow machine
END_WAIT = 15.0
SECRET = "for tests alone"
SETTINGS = """
server_name: "matrix.test"
report_stats: false
listeners: [{{port: {port}, type: http, bind_addresses: ["127.0.0.1"], resources: [{{names: [client, media]}}]}}]
database: {{name: sqlite3, args: {{database: "{folder}/homeserver.db"}}}}
media_store_path: "{folder}/media"
signing_key_path: "{folder}/signing.key"
log_config: "{folder}/log.yaml"
registration_shared_secret: "{secret}"
macaroon_secret_key: "{secret}"
form_secret: "{secret}"
trusted_key_servers: []
federation_domain_whitelist: []
rc_message: {{per_second: 1000, burst_count: 1000}}
rc_login: {{address: {many}, account: {many}, failed_attempts: {many}}}
rc_joins: {{local: {many}, remote: {many}}}
rc_invites: {{per_room: {many}, per_user: {many}, per_issuer: {many}}}
rc_room_creation: {many}
"""
MANY = "{per_second: 1000, burst_count: 1000}"
LOG = """
version: 1
handlers: {file: {class: logging.FileHandler, filename: "%s/synapse.log"}}
root: {level: WARNING, handlers: [file]}
"""


@contextlib.contextmanager
def synapse_at(folder: Path) -> Iterator["Synapse"]:
    """One homeserver, ended with its block."""
    program = need_pypi("synapse_homeserver", environment="synapse")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "homeserver.yaml"
    config.write_text(SETTINGS.format(port=port, folder=folder, secret=SECRET, many=MANY))
    (folder / "log.yaml").write_text(LOG % folder)
    subprocess.run([program, "-c", str(config), "--generate-keys"], check=True, capture_output=True, timeout=START_WAIT)
    with (folder / "out.txt").open("wb") as out:
        child = subprocess.Popen(
            [program, "-c", str(config)], stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            server = Synapse(f"http://127.0.0.1:{port}")
            server.wait(child, folder)
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(END_WAIT)


class Synapse:
    def __init__(self, url: str) -> None:
        self.url = url

    def wait(self, child: "subprocess.Popen[bytes]", folder: Path) -> None:
        end = time.monotonic() + START_WAIT
        while time.monotonic() < end and child.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/_matrix/client/versions", timeout=5).is_success:
                    return
            time.sleep(0.1)
        raise AssertionError(f"Synapse did not start: {(folder / 'out.txt').read_text()[-2000:]}")

    def register(self, name: str, *, password: str = "correct horse", admin: bool = False) -> "Person":
        """A new account, by the shared secret."""
        path = f"{self.url}/_synapse/admin/v1/register"
        user = f"{name}-{uuid.uuid4().hex[:8]}"
        nonce = httpx.get(path, timeout=30).json()["nonce"]
        words = b"\x00".join(part.encode() for part in (nonce, user, password, "admin" if admin else "notadmin"))
        mac = hmac.new(SECRET.encode(), words, hashlib.sha1).hexdigest()
        body = {"nonce": nonce, "username": user, "password": password, "admin": admin, "mac": mac}
        body["displayname"] = name.title()
        answer = httpx.post(path, json=body, timeout=30).json()
        return Person(self.url, answer["user_id"], answer["access_token"])


class Person:
    """A person with an account. Knows nothing of our code: raw requests, raw events."""

    def __init__(self, url: str, user: str, token: str) -> None:
        self.url = url
        self.user = user
        self.token = token
        self.http = httpx.AsyncClient(
            base_url=f"{url}/_matrix/client/v3", headers={"Authorization": f"Bearer {token}"}, timeout=60
        )

    async def call(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        content = {"json": body} if body is not None else {}
        response = await self.http.request(method, path, params=params, **content)
        assert response.is_success, (method, path, response.text)
        return response.json()

    async def room(self, *invited: str, **more: Any) -> str:
        body = {"preset": "private_chat", "invite": invited, **more}
        return str((await self.call("POST", "/createRoom", body))["room_id"])

    async def join(self, room: str) -> None:
        await self.call("POST", f"/join/{quote(room)}", {})

    async def send(self, room: str, content: Any, *, kind: str = "m.room.message") -> str:
        path = f"/rooms/{quote(room)}/send/{kind}/{uuid.uuid4().hex}"
        return str((await self.call("PUT", path, content))["event_id"])

    async def upload(self, attachment: Attachment) -> str:
        assert attachment.data is not None
        response = await self.http.post(
            f"{self.url}/_matrix/media/v3/upload",
            params={"filename": attachment.name},
            content=attachment.data,
            headers={"Content-Type": attachment.mime_type},
        )
        return str(response.json()["content_uri"])

    async def download(self, uri: str) -> bytes:
        path = uri.removeprefix("mxc://")
        response = await self.http.get(f"{self.url}/_matrix/client/v1/media/download/{path}")
        assert response.is_success, response.text
        return response.content

    async def events(self, room: str) -> list[Any]:
        """All of the room's, oldest first."""
        found: list[Any] = []
        since: dict[str, str] = {}
        while True:
            page = await self.call("GET", f"/rooms/{quote(room)}/messages", dir="b", limit=100, **since)
            found += page["chunk"]
            if not page["chunk"] or "end" not in page:
                return found[::-1]
            since = {"from": page["end"]}

    async def typing(self, room: str) -> list[str]:
        sync = await self.call("GET", "/sync", timeout=0)
        events = sync["rooms"]["join"][room]["ephemeral"]["events"]
        return [user for event in events if event["type"] == "m.typing" for user in event["content"]["user_ids"]]

    async def pinned(self, room: str) -> list[str]:
        response = await self.http.get(f"/rooms/{quote(room)}/state/m.room.pinned_events/")
        return list(response.json().get("pinned", []))

    async def sees(self, room: str) -> Sequence[StoredMessage]:
        """The room as a client shows it."""
        return read_messages(await self.events(room), await self.pinned(room))

    async def until_member(self, room: str, user: str) -> None:
        async with asyncio.timeout(30):
            while True:
                answer = await self.call("GET", f"/rooms/{quote(room)}/joined_members")
                if user in answer["joined"]:
                    return
                await asyncio.sleep(0.05)


def read_messages(events: Sequence[Any], pinned: Sequence[str]) -> list[StoredMessage]:
    """Events as a client shows them: edits in place, reactions below, redacted ones gone."""
    messages: dict[str, Any] = {}
    reactions: dict[str, list[Any]] = {}
    edits: dict[str, Any] = {}
    for event in events:
        content, place = event["content"], event["content"].get("m.relates_to", {})
        if event["type"] == "m.reaction" and place:
            reactions.setdefault(place["event_id"], []).append(Reaction(emoji=place["key"], sender=event["sender"]))
        elif place.get("rel_type") == "m.replace":
            edits[place["event_id"]] = content["m.new_content"]
        elif event["type"] in ("m.room.message", "org.matrix.msc3381.poll.start") and content:
            messages[event["event_id"]] = event
    return [
        _stored_message(event, edits.get(id, event["content"]), tuple(reactions.get(id, ())), id in pinned, id in edits)
        for id, event in messages.items()
    ]


def _stored_message(event: Any, content: Any, reactions: tuple[Any, ...], pinned: bool, edited: bool) -> StoredMessage:
    place = event["content"].get("m.relates_to", {})
    info = content.get("info", {})
    poll = content.get("org.matrix.msc3381.poll.start")
    text = "org.matrix.msc1767.text"
    extra = {"content": content}
    if poll:
        extra["poll"] = {"question": poll["question"][text], "options": [one[text] for one in poll["answers"]]}
    fallback = place.get("rel_type") == "m.thread" and place.get("is_falling_back")
    name, kind, size = content.get("filename"), info.get("mimetype"), info.get("size")
    files = (FileSummary(name=name, mime_type=kind, size=size),) if info else ()
    return StoredMessage(
        id=event["event_id"],
        sender=Sender(id=event["sender"]),
        text=content.get("body", ""),
        at=event["origin_server_ts"],
        thread=place.get("event_id") if place.get("rel_type") == "m.thread" else None,
        reply_to=None if fallback else place.get("m.in_reply_to", {}).get("event_id"),
        attachments=files,
        reactions=reactions,
        pinned=pinned,
        edited=edited,
        extra=extra,
    )
