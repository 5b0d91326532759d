"""A surface's own rules for HTTP requests: who, how much, how long, how many at once."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from openclaw_mcp.core.model import Caller, ToolCall, ToolResult, text_result
from openclaw_mcp.mcp.server.http import McpHttp, RequestSlots
from openclaw_mcp.mcp.server.http_gate import HttpAccessRules, HttpRefusal, bearer_auth
from tests.conversation import Tools, serving

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%b"}}'
AGENT = Caller(kind="agent", name="ada", scopes=frozenset({"*"}))


class Visit:
    """One HTTP request to an endpoint in this process, and what came back."""

    def __init__(self, endpoint: McpHttp, body: bytes, *, peer: str = "127.0.0.1", **headers: str) -> None:
        all_headers = {"host": "localhost", "content-type": "application/json", **headers}
        listed = [(key.replace("_", "-").encode(), value.encode()) for key, value in all_headers.items()]
        self._scope = {"type": "http", "method": "POST", "path": "/", "headers": listed, "client": (peer, 1)}
        self._endpoint = endpoint
        self._body: bytes | None = body
        self.status = 0
        self.headers: Mapping[bytes, bytes] = {}
        self.answer = b""

    async def make(self) -> "Visit":
        await asyncio.wait_for(self._endpoint(self._scope, self._receive, self._send), 20)
        return self

    async def _receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, event: Any) -> None:
        if event["type"] == "http.response.start":
            self.status, self.headers = event["status"], dict(event["headers"])
        else:
            self.answer += event["body"]


def visited(gate: HttpAccessRules, body: bytes = PING, **options: Any) -> Visit:
    async def hello(call: ToolCall) -> ToolResult:
        return text_result(call.caller.name)

    return asyncio.run(Visit(McpHttp(serving(Tools(hello=hello)), access_rules=gate), body, **options).make())


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Bearer secretX", "Basic secret", "secret"])
def test_without_the_token_every_request_is_refused(header: str) -> None:
    visit = visited(HttpAccessRules(identify=bearer_auth("secret", AGENT)), authorization=header)

    assert visit.status == 401
    assert visit.headers[b"www-authenticate"] == b"Bearer"


def test_the_token_decides_who_is_calling() -> None:
    visit = visited(
        HttpAccessRules(identify=bearer_auth("secret", AGENT)), CALL % b"hello", authorization="bearer secret"
    )

    assert msgspec.json.decode(visit.answer)["result"]["content"][0]["text"] == "ada"


@pytest.mark.parametrize(("peer", "status"), [("127.0.0.1", 200), ("127.8.8.8", 200), ("::1", 200), ("10.0.0.7", 403)])
def test_a_surface_may_be_for_this_machine_alone(peer: str, status: int) -> None:
    assert visited(HttpAccessRules(loopback_only=True), peer=peer).status == status


def test_a_surface_may_refuse_every_origin_and_every_browser() -> None:
    closed = HttpAccessRules(allowed_origins=frozenset(), allow_browsers=False)

    assert visited(closed, origin="http://localhost").status == 403
    assert visited(closed, sec_fetch_site="same-origin").status == 403
    assert visited(closed, referer="http://localhost/").status == 403
    assert visited(closed, sec_fetch_mode="cors").status == 200, "Node's fetch sends it, and is no browser"


@pytest.mark.parametrize("kind", ["text/plain", "", "application/x-www-form-urlencoded", "text/json"])
def test_a_surface_may_insist_on_json(kind: str) -> None:
    assert visited(HttpAccessRules(json_only=True), content_type=kind).status == 415
    assert visited(HttpAccessRules(json_only=True), content_type="Application/JSON; charset=utf-8").status == 200


def test_a_body_of_exactly_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    assert visited(HttpAccessRules(largest_body=len(PING))).status == 200
    assert visited(HttpAccessRules(largest_body=len(PING) - 1)).status == 413


def test_a_surface_serves_so_many_at_once_and_no_more() -> None:
    async def visits() -> tuple[int, int]:
        started, go = asyncio.Event(), asyncio.Event()

        async def wait(call: ToolCall) -> ToolResult:
            started.set()
            await go.wait()
            return text_result("done")

        endpoint = McpHttp(serving(Tools(wait=wait)), access_rules=HttpAccessRules(max_concurrent=1))
        first = asyncio.ensure_future(Visit(endpoint, CALL % b"wait").make())
        await started.wait()
        second = await Visit(endpoint, PING).make()
        assert second.headers[b"retry-after"] == b"1"
        go.set()
        await first
        return second.status, (await Visit(endpoint, PING).make()).status

    assert asyncio.run(visits()) == (503, 200)


def test_a_request_that_takes_too_long_is_ended() -> None:
    ended: list[str] = []

    async def wait(call: ToolCall) -> ToolResult:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("yes")
        return text_result("never")

    endpoint = McpHttp(serving(Tools(wait=wait)), access_rules=HttpAccessRules(max_seconds=0.05))
    visit = asyncio.run(Visit(endpoint, CALL % b"wait").make())

    assert visit.status == 408
    assert "took longer than 0.05 s" in visit.answer.decode()
    assert ended == ["yes"]


def test_a_released_slot_is_given_to_a_waiting_request_and_none_is_lost_to_one_that_left() -> None:
    async def visits() -> None:
        slots = RequestSlots(1)
        await slots.acquire()
        gone, waiting = asyncio.ensure_future(slots.acquire()), asyncio.ensure_future(slots.acquire())
        await asyncio.sleep(0)
        gone.cancel()
        slots.release()
        await waiting
        assert not slots.try_acquire()

        waiter = asyncio.ensure_future(slots.acquire())
        await asyncio.sleep(0)
        slots.release()
        waiter.cancel()  # as it is handed the place
        await asyncio.wait((waiter,))
        assert waiter.cancelled()
        assert slots.try_acquire()

        for _ in range(3):
            with pytest.raises(HttpRefusal, match="server busy"):
                await slots.acquire()
        slots.release()
        assert slots.try_acquire()

    asyncio.run(visits())


# ---- where a request comes from, row by row ----


def _status(
    gate: HttpAccessRules, *headers: tuple[str, str], client: Any = ("127.0.0.1", 1), method: str = "POST"
) -> int:
    """What a gate makes of a request: 0 when it may come in."""
    listed = [(name.encode(), value.encode()) for name, value in headers]
    try:
        gate.authenticate({"method": method, "headers": listed, "client": client}, dict(headers))
    except HttpRefusal as refusal:
        assert str(refusal) == refusal.reason
        return refusal.status
    return 0


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 0),
        ("LOCALHOST:8080", 0),
        ("127.0.0.1", 0),
        ("127.0.0.1:1", 0),
        ("[::1]", 0),
        ("[::1]:8080", 0),
        ("localhost:", 0),
        ("", 403),
        ("localhost.evil.example", 403),
        ("evil.example:80", 403),
        ("localhost:80:80", 403),
        ("localhost/x", 403),
        ("x@localhost", 403),
        ("localhost:x", 403),
        ("192.0.2.7", 403),
        ("[::2]", 403),
        ("::1", 403),
    ],
)
def test_a_request_names_this_machine_by_one_of_its_names(host: str, status: int) -> None:
    assert _status(HttpAccessRules(), ("host", host)) == status
    assert _status(HttpAccessRules(), ("host", "localhost"), ("origin", f"http://{host}")) == status
    assert _status(HttpAccessRules(), ("host", "localhost"), ("origin", f"https://{host}")) == status
    assert (
        _status(
            HttpAccessRules(allowed_hosts=None, allowed_origins=None), ("host", host), ("origin", f"https://{host}")
        )
        == 0
    )


@pytest.mark.parametrize(
    "host", ["192.0.2.7", "192.0.2.7:80", "[2001:db8::1]", "[2001:db8::1]:80", "[::]", "own.example"]
)
def test_where_addresses_are_names_too_any_of_them_is(host: str) -> None:
    named = frozenset({"own.example"})

    assert _status(HttpAccessRules(allowed_hosts=named, allow_ip_hosts=True), ("host", host)) == 0
    assert _status(HttpAccessRules(allowed_hosts=named), ("host", host)) == (0 if host == "own.example" else 403)
    for other in ("evil.example", "1.2.3", "[x]", "", "192.0.2.7.example"):
        assert _status(HttpAccessRules(allowed_hosts=named, allow_ip_hosts=True), ("host", other)) == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://app.example", 0),
        ("app://own", 0),
        ("http://other.example:90", 0),
        ("https://other.example", 0),
        ("http://app.example", 403),
        ("https://app.example:444", 403),
        ("app://other.example", 403),
        ("other.example.evil", 403),
        ("null", 403),
        ("http:other.example", 403),
    ],
)
def test_an_origin_may_be_named_whole_or_by_its_host(origin: str, status: int) -> None:
    gate = HttpAccessRules(allowed_origins=frozenset({"https://app.example", "app://own", "other.example"}))

    assert _status(gate, ("host", "localhost"), ("origin", origin)) == status


@pytest.mark.parametrize("name", ["host", "origin"])
def test_a_header_that_decides_comes_once(name: str) -> None:
    once = [("host", "localhost"), ("origin", "http://localhost")]
    twice = [*once, (name, dict(once)[name])]

    assert _status(HttpAccessRules(), *once) == 0
    assert _status(HttpAccessRules(), *once, ("accept", "a"), ("accept", "b")) == 0
    assert _status(HttpAccessRules(), *twice) == 403


@pytest.mark.parametrize(
    ("peer", "status"),
    [
        (("127.0.0.1", 1), 0),
        (("127.9.9.9", 1), 0),
        (("::1", 1), 0),
        (("::ffff:127.0.0.1", 1), 0),
        (("192.0.2.7", 1), 403),
        (("1127.0.0.1", 1), 403),
        (("", 0), 403),
        (None, 403),
    ],
)
def test_only_a_surface_for_this_machine_alone_asks_where_its_peer_is(peer: Any, status: int) -> None:
    assert _status(HttpAccessRules(loopback_only=True), ("host", "localhost"), client=peer) == status
    assert _status(HttpAccessRules(), ("host", "localhost"), client=peer) == 0


def test_a_surface_minds_browsers_and_other_bodies_only_where_it_says_so() -> None:
    browser = [("host", "localhost"), ("sec-fetch-site", "none"), ("referer", "http://localhost/")]
    text = [("host", "localhost"), ("content-type", "text/plain")]

    assert _status(HttpAccessRules(), *browser) == 0
    assert _status(HttpAccessRules(), *text) == 0
    assert _status(HttpAccessRules(json_only=True), *text) == 415
    assert _status(HttpAccessRules(json_only=True), *text, method="GET") == 0


def test_why_a_credential_is_refused_is_reported_unless_the_surface_is_silent() -> None:
    for silent, reason in ((False, "missing or invalid bearer token"), (True, "")):
        gate = HttpAccessRules(identify=bearer_auth("secret", AGENT), silent_401=silent)
        with pytest.raises(HttpRefusal) as refused:
            gate.authenticate({"method": "POST"}, {"host": "localhost"})
        assert (refused.value.status, refused.value.reason) == (401, reason)
        assert refused.value.headers == ((b"www-authenticate", b"Bearer"),)
    assert HttpAccessRules().silent_401 is False


@pytest.mark.parametrize(
    ("length", "status"),
    [
        ("4194304", 0),
        ("4194305", 413),
        ("0", 0),
        (None, 0),
        ("x", 413),
        pytest.param("9" * 5000, 413, id="5000 digits"),
        ("٣", 413),
    ],
)
def test_a_body_that_says_it_is_too_large_is_not_read(length: str | None, status: int) -> None:
    """No client's parser lets through what is no number; should one come, nothing is read of it."""
    try:
        HttpAccessRules().check_body({} if length is None else {"content-length": length})
    except HttpRefusal as refusal:
        assert "at most 4194304 bytes" in refusal.reason
        assert refusal.status == status
    else:
        assert status == 0
