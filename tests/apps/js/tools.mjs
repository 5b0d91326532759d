// The tools our JavaScript tests lend, the same in Node and in a browser. `say` reports to the test.
import { AppTools, ProxyRefused, ProxyUnreachable, SessionDeleted, ToolFailed, image, text } from "./client.js";

const PIXEL = new Uint8Array([0x89, 0x50, 0, 0xff]);

const REFUSED = [
  ["http://[::1"],
  ["http://127.0.0.1:99999"],
  ["http://someone:secret@127.0.0.1"],
  ["http://127.0.0.1", { token: "two\nlines" }],
  ["http://127.0.0.1", { token: "€" }],
  ["http://127.0.0.1", { atOnce: 0 }],
  ["http://127.0.0.1", { secret: "short" }],
];

export async function lend(url, token, say) {
  for (const [given, options] of REFUSED) {
    try {
      new AppTools(given, options);
    } catch (error) {
      say({ type: "refused", name: error.name, detail: error.message });
    }
  }
  const app = new AppTools(url, { token, device: "script", about: { app_version: "1" }, atOnce: 2 });
  let running = 0;
  for (const type of ["session", "connected", "disconnected", "failed"]) {
    app.addEventListener(type, ({ detail }) => say({ type, detail: detail?.message ?? detail }));
  }
  const parameters = { a: { type: "number", description: "the first" }, b: { type: "number", default: 1 } };
  app.tool({ name: "add", description: "Add.", parameters }, ({ a, b = 1 }) => a + b);
  app.tool({ name: "same", inputSchema: { type: "object" } }, ({ value }) => value);
  app.tool({ name: "nothing" }, () => undefined);
  app.tool({ name: "picture" }, () => image(PIXEL));
  app.tool({ name: "mixed" }, () => ["before", image(new Blob([PIXEL], { type: "image/gif" })), { after: 1 }]);
  app.tool({ name: "polite" }, () => { throw new ToolFailed("the printer is out of paper; fill it"); });
  app.tool({ name: "clumsy" }, async () => { throw new RangeError("password is hunter2"); });
  app.tool({ name: "round" }, () => { const ring = {}; ring.ring = ring; return ring; });
  const half = "😀".slice(0, 1);
  app.tool({ name: "cut" }, (_, call) => {
    call.progress(1, { message: `at ${half}` });
    return { [`key ${half}`]: [half, "😀", "\\ud83d", '"\\'] };
  });
  app.tool({ name: "cut_text" }, () => [text(half), { half }]);
  app.tool({ name: "cut_error" }, () => { throw new ToolFailed(`no ${half}`); });
  app.tool({ name: "walk" }, (_, call) => { call.progress(1, { total: 2, message: "half way" }); return "there"; });
  app.tool({ name: "sleepy" }, (_, call) => new Promise(() => {
    call.signal.addEventListener("abort", () => say({ type: "aborted", detail: call.signal.reason.message }));
    say({ type: "asleep" });
  }));
  app.tool({ name: "count" }, async () => {
    running += 1;
    const most = running;
    await new Promise((resolve) => setTimeout(resolve, 50));
    running -= 1;
    return most;
  });
  app.tool({ name: "grow" }, async () => {
    app.tool({ name: "grown" }, () => "grown");
    app.remove("nothing");
    await app.update();
    return "done";
  });
  app.tool({ name: "leave" }, () => { setTimeout(() => app.close().then(() => say({ type: "left" })), 0); return "bye"; });
  try {
    say({ type: "open", detail: await app.open() });
    await app.closed;
  } catch (error) {
    const known = [ProxyRefused, ProxyUnreachable, SessionDeleted].some((kind) => error instanceof kind);
    say({ type: "error", detail: error.message, known, name: error.name });
    if (error instanceof SessionDeleted) say({ type: "open", detail: await app.open() });
  }
}
