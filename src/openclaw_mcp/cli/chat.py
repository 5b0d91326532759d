"""`openclaw chat`: talk to an agent in this terminal, over the gateway's local channel."""

import argparse
import asyncio
import logging
import sys
import uuid
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct

from ..core.errors import OpenClawError
from ..core.rpc import RpcError
from ..gateway.channels.commands import parse_command
from ..net.gateway_client.client import GatewayClient
from ..protocol.gateway_frames import EventFrame
from . import gateway_connection

logger = logging.getLogger(__name__)

REPLY_GRACE: Final = 3.0  # seconds from a run's end until its reply is in the conversation, and from `/new` to its run
HISTORY_LIMIT: Final = 10  # earlier messages that are shown
END_STATES: Final = ("final", "error", "aborted")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("conversation", nargs="?", default="main", help="its name; any is possible (default main)")
    parser.add_argument("-m", "--message", help="send this, print the answer and exit")
    parser.add_argument("--as", dest="sender", metavar="ID", help="write as another sender; access rules apply to them")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="with -m: wait this long")
    gateway_connection.add_connection_options(parser)


def run(options: argparse.Namespace) -> int:
    try:
        return asyncio.run(_chat(options))
    except RpcError as exc:
        raise OpenClawError(str(exc)) from None


async def _chat(options: argparse.Namespace) -> int:
    async with gateway_connection.connect_from_options(options) as client:
        terminal = ChatTerminal(client, options.conversation, options.sender)
        await terminal.subscribe()
        if options.message is not None:
            return await terminal.send_once(options.message, seconds=options.timeout)
        return await terminal.run_interactive()


class ChatSender(Struct, frozen=True):
    id: str | None = None
    name: str | None = None


class ChatFile(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str | None = None
    mime_type: str | None = None
    size: int | None = None


class ShownMessage(Struct, frozen=True, kw_only=True, rename="camel"):
    """A message as `local.read` and the event `local.message` have it."""

    sender: ChatSender = ChatSender()
    text: str = ""
    from_me: bool = False
    attachments: tuple[ChatFile, ...] = ()


class ChatEvent(Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of `chat` and `local.message` that are shown."""

    run_id: str | None = None
    state: str | None = None
    delta_text: str = ""
    replace: bool = False
    conversation: str | None = None
    kind: str | None = None
    message: Any = None


class ChatTerminal:
    """One conversation on this screen."""

    def __init__(self, client: GatewayClient, conversation: str, sender: str | None) -> None:
        self._client = client
        self._conversation = conversation
        self._sender = sender
        self._prints_deltas = sys.stdout.isatty()
        self._run_id: str | None = None
        self._changed = asyncio.Event()
        """Set when one of the next three has changed."""
        self._run_started = self._run_ended = False
        self._replies_shown = 0
        self._expects_notice = False
        """Whether the message is `/new` with words after it: a notice comes before the agent's reply."""
        self._streamed_text = ""

    async def subscribe(self) -> None:
        self._client.events.connect(self._on_event)
        subscribed = await self._client.call("local.subscribe", {"conversation": self._conversation})
        self._conversation = subscribed["conversation"]

    async def send_once(self, text: str, *, seconds: float) -> int:
        """Send it and wait for the reply. Returns 1 when none came in time, or the agent failed."""
        try:
            async with asyncio.timeout(seconds):
                await self._send(text)
                await self._wait_for_reply()
                ended = await self._client.call("agent.wait", {"runId": self._run_id, "timeoutMs": 0})
        except TimeoutError:
            print(f"openclaw chat: no answer within {seconds:g} s", file=sys.stderr)
            return 1
        return 1 if ended["status"] == "error" else 0

    async def run_interactive(self) -> int:
        """Send every line until the end of input."""
        page = await self._client.call("local.read", {"conversation": self._conversation, "limit": HISTORY_LIMIT})
        for message in gateway_connection.read_reply(page["messages"], list[ShownMessage]):
            _show_message(message)
        print(f"-- {self._conversation}; /help for commands, Ctrl-D to leave", flush=True)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            text = line.decode(errors="replace").rstrip("\n")
            if text.strip():
                await self._send(text)
                await self._wait_for_reply()
        return 0

    async def _send(self, text: str) -> None:
        command = parse_command(text)
        self._expects_notice = command is not None and bool(command.rest)
        self._run_started = self._run_ended = False
        self._replies_shown, self._streamed_text, key = 0, "", str(uuid.uuid4())
        sender = {} if self._sender is None else {"sender": {"id": self._sender}}
        params = {"conversation": self._conversation, "text": text, "idempotencyKey": key, "mentioned": True, **sender}
        self._run_id = (await self._client.call("local.send", params))["runId"]

    async def _wait_for_reply(self) -> None:
        """Until the run has ended and its reply is shown; or until a reply is shown without a run, as to a command."""
        try:
            while not self._run_ended and (self._run_started or not self._replies_shown):
                await self._wait_for_change()
                if self._expects_notice and self._replies_shown and not self._run_started:
                    await self._wait_for_run()
            expected = 2 if self._expects_notice and self._run_started else 1
            with suppress(TimeoutError):
                async with asyncio.timeout(REPLY_GRACE):
                    while self._replies_shown < expected:
                        await self._wait_for_change()
        finally:
            if self._streamed_text:
                print(flush=True)

    async def _wait_for_run(self) -> None:
        """Until the run has started. None does when the command was refused."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REPLY_GRACE):
                while not self._run_started:
                    await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def _on_event(self, event: EventFrame) -> None:
        if event.event not in ("chat", "local.message"):
            return
        try:
            payload = msgspec.convert(event.payload, ChatEvent)
            if event.event == "chat" and payload.run_id == self._run_id and self._run_id is not None:
                self._on_chat_event(payload)
            elif payload.conversation == self._conversation and payload.kind == "added":
                message = msgspec.convert(payload.message, ShownMessage)
                if message.from_me:
                    self._show_reply(message)
                    self._replies_shown += 1
        except msgspec.ValidationError as exc:
            logger.debug("chat: event %s is not understood (%s)", event.event, exc)
        self._changed.set()

    def _on_chat_event(self, event: ChatEvent) -> None:
        self._run_started = True
        if event.state in END_STATES:
            self._run_ended = True
        elif event.state == "delta" and self._prints_deltas and not event.replace:
            print(event.delta_text, end="", flush=True)
            self._streamed_text += event.delta_text

    def _show_reply(self, message: ShownMessage) -> None:
        """Show the message as it was sent, without what was streamed of it before."""
        streamed = self._streamed_text.strip()
        if self._streamed_text and message.text.startswith(streamed):
            print(message.text[len(streamed) :], flush=True)
            _show_files(message)
        else:
            if self._streamed_text:
                print()
            _show_message(message, with_name=False)
        self._streamed_text = ""


def _show_message(message: ShownMessage, *, with_name: bool = True) -> None:
    name = message.sender.name or message.sender.id
    print(f"{name}: {message.text}" if with_name else message.text, flush=True)
    _show_files(message)


def _show_files(message: ShownMessage) -> None:
    for file in message.attachments:
        print(f"[{file.name or 'file'}, {file.mime_type}, {file.size} bytes]", flush=True)
