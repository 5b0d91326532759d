"""`openclaw chat`: talk to an agent in this terminal, over the gateway's local channel."""

import argparse
import asyncio
import sys
import uuid
from contextlib import suppress
from typing import Any, Final

from ..core.errors import OpenClawError
from ..core.model import Json
from ..core.rpc import RpcError
from ..gateway.channels.commands import parse_command
from ..net.gateway_client.client import GatewayClient
from ..protocol.gateway_frames import EventFrame
from . import gateway_connection

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
        self._begins_anew = False
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
        for message in page["messages"]:
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
        self._begins_anew = command is not None and bool(command.rest)
        self._run_started = self._run_ended = False
        self._replies_shown, self._streamed_text, key = 0, "", str(uuid.uuid4())
        params: Json = {"conversation": self._conversation, "text": text, "idempotencyKey": key, "mentioned": True}
        if self._sender is not None:
            params["sender"] = {"id": self._sender}
        self._run_id = (await self._client.call("local.send", params))["runId"]

    async def _wait_for_reply(self) -> None:
        """Until the run has ended and its reply is shown; or until a reply is shown without a run, as to a command."""
        try:
            while not self._run_ended and (self._run_started or not self._replies_shown):
                await self._wait_for_change()
                if self._begins_anew and self._replies_shown and not self._run_started:
                    await self._wait_for_run()
            expected = 2 if self._begins_anew and self._run_started else 1
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
        payload: Any = event.payload
        if not isinstance(payload, dict):
            return
        if event.event == "chat" and payload.get("runId") == self._run_id and self._run_id is not None:
            self._on_chat_event(payload)
        elif event.event == "local.message" and payload.get("conversation") == self._conversation:
            message = payload.get("message")
            if payload.get("kind") == "added" and isinstance(message, dict) and message.get("fromMe"):
                self._show_reply(message)
                self._replies_shown += 1
        self._changed.set()

    def _on_chat_event(self, payload: Json) -> None:
        self._run_started = True
        state = payload.get("state")
        if state in END_STATES:
            self._run_ended = True
        elif state == "delta" and self._prints_deltas and not payload.get("replace"):
            print(payload.get("deltaText", ""), end="", flush=True)
            self._streamed_text += payload.get("deltaText", "")

    def _show_reply(self, message: Json) -> None:
        """Show the message as it was sent, without what was streamed of it before."""
        text = str(message.get("text", ""))
        if self._streamed_text and text.startswith(self._streamed_text.strip()):
            print(text[len(self._streamed_text.strip()) :], flush=True)
            _show_files(message)
        else:
            if self._streamed_text:
                print()
            _show_message(message, with_name=False)
        self._streamed_text = ""


def _show_message(message: Json, *, with_name: bool = True) -> None:
    name = message["sender"].get("name") or message["sender"].get("id")
    text = str(message.get("text", ""))
    print(f"{name}: {text}" if with_name else text, flush=True)
    _show_files(message)


def _show_files(message: Json) -> None:
    for file in message.get("attachments", []):
        print(f"[{file.get('name') or 'file'}, {file.get('mimeType')}, {file.get('size')} bytes]", flush=True)
