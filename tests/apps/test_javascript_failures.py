"""The JavaScript client at a proxy that misbehaves."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.apps.scripts import CLIENT, Reports, in_node
from tests.apps.stand_in import Receive, Send, StandIn, close, stand_in, stay
from tests.programs import need_node

WAIT = 40.0


def at(prepare: Callable[[StandIn], None], test: Callable[[StandIn, Reports], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT), stand_in() as proxy:
            prepare(proxy)
            with in_node(proxy.address, "token") as reports:
                await test(proxy, reports)

    asyncio.run(main())


async def wait_for_report(reports: Reports, type: str) -> Any:
    return await asyncio.to_thread(reports.wait_for, type)


def bridges(proxy: StandIn) -> list[str]:
    return [session for kind, session in proxy.requests if kind == "BRIDGE"]


@pytest.mark.parametrize("code", [1001, 1011, 4408, 4409])
def test_a_bridge_that_is_closed_is_dialled_again_on_the_same_session(code: int) -> None:
    def prepare(proxy: StandIn) -> None:
        proxy.talks = [close(code)]

    async def main(proxy: StandIn, reports: Reports) -> None:
        assert (await wait_for_report(reports, "open"))["detail"]["id"] == "s1"
        assert bridges(proxy) == ["s1", "s1"]

    at(prepare, main)


def test_a_session_the_proxy_does_not_know_is_made_again_after_a_pause() -> None:
    def prepare(proxy: StandIn) -> None:
        proxy.talks = [close(4404)]

    async def main(proxy: StandIn, reports: Reports) -> None:
        assert (await wait_for_report(reports, "open"))["detail"] == {
            "id": "s2",
            "mcpUrl": f"{proxy.address}/v1/mcp/s2",
        }
        assert bridges(proxy) == ["s1", "s2"]

    at(prepare, main)


def test_a_session_the_proxy_has_lost_is_registered_again_without_a_pause() -> None:
    def prepare(proxy: StandIn) -> None:
        proxy.talks = [close(1012), close(4404)]

    async def main(proxy: StandIn, reports: Reports) -> None:
        await wait_for_report(reports, "open")
        assert [kind for kind, _ in proxy.requests] == ["POST", "BRIDGE", "BRIDGE", "POST", "BRIDGE"]
        pauses = [report["detail"] for report in reports.seen if report["type"] == "disconnected"]
        assert pauses == ["closed with 1012, as told"], "there is one before each pause"

    at(prepare, main)


@pytest.mark.parametrize(("code", "name"), [(4401, "ProxyRefused"), (4403, "ProxyRefused"), (4410, "SessionDeleted")])
def test_an_error_that_retries_cannot_mend_is_reported(code: int, name: str) -> None:
    def prepare(proxy: StandIn) -> None:
        proxy.talks = [close(code)]

    async def main(proxy: StandIn, reports: Reports) -> None:
        error = await wait_for_report(reports, "error")
        assert (error["name"], error["known"]) == (name, True)
        assert len(bridges(proxy)) == 1

    at(prepare, main)


def test_another_servers_refusal_is_no_proxys() -> None:
    def prepare(proxy: StandIn) -> None:
        proxy.answers = [(404, {}, {"detail": "Not Found"})]

    async def main(proxy: StandIn, reports: Reports) -> None:
        assert "is no app-tool proxy; give the address of one" in (await wait_for_report(reports, "error"))["detail"]

    at(prepare, main)


def test_asked_to_come_later_it_comes_later_and_what_is_no_proxy_is_recognised() -> None:
    def prepare(proxy: StandIn) -> None:
        proxy.answers = [(429, {"Retry-After": "1"}, {"detail": "too fast"}), (200, {}, {"hello": 1})]

    async def main(proxy: StandIn, reports: Reports) -> None:
        assert (await wait_for_report(reports, "disconnected"))[
            "detail"
        ] == "the proxy asks to come back later (429, too fast)"
        clock = asyncio.get_running_loop().time
        began = clock()
        assert "is no app-tool proxy" in (await wait_for_report(reports, "error"))["detail"]
        assert clock() - began > 0.5

    at(prepare, main)


def test_frames_that_are_none_harm_nothing() -> None:
    answers: list[Any] = []
    answered = asyncio.Event()

    async def talk(receive: Receive, send: Send) -> None:
        for frame in ("", "{", "[]", "7", "null", '{"type": 7}', '{"type": "cancel_tool"}', '{"type": "error"}'):
            await send({"type": "websocket.send", "text": frame})
        await send({"type": "websocket.send", "bytes": b"\xff\x00"})
        for name in ("nothing", "gone"):
            call: dict[str, Any] = {"type": "invoke_tool", "request_id": name, "tool_name": name, "arguments": {}}
            await send({"type": "websocket.send", "text": json.dumps(call)})
        while len(answers) < 2:
            frame = json.loads((await receive())["text"])
            if frame["type"] == "invoke_result":
                answers.append(frame)
        answered.set()
        await stay(receive, send)

    def prepare(proxy: StandIn) -> None:
        proxy.talks = [talk]

    async def main(proxy: StandIn, reports: Reports) -> None:
        await wait_for_report(reports, "open")
        await answered.wait()
        by_id = {answer["request_id"]: answer for answer in answers}
        assert (by_id["nothing"]["ok"], by_id["nothing"]["content"]) == (True, None)
        assert (by_id["gone"]["ok"], by_id["gone"]["error"]) == (False, 'the app lends no tool "gone" any more')

    at(prepare, main)


def test_where_there_is_no_websocket_the_sentence_names_what_has_one() -> None:
    script = (
        f"delete globalThis.WebSocket; const {{ AppTools }} = await import({json.dumps(CLIENT.as_uri())});"
        "try { new AppTools('http://127.0.0.1:8000') } catch (error) { console.log(`${error.name}: ${error.message}`) }"
    )
    node = [need_node(), "--input-type=module", "--eval", script]
    result = subprocess.run(node, capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout == "TypeError: there is no WebSocket here; use a browser, or Node 22 or newer\n"
