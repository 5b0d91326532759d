"""The Python client at a proxy that misbehaves."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from openclaw_mcp.apps import client
from openclaw_mcp.apps.client import AppTools, BadRequest, ProxyRefused, ProxyUnreachable, Session, SessionDeleted
from tests.apps.stand_in import Receive, Send, StandIn, close, stand_in, stay

WAIT = 20.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.01)


def at(test: Callable[[StandIn], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT), stand_in() as proxy:
            await test(proxy)

    asyncio.run(main())


def test_asked_to_come_later_it_comes_later() -> None:
    async def main(proxy: StandIn) -> None:
        proxy.answers = [(429, {"Retry-After": "1"}, {"detail": "too fast"}), (503, {}, {}), (500, {}, None)]
        clock = asyncio.get_running_loop().time
        began = clock()
        async with AppTools(proxy.address):
            assert clock() - began >= 1
        assert proxy.requests.count(("POST", "/v1/chat/sessions")) == 4

    at(main)


@pytest.mark.parametrize("code", [1000, 1001, 1011, 1012, 1013, 4408, 4409, 4413])
def test_a_bridge_that_is_closed_is_dialled_again_on_the_same_session(code: int) -> None:
    async def main(proxy: StandIn) -> None:
        proxy.talks = [close(code), close(code)]
        async with AppTools(proxy.address) as app:
            assert app.session.id == "s1"
        assert [what for what in proxy.requests if what[0] == "BRIDGE"] == [("BRIDGE", "s1")] * 3

    at(main)


def test_a_session_the_proxy_does_not_know_is_made_again() -> None:
    async def main(proxy: StandIn) -> None:
        proxy.talks = [close(4404)]
        sessions: list[Session] = []
        async with AppTools(proxy.address, on_session=sessions.append) as app:
            assert app.session.id == "s2"
            assert [session.id for session in sessions] == ["s1", "s2"]
            assert app.session.mcp_url == f"{proxy.address}/v1/mcp/s2"

    at(main)


def test_a_session_the_proxy_has_lost_is_registered_again_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when many attempts failed before, and the next pause would be long."""

    async def main(proxy: StandIn) -> None:
        proxy.talks = [close(1012), close(4404)]
        monkeypatch.setattr(client, "MAX_PAUSE", 3600.0)
        pauses = iter((0.0, 3600.0))
        monkeypatch.setattr("openclaw_mcp.apps.client.random.uniform", lambda *_: next(pauses) / client.FIRST_PAUSE)
        async with AppTools(proxy.address) as app:
            assert app.session.id == "s2"
        what = [kind for kind, _ in proxy.requests]
        assert what == ["POST", "BRIDGE", "BRIDGE", "POST", "BRIDGE", "DELETE"]

    at(main)


def test_a_proxy_that_says_it_restarts_is_dialled_soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever failed before: its pauses double only from there on."""
    pauses = []

    async def main(proxy: StandIn) -> None:
        proxy.talks = [close(1001), close(1011), close(1012), close(1012), close(1011)]
        monkeypatch.setattr("openclaw_mcp.apps.client.random.uniform", lambda *_: 1.0)
        app = AppTools(proxy.address)
        wait_for = asyncio.sleep

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            await wait_for(0)

        monkeypatch.setattr("openclaw_mcp.apps.client.asyncio.sleep", sleep)
        async with app:
            pass

    at(main)
    assert [pause for pause in pauses if pause < 0.1] == [0.01, 0.02, 0.01, 0.01, 0.02], "and others' sleep"


def test_a_session_that_is_lost_as_soon_as_it_is_registered_is_not_registered_on_and_on() -> None:
    async def main(proxy: StandIn) -> None:
        proxy.talks = [close(4404)] * 3
        async with AppTools(proxy.address):
            pass
        what = [kind for kind, _ in proxy.requests]
        assert what == ["POST", "BRIDGE"] * 4 + ["DELETE"]

    at(main)


@pytest.mark.parametrize("secret", ["short", "x" * 300, "line\nbreak" * 5])
def test_a_secret_no_proxy_takes_is_refused_when_the_app_is_made(secret: str) -> None:
    with pytest.raises(BadRequest, match="32 to 256 characters"):
        AppTools("http://127.0.0.1:1", secret=secret)


@pytest.mark.parametrize(("code", "error"), [(4401, ProxyRefused), (4403, ProxyRefused), (4410, SessionDeleted)])
def test_what_trying_again_cannot_mend_is_raised(code: int, error: type[Exception]) -> None:
    async def main(proxy: StandIn) -> None:
        proxy.talks = [close(code)]
        with pytest.raises(error):
            await AppTools(proxy.address).run_forever()
        assert len([what for what in proxy.requests if what[0] == "BRIDGE"]) == 1

    at(main)


@pytest.mark.parametrize(
    "answer", [(200, {}, {"hello": 1}), (200, {}, [1]), (404, {}, {}), (307, {"Location": "/elsewhere"}, {})]
)
def test_what_is_no_proxy_is_recognised(answer: Any) -> None:
    async def main(proxy: StandIn) -> None:
        proxy.answers = [answer]
        with pytest.raises(ProxyRefused):
            async with AppTools(proxy.address):
                pass
        assert len(proxy.requests) == 1

    at(main)


def test_frames_that_are_none_harm_nothing() -> None:
    answers: list[Any] = []

    async def talk(receive: Receive, send: Send) -> None:
        for text in ("", "{", "[]", "7", "null", '{"type": 7}', '{"type": "news"}', '{"type": "cancel_tool"}',
                     '{"type": "error", "reason": "yours"}', "[" * 5000):  # fmt: skip
            await send({"type": "websocket.send", "text": text})
        await send({"type": "websocket.send", "bytes": b"\xff\x00"})
        call = {"type": "invoke_tool", "request_id": "s1:1", "tool_name": "hello", "arguments": {}}
        for name in ("hello", "gone"):
            await send({"type": "websocket.send", "text": json.dumps({**call, "tool_name": name, "request_id": name})})
        while len(answers) < 2:
            frame = json.loads((await receive())["text"])
            if frame["type"] == "invoke_result":
                answers.append(frame)
        await stay(receive, send)

    async def main(proxy: StandIn) -> None:
        proxy.talks = [talk]
        app = AppTools(proxy.address)
        app.tool(name="hello")(lambda: "hello")
        async with app:
            while len(answers) < 2:  # noqa: ASYNC110  the stand-in has no event of ours
                await asyncio.sleep(0.01)
        by_id = {answer["request_id"]: answer for answer in answers}
        assert (by_id["hello"]["ok"], by_id["hello"]["content"]) == (True, "hello")
        assert (by_id["gone"]["ok"], by_id["gone"]["error"]) == (False, "the app lends no tool 'gone' any more")

    at(main)


def test_a_proxy_that_never_answers_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_CONNECTION", 0.5)

    async def silent(receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "websocket.disconnect":
            pass

    async def main(proxy: StandIn) -> None:
        proxy.talks = [silent]
        with pytest.raises(ProxyUnreachable, match=r"no proxy took the bridge within 0\.5 s"):
            async with AppTools(proxy.address):
                pass
        assert proxy.requests[-1] == ("DELETE", "/v1/chat/sessions/s1")

    at(main)


def test_tools_changed_while_disconnected_are_sent_on_reconnect() -> None:
    async def main(proxy: StandIn) -> None:
        app = AppTools(proxy.address)

        async def change_and_hang_up(receive: Receive, send: Send) -> None:
            app.tool(name="later")(lambda: None)
            await close(1011)(receive, send)

        proxy.talks = [change_and_hang_up]
        async with app:
            assert ("PUT", "/v1/chat/sessions/s1/tools") in proxy.requests

    at(main)


def test_leaving_is_no_error() -> None:
    codes: list[Any] = []

    async def listen(receive: Receive, send: Send) -> None:
        while (event := await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": '{"type":"pong"}'})
        codes.append(event["code"])

    async def main(proxy: StandIn) -> None:
        proxy.talks = [listen]
        async with AppTools(proxy.address):
            pass
        while not codes:  # noqa: ASYNC110  the stand-in has no event of ours
            await asyncio.sleep(0.01)

    at(main)
    assert codes == [1000]
