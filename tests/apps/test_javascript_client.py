"""JavaScript functions lent through a real proxy, from Node and from a page in a real browser."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from tests.apps.proxies import APP_TOKEN, api, ask_and_leave, call, free_port, proxy, text, tools
from tests.apps.scripts import Reports, Start, in_chromium, in_node

WHERE = [pytest.param(in_node, id="node"), pytest.param(in_chromium, id="chromium")]
PIXEL = b"\x89P\x00\xff"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with proxy() as found:
        yield found


@pytest.fixture(scope="module", params=WHERE)
def lent_tools(request: pytest.FixtureRequest, address: str) -> Iterator[tuple[str, Reports]]:
    """The MCP address of a script's tools, and what the script says."""
    with request.param(address, APP_TOKEN) as reports:
        yield reports.wait_for("open")["detail"]["mcpUrl"], reports


def test_functions_are_listed_with_their_schemas(lent_tools: tuple[str, Reports]) -> None:
    url, _ = lent_tools
    first, *_ = tools(url)

    assert (first["name"], first["description"]) == ("add", "Add.")
    assert first["inputSchema"] == {
        "type": "object",
        "properties": {"a": {"type": "number", "description": "the first"}, "b": {"type": "number", "default": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert text(call(url, "add", {"a": 1})) == "2"
    assert call(url, "add", {"a": "one"})["isError"]


@pytest.mark.parametrize(
    ("value", "expected"), [("wörd", "wörd"), (7, "7"), (True, "true"), (None, "null"), ([1, "a"], '[1,"a"]')]
)
def test_any_json_comes_back_as_text(lent_tools: tuple[str, Reports], value: Any, expected: str) -> None:
    assert text(call(lent_tools[0], "same", {"value": value})) == expected


def test_an_object_comes_back_structured_and_nothing_as_null(lent_tools: tuple[str, Reports]) -> None:
    assert call(lent_tools[0], "same", {"value": {"a": 1}})["structuredContent"] == {"a": 1}
    assert text(call(lent_tools[0], "nothing")) == "null"


def test_pictures_pass_as_content_blocks(lent_tools: tuple[str, Reports]) -> None:
    (block,) = call(lent_tools[0], "picture")["content"]
    assert (block["type"], block["mimeType"], base64.b64decode(block["data"])) == ("image", "image/png", PIXEL)

    first, second, third = call(lent_tools[0], "mixed")["content"]
    assert (first["text"], second["mimeType"], third["text"]) == ("before", "image/gif", '{"after":1}')
    assert base64.b64decode(second["data"]) == PIXEL


def test_failures_are_sentences_and_keep_the_apps_secrets(lent_tools: tuple[str, Reports]) -> None:
    result = call(lent_tools[0], "polite")
    assert (text(result), result["isError"]) == ("the printer is out of paper; fill it", True)
    assert text(call(lent_tools[0], "clumsy")) == "clumsy failed in the app (RangeError); its log says more"
    assert text(call(lent_tools[0], "round")) == "round failed in the app (TypeError); its log says more"


def test_half_a_character_in_an_answer_is_replaced(lent_tools: tuple[str, Reports]) -> None:
    result = call(lent_tools[0], "cut", progressToken="p")
    assert result["structuredContent"] == {"key \ufffd": ["\ufffd", "😀", "\\ud83d", '"\\']}
    assert [message["params"]["message"] for message in result["said"]] == ["at \ufffd"]
    first, second = call(lent_tools[0], "cut_text")["content"]
    assert (first["text"], second["text"]) == ("\ufffd", '{"half":"\ufffd"}')
    assert text(call(lent_tools[0], "cut_error")) == "no \ufffd"


def test_what_can_never_work_is_refused_as_it_is_given(lent_tools: tuple[str, Reports]) -> None:
    refused = [report for report in lent_tools[1].seen if report["type"] == "refused"]

    address = "is no address of a proxy; give one like http://127.0.0.1:8000"
    token = "the app token has a line break or a character no header can carry; give one of ASCII"
    assert [report["detail"] for report in refused] == [
        f'"http://[::1" {address}',
        f'"http://127.0.0.1:99999" {address}',
        f"an address with a password in it {address}",
        token,
        token,
        "atOnce is 0; at least one call must be able to run",
        "the session's secret must be 32 to 256 characters of ASCII",
    ]
    assert {report["name"] for report in refused} == {"TypeError"}


def test_progress_comes_before_the_result(lent_tools: tuple[str, Reports]) -> None:
    result = call(lent_tools[0], "walk", progressToken="p")

    assert [notification["params"]["message"] for notification in result["said"]] == ["half way"]
    assert text(result) == "there"


def test_a_caller_who_goes_away_aborts_the_function(lent_tools: tuple[str, Reports]) -> None:
    url, reports = lent_tools

    ask_and_leave(url, "sleepy", lambda: reports.wait_for("asleep"))

    assert "nobody waits" in reports.wait_for("aborted")["detail"]


def test_no_more_calls_run_at_once_than_agreed(lent_tools: tuple[str, Reports]) -> None:
    with ThreadPoolExecutor(8) as callers:
        counts = list(callers.map(lambda _: int(text(call(lent_tools[0], "count"))), range(8)))

    assert max(counts) == 2


def test_tools_change_while_lent(lent_tools: tuple[str, Reports]) -> None:
    assert text(call(lent_tools[0], "grow")) == "done"

    names = [tool["name"] for tool in tools(lent_tools[0])]
    assert "grown" in names
    assert "nothing" not in names
    assert text(call(lent_tools[0], "grown")) == "grown"


@pytest.mark.parametrize("start", WHERE)
def test_leaving_takes_the_session_away(address: str, start: Start) -> None:
    with start(address, APP_TOKEN) as reports:
        session = reports.wait_for("open")["detail"]
        call(session["mcpUrl"], "leave")
        reports.wait_for("left")
        assert api(address, "GET", f"/{session['id']}").status == 404


@pytest.mark.parametrize("start", WHERE)
def test_a_deleted_session_ends_the_lending_until_it_is_opened_again(address: str, start: Start) -> None:
    with start(address, APP_TOKEN) as reports:
        session = reports.wait_for("open")["detail"]
        api(address, "DELETE", f"/{session['id']}")
        assert reports.wait_for("error")["name"] == "SessionDeleted"
        again = reports.wait_for("open")["detail"]
        assert again["id"] == session["id"], "its secret is the same"
        assert text(call(again["mcpUrl"], "add", {"a": 1})) == "2"


@pytest.mark.parametrize("start", WHERE)
def test_a_wrong_token_is_reported_at_once(address: str, start: Start) -> None:
    with start(address, "wrong") as reports:
        error = reports.wait_for("error")
        assert error["known"]
        assert "401" in error["detail"]


@pytest.mark.parametrize("start", WHERE)
def test_a_proxy_that_comes_back_is_found_again(start: Start) -> None:
    port = free_port()
    with ExitStack() as first:
        address = first.enter_context(proxy(port))
        with start(address, APP_TOKEN) as reports:
            before = reports.wait_for("open")["detail"]
            first.close()
            reports.wait_for("disconnected")
            with proxy(port):
                reports.wait_for("connected")
                assert text(call(before["mcpUrl"], "add", {"a": 2, "b": 3})) == "5"
