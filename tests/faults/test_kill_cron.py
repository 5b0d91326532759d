"""`kill -9` while jobs are due or run: each acknowledged job fires once, and its program ends with the gateway."""

import asyncio
import os
import random
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from openclaw_mcp.core.errors import OpenClawError
from openclaw_mcp.core.model import Json
from openclaw_mcp.net.gateway_client.client import GatewayClient
from tests.running import OPENCLAW, process, read_line

from .test_kill import KILLS, client, transcript

JOBS = 12  # added in each life
SETTLE = 60.0  # seconds for what is due to be done after the last start


def agent_turn(name: str) -> Json:
    payload = {"kind": "agentTurn", "message": f"!sleep 0.05\n!say {name}"}
    return {"sessionTarget": f"session:{name}", "wakeMode": "now", "payload": payload, "delivery": {"mode": "none"}}


def system_event(name: str) -> Json:
    """Over in the commit that claims it."""
    return {"sessionTarget": "main", "wakeMode": "next-heartbeat", "payload": {"kind": "systemEvent", "text": name}}


async def keep_adding(gateway: GatewayClient, acknowledged: dict[str, str]) -> None:
    """One-shots due within the second: each asks its agent in a session of its own name, or leaves an event."""
    for number in range(JOBS):
        event = number % 2 == 1
        name = f"{'event' if event else 'job'}-{len(acknowledged)}-{random.randrange(10**9)}"
        at = datetime.fromtimestamp(time.time() + random.uniform(0, 0.8), UTC).isoformat()
        common = {"name": name, "schedule": {"kind": "at", "at": at}, "deleteAfterRun": False}
        job = await gateway.call("cron.add", common | (system_event(name) if event else agent_turn(name)))
        acknowledged[job["id"]] = name
        await asyncio.sleep(random.uniform(0, 0.1))


async def one_life(folder: Path, acknowledged: dict[str, str]) -> None:
    words = (OPENCLAW, "gateway", "--port", "0", "--state-dir", str(folder))
    with process(*words, stdout=subprocess.PIPE) as child:
        url = read_line(child).decode().split()[1]
        async with client(folder, url) as gateway:
            load = asyncio.ensure_future(keep_adding(gateway, acknowledged))
            await asyncio.sleep(random.uniform(0.2, 1.6))
            os.kill(child.pid, signal.SIGKILL)
            (result,) = await asyncio.gather(load, return_exceptions=True)
            assert result is None or isinstance(result, OpenClawError), result  # all were added, or the line went dead


async def last_life(folder: Path, acknowledged: dict[str, str]) -> tuple[int, int]:
    """How many went well, and how many were cut short by a kill."""
    words = (OPENCLAW, "gateway", "--port", "0", "--state-dir", str(folder))
    with process(*words, stdout=subprocess.PIPE) as child:
        url = read_line(child).decode().split()[1]
        async with client(folder, url) as gateway:
            jobs = await settled(gateway, acknowledged)
            for job_id, name in acknowledged.items():
                log = await gateway.call("cron.runs", {"id": job_id})
                assert log["total"] == 1, (name, log)
                if name.startswith("job"):
                    questions = [m for m in await transcript(gateway, name) if m["role"] == "user"]
                    assert len(questions) == 1, name
                else:
                    assert log["entries"][0]["status"] == "ok", name  # an event is never cut short
            ends = [job["state"]["lastRunStatus"] for job in jobs.values()]
            return ends.count("ok"), ends.count("error")


async def settled(gateway: GatewayClient, acknowledged: dict[str, str]) -> dict[str, Json]:
    async with asyncio.timeout(SETTLE):
        while True:
            jobs = {job_id: await gateway.call("cron.get", {"id": job_id}) for job_id in acknowledged}
            if all(job["state"].get("lastRunStatus") and "runningAtMs" not in job["state"] for job in jobs.values()):
                return jobs
            await asyncio.sleep(0.5)


def test_a_job_that_was_due_when_the_gateway_was_killed_fires_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        acknowledged: dict[str, str] = {}
        for _ in range(KILLS):
            await one_life(tmp_path, acknowledged)
        well, cut = await last_life(tmp_path, acknowledged)
        print(f"{KILLS} kills: {len(acknowledged)} jobs, {well} ok, {cut} cut short", end=" ")
        assert well + cut == len(acknowledged) > KILLS
        assert well > cut

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["command", "on-exit", "stream"])
def test_a_jobs_program_ends_with_a_gateway_that_was_killed(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "pids"
    script = f"echo $$ >> {file}; sleep 600 & echo $! >> {file}; wait"
    daily = {"kind": "every", "everyMs": 86_400_000}
    schedule, payload = {
        "command": (daily, {"kind": "command", "argv": ["sh", "-c", script]}),
        "on-exit": ({"kind": "on-exit", "command": script}, {"kind": "agentTurn", "message": "what now?"}),
        "stream": ({"kind": "stream", "command": ["sh", "-c", script]}, {"kind": "agentTurn", "message": "look:"}),
    }[kind]
    words = (OPENCLAW, "gateway", "--port", "0", "--state-dir", str(tmp_path / "state"))

    async def scenario() -> None:
        with process(*words, stdout=subprocess.PIPE) as child:
            url = read_line(child).decode().split()[1]
            async with client(tmp_path / "state", url) as gateway:
                delivery = {"mode": "none"}
                job = {"name": kind, "schedule": schedule, "payload": payload, "delivery": delivery}
                added = await gateway.call("cron.add", job)
                if kind == "command":
                    await gateway.call("cron.run", {"id": added["id"]})
                pids = await written(file)
                os.kill(child.pid, signal.SIGKILL)
        try:
            async with asyncio.timeout(SETTLE):
                while any(running(pid) for pid in pids):  # noqa: ASYNC110  (their parent is gone)
                    await asyncio.sleep(0.05)
        finally:
            for pid in filter(running, pids):
                os.kill(pid, signal.SIGKILL)

    asyncio.run(scenario())


async def written(file: Path) -> list[int]:
    """The program's own id and its child's."""
    async with asyncio.timeout(SETTLE):
        while not file.exists() or len(file.read_text().split()) < 2:  # noqa: ASYNC110, ASYNC240  (nothing else reports it)
            await asyncio.sleep(0.05)
    return [int(word) for word in file.read_text().split()]  # noqa: ASYNC240  (as above)


def running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
