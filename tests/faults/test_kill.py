"""`kill -9` at random moments under load: what was acknowledged is there, once, after each restart."""

import asyncio
import json
import os
import random
import signal
import subprocess
import uuid
from pathlib import Path
from typing import Any

from openclaw_mcp.core.errors import OpenClawError
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials
from openclaw_mcp.net.state_dir import find_gateway_token
from tests.effort import often
from tests.running import OPENCLAW, process, read_line

KILLS = int(os.environ.get("OPENCLAW_KILLS", often(5, 100)))
SESSIONS = 6
SETTLE = 60  # seconds a run may take to be over after a restart
SCOPES = ("operator.read", "operator.write", "operator.admin")


class Ledger:
    """What the gateway acknowledged as done."""

    def __init__(self) -> None:
        self.sent: dict[str, str] = {}  # run id to session
        self.fresh: dict[str, str] = {}  # the same, of this life alone
        self.results: dict[str, str] = {}  # run id to text
        self.config_acknowledged = 0
        self.config_tried = 0


def client(folder: Path, url: str) -> GatewayClient:
    me = ClientInfo(id="cli", mode="cli", version="1", platform="linux")
    credentials = Credentials(token=find_gateway_token(folder))
    return GatewayClient(url, ClientProfile(client=me, scopes=SCOPES), credentials=credentials, redial=False)


async def talk(gateway: GatewayClient, ledger: Ledger, session: str) -> None:
    while True:
        run = str(uuid.uuid4())
        mode = random.choice(["steer", "followup", "collect"])
        message = f"!sleep {random.choice([0, 0, 0.01])}\n!say {run}"
        params = {"sessionKey": session, "message": message, "idempotencyKey": run, "queueMode": mode}
        await gateway.call("chat.send", params)
        ledger.sent[run] = ledger.fresh[run] = session
        if random.random() < 0.7:
            ended = await gateway.call("agent.wait", {"runId": run, "timeoutMs": 20_000})
            if ended["status"] == "ok" and ended["terminalReply"]["disposition"] == "visible":
                ledger.results[run] = ended["terminalReply"]["text"]


async def reconfigure(gateway: GatewayClient, ledger: Ledger) -> None:
    while True:
        config = await gateway.call("config.get")
        ledger.config_tried += 1
        patch = {"raw": json.dumps({"ui": {"seamColor": str(ledger.config_tried)}}), "baseHash": config["hash"]}
        await gateway.call("config.patch", patch)
        ledger.config_acknowledged = ledger.config_tried
        await asyncio.sleep(0.1)


async def check(gateway: GatewayClient, ledger: Ledger, runs: dict[str, str]) -> None:
    """Everything acknowledged is there; nothing is there twice."""
    for run in runs:
        ended = await gateway.call("agent.wait", {"runId": run, "timeoutMs": SETTLE * 1000}, within=SETTLE + 5)
        assert ended["status"] in ("ok", "error"), (run, ended)
        if run in ledger.results:
            assert ended["terminalReply"]["text"] == ledger.results[run], run
    users: dict[str, int] = {}
    answers: dict[str, int] = {}
    for session in set(runs.values()):
        for message in await transcript(gateway, session):
            role, run = message["role"], message["__openclaw"].get("runId")
            counted = users if role == "user" else answers
            counted[run] = counted.get(run, 0) + 1
    assert {run: users.get(run) for run in runs} == dict.fromkeys(runs, 1)
    assert max(answers.values(), default=1) == 1
    color = (await gateway.call("config.get"))["parsed"].get("ui", {}).get("seamColor", "0")
    assert ledger.config_acknowledged <= int(color) <= ledger.config_tried


async def transcript(gateway: GatewayClient, session: str) -> list[Any]:
    messages: list[Any] = []
    while True:
        params = {"sessionKey": session, "limit": 1000, "offset": len(messages)}
        page = await gateway.call("chat.history", params)
        messages = page["messages"] + messages
        if not page["hasMore"]:
            return messages


async def one_life(folder: Path, ledger: Ledger, *, last: bool) -> None:
    words = (OPENCLAW, "gateway", "--port", "0", "--state-dir", str(folder))
    with process(*words, stdout=subprocess.PIPE) as child:
        url = read_line(child).decode().split()[1]
        async with client(folder, url) as gateway:
            await check(gateway, ledger, ledger.sent if last else ledger.fresh)
            ledger.fresh = {}
            if last:
                return
            load = [asyncio.ensure_future(talk(gateway, ledger, f"s{n}")) for n in range(SESSIONS)]
            load.append(asyncio.ensure_future(reconfigure(gateway, ledger)))
            await asyncio.sleep(random.uniform(0.05, 1.2))
            os.kill(child.pid, signal.SIGKILL)
            for result in await asyncio.gather(*load, return_exceptions=True):
                assert isinstance(result, OpenClawError), result


def test_nothing_acknowledged_is_lost_and_nothing_is_answered_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger = Ledger()
        for _ in range(KILLS):
            await one_life(tmp_path, ledger, last=False)
        await one_life(tmp_path, ledger, last=True)
        print(f"{KILLS} kills: {len(ledger.sent)} messages, {len(ledger.results)} results", end=" ")
        assert len(ledger.sent) > KILLS
        assert ledger.results

    asyncio.run(scenario())
