"""The gateway put together: config, store, tools, runs, channels, nodes and cron, built in one order and run."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...config.file import ConfigFile, Snapshot, invalid_config_error
from ...config.locations import store_location
from ...config.redaction import MASK, redact_secrets
from ...config.roster import roster_from_config
from ...config.rpc_methods import ConfigService, ConfigUpdate
from ...config.schema import NO_EFFECT
from ...core import session_keys
from ...core.agents import AgentRoster
from ...core.approvals import CommandQuestion
from ...core.config.config import Config
from ...core.errors import BadRequest
from ...core.model import Caller
from ...core.ports import AppDirectory
from ...core.providers import MODEL_RUNTIMES
from ...core.rpc import RpcModule
from ...core.sessions import RunClaim
from ...net.orphan_reaper import OrphanReaper
from ...net.state_dir import audit_key
from ...net.tasks import Tasks
from ...store.cron_jobs import SqlCronJobRepository
from ...store.sessions import SqlSessionRepository
from ...store.small_repositories import SqlAuditTrail, SqlConfigHistory, SqlDeviceRepository
from ...store.store import open_store
from ...store.subagents import SqlSubagentRepository
from ...store.usage import SqlUsage
from ...tools import policy_rules
from ...tools.audit_writer import AuditQueue, AuditWriter
from ...tools.config_policy import ConfigPolicy
from ...tools.registry import ToolRegistry
from ..agents.models.model_methods import ModelMethods
from ..agents.subagents.agent_messages import AgentMessenger
from ..agents.subagents.rpc_methods import DelegationMethods
from ..agents.subagents.session_visibility import SessionVisibility
from ..agents.subagents.settings import DelegationSettings, parse_delegation_settings
from ..agents.subagents.subagents import SubagentSupervisor
from ..agents.subagents.task_methods import TaskMethods
from ..agents.subagents.tools import GatewayTools
from ..channels.channel_types import CHANNEL_FACTORIES
from ..cron.cron_tool import CronTool
from ..cron.permissions import JobPermissions
from ..cron.rpc_methods import CronMethods
from ..nodes.approval_queue import ExecApprovalQueue
from ..nodes.conversation_questions import ConversationQuestions
from ..rpc.attach import AttachMethods
from ..rpc.connections import Connections
from ..runs.usage_methods import UsageMethods
from .absent_subjects import AbsentSubjects
from .app_tools import AppToolSources
from .callers import SessionCallers
from .channels import build_channels, run_channels
from .chat_completions import ChatCompletionsApi
from .cli_runtimes import cli_runtimes
from .gateway import GatewayServer
from .mcp_servers import McpServers
from .model_runtimes import model_runtimes
from .nodes import DatabasePairingStorage, open_nodes
from .openai_runs import OpenAiRuns
from .responses import ResponsesApi
from .restart import InPlaceRestart
from .runs import StoreServices, build_store_services
from .status import SessionStatus

logger = logging.getLogger(__name__)

GATEWAY_SOURCE: Final = "gateway"
"""The source of the gateway's own tools."""
RESTART_EXPECTED_MS: Final = 1500  # milliseconds; the duration of a restart as clients are notified of it


class GatewayOptions(Struct, frozen=True, kw_only=True):
    """What stays the same from one start to the next."""

    folder: Path
    token: str
    hosts: frozenset[str] = frozenset()
    accepts_remote: bool = False
    """Whether other machines reach it."""
    apps: AppDirectory | None = None
    """The apps of a proxy in this process."""
    is_restart: bool = False
    """Whether this start is a restart."""


class AssembledGateway(Struct, frozen=True, kw_only=True):
    gateway: GatewayServer
    restart: InPlaceRestart
    session_status: SessionStatus


async def serve(options: GatewayOptions, listener: socket.socket, *, ready: Callable[[], None] | None = None) -> bool:
    """Serve until stopped. True: a restart was requested.

    Raises StoreDamaged, ConfigInvalid or StateBroken before anything is served.
    """
    async with assemble_gateway(options, local_address(listener)) as assembled, Tasks("gateway") as tasks:
        gateway, restart_due = assembled.gateway, asyncio.Event()

        async def wait_for_restart() -> None:
            await assembled.restart.wait_until_due()
            restart_due.set()

        # A failure of either is logged and tried again; in particular it is not taken for a request to restart.
        tasks.loop(assembled.session_status.refresh_on_change, name="session count", on_failure="restart")
        tasks.loop(wait_for_restart, name="restart", on_failure="restart")
        due = tasks.spawn(restart_due.wait(), name="restart due")
        serving = tasks.spawn(gateway.serve(listener, ready=ready), name="serve", on_failure="raise")
        await asyncio.wait({serving, due}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
            return False
        logger.info("gateway: restarting in place")
        gateway.rpc_server.shut_down("gateway restarting", restart_expected_ms=RESTART_EXPECTED_MS)
        return True


@asynccontextmanager
async def assemble_gateway(  # noqa: PLR0915  (composition: read from top to bottom, a part at a time)
    options: GatewayOptions, address: str
) -> AsyncIterator[AssembledGateway]:
    """Every part, built from the parts before it; `address` is where programs of this machine reach the gateway.

    First all parts are constructed, each with everything it needs. Then they are entered in the order of the last
    block: what handles the end of a run before the first run begins, and runs before the channels that start them.
    Leaving closes them in reverse.
    """
    folder = options.folder
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context

        # ---- config and store ----
        file = await asyncio.to_thread(ConfigFile, folder)
        store = await enter(open_store(store_location(folder, _read_config(file))))
        connections = Connections()
        publish = connections.publish
        config = ConfigService(file, publish, SqlConfigHistory(store))
        roster = _make_roster_reader(config)

        def current() -> Config:
            return config.current.config

        # ---- tools, their rules and their audit ----
        audit_queue = AuditQueue()
        audit = await enter(AuditWriter(audit_queue, SqlAuditTrail(store)))
        registry = ToolRegistry()
        policy = ConfigPolicy(_read_rules(config.current))
        servers = await enter(McpServers(registry, current().mcp.servers))
        apps = stack.enter_context(AppToolSources(registry, options.apps, roster))
        callers = SessionCallers(
            sessions=SqlSessionRepository(store), policy=policy, apps=apps, roster=roster, config=current
        )
        gateway = GatewayServer(
            folder, options.token, registry=registry, policy=policy, servers=servers.pool, sessions=callers,
            connections=connections,
            pairing_store=DatabasePairingStorage(SqlDeviceRepository(store), folder / "pairing.json"),
            hosts=options.hosts, accepts_remote=options.accepts_remote, audit=audit_queue.write,
            trusted_proxies=lambda: current().gateway.trusted_proxies,
            digest_key=await asyncio.to_thread(audit_key, folder),
        )  # fmt: skip
        registry.add(
            GATEWAY_SOURCE,
            GatewayTools(gateway.call_method, main_session=lambda: session_keys.normalize_key("main", roster())),
        )

        # ---- runs, channels, sub-agents ----
        async def make_run_caller(claim: RunClaim) -> Caller:
            await config.refresh()  # the first step of a turn: it uses every change written before it began
            return await callers.run_caller(claim)

        models = await enter(model_runtimes(folder, current, roster))
        grants = gateway.grants

        async def list_tools(caller: Caller) -> tuple[str, ...]:
            further = await gateway.further_tools.list_tools(caller)
            return (*grants.list_tools(caller), *(spec.name for spec in further))

        async def stop_subagents(key: str) -> int:
            return await supervisor.kill_children(key)

        clis = await enter(cli_runtimes(folder, roster, url=address, grants=grants, list_tools=list_tools))
        catalogue = ModelMethods(config=current, roster=roster)
        services = build_store_services(
            store, publish, roster=roster, tools=gateway.tools, runtimes={**models.by_name, **clis},
            make_caller=make_run_caller, media_settings=lambda: current().media, list_models=catalogue.list_models,
            model_problem=lambda agent, model: _model_problem(agent, model, roster(), current()),
            stop_subagents=stop_subagents,
        )  # fmt: skip
        sessions, runs = services.sessions, services.runs
        approval_queue = ExecApprovalQueue()
        questions = ConversationQuestions(approval_queue)
        channels = build_channels(
            services, publish, config=config, roster=roster, folder=folder, tool_refusal=policy.refusal_reason,
            token=options.token, factories=CHANNEL_FACTORIES, questions=questions,
        )  # fmt: skip

        def delegation_settings() -> DelegationSettings:
            return parse_delegation_settings(current())

        subagents = SqlSubagentRepository(store)
        visibility = SessionVisibility(sessions, subagents, runs, settings=delegation_settings, roster=roster)
        messenger = AgentMessenger(
            sessions, runs, settings=delegation_settings, roster=roster, channels=channels.channels
        )
        supervisor = SubagentSupervisor(
            subagents, sessions, runs, publish, settings=delegation_settings, roster=roster,
            channels=channels.channels,
        )  # fmt: skip
        delegation = DelegationMethods(
            supervisor,
            messenger,
            visibility,
            settings=delegation_settings,
            roster=roster,
            model_problem=lambda agent, model: _model_problem(agent, model, roster(), current()),
        )

        # ---- cron, restart, reports ----
        reaper = OrphanReaper()
        stack.push_async_callback(asyncio.to_thread, reaper.close)
        cron = CronMethods(
            SqlCronJobRepository(store),
            runs,
            sessions,
            publish,
            store_path=store.location,
            roster=roster,
            settings=lambda: current().cron,
            channels=channels.channels,
            permissions=JobPermissions(
                spawnable_agents=lambda agent: delegation_settings().spawnable_agents(agent),
                check_session=visibility.check_visible,
                check_address=channels.authorize_send,
                tool_refusal=policy.refusal_reason,
            ),
            redact=lambda part: redact_secrets(part, MASK),
            guard=reaper,
        )
        restart = InPlaceRestart(lambda: config.current, lambda: runs.is_idle, is_restart=options.is_restart)
        session_status = SessionStatus(sessions, store.location, roster)
        openai = OpenAiRuns(runs=runs, roster=roster, has_token=gateway.access.has_token)
        completions = ChatCompletionsApi(
            openai=openai, is_enabled=lambda: current().gateway.http.endpoints.chat_completions.enabled
        )
        responses = ResponsesApi(openai=openai, is_enabled=lambda: current().gateway.http.endpoints.responses.enabled)
        registry.add("message", channels.tool)
        registry.add("cron", CronTool(cron, sessions))

        def on_config_change(change: ConfigUpdate) -> None:
            gateway.apply_rules(_read_rules(change.after))
            servers.update(change.after.config.mcp.servers)
            restart.on_config_change(change)

        for disconnect in (
            config.changed.connect(on_config_change),
            runs.events.connect(restart.on_run_event),
            runs.events.connect(session_status.on_run_event),
            questions.asked.connect(lambda asked: _publish_phase(services, asked, "waiting-approval")),
            questions.ended.connect(lambda end: _publish_phase(services, end.question, "approval-resolved")),
        ):
            stack.callback(disconnect)

        # ---- everything is built: run it ----
        await enter(messenger)
        await enter(supervisor)
        await enter(services)
        await enter(config)
        nodes = await enter(
            open_nodes(
                gateway, services.nodes, config=current, approval_queue=approval_queue,
                find_active_run=runs.find_active_run, is_reachable=channels.channels.reaches_owner,
            )
        )  # fmt: skip
        stack.callback(config.changed.connect(lambda _: nodes.refresh_all()))
        await enter(run_channels(channels.channels, config))
        await session_status.refresh()
        modules: tuple[RpcModule, ...] = (
            *(visibility.guard_methods(delegation.cascade_stops(module)) for module in services.rpc_modules),
            delegation,
            TaskMethods(supervisor, subagents, visibility, runs),
            audit,
            config,
            restart,
            session_status,
            completions,
            responses,
            catalogue,
            models,
            UsageMethods(usage=SqlUsage(store), roster=roster),
            AbsentSubjects(),
            AttachMethods(grants=grants, url=address, sessions=callers, list_tools=list_tools),
            *channels.rpc_modules,
            cron,
        )
        for module in modules:
            gateway.add_module(module)
        await enter(cron)
        yield AssembledGateway(gateway=gateway, restart=restart, session_status=session_status)


def _publish_phase(services: StoreServices, question: CommandQuestion, phase: str) -> None:
    """After the event of the question itself: a client that is sent that one needs no other notice."""
    if question.origin.run_id is not None:
        asyncio.get_running_loop().call_soon(services.run_events.publish_phase, question.origin.run_id, phase)


def _read_config(file: ConfigFile) -> Config:
    """Raises ConfigInvalid: an invalid config may name another store than the one that is meant."""
    snapshot = file.read()
    if not snapshot.is_valid:
        raise invalid_config_error(snapshot.issues, snapshot.path)
    if unused := [warning["path"] for warning in file.schema.find_unused(snapshot.parsed)]:
        logger.warning("config: %s: %s", ", ".join(unused), NO_EFFECT)
    return snapshot.config


def _read_rules(snapshot: Snapshot) -> policy_rules.PolicyRules:
    rules = policy_rules.from_config(snapshot.resolved)
    if rules.problem is not None:
        logger.error("policy: every tool is denied to everyone (%s); correct the config", rules.problem)
    return rules


def _model_problem(agent: str, model: str, roster: AgentRoster, config: Config) -> str | None:
    """Why an agent can't work with a model. The demo and the CLIs are not checked: their model names are their own."""
    runtime = next((profile.runtime for profile in roster.agents if profile.id == agent), None)
    if runtime not in MODEL_RUNTIMES:
        return None
    # Here for start-up and memory: only a request that names a model asks.
    from ..agents.models.settings import choose_model, read_providers

    try:
        choose_model(model, read_providers(config.models), namesake=runtime)
    except BadRequest as exc:
        return str(exc)
    return None


def _make_roster_reader(config: ConfigService) -> Callable[[], AgentRoster]:
    """The agents of the current config, built again when it has changed."""
    rosters: dict[str, AgentRoster] = {}

    def roster() -> AgentRoster:
        current = config.current
        if current.hash not in rosters:
            rosters.clear()
            rosters[current.hash] = roster_from_config(current.config)
        return rosters[current.hash]

    return roster


def local_address(listener: socket.socket) -> str:
    """Where programs on this machine reach the gateway."""
    host, port = listener.getsockname()[:2]
    near = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(host, host)
    return f"ws://{near}:{port}"
