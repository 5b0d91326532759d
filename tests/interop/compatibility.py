"""What we serve beside what a real gateway serves: the same questions to both, the shapes of the answers compared.

`python -m tests.interop.compatibility` writes `docs/reference/compatibility.md`.
"""

import asyncio
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.net.gateway_client.client import GatewayClient

from .. import web_client
from ..gateway.wiring.test_gateway import Served, serving
from ..running import ROOT
from . import real

PAGE = ROOT / "docs" / "reference" / "compatibility.md"
MOST_GAPS = 6  # keys named per method; the rest is counted
PASSING = frozenset({"eventLoop.degradedSinceMs", "eventLoop.reasons"})
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
    "chat.metadata": {"sessionKey": PROBE},
    "chat.startup": {"sessionKey": PROBE, "limit": 80, "maxBytes": 262144},
    "commands.list": {},
    "artifacts.list": {"sessionKey": PROBE},
    "diagnostics.lanes": {},
    "environments.list": {},
    "hooks.status": {"agentId": "main"},
    "plugins.list": {},
    "sessions.compact": {"key": "agent:main:no-such-session"},
    "skills.library.list": {"scope": "all"},
    "transcripts.list": {},
    "usage.status": {},
    "worktrees.list": {},
    "models.authStatus": {"agentId": "main"},
    "models.list": {"view": "configured"},
    "progressCard.get": {"sessionKey": PROBE},
    "question.list": {},
    "secrets.reload": {},
    "sessions.branches.list": {"sessionKey": PROBE},
    "sessions.companion.state": {"sessionKey": PROBE},
    "sessions.observer.visibility": {"visible": True},
    "skills.status": {"agentId": "main"},
    "talk.catalog": {},
    "update.status": {},
    "usage.cost": {"days": 2},
    "users.list": {},
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
    "audit.activity.list": {"limit": 1},
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

VERBS = (
    "health", "status", "gateway status", "gateway usage-cost", "gateway stability", "gateway call system.info",
    "logs --limit 5 --plain", "agent --session-key agent:main:probe --message hello", "attach --print-config", "audit",
    "approvals pending", "channels status", "cron list", "cron status", "cron add --name probe --every 1h --message hi",
    "devices list", "message send --channel local --target hall --message hi", "models list", "models status",
    "nodes list", "nodes status", "pairing list", "plugins list", "secrets reload", "sessions list",
    "sessions archive agent:main:probe", "sessions delete agent:main:probe --yes", "skills list", "system presence",
    "system event --text hello --mode next-heartbeat", "system heartbeat last", "tasks list",
    "update status", "users list", "worktrees list",
)  # fmt: skip
"""What is asked of our gateway with the real command line."""
MOST_SAID = 200  # characters of a refusal

HEAD = """# Compatibility

Generated by `python -m tests.interop.compatibility`, which sends the same requests to our gateway and a real OpenClaw
{version} and compares the structure of the answers. *Same*: every key of the real answer is in ours, with a value of
the same type, and errors have the same code. *Narrower*: the named keys are missing or different in ours. A key that
ends in `[]` is a list that has items there and none here, so that items could not be compared; of two lists with items,
the first items are. Both refuse unknown parameters.

| method | compared with the real one |
|---|---|
"""


UNANNOUNCED = (
    "chat.inject", "config.openFile", "device.pair.setupCode", "device.pair.setupStatus", "nativeHook.invoke",
    "node.runnerInventory.update", "poll", "push.test", "push.web.subscribe", "push.web.test", "push.web.unsubscribe",
    "push.web.vapidPublicKey", "sessions.get", "sessions.resolve", "sessions.steer", "sessions.usage",
    "sessions.usage.logs", "sessions.usage.timeseries", "web.login.start", "web.login.wait",
)  # fmt: skip
"""Methods that a real gateway serves and `hello-ok` does not name: `advertise: false` in the table of its source."""
UNANNOUNCED_TEXT = """
## Not announced

The tables above are made of the methods that the gateways announce in `hello-ok`. Of those that a real one serves
without announcing them, ours has {shared}, and not {theirs}. The methods that ours serves unannounced are marked in
[methods](methods.md).
"""

COMMAND_LINE_HEAD = """
## The command line

What the real `openclaw` answers when `OPENCLAW_GATEWAY_URL` leads it to our gateway.

| command | |
|---|---|
"""


def gaps(theirs: Any, ours: Any, path: str = "") -> list[str]:
    """What of their answer ours lacks, as dotted paths. One that ends in `[]` is a list that is empty in ours alone."""
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
        if not theirs:
            return []
        return gaps(theirs[0], ours[0], f"{path}[]") if ours else [f"{path}[]"]
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
    if all(path.endswith("[]") for path in missing):  # what each gateway has in its lists changes; the shape does not
        return f"same: nothing in {named}{more}"
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
        page += _name_all(absent) + ".\n"
        shared = [name for name in UNANNOUNCED if await serves(us, name)]
        theirs_alone = [name for name in UNANNOUNCED if name not in shared]
        return page + UNANNOUNCED_TEXT.format(shared=_name_all(shared), theirs=_name_all(theirs_alone))


async def serves(client: GatewayClient, method: str) -> bool:
    """Whether a gateway of ours knows a method and does something for it."""
    try:
        await client.call(method, {})
    except RpcError as fault:
        return not str(fault).startswith("unknown method") and fault.kind != "UNAVAILABLE"
    return True


def _name_all(methods: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in methods)


def command_line_table(ours: Served, home: Path) -> str:
    """The verbs of the real command line on our gateway: whether each works, or in whose words it does not."""
    table = COMMAND_LINE_HEAD
    for verb in VERBS:
        asked = counted(ours)
        print(f"openclaw {verb}", file=sys.stderr)
        result = real.command_line(home, ours.ws, ours.token, *verb.split())
        said = "works" if result.returncode == 0 else f"refused: {_last_sentence(result.stderr or result.stdout)}"
        own = "" if counted(ours) > asked else " (asks no gateway)"
        table += f"| `openclaw {verb}` | {said}{own} |\n"
    return table


def counted(ours: Served) -> int:
    """The connections that were let in so far."""
    metrics = web_client.send(f"{ours.http}/metrics", "GET").body.decode()
    found = re.search(r'openclaw_handshakes_total\{outcome="ok"\} (\d+)', metrics)
    return int(found[1]) if found else 0


def _last_sentence(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line.partition("Reason: ")[2] for line in lines if "Reason: " in line]
    return (reasons or lines or ["it says nothing"])[-1][:MOST_SAID].replace("|", "/")


def write() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        real.gateway(Path(folder) / "real") as theirs,
        serving(Path(folder) / "ours") as ours,
    ):
        page = asyncio.run(compared(theirs, ours.ws, ours.token)) + command_line_table(ours, Path(folder) / "cli")
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    write()
