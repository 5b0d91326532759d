// Loaded into the suite before it starts: every request to the server under test carries that server's token.
// The suite asks by `fetch`, by undici and by `http.request`, so the token is added where all of them meet: the socket.
const net = require("node:net");

const [token, port] = [process.env.SUITE_TOKEN, new URL(process.env.SUITE_ADDRESS).port];
const line = Buffer.from(`\r\nauthorization: Bearer ${token}\r\n`);
const startsRequest = /^(GET|POST|DELETE|PUT|OPTIONS|HEAD) [^\r\n]* HTTP\/1\.1\r\n/;
const write = net.Socket.prototype.write;

net.Socket.prototype.write = function (data, ...rest) {
  if (this.remotePort !== Number(port) && this._host === undefined) return write.call(this, data, ...rest);
  const encoding = typeof rest[0] === "string" ? rest[0] : "latin1";
  const head = (typeof data === "string" ? data : Buffer.from(data).toString("latin1")).slice(0, 4096);
  const found = startsRequest.exec(head);
  if (!found || /\r\nauthorization:/i.test(head)) return write.call(this, data, ...rest);
  const bytes = typeof data === "string" ? Buffer.from(data, encoding) : Buffer.from(data);
  const at = found[0].length - 2; // before the end of the first line
  const changed = Buffer.concat([bytes.subarray(0, at), line.subarray(0, line.length - 2), bytes.subarray(at)]);
  return write.call(this, changed, ...rest.filter((one) => typeof one === "function"));
};
