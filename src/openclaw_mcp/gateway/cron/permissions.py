"""How far the jobs of an agent reach: no farther than the agent that plans them."""

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct, structs

from ...core.channel import ChannelError, ChatAddress
from ...core.claw_methods import DenialCheck
from ...core.errors import ToolDenied
from ...core.jobs import AgentTurnPayload, CronJob, JobSpec
from ...core.model import Caller
from ...core.rpc import RpcError
from .defaults import cap_tools
from .delivery import DeliveryTarget, NoRoute, ResultDelivery, delivery_target
from .session_targets import SessionTargets

EFFECT_FIELDS: Final = ("payload", "agent_id", "session_key", "session_target", "delivery", "failure_alert")
"""What decides who acts in a job, where, and who hears of it."""


async def _check_own_session(caller: Caller, key: str) -> None:
    if key != caller.session:
        raise RpcError(f"session {key} is out of sight", kind="FORBIDDEN")


async def _allow_any_address(caller: Caller, address: ChatAddress) -> None:
    """Where there are no conversations nobody is reached."""


class JobPermissions(Struct, frozen=True, kw_only=True):
    """What an agent itself may do, as the house decides it."""

    spawnable_agents: Callable[[str], tuple[str, ...]] = lambda agent: ()
    """The agents besides itself that an agent may set to work; `*` = any."""
    check_session: Callable[[Caller, str], Awaitable[None]] = _check_own_session
    """Raises Fault unless the caller may see this session."""
    check_address: Callable[[Caller, ChatAddress], Awaitable[None]] = _allow_any_address
    """Raises ChannelError or ToolDenied unless the caller may have words sent to this conversation."""
    tool_refusal: DenialCheck = lambda caller, tool: None

    def check_tool_use(self, tool: str, policy_caller: Caller | None) -> None:
        """Raises ToolDenied when a job is made or changed in a way that is this tool's, and it is refused."""
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
        """Raises Fault or ToolDenied when a job would do what its maker may not. `judged`: whom the rules about tools
        bind; None: an operator for itself, who may all of it."""
        if policy_caller is None:
            return
        if caller.kind == "agent":
            await self._check_sessions(job, caller, targets)
        sessions = [
            *targets.explicit_sessions(job),
            targets.main_session(job),
        ]  # the last is where a target that names no channel is looked for
        for target in _targets(job.spec):
            try:
                await self.check_address(policy_caller, await delivery.resolve(target, sessions))
            except NoRoute:
                continue  # it will reach nobody
            except ChannelError as exc:
                raise RpcError(str(exc), kind="FORBIDDEN") from None

    async def _check_sessions(self, job: CronJob, caller: Caller, targets: SessionTargets) -> None:
        own, agent = (caller.session or "agent::").split(":")[1], targets.agent_id(job)
        helpers = self.spawnable_agents(own)
        if agent != own and "*" not in helpers and agent not in helpers:
            named = ", ".join(helpers) or "none"
            raise RpcError(f"{own} plans no jobs for {agent}; its subagents.allowAgents: {named}", kind="FORBIDDEN")
        for key in targets.explicit_sessions(job):
            await self.check_session(caller, key)


def changes_effects(before: JobSpec, after: JobSpec) -> bool:
    """Whether a job does something else from now on, or for somebody else."""
    return any(getattr(before, name) != getattr(after, name) for name in EFFECT_FIELDS)


def replace_spec(job: CronJob, spec: JobSpec, caller: Caller) -> CronJob:
    """The job with a new spec. One whose deeds an agent has changed is that agent's from then on, with its tools."""
    if not caller.acts_in_session or not changes_effects(job.spec, spec):
        return structs.replace(job, spec=spec)
    grant = caller.session_grant or caller.grant
    if isinstance(spec.payload, AgentTurnPayload) and grant is not None and grant.tools is not None:
        tools = cap_tools(spec.payload.tools_allow, caller)
        spec = structs.replace(spec, payload=structs.replace(spec.payload, tools_allow=tools))
    return structs.replace(job, spec=spec, origin=caller.session)


def _targets(spec: JobSpec) -> list[DeliveryTarget]:
    """Every conversation that somebody named for the job's results and failures."""
    delivery, alert = spec.delivery, spec.failure_alert
    said = [delivery, alert, None if delivery is None else delivery.failure_destination]
    targets = [
        delivery_target(one) for one in said if getattr(one, "mode", "none") != "webhook" and hasattr(one, "channel")
    ]
    return [target for target in targets if target.is_explicit]
