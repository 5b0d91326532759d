"""Cameras: which there are, a picture from one, or a short video."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...core.errors import ToolArguments, ToolError, ToolUnavailable
from ...core.model import ToolCall, ToolResult
from ...net.open_flags import NO_WAIT
from .. import arguments
from ..capability import Capability, NodeCommand, RequireConsent, UnavailableReason, hold_lock, json_result
from ..settings import NodeSettings
from . import ffmpeg, sound
from .results import image_result, video_result

if sys.platform == "linux":
    import fcntl

ASK_WAIT: Final = 310.0  # seconds a person may take to consent, before the work itself
QUEUE_WAIT: Final = 120.0  # seconds behind another call that holds the camera
LONGEST_RECORDING: Final = 60_000  # milliseconds
SHORTEST_RECORDING: Final = 100
WARM_UP: Final = 2_000  # milliseconds a camera gets to find the light, unless the caller says otherwise
MAX_WARM_UP: Final = 10_000
MAX_CAMERAS: Final = 64  # device files looked at

QUERY_CAPABILITIES: Final = 0x80685600  # VIDIOC_QUERYCAP
CAPABILITIES_SIZE: Final = 104
DEVICE_CAPS_BYTES: Final = slice(88, 92)  # device_caps in struct v4l2_capability
VIDEO_CAPTURE: Final = 0x1 | 0x1000  # with one plane or several

NO_CAMERA: Final = UnavailableReason(
    "No camera was found.", "Plug one in, and let this user read it (group video on most systems)."
)
DEVICE: Final = {"type": "string", "description": "A deviceId of camera.list; default the first camera."}

LIST = arguments.command_spec("camera.list", "List cameras", "List the cameras of this machine.")
SNAP = arguments.command_spec(
    "camera.snap",
    "Take a photo",
    "Take a photo with a camera and return it as an image. Needs the person's consent.",
    {
        "deviceId": DEVICE,
        "facing": {"type": "string", "description": "Accepted; cameras here do not say where they look."},
        "format": {"type": "string", "description": "jpeg (default), jpg or png."},
        "maxWidth": {"type": "integer", "description": "Scale down to this width, 16 to 4096; default 1280."},
        "quality": {"type": "number", "description": "JPEG quality, 1 to 100 or a share up to 1; default 80."},
        "delayMs": {"type": "integer", "description": "Time to find the light, 0 to 10000 ms; default 2000."},
    },
    deadline=ASK_WAIT + QUEUE_WAIT + MAX_WARM_UP / 1000 + ffmpeg.STILL_WAIT,
)
CLIP = arguments.command_spec(
    "camera.clip",
    "Film with the camera",
    "Film with a camera for a few seconds and return an MP4. Needs the person's consent.",
    {
        "deviceId": DEVICE,
        "facing": {"type": "string", "description": "Accepted; cameras here do not say where they look."},
        "durationMs": {"type": "integer", "description": "Length, 100 to 60000 ms; default 3000."},
        "includeAudio": {"type": "boolean", "description": "Record the microphone too, if any; default true."},
        "format": {"type": "string", "description": "mp4, the only one."},
    },
    deadline=ASK_WAIT + QUEUE_WAIT + LONGEST_RECORDING / 1000 + ffmpeg.START_GRACE,
    task="offered",
)


class CameraDevice(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    kind: str
    ffmpeg_input: tuple[str, ...]
    """ffmpeg's input options for it."""


class CameraCapability(Capability):
    """`camera.*`. The setting cameraSource, as `lavfi:testsrc2`, replaces the cameras: ffmpeg's format and input."""

    name = "camera"

    def __init__(
        self,
        *,
        consent: RequireConsent,
        settings: Callable[[], NodeSettings] = NodeSettings,
        microphone: Sequence[str] | None = None,
        environ: Mapping[str, str] = os.environ,
        sysfs: Path = Path("/sys/class/video4linux"),
        devices: Path = Path("/dev"),
    ) -> None:
        self._consent, self._settings, self._microphone = consent, settings, microphone
        self._environ, self._sysfs, self._devices = environ, sysfs, devices
        self._lock = asyncio.Lock()

    def commands(self) -> Sequence[NodeCommand]:
        return (
            NodeCommand(spec=LIST, run=self._list),
            NodeCommand(spec=SNAP, run=self._snap, danger="private"),
            NodeCommand(spec=CLIP, run=self._clip, danger="private"),
        )

    def unavailable_reason(self, command: str) -> UnavailableReason | None:
        if ffmpeg.find_ffmpeg() is None:
            return ffmpeg.FFMPEG_UNAVAILABLE
        if self._settings().camera_source is None and sys.platform == "win32":
            return UnavailableReason(
                "Cameras are not supported on Windows yet.", "Use the OpenClaw tray application there."
            )
        if command != LIST.name and not self._list_devices():
            return NO_CAMERA
        return None

    async def _list(self, call: ToolCall) -> ToolResult:
        found = self._list_devices()
        first = self._select_device(None).id if found else ""
        cameras = [{"deviceId": one.id, "name": one.name, "isDefault": one.id == first} for one in found]
        devices = [{"id": one.id, "name": one.name, "position": "unknown", "deviceType": one.kind} for one in found]
        return json_result({"cameras": cameras, "devices": devices})

    async def _snap(self, call: ToolCall) -> ToolResult:
        form = (arguments.text(call, "format") or "jpeg").lower()
        if form not in ("jpeg", "jpg", "png"):
            raise ToolArguments("INVALID_REQUEST: unsupported camera picture format; use jpeg or png")
        device = self._select_device(arguments.text(call, "deviceId"))
        wait = 0 if self._settings().camera_source is not None else WARM_UP
        warm_up = arguments.integer(call, "delayMs", default=wait, least=0, most=MAX_WARM_UP)
        width = arguments.integer(call, "maxWidth", default=1280, least=16, most=4096)
        quality = arguments.percent(call, "quality", default=80)
        async with self._hold_camera():
            await self._consent(call, f"take a photo with the camera {device.name}")
            picture = await ffmpeg.capture_still(
                video=device.ffmpeg_input, warm_up=warm_up / 1000, width=width, quality=quality, png=form == "png"
            )
        across, down = await asyncio.to_thread(_image_size, picture)
        value = {"format": form, "width": across, "height": down}
        return image_result(value, picture, "image/png" if form == "png" else "image/jpeg")

    async def _clip(self, call: ToolCall) -> ToolResult:
        if (arguments.text(call, "format") or "mp4").lower() != "mp4":
            raise ToolArguments("INVALID_REQUEST: unsupported camera film format. Only mp4 is supported.")
        device = self._select_device(arguments.text(call, "deviceId"))
        milliseconds = arguments.integer(
            call, "durationMs", default=3_000, least=SHORTEST_RECORDING, most=LONGEST_RECORDING
        )
        with_sound = arguments.flag(call, "includeAudio", default=True)
        microphone = (self._microphone or sound.microphone_options(self._environ)) if with_sound else None
        async with self._hold_camera():
            audible = " with sound" if microphone else ""
            await self._consent(call, f"film with the camera {device.name} for {milliseconds / 1000:g} s{audible}")
            film = await ffmpeg.record_video(
                call, video=device.ffmpeg_input, audio=microphone, seconds=milliseconds / 1000, environ=self._environ
            )
        value = {"format": "mp4", "durationMs": milliseconds, "hasAudio": microphone is not None}
        return video_result(value, film, uri="openclaw://camera/clip.mp4")

    def _select_device(self, device_id: str | None) -> CameraDevice:
        """The camera named in the call, then the one in the settings, then the first."""
        found = self._list_devices()
        if not found:
            raise ToolUnavailable(f"CAMERA_UNAVAILABLE: {NO_CAMERA.reason} {NO_CAMERA.remedy}")
        if device_id is not None:
            match = next((one for one in found if one.id == device_id), None)
            if match is None:
                raise ToolArguments("INVALID_REQUEST: no camera has that deviceId; camera.list names them")
            return match
        return next((one for one in found if one.id == self._settings().camera_device), found[0])

    def _hold_camera(self) -> AbstractAsyncContextManager[None]:
        return hold_lock(self._lock, QUEUE_WAIT, "another call holds the camera; try again later")

    def _list_devices(self) -> Sequence[CameraDevice]:
        source = self._settings().camera_source
        if source is not None:
            form, _, name = source.partition(":")
            # In real time, as a camera gives its pictures.
            video = (*(("-re",) if form == "lavfi" else ()), "-f", form, "-i", name)
            return [CameraDevice(id=source, name=name, kind=form, ffmpeg_input=video)]
        if sys.platform == "darwin":
            video = ("-f", "avfoundation", "-framerate", "30", "-i", "0:none")
            return [CameraDevice(id="0", name="Default camera", kind="avfoundation", ffmpeg_input=video)]
        return [
            CameraDevice(id=str(path), name=name, kind="v4l2", ffmpeg_input=("-f", "v4l2", "-i", str(path)))
            for path, name in _list_video4linux(self._sysfs, self._devices)
        ]


def _list_video4linux(sysfs: Path, devices: Path) -> list[tuple[Path, str]]:
    """Device files that give pictures, with the names the kernel has for them."""
    if not sysfs.is_dir():
        return []
    entries = sorted(sysfs.glob("video*"), key=lambda entry: (len(entry.name), entry.name))[:MAX_CAMERAS]
    return [
        (devices / entry.name, _read_attribute(entry, "name") or entry.name)
        for entry in entries
        if _is_capture_device(entry, devices / entry.name)
    ]


def _read_attribute(entry: Path, name: str) -> str:
    try:
        return (entry / name).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _is_capture_device(entry: Path, device: Path) -> bool:
    """Ask the driver; one camera has several device files, and only some give pictures."""
    try:
        descriptor = os.open(device, os.O_RDONLY | NO_WAIT)
    except OSError:
        return False
    try:
        return bool(_device_capabilities(descriptor) & VIDEO_CAPTURE)
    except OSError:
        # No such question for this driver: the first device file of a camera is the one with the pictures.
        return _read_attribute(entry, "index") == "0"
    finally:
        os.close(descriptor)


def _device_capabilities(descriptor: int) -> int:
    """The driver's answer, as flags. Raises OSError when it has none."""
    if sys.platform != "linux":
        raise OSError("only Linux has such drivers")
    else:  # noqa: RET506  so that a type checker for another platform leaves it out
        answer = fcntl.ioctl(descriptor, QUERY_CAPABILITIES, bytes(CAPABILITIES_SIZE))
        return int.from_bytes(answer[DEVICE_CAPS_BYTES], sys.byteorder)


def _image_size(image: bytes) -> tuple[int, int]:
    # Here for start-up and idle memory: most nodes are never asked for a picture.
    from .pixels import image_size

    try:
        return image_size(image)
    except OSError:
        raise ToolError("Snap failed: ffmpeg gave no picture") from None
