"""Who performs a message action, and from which conversation."""

from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ...core.channel import ChannelError, ChatAddress
from ...core.mail import OutboxOrigin
from ...core.model import Caller, Grant
from .accounts import ChannelAccounts
from .session_routes import SessionRoutes


class ActionContext(Struct, frozen=True, kw_only=True):
    """Who performs an action: the session, the conversation it is in, its agent, and whether it is the owner's."""

    session: str | None = None
    address: ChatAddress | None = None
    agent: str | None = None
    origin: OutboxOrigin = "rpc"
    bound: bool = False
    """Whether it may leave its conversation only as the config allows. Agents are bound, operators are not."""
    bound_address: ChatAddress | None = None
    """The conversation it may not leave: that of the run's initiator. Often, not always, the same as `address`."""
    sends_anywhere: bool = False
    """Whether an operator scheduled the run outside every conversation, to send where its instructions say."""
    owner: bool = False
    folder: str | None = None
    """The run's working directory, when its initiator named one."""
    policy_caller: Caller | None = None
    """The caller that the tool policy applies to; None: it does not apply."""
    own_addresses: tuple[ChatAddress, ...] = ()
    """The conversations, and the threads in them, that `policy_caller` is in by its credential."""


class ActionContexts(Struct, frozen=True):
    """Makes the context of a caller."""

    accounts: ChannelAccounts
    routes: SessionRoutes

    async def of_session(self, session: str | None, context: ActionContext) -> ActionContext:
        """`context` in this session, at the conversation its latest message came from."""
        address = None if session is None else await self.routes.find_address(session)
        return replace(context, session=session, address=address)

    async def of_agent(self, caller: Caller) -> ActionContext:
        """Where an agent is: the conversation its credential names, else where its session's latest message came from.

        A run that another run started is where its session is, if messages arrive there; it is bound to the
        conversation its credential names.
        """
        grant = caller.grant or caller.session_grant or Grant()
        named, route = self._grant_address(grant), None
        if caller.session is not None and (named is None or grant.handed_on):
            route = await self.routes.find_address(caller.session)
        address = route or named
        return ActionContext(
            session=caller.session, address=address, agent=grant.agent, origin="tool",
            bound=caller.kind == "agent" or address is not None,  # an operator in no conversation is not bound to one
            bound_address=address if caller.is_owner else named or route,
            sends_anywhere=grant.sends_anywhere, owner=caller.is_owner, folder=grant.folder, policy_caller=caller,
            own_addresses=tuple(each for each in (named, route) if each is not None),
        )  # fmt: skip

    def _grant_address(self, grant: Grant) -> ChatAddress | None:
        """The conversation a credential names, as its channel writes it."""
        if grant.channel and grant.to:
            account = grant.account or self.accounts.default_account_id(grant.channel)
            address = ChatAddress(channel=grant.channel, account=account, to=grant.to, thread=grant.thread)
            with suppress(ChannelError):
                return self.normalize(address)
            return address
        if grant.delivers_to is None:
            return None
        channel, account, to = grant.delivers_to
        return ChatAddress(channel=channel, account=account, to=to)

    def normalize(self, address: ChatAddress) -> ChatAddress:
        """The address as its channel writes it; unchanged without a channel. Raises ChannelError for a bad target."""
        account = self.accounts.find(address)
        return address if account is None else replace(address, to=account.channel.normalize_target(address.to))
