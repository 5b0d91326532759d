"""What a job gets from whoever makes it: an agent's own session, its conversation, no more tools than it has."""

from typing import Any, Final

from ...core.channel import ChatAddress
from ...core.jobs import CronJob, JobSpec
from ...core.model import Caller, Grant, Json
from ...core.providers import model_from_settings
from ...core.repositories import SessionRepository
from ...core.rpc import RpcError
from ...core.session_target import find_root_session
from .parsing import unwrap_job

EVERY_TOOL: Final = ["*"]
_INTERNAL_CHANNELS: Final = ("webchat", "local-agent", "internal")
"""What is called a channel and leads nowhere outside."""


def fill_defaults(params: Any, caller: Caller, method: str = "cron.add") -> Json:
    """The job as written, with what its maker left open. A field given as null stays empty."""
    said = unwrap_job(params, method)
    payload = said.get("payload")
    if not caller.acts_in_session:
        if isinstance(payload, dict) and payload.get("message"):
            said["payload"] = {"toolsAllow": EVERY_TOOL, **payload}
        return said
    grant = caller.session_grant or caller.grant
    if "sessionKey" not in said and caller.session:
        said["sessionKey"] = caller.session
    agent = (grant and grant.agent) or _agent_id(caller.session)
    if "agentId" not in said and agent:
        said["agentId"] = agent
    if isinstance(payload, dict) and "text" not in payload:
        said["payload"] = {**payload, "toolsAllow": cap_tools(payload.get("toolsAllow"), caller)}
    return said | _default_delivery(said, caller)


def cap_tools(wanted: Any, caller: Caller) -> list[str]:
    """What the job's turns may use: what was asked for, and no more than its maker may use itself."""
    asked = [str(name) for name in wanted] if isinstance(wanted, list) else None
    grant = caller.session_grant or caller.grant
    own = None if grant is None else grant.tools
    if own is None:
        return asked if asked is not None else EVERY_TOOL
    if asked is None or "*" in asked:
        return sorted(own)
    return asked if "*" in own else [name for name in asked if name in own]


def _default_delivery(fields: Json, caller: Caller) -> Json:
    grant, delivery = caller.session_grant or caller.grant, fields.get("delivery")
    if grant is None or grant.channel is None or grant.to is None or grant.channel in _INTERNAL_CHANNELS:
        return {}
    if delivery is None and "delivery" in fields:
        return {}
    asked = delivery if isinstance(delivery, dict) else {}
    named = asked.get("channel") not in (None, "last") or asked.get("to")
    if str(asked.get("mode", "announce")).lower() != "announce" or named:
        return {}
    payload = fields.get("payload")
    if isinstance(payload, dict) and (payload.get("kind") == "systemEvent" or "text" in payload):
        return {}
    where = {"channel": grant.channel, "to": grant.to, "accountId": grant.account, "threadId": grant.thread}
    return {"delivery": {**asked, "mode": "announce", **{n: v for n, v in where.items() if v is not None}}}


async def build_grant(job: CronJob, address: ChatAddress | None, sessions: SessionRepository) -> Grant:
    """For whom a job's run acts: nobody, under the rules of the group it was made in and of the model that made it.
    `there`: its conversation."""
    parts = (await find_root_session(job.origin, sessions) if job.origin else "").split(":", 4)
    channel, group = (parts[2], parts[4]) if len(parts) == 5 and parts[3] in ("group", "channel") else (None, None)
    return Grant(
        channel=channel,
        group=group,
        led_by=await _maker_models(job.origin, sessions) if job.origin else (),
        delivers_to=None if address is None else (address.channel, address.account, address.to),
        sends_anywhere=job.origin is None,
    )


async def _maker_models(origin: str, sessions: SessionRepository) -> tuple[str, ...]:
    """As in `Grant.led_by`."""
    session = await sessions.get(origin)
    agent, asked = _agent_id(origin), None if session is None else model_from_settings(session.entry)
    return (f"@{agent}:{asked}" if asked else f"@{agent}",) if agent else ()


def check_webhooks(job: CronJob, spec: JobSpec, caller: Caller) -> JobSpec:
    """The new spec of a job. An operator's is posted with `cron.webhookToken`: an agent names no address for that."""
    if caller.acts_in_session and job.origin is None and _webhook_urls(spec) - _webhook_urls(job.spec):
        words = "where an operator's job posts its results is changed by operators; make a job of your own"
        raise RpcError(words, kind="FORBIDDEN")
    return spec


def _webhook_urls(spec: JobSpec) -> set[str]:
    """Every address this job may post to."""
    delivery, alert = spec.delivery, spec.failure_alert
    places: list[Any] = [delivery, alert]
    if delivery is not None:
        places += [delivery.failure_destination, delivery.completion_destination]
    return {place.to for place in places if getattr(place, "mode", None) == "webhook" and place.to}


def _agent_id(session: str | None) -> str | None:
    """`agent:<id>:…` names it."""
    parts = (session or "").split(":")
    return parts[1] if len(parts) > 2 and parts[0] == "agent" else None
