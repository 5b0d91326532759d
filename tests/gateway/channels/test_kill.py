"""`kill -9` of a real gateway in the middle of sending and receiving: every message once, in order, none lost.

Eight kills in `make test`; OPENCLAW_KILLS=100 for all of them.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from openclaw_mcp.core.errors import OpenClawError
from openclaw_mcp.core.rpc import ADMIN, READ, WRITE, RpcError
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientProfile, Credentials
from tests.effort import often
from tests.gateway.rpc.gateways import BACKEND
from tests.gateway.wiring.test_gateway import Served, serving

KILLS = int(os.environ.get("OPENCLAW_KILLS", often(5, 100)))
LANES = ("kitchen", "garden", "#team")
SETTLE = 60.0  # seconds for the last gateway to send what the others left
BURST = 20  # messages under way at once in one conversation
LONGEST_LIFE = 0.4  # seconds a gateway may work before it is killed

Lane = dict[str, int]


@contextlib.asynccontextmanager
async def client_of(served: Served) -> AsyncIterator[GatewayClient]:
    profile = ClientProfile(client=BACKEND, scopes=(READ, WRITE, ADMIN))
    async with GatewayClient(served.ws, profile, credentials=Credentials(token=served.token), redial=False) as client:
        yield client


async def send_on(client: GatewayClient, lane: str, counts: Lane) -> None:
    """One after the other, each until it is acknowledged; an unacknowledged one is sent again under its key."""
    while True:
        number = counts[lane]
        params = {"to": lane, "channel": "local", "message": f"out {number}", "idempotencyKey": f"{lane}-{number}"}
        await client.call("send", params)
        counts[lane] += 1


async def write_on(client: GatewayClient, lane: str, counts: Lane) -> None:
    """The same from the other side. No agent answers here: it is a group, and no message mentions the agent."""
    while True:
        number = counts[lane]
        await client.call("local.send", {"conversation": lane, "text": f"in {number}", "idempotencyKey": str(number)})
        counts[lane] += 1


async def ask_on(client: GatewayClient, counts: Lane) -> None:
    """Questions for the demo agent, one after the other; what becomes of them is seen at the end."""
    while True:
        number = counts["desk"]
        params = {"conversation": "desk", "text": f"!say answer {number}", "idempotencyKey": str(number)}
        await client.call("local.send", params)
        counts["desk"] += 1


async def burst_on(client: GatewayClient, acknowledged: set[int]) -> None:
    """Many at once, so that a death finds messages stored, messages half-way and messages sent."""

    async def one(number: int) -> None:
        params = {"to": "hall", "channel": "local", "message": str(number), "idempotencyKey": f"hall-{number}"}
        await client.call("send", params)
        acknowledged.add(number)

    while True:
        begin = len(acknowledged)
        missing = [number for number in range(begin + BURST) if number not in acknowledged]
        await asyncio.gather(*(one(number) for number in missing))


async def work(served: Served, sent: Lane, written: Lane, hall: set[int], seconds: float) -> None:
    async with client_of(served) as client:
        workers = [asyncio.create_task(send_on(client, lane, sent)) for lane in LANES]
        workers.append(asyncio.create_task(write_on(client, "#inward", written)))
        workers.append(asyncio.create_task(burst_on(client, hall)))
        workers.append(asyncio.create_task(ask_on(client, written)))
        await asyncio.sleep(seconds)  # the moment of death is what is at random here
        os.killpg(served.child.pid, signal.SIGKILL)
        ended = await asyncio.gather(*workers, return_exceptions=True)
        unexpected = [one for one in ended if isinstance(one, RpcError) or not isinstance(one, OpenClawError)]
        assert not unexpected, unexpected


async def everything(client: GatewayClient, lane: str) -> list[str]:
    texts: list[str] = []
    before: dict[str, Any] = {}
    while True:
        page = (await client.call("local.read", {"conversation": lane, "limit": 500, **before}))["messages"]
        if not page:
            return texts
        texts = [message["text"] for message in page] + texts
        before = {"before": page[0]["id"]}


async def answered(client: GatewayClient) -> None:
    """Each question has one answer: the agent's, or a word that it was cut short. None is answered twice."""
    while True:
        texts = await everything(client, "desk")
        questions = [text for text in texts if text.startswith("!say")]
        if len(texts) >= 2 * len(questions):
            break
        await asyncio.sleep(0.1)
    assert questions == [f"!say answer {number}" for number in range(len(questions))]
    replies = [text for text in texts if text.startswith("answer")]
    assert len(replies) == len(set(replies))
    cut = sum(text.startswith("⚠️ The gateway restarted") for text in texts)
    assert len(replies) + cut == len(questions), texts


async def finish(served: Served, sent: Lane, written: Lane, hall: set[int]) -> None:
    async with client_of(served) as client, asyncio.timeout(SETTLE):
        while (await client.call("outbox.list", {"status": "queued"}))["items"]:  # noqa: ASYNC110  (another process's)
            await asyncio.sleep(0.05)
        assert (await client.call("outbox.list", {"status": "failed"}))["items"] == []
        for lane, acknowledged in sent.items():
            texts = await everything(client, lane)
            assert texts == [f"out {number}" for number in range(len(texts))], lane
            assert acknowledged <= len(texts) <= acknowledged + 1  # one may have been taken and not acknowledged
        await answered(client)
        texts = await everything(client, "hall")
        assert len(texts) == len(set(texts))
        assert {str(number) for number in hall} <= set(texts)
        texts = await everything(client, "#inward")
        assert texts == [f"in {number}" for number in range(len(texts))]
        assert written["#inward"] <= len(texts) <= written["#inward"] + 1


def test_killed_in_the_middle_of_sending_each_message_arrives_once(tmp_path: Path) -> None:
    sent, written = dict.fromkeys(LANES, 0), {"#inward": 0, "desk": 0}
    (tmp_path / "openclaw.json").write_text('{"messages":{"queue":{"mode":"followup"}}}')
    hall: set[int] = set()
    chance = random.Random(7)
    for _ in range(KILLS):
        with serving(tmp_path) as served:
            asyncio.run(work(served, sent, written, hall, chance.uniform(0.02, LONGEST_LIFE)))
    with serving(tmp_path) as served:
        asyncio.run(finish(served, sent, written, hall))
    assert sum(sent.values()) + len(hall) > KILLS  # the lives were long enough to be worth ending
    print(f"{KILLS} kills, {sum(sent.values()) + len(hall)} messages sent, {sum(written.values())} written")
