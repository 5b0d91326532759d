"""A chat and its gateway in memory: what is shown of what happens, in any order it may happen in."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from openclaw_mcp.cli.chat_conversation import (
    ChatUpdate,
    MessageAdded,
    NoticeAdded,
    ReplyEnded,
    ReplyStarted,
    ReplyText,
    RunOutcome,
    SendReceipt,
    ShownMessage,
)
from openclaw_mcp.cli.chat_terminal import MAX_UNSENT, ChatTerminal
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.net.gateway_client.client import ConnectionGone, GatewayClient
from openclaw_mcp.protocol.gateway_frames import EventFrame

WAIT = 10.0


class Gateway:
    """The gateway's client and its conversation. An event's payload is the update itself."""

    title = "main"
    questions = None

    def __init__(self) -> None:
        self.events: Signal[EventFrame] = Signal()
        self.connected: Signal[Any] = Signal()
        self.disconnected: Signal[str] = Signal()
        self.dial_failed: Signal[Any] = Signal()
        self.messages: list[ShownMessage] = []
        self.sent: dict[str, str] = {}
        """Texts by their keys."""
        self.runs: dict[str, RunOutcome] = {}
        """Those that ended while the chat was away."""
        self.loses_answers = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.answered: list[str] = []
        self.ends_before_answers: RunOutcome | None = None
        self.replies_to_stop = False
        """Whether `/stop` is a message of the conversation, which its reply names."""
        self.changed = asyncio.Event()

    async def open(self) -> Sequence[NoticeAdded]:
        return ()

    async def read(self) -> Sequence[ShownMessage]:
        return list(self.messages)

    async def send(self, text: str, key: str) -> SendReceipt:
        if key not in self.sent:
            self.sent[key] = text
            self.messages.append(ShownMessage(id=f"in-{key}", text=text, by_agent=False, name="owner"))
        self.changed.set()
        await self.may_answer.wait()
        if self.loses_answers:
            raise ConnectionGone("gone")
        self.answered.append(key)
        if self.ends_before_answers is not None:
            self.happen(ReplyStarted(f"run-{key}"), ReplyEnded(f"run-{key}", self.ends_before_answers))
        return SendReceipt(run_id=f"run-{key}", message_id=f"in-{key}", queue_mode="collect")

    async def stop(self) -> str | SendReceipt:
        if self.replies_to_stop:
            self.happen(self.reply("stopped", "Stopped.", run_id="run-stop"))
            return SendReceipt(run_id="run-stop")
        return "Stopped." if self.answered else "Nothing was going on."

    def refuse(self, text: str) -> str | None:
        return None

    def read_event(self, event: EventFrame) -> Sequence[ChatUpdate]:
        return (cast(ChatUpdate, event.payload),)

    async def wait_for_end(self, run_id: str, seconds: float) -> Sequence[ChatUpdate]:
        return (ReplyEnded(run_id, self.runs[run_id]),) if run_id in self.runs else ()

    # ---- what happens ----

    def happen(self, *updates: ChatUpdate) -> None:
        for update in updates:
            self.events.emit(EventFrame(event="x", payload=update, seq=None))

    def reply(self, id: str, text: str, run_id: str | None = None) -> MessageAdded:
        message = ShownMessage(id=id, text=text, by_agent=True, name="agent", run_id=run_id)
        self.messages.append(message)
        return MessageAdded(message)

    def come_back(self) -> None:
        self.loses_answers = False
        self.connected.emit({})


class Screen:
    is_interactive = shows_partial_text = True

    def __init__(self) -> None:
        self.text = ""
        self.status = ""
        self.changed = asyncio.Event()

    def show(self, text: str) -> None:
        self.end_text()
        self.add_text(f"{text}\n")

    def show_note(self, text: str) -> None:
        self.show(f"-- {text}")

    def add_text(self, text: str) -> None:
        self.text += text
        self.changed.set()

    def end_text(self) -> None:
        if self.text and not self.text.endswith("\n"):
            self.text += "\n"

    def set_status(self, status: str) -> None:
        self.status = status

    def clear_line(self) -> bool:
        return False

    async def read_lines(self) -> AsyncIterator[str]:
        return
        yield

    async def see(self, fits: Callable[[str], bool]) -> None:
        while not fits(self.text):
            self.changed.clear()
            await self.changed.wait()


def chat(
    scene: Callable[[ChatTerminal, Gateway, Screen], Coroutine[Any, Any, None]], *earlier: str, only_own: bool = False
) -> None:
    async def play() -> None:
        gateway, screen = Gateway(), Screen()
        for number, text in enumerate(earlier):
            gateway.reply(f"old-{number}", text)
        terminal = ChatTerminal(cast(GatewayClient, gateway), gateway, screen, only_own=only_own)
        async with asyncio.timeout(WAIT):
            await terminal.open(show_history=True)
            try:
                await scene(terminal, gateway, screen)
            finally:
                await terminal.aclose()

    asyncio.run(play())


async def send(terminal: ChatTerminal, gateway: Gateway, text: str) -> str:
    """Type it; the id of its run."""
    gateway.changed.clear()
    turn = terminal.on_line(text)
    assert turn is not None
    await gateway.changed.wait()
    return f"run-{turn.key}"


def test_a_reply_is_shown_as_it_is_written_and_its_message_adds_only_the_rest() -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        run = await send(terminal, gateway, "hello")
        gateway.happen(ReplyStarted(run), ReplyText(run, "One "), ReplyText(run, "One two"))
        assert (screen.text, screen.status) == ("One two", "(working; Ctrl-C stops)")
        gateway.happen(ReplyEnded(run, "ok"), gateway.reply("a", "One two three"))
        assert (screen.text, screen.status) == ("One two three\n", "")

    chat(scene)


def test_a_line_is_stopped_once_the_gateway_has_it() -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        gateway.may_answer.clear()
        await send(terminal, gateway, "hello")
        terminal.on_interrupt()
        await asyncio.sleep(0)
        gateway.may_answer.set()
        await screen.see(lambda text: text != "")
        assert screen.text == "Stopped.\n"

    chat(scene)


@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_a_run_whose_end_comes_with_its_id_has_ended(outcome: RunOutcome) -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        gateway.ends_before_answers = outcome
        turn = terminal.on_line("hello")
        assert turn is not None
        await gateway.changed.wait()
        gateway.happen(gateway.reply("a", "Done."))
        await terminal.wait_until_idle()
        assert (screen.text, screen.status, turn.outcome) == ("Done.\n", "", outcome)

    chat(scene)


@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_a_reply_that_is_read_before_the_answer_to_its_line_ends_the_turn_as_its_run_ended(outcome: RunOutcome) -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        gateway.may_answer.clear()
        turn = terminal.on_line("hello")
        assert turn is not None
        await gateway.changed.wait()
        run = f"run-{turn.key}"
        gateway.happen(ReplyStarted(run), ReplyEnded(run, outcome), gateway.reply("a", "Done.", run_id=run))
        gateway.may_answer.set()
        await terminal.wait_until_idle()
        assert (screen.text, screen.status, turn.outcome) == ("Done.\n", "", outcome)

    chat(scene, only_own=True)


@pytest.mark.parametrize("only_own", [True, False])
def test_a_reply_to_somebody_else_while_a_line_is_sent_is_not_taken_for_its_answer(*, only_own: bool) -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        gateway.may_answer.clear()
        turn = terminal.on_line("hello")
        assert turn is not None
        await gateway.changed.wait()
        gateway.happen(ReplyStarted("other"), ReplyEnded("other", "ok"), gateway.reply("a", "To you.", run_id="other"))
        gateway.may_answer.set()
        await turn.is_sent.wait()
        run = f"run-{turn.key}"
        gateway.happen(ReplyStarted(run), ReplyEnded(run, "error"), gateway.reply("b", "To me.", run_id=run))
        await terminal.wait_until_idle()
        assert turn.outcome == "error"
        assert screen.text == ("To me.\n" if only_own else "To you.\nTo me.\n")

    chat(scene, only_own=only_own)


def test_the_reply_to_a_stop_may_be_read_before_the_answer_to_it() -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        gateway.replies_to_stop = True
        run = await send(terminal, gateway, "hello")
        gateway.happen(ReplyStarted(run))
        stop = terminal.on_line("/stop")
        assert stop is not None
        await terminal.wait_until_idle()
        assert (screen.text, screen.status) == ("Stopped.\n", "")

    chat(scene, only_own=True)


def test_two_replies_are_not_mixed() -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        first, second = await send(terminal, gateway, "one"), await send(terminal, gateway, "two")
        gateway.happen(ReplyText(first, "First"), ReplyEnded(first, "ok"), ReplyText(second, "Sec"))
        gateway.happen(gateway.reply("a", "First."), ReplyText(second, "Second"), ReplyEnded(second, "ok"))
        gateway.happen(gateway.reply("b", "Second."))
        assert screen.text == "-- waits: answered when this turn ends\nFirst.\nSecond.\n"

    chat(scene)


def test_a_reply_that_another_message_interrupts_goes_on_after_it() -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        first, second = await send(terminal, gateway, "one"), await send(terminal, gateway, "two")
        gateway.happen(ReplyEnded(first, "ok"), ReplyText(second, "Sec"))
        gateway.happen(gateway.reply("a", "First.", run_id=first), ReplyText(second, "Secon"))
        gateway.happen(NoticeAdded("May it run?"), ReplyText(second, "Second"), ReplyEnded(second, "ok"))
        gateway.happen(gateway.reply("b", "Second.", run_id=second))
        assert screen.text == "-- waits: answered when this turn ends\nSec\nFirst.\n…on\nMay it run?\n…d.\n"

    chat(scene)


def test_the_reply_of_another_run_that_never_sends_its_message_holds_up_no_later_one() -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        gateway.happen(ReplyText("other", "Never m"), ReplyEnded("other", "aborted"))
        run = await send(terminal, gateway, "one")
        gateway.happen(ReplyText(run, "Never m"), ReplyText(run, "Never mind"), ReplyEnded(run, "ok"))
        gateway.happen(gateway.reply("a", "Never mind.", run_id=run))
        assert screen.text == "Never m\nNever mind.\n"

    chat(scene)


def test_what_came_while_the_gateway_was_away_is_shown_once_and_in_order() -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        run = await send(terminal, gateway, "hello")
        gateway.happen(ReplyStarted(run), ReplyText(run, "Half"))
        gateway.disconnected.emit("it went away")
        assert screen.status == "(reconnecting; Ctrl-C leaves)"
        gateway.reply("a", "Half and whole.")
        gateway.runs[run] = "ok"
        gateway.come_back()
        gateway.happen(MessageAdded(gateway.messages[-1]), gateway.reply("b", "News."))
        await screen.see(lambda text: "News." in text)
        assert screen.text == (
            "agent: earlier\nHalf\n-- it went away; reconnecting\n-- connected again\n… and whole.\nNews.\n"
        )
        assert screen.status == ""

    chat(scene, "earlier")


def test_a_line_whose_answer_was_lost_is_sent_once() -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        gateway.loses_answers = True
        run = await send(terminal, gateway, "hello")
        gateway.disconnected.emit("gone")
        gateway.reply("a", "Hi.")
        gateway.changed.clear()
        gateway.come_back()
        await gateway.changed.wait()
        gateway.happen(ReplyEnded(run, "ok"))
        assert list(gateway.sent.values()) == ["hello"]
        assert screen.text == "-- gone; reconnecting\n-- connected again\nHi.\n"

    chat(scene)


@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_a_line_whose_answer_was_lost_is_answered_by_the_reply_that_came_meanwhile(outcome: RunOutcome) -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        gateway.loses_answers = True
        turn = terminal.on_line("hello")
        assert turn is not None
        await gateway.changed.wait()
        gateway.disconnected.emit("gone")
        gateway.reply("a", "Done.", run_id=f"run-{turn.key}")
        gateway.runs[f"run-{turn.key}"] = outcome
        gateway.come_back()
        await terminal.wait_until_idle()
        assert (screen.text, turn.outcome) == ("-- gone; reconnecting\n-- connected again\nDone.\n", outcome)

    chat(scene, only_own=True)


def test_a_reply_that_was_shown_whole_is_not_shown_again_when_its_message_comes_late() -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        run = await send(terminal, gateway, "hello")
        gateway.happen(ReplyText(run, "Done."), ReplyEnded(run, "merged"))
        gateway.disconnected.emit("gone")
        gateway.reply("a", "Done.")
        gateway.come_back()
        await screen.see(lambda text: "connected again" in text)
        assert screen.text == "Done.\n-- gone; reconnecting\n-- connected again\n"

    chat(scene)


def test_only_so_many_lines_wait_for_a_gateway_that_is_away() -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        gateway.disconnected.emit("gone")
        for number in range(MAX_UNSENT + 5):
            terminal.on_line(f"line {number}")
            await asyncio.sleep(0)
        assert f"not sent: {MAX_UNSENT} lines wait already" in screen.text
        terminal.on_interrupt()
        assert terminal.left.is_set()

    chat(scene)


def test_ctrl_c_stops_what_runs_and_leaves_when_it_is_pressed_again() -> None:
    async def scene(terminal: ChatTerminal, gateway: Gateway, screen: Screen) -> None:
        await send(terminal, gateway, "hello")
        terminal.on_interrupt()
        assert screen.status == "(stopping; Ctrl-C leaves)"
        await screen.see(lambda text: text.endswith("Stopped.\n"))
        assert not terminal.left.is_set()
        terminal.on_interrupt()
        assert terminal.left.is_set()

    chat(scene)
