"""How far the jobs of an agent reach: no farther than the agent that plans them."""

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct, structs

from ..core.channel import Address, ChannelError
from ..core.jobs import AgentTurn, Job, Spec
from ..core.model import Caller
from ..core.rpc import Fault
from .delivery import NoRoute, Post, Target, target_of
from .homes import Homes
from .origin import capped

DEEDS: Final = ("payload", "agent_id", "session_key", "session_target", "delivery", "failure_alert")
"""What decides who acts in a job, where, and who hears of it."""


async def _own_session(caller: Caller, key: str) -> None:
    if key != caller.session:
        raise Fault(f"session {key} is out of sight", kind="FORBIDDEN")


async def _anywhere(caller: Caller, there: Address) -> None:
    """Where there are no conversations nobody is reached."""


class Reach(Struct, frozen=True, kw_only=True):
    """What an agent itself may do, as the house decides it."""

    helpers: Callable[[str], tuple[str, ...]] = lambda agent: ()
    """The agents besides itself that an agent may set to work; `*` = any."""
    see: Callable[[Caller, str], Awaitable[None]] = _own_session
    """Raises Fault unless the caller may see this session."""
    send: Callable[[Caller, Address], Awaitable[None]] = _anywhere
    """Raises ChannelError unless the caller may write to this conversation."""

    async def check(self, job: Job, caller: Caller, homes: Homes, post: Post) -> None:
        """Raises Fault when an agent's job would do what the agent may not."""
        if caller.kind != "agent":
            return
        own, agent = (caller.session or "agent::").split(":")[1], homes.agent(job)
        helpers = self.helpers(own)
        if agent != own and "*" not in helpers and agent not in helpers:
            named = ", ".join(helpers) or "none"
            raise Fault(f"{own} plans no jobs for {agent}; its subagents.allowAgents: {named}", kind="FORBIDDEN")
        sessions = homes.named(job)
        for key in sessions:
            await self.see(caller, key)
        sessions.append(homes.main(job))  # where a target that names no channel is looked for in the end
        for target in _targets(job.spec):
            try:
                await self.send(caller, await post.resolve(target, sessions))
            except NoRoute:
                continue  # it will reach nobody
            except ChannelError as exc:
                raise Fault(str(exc), kind="FORBIDDEN") from None


def taken_over(job: Job, spec: Spec, caller: Caller) -> Job:
    """The job with a new spec. One whose deeds an agent has changed is that agent's from then on, with its tools."""
    if caller.kind != "agent" or all(getattr(spec, name) == getattr(job.spec, name) for name in DEEDS):
        return structs.replace(job, spec=spec)
    if isinstance(spec.payload, AgentTurn) and caller.grant is not None and caller.grant.tools is not None:
        tools = capped(spec.payload.tools_allow, caller)
        spec = structs.replace(spec, payload=structs.replace(spec.payload, tools_allow=tools))
    return structs.replace(job, spec=spec, origin=caller.session)


def _targets(spec: Spec) -> list[Target]:
    """Every conversation that somebody named for the job's results and failures."""
    delivery, alert = spec.delivery, spec.failure_alert
    said = [delivery, alert, None if delivery is None else delivery.failure_destination]
    targets = [target_of(one) for one in said if getattr(one, "mode", "none") != "webhook" and hasattr(one, "channel")]
    return [target for target in targets if target.said]
