"""`openclaw chat`: talk to an agent in this terminal, over the gateway's local channel."""

import argparse
import asyncio
import sys
import uuid
from typing import Any, Final

from ..core.errors import OpenClawError
from ..core.model import Json
from ..core.rpc import Fault
from ..net.gateway_client.client import Client
from ..protocol.gateway_frames import News
from . import gateway_options

AFTER_END: Final = 3.0  # seconds a run's answer may take from its end to the conversation
SHOWN_FIRST: Final = 10  # messages shown of what was said before
OVER: Final = ("final", "error", "aborted")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("conversation", nargs="?", default="main", help="its name; any will do (default main)")
    parser.add_argument("-m", "--message", help="say this, print the answer and leave")
    parser.add_argument("--as", dest="sender", metavar="ID", help="speak for somebody else; access rules apply to them")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="with -m: wait this long")
    gateway_options.arguments(parser)


def run(options: argparse.Namespace) -> int:
    try:
        return asyncio.run(_talk(options))
    except Fault as fault:
        raise OpenClawError(str(fault)) from None


async def _talk(options: argparse.Namespace) -> int:
    async with gateway_options.dialled(options) as client:
        talk = Talk(client, options.conversation, options.sender)
        await talk.begin()
        if options.message is not None:
            return await talk.once(options.message, seconds=options.timeout)
        return await talk.on()


class Talk:
    """One conversation on this screen."""

    def __init__(self, client: Client, conversation: str, sender: str | None) -> None:
        self._client = client
        self._conversation = conversation
        self._sender = sender
        self._streams = sys.stdout.isatty()
        self._run: str | None = None
        self._begun = False
        self._over = asyncio.Event()
        self._answered = asyncio.Event()
        self._streamed = ""

    async def begin(self) -> None:
        self._client.events.listen(self._hear)
        told = await self._client.call("local.subscribe", {"conversation": self._conversation})
        self._conversation = told["conversation"]

    async def once(self, text: str, *, seconds: float) -> int:
        """Say it and wait for what comes of it. 1: nothing came in time, or the agent failed."""
        try:
            async with asyncio.timeout(seconds):
                await self._say(text)
                await self._settled()
                ended = await self._client.call("agent.wait", {"runId": self._run, "timeoutMs": 0})
        except TimeoutError:
            print(f"openclaw chat: no answer within {seconds:g} s", file=sys.stderr)
            return 1
        return 1 if ended["status"] == "error" else 0

    async def on(self) -> int:
        """Until the end of input."""
        page = await self._client.call("local.read", {"conversation": self._conversation, "limit": SHOWN_FIRST})
        for message in page["messages"]:
            _show(message)
        print(f"-- {self._conversation}; /help for commands, Ctrl-D to leave", flush=True)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            text = line.decode(errors="replace").rstrip("\n")
            if text.strip():
                await self._say(text)
                await self._settled()
        return 0

    async def _say(self, text: str) -> None:
        self._begun, self._streamed = False, ""
        self._over.clear()
        self._answered.clear()
        key = str(uuid.uuid4())
        given: Json = {"conversation": self._conversation, "text": text, "idempotencyKey": key, "mentioned": True}
        if self._sender is not None:
            given["sender"] = {"id": self._sender}
        said = await self._client.call("local.send", given)
        self._run = said["runId"]

    async def _settled(self) -> None:
        """Until the run is over and its answer here; or, where no run began, until we are answered all the same."""
        over = asyncio.ensure_future(self._over.wait())
        answered = asyncio.ensure_future(self._answered.wait())
        try:
            while not self._over.is_set():
                waiting = {over} if self._begun or answered.done() else {over, answered}
                await asyncio.wait(waiting, timeout=AFTER_END, return_when=asyncio.FIRST_COMPLETED)
                if answered.done() and not self._begun:
                    return
            await asyncio.wait({answered}, timeout=AFTER_END)
        finally:
            over.cancel()
            answered.cancel()
            await asyncio.gather(over, answered, return_exceptions=True)
            if self._streamed and not self._answered.is_set():
                print(flush=True)

    def _hear(self, news: News) -> None:
        payload: Any = news.payload
        if not isinstance(payload, dict):
            return
        if news.event == "chat" and payload.get("runId") == self._run and self._run is not None:
            self._stream(payload)
        elif news.event == "local.message" and payload.get("conversation") == self._conversation:
            message = payload.get("message")
            if payload.get("kind") == "added" and isinstance(message, dict) and message.get("fromMe"):
                self._present(message)
                self._answered.set()

    def _stream(self, payload: Json) -> None:
        self._begun = True
        state = payload.get("state")
        if state in OVER:
            self._over.set()
        elif state == "delta" and self._streams and not payload.get("replace"):
            print(payload.get("deltaText", ""), end="", flush=True)
            self._streamed += payload.get("deltaText", "")

    def _present(self, message: Json) -> None:
        """The message as it was sent; what of it was streamed is not shown again."""
        text = str(message.get("text", ""))
        if self._streamed and text.startswith(self._streamed.strip()):
            print(text[len(self._streamed.strip()) :], flush=True)
            _show_files(message)
        else:
            if self._streamed:
                print()
            _show(message, name=False)
        self._streamed = ""


def _show(message: Json, *, name: bool = True) -> None:
    who = message["sender"].get("name") or message["sender"].get("id")
    text = str(message.get("text", ""))
    print(f"{who}: {text}" if name else text, flush=True)
    _show_files(message)


def _show_files(message: Json) -> None:
    for file in message.get("attachments", []):
        print(f"[{file.get('name') or 'file'}, {file.get('mimeType')}, {file.get('size')} bytes]", flush=True)
