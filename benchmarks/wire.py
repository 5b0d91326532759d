"""What is said on the wire: the same echo call over stdio and over HTTP in both eras. Pure: no I/O."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

MODERN = "2026-07-28"
LEGACY = "2025-06-18"
TEXT = "the quick brown fox"
META = "io.modelcontextprotocol/"
CLIENT = {"name": "benchmark", "version": "1"}
FIRST_ID = 10_000  # ids of one width keep every call the same number of bytes
DISTINCT_CALLS = 4096  # far more than are ever in flight, so no two of those share an id


class WrongAnswer(Exception):
    """A server answered something other than the text it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One HTTP request as the load generator repeats it."""

    label: str
    method: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


def encode(message: dict[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def _call(request_id: int, **extra: object) -> bytes:
    params = {"name": "echo", "arguments": {"text": TEXT}, **extra}
    return encode({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params})


def stdio_opening() -> bytes:
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT}
    return encode({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}) + b"\n"


def stdio_opened() -> bytes:
    return encode({"jsonrpc": "2.0", "method": "notifications/initialized"}) + b"\n"


def stdio_calls() -> list[bytes]:
    """Ready-made lines, to be sent round and round."""
    return [_call(FIRST_ID + n) + b"\n" for n in range(DISTINCT_CALLS)]


def http_calls() -> dict[str, Post]:
    """The echo call on wire M (2026-07-28) and wire L (2025-06-18, no session), by label."""
    common = (("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream"))
    routing = (("Mcp-Method", "tools/call"), ("Mcp-Name", "echo"))
    meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}, f"{META}clientInfo": CLIENT}
    modern = Post(
        label="M",
        method="POST",
        headers=(*common, ("MCP-Protocol-Version", MODERN), *routing),
        body=_call(FIRST_ID, _meta=meta),
    )
    legacy = Post(
        label="L",
        method="POST",
        headers=(*common, ("MCP-Protocol-Version", LEGACY)),
        body=_call(FIRST_ID),
    )
    return {"M": modern, "L": legacy}


def check_opening(answer: bytes, *, of: str) -> None:
    message = _parse(answer, of=of)
    result = message.get("result")
    if message.get("id") != 1 or not isinstance(result, dict) or result.get("protocolVersion") != LEGACY:
        raise WrongAnswer(f"{of} to initialize: {answer[:300]!r}")


def check_calls(answers: Iterable[bytes], *, of: str) -> None:
    """Every answer carries an id we sent and the text we sent."""
    ids = range(FIRST_ID, FIRST_ID + DISTINCT_CALLS)
    for answer in answers:
        message = _parse(answer, of=of)
        match message.get("result"):
            case {"content": [{"text": text}]} if text == TEXT and message.get("id") in ids:
                continue
        raise WrongAnswer(f"{of} to tools/call: {answer[:300]!r}")


def _parse(answer: bytes, *, of: str) -> dict[str, object]:
    try:
        message = json.loads(answer)
    except ValueError as exc:
        raise WrongAnswer(f"{of}, not JSON: {answer[:300]!r}") from exc
    if not isinstance(message, dict):
        raise WrongAnswer(f"{of}, not a message: {answer[:300]!r}")
    return message
