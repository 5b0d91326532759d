"""What we serve beside what a real gateway serves: the same questions to both, the shapes of the answers compared.

`python -m tests.interop.compatibility` writes `docs/reference/compatibility.md`.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.net.gateway_client.client import GatewayClient

from ..gateway.wiring.test_gateway import serving
from ..running import ROOT
from . import real

PAGE = ROOT / "docs" / "reference" / "compatibility.md"
MOST_GAPS = 6  # keys named per method; the rest is counted
PASSING = frozenset({"eventLoop.degradedSinceMs"})
"""What an answer holds only while its gateway is late: it says nothing about the other one."""

PROBE = "agent:main:probe"
JOB: dict[str, Any] = {
    "schedule": {"kind": "cron", "expr": "0 9 * * 1", "tz": "Europe/Vienna"}, "sessionTarget": "isolated",
    "wakeMode": "now", "payload": {"kind": "agentTurn", "message": "hi"}, "delivery": {"mode": "none"},
}  # fmt: skip
PROBES: dict[str, dict[str, Any]] = {
    "health": {},
    "status": {},
    "system-presence": {},
    "system.info": {},
    "last-heartbeat": {},
    "gateway.identity.get": {},
    "logs.tail": {"limit": 2},
    "device.pair.list": {},
    "device.pair.approve": {"requestId": "unknown"},
    "device.pair.reject": {"requestId": "unknown"},
    "device.pair.remove": {"deviceId": "unknown"},
    "device.pair.rename": {"deviceId": "unknown", "label": "x"},
    "device.token.rotate": {"deviceId": "unknown", "role": "operator"},
    "device.token.revoke": {"deviceId": "unknown", "role": "operator"},
    "tasks.list": {},
    "tasks.get": {"taskId": "unknown"},
    "tasks.cancel": {"taskId": "unknown"},
    "tools.catalog": {},
    "tools.effective": {"sessionKey": "agent:main:main"},
    "tools.invoke": {"name": "no_such_tool"},
    "agent": {"message": "hello"},
    "agent.identity.get": {},
    "agent.wait": {"runId": "unknown", "timeoutMs": 10},
    "agents.list": {},
    "chat.abort": {"sessionKey": PROBE},
    "chat.history": {"sessionKey": PROBE},
    "chat.message.get": {"sessionKey": PROBE, "messageId": "unknown"},
    "chat.send": {"sessionKey": PROBE, "message": "hello"},
    "config.apply": {"raw": "not json", "baseHash": "stale"},
    "config.get": {},
    "config.patch": {"raw": "{}", "baseHash": "stale"},
    "config.schema": {},
    "config.schema.lookup": {"path": "gateway.auth"},
    "config.set": {"raw": "{}", "baseHash": "stale"},
    "cron.add": {"name": "probe", "declarationKey": "probe", **JOB},
    "cron.get": {"id": "unknown"},
    "cron.list": {"query": "probe", "includeDeliveryPreviews": False},
    "cron.remove": {"id": "unknown"},
    "cron.run": {"id": "unknown"},
    "cron.runs": {"limit": 1, "query": "no such words"},
    "cron.status": {},
    "cron.update": {"id": "unknown", "patch": {"name": "x"}},
    "approval.get": {"id": "unknown"},
    "approval.history": {},
    "approval.resolve": {"id": "unknown", "kind": "exec", "decision": "deny"},
    "audit.list": {"limit": 1},
    "channels.pairing.list": {"channel": "no-such-channel"},
    "channels.pairing.approve": {"channel": "no-such-channel", "code": "AAAAAAAA"},
    "channels.status": {},
    "message.action": {"channel": "no-such-channel", "action": "react", "params": {}, "idempotencyKey": "probe"},
    "send": {"channel": "no-such-channel", "to": "x", "message": "hi", "idempotencyKey": "probe"},
    "exec.approval.get": {"id": "unknown"},
    "exec.approval.grants.list": {},
    "exec.approval.list": {},
    "exec.approval.request": {"command": "echo hi", "timeoutMs": 5000, "requireDeliveryRoute": True},
    "exec.approval.resolve": {"id": "unknown", "decision": "deny"},
    "exec.approval.waitDecision": {"id": "unknown"},
    "exec.approvals.get": {},
    "exec.approvals.node.get": {"nodeId": "unknown"},
    "exec.approvals.node.set": {"nodeId": "unknown", "file": {"version": 1}, "baseHash": "stale"},
    "exec.approvals.set": {"file": {"version": 1}, "baseHash": "stale"},
    "gateway.restart.preflight": {},
    "node.describe": {"nodeId": "unknown"},
    "node.event": {"event": "voice.transcript"},
    "node.invoke": {"nodeId": "unknown", "command": "system.which", "idempotencyKey": "probe"},
    "node.invoke.progress": {"invokeId": "unknown", "nodeId": "unknown", "seq": 0, "chunk": "x"},
    "node.invoke.result": {"id": "unknown", "nodeId": "unknown", "ok": True},
    "node.list": {},
    "node.pair.approve": {"requestId": "unknown"},
    "node.pair.list": {},
    "node.pair.reject": {"requestId": "unknown"},
    "node.pair.remove": {"nodeId": "unknown"},
    "node.pending.ack": {"ids": ["unknown"]},
    "node.pending.drain": {},
    "node.pending.enqueue": {"nodeId": "unknown", "type": "status.request"},
    "node.pending.pull": {},
    "node.pluginTools.update": {"tools": []},
    "node.rename": {"nodeId": "unknown", "displayName": "x"},
    "node.skills.update": {"skills": []},
    "openclaw.approval.list": {},
    "plugin.approval.list": {},
    "skills.bins": {},
    "sessions.abort": {"key": PROBE},
    "sessions.create": {"key": PROBE},
    "sessions.delete": {"key": "agent:main:no-such-session"},
    "sessions.describe": {"key": PROBE},
    "sessions.list": {},
    "sessions.messages.subscribe": {"key": PROBE},
    "sessions.messages.unsubscribe": {"key": PROBE},
    "sessions.patch": {"key": PROBE, "pinned": True},
    "sessions.preview": {"keys": [PROBE]},
    "sessions.reset": {"key": PROBE},
    "sessions.search": {"query": "heron"},
    "sessions.send": {"key": PROBE},
    "sessions.subscribe": {},
    "wake": {"mode": "next-heartbeat", "text": "a heron"},
}
"""Method to the parameters both gateways are asked with. They start no run and leave the config alone."""

PREPARED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sessions.create", {"key": PROBE, "label": "probe"}),
    ("chat.inject", {"sessionKey": PROBE, "message": "a heron"}),
)
"""Calls made to both first, so that there is something to see."""

HEAD = """# Compatibility

Generated by `python -m tests.interop.compatibility`, which sends the same requests to our gateway and a real OpenClaw
{version} and compares the structure of the answers. *Same*: every key of the real answer is in ours, with a value of
the same type, and errors have the same code. *Narrower*: the named keys are missing or different in ours. Our gateway
ignores unknown parameters; the real one refuses them. Methods that are not on this page exist in neither.

| method | compared with the real one |
|---|---|
"""


def gaps(theirs: Any, ours: Any, path: str = "") -> list[str]:
    """What of their answer ours lacks, as dotted paths."""
    if theirs is None or ours is None:
        return [] if theirs is None else [f"{path} is null"]
    if isinstance(theirs, dict):
        if not isinstance(ours, dict):
            return [f"{path or 'the answer'} is no object"]
        found: list[str] = []
        for key, value in theirs.items():
            below = f"{path}.{key}" if path else key
            if below not in PASSING:
                found += gaps(value, ours[key], below) if key in ours else [below]
        return found
    if isinstance(theirs, list):
        if not isinstance(ours, list):
            return [f"{path or 'the answer'} is no list"]
        return gaps(theirs[0], ours[0], f"{path}[]") if theirs and ours else []
    if isinstance(theirs, bool) != isinstance(ours, bool) or isinstance(theirs, str) != isinstance(ours, str):
        return [f"{path or 'the answer'} is of another type"]
    return []


async def ask(client: GatewayClient, method: str) -> tuple[bool, Any]:
    try:
        return True, await client.call(method, PROBES[method], within=60)
    except RpcError as fault:
        return False, {"code": fault.kind}


def verdict(theirs: tuple[bool, Any], ours: tuple[bool, Any]) -> str:
    if theirs[0] != ours[0]:
        return "narrower: " + ("refused here" if theirs[0] else "refused there, answered here")
    if not theirs[0]:
        same = theirs[1] == ours[1]
        return "same (refusal)" if same else f"narrower: refused with {ours[1]['code']}, there {theirs[1]['code']}"
    missing = gaps(theirs[1], ours[1])
    if not missing:
        return "same"
    named = ", ".join(f"`{path}`" for path in missing[:MOST_GAPS])
    more = f" and {len(missing) - MOST_GAPS} more" if len(missing) > MOST_GAPS else ""
    return f"narrower: without {named}{more}"


async def compared(theirs_url: str, ours_url: str, token: str) -> str:
    """The page."""
    async with real.client(theirs_url) as them, real.client(ours_url, token) as us:
        assert them.hello is not None
        assert us.hello is not None
        served: list[str] = us.hello["features"]["methods"]
        known: list[str] = them.hello["features"]["methods"]
        for method, params in PREPARED:
            await them.call(method, params, within=60)
            await us.call(method, params)
        page = HEAD.format(version=them.hello["server"]["version"])
        for method in sorted(served):
            if method not in PROBES:
                verdict_text = "served; not compared" if method in known else "ours alone"
            else:
                verdict_text = verdict(await ask(them, method), await ask(us, method))
            page += f"| `{method}` | {verdict_text} |\n"
        absent = sorted(set(known) - set(served))
        page += f"\n## Absent\n\n{len(absent)} methods that a real gateway announces and ours does not have:\n\n"
        return page + ", ".join(f"`{name}`" for name in absent) + ".\n"


def write() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        real.gateway(Path(folder) / "real") as theirs,
        serving(Path(folder) / "ours") as ours,
    ):
        page = asyncio.run(compared(theirs, ours.ws, ours.token))
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    write()
