"""Many apps in one process, each with a session and a bridge. Usage: crowd.py PROXY COUNT; says the sessions' ids."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack

import uvloop

from openclaw_mcp.apps.client import AppTools

AT_ONCE = 32  # apps that connect at the same time; a thousand would only queue


async def echo(text: str) -> str:
    return text


async def main(address: str, count: int) -> None:
    places = asyncio.Semaphore(AT_ONCE)
    async with AsyncExitStack() as stack:

        async def join(number: int) -> str:
            app = AppTools(address, device=f"app-{number}")
            app.tool(echo)
            async with places:
                await stack.enter_async_context(app)
            return app.session.id

        ids = await asyncio.gather(*map(join, range(count)))
        sys.stdout.write(f"{json.dumps(ids)}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
