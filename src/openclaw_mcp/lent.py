"""What the agent in this very process may use: the MCP servers of the config, by the rules of the config."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .core.model import Json
from .core.ports import Toolbox
from .servers.roster import Roster
from .servers.waking import Waking
from .tools.desk import Desk
from .tools.house import HouseRules
from .tools.policy import by_scope, every
from .tools.registry import Registry
from .tools.rulebook import RuleBook


@asynccontextmanager
async def lent(servers: Json, book: RuleBook) -> AsyncIterator[Toolbox]:
    """Their tools. A server starts when it is first needed and ends with the block."""
    async with Roster(servers) as roster:
        registry = Registry(roster.sources())
        tools = Waking(Desk(registry, policy=every(by_scope, HouseRules(book))), registry)
        tools.roster, tools.main = roster, book.default_agent
        yield tools
