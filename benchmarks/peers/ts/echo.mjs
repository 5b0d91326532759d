// The echo server on the TypeScript SDK's low-level server.
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { CallToolRequestSchema, ListToolsRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const inputSchema = { type: "object", properties: { text: { type: "string" } }, required: ["text"] };
const tools = [{ name: "echo", description: "Echo text", inputSchema }];

export function echoServer() {
  const server = new Server({ name: "echo", version: "1" }, { capabilities: { tools: {} } });
  server.setRequestHandler(ListToolsRequestSchema, async () => ({ tools }));
  server.setRequestHandler(CallToolRequestSchema, async (request) => ({
    content: [{ type: "text", text: String(request.params.arguments.text) }],
  }));
  return server;
}
