// Peer: the TypeScript SDK over stdio.
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { echoServer } from "./echo.mjs";

await echoServer().connect(new StdioServerTransport());
