// The official TypeScript client at an app's tools: list, call, progress, cancel, hear of new tools.
// Prints what it saw as JSON, one object a line. usage: proxy.mjs SDK_FOLDER URL [SESSION_ID_FOR_THE_HEADER]
import { pathToFileURL } from "node:url";
import { join } from "node:path";

const [sdk, url, session] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(join(sdk, "dist/esm", path)).href);
const { Client } = await load("client/index.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
const { ToolListChangedNotificationSchema } = await load("types.js");

const headers = session ? { "MCP-Session-Id": session } : {};
const client = new Client({ name: "guest", version: "1.0.0" });
const changed = new Promise((hear) => client.setNotificationHandler(ToolListChangedNotificationSchema, hear));
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));

const tools = (await client.listTools()).tools.map((tool) => tool.name);
const said = await client.callTool({ name: "echo_text", arguments: { text: "from TypeScript" } });
const wrong = await client.callTool({ name: "echo_text", arguments: { text: 5 } });

const steps = [];
const leaving = new AbortController();
const cancelled = client
  .callTool({ name: "hold", arguments: {} }, undefined, {
    signal: leaving.signal,
    onprogress: (step) => {
      steps.push(step.progress);
      leaving.abort("enough");
    },
  })
  .then(
    () => "answered",
    () => "cancelled",
  );
const ending = await cancelled;
console.log(JSON.stringify({ tools, said: said.structuredContent, wrong: wrong.isError, steps, ending }));
await changed;
const after = (await client.listTools()).tools.map((tool) => tool.name);
console.log(JSON.stringify({ after }));
await client.close();
