/**
 * Lend functions of a web page or a Node program (22 or newer) as tools through an `openclaw proxy`. No dependencies.
 *
 *   import { AppTools, image } from "./client.js";
 *   const app = new AppTools("https://proxy.example.com", { token, device: "my-page" });
 *   app.tool({ name: "add", description: "Add two numbers.",
 *              parameters: { a: { type: "number" }, b: { type: "number", default: 1 } } }, ({ a, b = 1 }) => a + b);
 *   const { mcpUrl } = await app.open();
 *   …
 *   await app.close();
 *
 * @module
 */

const FIRST_CONNECTION = 15_000; // ms `open` tries to get through before it says that it can't
const ANSWER_WAIT = 15_000; // ms the proxy may take to answer one request
const DIAL_WAIT = 10_000; // ms one attempt at a bridge may take until its first frame
const FIRST_PAUSE = 250; // ms before the first redial; doubles up to the longest
const LONGEST_PAUSE = 5_000; // ms; a proxy that comes back is found again within this
const STEADY = 10_000; // ms a bridge must have lived for the pauses to start small again
const LONGEST_RETRY = 60_000; // ms; a longer Retry-After is not believed
const SILENCE = 30_000; // ms without a frame before we ask for a sign of life, and from there to giving up
const LAST_WORDS = 3_000; // ms leaving may take to delete the session
const MOST_WAITING = 4096; // calls taken in before more are refused; twice what a proxy sends by default
const AT_ONCE = 32; // calls that run at the same time unless told otherwise
const CHUNK = 0x8000; // bytes turned into characters in one go; more overflows a function's arguments

const ELSEWHERE = new Set([404, 405]); // what other servers say to a request for a session
const LATER = new Set([408, 425, 429, 500, 502, 503, 504]);
const FINAL = new Map([[4401, "the app token is wrong"], [4403, "this page's origin or secret is not admitted"]]);
const SERVICE_RESTART = 1012;
const NO_SESSION = 4404;
const SESSION_DELETED = 4410;
const LEAST_SECRET = 32; // characters; the session's id is a digest of it
const MOST_SECRET = 256;
const PING = '{"type":"ping"}';
const PONG = '{"type":"pong"}';
const BLOCK = Symbol("content block");

/** @typedef {{id: string, mcpUrl: string}} Session */
/** @typedef {{type: string, [field: string]: unknown}} Block */
/** @typedef {{[name: string]: any}} Json */
/**
 * @typedef {object} Tool
 * @property {string} name
 * @property {string} [description]
 * @property {string} [title]
 * @property {Json} [parameters] JSON Schema per parameter; one with a `default` or `optional: true` may be left out
 * @property {Json} [inputSchema] a whole JSON Schema instead of `parameters`
 * @property {Json} [outputSchema]
 * @property {Json} [annotations]
 */
/** @typedef {(args: any, call: Call) => unknown} Handler */

/** Throw this in a tool to tell the caller, in one sentence, what is wrong and what to change. */
export class ToolFailed extends Error {
  name = "ToolFailed";
}

/** The proxy said no, and would say no again; `status` is the HTTP status or the close code. */
export class ProxyRefused extends Error {
  name = "ProxyRefused";
  /** @param {string} reason @param {number} [status] */
  constructor(reason, status = 0) {
    super(reason);
    this.status = status;
  }
}

/** No proxy answered, or it asked to come back later. */
export class ProxyUnreachable extends Error {
  name = "ProxyUnreachable";
  /** @param {string} reason @param {number} [retryAfter] */
  constructor(reason, retryAfter = 0) {
    super(reason);
    this.retryAfter = retryAfter;
  }
}

/** Somebody deleted the session; the app must not come back unasked. */
export class SessionDeleted extends Error {
  name = "SessionDeleted";
}

/** A picture as a result, alone or in an array. @param {BufferSource | Blob} data @param {string} [mimeType] */
export const image = (data, mimeType) => binary("image", data, mimeType ?? "image/png");

/** A sound as a result, alone or in an array. @param {BufferSource | Blob} data @param {string} [mimeType] */
export const audio = (data, mimeType) => binary("audio", data, mimeType ?? "audio/wav");

/** A text between pictures. @param {string} text @returns {Block} */
export const text = (text) => block({ type: "text", text });

/** A running call, the second argument of every tool. */
class Call {
  #send;
  #abort = new AbortController();
  /** @param {string} id @param {string} tool @param {(frame: string) => void} send */
  constructor(id, tool, send) {
    this.id = id;
    this.tool = tool;
    this.#send = send;
  }

  /** Aborted once nobody waits for the result: hand it to `fetch`, or listen. */
  get signal() {
    return this.#abort.signal;
  }

  /** Tell the caller how far this is. Values must grow. @param {number} done @param {{total?: number, message?: string}} [more] */
  progress(done, { total, message } = {}) {
    const frame = { type: "progress", request_id: this.id, progress: done, total, message };
    if (!this.signal.aborted) this.#send(json(frame));
  }

  /** @param {string} reason */
  cancel(reason) {
    this.#abort.abort(new DOMException(reason || "nobody waits for the result", "AbortError"));
  }
}

/**
 * An app's tools, lent from `open` to `close`. Events: `session` (its `detail` is the Session, and another one should the
 * proxy give one), `connected`, `disconnected` and `failed` (`detail` says why).
 */
export class AppTools extends EventTarget {
  /** @type {Map<string, {described: Json, handler: Handler}>} */ #tools = new Map();
  /** @type {Map<string, Call>} */ #calls = new Map();
  /** @type {(() => void)[]} */ #queue = [];
  /** @type {Session | null} */ #session = null;
  /** @type {Promise<void> | null} */ #life = null;
  /** @type {AbortController} */ #leaving = new AbortController();
  #lending = false;
  #running = 0;
  #changed = false;
  /** @type {Session | null} */ #last = null;
  #pause = FIRST_PAUSE;
  #trouble = "no attempt was made";
  #base;
  #token;
  #secret;
  #about;
  #atOnce;

  /**
   * @param {string} url where the proxy is, like http://127.0.0.1:8000
   * @param {{token?: string, device?: string, about?: Json, secret?: string, atOnce?: number}} [options] `about` is
   *   registered beside the tools (`device_name`, `app_version`, `chat_id`, …); `secret` decides the session's `mcpUrl`:
   *   it is the same however often the proxy starts again, and with a secret that the app keeps however often the app
   *   does; `atOnce` bounds the calls that run at the same time
   */
  constructor(url, { token = "", device, about = {}, secret = randomSecret(), atOnce = AT_ONCE } = {}) {
    super();
    if (!isAddress(url)) {
      const shown = String(url).includes("@") ? "an address with a password in it" : `"${url}"`;
      throw new TypeError(`${shown} is no address of a proxy; give one like http://127.0.0.1:8000`);
    }
    if (typeof WebSocket === "undefined") {
      throw new TypeError("there is no WebSocket here; use a browser, or Node 22 or newer");
    }
    if (!isSendable(token)) {
      throw new TypeError("the app token has a line break or a character no header can carry; give one of ASCII");
    }
    if (!isSendable(secret) || secret.length < LEAST_SECRET || secret.length > MOST_SECRET) {
      throw new TypeError(`the session's secret must be ${LEAST_SECRET} to ${MOST_SECRET} characters of ASCII`);
    }
    if (!(atOnce >= 1)) throw new TypeError(`atOnce is ${atOnce}; at least one call must be able to run`);
    this.#base = url.replace(/\/+$/, "");
    this.#token = token;
    this.#secret = secret;
    this.#about = device ? { ...about, device_id: device } : about;
    this.#atOnce = atOnce;
  }

  /** Lend a function. Lent after `open`, it is known after `await update()`. @param {Tool} tool @param {Handler} handler */
  tool(tool, handler) {
    if (this.#tools.has(tool.name)) throw new TypeError(`a tool "${tool.name}" is lent already; give this one another name`);
    if (typeof handler !== "function") throw new TypeError(`the tool "${tool.name}" needs a function as second argument`);
    this.#tools.set(tool.name, { described: described(tool), handler });
    this.#changed = true;
    return this;
  }

  /** Lend this one no longer; clients know after `await update()`. @param {string} name */
  remove(name) {
    if (!this.#tools.delete(name)) throw new TypeError(`no tool "${name}" is lent here`);
    this.#changed = true;
  }

  /** Make the proxy's list of tools the present one. */
  async update() {
    this.#changed = true;
    if (this.#session) await this.#putTools(this.#session);
  }

  /** The present session, whose `mcpUrl` is what an MCP client needs; null before the first. */
  get session() {
    return this.#session ?? this.#last; // still ours while the proxy, which lost it, is asked again
  }

  /**
   * Register and keep a bridge open, however often the proxy goes away. Resolves once calls can arrive; rejects with
   * ProxyRefused, or with ProxyUnreachable after `within` milliseconds (Infinity: never).
   * @param {{within?: number}} [options] @returns {Promise<Session>}
   */
  async open({ within = FIRST_CONNECTION } = {}) {
    if (this.#lending) throw new TypeError("this is open already");
    this.#lending = true;
    const leaving = (this.#leaving = new AbortController());
    const connected = new Promise((resolve) => this.addEventListener("connected", resolve, { once: true }));
    const life = (this.#life = this.#live(leaving.signal));
    life.catch(() => {}); // told to `open`, `closed` and the listeners of `failed`
    const late = Number.isFinite(within) ? sleep(within, leaving.signal).then(() => "late") : new Promise(() => {});
    try {
      const first = await Promise.race([connected, life, late]);
      if (first === "late") {
        throw new ProxyUnreachable(`no proxy took the bridge within ${within / 1000} s: ${this.#trouble}`);
      }
      if (!this.#session) throw new ProxyUnreachable("this was closed before a proxy took the bridge");
      return this.#session;
    } catch (error) {
      await this.#leave(life, leaving); // this life alone: a listener of `failed` may have begun the next
      throw error;
    }
  }

  /** Settles when the lending ends: rejects when the proxy refuses the app or the session was deleted. */
  get closed() {
    return this.#life ?? Promise.resolve();
  }

  /** Take the tools back and delete the session. */
  async close() {
    await this.#leave(this.#life, this.#leaving);
  }

  /** @param {Promise<void> | null} life @param {AbortController} leaving */
  async #leave(life, leaving) {
    leaving.abort();
    await life?.catch(() => {});
    if (this.#life === life) this.#life = null;
  }

  async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    await this.close();
  }

  // ---- life ----

  /** @param {AbortSignal} signal */
  async #live(signal) {
    let failure;
    try {
      await this.#lend(signal);
    } catch (error) {
      if (!signal.aborted) failure = error;
    }
    await this.#forget();
    this.#lending = false;
    if (!failure) return;
    this.#tell("failed", failure); // now that a listener may open it again
    throw failure;
  }

  /** @param {AbortSignal} signal */
  async #lend(signal) {
    this.#pause = FIRST_PAUSE;
    while (!signal.aborted) {
      const began = Date.now();
      let wait = 0;
      try {
        this.#trouble = await this.#attempt(signal);
      } catch (error) {
        if (!(error instanceof ProxyUnreachable)) throw error;
        this.#trouble = error.message;
        wait = error.retryAfter;
      }
      if (signal.aborted) break;
      this.#tell("disconnected", this.#trouble);
      if (Date.now() - began > STEADY) this.#pause = FIRST_PAUSE;
      // Spread out, so that a thousand pages do not all come back in the moment a proxy does.
      await sleep(Math.max(wait, this.#pause * (0.5 + Math.random() / 2)), signal);
      this.#pause = Math.min(2 * this.#pause, LONGEST_PAUSE);
    }
  }

  /** One bridge from dialling to its end, and why it ended. @param {AbortSignal} signal */
  async #attempt(signal) {
    if (this.#session) {
      const reason = await this.#resume(this.#session, signal);
      if (this.#session || signal.aborted) return reason;
    }
    // At once also when the proxy has just said that it has no such session: that is an answer, not a failure.
    return this.#useBridge(await this.#register(signal), signal);
  }

  /** A bridge of the session that there was; forgotten when the proxy does not have it any more. @param {Session} session @param {AbortSignal} signal */
  async #resume(session, signal) {
    if (this.#changed) {
      try {
        await this.#putTools(session);
      } catch (error) {
        if (!(error instanceof ProxyRefused) || error.status !== 404) throw error;
        this.#session = null;
        return error.message;
      }
    }
    return this.#useBridge(session, signal);
  }

  /** @param {AbortSignal} signal @returns {Promise<Session>} */
  async #register(signal) {
    this.#changed = false;
    const asked = this.#ask("POST", "", { ...this.#about, tools: this.#described() }, signal);
    const made = await asked.catch((error) => {
      if (error instanceof ProxyRefused && ELSEWHERE.has(error.status)) return /** @type {Json} */ ({});
      throw error;
    });
    const id = made.mcpSessionId;
    if (typeof id !== "string" || !id) throw new ProxyRefused(`what answers at ${this.#base} is no app-tool proxy; give the address of one`);
    const session = (this.#session = { id, mcpUrl: made.mcp_url ?? `${this.#base}/v1/mcp/${id}` });
    const isNew = session.mcpUrl !== this.#last?.mcpUrl;
    this.#last = session;
    if (isNew) this.#tell("session", session);
    return session;
  }

  /** @param {Session} session @param {AbortSignal} signal */
  async #useBridge(session, signal) {
    const { code, reason } = await this.#holdBridge(session, signal);
    if (FINAL.has(code)) throw new ProxyRefused(`the proxy refused the bridge: ${FINAL.get(code)} (${reason})`, code);
    if (code === SERVICE_RESTART) this.#pause = FIRST_PAUSE; // it comes back soon, whatever was before
    if (code === NO_SESSION || code === SESSION_DELETED) this.#session = null;
    if (code === SESSION_DELETED && !signal.aborted) {
      throw new SessionDeleted("the session was deleted at the proxy; register again only if you are asked to");
    }
    return `closed with ${code}, ${reason || "the connection broke"}`;
  }

  /** @param {Session} session @param {AbortSignal} signal @returns {Promise<{code: number, reason: string}>} */
  #holdBridge(session, signal) {
    return new Promise((resolve) => {
      // A browser can't put a header on a WebSocket, so token and secret travel as subprotocols.
      const offered = ["openclaw-bridge", `secret.${base64url(this.#secret)}`];
      if (this.#token) offered.push(`bearer.${base64url(this.#token)}`);
      const socket = new WebSocket(`ws${this.#base.slice(4)}/v1/chat/sessions/${session.id}/bridge`, offered);
      let heard = false;
      let asked = false;
      const end = (/** @type {number} */ code, /** @type {string} */ reason) => {
        clearTimeout(watch);
        signal.removeEventListener("abort", leave);
        this.#dropCalls();
        socket.onmessage = socket.onclose = null;
        socket.close();
        resolve({ code, reason });
      };
      const leave = () => end(1000, "we are leaving");
      const send = (/** @type {string} */ frame) => {
        if (socket.readyState === WebSocket.OPEN) socket.send(frame);
      };
      /** A page can't see a connection that died silently, so it asks. */
      const look = () => {
        if (asked || !heard) return end(1006, heard ? "the proxy gave no sign of life" : "the bridge did not open in time");
        asked = true;
        send(PING);
        watch = setTimeout(look, SILENCE);
      };
      let watch = setTimeout(look, DIAL_WAIT);
      signal.addEventListener("abort", leave);
      // A refusal comes as a close code after the handshake, so only an answer says that we are in.
      socket.onopen = () => send(PING);
      socket.onclose = (event) => end(event.code, event.reason);
      socket.onmessage = (event) => {
        asked = false;
        clearTimeout(watch);
        watch = setTimeout(look, SILENCE);
        if (!heard) {
          heard = true;
          this.#tell("connected", session);
        }
        this.#take(event.data, send);
      };
    });
  }

  async #forget() {
    const session = this.#session;
    this.#session = this.#last = null;
    this.#dropCalls();
    if (!session) return;
    // One that stays behind for want of a proxy expires by itself.
    await this.#ask("DELETE", `/${session.id}`, undefined, AbortSignal.timeout(LAST_WORDS)).catch(() => {});
  }

  /** @param {Session} session */
  async #putTools(session) {
    this.#changed = false;
    try {
      await this.#ask("PUT", `/${session.id}/tools`, { tools: this.#described() }, this.#leaving.signal);
    } catch (error) {
      this.#changed = true;
      throw error;
    }
  }

  #described() {
    return [...this.#tools.values()].map((tool) => tool.described);
  }

  /** @param {string} method @param {string} path @param {Json | undefined} body @param {AbortSignal} signal @returns {Promise<Json>} */
  async #ask(method, path, body, signal) {
    /** @type {Record<string, string>} */
    const headers = { Accept: "application/json" };
    if (body) headers["Content-Type"] = "application/json";
    if (this.#token) headers.Authorization = `Bearer ${this.#token}`;
    if (body) headers["OpenClaw-Session-Secret"] = this.#secret;
    const both = AbortSignal.any([signal, AbortSignal.timeout(ANSWER_WAIT)]);
    let answer;
    try {
      const address = `${this.#base}/v1/chat/sessions${path}`;
      answer = await fetch(address, { method, headers, body: body && json(body), signal: both, redirect: "error" });
    } catch (error) {
      const reason = /** @type {any} */ (error)?.cause?.message || /** @type {Error} */ (error).message;
      throw new ProxyUnreachable(`no proxy answers at ${this.#base}: ${reason}; start one with \`openclaw proxy\``);
    }
    const read = await answer.json().catch(() => ({}));
    if (answer.ok) return read;
    const said = typeof read.detail === "string" ? `${answer.status}, ${read.detail}` : `${answer.status}`;
    if (LATER.has(answer.status)) {
      const after = Math.min(1000 * (Number(answer.headers.get("Retry-After")) || 0), LONGEST_RETRY);
      throw new ProxyUnreachable(`the proxy asks to come back later (${said})`, after);
    }
    throw new ProxyRefused(`the proxy at ${this.#base} refused (${said})`, answer.status);
  }

  /** @param {string} type @param {unknown} detail */
  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  // ---- calls ----

  /** @param {unknown} data @param {(frame: string) => void} send */
  #take(data, send) {
    /** @type {Json | null} */ let frame;
    try {
      frame = JSON.parse(/** @type {string} */ (data));
    } catch {
      return console.warn("openclaw: a frame from the proxy can't be read");
    }
    switch (frame?.type) {
      case "invoke_tool":
        return void this.#answer(/** @type {Json} */ (frame), send);
      case "cancel_tool":
        return this.#calls.get(frame?.request_id)?.cancel(frame?.reason);
      case "ping":
        return send(PONG);
      case "error":
        return console.warn(`openclaw: the proxy could not use a frame: ${frame?.reason}`);
    }
  }

  /** @param {Json} frame @param {(frame: string) => void} send */
  async #answer(frame, send) {
    const id = frame.request_id;
    const call = new Call(id, frame.tool_name, send);
    this.#calls.set(id, call);
    const result = { type: "invoke_result", request_id: id };
    let answer;
    try {
      const content = await this.#run(frame, call);
      answer = json({ ...result, ok: true, ...shaped(Array.isArray(content) ? await Promise.all(content) : content) });
    } catch (error) {
      if (!(error instanceof ToolFailed) && !call.signal.aborted) console.error(`openclaw: the tool ${call.tool} failed`, error);
      const kind = error instanceof Error ? error.name : typeof error;
      const reason = error instanceof ToolFailed ? error.message : `${call.tool} failed in the app (${kind}); its log says more`;
      answer = json({ ...result, ok: false, error: reason });
    } finally {
      this.#calls.delete(id);
    }
    if (!call.signal.aborted) send(answer);
  }

  /** @param {Json} frame @param {Call} call */
  async #run(frame, call) {
    const tool = this.#tools.get(frame.tool_name);
    if (!tool) throw new ToolFailed(`the app lends no tool "${frame.tool_name}" any more`);
    if (this.#calls.size > MOST_WAITING) throw new ToolFailed(`${MOST_WAITING} calls wait in the app already; try again later`);
    await this.#slot(call.signal);
    try {
      return await Promise.race([tool.handler(frame.arguments ?? {}, call), aborted(call.signal)]);
    } finally {
      this.#running -= 1;
      this.#queue.shift()?.();
    }
  }

  /** Wait for one of the places. @param {AbortSignal} signal */
  async #slot(signal) {
    while (this.#running >= this.#atOnce) {
      await new Promise((resolve) => this.#queue.push(() => resolve(undefined)));
      if (signal.aborted) this.#queue.shift()?.(); // not for us any more: pass the place on
      signal.throwIfAborted();
    }
    signal.throwIfAborted();
    this.#running += 1;
  }

  /** No answer can be delivered any more: a new bridge knows nothing of the old one's calls. */
  #dropCalls() {
    for (const call of this.#calls.values()) call.cancel("the bridge is gone");
    this.#calls.clear();
  }
}

/** Whether this can be dialled: what can't be now never will. @param {string} url */
function isAddress(url) {
  if (!/^https?:\/\/[^/]/.test(url)) return false;
  try {
    const { username, password } = new URL(url);
    return !username && !password;
  } catch {
    return false;
  }
}

/** @param {string} token */
function isSendable(token) {
  try {
    return new Headers({ Authorization: `Bearer ${token}` }).has("Authorization");
  } catch {
    return false;
  }
}

const randomSecret = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

/** The tool as it is registered. @param {Tool} tool @returns {Json} */
function described({ parameters, inputSchema, outputSchema, ...rest }) {
  /** @type {Json} */
  const shown = { ...rest, input_schema: inputSchema ?? schemaOf(parameters ?? {}) };
  if (outputSchema) shown.output_schema = outputSchema;
  return shown;
}

/** @param {Json} parameters */
function schemaOf(parameters) {
  /** @type {Json} */ const properties = {};
  const required = [];
  for (const [name, { optional, ...schema }] of Object.entries(parameters)) {
    properties[name] = schema;
    if (!optional && !("default" in schema)) required.push(name);
  }
  return { type: "object", properties, required, additionalProperties: false };
}

/** What a tool returned, as the bridge takes it. @param {any} value @returns {Json} */
function shaped(value) {
  if (value === undefined) return { content: null };
  if (isBlock(value)) return { content: [value], mcp: true };
  if (!Array.isArray(value) || !value.some(isBlock)) return { content: value };
  const blocks = value.map((part) => (isBlock(part) ? part : text(typeof part === "string" ? part : json(part))));
  return { content: blocks, mcp: true };
}

/** @param {any} value */
const isBlock = (value) => typeof value === "object" && value !== null && BLOCK in value;

/** @param {Json} fields @returns {Block} */
const block = (fields) => Object.defineProperty(/** @type {any} */ (fields), BLOCK, { value: true });

/** At once for bytes; a Blob gives its bytes later. @param {string} type @param {BufferSource | Blob} data @param {string} mimeType */
function binary(type, data, mimeType) {
  if (!(data instanceof Blob)) return block({ type, data: base64(data), mimeType });
  return data.arrayBuffer().then((bytes) => block({ type, data: base64(bytes), mimeType: data.type || mimeType }));
}

/**
 * JSON with U+FFFD for half a character, as cutting a text leaves it: JSON.stringify escapes just these, and no proxy
 * can read them. @param {unknown} value @returns {string}
 */
const json = (value) => {
  const written = JSON.stringify(value);
  return written?.includes("\\ud") ? written.replace(/\\(?:ud[89a-f]..|.)/g, (escape) => (escape.length > 2 ? "\ufffd" : escape)) : written;
};

/** @param {BufferSource} data */
function base64(data) {
  const bytes = ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);
  let characters = "";
  for (let at = 0; at < bytes.length; at += CHUNK) characters += String.fromCharCode(...bytes.subarray(at, at + CHUNK));
  return btoa(characters);
}

/** @param {string | Uint8Array} words */
const base64url = (words) =>
  base64(typeof words === "string" ? new TextEncoder().encode(words) : words).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");

/** @param {AbortSignal} signal @returns {Promise<never>} */
const aborted = (signal) =>
  new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason), { once: true }));

/** Wait, but not past the end. @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
const sleep = (ms, signal) =>
  new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
    if (signal.aborted) done();
  });
