"""The caretaker of what is remembered: opens the store and puts the rooms that live on it together."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Self

import msgspec
from msgspec import Struct

from ...core.agents import AgentRoster
from ...core.model import Caller, Grant, Json
from ...core.owner import is_owner
from ...core.ports import AgentRuntime, Toolbox
from ...core.providers import model_from_settings
from ...core.rpc import Publish, RpcModule
from ...core.sessions import Run, RunClaim, Session
from ...store.runs import SqlRunRepository as RunBook
from ...store.sessions import SqlSessionRepository
from ...store.small_repositories import SqlIdempotencyRepository, SqlNodeRepository
from ...store.store import SqlStore, open_store
from ...tools.policy_rules import PolicyRules
from ..agents.attachments.reader import AttachmentReader
from ..agents.demo import DemoAgent
from ..agents.missing import UnconfiguredRuntime
from ..runs.runs import LocalRunExecutor
from ..sessions.chat_methods import ChatMethods
from ..sessions.run_events import RunEventPublisher
from ..sessions.session_methods import SessionMethods


class StoreServices(Struct, frozen=True, kw_only=True):
    """Everything that lives on the store, ready to be used."""

    store: SqlStore
    sessions: SqlSessionRepository
    runs: LocalRunExecutor
    nodes: SqlNodeRepository
    rpc_modules: tuple[RpcModule, ...]
    reset_session: Callable[[str], Awaitable[Json]]
    """Begin a session anew."""
    run_events: RunEventPublisher

    async def __aenter__(self) -> Self:
        """Take up the runs that wait."""
        await self.runs.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        try:
            await self.runs.__aexit__(*exc)
        finally:
            self.run_events.close()


RunScope = Callable[["StoreServices"], AbstractAsyncContextManager[object]]


async def agent_caller(claim: RunClaim) -> Caller:
    """The caller of a run where no rules are kept."""
    return caller_for_session(claim.session, claim.run.options)


async def caller_under_rules(claim: RunClaim, rules: PolicyRules) -> Caller:
    """The caller of a run where this book is kept."""
    return caller_for_session(claim.session, claim.run.options, rules=rules)


def caller_for_session(
    session: Session, options: Json, *, rules: PolicyRules | None = None, apps: Iterable[str] = ()
) -> Caller:
    """As whom a session's agent calls tools: itself, there, for whoever started the run; the rules do the rest.

    `apps` are sources that apps lend to this session. The same for every run of a session that the same person
    started, so that the desk knows the caller again.
    """
    given = msgspec.convert(options.get("grant", {}), Grant)
    owner = given.owner
    if given.sender is not None:
        owners, channel = rules.commands.owner_allow_from if rules else (), given.channel or ""
        owner = is_owner(given.sender, owners, channel=channel, vouched=given.owner)
    grant = msgspec.structs.replace(
        given,
        agent=session.agent_id,
        models=rules.possible_models(session.agent_id, model_from_settings({**session.entry, **options}))
        if rules
        else (),
        owner=owner,
        depth=max(given.depth, session.spawn_depth or 0),
        spawned_by=session.spawned_by,
        # A session's own folder is the owner's choice for the owner's work, whoever else writes there.
        folder=_folder_or_none(options.get("cwd") or (session.entry.get("cwd") if owner else None)),
        tools=_intersect_tools(given.tools, options.get("toolsAllow")),
    )
    scopes = frozenset({"*", *(f"source:{name}" for name in apps)})
    return Caller(
        kind="agent", name=session.agent_id, scopes=scopes, session=session.key, entry_point="agent", grant=grant
    )


def _folder_or_none(chosen: object) -> str | None:
    return chosen if isinstance(chosen, str) and chosen else None


def _intersect_tools(granted: frozenset[str] | None, requested: object) -> frozenset[str] | None:
    """The tools a run is kept to: what its grant names, what whoever planned it named, or both at once."""
    if not isinstance(requested, list):
        return granted
    named = frozenset(map(str, requested))
    return named if granted is None else granted & named


@asynccontextmanager
async def open_store_services(
    location: str, publish: Publish, *, run_scope: RunScope | None = None, **options: Any
) -> AsyncIterator[StoreServices]:
    """Open the store, end what a crash left, take up what waits; on leaving, stop runs and write what is owed.

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
    media_settings: Callable[[], Json] = dict,
) -> StoreServices:
    """The services on an open store. No run begins before they are entered.

    `runtimes`, by name, may be added to while this lasts; `demo` is always there. `media_settings` is the config's
    `tools.media`.
    """
    known: Mapping[str, AgentRuntime] = {} if runtimes is None else runtimes
    demo = DemoAgent()

    def pick(run: Run) -> AgentRuntime:
        name = roster().get_agent(run.agent_id).runtime
        found = known.get(name)
        if found is not None:
            return found
        return demo if name == demo.id else UnconfiguredRuntime(name, dict.fromkeys((demo.id, *known)))

    def patience(run: Run) -> float | None:
        return roster().get_agent(run.agent_id).settings.get("timeoutSeconds")

    sessions = SqlSessionRepository(store)
    reader = AttachmentReader(media_settings, sessions.blob)
    runs = LocalRunExecutor(
        RunBook(store),
        sessions,
        select_runtime=pick,
        resolve_caller=make_caller,
        tools=tools,
        prepare_turn=reader.prepare,
        timeout_for=patience,
    )
    feed = RunEventPublisher(publish, roster)
    runs.events.connect(feed.on_run_event)
    chat = ChatMethods(sessions, runs, feed, publish, roster=roster)
    room = SessionMethods(
        sessions, SqlIdempotencyRepository(store), runs, feed, roster=roster, path=store.location, send=chat.send
    )
    chat.reset_session = room.reset
    return StoreServices(
        store=store,
        sessions=sessions,
        runs=runs,
        nodes=SqlNodeRepository(store),
        rpc_modules=(room, chat),
        reset_session=room.reset,
        run_events=feed,
    )
