"""Opens the store and builds the services that use it: sessions, runs, their methods and events."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Self

import msgspec
from msgspec import Struct

from ...core.agents import AgentRoster
from ...core.chat_commands import CommandRunner
from ...core.config.tools import MediaSettings
from ...core.model import Caller
from ...core.owner import is_owner
from ...core.ports import AgentRuntime, Toolbox
from ...core.providers import model_for_run
from ...core.rpc import Publish, RpcModule
from ...core.sessions import Run, RunClaim, RunOptions, Session
from ...store.runs import SqlRunRepository
from ...store.sessions import SqlSessionRepository
from ...store.small_repositories import SqlIdempotencyRepository, SqlNodeRepository
from ...store.store import SqlStore, open_store
from ...tools.policy_rules import PolicyRules
from ..agents.attachments.reader import AttachmentReader
from ..agents.demo import DemoAgent
from ..agents.missing import UnconfiguredRuntime
from ..runs.runs import LocalRunExecutor
from ..sessions.chat_methods import ChatMethods
from ..sessions.command_runner import ChatCommandRunner, ModelCheck, StopSubagents
from ..sessions.run_events import RunEventPublisher
from ..sessions.session_methods import SessionMethods
from ..sessions.startup_methods import StartupMethods


class StoreServices(Struct, frozen=True, kw_only=True):
    """The store, its repositories, and the services built on them."""

    store: SqlStore
    sessions: SqlSessionRepository
    runs: LocalRunExecutor
    nodes: SqlNodeRepository
    rpc_modules: tuple[RpcModule, ...]
    run_command: CommandRunner
    """Runs a chat command in a session."""
    run_events: RunEventPublisher

    async def __aenter__(self) -> Self:
        """Claim the runs that wait."""
        await self.runs.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        try:
            await self.runs.__aexit__(*exc)
        finally:
            self.run_events.close()


RunScope = Callable[["StoreServices"], AbstractAsyncContextManager[object]]


async def agent_caller(claim: RunClaim) -> Caller:
    """The caller of a run where there are no policy rules."""
    return caller_for_session(claim.session, claim.run.options)


async def no_subagents(key: str) -> int:
    """Where no session starts any: none is running."""
    return 0


async def caller_under_rules(claim: RunClaim, rules: PolicyRules) -> Caller:
    """The caller of a run under these rules."""
    return caller_for_session(claim.session, claim.run.options, rules=rules)


def caller_for_session(
    session: Session, options: RunOptions, *, rules: PolicyRules | None = None, apps: Iterable[str] = ()
) -> Caller:
    """The caller that a session's agent calls tools as: the agent, in this session, for the person who started the run.

    `apps` are the tool sources of apps in this session. The caller is equal for all runs of a session that the same
    person started, so that the dispatcher's caches serve them all.
    """
    given = options.grant
    owner = given.owner
    if given.sender is not None:
        owners, channel = rules.commands.owner_allow_from if rules else (), given.channel or ""
        owner = is_owner(given.sender, owners, channel=channel, vouched=given.owner)
    grant = msgspec.structs.replace(
        given,
        agent=session.agent_id,
        models=rules.possible_models(session.agent_id, model_for_run(options, session.entry)) if rules else (),
        owner=owner,
        depth=max(given.depth, session.spawn_depth or 0),
        spawned_by=session.spawned_by,
        # A session's own folder is the owner's choice for the owner's work, not for that of others in the session.
        folder=_folder_or_none(options.cwd or (session.entry.get("cwd") if owner else None)),
        tools=_intersect_tools(given.tools, options.tools_allow),
    )
    scopes = frozenset({"*", *(f"source:{name}" for name in apps)})
    return Caller(
        kind="agent", name=session.agent_id, scopes=scopes, session=session.key, entry_point="agent", grant=grant
    )


def _folder_or_none(chosen: object) -> str | None:
    return chosen if isinstance(chosen, str) and chosen else None


def _intersect_tools(granted: frozenset[str] | None, requested: list[str] | None) -> frozenset[str] | None:
    """The tools a run is limited to: those its grant names, those its request names, or those in both."""
    if requested is None:
        return granted
    named = frozenset(requested)
    return named if granted is None else granted & named


@asynccontextmanager
async def open_store_services(
    location: str, publish: Publish, *, run_scope: RunScope | None = None, **options: Any
) -> AsyncIterator[StoreServices]:
    """Open the store, end what a crash left, claim what waits; on leaving, stop the runs and write what is pending.

    `run_scope` is entered before the first run begins and left after the last has ended; `options` are those of
    `build_store_services`.
    """
    async with open_store(location) as store:
        services = build_store_services(store, publish, **options)
        async with nullcontext() if run_scope is None else run_scope(services), services:
            yield services


def build_store_services(
    store: SqlStore,
    publish: Publish,
    *,
    roster: Callable[[], AgentRoster] = AgentRoster,
    runtimes: Mapping[str, AgentRuntime] | None = None,
    tools: Toolbox | None = None,
    make_caller: Callable[[RunClaim], Awaitable[Caller]] = agent_caller,
    media_settings: Callable[[], MediaSettings] = MediaSettings,
    list_models: Callable[[str], Sequence[Any]] = lambda agent_id: (),
    model_problem: ModelCheck = lambda agent, model: None,
    stop_subagents: StopSubagents = no_subagents,
) -> StoreServices:
    """The services on an open store. No run begins before they are entered.

    `runtimes`, by name, may grow while this lasts; `demo` is always there. `media_settings` reads the config's
    `tools.media`; `list_models` are the models of an agent, as clients list them; `model_problem` says why an agent
    can't work with a model; `stop_subagents` ends those of a session.
    """
    known: Mapping[str, AgentRuntime] = {} if runtimes is None else runtimes
    demo = DemoAgent()

    def select_runtime(run: Run) -> AgentRuntime:
        name = roster().get_agent(run.agent_id).runtime
        found = known.get(name)
        if found is not None:
            return found
        return demo if name == demo.id else UnconfiguredRuntime(name, dict.fromkeys((demo.id, *known)))

    def timeout_for(run: Run) -> float | None:
        return roster().get_agent(run.agent_id).settings.timeout_seconds

    sessions = SqlSessionRepository(store)
    reader = AttachmentReader(media_settings, sessions.blob)
    runs = LocalRunExecutor(
        SqlRunRepository(store), sessions, select_runtime=select_runtime, resolve_caller=make_caller, tools=tools,
        prepare_turn=reader.prepare, timeout_for=timeout_for,
    )  # fmt: skip
    run_events = RunEventPublisher(publish, roster)
    runs.events.connect(run_events.on_run_event)
    commands = ChatCommandRunner(
        sessions=sessions, runner=runs, events=run_events, roster=roster, model_problem=model_problem,
        stop_subagents=stop_subagents,
    )  # fmt: skip
    chat_methods = ChatMethods(
        sessions=sessions, runner=runs, events=run_events, roster=roster, publish=publish, run_command=commands.run
    )
    session_methods = SessionMethods(
        sessions=sessions, runner=runs, events=run_events, roster=roster, path=store.location,
        idempotency=SqlIdempotencyRepository(store), send=chat_methods.send,
    )  # fmt: skip
    startup_methods = StartupMethods(
        sessions=sessions, runner=runs, events=run_events, roster=roster, history=chat_methods.history,
        list_models=list_models,
    )  # fmt: skip
    return StoreServices(
        store=store, sessions=sessions, runs=runs, nodes=SqlNodeRepository(store),
        rpc_modules=(session_methods, chat_methods, startup_methods), run_command=commands.run,
        run_events=run_events,
    )  # fmt: skip
