"""The caretaker of the models: the runtimes that need them, sharing one wire, closed together."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from .core.model import Json
from .core.ports import AgentRuntime
from .core.roster import Roster
from .models.asking import Shop
from .models.openclaw import FarGateway, OpenClawRuntime
from .models.runtime import ModelRuntime
from .orders import Remote


@asynccontextmanager
async def model_runtimes(
    folder: Path, config: Callable[[], Json], roster: Callable[[], Roster]
) -> AsyncIterator[Mapping[str, AgentRuntime]]:
    """`openai`, `anthropic` and `openclaw`. Entering costs nothing: what they need is made at the first turn."""

    def dial(url: str, token: str | None) -> AbstractAsyncContextManager[FarGateway]:
        if urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1"):
            return Remote(url, token)
        # Here for start-up: only a gateway elsewhere wants a device, and with it cryptography.
        from .rpc.identity import Identity

        return Remote(url, token, signer=Identity.load(folder / "device.json"))

    shop = Shop()
    far = OpenClawRuntime(dial, config=config, roster=roster)
    apis = {id: ModelRuntime(id, shop, config=config, roster=roster) for id in ("openai", "anthropic")}
    try:
        yield {**apis, far.id: far}
    finally:
        await far.aclose()
        await shop.aclose()
