"""The caretaker of what is remembered: opens the store and puts the rooms that live on it together."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from msgspec import Struct

from .agents.demo import DemoAgent
from .agents.runs import Runs
from .core.model import Caller
from .core.ports import AgentRuntime, Toolbox
from .core.records import Run
from .core.roster import Roster
from .core.rpc import Publish, Room
from .sessions.chat import ChatRoom
from .sessions.feed import Feed
from .sessions.room import SessionRoom
from .store.books import Answers, Audit, ConfigBook, Devices
from .store.runs import Runs as RunBook
from .store.sessions import Sessions
from .store.store import Store, opened


class Memory(Struct, frozen=True, kw_only=True):
    """Everything that lives on the store, ready to be used."""

    store: Store
    sessions: Sessions
    runs: Runs
    config_history: ConfigBook
    audit: Audit
    devices: Devices
    rooms: tuple[Room, ...]


def agent_caller(run: Run) -> Caller:
    """As whom a run's agent calls tools: itself, bound to its session, with no scope of its own."""
    return Caller(kind="agent", name=f"run {run.run_id}", session=run.session_key)


@asynccontextmanager
async def remembering(
    where: str,
    publish: Publish,
    *,
    roster: Callable[[], Roster] = Roster,
    runtimes: Mapping[str, AgentRuntime] | None = None,
    tools: Toolbox | None = None,
    act: Callable[[Run], Caller] = agent_caller,
) -> AsyncIterator[Memory]:
    """Open the store, end what a crash left, take up what waits; on leaving, stop runs and write what is owed.

    `runtimes`, by name, may be added to while this lasts; an agent whose runtime is missing gets the demo.
    """
    known: Mapping[str, AgentRuntime] = {} if runtimes is None else runtimes
    demo = DemoAgent()

    def pick(run: Run) -> AgentRuntime:
        return known.get(roster().card(run.agent_id).runtime, demo)

    def patience(run: Run) -> float | None:
        return roster().card(run.agent_id).settings.get("timeoutSeconds")

    async with opened(where) as store:
        sessions = Sessions(store)
        runs = Runs(RunBook(store), sessions, pick=pick, act=act, tools=tools, patience=patience)
        feed = Feed(publish, roster)
        quiet = runs.news.listen(feed.hear)
        chat = ChatRoom(sessions, runs, feed, publish, roster=roster)
        room = SessionRoom(sessions, Answers(store), runs, feed, roster=roster, path=store.where, start=chat.send)
        chat.reset = room.reset
        async with runs:
            yield Memory(
                store=store,
                sessions=sessions,
                runs=runs,
                config_history=ConfigBook(store),
                audit=Audit(store),
                devices=Devices(store),
                rooms=(room, chat),
            )
        quiet()
        feed.close()
