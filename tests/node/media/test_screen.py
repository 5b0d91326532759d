"""The screen capability against a real X server whose pixels are known."""

import asyncio
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from openclaw_mcp.core.errors import ToolArguments, ToolDenied, ToolUnavailable
from openclaw_mcp.core.model import Json, ToolCall
from openclaw_mcp.node.media.screen import ScreenCapability
from tests.node.calling import (
    ProgressRecorder,
    agree,
    call,
    call_if_available,
    children,
    image_data,
    probe_media,
    result_json,
    running,
    video_data,
    virtual_screen,
)
from tests.programs import need

BLUE = (0x33, 0x66, 0xCC)
Environ = dict[str, str]


@pytest.fixture(scope="module")
def blue() -> Iterator[Environ]:
    with virtual_screen(1280, 800, colour="#3366cc") as environ:
        yield environ


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def near(found: object, wanted: tuple[int, int, int], *, off: int = 4) -> bool:
    assert isinstance(found, tuple)
    return all(abs(one - other) <= off for one, other in zip(found, wanted, strict=True))


def test_a_snapshot_shows_the_pixels_that_are_on_the_screen(blue: Environ) -> None:
    result = asyncio.run(call(ScreenCapability(consent=agree, environ=blue), "screen.snapshot"))

    shot = opened(image_data(result))
    assert result_json(result) == {"format": "png", "width": 1280, "height": 800}
    assert shot.size == (1280, 800)
    assert shot.getpixel((3, 3)) == shot.getpixel((1270, 790)) == BLUE


def test_the_gateways_json_holds_the_same_picture_as_base64_and_as_data_url(blue: Environ) -> None:
    result = asyncio.run(call(ScreenCapability(consent=agree, environ=blue), "screen.snapshot"))

    assert isinstance(result.structured, dict)
    assert result.structured.keys() == {"format", "width", "height", "base64", "image"}
    assert b64decode(result.structured["base64"]) == image_data(result)
    assert result.structured["image"] == "data:image/png;base64," + result.structured["base64"]


@pytest.mark.parametrize("name", ["jpeg", "jpg", "JPG"])
def test_a_jpeg_is_scaled_to_the_width_asked_for(blue: Environ, name: str) -> None:
    screen = ScreenCapability(consent=agree, environ=blue)

    result = asyncio.run(call(screen, "screen.snapshot", format=name, maxWidth=640, quality=0.9))

    assert result_json(result) == {"format": "jpeg", "width": 640, "height": 400}
    shot = opened(image_data(result))
    assert shot.size == (640, 400)
    assert near(shot.getpixel((5, 5)), BLUE)


def test_quality_is_a_percentage_or_a_share(blue: Environ) -> None:
    def size(quality: float) -> int:
        screen = ScreenCapability(consent=agree, environ=blue)
        return len(image_data(asyncio.run(call(screen, "screen.snapshot", format="jpeg", quality=quality))))

    assert size(0.3) == size(30) < size(95)


def test_the_pointer_is_drawn_unless_it_is_not_wanted(blue: Environ) -> None:
    def colours(pointer: bool) -> int:
        result = asyncio.run(
            call(ScreenCapability(consent=agree, environ=blue), "screen.snapshot", includePointer=pointer)
        )
        return len(opened(image_data(result)).getcolors(1 << 20) or ())

    # Xvfb's pointer stands in the middle of the screen.
    assert colours(pointer=False) == 1
    assert colours(pointer=True) > 1


def test_a_width_out_of_range_is_brought_into_it_and_a_screen_that_is_not_there_means_the_first(blue: Environ) -> None:
    screen = ScreenCapability(consent=agree, environ=blue)

    assert result_json(asyncio.run(call(screen, "screen.snapshot", maxWidth=1)))["width"] == 16
    assert result_json(asyncio.run(call(screen, "screen.snapshot", monitor=9)))["width"] == 1280


def test_another_format_is_refused_by_name(blue: Environ) -> None:
    screen = ScreenCapability(consent=agree, environ=blue)

    with pytest.raises(ToolArguments, match="Supported formats: png, jpeg"):
        asyncio.run(call(screen, "screen.snapshot", format="webp"))
    with pytest.raises(ToolArguments, match="Only mp4"):
        asyncio.run(call(screen, "screen.record", format="webm"))


def test_a_screen_capture_is_notified_at_most_once_in_a_while(blue: Environ) -> None:
    notices: list[str] = []
    screen = ScreenCapability(consent=agree, environ=blue, notify=notices.append)

    for _ in range(3):
        asyncio.run(call(screen, "screen.snapshot", maxWidth=16))

    assert notices == ["The screen was captured."]


def test_a_film_has_the_length_the_rate_and_the_pixels_asked_for(blue: Environ, tmp_path: Path) -> None:
    need("ffmpeg", package="ffmpeg")
    received: list[float] = []

    async def scenario() -> dict[str, object]:
        line = ProgressRecorder()
        result = await call(
            ScreenCapability(consent=agree, environ=blue), "screen.record", line=line, durationMs=1500, fps=8
        )
        received.extend(line.progressed)
        (tmp_path / "film.mp4").write_bytes(video_data(result))
        assert isinstance(result.structured, dict)
        assert b64decode(result.structured["base64"]) == video_data(result)
        return result_json(result)

    value = asyncio.run(scenario())
    found = probe_media((tmp_path / "film.mp4").read_bytes(), kind="mp4", tmp_path=tmp_path)
    (stream,) = found["streams"]
    assert value == {"format": "mp4", "durationMs": 1500, "fps": 8, "screenIndex": 0, "hasAudio": False}
    assert (stream["codec_name"], stream["width"], stream["height"]) == ("h264", 1280, 800)
    assert int(stream["nb_read_frames"]) == 12
    assert received == sorted(set(received))
    assert received[-1] <= 1.5
    still = tmp_path / "still.png"
    words = ["ffmpeg", "-v", "error", "-i", str(tmp_path / "film.mp4"), "-frames:v", "1", str(still)]
    subprocess.run(words, check=True, timeout=30)
    assert near(opened(still.read_bytes()).getpixel((5, 5)), BLUE, off=6)


def test_no_film_is_made_without_consent(blue: Environ) -> None:
    need("ffmpeg", package="ffmpeg")
    questions: list[str] = []

    async def refuse(call: ToolCall, what: str) -> None:
        questions.append(what)
        raise ToolDenied("no person agreed")

    with pytest.raises(ToolDenied):
        asyncio.run(call(ScreenCapability(consent=refuse, environ=blue), "screen.record", durationMs=2000))

    assert questions == ["film screen 0 for 2 s"]


def test_a_film_of_a_screen_that_is_not_there_is_refused_before_the_user_is_asked(blue: Environ) -> None:
    need("ffmpeg", package="ffmpeg")

    async def never(call: ToolCall, what: str) -> None:
        raise AssertionError("no person should be asked")

    with pytest.raises(ToolArguments, match="names no screen"):
        asyncio.run(call(ScreenCapability(consent=never, environ=blue), "screen.record", screenIndex=5))


def test_a_cancelled_film_stops_its_program_at_once(blue: Environ) -> None:
    need("ffmpeg", package="ffmpeg")

    async def scenario() -> None:
        line, before = ProgressRecorder(), children()
        task = asyncio.ensure_future(
            call(ScreenCapability(consent=agree, environ=blue), "screen.record", line=line, durationMs=60_000)
        )
        await asyncio.wait_for(line.begun.wait(), 30)
        assert children() - before
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not children() - before

    asyncio.run(scenario())


def test_without_a_display_both_commands_are_missing_with_a_remedy() -> None:
    for environ in ({}, {"DISPLAY": ":9876"}, {"DISPLAY": "nonsense"}):
        screen = ScreenCapability(consent=agree, environ=environ)

        for command in ("screen.snapshot", "screen.record"):
            missing = screen.unavailable_reason(command)
            assert missing is not None
            assert "xvfb-run" in missing.remedy
            with pytest.raises(ToolUnavailable, match="no screen here"):
                asyncio.run(call_if_available(screen, command))


def test_on_wayland_the_remedy_names_grim_or_x11(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    screen = ScreenCapability(consent=agree, environ={"WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"})

    snapshot, record = screen.unavailable_reason("screen.snapshot"), screen.unavailable_reason("screen.record")

    assert snapshot is not None
    assert "grim" in snapshot.remedy
    assert record is not None
    assert "X11" in record.remedy


@pytest.fixture
def sway(tmp_path: Path) -> Iterator[Environ]:
    """A Wayland desktop without a monitor. It refuses to run as root, so root starts it as nobody."""
    need("grim", package="grim")
    runtime, configuration = Path(tempfile.mkdtemp(prefix="oc-")), tmp_path / "config"
    configuration.write_text(
        "output HEADLESS-1 resolution 1024x640\noutput HEADLESS-1 background #3366cc solid_color\n"
    )
    words = [need("sway", package="sway"), "-c", str(runtime / "config")]
    shutil.copy(configuration, runtime / "config")
    if os.geteuid() == 0:
        words = [need("setpriv", package="util-linux"), "--reuid=65534", "--regid=65534", "--clear-groups", *words]
        for path in (runtime, runtime / "config"):
            os.chown(path, 65534, 65534)
    environ = {"PATH": os.environ["PATH"], "HOME": str(runtime), "XDG_RUNTIME_DIR": str(runtime)}
    headless = {"WLR_BACKENDS": "headless", "WLR_LIBINPUT_NO_DEVICES": "1", "WLR_RENDERER": "pixman"}
    try:
        with running(*words, env={**environ, **headless}):
            found: list[Path] = []
            end = time.monotonic() + 20
            while not found:
                assert time.monotonic() < end, "sway does not listen"
                time.sleep(0.05)
                found = [path for path in runtime.glob("wayland-*") if path.suffix != ".lock"]
            yield {**environ, "WAYLAND_DISPLAY": found[0].name}
    finally:
        shutil.rmtree(runtime, ignore_errors=True)


def test_on_a_wlroots_desktop_the_pixels_are_read_with_grim(sway: Environ) -> None:
    screen = ScreenCapability(consent=agree, environ=sway)

    def shot() -> tuple[Json, Image.Image]:
        result = asyncio.run(call(screen, "screen.snapshot", maxWidth=512))
        return result_json(result), opened(image_data(result))

    end = time.monotonic() + 20
    value, image = shot()
    while not near(image.getpixel((20, 200)), BLUE):  # the background is drawn by a program of its own, a little later
        assert time.monotonic() < end
        value, image = shot()
    assert value == {"format": "png", "width": 512, "height": 320}
    assert image.size == (512, 320)


def test_a_display_that_died_gives_one_clear_sentence(tmp_path: Path) -> None:
    with virtual_screen(64, 64) as environ:
        screen = ScreenCapability(consent=agree, environ={**environ, "DISPLAY": f"localhost{environ['DISPLAY']}"})

        assert screen.unavailable_reason("screen.snapshot") is None
        with pytest.raises(ToolUnavailable, match="the display does not answer"):
            asyncio.run(call(screen, "screen.snapshot"))


def test_listing_and_asking_what_is_missing_load_no_picture_library() -> None:
    code = (
        "import sys\n"
        "from openclaw_mcp.node.media.screen import ScreenCapability\n"
        "s = ScreenCapability(consent=None)\n"
        "[s.unavailable_reason(c.spec.name) for c in s.commands()]\n"
        "print([m for m in ('mss', 'PIL', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True, env={**os.environ}
    )

    assert result.stdout.strip() == "[]"
