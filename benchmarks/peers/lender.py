"""An app that answers at once, on our own client library. Usage: lender.py PROXY TOOLS; says its MCP address."""

import sys

import uvloop

from openclaw_mcp.apps.client import AppTools


async def echo(text: str) -> str:
    return text


async def main(address: str, tools: int) -> None:
    app = AppTools(address, device="benchmark")
    app.tool(echo)
    for number in range(1, tools):
        app.tool(name=f"tool_{number}", description=f"Tool {number} of an app with many.")(echo)
    async with app:
        sys.stdout.write(f"{app.session.mcp_url}\n")
        sys.stdout.flush()
        await app.wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
