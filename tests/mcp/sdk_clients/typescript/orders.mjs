// The official TypeScript client's orders: the arguments of each from a file, what came of each as JSON.
// usage: orders.mjs SDK_FOLDER FILE COMMAND ARGUMENT…; the file holds an array of arguments
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { join } from "node:path";

const [sdk, file, command, ...args] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(join(sdk, "dist/esm", path)).href);

const { Client } = await load("client/index.js");
const { StdioClientTransport } = await load("client/stdio.js");

const client = new Client({ name: "orders", version: "1.0.0" });
await client.connect(new StdioClientTransport({ command, args, env: process.env }));

const outcomes = [];
for (const order of JSON.parse(readFileSync(file, "utf8"))) {
  try {
    outcomes.push(await client.callTool({ name: "order_openclaw", arguments: order }));
  } catch (error) {
    outcomes.push({ error: error.message });
  }
}
console.log(JSON.stringify(outcomes));
await client.close();
