"""What an agent's jobs may do: no more than the agent that makes them."""

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct, structs

from ...core.channel import ChannelError, ChatAddress
from ...core.claw_methods import DenialCheck
from ...core.errors import ToolDenied
from ...core.jobs import AgentTurnPayload, CronJob, JobSpec
from ...core.model import Caller
from ...core.rpc import RpcError
from ...core.session_keys import split_key
from .defaults import cap_tools
from .delivery import DeliveryTarget, NoRoute, ResultDelivery, delivery_target
from .session_targets import SessionTargets

EFFECT_FIELDS: Final = ("payload", "agent_id", "session_key", "session_target", "delivery", "failure_alert")
"""Fields that decide who acts in a job, where, and who is notified."""


async def _check_own_session(caller: Caller, key: str) -> None:
    if key != caller.session:
        raise RpcError(f"session {key} is out of sight", kind="FORBIDDEN")


async def _allow_any_address(caller: Caller, address: ChatAddress) -> None:
    """Without channels no message is sent."""


class JobPermissions(Struct, frozen=True, kw_only=True):
    """What an agent itself may do, by the rules of the gateway."""

    spawnable_agents: Callable[[str], tuple[str, ...]] = lambda agent: ()
    """The other agents that an agent may start; `*` = any."""
    check_session: Callable[[Caller, str], Awaitable[None]] = _check_own_session
    """Raises RpcError unless the caller may see this session."""
    check_address: Callable[[Caller, ChatAddress], Awaitable[None]] = _allow_any_address
    """Raises ChannelError or ToolDenied unless the caller may send to this conversation."""
    tool_refusal: DenialCheck = lambda caller, tool: None

    def check_tool_use(self, tool: str, policy_caller: Caller | None) -> None:
        """Raises ToolDenied when this tool, whose effect the change has, is denied."""
        refusal = None if policy_caller is None else self.tool_refusal(policy_caller, tool)
        if refusal is not None:
            raise ToolDenied(refusal)

    async def check_job(
        self,
        job: CronJob,
        caller: Caller,
        targets: SessionTargets,
        delivery: ResultDelivery,
        *,
        policy_caller: Caller | None,
    ) -> None:
        """Raises RpcError or ToolDenied when a job would do what its maker may not. `policy_caller`: whom the rules
        about tools bind; None: an operator, whom none bind."""
        if policy_caller is None:
            return
        if caller.kind == "agent":
            await self._check_sessions(job, caller, targets)
        # The main session comes last: its conversation completes a target that names no channel.
        sessions = [*targets.explicit_sessions(job), targets.main_session(job)]
        for target in _targets(job.spec):
            try:
                await self.check_address(policy_caller, await delivery.resolve(target, sessions))
            except NoRoute:
                continue  # nothing will be sent
            except ChannelError as exc:
                raise RpcError(str(exc), kind="FORBIDDEN") from None

    async def _check_sessions(self, job: CronJob, caller: Caller, targets: SessionTargets) -> None:
        own, agent = split_key(caller.session or "")[0], targets.agent_id(job)
        helpers = self.spawnable_agents(own)
        if agent != own and "*" not in helpers and agent not in helpers:
            named = ", ".join(helpers) or "none"
            raise RpcError(f"{own} plans no jobs for {agent}; its subagents.allowAgents: {named}", kind="FORBIDDEN")
        for key in targets.explicit_sessions(job):
            await self.check_session(caller, key)


def changes_effects(before: JobSpec, after: JobSpec) -> bool:
    """Whether a change alters what a job does, or for whom."""
    return any(getattr(before, name) != getattr(after, name) for name in EFFECT_FIELDS)


def replace_spec(job: CronJob, spec: JobSpec, caller: Caller) -> CronJob:
    """The job with a new spec. One whose effects an agent changes is that agent's from then on, with its tools."""
    if not caller.acts_in_session or not changes_effects(job.spec, spec):
        return structs.replace(job, spec=spec)
    grant = caller.session_grant or caller.grant
    if isinstance(spec.payload, AgentTurnPayload) and grant is not None and grant.tools is not None:
        tools = cap_tools(spec.payload.tools_allow, caller)
        spec = structs.replace(spec, payload=structs.replace(spec.payload, tools_allow=tools))
    return structs.replace(job, spec=spec, origin=caller.session)


def _targets(spec: JobSpec) -> list[DeliveryTarget]:
    """Every conversation the job names for its results and failures."""
    delivery, alert = spec.delivery, spec.failure_alert
    named = (delivery, None if isinstance(alert, bool) else alert, delivery and delivery.failure_destination)
    targets = [delivery_target(place) for place in named if place is not None and place.mode != "webhook"]
    return [target for target in targets if target.is_explicit]
