"""Every way to have a file sent, on a running gateway: what may not leave does not, for any caller, however it asks."""

import asyncio
import base64
import contextlib
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client as McpClient
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

from openclaw_mcp.core.errors import ToolArguments
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.node.canvas.canvas import CanvasCapability

from ...claw import gateways
from ...claw.gateways import environment, official, operator
from ...gateway.wiring.gateways import serving
from ...gateway.wiring.test_gateway import Served
from ...node.calling import call
from ...programs import need
from .folders import PLAN, Ground

CHAT = "room"
Send = Callable[[str], Awaitable[bool]]
"""Has the file of that name sent, or tries to: whether the other side took it for done."""


class Setup:
    def __init__(self, ground: Ground, served: Served) -> None:
        self.ground = ground
        self.served = served

    async def grant(self, other: GatewayClient, *, owner: bool, session: str = "agent:main:main", **more: str) -> str:
        params = {"sessionKey": session, "channel": "local", "to": CHAT, "senderIsOwner": owner, **more}
        return str((await other.call("attach.grant", params))["token"])


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    ground = Ground(tmp_path_factory.mktemp("ground"))
    ground.configure()
    with serving(ground.state) as served:
        ground.plant()
        yield Setup(ground, served)


# ---- entry points ----------------------------------------------------------------------------------------------------

WORDS = {"target": CHAT, "message": "x", "threadId": "t", "effectId": "e"}


def _action(action: str, name: str) -> Callable[[str], tuple[str, dict[str, Any]]]:
    return lambda place: ("message.action", {"action": action, "params": {**WORDS, name: place}})


RPC: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "send, mediaUrl": lambda place: ("send", {"to": CHAT, "message": "x", "mediaUrl": place}),
    "send, mediaUrls": lambda place: ("send", {"to": CHAT, "message": "x", "mediaUrls": [place]}),
    **{
        f"message.action {action}, {name}": _action(action, name)
        for action, name in (
            ("send", "media"), ("send", "mediaUrl"), ("send", "file"), ("send", "path"), ("send", "filePath"),
            ("send", "buffer"), ("reply", "media"), ("thread-reply", "media"), ("sendAttachment", "file"),
            ("sendAttachment", "filePath"), ("sendWithEffect", "media"),
        )
    },
    "message.action broadcast": lambda place: (
        "message.action",
        {"action": "broadcast", "params": {"targets": [CHAT, "side"], "message": "x", "media": place}},
    ),
    "message:send": lambda place: ("message:send", {"target": CHAT, "message": "x", "media": place}),
    "message:reply": lambda place: ("message:reply", {"target": CHAT, "message": "x", "media": place}),
    "message:sendAttachment": lambda place: ("message:sendAttachment", {"target": CHAT, "file": place}),
    "message:broadcast": lambda place: ("message:broadcast", {"targets": [CHAT], "message": "x", "media": place}),
    "tools.invoke message": lambda place: (
        "tools.invoke",
        {"name": "message", "args": {"action": "send", "channel": "local", "media": place, **WORDS}},
    ),
}  # fmt: skip
UNDER_A_GRANT = [name for name in RPC if not name.startswith("tools.")]


@contextlib.asynccontextmanager
async def by_rpc(url: str, token: str, entry_point: str) -> AsyncIterator[Send]:
    async with operator(url, token) as client:

        async def send(place: str) -> bool:
            method, params = RPC[entry_point](place)
            sent_params = {"channel": "local", "idempotencyKey": str(uuid.uuid4()), **params}
            if method == "tools.invoke":
                sent_params = params
            try:
                answer = await client.call(method, json.loads(json.dumps(sent_params)), within=gateways.WAIT)
            except (RpcError, UnicodeEncodeError):
                return False
            payload = answer.get("payload", answer)
            if "results" in payload:
                return any(one["ok"] for one in payload["results"])
            return payload.get("ok") is not False and answer.get("ok") is not False

        yield send


@contextlib.asynccontextmanager
async def by_tool(url: str, token: str, tool: str, folder: Path, *, owner: bool | None) -> AsyncIterator[Send]:
    claims = {} if owner is None else {"SENDER_IS_OWNER": "true" if owner else "false"}
    env = environment(url, token, folder / "effects", CHANNEL="local", TO=CHAT, **claims)
    name = {"message_send": "media", "message_send_attachment": "file"}[tool]
    async with official(env) as client:

        async def send(place: str) -> bool:
            arguments = {"target": CHAT, name: place} | ({"message": "x"} if tool == "message_send" else {})
            if "\ud800" in place:
                return False  # this client can't write it
            return not (await client.call_tool(tool, arguments)).is_error

        yield send


async def sent_files(other: GatewayClient) -> list[bytes]:
    """What lies in the conversations by now, file by file."""
    found: list[bytes] = []
    for conversation in (CHAT, "side"):
        for message in (await other.call("local.read", {"conversation": conversation, "limit": 200}))["messages"]:
            if not message.get("attachments"):
                continue
            files = await other.call("local.file", {"conversation": conversation, "messageId": message["id"]})
            found += [base64.b64decode(file["content"]) for file in files["files"]]
            params = {"target": conversation, "messageId": message["id"]}
            request = {"channel": "local", "action": "delete", "params": params, "idempotencyKey": message["id"] + "x"}
            await other.call("message.action", request)
    return found


async def tried(other: GatewayClient, send: Send, places: dict[str, str]) -> tuple[list[str], list[bytes]]:
    """Of these, what was taken for sent; and what was sent."""
    took = [name for name, place in places.items() if await send(place)]
    return took, await sent_files(other)


async def judged(other: GatewayClient, send: Send, ground: Ground, refused: dict[str, str]) -> None:
    assert await tried(other, send, refused) == ([], [])
    took, sent = await tried(other, send, {"mine": f"{ground.work}/plan.txt"})
    assert (took, set(sent)) == (["mine"], {PLAN.encode()})


# ---- for a stranger --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry_point", UNDER_A_GRANT)
def test_a_strangers_run_sends_its_workspace_alone(setup: Setup, entry_point: str) -> None:
    async def work() -> None:
        async with operator(setup.served.ws, setup.served.token) as other:
            token = await setup.grant(other, owner=False)
            async with by_rpc(setup.served.ws, token, entry_point) as send:
                await judged(other, send, setup.ground, setup.ground.refused())

    asyncio.run(work())


@pytest.mark.parametrize("tool", ["message_send", "message_send_attachment"])
@pytest.mark.parametrize("session", ["agent:main:main", "agent:main:subagent:1"])
def test_a_strangers_cli_agent_sends_its_workspace_alone(setup: Setup, tmp_path: Path, tool: str, session: str) -> None:
    """And that of its sub-agent: the server that could read everything reads nothing."""

    async def work() -> None:
        async with operator(setup.served.ws, setup.served.token) as other:
            token = await setup.grant(other, owner=False, session=session)
            async with by_tool(setup.served.ws, token, tool, tmp_path, owner=False) as send:
                await judged(other, send, setup.ground, setup.ground.refused())

    asyncio.run(work())


def test_an_environment_that_says_owner_makes_no_stranger_one(setup: Setup, tmp_path: Path) -> None:
    """The gateway goes by the grant, and under a grant the server reads nothing itself."""

    async def work() -> None:
        async with operator(setup.served.ws, setup.served.token) as other:
            token = await setup.grant(other, owner=False)
            async with by_tool(setup.served.ws, token, "message_send_attachment", tmp_path, owner=True) as send:
                await judged(other, send, setup.ground, setup.ground.refused())

    asyncio.run(work())


def test_a_grant_for_an_agent_in_a_folder_of_its_own_opens_that_folder(setup: Setup) -> None:
    ground, entry_point = setup.ground, "message.action send, media"
    project = ground.folder / "project"
    project.mkdir()
    (project / "plan.txt").write_text(PLAN)
    (project / "link.txt").symlink_to(ground.token)

    async def work() -> None:
        async with operator(setup.served.ws, setup.served.token) as other:
            token = await setup.grant(other, owner=False, folder=str(project))
            async with by_rpc(setup.served.ws, token, entry_point) as send:
                for place in ("plan.txt", f"{project}/plan.txt", f"{ground.work}/plan.txt"):
                    assert await send(place)
                assert not await send("link.txt")
            assert await sent_files(other) == [PLAN.encode()] * 3
            for folder in ("project", "~", ""):
                with pytest.raises(RpcError):
                    await setup.grant(other, owner=False, folder=folder)
            token = await setup.grant(other, owner=True, folder=str(ground.state))
            async with by_rpc(setup.served.ws, token, entry_point) as send:
                await judged(other, send, ground, ground.secrets())

    asyncio.run(work())


# ---- for every caller ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry_point", RPC)
def test_the_owner_and_operators_send_nothing_of_the_gateways_own(setup: Setup, entry_point: str) -> None:
    ground = setup.ground
    refused = ground.secrets() | {name: place for name, place in ground.not_mine().items() if "outside" in name}

    async def work() -> None:
        async with operator(setup.served.ws, setup.served.token) as other:
            tokens = [setup.served.token]
            if entry_point in UNDER_A_GRANT:
                tokens.append(await setup.grant(other, owner=True))
            for token in tokens:
                async with by_rpc(setup.served.ws, token, entry_point) as send:
                    await judged(other, send, ground, refused)

    asyncio.run(work())


@pytest.mark.parametrize("granted", [True, False])
def test_the_owners_cli_agent_sends_nothing_of_the_gateways_own(setup: Setup, tmp_path: Path, granted: bool) -> None:
    ground = setup.ground
    refused = ground.secrets() | {name: place for name, place in ground.not_mine().items() if "outside" in name}

    async def work() -> None:
        async with operator(setup.served.ws, setup.served.token) as other:
            token = await setup.grant(other, owner=True) if granted else setup.served.token
            owner = True if granted else None
            async with by_tool(setup.served.ws, token, "message_send_attachment", tmp_path, owner=owner) as send:
                await judged(other, send, ground, refused)

    asyncio.run(work())


@pytest.mark.parametrize("where", ["project", "home", "above the home"])
def test_a_persons_own_client_sends_files_of_the_project_it_was_started_in(
    setup: Setup, tmp_path: Path, where: str
) -> None:
    """With the gateway's token; unless the folder was not chosen, because it is the home or holds it."""
    project, home = tmp_path / "project", {"project": "home", "home": "project", "above the home": "project/sub"}
    own = Ground(project)
    own.token.write_text("another gateway's")
    own.plant()
    (tmp_path / "home").mkdir()
    (project / "plan.txt").write_text(PLAN)
    env = environment(setup.served.ws, setup.served.token, tmp_path / "effects", CHANNEL="local", TO=CHAT)
    env["HOME"] = str(tmp_path / home[where])
    mine = [f"{project}/plan.txt", "plan.txt", f"file://{project}/work/plan.txt", "vault/outside.txt"]
    never = [
        setup.ground.token,
        own.token,
        "state/openclaw.json",
        "work/token.txt",
        "work/root/etc/passwd",
        "work/pipe",
    ]

    async def work() -> None:
        (project / "sub").mkdir()
        (project / "vault" / "outside.txt").unlink()
        (project / "vault" / "outside.txt").write_text(PLAN)
        parameters = StdioServerParameters(command=gateways.SERVER, env=env, cwd=str(project))
        async with (
            operator(setup.served.ws, setup.served.token) as other,
            asyncio.timeout(gateways.WAIT),
            McpClient(stdio_client(parameters)) as client,
        ):
            for place in (*mine, *never):
                arguments = {"target": CHAT, "file": str(place)}
                result = await client.call_tool("message_send_attachment", arguments)
                assert result.is_error == (place not in mine or where != "project"), (place, result)
            assert await sent_files(other) == ([PLAN.encode()] * len(mine) if where == "project" else [])

    asyncio.run(work())


def test_http_sends_nothing_else_either(setup: Setup) -> None:
    ground = setup.ground

    async def send(place: str) -> bool:
        arguments = {"action": "send", "channel": "local", "target": CHAT, "message": "x", "media": place}
        body = {"tool": "message", "args": arguments}
        return await asyncio.to_thread(_invoked, setup.served, body)

    async def work() -> None:
        async with operator(setup.served.ws, setup.served.token) as other:
            await judged(other, send, ground, ground.secrets())

    asyncio.run(work())


def _invoked(served: Served, body: Any) -> bool:
    headers = {"authorization": f"Bearer {served.token}", "content-type": "application/json"}
    request = urllib.request.Request(f"{served.http}/tools/invoke", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=gateways.WAIT) as answer:
            return json.loads(answer.read())["ok"] is True
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return False


# ---- where no path is read at all ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [str, lambda place: f"file://{place}", lambda place: f"MEDIA:{place}"])
def test_a_message_to_an_agent_carries_bytes_and_no_path(setup: Setup, form: Callable[[str], str]) -> None:
    """An attachment named by a path is no attachment, and a word that looks like one is a word."""
    place, key = form(str(setup.ground.token)), "agent:main:bytes"

    async def work() -> None:
        async with operator(setup.served.ws, setup.served.token) as other:
            for method, more in (
                ("chat.send", {"sessionKey": key}), ("sessions.send", {"key": key}), ("agent", {"sessionKey": key}),
                ("local.send", {"conversation": CHAT}),
            ):  # fmt: skip
                text = {"text": "x"} if method == "local.send" else {"message": "x"}
                for file in (
                    {"content": place},
                    {"path": place},
                    {"url": place},
                    {"filePath": place, "mimeType": "a/b"},
                ):
                    message_params = {**text, **more, "idempotencyKey": f"{method}{file}", "attachments": [file]}
                    with pytest.raises(RpcError):
                        await other.call(method, message_params)
            claims = await other.call("local.send", {"conversation": "words", "text": place})
            await other.call("agent.wait", {"runId": claims["runId"], "timeoutMs": 30_000})
            read = await other.call("local.read", {"conversation": "words"})
            assert [message for message in read["messages"] if message.get("attachments")] == []

    asyncio.run(work())


def test_a_picture_for_the_completions_is_bytes_and_no_path(setup: Setup) -> None:
    for place in (str(setup.ground.token), f"file://{setup.ground.token}", f"file://localhost{setup.ground.token}"):
        part = {"type": "image_url", "image_url": {"url": place}}
        body = {"model": "openclaw/main", "messages": [{"role": "user", "content": [part]}]}
        headers = {"authorization": f"Bearer {setup.served.token}", "content-type": "application/json"}
        request = urllib.request.Request(f"{setup.served.http}/v1/chat/completions", json.dumps(body).encode(), headers)
        with pytest.raises(urllib.error.HTTPError) as refused, urllib.request.urlopen(request, timeout=gateways.WAIT):
            pass
        refused.value.close()
        assert refused.value.code == 400


# ---- the node's --------------------------------------------------------------------------------------------------


def test_the_nodes_canvas_reads_lines_of_the_temporary_directory_and_nothing_of_the_gateways_own(
    tmp_path: Path,
) -> None:
    need("chromium", package="chromium")
    ground = Ground(tmp_path)
    ground.token.write_text("0123456789abcdef")
    ground.plant()
    canvas, far = (
        CanvasCapability(state_dir=ground.state),
        ("hidden", "pipe", "socket", "folder", "descriptor", "device", "users"),
    )
    places = ground.secrets() | {name: place for name, place in ground.not_mine().items() if name.startswith(far)}
    del places["token, in settings of a client"]  # for the node that is a file like another
    for name, place in places.items():
        with pytest.raises(ToolArguments):
            asyncio.run(call(canvas, "canvas.a2ui.push", jsonlPath=place))
            pytest.fail(name)
    assert canvas.browser_pid is None
