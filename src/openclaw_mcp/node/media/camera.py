"""The camera: which there are, a picture from one, or a short film."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...core.errors import ToolArguments, ToolBusy, ToolError, ToolUnavailable
from ...core.model import Json, ToolCall, ToolResult, ToolSpec
from .. import arguments
from ..capability import Command, Consent, Missing, answer
from . import ffmpeg, sound
from .results import filmed, pictured

if sys.platform == "linux":
    import fcntl

ASK_WAIT: Final = 310.0  # seconds a person may take to consent, before the work itself
TURN_WAIT: Final = 120.0  # seconds behind another call that holds the camera
LONGEST_FILM: Final = 60_000  # milliseconds
SHORTEST_FILM: Final = 100
WARM_UP: Final = 2_000  # milliseconds a camera gets to find the light, unless the caller says otherwise
LONGEST_WARM_UP: Final = 10_000
MOST_CAMERAS: Final = 64  # of which /dev may speak

QUERY_CAPABILITIES: Final = 0x80685600  # VIDIOC_QUERYCAP
CAPABILITIES_SIZE: Final = 104
CAPABILITY_WORD: Final = slice(88, 92)  # device_caps in struct v4l2_capability
VIDEO_CAPTURE: Final = 0x1 | 0x1000  # with one plane or several

DEVICE: Final[Json] = {"type": "string", "description": "A deviceId of camera.list; default the first camera."}

LIST = ToolSpec(
    name="camera.list",
    title="List cameras",
    description="List the cameras of this machine.",
    input_schema=arguments.schema({}),
    annotations={"readOnlyHint": True, "openWorldHint": False},
)
SNAP = ToolSpec(
    name="camera.snap",
    title="Take a photo",
    description="Take a photo with a camera and return it as an image. Needs the person's consent.",
    input_schema=arguments.schema(
        {
            "deviceId": DEVICE,
            "facing": {"type": "string", "description": "Accepted; cameras here do not say where they look."},
            "format": {"type": "string", "description": "jpeg (default), jpg or png."},
            "maxWidth": {"type": "integer", "description": "Scale down to this width, 16 to 4096; default 1280."},
            "quality": {"type": "number", "description": "JPEG quality, 1 to 100 or a share up to 1; default 80."},
            "delayMs": {"type": "integer", "description": "Time to find the light, 0 to 10000 ms; default 2000."},
        }
    ),
    annotations={"readOnlyHint": True, "openWorldHint": False},
    deadline=ASK_WAIT + TURN_WAIT + LONGEST_WARM_UP / 1000 + ffmpeg.STILL_WAIT,
)
CLIP = ToolSpec(
    name="camera.clip",
    title="Film with the camera",
    description="Film with a camera for a few seconds and return an MP4. Needs the person's consent.",
    input_schema=arguments.schema(
        {
            "deviceId": DEVICE,
            "facing": {"type": "string", "description": "Accepted; cameras here do not say where they look."},
            "durationMs": {"type": "integer", "description": "Length, 100 to 60000 ms; default 3000."},
            "includeAudio": {"type": "boolean", "description": "Record the microphone too, if any; default true."},
            "format": {"type": "string", "description": "mp4, the only one."},
        }
    ),
    annotations={"readOnlyHint": True, "openWorldHint": False},
    deadline=ASK_WAIT + TURN_WAIT + LONGEST_FILM / 1000 + ffmpeg.START_GRACE,
    task="offered",
)


class Device(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    kind: str
    video: tuple[str, ...]
    """ffmpeg's input options for it."""


class Camera:
    """`camera.*`. `source`, such as `lavfi:testsrc2`, stands in for the cameras: ffmpeg's format, then its input."""

    name = "camera"

    def __init__(
        self,
        *,
        consent: Consent,
        device: str | None = None,
        source: str | None = None,
        microphone: Sequence[str] | None = None,
        environ: Mapping[str, str] = os.environ,
        sysfs: Path = Path("/sys/class/video4linux"),
        devices: Path = Path("/dev"),
    ) -> None:
        self._consent = consent
        self._device = device
        self._source = source
        self._microphone = microphone
        self._environ = environ
        self._sysfs = sysfs
        self._devices = devices
        self._turn = asyncio.Lock()

    def commands(self) -> Sequence[Command]:
        return (
            Command(spec=LIST, run=self._list),
            Command(spec=SNAP, run=self._snap, danger="private"),
            Command(spec=CLIP, run=self._clip, danger="private"),
        )

    def missing(self, command: str) -> Missing | None:
        if ffmpeg.found() is None:
            return ffmpeg.MISSING
        if self._source is None and sys.platform == "win32":
            return Missing("Cameras are not supported on Windows yet.", "Use the OpenClaw tray application there.")
        if command != LIST.name and not self._found():
            return Missing(
                "No camera was found.", "Plug one in, and let this user read it (group video on most systems)."
            )
        return None

    async def aclose(self) -> None:
        return

    async def _list(self, call: ToolCall) -> ToolResult:
        found = self._found()
        first = self._chosen(None).id if found else ""
        cameras = [{"deviceId": one.id, "name": one.name, "isDefault": one.id == first} for one in found]
        devices = [{"id": one.id, "name": one.name, "position": "unknown", "deviceType": one.kind} for one in found]
        return answer({"cameras": cameras, "devices": devices})

    async def _snap(self, call: ToolCall) -> ToolResult:
        given = call.arguments
        form = (arguments.text(given, "format") or "jpeg").lower()
        if form not in ("jpeg", "jpg", "png"):
            raise ToolArguments("INVALID_REQUEST: unsupported camera picture format; use jpeg or png")
        device = self._ready(SNAP.name, given)
        wait = 0 if self._source is not None else WARM_UP
        warm_up = arguments.whole(given, "delayMs", default=wait, least=0, most=LONGEST_WARM_UP)
        width = arguments.whole(given, "maxWidth", default=1280, least=16, most=4096)
        quality = arguments.percent(given, "quality", default=80)
        async with self._alone():
            await self._consent(call, f"take a photo with the camera {device.name}")
            picture = await ffmpeg.still(
                video=device.video, warm_up=warm_up / 1000, width=width, quality=quality, png=form == "png"
            )
        across, down = await asyncio.to_thread(_size, picture)
        value = {"format": form, "width": across, "height": down}
        return pictured(value, picture, "image/png" if form == "png" else "image/jpeg")

    async def _clip(self, call: ToolCall) -> ToolResult:
        given = call.arguments
        if (arguments.text(given, "format") or "mp4").lower() != "mp4":
            raise ToolArguments("INVALID_REQUEST: unsupported camera film format. Only mp4 is supported.")
        device = self._ready(CLIP.name, given)
        lasting = arguments.whole(given, "durationMs", default=3_000, least=SHORTEST_FILM, most=LONGEST_FILM)
        wanted = arguments.flag(given, "includeAudio", default=True)
        microphone = (self._microphone or sound.microphone(self._environ)) if wanted else None
        async with self._alone():
            heard = " with sound" if microphone else ""
            await self._consent(call, f"film with the camera {device.name} for {lasting / 1000:g} s{heard}")
            film = await ffmpeg.film(
                call, video=device.video, audio=microphone, seconds=lasting / 1000, environ=self._environ
            )
        value = {"format": "mp4", "durationMs": lasting, "hasAudio": microphone is not None}
        return filmed(value, film, uri="openclaw://camera/clip.mp4")

    def _ready(self, command: str, given: Json) -> Device:
        missing = self.missing(command)
        if missing is not None:
            raise ToolUnavailable(f"CAMERA_UNAVAILABLE: {missing.reason} {missing.remedy}")
        return self._chosen(arguments.text(given, "deviceId"))

    def _chosen(self, wanted: str | None) -> Device:
        """The camera named in the call, then the one in the settings, then the first."""
        found = self._found()
        if wanted is not None:
            match = next((one for one in found if one.id == wanted), None)
            if match is None:
                raise ToolArguments("INVALID_REQUEST: no camera has that deviceId; camera.list names them")
            return match
        return next((one for one in found if one.id == self._device), found[0])

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(TURN_WAIT):
                await self._turn.acquire()
        except TimeoutError:
            raise ToolBusy("another call holds the camera; try again later") from None
        try:
            yield
        finally:
            self._turn.release()

    def _found(self) -> Sequence[Device]:
        if self._source is not None:
            form, _, name = self._source.partition(":")
            # In real time, as a camera gives its pictures.
            video = (*(("-re",) if form == "lavfi" else ()), "-f", form, "-i", name)
            return [Device(id=self._source, name=name, kind=form, video=video)]
        if sys.platform == "darwin":
            video = ("-f", "avfoundation", "-framerate", "30", "-i", "0:none")
            return [Device(id="0", name="Default camera", kind="avfoundation", video=video)]
        return [
            Device(id=str(path), name=name, kind="v4l2", video=("-f", "v4l2", "-i", str(path)))
            for path, name in _video4linux(self._sysfs, self._devices)
        ]


def _video4linux(sysfs: Path, devices: Path) -> list[tuple[Path, str]]:
    """Device files that give pictures, with the names the kernel has for them."""
    if not sysfs.is_dir():
        return []
    entries = sorted(sysfs.glob("video*"), key=lambda entry: (len(entry.name), entry.name))[:MOST_CAMERAS]
    return [(devices / entry.name, _named(entry)) for entry in entries if _gives_pictures(entry, devices / entry.name)]


def _named(entry: Path) -> str:
    try:
        return (entry / "name").read_text(encoding="utf-8", errors="replace").strip() or entry.name
    except OSError:
        return entry.name


def _gives_pictures(entry: Path, device: Path) -> bool:
    """Ask the driver; one camera has several device files, and only some give pictures."""
    if sys.platform != "linux":
        return False
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        answered = fcntl.ioctl(descriptor, QUERY_CAPABILITIES, bytes(CAPABILITIES_SIZE))
        return bool(int.from_bytes(answered[CAPABILITY_WORD], sys.byteorder) & VIDEO_CAPTURE)
    except OSError:
        # No such question for this driver: the first device file of a camera is the one with the pictures.
        return _index(entry) == "0"
    finally:
        os.close(descriptor)


def _index(entry: Path) -> str:
    try:
        return (entry / "index").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _size(picture: bytes) -> tuple[int, int]:
    # Here for start-up and idle memory: most nodes are never asked for a picture.
    from .pixels import size

    try:
        return size(picture)
    except OSError:
        raise ToolError("Snap failed: ffmpeg gave no picture") from None
