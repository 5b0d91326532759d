"""The tools of the agent in this process: the MCP servers of the config, under the rules of the config."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...core.model import Json
from ...core.ports import Toolbox
from ...mcp.client.lazy_start import LazyServerStart
from ...mcp.client.server_pool import McpServerPool
from ...tools.config_policy import ConfigPolicy
from ...tools.dispatcher import ToolDispatcher
from ...tools.policy import combine_policies, scope_policy
from ...tools.policy_rules import PolicyRules
from ...tools.registry import ToolRegistry


@asynccontextmanager
async def open_embedded_tools(servers: Json, rules: PolicyRules) -> AsyncIterator[Toolbox]:
    """Their tools. A server starts when it is first needed and ends with the block."""
    async with McpServerPool(servers) as roster:
        registry = ToolRegistry(roster.sources())
        tools = LazyServerStart(
            ToolDispatcher(registry, policy=combine_policies(scope_policy, ConfigPolicy(rules))),
            registry,
            roster,
            default_agent=lambda: rules.default_agent,
        )
        yield tools
