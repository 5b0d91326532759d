// Lends the tools from Node: node.mjs URL TOKEN. Reports as JSON lines.
import { lend } from "./tools.mjs";

const [url, token] = process.argv.slice(2);
await lend(url, token, (event) => process.stdout.write(`${JSON.stringify(event)}\n`));
