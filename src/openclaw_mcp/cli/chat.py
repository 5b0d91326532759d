"""`openclaw chat`: talk to an agent in this terminal, over the gateway's local channel."""

import argparse
import asyncio
import sys
import uuid
from typing import Any, Final

from ..core.errors import OpenClawError
from ..core.model import Json
from ..core.rpc import RpcError
from ..net.gateway_client.client import GatewayClient
from ..protocol.gateway_frames import EventFrame
from . import gateway_connection

REPLY_GRACE: Final = 3.0  # seconds a run's answer may take from its end to the conversation
HISTORY_LIMIT: Final = 10  # messages shown of what was said before
END_STATES: Final = ("final", "error", "aborted")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("conversation", nargs="?", default="main", help="its name; any will do (default main)")
    parser.add_argument("-m", "--message", help="say this, print the answer and leave")
    parser.add_argument("--as", dest="sender", metavar="ID", help="speak for somebody else; access rules apply to them")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="with -m: wait this long")
    gateway_connection.add_connection_options(parser)


def run(options: argparse.Namespace) -> int:
    try:
        return asyncio.run(_chat(options))
    except RpcError as fault:
        raise OpenClawError(str(fault)) from None


async def _chat(options: argparse.Namespace) -> int:
    async with gateway_connection.connect_from_options(options) as client:
        talk = ChatTerminal(client, options.conversation, options.sender)
        await talk.subscribe()
        if options.message is not None:
            return await talk.send_once(options.message, seconds=options.timeout)
        return await talk.run_interactive()


class ChatTerminal:
    """One conversation on this screen."""

    def __init__(self, client: GatewayClient, conversation: str, sender: str | None) -> None:
        self._client = client
        self._conversation = conversation
        self._sender = sender
        self._prints_deltas = sys.stdout.isatty()
        self._run_id: str | None = None
        self._run_started = False
        self._run_ended = asyncio.Event()
        self._reply_shown = asyncio.Event()
        self._streamed_text = ""

    async def subscribe(self) -> None:
        self._client.events.connect(self._on_event)
        told = await self._client.call("local.subscribe", {"conversation": self._conversation})
        self._conversation = told["conversation"]

    async def send_once(self, text: str, *, seconds: float) -> int:
        """Say it and wait for what comes of it. 1: nothing came in time, or the agent failed."""
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
        """Until the end of input."""
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
        self._run_started, self._streamed_text = False, ""
        self._run_ended.clear()
        self._reply_shown.clear()
        key = str(uuid.uuid4())
        given: Json = {"conversation": self._conversation, "text": text, "idempotencyKey": key, "mentioned": True}
        if self._sender is not None:
            given["sender"] = {"id": self._sender}
        said = await self._client.call("local.send", given)
        self._run_id = said["runId"]

    async def _wait_for_reply(self) -> None:
        """Until the run is over and its answer here; or, where no run began, until we are answered all the same."""
        over = asyncio.ensure_future(self._run_ended.wait())
        answered = asyncio.ensure_future(self._reply_shown.wait())
        try:
            while not self._run_ended.is_set():
                waiting = {over} if self._run_started or answered.done() else {over, answered}
                await asyncio.wait(waiting, timeout=REPLY_GRACE, return_when=asyncio.FIRST_COMPLETED)
                if answered.done() and not self._run_started:
                    return
            await asyncio.wait({answered}, timeout=REPLY_GRACE)
        finally:
            over.cancel()
            answered.cancel()
            await asyncio.gather(over, answered, return_exceptions=True)
            if self._streamed_text and not self._reply_shown.is_set():
                print(flush=True)

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
                self._reply_shown.set()

    def _on_chat_event(self, payload: Json) -> None:
        self._run_started = True
        state = payload.get("state")
        if state in END_STATES:
            self._run_ended.set()
        elif state == "delta" and self._prints_deltas and not payload.get("replace"):
            print(payload.get("deltaText", ""), end="", flush=True)
            self._streamed_text += payload.get("deltaText", "")

    def _show_reply(self, message: Json) -> None:
        """The message as it was sent; what of it was streamed is not shown again."""
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
    who = message["sender"].get("name") or message["sender"].get("id")
    text = str(message.get("text", ""))
    print(f"{who}: {text}" if with_name else text, flush=True)
    _show_files(message)


def _show_files(message: Json) -> None:
    for file in message.get("attachments", []):
        print(f"[{file.get('name') or 'file'}, {file.get('mimeType')}, {file.get('size')} bytes]", flush=True)
