"""Calling a capability's command as the node does, and what a test needs around it: a screen, a clock, a listener."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from openclaw_mcp.core.model import LOCAL_CALLER, Audio, Embedded, Image, Json, Text, ToolCall, ToolResult
from openclaw_mcp.core.ports import NullCallContext
from openclaw_mcp.node.capability import Capability
from openclaw_mcp.node.registry import CapabilityRegistry
from tests.programs import need

CALL_WAIT = 60.0  # seconds; a cold Chromium on a busy machine
END_WAIT = 10.0


class ProgressRecorder(NullCallContext):
    """A caller that keeps the progress it receives, and can wait for the first of it."""

    def __init__(self) -> None:
        self.progressed: list[float] = []
        self.begun = asyncio.Event()

    async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
        self.progressed.append(value)
        self.begun.set()


async def call(capability: Capability, name: str, *, line: Any = None, **arguments: Any) -> ToolResult:
    command = next(command for command in capability.commands() if command.spec.name == name)
    tool_call = ToolCall(caller=LOCAL_CALLER, name=name, arguments=arguments, context=line or NullCallContext())
    return await asyncio.wait_for(command.run(tool_call), CALL_WAIT)


async def call_if_available(capability: Capability, name: str, **arguments: Any) -> ToolResult:
    """As `call`, after the check that the node makes once per call."""
    registry = CapabilityRegistry()
    registry.add(capability)
    tool_call = ToolCall(caller=LOCAL_CALLER, name=name, arguments=arguments, context=NullCallContext())
    return await registry.call(tool_call)


async def agree(call: ToolCall, what: str) -> None:
    """The consent of a person who always agrees."""


def result_json(result: ToolResult) -> Json:
    """The JSON of the text block."""
    block = result.content[0]
    assert isinstance(block, Text)
    value: Json = msgspec.json.decode(block.text)
    return value


def image_data(result: ToolResult) -> bytes:
    return next(block.data for block in result.content if isinstance(block, Image))


def audio_data(result: ToolResult) -> bytes:
    return next(block.data for block in result.content if isinstance(block, Audio))


def video_data(result: ToolResult) -> bytes:
    block = next(block for block in result.content if isinstance(block, Embedded))
    assert block.resource.mime_type == "video/mp4"
    assert block.resource.blob is not None
    return block.resource.blob


@contextlib.contextmanager
def running(*words: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a process group of its own, which is gone when the block ends."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    child = subprocess.Popen(words, start_new_session=True, **options)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(END_WAIT)


@contextlib.contextmanager
def virtual_screen(width: int, height: int, *, colour: str = "#000000") -> Iterator[dict[str, str]]:
    """An X server of its own; yields the environment that leads to it, and to no other display."""
    xvfb, xsetroot = need("Xvfb", package="xvfb"), need("xsetroot", package="x11-xserver-utils")
    reader, writer = os.pipe()
    words = (xvfb, "-displayfd", str(writer), "-screen", "0", f"{width}x{height}x24", "-nolisten", "tcp", "-noreset")
    with running(*words, pass_fds=(writer,)):
        os.close(writer)
        with os.fdopen(reader) as file:
            display = f":{file.readline().strip()}"
        environ = {**os.environ, "DISPLAY": display}
        environ.pop("WAYLAND_DISPLAY", None)
        subprocess.run([xsetroot, "-solid", colour], env=environ, check=True, timeout=END_WAIT)
        yield environ


def children() -> set[int]:
    """Process ids of our living children, at any depth."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(path.parent.name)] = int(parent)
    ours = fresh = {os.getpid()}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in ours} - ours
        ours |= fresh
    return ours - {os.getpid()}


def probe_media(data: bytes, *, kind: str, tmp_path: Path) -> Json:
    """What ffprobe finds in a film: each stream's codec and size, the number of frames, the duration."""
    path = tmp_path / f"probed.{kind}"
    path.write_bytes(data)
    words = [need("ffprobe", package="ffmpeg"), "-v", "error", "-count_frames", "-show_streams", "-show_format"]
    result = subprocess.run([*words, "-of", "json", path], capture_output=True, check=True, timeout=CALL_WAIT)
    found: Json = msgspec.json.decode(result.stdout)
    return found
