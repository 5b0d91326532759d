"""As whom agents and clients call tools in a session."""

from collections.abc import Callable

from msgspec import Struct, structs

from ...core import session_keys
from ...core.agents import AgentRoster
from ...core.config.config import Config
from ...core.model import Caller, Grant
from ...core.repositories import SessionRepository
from ...core.rpc import RpcError
from ...core.session_target import SessionAddress, bind_by_key, find_root_session
from ...core.sessions import RunClaim, RunOptions, Session
from ...tools.config_policy import ConfigPolicy
from ...tools.subject import find_listed_group
from .app_tools import AppToolSources
from .runs import caller_for_session


class SessionCallers(Struct, frozen=True, kw_only=True):
    """A `SessionResolver` by the stored sessions, the tool rules and the attached apps."""

    sessions: SessionRepository
    policy: ConfigPolicy
    apps: AppToolSources
    roster: Callable[[], AgentRoster]
    config: Callable[[], Config]

    async def run_caller(self, claim: RunClaim) -> Caller:
        """As whom a run's agent calls tools."""
        return await self._session_caller(claim.session, claim.run.options)

    async def agent_caller(self, session: str | None, agent: str | None) -> Caller:
        """The agent of a session as its owner's run would act."""
        key = session_keys.normalize_key(session or "main", self.roster(), agent_id=agent)
        stored = await self.sessions.get(key)
        if stored is None:
            self.roster().get_agent(session_keys.split_key(key)[0])
        return await self._session_caller(stored or self._empty_session(key), RunOptions(grant=Grant(owner=True)))

    def resolve_key(self, session: str | None, agent: str | None) -> str | None:
        if session is None and agent is None:
            return None
        roster = self.roster()
        key = session_keys.normalize_key(session or "main", roster, agent_id=agent)
        roster.get_agent(session_keys.split_key(key)[0])
        return key

    async def bind(self, caller: Caller, address: SessionAddress) -> Caller:
        """A client that acts in a session: with its own rights, under that session's tool rules."""
        try:
            key = session_keys.normalize_key(address.session, self.roster())
        except RpcError:  # no key of ours: it is judged by its text
            return await bind_by_key(caller, address)
        grant = Grant(
            channel=address.channel or None,
            account=address.account or None,
            to=address.to or None,
            thread=address.thread or None,
            group=find_listed_group(self.policy.rules, channel=address.channel, account=address.account, to=address.to),
            owner=caller.is_owner,
        )
        session = await self.sessions.get(key) or self._empty_session(key)
        agent = await self._session_caller(session, RunOptions(grant=grant))
        return structs.replace(caller, session=key, session_grant=agent.grant)

    async def _session_caller(self, session: Session, options: RunOptions) -> Caller:
        if session.spawned_by is not None:
            root = await find_root_session(session.spawned_by, self.sessions)
            session = structs.replace(session, spawned_by=root)
        include_all = self.config().tools.get("apps", {}).get("sessions") == "all"
        apps = self.apps.sources_for_session(session.key, include_all=include_all)
        return caller_for_session(session, options, rules=self.policy.rules, apps=apps)

    def _empty_session(self, key: str) -> Session:
        """A session of that key as it would be before its first message."""
        return Session(
            key=key, agent_id=session_keys.split_key(key)[0], session_id="", epoch=0, revision="", created_at=0,
            updated_at=0, classification=session_keys.classify_key(key, self.roster()),
        )  # fmt: skip
