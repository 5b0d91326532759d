"""What a job takes from its maker: an agent's session, its conversation, and no more tools than the agent has."""

from typing import Any, Final

from ...core.channel import ChatAddress
from ...core.jobs import CronJob, JobSpec, WebhookDestination
from ...core.json_values import drop_none
from ...core.model import Caller, Grant, Json
from ...core.providers import model_from_settings
from ...core.repositories import SessionRepository
from ...core.rpc import RpcError
from ...core.session_target import find_root_session, parse_session_key
from .delivery import Destination
from .parsing import unwrap_job

EVERY_TOOL: Final = ["*"]
_INTERNAL_CHANNELS: Final = ("webchat", "local-agent", "internal")
"""Channel names that reach no person."""


def fill_defaults(params: Any, caller: Caller, method: str = "cron.add") -> Json:
    """The job as written, with defaults from its maker. A field given as null stays empty."""
    job = unwrap_job(params, method)
    payload = job.get("payload")
    if not caller.acts_in_session:
        if isinstance(payload, dict) and payload.get("message"):
            job["payload"] = {"toolsAllow": EVERY_TOOL, **payload}
        return job
    grant = caller.session_grant or caller.grant
    if "sessionKey" not in job and caller.session:
        job["sessionKey"] = caller.session
    agent = (grant and grant.agent) or parse_session_key(caller.session).agent
    if "agentId" not in job and agent:
        job["agentId"] = agent
    if isinstance(payload, dict) and "text" not in payload:
        job["payload"] = {**payload, "toolsAllow": cap_tools(payload.get("toolsAllow"), caller)}
    return job | _default_delivery(job, caller)


def cap_tools(wanted: Any, caller: Caller) -> list[str]:
    """The tools of the job's turns: those asked for, as far as its maker may use them itself."""
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
    place = {"channel": grant.channel, "to": grant.to, "accountId": grant.account, "threadId": grant.thread}
    return {"delivery": {**asked, "mode": "announce", **drop_none(place)}}


async def build_grant(job: CronJob, address: ChatAddress | None, sessions: SessionRepository) -> Grant:
    """The grant of a job's run: it acts for no person, under the rules of the group it was made in and of the model
    that made it. `address`: the conversation its result goes to."""
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
    agent, asked = parse_session_key(origin).agent, None if session is None else model_from_settings(session.entry)
    return (f"@{agent}:{asked}" if asked else f"@{agent}",) if agent else ()


def check_webhooks(job: CronJob, spec: JobSpec, caller: Caller) -> JobSpec:
    """The new spec of a job. An operator's webhook gets `cron.webhookToken`, so an agent may not choose its address."""
    if caller.acts_in_session and job.origin is None and _webhook_urls(spec) - _webhook_urls(job.spec):
        raise RpcError(
            "only operators change where an operator's job posts its results; make a job of your own", kind="FORBIDDEN"
        )
    return spec


def _webhook_urls(spec: JobSpec) -> set[str]:
    delivery, alert = spec.delivery, None if isinstance(spec.failure_alert, bool) else spec.failure_alert
    places: list[Destination | WebhookDestination | None] = [delivery, alert]
    if delivery is not None:
        places += [delivery.failure_destination, delivery.completion_destination]
    return {place.to for place in places if place is not None and place.mode == "webhook" and place.to}
