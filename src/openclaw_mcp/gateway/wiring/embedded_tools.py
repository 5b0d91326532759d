"""What the agent in this very process may use: the MCP servers of the config, by the rules of the config."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...core.model import Json
from ...core.ports import Toolbox
from ...mcp.client.lazy_start import Waking
from ...mcp.client.server_pool import Roster
from ...tools.config_policy import HouseRules
from ...tools.dispatcher import Desk
from ...tools.policy import by_scope, every
from ...tools.policy_rules import RuleBook
from ...tools.registry import Registry


@asynccontextmanager
async def lent(servers: Json, book: RuleBook) -> AsyncIterator[Toolbox]:
    """Their tools. A server starts when it is first needed and ends with the block."""
    async with Roster(servers) as roster:
        registry = Registry(roster.sources())
        tools = Waking(Desk(registry, policy=every(by_scope, HouseRules(book))), registry)
        tools.roster, tools.main = roster, book.default_agent
        yield tools
