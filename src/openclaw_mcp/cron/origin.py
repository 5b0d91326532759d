"""What a job gets from whoever makes it: an agent's own session, its conversation, no more tools than it has."""

from typing import Any, Final

from ..core.model import Caller, Json
from .reading import unwrapped

EVERY_TOOL: Final = ["*"]
_INSIDE: Final = ("webchat", "local-agent", "internal")
"""What is called a channel and leads nowhere outside."""


def filled(given: Any, caller: Caller, method: str = "cron.add") -> Json:
    """The job as written, with what its maker left open. A field given as null stays empty."""
    said = unwrapped(given, method)
    payload = said.get("payload")
    if caller.kind != "agent":
        if isinstance(payload, dict) and payload.get("message"):
            said["payload"] = {"toolsAllow": EVERY_TOOL, **payload}
        return said
    grant = caller.grant
    if "sessionKey" not in said and caller.session:
        said["sessionKey"] = caller.session
    agent = (grant and grant.agent) or _agent_of(caller.session)
    if "agentId" not in said and agent:
        said["agentId"] = agent
    if isinstance(payload, dict) and "text" not in payload:
        said["payload"] = {**payload, "toolsAllow": _capped(payload.get("toolsAllow"), caller)}
    return said | _delivery(said, caller)


def _capped(wanted: Any, caller: Caller) -> list[str]:
    """What the job's turns may use: what was asked for, and no more than its maker may use itself."""
    asked = [str(name) for name in wanted] if isinstance(wanted, list) else None
    own = None if caller.grant is None else caller.grant.tools
    if own is None:
        return asked if asked is not None else EVERY_TOOL
    if asked is None or "*" in asked:
        return sorted(own)
    return asked if "*" in own else [name for name in asked if name in own]


def _delivery(said: Json, caller: Caller) -> Json:
    grant, delivery = caller.grant, said.get("delivery")
    if grant is None or grant.channel is None or grant.to is None or grant.channel in _INSIDE:
        return {}
    if delivery is None and "delivery" in said:
        return {}
    asked = delivery if isinstance(delivery, dict) else {}
    named = asked.get("channel") not in (None, "last") or asked.get("to")
    if str(asked.get("mode", "announce")).lower() != "announce" or named:
        return {}
    payload = said.get("payload")
    if isinstance(payload, dict) and (payload.get("kind") == "systemEvent" or "text" in payload):
        return {}
    where = {"channel": grant.channel, "to": grant.to, "accountId": grant.account, "threadId": grant.thread}
    return {"delivery": {**asked, "mode": "announce", **{n: v for n, v in where.items() if v is not None}}}


def _agent_of(session: str | None) -> str | None:
    """`agent:<id>:…` names it."""
    parts = (session or "").split(":")
    return parts[1] if len(parts) > 2 and parts[0] == "agent" else None
