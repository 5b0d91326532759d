"""How far the jobs of an agent reach: no farther than the agent that plans them."""

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct, structs

from ...core.channel import Address, ChannelError
from ...core.claw_methods import Judge
from ...core.errors import ToolDenied
from ...core.jobs import AgentTurn, Job, Spec
from ...core.model import Caller
from ...core.rpc import Fault
from .defaults import capped
from .delivery import NoRoute, Post, Target, target_of
from .session_targets import Homes

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
    """Raises ChannelError or ToolDenied unless the caller may have words sent to this conversation."""
    judge: Judge = lambda caller, tool: None

    def use(self, tool: str, judged: Caller | None) -> None:
        """Raises ToolDenied when a job is made or changed in a way that is this tool's, and it is refused."""
        refusal = None if judged is None else self.judge(judged, tool)
        if refusal is not None:
            raise ToolDenied(refusal)

    async def check(self, job: Job, caller: Caller, homes: Homes, post: Post, *, judged: Caller | None) -> None:
        """Raises Fault or ToolDenied when a job would do what its maker may not. `judged`: whom the rules about tools
        bind; None: an operator for itself, who may all of it."""
        if judged is None:
            return
        if caller.kind == "agent":
            await self._check_sessions(job, caller, homes)
        sessions = [
            *homes.named(job),
            homes.main(job),
        ]  # the last is where a target that names no channel is looked for
        for target in _targets(job.spec):
            try:
                await self.send(judged, await post.resolve(target, sessions))
            except NoRoute:
                continue  # it will reach nobody
            except ChannelError as exc:
                raise Fault(str(exc), kind="FORBIDDEN") from None

    async def _check_sessions(self, job: Job, caller: Caller, homes: Homes) -> None:
        own, agent = (caller.session or "agent::").split(":")[1], homes.agent(job)
        helpers = self.helpers(own)
        if agent != own and "*" not in helpers and agent not in helpers:
            named = ", ".join(helpers) or "none"
            raise Fault(f"{own} plans no jobs for {agent}; its subagents.allowAgents: {named}", kind="FORBIDDEN")
        for key in homes.named(job):
            await self.see(caller, key)


def other_deeds(before: Spec, after: Spec) -> bool:
    """Whether a job does something else from now on, or for somebody else."""
    return any(getattr(before, name) != getattr(after, name) for name in DEEDS)


def taken_over(job: Job, spec: Spec, caller: Caller) -> Job:
    """The job with a new spec. One whose deeds an agent has changed is that agent's from then on, with its tools."""
    if not caller.bound or not other_deeds(job.spec, spec):
        return structs.replace(job, spec=spec)
    grant = caller.acting or caller.grant
    if isinstance(spec.payload, AgentTurn) and grant is not None and grant.tools is not None:
        tools = capped(spec.payload.tools_allow, caller)
        spec = structs.replace(spec, payload=structs.replace(spec.payload, tools_allow=tools))
    return structs.replace(job, spec=spec, origin=caller.session)


def _targets(spec: Spec) -> list[Target]:
    """Every conversation that somebody named for the job's results and failures."""
    delivery, alert = spec.delivery, spec.failure_alert
    said = [delivery, alert, None if delivery is None else delivery.failure_destination]
    targets = [target_of(one) for one in said if getattr(one, "mode", "none") != "webhook" and hasattr(one, "channel")]
    return [target for target in targets if target.said]
