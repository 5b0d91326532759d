"""A chat while it is open: what the gateway sends is shown, and what is typed is sent, each at any time.

`on_event` handles every event of the gateway, `on_line` every line that is typed, `on_interrupt` Ctrl-C.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Final

import msgspec

from ..core.chat_commands import parse_command
from ..core.errors import OpenClawError
from ..core.model import Json
from ..core.rpc import RpcError
from ..net.gateway_client.client import CallTimeout, CannotConnect, ConnectionGone, GatewayClient
from ..net.tasks import Tasks
from ..protocol.gateway_frames import EventFrame
from .chat_conversation import (
    ChatUpdate,
    Conversation,
    MessageAdded,
    NoticeAdded,
    ReplyEnded,
    ReplyStarted,
    ReplyText,
    RunOutcome,
    SendReceipt,
    ShownMessage,
    TypingShown,
)
from .chat_questions import SessionQuestions
from .chat_screen import ChatScreen
from .chat_stream import ReplyStream
from .chat_turn import ChatTurn, EarlyUpdates, wait_until_sent

logger = logging.getLogger(__name__)

HISTORY_LIMIT: Final = 10  # earlier messages that are shown
MAX_UNSENT: Final = 100  # lines that wait to be sent while the gateway is away
MAX_SHOWN_IDS: Final = 5000  # messages that are known to be shown; more than are ever read again
MAX_HELD_EVENTS: Final = 10_000  # events that come while missed messages are read
RETRY_DELAY: Final = 0.2  # seconds before a line is sent again, for the loss of the connection to be known
RUN_POLL: Final = 30.0  # seconds of one wait for a run that had to queue
LEAVE_COMMANDS: Final = ("/quit", "/exit")

_QUEUE_NOTES: Final = {
    "collect": "waits: answered when this turn ends",
    "followup": "waits: answered when this turn ends",
    "steer": "sent: the agent takes it up in this turn",
    "interrupt": "sent: this turn is stopped for it",
}


class ChatTerminal:
    """From `open` to `aclose`. `left` is set when the person wants to leave."""

    def __init__(
        self, client: GatewayClient, conversation: Conversation, screen: ChatScreen, *, only_own: bool = False
    ) -> None:
        """`only_own`: what others write here, and what is replied to them, is not shown."""
        self.left = asyncio.Event()
        self._client = client
        self._conversation = conversation
        self._screen = screen
        self._only_own = only_own
        self._tasks = Tasks("chat")
        self._turns: list[ChatTurn] = []
        """Those that are not over, in the order they were typed."""
        self._unsent: asyncio.Queue[ChatTurn] = asyncio.Queue(MAX_UNSENT)
        self._other_runs: set[str] = set()
        """Runs of this conversation that no line of this chat began."""
        self._early = EarlyUpdates(MAX_HELD_EVENTS, self._forget_turns)
        self._typing = False
        self._stopping = False
        self._stream = ReplyStream(screen)
        self._shown_ids: dict[str, None] = {}
        self._is_current = asyncio.Event()
        """Set while we are connected and everything that was missed is shown."""
        self._held_events: list[EventFrame] = []
        self._dial_failure = ""

    async def open(self, *, show_history: bool) -> None:
        """Begin to follow the conversation. Raises OpenClawError."""
        self._client.events.connect(self.on_event)
        self._client.disconnected.connect(self._on_connection_loss)
        self._client.dial_failed.connect(self._on_dial_failure)
        waiting = await self._conversation.open()
        earlier = await self._conversation.read()
        for message in earlier:
            self._mark_shown(message.id)
        for message in earlier[-HISTORY_LIMIT:] if show_history else ():
            self._show_message(message, with_name=True)
        for notice in waiting:
            self._show_notice(notice.text)
        self._client.connected.connect(self._on_reconnect)
        self._become_current()
        self._tasks.loop(self._send_next, name="sender", on_failure="restart")

    async def aclose(self) -> None:
        await self._tasks.aclose()

    async def wait_until_idle(self) -> None:
        """Until every line that was typed is answered."""
        while self._turns:
            await self._turns[0].is_over.wait()
            self._forget_turns()

    @property
    def is_working(self) -> bool:
        """Whether the agent is at work here."""
        return self._typing or bool(self._other_runs) or any(turn.is_working for turn in self._turns)

    def show_merged(self) -> None:
        """Say where the reply is to a line that another run replies to."""
        self._screen.show_note("a message that came later is answered together with this one; openclaw chat shows it")

    # ---- what is typed -------------------------------------------------------------------------------------------

    def on_line(self, line: str) -> ChatTurn | None:
        """Every typed line. Returns the turn it began."""
        text = line.strip()
        if not text:
            return None
        if text.lower() in LEAVE_COMMANDS:
            self.left.set()
            return None
        turn = ChatTurn(text, self._forget_turns)
        if text.lower() == "/stop":
            self._stop(turn)
            return turn
        command = parse_command(text)
        if command is not None and command.name == "/approve" and self._conversation.questions is not None:
            self._tasks.spawn(self._answer_question(self._conversation.questions, command.argument), name="answer")
            turn.on_end("aborted")
            return turn
        refusal = self._conversation.refuse(text)
        if refusal is not None:
            self._screen.show(refusal)
            turn.on_end("aborted")
            return turn
        try:
            self._unsent.put_nowait(turn)
        except asyncio.QueueFull:
            self._screen.show_note(f"not sent: {MAX_UNSENT} lines wait already for the gateway")
            return None
        self._turns.append(turn)
        self._show_status()
        return turn

    async def _answer_question(self, questions: SessionQuestions, arguments: str) -> None:
        reply = await questions.answer(arguments)
        if reply is not None:
            self._screen.show(reply)

    def on_interrupt(self) -> None:
        """Ctrl-C: stops the turn that runs; takes back what is typed; leaves when there is nothing of either."""
        if self.is_working and self._is_current.is_set() and not self._stopping:
            self._stop(ChatTurn("/stop", self._forget_turns))
        elif self.is_working or not self._screen.clear_line():
            self.left.set()

    def _stop(self, turn: ChatTurn) -> None:
        if not self._is_current.is_set():
            self._screen.show_note("not connected: nothing can be stopped now")
            turn.is_over.set()
            return
        self._stopping = True
        self._turns.append(turn)
        self._tasks.spawn(self._send_stop(turn), name="stop")
        self._show_status()

    async def _send_stop(self, turn: ChatTurn) -> None:
        earlier = [each for each in self._turns if each is not turn and each.outcome is None]
        try:
            await wait_until_sent(earlier)
            with self._early.held():
                stopped = await self._conversation.stop()
                if isinstance(stopped, SendReceipt):
                    turn.run_id = stopped.run_id
                else:
                    self._screen.show(stopped)
                    turn.is_over.set()
        except OpenClawError as exc:
            self._screen.show_note(f"not stopped: {exc}")
            turn.is_over.set()
        else:
            await turn.is_over.wait()
            for each in earlier:  # also those that no run began for, such as a message that was not accepted
                each.on_end("aborted")
        self._stopping = False
        self._forget_turns()

    async def _send_next(self) -> None:
        turn = await self._unsent.get()
        await self._is_current.wait()
        earlier = takewhile(lambda each: each is not turn, self._turns)
        is_behind = self._typing or any(each.is_working for each in earlier)
        with self._early.held():
            try:
                sent, ended = await self._send(turn)
            except OpenClawError as exc:
                self._screen.show_note(f"not sent: {exc}")
                turn.outcome = "error"
                turn.is_over.set()
                return
            finally:
                turn.is_sent.set()
            turn.run_id = sent.run_id
            if sent.run_id in self._other_runs:
                self._other_runs.remove(sent.run_id)
                turn.on_start()
            if sent.message_id is not None:
                self._mark_shown(sent.message_id)
            if is_behind and not turn.is_command and sent.queue_mode in _QUEUE_NOTES:
                self._screen.show_note(_QUEUE_NOTES[sent.queue_mode])
            for update in ended:
                self._on_update(update)

    async def _send(self, turn: ChatTurn) -> tuple[SendReceipt, Sequence[ChatUpdate]]:
        """Send it, again under the same key until the gateway has answered; and how its run ended, if that was while we
        were away. Raises OpenClawError."""
        is_repeated = False
        while True:
            await self._is_current.wait()
            try:
                sent = await self._conversation.send(turn.text, turn.key)
                return sent, await self._conversation.wait_for_end(sent.run_id, 0) if is_repeated else ()
            except (ConnectionGone, CannotConnect, CallTimeout) as exc:
                logger.debug("chat: a line is sent again (%s)", exc)
                is_repeated = True
                await asyncio.sleep(RETRY_DELAY)

    # ---- what the gateway sends ----------------------------------------------------------------------------------

    def on_event(self, event: EventFrame) -> None:
        """Every event of the gateway."""
        if not self._is_current.is_set():
            if len(self._held_events) < MAX_HELD_EVENTS:
                self._held_events.append(event)
            return
        try:
            for update in self._conversation.read_event(event):
                self._on_update(update)
        except msgspec.ValidationError as exc:
            logger.debug("chat: event %s is not understood (%s)", event.event, exc)
        self._forget_turns()

    def _on_update(self, update: ChatUpdate) -> None:
        match update:
            case MessageAdded(message=message):
                self._on_message(message)
            case NoticeAdded(text=text):
                self._show_notice(text)
            case TypingShown(on=on):
                self._typing = on
            case ReplyEnded(run_id=run_id, outcome=outcome):
                self._on_run_end(run_id, outcome)
            case ReplyStarted(run_id=run_id) | ReplyText(run_id=run_id):
                turn = self._find_turn(run_id)
                if turn is None:
                    self._other_runs.add(run_id)
                else:
                    turn.on_start()
                if isinstance(update, ReplyText):
                    self._stream.add(run_id, update.text)

    def _on_message(self, message: ShownMessage, *, is_late: bool = False) -> None:
        """`is_late`: it came while we were away."""
        if message.id in self._shown_ids:
            return
        self._mark_shown(message.id)
        if not message.by_agent:
            typed_here = any(turn.text == message.text for turn in self._turns)
            if not typed_here and not self._only_own:
                self._show_message(message, with_name=True)
            return
        if message.is_notice:
            self._show_notice(message.text)
            return
        self._on_reply(message, is_late=is_late)

    def _on_reply(self, message: ShownMessage, *, is_late: bool) -> None:
        answered = self._find_answered(message, is_late=is_late)
        is_unknown = answered is None and message.run_id is not None
        if is_unknown and self._early.hold(partial(self._on_reply, message, is_late=is_late)):
            return
        if answered is not None or not self._only_own:
            self._show_reply(message, is_late=is_late)
        if answered is not None and message.is_last:
            answered.on_reply()

    def _find_answered(self, message: ShownMessage, *, is_late: bool) -> ChatTurn | None:
        """The turn that a reply is for. Where the gateway does not say it: an end comes before its reply, and a command
        is answered at once."""
        if message.run_id is not None:
            return self._find_turn(message.run_id)
        waiting = [turn for turn in self._turns if turn.run_id is not None or not is_late]
        return min(waiting, key=lambda turn: (turn.outcome is None, not turn.is_command), default=None)

    def _on_run_end(self, run_id: str, outcome: RunOutcome) -> None:
        self._other_runs.discard(run_id)
        self._typing = False  # shown again soon, if it is for another message
        turn = self._find_turn(run_id)
        if turn is None:
            self._stream.give_way(run_id)
            self._early.hold(partial(self._on_run_end, run_id, outcome))
            return
        if outcome == "queued":
            self._tasks.spawn(self._follow_queued(run_id), name="queued run")
            return
        turn.on_end(outcome)

    async def _follow_queued(self, run_id: str) -> None:
        """The run goes on under another id; when it has ended, its reply is in the transcript."""
        ended: Sequence[ChatUpdate] = ()
        while not ended:
            ended = await self._conversation.wait_for_end(run_id, RUN_POLL)
        self._show_missed(await self._conversation.read())
        for update in ended:
            self._on_update(update)
        self._forget_turns()

    def _find_turn(self, run_id: str) -> ChatTurn | None:
        return next((turn for turn in self._turns if run_id in (turn.run_id, turn.key)), None)

    def _forget_turns(self) -> None:
        """Forget the turns that are over."""
        for turn in [turn for turn in self._turns if turn.is_over.is_set()]:
            self._turns.remove(turn)
            self._stream.drop((turn.run_id, turn.key))
        self._show_status()

    # ---- the connection ------------------------------------------------------------------------------------------

    def _on_connection_loss(self, reason: str) -> None:
        self._is_current.clear()
        self._typing, self._dial_failure = False, reason
        self._stream.interrupt()
        self._screen.show_note(f"{reason}; reconnecting")
        self._show_status()

    def _on_dial_failure(self, exc: CannotConnect) -> None:
        """Each reason once: it is dialled again and again."""
        if str(exc) != self._dial_failure:
            self._dial_failure = str(exc)
            self._screen.show_note(f"{exc}; trying again")

    def _on_reconnect(self, _: Json) -> None:
        self._tasks.spawn(self._catch_up(), name="catching up")

    async def _catch_up(self) -> None:
        """After a reconnect: show what came meanwhile, then what has come since."""
        try:
            waiting = await self._conversation.open()
            messages = await self._conversation.read()
            runs = [turn.run_id for turn in self._turns if turn.run_id is not None]
            ended = [update for run_id in runs for update in await self._conversation.wait_for_end(run_id, 0)]
        except (ConnectionGone, CannotConnect, CallTimeout) as exc:
            logger.debug("chat: not caught up (%s)", exc)  # the next connection does it
            return
        except RpcError as exc:
            self._screen.show_note(f"{exc}")
            return
        self._screen.show_note("connected again")
        self._show_missed(messages)
        for notice in waiting:
            self._show_notice(notice.text)
        self._other_runs.clear()
        for update in ended:
            self._on_update(update)
        self._become_current()

    def _become_current(self) -> None:
        self._is_current.set()
        held, self._held_events = self._held_events, []
        for event in held:
            self.on_event(event)
        self._forget_turns()

    def _show_missed(self, messages: Sequence[ShownMessage]) -> None:
        """Those that are not shown yet and came after one that is."""
        known = next((at for at, message in enumerate(messages) if message.id in self._shown_ids), 0)
        for message in messages[known:]:
            self._on_message(message, is_late=True)

    # ---- the screen ----------------------------------------------------------------------------------------------

    def _show_status(self) -> None:
        if not self._is_current.is_set():
            status = "(reconnecting; Ctrl-C leaves)"
        elif self._stopping:
            status = "(stopping; Ctrl-C leaves)"
        else:
            status = "(working; Ctrl-C stops)" if self.is_working else ""
        self._screen.set_status(status)

    def _mark_shown(self, id: str) -> None:
        self._shown_ids[id] = None
        if len(self._shown_ids) > MAX_SHOWN_IDS:
            del self._shown_ids[next(iter(self._shown_ids))]

    def _show_reply(self, message: ShownMessage, *, is_late: bool) -> None:
        """Show the message as it was sent, without what is shown of it already."""
        turn = None if message.run_id is None else self._find_turn(message.run_id)
        run_ids = {message.run_id} if turn is None else {message.run_id, turn.run_id, turn.key}
        if self._stream.show_rest(message, {each for each in run_ids if each is not None}, is_late=is_late):
            self._show_files(message)
        else:
            self._show_message(message)

    def _show_notice(self, text: str) -> None:
        """Where a person types it is part of the conversation; elsewhere standard output is the agent's alone."""
        if self._screen.is_interactive:
            self._stream.interrupt()
            self._screen.show(text)
        else:
            self._screen.show_note(text)

    def _show_message(self, message: ShownMessage, *, with_name: bool = False) -> None:
        self._screen.show(f"{message.name}: {message.text}" if with_name else message.text)
        self._show_files(message)

    def _show_files(self, message: ShownMessage) -> None:
        for file in message.files:
            size = "" if file.size is None else f", {file.size} bytes"
            self._screen.show(f"[{file.name or 'file'}, {file.mime_type}{size}]")
