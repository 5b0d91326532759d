// The official TypeScript client's day: list, call, read, prompt. Prints what it saw as JSON.
// usage: tour.mjs SDK_FOLDER (http URL | stdio COMMAND ARGUMENT…)
import { pathToFileURL } from "node:url";
import { join } from "node:path";

const [sdk, transportKind, target, ...words] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(join(sdk, "dist/esm", path)).href);

const { Client } = await load("client/index.js");
const { ElicitRequestSchema } = await load("types.js");

async function transport() {
  if (transportKind === "http") {
    const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
    return new StreamableHTTPClientTransport(new URL(target));
  }
  const { StdioClientTransport } = await load("client/stdio.js");
  return new StdioClientTransport({ command: target, args: words });
}

const client = new Client({ name: "tour", version: "1.0.0" }, { capabilities: { elicitation: {} } });
client.setRequestHandler(ElicitRequestSchema, async () => ({ action: "accept", content: { username: "ada" } }));
await client.connect(await transport());

const progress = [];
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const said = await client.callTool({ name: "greet", arguments: { name: "Ada" } });
const wrong = await client.callTool({ name: "greet", arguments: { name: 5 } });
const asked = await client.callTool({ name: "test_elicitation", arguments: { message: "Who?" } });
await client.callTool({ name: "test_tool_with_progress", arguments: {} }, undefined, {
  onprogress: (step) => progress.push(step.progress),
});
const resource = await client.readResource({ uri: "test://static-text" });
const prompt = await client.getPrompt({ name: "test_simple_prompt" });

console.log(
  JSON.stringify({
    tools,
    said: said.content[0].text,
    wrong: wrong.isError,
    asked: asked.content[0].text,
    progress,
    resource: resource.contents[0].text,
    prompt: prompt.messages[0].content.text,
  }),
);
await client.close();
