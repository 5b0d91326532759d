"""The caretaker of the models: the runtimes that need them, sharing one wire, closed together."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from ...core.agents import AgentRoster
from ...core.config.config import Config
from ...core.ports import AgentRuntime
from ...net.gateway_client.address import is_local_gateway
from ..agents.models.gateway_runtime import OpenClawRuntime, RemoteGateway
from ..agents.models.model_clients import ModelClients
from ..agents.models.runtime import ModelRuntime


@asynccontextmanager
async def model_runtimes(
    folder: Path, config: Callable[[], Config], roster: Callable[[], AgentRoster]
) -> AsyncIterator[Mapping[str, AgentRuntime]]:
    """`openai`, `anthropic` and `openclaw`. Entering costs nothing: what they need is made at the first turn."""

    def dial(url: str, token: str | None) -> AbstractAsyncContextManager[RemoteGateway]:
        # Here for start-up: only an agent of another gateway needs a WebSocket.
        from ...net.gateway_client.run_client import WebSocketGateway, make_gateway_client

        # Never with the token kept here: it is our own gateway's, and this is another one.
        return WebSocketGateway(url, token) if is_local_gateway(url) else make_gateway_client(url, token, folder)

    shop = ModelClients()
    far = OpenClawRuntime(dial, config=config, roster=roster)
    apis = {id: ModelRuntime(id, shop, config=config, roster=roster) for id in ("openai", "anthropic")}
    try:
        yield {**apis, far.id: far}
    finally:
        await far.aclose()
        await shop.aclose()
