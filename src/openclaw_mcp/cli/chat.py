"""`openclaw chat`: talk to an agent in this terminal."""

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

from ..core.chat_commands import is_urgent
from ..core.errors import BadRequest, OpenClawError
from ..core.rpc import RpcError
from ..net.gateway_client.client import GatewayClient
from ..net.tasks import Tasks
from . import gateway_connection
from .chat_conversation import Conversation, open_conversation
from .chat_screen import ChatScreen, PlainScreen, open_screen
from .chat_terminal import ChatTerminal

MAX_MESSAGE: Final = 1 << 20  # bytes of standard input that are one message; what is longer belongs in a file
INTERRUPTED: Final = 130  # the exit status after Ctrl-C
MAX_READ_AHEAD: Final = 100  # lines of a pipe that are read before their turn, so that a `/stop` among them is seen
STOP_TIMEOUT: Final = 5.0  # seconds a turn has to stop after Ctrl-C before we leave all the same


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("conversation", nargs="?", default="main", help="its name; any is possible (default main)")
    message_help = "send this, print the answer and exit; - reads it from standard input"
    parser.add_argument("-m", "--message", help=message_help)
    parser.add_argument("--agent", metavar="ID", help="talk to this agent, in its session of the conversation's name")
    parser.add_argument("--as", dest="sender", metavar="ID", help="write as another sender; access rules apply to them")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="with -m: wait this long")
    gateway_connection.add_connection_options(parser)


def run(options: argparse.Namespace) -> int:
    message = _read_message() if options.message == "-" else options.message
    if message is not None and not message.strip():
        raise BadRequest("there is nothing to send: the message is empty")
    try:
        return asyncio.run(_chat(options, message))
    except RpcError as exc:
        raise OpenClawError(str(exc)) from None


async def _chat(options: argparse.Namespace, message: str | None) -> int:
    async with gateway_connection.connect_from_options(options, redial=True) as client:
        conversation = open_conversation(client, options.conversation, agent=options.agent, sender=options.sender)
        if message is not None:
            async with _open_terminal(client, conversation, PlainScreen(), is_alone=True) as terminal:
                return await _send_once(terminal, message, seconds=options.timeout)
        with open_screen() as screen:
            async with _open_terminal(client, conversation, screen) as terminal:
                keys = "Ctrl-C stops the agent, or leaves; Ctrl-D leaves"
                screen.show(f"-- {conversation.title}; /help for commands; {keys}")
                return await _converse(terminal, screen)


@asynccontextmanager
async def _open_terminal(
    client: GatewayClient, conversation: Conversation, screen: ChatScreen, *, is_alone: bool = False
) -> AsyncIterator[ChatTerminal]:
    """`is_alone`: one line and its answer are shown, nothing else of the conversation."""
    terminal = ChatTerminal(client, conversation, screen, only_own=is_alone)
    try:
        await terminal.open(show_history=not is_alone)
        yield terminal
    finally:
        await terminal.aclose()


def _read_message() -> str:
    """Standard input as one message. Raises BadRequest."""
    data = sys.stdin.buffer.read(MAX_MESSAGE + 1)
    if len(data) > MAX_MESSAGE:
        raise BadRequest(f"standard input is longer than {MAX_MESSAGE} bytes; send a part of it, or name its file")
    try:
        text = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise BadRequest("standard input is not UTF-8 text; send text, or name the file") from None
    if not text.strip():
        raise BadRequest("there is nothing to send: standard input is empty")
    return text


async def _send_once(terminal: ChatTerminal, message: str, *, seconds: float) -> int:
    """Send it and wait for the reply. Returns 1 when none came in time, or the agent failed."""
    turn = terminal.on_line(message)
    if turn is None:
        return 0
    interrupted = asyncio.Event()

    def on_interrupt() -> None:
        interrupted.set()
        terminal.on_interrupt()

    with _signals(interrupt=on_interrupt, leave=terminal.left.set):
        over = await _wait_for_first(turn.is_over, terminal.left, interrupted, seconds=seconds)
        if interrupted.is_set():
            await _wait_for_first(turn.is_over, terminal.left, seconds=STOP_TIMEOUT)
            return INTERRUPTED
    if not over:
        print(f"openclaw chat: no answer within {seconds:g} s", file=sys.stderr)
        return 1
    if turn.outcome == "merged":
        terminal.show_merged()
    return 1 if turn.outcome in ("error", "aborted") else 0


async def _converse(terminal: ChatTerminal, screen: ChatScreen) -> int:
    """Until the end of input. A person's lines are handled as they come, those of a file or a pipe turn by turn."""
    ended = asyncio.Event()

    async def read_all() -> None:
        try:
            await (_read_lines if screen.is_interactive else _read_turns)(terminal, screen)
        finally:
            ended.set()

    async with Tasks("chat input") as tasks:
        with _signals(interrupt=terminal.on_interrupt, leave=terminal.left.set):
            reading = tasks.spawn(read_all(), name="lines", on_failure="raise")
            await _wait_for_first(ended, terminal.left)
            if reading.done():
                reading.result()
    return 0


async def _read_lines(terminal: ChatTerminal, screen: ChatScreen) -> None:
    async for line in screen.read_lines():
        terminal.on_line(line)


async def _read_turns(terminal: ChatTerminal, screen: ChatScreen) -> None:
    """Each line when the turn before it is over; `/stop` and `/approve` at once, since they are about that turn."""
    lines: asyncio.Queue[str | None] = asyncio.Queue(MAX_READ_AHEAD)

    async def read_ahead() -> None:
        async for line in screen.read_lines():
            if is_urgent(line):
                terminal.on_line(line)
            else:
                await lines.put(line)
        await lines.put(None)

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read_ahead())
            while (line := await lines.get()) is not None:
                if (turn := terminal.on_line(line)) is not None:
                    await turn.is_over.wait()
            await terminal.wait_until_idle()
    except ExceptionGroup as group:  # only one of them reads
        raise group.exceptions[0] from None


async def _wait_for_first(*events: asyncio.Event, seconds: float | None = None) -> bool:
    """Whether one of them is set within these seconds."""
    async with Tasks("chat") as tasks:
        waiting = [tasks.spawn(event.wait(), name="waiting") for event in events]
        done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


@contextmanager
def _signals(*, interrupt: Callable[[], None], leave: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C interrupts; a closed terminal and SIGTERM leave. Where the loop has no signals, Ctrl-C ends us."""
    handlers = {"SIGINT": interrupt, "SIGTERM": leave, "SIGHUP": leave}
    loop = asyncio.get_running_loop()
    numbers = {getattr(signal, name): handler for name, handler in handlers.items() if hasattr(signal, name)}
    with suppress(NotImplementedError):
        for number, handler in numbers.items():
            loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            for number in numbers:
                loop.remove_signal_handler(number)
