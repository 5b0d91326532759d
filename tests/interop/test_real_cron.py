"""Jobs on a real OpenClaw and on ours: the same questions, the same shapes, each one's command line on the other."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.net.gateway_client.client import GatewayClient

from ..gateway.wiring.test_gateway import Served, environment, serving
from ..running import OPENCLAW
from . import real
from .compatibility import gaps

TURN = {"kind": "agentTurn", "message": "!say hi"}
QUIET = {"sessionTarget": "isolated", "wakeMode": "now", "delivery": {"mode": "none"}}
JOBS: dict[str, Any] = {
    "every": {"schedule": {"kind": "every", "everyMs": 3_600_000}, "payload": TURN, **QUIET},
    "cron": {"schedule": {"kind": "cron", "expr": "0 9 * * 1-5", "tz": "Europe/Vienna"}, "payload": TURN, **QUIET},
    "at": {"schedule": {"kind": "at", "at": "2030-01-01T00:00:00"}, "payload": TURN, **QUIET},
    "hourly": {"schedule": {"kind": "cron", "expr": "0 * * * *", "staggerMs": 0}, "payload": TURN, **QUIET},
    "announce": {"schedule": {"kind": "every", "everyMs": 60_000}, "payload": TURN, "sessionTarget": "isolated",
                 "wakeMode": "now"},
    "named": {"schedule": {"kind": "every", "everyMs": 60_000}, "payload": TURN, **QUIET, "sessionTarget": "session:x"},
    "event": {"schedule": {"kind": "every", "everyMs": 3_600_000}, "sessionTarget": "main",
              "wakeMode": "next-heartbeat", "payload": {"kind": "systemEvent", "text": "tick"}},
    "command": {"schedule": {"kind": "every", "everyMs": 3_600_000}, **QUIET,
                "payload": {"kind": "command", "argv": ["echo", "hi"]}},
    "on-exit": {"schedule": {"kind": "on-exit", "command": "sleep 600"}, "payload": TURN, **QUIET},
    "webhook": {"schedule": {"kind": "every", "everyMs": 3_600_000}, "payload": TURN, **QUIET,
                "delivery": {"mode": "webhook", "to": "http://127.0.0.1:9/x"}},
    "declared": {"schedule": {"kind": "every", "everyMs": 60_000}, "payload": TURN, **QUIET, "declarationKey": "k"},
}  # fmt: skip
REFUSED: dict[str, tuple[str, Any]] = {
    "nothing": ("cron.add", {"name": "x"}),
    "a bad minute": ("cron.add", {"name": "x", **JOBS["cron"], "schedule": {"kind": "cron", "expr": "99 * * * *"}}),
    "a bad zone": ("cron.add", {"name": "x", **JOBS["cron"], "schedule": {"kind": "cron", "expr": "0 9 * * *",
                                                                           "tz": "Mars/Olympus"}}),
    "the past": ("cron.add", {"name": "x", **JOBS["at"], "schedule": {"kind": "at", "at": "2020-01-01T00:00:00Z"}}),
    "no time": ("cron.add", {"name": "x", **JOBS["at"], "schedule": {"kind": "at", "at": "soon"}}),
    "a turn in main": ("cron.add", {"name": "x", **JOBS["every"], "sessionTarget": "main"}),
    "an unknown job": ("cron.get", {"id": "nope"}),
    "an unknown job changed": ("cron.update", {"id": "nope", "patch": {"name": "y"}}),
    "an unknown job removed": ("cron.remove", {"id": "nope"}),
    "an unknown job run": ("cron.run", {"id": "nope"}),
    "runs of an unknown job": ("cron.runs", {"id": "nope"}),
    "a bad wake": ("wake", {"mode": "later", "text": "x"}),
}  # fmt: skip
ONLY_THERE = {"streamSourceIdentity", "scheduleErrorCount", "toolsAllow"}
"""What is theirs alone: inner counters, and a tool list where no agent is asked."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    real.program()
    with serving(tmp_path_factory.mktemp("ours")) as served:
        yield served


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real.gateway(tmp_path_factory.mktemp("theirs")) as url:
        yield url


def missing(there: Any, here: Any) -> list[str]:
    return [gap for gap in gaps(there, here) if gap.rpartition(".")[2] not in ONLY_THERE]


async def refusal(client: GatewayClient, method: str, params: Any) -> tuple[str, Any]:
    with pytest.raises(RpcError) as refused:
        await client.call(method, params)
    details = refused.value.details
    return refused.value.kind, details and details.get("code")


def test_jobs_look_the_same_here_and_there(theirs: str, ours: Served) -> None:
    async def test() -> None:
        async with real.client(theirs) as them, real.client(ours.ws, ours.token) as us:
            for name, job in JOBS.items():
                there, here = [await c.call("cron.add", {"name": name, **job}, within=60) for c in (them, us)]
                assert missing(there, here) == [], name
                for part in ("sessionTarget", "wakeMode", "delivery", "enabled", "deleteAfterRun"):
                    assert there.get(part) == here.get(part), (name, part)
                if name in ("cron", "at", "hourly"):
                    assert there["nextRunAtMs"] == here["nextRunAtMs"], name
                await same_afterwards(them, us, name, there, here)
            for params in ({"limit": 2}, {"compact": True}, {"sortBy": "updatedAtMs", "sortDir": "desc"}):
                chosen = {"includeDisabled": True, "query": "webhook", "includeDeliveryPreviews": False, **params}
                there, here = [await c.call("cron.list", chosen) for c in (them, us)]
                assert (there["total"], here["total"]) == (1, 1)
                assert missing(there, here) == [], params
            assert missing(*[await c.call("cron.status") for c in (them, us)]) == []
            assert [await c.call("wake", {"mode": "now", "text": "x"}) for c in (them, us)] == [{"ok": True}] * 2

    asyncio.run(asyncio.wait_for(test(), 180))


async def same_afterwards(them: GatewayClient, us: GatewayClient, name: str, there: Any, here: Any) -> None:
    """Reading, changing and removing it."""
    there, here = there.get("job", there), here.get("job", here)
    ids = ((them, there["id"]), (us, here["id"]))
    assert missing(*[await c.call("cron.get", {"id": id}) for c, id in ids]) == [], name
    off = [await c.call("cron.update", {"id": id, "patch": {"enabled": False}}) for c, id in ids]
    assert missing(*off) == [], name
    assert [job.get("nextRunAtMs") for job in off] == [None, None]
    stale = {"patch": {"name": "z"}, "expectedConfigRevision": "sha256:0"}
    first, second = [await refusal(c, "cron.update", {"id": id, **stale}) for c, id in ids]
    assert first == second == ("INVALID_REQUEST", "CRON_JOB_CHANGED")
    due = [await c.call("cron.run", {"id": id, "mode": "due"}) for c, id in ids]
    assert missing(*due) == [], name
    assert due[0]["reason"] == due[1]["reason"]
    if name == "webhook":
        # One is left, to be listed.
        on = [await c.call("cron.update", {"id": id, "patch": {"enabled": True}}) for c, id in ids]
        assert missing(*on) == []
        return
    gone = [await c.call("cron.remove", {"id": id}) for c, id in ids]
    assert [answer["removed"] for answer in gone] == [True, True]


def test_what_is_refused_there_is_refused_here_with_the_same_code(theirs: str, ours: Served) -> None:
    async def test() -> None:
        async with real.client(theirs) as them, real.client(ours.ws, ours.token) as us:
            for name, (method, params) in REFUSED.items():
                there, here = await refusal(them, method, params), await refusal(us, method, params)
                assert there == here, name

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_run_is_logged_the_same(theirs: str, ours: Served) -> None:
    """The same event and command on both: neither needs a model."""

    async def entry(client: GatewayClient, job: Any) -> Any:
        added = await client.call("cron.add", {"name": "logged", **job})
        run = await client.call("cron.run", {"id": added["id"], "mode": "force"})
        assert run["enqueued"] is True
        async with asyncio.timeout(60):
            while True:
                log = await client.call("cron.runs", {"id": added["id"], "runId": run["runId"]})
                if log["entries"]:
                    return log
                await asyncio.sleep(0.2)

    async def test() -> None:
        async with real.client(theirs) as them, real.client(ours.ws, ours.token) as us:
            for name in ("event", "command"):
                there, here = await entry(them, JOBS[name]), await entry(us, JOBS[name])
                assert missing(there, here) == [], name
                for part in ("status", "completionStatus", "summary", "deliveryStatus"):
                    assert there["entries"][0][part] == here["entries"][0][part], (name, part)

    asyncio.run(asyncio.wait_for(test(), 150))


# ---- either one's command line ---------------------------------------------------------------------------------------


def test_their_command_line_manages_our_jobs(ours: Served, tmp_path: Path) -> None:
    def cron(*words: str) -> Any:
        process = real.command_line(tmp_path, ours.ws, ours.token, "cron", *words, "--json")
        assert process.returncode == 0, (words, process.stderr[-800:], process.stdout[-300:])
        return json.loads(process.stdout)

    added = cron("add", "--name", "brief", "--cron", "0 7 * * *", "--tz", "Europe/Vienna", "--message", "!say hello",
                "--session", "isolated", "--no-deliver")  # fmt: skip
    assert added["schedule"] == {"kind": "cron", "expr": "0 7 * * *", "tz": "Europe/Vienna"}
    assert added["id"] in [job["id"] for job in cron("list")["jobs"]]
    assert cron("get", added["id"])["name"] == "brief"
    assert cron("edit", added["id"], "--name", "new", "--every", "2h")["schedule"]["everyMs"] == 7_200_000
    ran = cron("run", added["id"], "--wait", "--poll-interval", "200ms")
    assert (ran["status"], ran["completionStatus"]) == ("ok", "succeeded")
    assert cron("runs", added["id"])["entries"][0]["summary"] == "hello"
    assert cron("disable", added["id"])["enabled"] is False
    assert cron("enable", added["id"])["enabled"] is True
    once = cron("add", "--name", "soon", "--at", "20m", "--session", "main", "--system-event", "tea", "--wake", "now")
    assert once["deleteAfterRun"] is True
    for job in (added, once):
        assert cron("rm", job["id"])["removed"] is True
    listed = real.command_line(tmp_path, ours.ws, ours.token, "cron", "list")
    assert listed.returncode == 0, listed.stderr[-500:]


def test_our_command_line_manages_their_jobs(theirs: str, tmp_path: Path) -> None:
    def cron(verb: str, *words: str) -> str:
        process = subprocess.run(
            [OPENCLAW, "cron", verb, *words, "--url", theirs, "--token", real.TOKEN],
            env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert process.returncode == 0, (verb, process.stderr)
        return process.stdout

    added = json.loads(cron("add", "--name", "ours", "--cron", "0 9 * * 1", "--tz", "Europe/Vienna", "--message", "hi",
                           "--no-deliver", "--json"))  # fmt: skip
    listed = cron("list")
    assert "ours" in listed
    assert listed.count("09:00:00") >= 5  # the next five times
    cron("edit", "ours", "--every", "1h")
    cron("disable", added["id"])
    assert "disabled" in cron("get", "ours")
    assert cron("rm", added["id"]) == "removed\n"
