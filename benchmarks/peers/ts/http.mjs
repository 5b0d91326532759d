// Peer: the TypeScript SDK over node's own HTTP server, JSON and stateless. Usage: node http.mjs PORT.
import { createServer } from "node:http";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { echoServer } from "./echo.mjs";

// Without sessions the SDK wants a server and a transport of its own for every request.
async function answer(request, response) {
  const server = echoServer();
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined, enableJsonResponse: true });
  response.on("close", () => {
    transport.close();
    server.close();
  });
  await server.connect(transport);
  await transport.handleRequest(request, response);
}

createServer(answer).listen(Number(process.argv[2]), "127.0.0.1");
