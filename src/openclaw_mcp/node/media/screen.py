"""The screen: a picture of it, or a video."""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Final

from ...core.errors import ToolArguments, ToolError, ToolUnavailable
from ...core.model import ToolCall, ToolResult
from .. import arguments, desktop_session
from ..capability import NodeCommand, RequireConsent, UnavailableReason
from ..exec.process import run_tool
from . import ffmpeg, sound
from .results import image_result, video_result

if TYPE_CHECKING:
    from .pixels import EncodedImage, ImageOptions, ScreenArea

SNAPSHOT_DEADLINE: Final = 30.0  # seconds; a grab takes milliseconds, a dead display up to its own timeout
ASK_WAIT: Final = 310.0  # seconds a person may take to consent, before the work itself
LONGEST_RECORDING: Final = 60_000  # milliseconds; what fits into one answer in a quality worth having
SHORTEST_RECORDING: Final = 250
GRIM_WAIT: Final = 10.0  # seconds for the Wayland screenshot program
MAX_GRIM_OUTPUT: Final = 512 << 20  # bytes; raw pixels of several large screens
NOTIFY_EVERY: Final = 10.0  # seconds between two notifications that the screen was captured

FORMATS: Final = {"": "png", "png": "png", "jpeg": "jpeg", "jpg": "jpeg"}

SCREEN_INDEX: Final = {"type": "integer", "description": "Which screen; 0, the default, is the primary one."}

SNAPSHOT = arguments.command_spec(
    "screen.snapshot",
    "Take a screenshot",
    "Take a picture of the screen and return it as an image.",
    {
        "format": {"type": "string", "description": "png (default) or jpeg."},
        "maxWidth": {"type": "integer", "description": "Scale down to this width, 16 to 7680; default 1920."},
        "quality": {"type": "number", "description": "JPEG quality, 1 to 100 or a share up to 1; default 80."},
        "screenIndex": SCREEN_INDEX,
        "monitor": {"type": "integer", "description": "Another name for screenIndex."},
        "includePointer": {"type": "boolean", "description": "Draw the mouse pointer; default true."},
    },
    deadline=SNAPSHOT_DEADLINE,
)
RECORD = arguments.command_spec(
    "screen.record",
    "Record the screen",
    "Film the screen for a while and return an MP4. Needs the person's consent.",
    {
        "durationMs": {"type": "integer", "description": "Length, 250 to 60000 ms; default 10000."},
        "fps": {"type": "number", "description": "Pictures a second, 1 to 60; default 10."},
        "screenIndex": SCREEN_INDEX,
        "monitor": {"type": "integer", "description": "Another name for screenIndex."},
        "includeAudio": {"type": "boolean", "description": "Record the microphone too; default false."},
        "format": {"type": "string", "description": "mp4, the only one."},
    },
    deadline=ASK_WAIT + LONGEST_RECORDING / 1000 + ffmpeg.START_GRACE,
    task="offered",
)


class ScreenCapability:
    """`screen.snapshot` and `screen.record`. Recording needs `consent`; `notify` is called when either is used."""

    name = "screen"

    def __init__(
        self,
        *,
        consent: RequireConsent,
        notify: Callable[[str], None] = lambda _: None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._consent, self._notify = consent, notify
        self._last_notice = float("-inf")
        self._environ = environ
        self._pixels: ModuleType | None = None
        # One thread: a display connection belongs to the thread that opened it, and two grabs gain nothing.
        self._executor = ThreadPoolExecutor(1, "openclaw-screen")

    def commands(self) -> Sequence[NodeCommand]:
        return (
            NodeCommand(spec=SNAPSHOT, run=self._snapshot),
            NodeCommand(spec=RECORD, run=self._record, danger="private"),
        )

    def unavailable_reason(self, command: str) -> UnavailableReason | None:
        desktop = desktop_session.desktop_kind(self._environ)
        if desktop == "none":
            return UnavailableReason(
                "There is no screen here: DISPLAY and WAYLAND_DISPLAY name no running display.",
                "Start the node inside the desktop session, or give it a virtual screen: xvfb-run openclaw node.",
            )
        if find_spec("mss") is None or find_spec("PIL") is None:
            return UnavailableReason(
                "The Python packages mss and Pillow are not installed.", "Run: pip install 'openclaw-mcp[node]'."
            )
        if command == RECORD.name:
            if desktop == "wayland":
                return UnavailableReason(
                    "A Wayland desktop lets no program film it unasked.", "Log in to an X11 session."
                )
            return None if ffmpeg.find_ffmpeg() else ffmpeg.FFMPEG_UNAVAILABLE
        if desktop == "wayland" and shutil.which("grim") is None:
            return UnavailableReason(
                "On Wayland the screen is read with the program grim, which is not installed.",
                "Install grim (wlroots desktops such as Sway), or log in to an X11 session.",
            )
        return None

    async def aclose(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _snapshot(self, call: ToolCall) -> ToolResult:
        form = FORMATS.get((arguments.text(call, "format") or "").lower())
        if form is None:
            raise ToolArguments("Unsupported screen snapshot format. Supported formats: png, jpeg.")
        pixels = await self._load_pixels()
        options = pixels.ImageOptions(
            png=form == "png",
            width=arguments.integer(call, "maxWidth", default=1920, least=16, most=7680),
            quality=arguments.percent(call, "quality", default=80),
        )
        index = arguments.integer(call, "screenIndex", "monitor", default=0, least=0, most=32)
        pointer = arguments.flag(call, "includePointer", default=True)
        picture = await self._capture(index, pointer, options)
        self._notify_sometimes("The screen was captured.")
        value = {"format": form, "width": picture.width, "height": picture.height}
        return image_result(value, picture.data, f"image/{form}", data_url=True)

    async def _capture(self, index: int, pointer: bool, options: "ImageOptions") -> "EncodedImage":
        pixels = await self._load_pixels()
        loop = asyncio.get_running_loop()
        if desktop_session.desktop_kind(self._environ) == "wayland":
            argv = ["grim", "-t", "ppm", *(["-c"] if pointer else []), "-"]
            shot = await run_tool(argv, seconds=GRIM_WAIT, max_bytes=MAX_GRIM_OUTPUT, env=self._environ)
            if shot.code:
                raise ToolUnavailable(f"Capture failed: this desktop refused grim ({shot.error_line})")
            picture: EncodedImage = await loop.run_in_executor(self._executor, pixels.reencode, shot.output, options)
            return picture
        try:
            picture = await loop.run_in_executor(
                self._executor,
                lambda: pixels.capture_screen(self._display(), index=index, pointer=pointer, options=options),
            )
        except pixels.ScreenUnavailable:
            raise ToolUnavailable("Capture failed: the display does not answer or refuses us") from None
        return picture

    async def _record(self, call: ToolCall) -> ToolResult:
        if (arguments.text(call, "format") or "mp4").lower() != "mp4":
            raise ToolArguments("Unsupported screen recording format. Only mp4 is supported.")
        milliseconds = arguments.integer(
            call, "durationMs", default=10_000, least=SHORTEST_RECORDING, most=LONGEST_RECORDING
        )
        fps = arguments.number(call, "fps", default=10, least=1, most=60)
        index = arguments.integer(call, "screenIndex", "monitor", default=0, least=0, most=32)
        area = await self._screen_area(index)
        microphone = sound.microphone_options(self._environ) if call.arguments.get("includeAudio") is True else None
        await self._consent(
            call, f"film screen {index} for {milliseconds / 1000:g} s{' with sound' if microphone else ''}"
        )
        self._notify("Recording of the screen has started.")
        try:
            video = grab_options(area, index=index, fps=fps, display=self._display())
            film = await ffmpeg.record_video(
                call, video=video, audio=microphone, seconds=milliseconds / 1000, fps=fps, environ=self._environ
            )
        finally:
            self._notify("Recording of the screen has ended.")
        value = {
            "format": "mp4",
            "durationMs": milliseconds,
            "fps": fps,
            "screenIndex": index,
            "hasAudio": microphone is not None,
        }
        return video_result(value, film, uri="openclaw://screen/record.mp4")

    async def _screen_area(self, index: int) -> "ScreenArea":
        pixels = await self._load_pixels()
        loop = asyncio.get_running_loop()
        try:
            found: list[ScreenArea] = await loop.run_in_executor(self._executor, pixels.list_screens, self._display())
        except pixels.ScreenUnavailable:
            raise ToolUnavailable("Recording failed: the display does not answer or refuses us") from None
        if index >= len(found):
            raise ToolArguments(f"screenIndex {index} names no screen: there are {len(found)}, counted from 0")
        return found[index]

    async def _load_pixels(self) -> ModuleType:
        if self._pixels is None:
            self._pixels = await asyncio.get_running_loop().run_in_executor(self._executor, _import_pixels)
        return self._pixels

    def _display(self) -> str | None:
        return self._environ.get("DISPLAY") if sys.platform not in ("darwin", "win32") else None

    def _notify_sometimes(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last_notice >= NOTIFY_EVERY:
            self._last_notice = now
            self._notify(text)


def _import_pixels() -> ModuleType:
    # Here for start-up and idle memory: most nodes are never asked for a picture.
    from . import pixels

    return pixels


def grab_options(
    area: "ScreenArea", *, index: int, fps: float, display: str | None, platform: str = sys.platform
) -> Sequence[str]:
    """ffmpeg's input options for one screen."""
    if platform == "darwin":
        video = ("-f", "avfoundation", "-framerate", f"{fps:g}", "-capture_cursor", "1")
        return (*video, "-i", f"Capture screen {index}:none")
    area_options = ("-framerate", f"{fps:g}", "-video_size", f"{area.width}x{area.height}")
    if platform == "win32":
        offset = ("-offset_x", str(area.left), "-offset_y", str(area.top))
        return ("-f", "gdigrab", *area_options, *offset, "-i", "desktop")
    if display is None:
        raise ToolError("Recording failed: DISPLAY is not set")
    return ("-f", "x11grab", *area_options, "-draw_mouse", "1", "-i", f"{display}+{area.left},{area.top}")
