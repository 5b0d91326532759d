"""The caretaker of what is remembered: opens the store and puts the rooms that live on it together."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import msgspec
from msgspec import Struct

from ...core.agents import Roster
from ...core.model import Caller, Grant, Json
from ...core.owner import is_owner
from ...core.ports import AgentRuntime, Toolbox
from ...core.providers import asked_model
from ...core.rpc import Publish, Room
from ...core.sessions import Claim, Run, Session
from ...store.runs import Runs as RunBook
from ...store.sessions import Sessions
from ...store.small_repositories import Answers, Audit, ConfigBook, Devices, Nodes
from ...store.store import Store, opened
from ...tools.policy_rules import RuleBook
from ..agents.attachments.reader import Reader
from ..agents.demo import DemoAgent
from ..agents.missing import Missing
from ..runs.runs import Runs
from ..sessions.chat_methods import ChatRoom
from ..sessions.run_events import Feed
from ..sessions.session_methods import SessionRoom


class Memory(Struct, frozen=True, kw_only=True):
    """Everything that lives on the store, ready to be used."""

    store: Store
    sessions: Sessions
    runs: Runs
    config_history: ConfigBook
    audit: Audit
    devices: Devices
    nodes: Nodes
    rooms: tuple[Room, ...]
    reset: Callable[[str], Awaitable[Json]]
    """Begin a session anew."""


Around = Callable[["Memory"], AbstractAsyncContextManager[object]]


async def agent_caller(claim: Claim) -> Caller:
    """The caller of a run where no rules are kept."""
    return caller_of(claim.session, claim.run.options)


async def by_rules(claim: Claim, book: RuleBook) -> Caller:
    """The caller of a run where this book is kept."""
    return caller_of(claim.session, claim.run.options, book=book)


def caller_of(session: Session, options: Json, *, book: RuleBook | None = None, apps: Iterable[str] = ()) -> Caller:
    """As whom a session's agent calls tools: itself, there, for whoever started the run; the rules do the rest.

    `apps` are sources that apps lend to this session. The same for every run of a session that the same person
    started, so that the desk knows the caller again.
    """
    given = msgspec.convert(options.get("grant", {}), Grant)
    owner = given.owner
    if given.sender is not None:
        owners, channel = book.commands.owner_allow_from if book else (), given.channel or ""
        owner = is_owner(given.sender, owners, channel=channel, vouched=given.owner)
    grant = msgspec.structs.replace(
        given,
        agent=session.agent_id,
        models=book.may_answer(session.agent_id, asked_model({**session.entry, **options})) if book else (),
        owner=owner,
        depth=max(given.depth, session.spawn_depth or 0),
        spawned_by=session.spawned_by,
        # A session's own folder is the owner's choice for the owner's work, whoever else writes there.
        folder=_folder(options.get("cwd") or (session.entry.get("cwd") if owner else None)),
        tools=_menu(given.tools, options.get("toolsAllow")),
    )
    scopes = frozenset({"*", *(f"source:{name}" for name in apps)})
    return Caller(kind="agent", name=session.agent_id, scopes=scopes, session=session.key, door="agent", grant=grant)


def _folder(chosen: object) -> str | None:
    return chosen if isinstance(chosen, str) and chosen else None


def _menu(granted: frozenset[str] | None, asked: object) -> frozenset[str] | None:
    """The tools a run is kept to: what its grant names, what whoever planned it named, or both at once."""
    if not isinstance(asked, list):
        return granted
    named = frozenset(map(str, asked))
    return named if granted is None else granted & named


@asynccontextmanager
async def remembering(
    where: str,
    publish: Publish,
    *,
    roster: Callable[[], Roster] = Roster,
    runtimes: Mapping[str, AgentRuntime] | None = None,
    tools: Toolbox | None = None,
    act: Callable[[Claim], Awaitable[Caller]] = agent_caller,
    around: Around | None = None,
    media: Callable[[], Json] = dict,
) -> AsyncIterator[Memory]:
    """Open the store, end what a crash left, take up what waits; on leaving, stop runs and write what is owed.

    `runtimes`, by name, may be added to while this lasts; `demo` is always there. `around` is
    entered before the first run begins and left after the last has ended. `media` is the config's `tools.media`.
    """
    known: Mapping[str, AgentRuntime] = {} if runtimes is None else runtimes
    demo = DemoAgent()

    def pick(run: Run) -> AgentRuntime:
        name = roster().card(run.agent_id).runtime
        found = known.get(name)
        if found is not None:
            return found
        return demo if name == demo.id else Missing(name, dict.fromkeys((demo.id, *known)))

    def patience(run: Run) -> float | None:
        return roster().card(run.agent_id).settings.get("timeoutSeconds")

    async with opened(where) as store:
        sessions = Sessions(store)
        reader = Reader(media, sessions.blob)
        runs = Runs(
            RunBook(store), sessions, pick=pick, act=act, tools=tools, prepare=reader.prepare, patience=patience
        )
        feed = Feed(publish, roster)
        quiet = runs.news.listen(feed.hear)
        chat = ChatRoom(sessions, runs, feed, publish, roster=roster)
        room = SessionRoom(sessions, Answers(store), runs, feed, roster=roster, path=store.where, start=chat.send)
        chat.reset = room.reset
        memory = Memory(
            store=store,
            sessions=sessions,
            runs=runs,
            config_history=ConfigBook(store),
            audit=Audit(store),
            devices=Devices(store),
            nodes=Nodes(store),
            rooms=(room, chat),
            reset=room.reset,
        )
        async with nullcontext() if around is None else around(memory), runs:
            yield memory
        quiet()
        feed.close()
