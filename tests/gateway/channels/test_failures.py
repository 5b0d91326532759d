"""Failures inside the channels' background work: each is logged, and nothing stops for good."""

import asyncio
import gc
import logging
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openclaw_mcp.config.roster import roster_from_config
from openclaw_mcp.core.channel import ChatAddress, OutboundMessage
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.core.model import Json
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.gateway.channels import inbox, outbox
from openclaw_mcp.gateway.wiring.channels import ChannelServices, build_channels, run_channels
from openclaw_mcp.gateway.wiring.runs import open_store_services
from openclaw_mcp.store.messages import SqlInbox, SqlOutbox
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.policy import PolicyDecision
from openclaw_mcp.tools.registry import ToolRegistry

from .gateways import WAIT, Twin, open_channels, within
from .test_inbox import quickly, receive, settled


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "STORE_RETRY_DELAY", 0.01)
    monkeypatch.setattr(inbox, "STORE_RETRY_DELAY", 0.01)
    monkeypatch.setattr("openclaw_mcp.net.tasks.FIRST_BACK_OFF", 0.01)


def failing_once(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, but its first call raises what no caller expects."""
    calls: list[object] = []

    async def call(*params: Any, **more: Any) -> Any:
        calls.append(params)
        if len(calls) == 1:
            raise RuntimeError("unexpected")
        return await method(*params, **more)

    return call


def test_a_sent_message_that_can_not_be_copied_to_its_transcript_holds_up_none_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            monkeypatch.setattr(here.memory.sessions, "append", failing_once(here.memory.sessions.append))
            first = OutboundMessage(text="first")
            posted = await here.service.post(here.at("ann"), first, key="1", wait=WAIT, session="agent:main:main")
            assert posted.status == "sent"
            await here.service.post(here.at("ann"), OutboundMessage(text="second"), key="2")
            assert await here.twin.has(2) == [("ann", "first"), ("ann", "second")]

    within(scenario())


def test_progress_that_can_not_be_stored_stops_no_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            monkeypatch.setattr(here.books.outbox, "update", failing_once(here.books.outbox.update))
            for number in range(2):
                await here.service.post(here.at("ann"), OutboundMessage(text=str(number)), key=str(number))
            assert await here.twin.has(2) == [("ann", "0"), ("ann", "1")]

    within(scenario())


def test_the_outbox_looks_for_messages_of_dead_processes_after_a_failure_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "SWEEP_INTERVAL", 0.01)
    pruned = asyncio.Event()

    async def prune(*_params: Any, **_more: Any) -> int:
        pruned.set()
        return 0

    async def scenario() -> None:
        monkeypatch.setattr(SqlOutbox, "prune", failing_once(prune))
        async with open_channels(tmp_path), asyncio.timeout(WAIT):
            await pruned.wait()

    within(scenario())


def test_messages_that_can_not_be_joined_are_answered_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=quickly(debounce=100)) as here:
            monkeypatch.setattr(here.books.inbox, "merge", failing_once(here.books.inbox.merge))
            await receive(here, "!say one", id="1")
            await receive(here, "!say two", id="2")
            await receive(here, "/whoami", id="3")
            texts = [text for _, text in await here.twin.has(3)]
            assert {"one", "two"} <= set(texts)
            await settled(here)

    within(scenario())


def test_what_arrives_is_answered_after_the_inbox_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(SqlInbox, "pending", failing_once(SqlInbox.pending))
        async with open_channels(tmp_path) as here:
            await receive(here, "!say here", id="1")
            assert await here.twin.has(1) == [("ann", "here")]

    within(scenario())


def test_completed_entries_are_stored_after_a_failure_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            monkeypatch.setattr(here.books.inbox, "mark_complete", failing_once(here.books.inbox.mark_complete))
            await receive(here, "!say here", id="1")
            await settled(here)

    within(scenario())


def test_a_failing_typing_indicator_is_logged_and_the_reply_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Untypable(Twin):
        async def set_typing(self, address: ChatAddress, *, on: bool) -> None:
            raise RuntimeError("unexpected")

    async def scenario() -> None:
        async with open_channels(tmp_path, twin=Untypable(can=("send", "typing"))) as here:
            await receive(here, "!say here", id="1")
            assert await here.twin.has(1) == [("ann", "here")]

    within(scenario())
    assert [record for record in caplog.records if "typing" in record.getMessage() and record.exc_info]


def test_a_channel_that_fails_to_close_keeps_no_other_from_closing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[str] = []

    class Closable(Twin):
        async def aclose(self) -> None:
            await asyncio.sleep(0)
            if self.account == "default":
                raise RuntimeError("unexpected")
            await asyncio.sleep(0.01)
            closed.append(self.account)

    async def scenario() -> None:
        config: Json = {"channels": {"twin": {"accounts": {"default": {}, "second": {}}}}}
        async with open_channels(tmp_path, config=config, twin=Closable()) as here:
            assert here.twins["second"].run_count == 1
        assert closed == ["second"]

    def second(self: Any, account: str, settings: Json, folder: Path) -> Twin:
        twin: Twin = self.twins.setdefault(account, Closable(account))
        return twin

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.gateway.channels.gateways.ChannelHarness._make", second)
        within(scenario())
    assert any("closing failed" in record.getMessage() for record in caplog.records)


def test_a_file_that_can_not_be_loaded_leaves_no_other_unawaited(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            params = {"to": "room", "message": "x", "mediaUrls": ["/nowhere/a.png", "/nowhere/b.png"]}
            with pytest.raises(RpcError):
                await here.call("message.action", channel="local", action="send", params=params)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        within(scenario())
        gc.collect()
    assert not [each for each in caught if "never awaited" in str(each.message)]


@pytest.mark.parametrize("rules", [{"mediaMaxMb": 0.000001}, {"actions": {"attachment": False}}])
def test_a_file_that_the_config_forbids_is_named_and_the_reply_still_sent(tmp_path: Path, rules: Json) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config={"channels": {"local": rules}}) as here:
            file = {"mimeType": "image/png", "fileName": "a.png", "content": "aGVsbG8="}
            await here.call("local.send", text="!say look\n!return", attachments=[file])
            messages = await here.until(lambda found: len(found) == 2)
            assert messages[1]["text"] == "look\n[a.png: this channel can't carry it]"

    within(scenario())


# ---- following the config ----------------------------------------------------------------------------------------


class FakeConfig:
    def __init__(self) -> None:
        self.current = SimpleNamespace(config=read_config({}))
        self.changed: Signal[Any] = Signal()

    def change(self, channels: Json) -> None:
        self.current = SimpleNamespace(config=read_config({"channels": channels}))
        self.changed.emit(None)


@asynccontextmanager
async def following(folder: Path, config: FakeConfig, twin: Twin) -> AsyncIterator[ChannelServices]:
    """The channels as the gateway opens them. An account named `broken` has a factory with a bug."""

    def make(account: str, settings: Json, folder: Path) -> Twin:
        if account == "broken":
            raise RuntimeError("unexpected")
        return twin

    tools = ToolDispatcher(ToolRegistry(), policy=lambda *_: PolicyDecision(True, "the test says so"))
    async with open_store_services(str(folder / "openclaw.sqlite"), lambda event: None, tools=tools) as stores:
        services = build_channels(
            stores, lambda event: None, config=config, roster=lambda: roster_from_config(read_config({})),  # type: ignore[arg-type]
            folder=folder, tool_refusal=lambda caller, tool: None, factories={"twin": make},
        )  # fmt: skip
        async with run_channels(services.channels, config):  # type: ignore[arg-type]
            yield services


async def started(twin: Twin) -> None:
    async with asyncio.timeout(WAIT):
        while not twin.run_count:  # noqa: ASYNC110  (another task's state)
            await asyncio.sleep(0.01)


def test_the_config_is_followed_after_one_that_broke_a_factory(tmp_path: Path) -> None:
    async def scenario() -> None:
        config, twin = FakeConfig(), Twin()
        async with following(tmp_path, config, twin) as services:
            config.change({"twin": {"accounts": {"broken": {}}}})
            await asyncio.sleep(0.05)
            config.change({"twin": {"accounts": {"broken": {}, "default": {}}}})
            await started(twin)
            assert "internal error" in services.channels.accounts.issues["twin", "broken"]

    within(scenario())


def test_a_config_that_could_not_be_applied_is_applied_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        config, twin = FakeConfig(), Twin()
        async with following(tmp_path, config, twin) as services:
            runner = services.channels.runner
            monkeypatch.setattr(runner, "apply_config", failing_once(runner.apply_config))
            config.change({"twin": {}})
            await started(twin)

    caplog.set_level(logging.ERROR)
    within(scenario())
    assert any("config follower failed" in record.getMessage() for record in caplog.records)
